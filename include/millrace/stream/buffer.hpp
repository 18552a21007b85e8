// Registered memory for byte streams: a Buffer's bytes travel without a copy, to and from every
// socket of its endpoint. Plain memory is accepted, too (socket.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::stream {

/// Part of a Buffer: what a send takes bytes from, or a receive puts bytes into. Valid as long as
/// the Buffer. A value.
class Slice {
  public:
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }
    /// The protection domain it is registered in, to be compared.
    [[nodiscard]] const ibv_pd* domain() const noexcept { return domain_; }

  private:
    friend class Buffer;
    Slice(std::span<std::byte> bytes, const verbs::MemoryRegion& region) noexcept
        : bytes_{bytes}, lkey_{region.lkey()}, rkey_{region.rkey()}, domain_{region.raw()->pd} {}

    std::span<std::byte> bytes_;
    std::uint32_t lkey_;
    std::uint32_t rkey_;
    const ibv_pd* domain_;
};

/// Memory that is registered with an endpoint. Move-only. What is advertised to one peer may be
/// written by it, all of the Buffer, for as long as their connection stands: so peers that do not
/// trust each other get a Buffer each (docs/stream.md). Distinct parts may be used by distinct
/// threads. It must outlive every operation on it that has not completed.
class Buffer {
  public:
    /// At least `size` bytes, zeroed and aligned to pages. `endpoint`: that of the sockets
    /// (SocketOptions::endpoint); null: Endpoint::shared(). Throws Error (resource_exhausted,
    /// invalid_argument: no bytes).
    explicit Buffer(std::size_t size, std::shared_ptr<connect::Endpoint> endpoint = {});
    /// Memory of the program's, which outlives the Buffer. Throws as above.
    explicit Buffer(std::span<std::byte> memory, std::shared_ptr<connect::Endpoint> endpoint = {});

    [[nodiscard]] std::byte* data() const noexcept { return bytes_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

    /// `length` bytes from `offset` on. Throws Error (invalid_argument): they go beyond its end.
    [[nodiscard]] Slice slice(std::size_t offset, std::size_t length) const {
        if (offset > size() || length > size() - offset) [[unlikely]]
            refuse(offset, length);
        return {{data() + offset, length}, region()};
    }
    /// All of it.
    [[nodiscard]] Slice slice() const noexcept { return {bytes(), region()}; }

  private:
    [[noreturn]] void refuse(std::size_t offset, std::size_t length) const;

    [[nodiscard]] const verbs::MemoryRegion& region() const noexcept {
        return memory_.size() != 0 ? memory_.region() : region_;
    }

    std::shared_ptr<connect::Endpoint> endpoint_;
    verbs::RegisteredBuffer memory_;  ///< its own
    verbs::MemoryRegion region_;      ///< or of the program's
    std::span<std::byte> bytes_;
};

}  // namespace millrace::stream
