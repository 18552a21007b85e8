// Registrations of plain memory that are kept for the next operation on it. Given to sockets by
// SocketOptions::registrations.
//
// Nothing in user space learns of a mapping's end in time without hooks in the program's allocator
// or a thread that the kernel's events wait for (userfaultfd), so the program says it: forget(). A
// device with pinned pages would otherwise send what the memory was, and receive into what nobody
// sees. docs/stream-socket.md says what holds at munmap, mremap and fork.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::stream {

struct RegistrationCacheOptions {
    /// Registrations that are kept; with one more, the one goes that was used longest ago.
    std::size_t most_regions = 64;
    /// Bytes of all of them; a longer piece of memory is registered for one operation.
    std::size_t most_bytes = std::size_t{1} << 30;
    /// Receives use it, too: a peer can then write to memory that it has sent to until that is
    /// forgotten or evicted, over any of its connections to this endpoint. Otherwise until the
    /// receive completes.
    bool receives = false;
};

/// Shared by sockets of one endpoint. Any thread; not movable. It may go before the operations that
/// use it.
class RegistrationCache {
  public:
    using Held = std::shared_ptr<const verbs::MemoryRegion>;

    /// `endpoint`: that of the sockets; null: Endpoint::shared(). Throws Error as that does.
    explicit RegistrationCache(const RegistrationCacheOptions& options = {},
                               std::shared_ptr<connect::Endpoint> endpoint = {});
    RegistrationCache(const RegistrationCache&) = delete;
    RegistrationCache& operator=(const RegistrationCache&) = delete;

    /// Before any of this memory is given back to the system, moved, or mapped anew (munmap,
    /// mremap, mmap with MAP_FIXED, madvise with MADV_DONTNEED; free() may do so), and after the
    /// operations on it: nothing in its pages is registered any more. Returns how many
    /// registrations went. Memory that is not known may be named.
    std::size_t forget(std::span<const std::byte> memory);
    /// All of it.
    std::size_t clear();

    struct Stats {
        std::uint64_t hits = 0;
        std::uint64_t misses = 0;
        std::uint64_t evictions = 0;
        std::size_t regions = 0;  ///< that are kept now
        std::size_t bytes = 0;
    };
    [[nodiscard]] Stats stats() const;
    [[nodiscard]] const RegistrationCacheOptions& options() const noexcept { return options_; }
    [[nodiscard]] const connect::Endpoint& endpoint() const noexcept { return *endpoint_; }

    /// For sockets: a registration that has all of `memory`. `is_new`: it was made now. Throws
    /// Error (resource_exhausted), when it can not be, though nothing is kept any more.
    [[nodiscard]] Held find(std::span<std::byte> memory, verbs::Access access, bool& is_new);

  private:
    struct Entry {
        const std::byte* begin = nullptr;
        const std::byte* end = nullptr;
        verbs::Access access = verbs::Access::none;
        Held region;
    };
    [[nodiscard]] Held enter(std::span<std::byte> memory, verbs::Access access);
    void drop_oldest();

    RegistrationCacheOptions options_;
    std::shared_ptr<connect::Endpoint> endpoint_;
    mutable std::mutex mutex_;    ///< of all below
    std::vector<Entry> entries_;  ///< the one used last first
    std::size_t bytes_ = 0;
    Stats counts_;
};

}  // namespace millrace::stream
