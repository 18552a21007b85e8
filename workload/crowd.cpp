#include "crowd.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::workload {
namespace detail {

/// What a member leaves to the caller of the crowd. In shared memory, as the control is.
struct alignas(64) CrowdSeat {
    base::Histogram ns;
    std::uint64_t calls = 0;
};
struct alignas(64) CrowdControl {
    std::size_t members = 0;
    std::atomic<std::size_t> ready{0};
    std::atomic<std::int64_t> start{0};  ///< of base::Clock; 0: not yet
    std::atomic<std::uint32_t> failures{0};
    char why[512] = {};  ///< of the first process that failed
};
static_assert(std::atomic<std::size_t>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

}  // namespace detail

namespace {

using detail::CrowdControl;
using detail::CrowdSeat;
constexpr const char* attempted = "run a crowd";

/// The control, and a seat for each.
class Hall {
  public:
    explicit Hall(std::size_t members) : size_{sizeof(CrowdControl) + members * sizeof(CrowdSeat)} {
        memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory_ == MAP_FAILED) {
            base::throw_errno(errno, attempted, fmt::format("of {} members", members),
                              "free memory, or make it smaller");
        }
        control_ = new (memory_) CrowdControl{.members = members};
        auto* const place = static_cast<std::byte*>(memory_) + sizeof(CrowdControl);
        for (std::size_t i = 0; i != members; ++i) new (place + i * sizeof(CrowdSeat)) CrowdSeat{};
        seats_ = {reinterpret_cast<CrowdSeat*>(place), members};
    }
    Hall(const Hall&) = delete;
    Hall& operator=(const Hall&) = delete;
    ~Hall() { ::munmap(memory_, size_); }

    [[nodiscard]] CrowdControl& control() const noexcept { return *control_; }
    [[nodiscard]] std::span<CrowdSeat> seats() const noexcept { return seats_; }

  private:
    std::size_t size_;
    void* memory_;
    CrowdControl* control_;
    std::span<CrowdSeat> seats_;
};
static_assert(sizeof(CrowdControl) % alignof(CrowdSeat) == 0);

using Member = std::function<void(CrowdMember&)>;

void run_threads(const Hall& hall, const Member& member) {
    std::mutex lock;
    std::exception_ptr failure;
    {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i != hall.seats().size(); ++i) {
            const auto fail = [&] {
                const std::lock_guard guard{lock};
                if (hall.control().failures.fetch_add(1) == 0) failure = std::current_exception();
            };
            const auto run = [&, i, fail] {
                try {
                    CrowdMember me{i, hall.seats()[i], hall.control()};
                    member(me);
                } catch (...) {
                    fail();
                }
            };
            try {
                threads.emplace_back(run);
            } catch (...) {
                fail();  // and those that wait for all to begin hear of it
                break;
            }
        }
    }
    if (failure != nullptr) std::rethrow_exception(failure);
}

[[noreturn]] void be_process(const Hall& hall, std::size_t number, const Member& member) noexcept {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    CrowdControl& control = hall.control();
    try {
        CrowdMember me{number, hall.seats()[number], control};
        member(me);
        ::_exit(0);
    } catch (const std::exception& error) {
        if (control.failures.fetch_add(1) == 0) {
            std::strncpy(control.why, error.what(), sizeof control.why - 1);
        }
    }
    ::_exit(1);
}

/// Waits for the end of all. How the first one ended that did not say why; empty: all did, or ended
/// well.
std::string reap(std::vector<pid_t> processes, CrowdControl& control,
                 const base::Deadline& deadline) {
    std::string ended;
    bool were_killed = false;
    const auto is_gone = [&](pid_t process) {
        int status = 0;
        const pid_t gone = ::waitpid(process, &status, WNOHANG);
        if (gone == 0) return false;
        const bool has_returned = gone == process && WIFEXITED(status);
        if (has_returned && WEXITSTATUS(status) <= 1) return true;
        control.failures.fetch_add(1);  // those that wait for it in begin() must not wait for ever
        if (!ended.empty()) return true;
        ended = were_killed ? "it was not done in time, and was killed"
                : gone == process && WIFSIGNALED(status)
                    ? fmt::format("it was killed by signal {}", WTERMSIG(status))
                    : "it has ended without a word";
        return true;
    };
    while (std::erase_if(processes, is_gone), !processes.empty()) {
        if (deadline.expired() && !were_killed) {
            for (const pid_t process : processes) ::kill(process, SIGKILL);
            were_killed = true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return ended;
}

void run_processes(const Hall& hall, const CrowdOptions& options, const Member& member) {
    std::vector<pid_t> processes;
    int error = 0;
    for (std::size_t i = 0; i != hall.seats().size() && error == 0; ++i) {
        const pid_t child = ::fork();
        if (child == 0) be_process(hall, i, member);
        if (child > 0) {
            processes.push_back(child);
        } else {
            error = errno;
            hall.control().failures.fetch_add(1);
        }
    }
    const std::string ended =
        reap(processes, hall.control(), base::Deadline::after(options.patience));
    if (error != 0) {
        base::throw_errno(error, attempted, "a process of it", "raise the limit of processes");
    }
    const std::string why = hall.control().why;
    if (why.empty() && ended.empty()) return;
    throw base::Error{!why.empty() ? base::ErrorCode::system : base::ErrorCode::peer_lost,
                      attempted, "a process of it", !why.empty() ? why : ended, ""};
}

}  // namespace

base::Clock::time_point CrowdMember::begin() {
    using std::chrono::nanoseconds;
    CrowdControl& control = *control_;
    if (control.ready.fetch_add(1) + 1 == control.members) {
        control.start.store(base::Clock::now().time_since_epoch().count());
    }
    std::int64_t start = 0;
    while ((start = control.start.load()) == 0) {
        if (control.failures.load() != 0) {
            throw base::Error{base::ErrorCode::cancelled, attempted,
                              fmt::format("member {}", number_),
                              "another member has failed before they began", ""};
        }
        std::this_thread::sleep_for(std::chrono::microseconds{50});
    }
    return base::Clock::time_point{nanoseconds{start}};
}

void CrowdMember::record(std::uint64_t since) noexcept {
    seat_->ns.record(
        static_cast<std::uint64_t>(static_cast<double>(base::ticks() - since) * ns_per_tick_));
    ++seat_->calls;
}

double least_to_mean(std::span<const std::uint64_t> calls) noexcept {
    std::uint64_t all = 0;
    for (const std::uint64_t each : calls) all += each;
    if (all == 0) return 0;
    return static_cast<double>(*std::min_element(calls.begin(), calls.end())) *
           static_cast<double>(calls.size()) / static_cast<double>(all);
}

double CrowdFigures::least_to_mean() const noexcept { return workload::least_to_mean(per_member); }

CrowdFigures run_crowd(const CrowdOptions& options, const Member& member) {
    const Hall hall{options.members};
    if (options.kind == CrowdOptions::Kind::threads) {
        run_threads(hall, member);
    } else {
        run_processes(hall, options, member);
    }
    CrowdFigures figures;
    const base::Clock::time_point start{std::chrono::nanoseconds{hall.control().start.load()}};
    figures.seconds = std::chrono::duration<double>(base::Clock::now() - start).count();
    for (const CrowdSeat& seat : hall.seats()) {
        figures.per_member.push_back(seat.calls);
        figures.ns->add(seat.ns);
    }
    return figures;
}

}  // namespace millrace::workload
