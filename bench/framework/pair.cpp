// Two processes, pinned to two cores, that run the two sides of one measurement.
#include "pair.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::bench {

using base::Error;
using base::ErrorCode;

/// The page that both sides see. Side 0 is the calling process, side 1 the child.
struct PairControl {
    struct alignas(128) SideState {
        std::atomic<std::uint32_t> met;
        std::atomic<std::uint32_t> failed;
        std::array<std::atomic<std::uint64_t>, 16> values;
        char message[512];
    };
    std::array<SideState, 2> sides;
};

namespace {

constexpr std::size_t page_size = 4096;
static_assert(sizeof(PairControl) <= page_size);

/// Shared anonymous memory, unmapped at the end. Faulted in, so that no run pays for it.
class SharedMemory {
  public:
    explicit SharedMemory(std::size_t size)
        : size_{(size + page_size - 1) / page_size * page_size} {
        memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (memory_ == MAP_FAILED) {
            base::throw_errno(errno, "map shared memory", fmt::format("{} bytes", size_),
                              "free memory");
        }
    }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory() { ::munmap(memory_, size_); }
    [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(memory_); }

    /// A child's page tables start empty for shared memory: fills them.
    void touch() const noexcept {
        for (std::size_t at = 0; at < size_; at += page_size) {
            static_cast<void>(std::atomic_ref{data()[at]}.load(std::memory_order_relaxed));
        }
    }

  private:
    std::size_t size_;
    void* memory_;
};

/// Pins the calling thread and gives it its former cores back.
class Pinned {
  public:
    explicit Pinned(int core) {
        known_ = ::sched_getaffinity(0, sizeof(before_), &before_) == 0;
        base::pin_this_thread(core);
    }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    ~Pinned() {
        if (known_) ::sched_setaffinity(0, sizeof(before_), &before_);
    }

  private:
    cpu_set_t before_{};
    bool known_ = false;
};

std::string topology_of(int core, std::string_view what) {
    std::ifstream file{fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", core, what)};
    std::string text;
    std::getline(file, text);
    return text;
}

void leave_message(PairControl::SideState& side, const char* text) noexcept {
    std::strncpy(side.message, text, sizeof(side.message) - 1);
    side.failed.store(1, std::memory_order_release);
}

std::string describe_end(const siginfo_t& info) {
    return info.si_code == CLD_EXITED ? fmt::format("exited with {}", info.si_status)
                                      : fmt::format("was killed by signal {}", info.si_status);
}

[[noreturn]] void run_child(const SecondSide& body, PairControl* control,
                            const SharedMemory& memory, int parent, int core,
                            std::uint64_t end_ticks) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    int code = 0;
    try {
        base::pin_this_thread(core);
        memory.touch();
        Pair pair{control, memory.data() + page_size, 1, parent, end_ticks};
        body(pair);
    } catch (const std::exception& error) {
        leave_message(control->sides[1], error.what());
        code = 1;
    }
    ::_exit(code);
}

/// Waits for the child's end; kills it when it is not done by `end_ticks`. True: it was killed.
bool reap(int pid, std::uint64_t end_ticks, siginfo_t& info) {
    const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    bool killed = false;
    while (descriptor >= 0 && base::ticks() < end_ticks) {
        pollfd ready{descriptor, POLLIN, 0};
        if (::poll(&ready, 1, 50) > 0) break;
    }
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0 ||
        info.si_pid == 0) {
        ::kill(pid, SIGKILL);
        killed = true;
        ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED);
    }
    if (descriptor >= 0) ::close(descriptor);
    return killed;
}

}  // namespace

Cores two_cores() {
    const auto cores = base::available_cores();
    const int first = cores.front();
    const auto package = topology_of(first, "physical_package_id");
    const auto siblings = topology_of(first, "thread_siblings_list");
    int other_package = -1;
    int sibling = -1;
    for (const int core : cores) {
        if (core == first) continue;
        if (topology_of(core, "thread_siblings_list") == siblings && !siblings.empty()) {
            if (sibling < 0) sibling = core;
        } else if (topology_of(core, "physical_package_id") != package) {
            if (other_package < 0) other_package = core;
        } else {
            return {first, core};
        }
    }
    if (other_package >= 0) return {first, other_package};
    if (sibling >= 0) return {first, sibling};
    throw Error{ErrorCode::unsupported, "measure two processes", "this machine",
                "this process may use a single core",
                "give it two cores (taskset, cpuset): both sides of a measurement spin"};
}

