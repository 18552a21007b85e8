// Copies between this process and another one: plain stores where the memory is mapped here,
// process_vm_readv / process_vm_writev where it is not. Nobody can end these calls while they wait
// for a page, so that one that may is made by a thread of its own (bounded_copy.hpp).
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "fabric/bounded_copy.hpp"
#include "fabric/fabric.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/system_calls.hpp"
#include "system/process_identity.hpp"

namespace millrace::soft {
namespace {

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

void tell_copies_denied(pid_t pid) noexcept {
    static std::atomic<bool> said{false};
    if (said.exchange(true, std::memory_order_relaxed)) return;
    try {
        base::log(base::LogLevel::error, "soft",
                  "cannot copy from or to the memory of process {}: the system refuses it, and the "
                  "process does not do it for us. Register memory of a memfd sealed with "
                  "F_SEAL_SHRINK, or allow it: same user, kernel.yama.ptrace_scope=0, in a "
                  "container --cap-add=SYS_PTRACE",
                  pid);
    } catch (const std::exception&) {  // a message less
    }
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
