// Acceptor: a thread with a hub of its own, and a queue of what it has accepted.
#include "millrace/connect/acceptor.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/log.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/signals.hpp"
#include "millrace/connect/hub.hpp"

namespace millrace::connect {

/// Shared with the calls that are posted to the executor, which may be made behind its end.
struct Acceptor::State : std::enable_shared_from_this<State> {
    State(int its_descriptor, base::Executor& its_executor, const AcceptorOptions& chosen,
          Step its_step)
        : descriptor{its_descriptor},
          to{its_executor},
          options{chosen},
          step{std::move(its_step)},
          hub{{.wait = base::WaitPolicy::blocking()}} {}

    const int descriptor;
    base::Executor& to;
    const AcceptorOptions options;
    const Step step;  ///< for the accepting thread
    Hub hub;          ///< likewise
    std::optional<Hub::Id> listening;
    bool is_to_listen = false;  ///< and does not: it failed, and is tried again

    std::mutex mutex;  ///< of waiting and is_full
    std::deque<Call> waiting;
    bool is_full = false;  ///< so that nothing is accepted until something is taken
    std::thread thread;
    const pid_t process = getpid();

    void settle_down();
    void run(std::promise<void> settled);
    void listen();
    void accept();
    /// With `is_last` nothing more is accepted until it is taken. False: no more for now.
    [[nodiscard]] bool hand_over(Call call, bool is_last);
    void take_one();
};

/// Where the thread runs, and what for.
void Acceptor::State::settle_down() {
    if (!options.cores.empty()) base::bind_this_thread(options.cores);
    (void)pthread_setname_np(pthread_self(), "millrace-accept");
    // Where that is forbidden it goes without.
    const sched_param none{};
    if (options.priority == AcceptorOptions::Priority::background) {
        (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
    }
    hub.adopt();
    listen();
}

void Acceptor::State::run(std::promise<void> settled) {
    try {
        settle_down();
        settled.set_value();
    } catch (...) {
        settled.set_exception(std::current_exception());
        return;
    }
    constexpr std::chrono::milliseconds before_another_try{100};
    for (;;) {
        try {
            const auto until =
                is_to_listen ? base::Deadline::after(before_another_try) : base::Deadline::never();
            if (hub.run(until) == base::Status::closed) return;
            if (is_to_listen) listen();
        } catch (
            const std::exception& error) {  // there is no memory, or the system watches no more
            base::log(base::LogLevel::warn, "connect", "accept in a thread of its own: {}",
                      error.what());
        }
    }
}

void Acceptor::State::listen() {
    is_to_listen = true;
    listening = hub.add(descriptor, [this] { accept(); });
    is_to_listen = false;
}

void Acceptor::State::accept() {
    bool goes_on = true;
    while (goes_on) {
        Call call;
        bool failed = false;
        try {
            call = step();
        } catch (...) {
            // It may fail again at once: not before somebody has been told of it.
            failed = true;
            call = [error = std::current_exception()] { std::rethrow_exception(error); };
        }
        if (!call) return;
        goes_on = hand_over(std::move(call), failed);
    }
    hub.remove(*listening);
}

bool Acceptor::State::hand_over(Call call, bool is_last) {
    bool goes_on = true;
    {
        const std::lock_guard guard{mutex};
        waiting.push_back(std::move(call));
        is_full = is_last || waiting.size() >= options.most_waiting;
        goes_on = !is_full;
    }
    // Behind the lock: who is woken by it wants that at once.
    try {
        to.post([self = shared_from_this()] { self->take_one(); });
    } catch (...) {
        const std::lock_guard guard{mutex};
        waiting.pop_back();
        is_full = false;
        throw;
    }
    return goes_on;
}

void Acceptor::State::take_one() {
    Call call;
    bool was_full = false;
    {
        const std::lock_guard guard{mutex};
        if (waiting.empty()) return;  // the acceptor is gone
        call = std::move(waiting.front());
        waiting.pop_front();
        if (waiting.empty()) was_full = std::exchange(is_full, false);
    }
    const auto listen_again = [&] {
        if (was_full) hub.post([this] { listen(); });
    };
    // Also behind a call that throws. Either may have ended the acceptor.
    try {
        call();
    } catch (...) {
        listen_again();
        throw;
    }
    listen_again();
}

Acceptor::Acceptor(int descriptor, base::Executor& to, const AcceptorOptions& options, Step step)
    : state_{std::make_shared<State>(descriptor, to, options, std::move(step))} {
    std::promise<void> settled;
    std::future<void> is_settled = settled.get_future();
    try {
        const base::SignalsBlocked blocked;  // they are for the program's own threads
        state_->thread = std::thread{
            [state = state_.get()](std::promise<void> promise) { state->run(std::move(promise)); },
            std::move(settled)};
    } catch (const std::system_error& error) {
        throw base::Error{base::ErrorCode::resource_exhausted, "accept in a thread of its own",
                          fmt::format("descriptor {}", descriptor), error.what(),
                          "raise the limit of processes (ulimit -u), or accept in the hub"};
    }
    try {
        is_settled.get();
    } catch (...) {
        state_->thread.join();
        throw;
    }
}

Acceptor::~Acceptor() {
    State& state = *state_;
    if (getpid() != state.process) {
        // The bell of its hub is the parent's.
        state.thread.detach();
        return;
    }
    state.hub.stop();
    state.thread.join();
    std::deque<Call> left;
    const std::lock_guard guard{state.mutex};
    left.swap(state.waiting);
}

}  // namespace millrace::connect
