// Signals as a cancellation, see the header.
#include "cat/interruption.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>

#include <sys/syscall.h>
#include <unistd.h>

#include "cat/protocol.hpp"
#include "millrace/base/error.hpp"

namespace millrace::tools {

namespace {

base::Cancellation cancellation;
std::atomic<int> signal_number{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note_signal(int number) {
    signal_number.store(number);
    cancellation.request();
}
void tick(int) {}  // only to interrupt

void handle(int number, void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;  // no SA_RESTART: that is the point
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, nullptr);
}

}  // namespace

const base::Cancellation& interruption() noexcept { return cancellation; }
int interrupting_signal() noexcept { return signal_number.load(); }

Interruption::Interruption() {
    handle(SIGINT, note_signal);
    handle(SIGTERM, note_signal);
    handle(SIGPIPE, SIG_IGN);
    handle(SIGALRM, tick);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGALRM;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
        base::throw_errno(errno, "create a timer", "SIGALRM for this thread");
    }
    timer_ = timer;
    itimerspec every{};
    every.it_interval.tv_nsec = std::chrono::nanoseconds{look_interval}.count();
    every.it_value = every.it_interval;
    timer_settime(timer, 0, &every, nullptr);
}

Interruption::~Interruption() { timer_delete(timer_); }

}  // namespace millrace::tools
