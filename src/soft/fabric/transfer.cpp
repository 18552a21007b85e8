// Copies between this process and another one: plain stores where the memory is mapped here,
// process_vm_readv / process_vm_writev where it is not. Nobody can end these calls while they wait
// for a page, so that one that may is made by a thread of its own.
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>

#include "fabric/fabric.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/signals.hpp"
#include "system/process_identity.hpp"
#include "system/shared_futex.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;

/// The kernel moves at most this much per call (MAX_RW_COUNT); pieces keep the tail apart.
constexpr std::size_t largest_piece = std::size_t{1} << 30;
/// It is asked for so much at once whether the pages are there.
constexpr std::size_t largest_asked = std::size_t{4} << 20;

CopyResult result_of(int error) noexcept {
    switch (error) {
        case ESRCH: return CopyResult::peer_gone;
        case EPERM:
        case EACCES:
        case ENOSYS: return CopyResult::denied;
        default: return CopyResult::bad_address;
    }
}

void* pointer_to(std::uint64_t address) noexcept {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

/// The system calls alone, for as long as they take.
CopyResult read_remote(std::byte* to, std::uint64_t from, std::size_t bytes, pid_t pid) noexcept {
    while (bytes > 0) {
        const iovec local{to, std::min(bytes, largest_piece)};
        const iovec remote{pointer_to(from), local.iov_len};
        const ssize_t moved = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
        base::count_system_call();
        if (moved < 0) return result_of(errno);
        if (moved == 0) return CopyResult::bad_address;
        to += moved;
        from += static_cast<std::uint64_t>(moved);
        bytes -= static_cast<std::size_t>(moved);
    }
    return CopyResult::ok;
}

CopyResult write_remote(std::uint64_t to, const std::byte* from, std::size_t bytes,
                        pid_t pid) noexcept {
    while (bytes > 0) {
        // The last word, up to the destination's last 8-byte boundary, in a vector of its own.
        const std::uint64_t end = to + bytes;
        const std::size_t tail =
            std::min<std::size_t>(bytes, end - ((end - 1) & ~std::uint64_t{7}));
        const std::size_t body = std::min(bytes - tail, largest_piece);
        auto* source = const_cast<std::byte*>(from);
        const iovec local[2] = {{source, body}, {source + body, tail}};
        const iovec remote[2] = {{pointer_to(to), body}, {pointer_to(to + body), tail}};
        const bool with_tail = body + tail == bytes;
        const std::size_t first = body == 0 ? 1 : 0;
        const std::size_t count = (with_tail ? 2 : 1) - first;
        const ssize_t moved =
            ::process_vm_writev(pid, local + first, count, remote + first, count, 0);
        base::count_system_call();
        if (moved < 0) return result_of(errno);
        if (moved == 0) return CopyResult::bad_address;
        to += static_cast<std::uint64_t>(moved);
        from += moved;
        bytes -= static_cast<std::size_t>(moved);
    }
    return CopyResult::ok;
}

/// Of `bounded_copy`, without a step forward. Longer than a page takes that is swapped out on a
/// machine at its limits.
constexpr auto copying_patience = 2s;
constexpr auto copying_slice = 50ms;
constexpr std::size_t one_step = std::size_t{64} << 10;

/// What its thread needs, whoever of the two leaves first. The caller's own memory is not in it.
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

/// Copies between `local` here and `remote` in process `pid`, whose pages may not come.
/// `abandoned`: nothing moved for two seconds, and the thread is still at it: it may yet write to,
/// or read from, `remote`, at any time until this process ends, but touches `local` no more.
/// `busy`: no thread was to be had. docs/soft/fences.md.
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

/// Where pages are missing, with a limit; most of the time they are just cold.
CopyResult copy_remote(std::byte* local, std::uint64_t remote, std::size_t bytes, bool writing,
                       pid_t pid, PeerNode& peer) noexcept {
    while (bytes > 0) {
        const std::size_t part = std::min(bytes, largest_asked);
        CopyResult result = CopyResult::ok;
        if (!peer.pages_there(remote, part)) [[unlikely]] {
            result = bounded_copy(local, remote, part, writing, pid);
        } else if (writing) {
            result = write_remote(remote, local, part, pid);
        } else {
            result = read_remote(local, remote, part, pid);
        }
        if (result != CopyResult::ok) return result;
        local += part;
        remote += part;
        bytes -= part;
    }
    return CopyResult::ok;
}

CopyResult write_zeros(Reach to, std::size_t bytes, PeerNode& peer) noexcept {
    static constexpr std::byte zeros[4096]{};
    while (bytes > 0) {
        const std::size_t some = std::min(bytes, sizeof zeros);
        const Reach from{const_cast<std::byte*>(zeros), 0, 0};
        const CopyResult result = transfer(to, from, some, peer);
        if (result != CopyResult::ok) return result;
        to = advance(to, some);
        bytes -= some;
    }
    return CopyResult::ok;
}

}  // namespace

void tell_copies_denied(pid_t pid) noexcept {
    static std::atomic<bool> said{false};
    if (said.exchange(true, std::memory_order_relaxed)) return;
    base::log(base::LogLevel::error, "soft",
              "cannot copy from or to the memory of process {}: the system refuses it, and the "
              "process does not do it for us. Register memory of a memfd sealed with "
              "F_SEAL_SHRINK, or allow it: same user, kernel.yama.ptrace_scope=0, in a "
              "container --cap-add=SYS_PTRACE",
              pid);
}

CopyResult transfer(const Reach& to, const Reach& from, std::size_t bytes,
                    PeerNode& peer) noexcept {
    if (to.direct != nullptr && from.direct != nullptr) {
        copy_in_order(to.direct, from.direct, bytes);
        return CopyResult::ok;
    }
    if (bytes == 0 || to.pid == nowhere) return CopyResult::ok;
    if (from.pid == nowhere) return write_zeros(to, bytes, peer);
    if (!peer.same_process()) return CopyResult::peer_gone;
    if (peer.copies_refused()) return CopyResult::denied;
    const auto by_way_of = [&](pid_t thread) {
        if (to.direct != nullptr) {
            return copy_remote(to.direct, from.remote, bytes, false, thread, peer);
        }
        if (from.direct != nullptr) {
            return copy_remote(from.direct, to.remote, bytes, true, thread, peer);
        }
        return CopyResult::bad_address;
    };
    const pid_t pid = to.direct != nullptr ? from.pid : to.pid;
    const CopyResult result = by_way_of(pid);
    if (result != CopyResult::peer_gone) [[likely]]
        return result;
    const pid_t thread = living_thread_of(pid);
    return thread == 0 || thread == pid ? result : by_way_of(thread);
}

}  // namespace millrace::soft
