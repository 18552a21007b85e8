#include "fabric/bounded_copy.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>

#include "millrace/base/clock.hpp"
#include "millrace/base/signals.hpp"
#include "system/shared_futex.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;

/// Without a step forward. Longer than a page takes that is swapped out on a machine at its limits.
constexpr auto copying_patience = 2s;
constexpr auto copying_slice = 50ms;
constexpr std::size_t one_step = std::size_t{64} << 10;

/// What the thread needs, whoever of the two leaves first. The caller's own memory is not in it.
struct Work {
    Work(std::uint64_t at, std::size_t size, bool write, pid_t process)
        : bytes{std::make_unique_for_overwrite<std::byte[]>(size)},
          count{size},
          remote{at},
          writing{write},
          pid{process} {}

    const std::unique_ptr<std::byte[]> bytes;
    const std::size_t count;
    const std::uint64_t remote;
    const bool writing;
    const pid_t pid;
    CopyResult result = CopyResult::ok;  ///< before `finished`
    std::atomic<std::uint32_t> steps{0};

    static constexpr std::uint32_t finished = std::uint32_t{1} << 31;

    void run() noexcept {
        pthread_setname_np(pthread_self(), "millrace-pages");
        for (std::size_t done = 0; done < count && result == CopyResult::ok;) {
            const std::size_t part = std::min(count - done, one_step);
            result = writing ? write_remote(remote + done, bytes.get() + done, part, pid)
                             : read_remote(bytes.get() + done, remote + done, part, pid);
            done += part;
            steps.fetch_add(1, std::memory_order_relaxed);
        }
        steps.fetch_or(finished, std::memory_order_release);
        wake_sleepers(steps);
    }
};

}  // namespace

CopyResult bounded_copy(std::byte* local, std::uint64_t remote, std::size_t bytes, bool writing,
                        pid_t pid) noexcept {
    // By the kernel, too: memory that the program has unmapped is an error and no signal.
    const auto own = reinterpret_cast<std::uint64_t>(local);
    std::shared_ptr<Work> work;
    try {
        work = std::make_shared<Work>(remote, bytes, writing, pid);
        if (writing) {
            const CopyResult result = read_remote(work->bytes.get(), own, bytes, getpid());
            if (result != CopyResult::ok) return result;
        }
        const base::SignalsBlocked blocked;
        std::thread{[work] { work->run(); }}.detach();
    } catch (const std::exception&) {
        return CopyResult::busy;
    }
    std::uint32_t before = 0;
    std::chrono::nanoseconds waited{0};
    for (;;) {
        const std::uint32_t now = work->steps.load(std::memory_order_acquire);
        if ((now & Work::finished) != 0) break;
        if (now != before) {
            before = now;
            waited = 0ns;
        } else if (waited >= copying_patience) {
            return CopyResult::abandoned;
        }
        const auto begin = base::Clock::now();
        sleep_on(work->steps, now, copying_slice);
        // While this process is stopped, so is the thread: that is no standstill of the peer's.
        waited += std::min<std::chrono::nanoseconds>(base::Clock::now() - begin, 2 * copying_slice);
    }
    if (work->result == CopyResult::ok && !writing) {
        return write_remote(own, work->bytes.get(), bytes, getpid());
    }
    return work->result;
}

}  // namespace millrace::soft