std::vector<int> cores_of_side(bool is_second) {
    const std::vector<int> all = base::available_cores();
    if (all.size() < 4) {
        const Cores two = two_cores();
        return {is_second ? two.second : two.first};
    }
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    return is_second ? std::vector<int>{middle, all.end()} : std::vector<int>{all.begin(), middle};
}

void share_two_cores() {
    const Cores cores = two_cores();
    cpu_set_t both;
    CPU_ZERO(&both);
    CPU_SET(cores.first, &both);
    CPU_SET(cores.second, &both);
    if (::sched_setaffinity(0, sizeof both, &both) != 0) {
        base::throw_errno(errno, "share two cores", "this thread", "allow this process both");
    }
}

void Pair::meet() {
    ++met_;
    control_->sides[static_cast<std::size_t>(side_)].met.store(met_, std::memory_order_release);
    auto& other = control_->sides[static_cast<std::size_t>(1 - side_)].met;
    spin_until([&] { return other.load(std::memory_order_acquire) >= met_; });
}

void Pair::set_value(int index, std::uint64_t value) noexcept {
    control_->sides[static_cast<std::size_t>(side_)]
        .values.at(static_cast<std::size_t>(index))
        .store(value, std::memory_order_release);
}

std::uint64_t Pair::value(int index) const noexcept {
    return control_->sides[static_cast<std::size_t>(1 - side_)]
        .values.at(static_cast<std::size_t>(index))
        .load(std::memory_order_acquire);
}

void Pair::check(std::uint32_t turn) {
    const auto& other = control_->sides[static_cast<std::size_t>(1 - side_)];
    if (other.failed.load(std::memory_order_acquire) != 0) {
        throw Error{ErrorCode::peer_lost, "measure two processes", "the other side", other.message,
                    ""};
    }
    if (base::ticks() >= end_ticks_) {
        throw Error{ErrorCode::timed_out, "measure two processes",
                    side_ == 0 ? "the measuring side" : "the second side",
                    "the other side did not answer in time",
                    "see whether something else uses the cores"};
    }
    if (side_ == 0 && turn % (1024U * 1024U) == 0) {
        siginfo_t info{};
        // Zombies are left for `reap`.
        if (::waitid(P_PID, static_cast<id_t>(other_pid_), &info, WEXITED | WNOHANG | WNOWAIT) ==
                0 &&
            info.si_pid != 0) {
            throw Error{ErrorCode::peer_lost, "measure two processes", "the second side",
                        fmt::format("it {} before the end", describe_end(info)), ""};
        }
    }
}

double run_pair(const PairOptions& options, const FirstSide& first, const SecondSide& second) {
    const Cores cores = two_cores();
    const std::uint64_t end_ticks = base::ticks() + base::ticks_in(options.deadline);
    const SharedMemory memory{page_size + options.shared_bytes};
    auto* control = new (memory.data()) PairControl{};
    const int parent = ::getpid();
    const int child = ::fork();
    if (child < 0) {
        base::throw_errno(errno, "start the second side", "a child process",
                          "raise the limit of processes");
    }
    if (child == 0) run_child(second, control, memory, parent, cores.second, end_ticks);

    std::exception_ptr failure;
    double result = 0;
    try {
        const Pinned pinned{cores.first};
        Pair pair{control, memory.data() + page_size, 0, child, end_ticks};
        result = first(pair);
    } catch (const std::exception& error) {
        failure = std::current_exception();
        leave_message(control->sides[0], error.what());
    }
    siginfo_t info{};
    const bool killed = reap(child, end_ticks, info);
    const auto& side = control->sides[1];
    if (side.failed.load(std::memory_order_acquire) != 0) {
        throw Error{ErrorCode::system, "measure two processes", "the second side", side.message,
                    ""};
    }
    if (failure) std::rethrow_exception(failure);
    if (killed) {
        throw Error{ErrorCode::timed_out, "measure two processes", "the second side",
                    "it hung and was killed", ""};
    }
    if (info.si_code != CLD_EXITED || info.si_status != 0) {
        throw Error{ErrorCode::peer_lost, "measure two processes", "the second side",
                    fmt::format("it {}", describe_end(info)), ""};
    }
    return result;
}

double run_alone(const std::function<double()>& body) {
    const Pinned pinned{base::available_cores().front()};
    return body();
}

}  // namespace millrace::bench
