// Registered memory: buffers that every device reaches fast, regions, protection domains.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/verbs/control_path.hpp"

namespace millrace::verbs {

class AddressHandle;
class CompletionQueue;
class DatagramQueuePair;
class MemoryFile;
class QueuePair;
class SharedReceiveQueue;
class Slabs;
class ThreadDomain;
struct PathOptions;
struct QueuePairAddress;
struct QueuePairOptions;
struct SharedReceiveOptions;

/// Bits of ibv_access_flags, typed.
enum class Access : unsigned {
    none = 0,  ///< local read only: sources of writes and sends
    local_write = IBV_ACCESS_LOCAL_WRITE,
    remote_write = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE,  ///< implies local write
    remote_read = IBV_ACCESS_REMOTE_READ,
    remote_atomic = IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE,
};
[[nodiscard]] constexpr Access operator|(Access a, Access b) noexcept {
    return static_cast<Access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
[[nodiscard]] constexpr Access operator&(Access a, Access b) noexcept {
    return static_cast<Access>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}

/// An address in the peer's memory, as its owner published it.
struct RemoteAddress {
    std::uint64_t address = 0;
    std::uint32_t rkey = 0;
    [[nodiscard]] RemoteAddress operator+(std::uint64_t offset) const noexcept {
        return {address + offset, rkey};
    }
};

/// Page-aligned zeroed memory in a sealed shared mapping (of a memfd, or of a piece of one;
/// fallocated; huge pages where asked for and allowed). A NIC registers it like any memory; the
/// soft device hands it to peers as a mapping, so that an RDMA WRITE into it is a plain store. One
/// allocation path for all. Move-only.
class Buffer {
  public:
    Buffer() noexcept = default;
    /// At least `size` bytes (rounded up to pages). Throws Error (resource_exhausted).
    explicit Buffer(std::size_t size, bool huge_pages = false);
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
    /// Never give this memory back: a device may still write to it (see MemoryRegion).
    void quarantine() noexcept { quarantined_ = true; }

  private:
    friend class ProtectionDomain;
    friend class RegisteredBuffer;
    /// A piece of a file that others have pieces of; or one by itself, where that cannot be.
    [[nodiscard]] static Buffer of_slab(Slabs& slabs, std::size_t size, bool packed);

    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::uint64_t offset_ = 0;  ///< in the file
    std::shared_ptr<MemoryFile> file_;
    bool quarantined_ = false;
};

/// A registration of memory that outlives it. Move-only.
class MemoryRegion {
  public:
    MemoryRegion() noexcept = default;
    MemoryRegion(MemoryRegion&& other) noexcept;
    MemoryRegion& operator=(MemoryRegion&& other) noexcept;
    MemoryRegion(const MemoryRegion&) = delete;
    MemoryRegion& operator=(const MemoryRegion&) = delete;
    ~MemoryRegion();

    [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(raw_->addr); }
    [[nodiscard]] std::size_t size() const noexcept { return raw_->length; }
    [[nodiscard]] std::uint32_t lkey() const noexcept { return raw_->lkey; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return raw_->rkey; }
    [[nodiscard]] ibv_mr* raw() const noexcept { return raw_; }

    /// The scatter/gather element for `length` bytes at `offset`. Unchecked; the device checks.
    [[nodiscard]] ibv_sge slice(std::size_t offset, std::size_t length) const noexcept {
        return {reinterpret_cast<std::uint64_t>(data() + offset),
                static_cast<std::uint32_t>(length), raw_->lkey};
    }
    /// What a peer needs to reach `offset`.
    [[nodiscard]] RemoteAddress remote(std::size_t offset = 0) const noexcept {
        return {reinterpret_cast<std::uint64_t>(data() + offset), raw_->rkey};
    }

    /// Deregisters now. False: the device could not promise that nothing touches the memory any
    /// more (EBUSY); the memory must then never be reused. The registration itself ends later, once
    /// the device can promise it. The destructor calls this and logs.
    [[nodiscard]] bool deregister() noexcept;

  private:
    friend class ProtectionDomain;
    friend class RegisteredBuffer;
    /// What could not be deregistered, or null.
    [[nodiscard]] ibv_mr* try_to_deregister() noexcept;
    MemoryRegion(ibv_mr* raw, const ControlPath& path) noexcept : raw_{raw}, path_{&path} {}
    ibv_mr* raw_ = nullptr;
    const ControlPath* path_ = nullptr;
};

/// A buffer and its registration, released in the right order. Memory that a process may still
/// touch is kept, and released once that has left it or is dead and other memory is registered or
/// released.
class RegisteredBuffer {
  public:
    RegisteredBuffer() noexcept = default;
    RegisteredBuffer(RegisteredBuffer&&) noexcept = default;
    RegisteredBuffer& operator=(RegisteredBuffer&& other) noexcept;
    ~RegisteredBuffer();

    [[nodiscard]] std::byte* data() const noexcept { return buffer_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return buffer_.size(); }
    [[nodiscard]] const MemoryRegion& region() const noexcept { return region_; }
    [[nodiscard]] ibv_sge slice(std::size_t offset, std::size_t length) const noexcept {
        return region_.slice(offset, length);
    }
    [[nodiscard]] RemoteAddress remote(std::size_t offset = 0) const noexcept {
        return region_.remote(offset);
    }

  private:
    friend class ProtectionDomain;
    RegisteredBuffer(Buffer buffer, MemoryRegion region) noexcept;
    Buffer buffer_;
    MemoryRegion region_;
};

/// A protection domain. Move-only; regions and queue pairs made from it must go first.
class ProtectionDomain {
  public:
    ProtectionDomain() noexcept = default;
    ProtectionDomain(ProtectionDomain&& other) noexcept;
    ProtectionDomain& operator=(ProtectionDomain&& other) noexcept;
    ProtectionDomain(const ProtectionDomain&) = delete;
    ProtectionDomain& operator=(const ProtectionDomain&) = delete;
    ~ProtectionDomain();

    /// Registers memory of the caller, which must outlive the region. Throws Error; when memlock is
    /// the likely cause (ENOMEM), the remedy names the limit found and how to raise it.
    [[nodiscard]] MemoryRegion register_memory(std::span<std::byte> memory, Access access);
    /// Allocates a `Buffer` of at least `size` bytes and registers it. Those of up to 64 MiB take
    /// pieces of one file, which is of this domain alone: no descriptor for each. Any thread.
    [[nodiscard]] RegisteredBuffer allocate(std::size_t size, Access access,
                                            bool huge_pages = false);
    /// The same for what is small: aligned to 128 bytes, and its first and its last page hold
    /// buffers of others of this domain, too. A peer that maps it maps these pages.
    [[nodiscard]] RegisteredBuffer allocate_packed(std::size_t size, Access access);
    /// Throws Error (resource_exhausted, invalid_argument) naming the limit that was exceeded.
    [[nodiscard]] QueuePair create_queue_pair(const QueuePairOptions& options);
    /// A queue pair for datagrams (datagram.hpp), whatever the type in `options`. Throws likewise.
    [[nodiscard]] DatagramQueuePair create_datagram_queue_pair(QueuePairOptions options);
    /// The way to `peer`'s port, or to a multicast group (then `peer` has its GID, and its LID on
    /// InfiniBand). Of `path`: port, gid_index, hop_limit. Throws Error.
    [[nodiscard]] AddressHandle create_address_handle(const QueuePairAddress& peer,
                                                      const PathOptions& path);
    /// Throws Error (resource_exhausted, invalid_argument) naming the device's limits.
    [[nodiscard]] SharedReceiveQueue create_shared_receive_queue(
        const SharedReceiveOptions& options);

    [[nodiscard]] ibv_pd* raw() const noexcept { return raw_; }
    [[nodiscard]] const ControlPath& control_path() const noexcept { return *path_; }

  private:
    friend class Context;
    friend class ThreadDomain;
    ProtectionDomain(ibv_pd* raw, const ControlPath& path, std::shared_ptr<Slabs> slabs) noexcept
        : raw_{raw}, path_{&path}, slabs_{std::move(slabs)} {}
    [[nodiscard]] RegisteredBuffer registered(Buffer buffer, Access access);
    ibv_pd* raw_ = nullptr;
    const ControlPath* path_ = nullptr;
    std::shared_ptr<Slabs> slabs_;
};

}  // namespace millrace::verbs
