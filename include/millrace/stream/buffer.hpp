// Registered memory for byte streams: a Buffer's bytes travel without a copy, to and from every
// socket of its endpoint. Plain memory is accepted, too (socket.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::stream {

/// Part of a Buffer: what a send takes bytes from, or a receive puts bytes into. Valid as long as
/// the Buffer. A value.
class Slice {
  public:
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::uint32_t lkey() const noexcept;
    [[nodiscard]] std::uint32_t rkey() const noexcept;
    /// The protection domain it is registered in, to be compared.
    [[nodiscard]] const ibv_pd* domain() const noexcept;
    /// For operations: while this is held, its memory stays registered, whatever becomes of the
    /// Buffer.
    [[nodiscard]] const std::shared_ptr<const verbs::MemoryRegion>& hold() const noexcept;

  private:
    friend class Buffer;
    struct Registration;
    Slice(std::span<std::byte> bytes, const Registration& registration) noexcept
        : bytes_{bytes}, registration_{&registration} {}

    std::span<std::byte> bytes_;
    const Registration* registration_;  ///< the Buffer's
};

/// Of a Buffer and of the operations that have not completed: the last of them ends it.
struct Slice::Registration {
    std::shared_ptr<connect::Endpoint> endpoint;
    verbs::RegisteredBuffer memory;      ///< its own
    verbs::MemoryRegion program_memory;  ///< or registered only
    std::uint32_t lkey = 0;              ///< of either
    std::uint32_t rkey = 0;
    const ibv_pd* domain = nullptr;
    /// The Buffer's share, which operations copy: of all this, by the region.
    std::shared_ptr<const verbs::MemoryRegion> share;
};

inline std::uint32_t Slice::lkey() const noexcept { return registration_->lkey; }
inline std::uint32_t Slice::rkey() const noexcept { return registration_->rkey; }
inline const ibv_pd* Slice::domain() const noexcept { return registration_->domain; }
inline const std::shared_ptr<const verbs::MemoryRegion>& Slice::hold() const noexcept {
    return registration_->share;
}

/// Memory that is registered with an endpoint. Move-only. What is advertised to one peer may be
/// written by it, all of the Buffer, for as long as their connection stands: so peers that do not
/// trust each other get a Buffer each (docs/stream.md). Distinct parts may be used by distinct
/// threads. It may go before operations on it have completed: its registration then ends with the
/// last of them, and so does its memory, if that is its own. Nothing is cut short.
class Buffer {
  public:
    /// At least `size` bytes, zeroed and aligned to pages. `endpoint`: that of the sockets
    /// (SocketOptions::endpoint); null: Endpoint::shared(). Throws Error (resource_exhausted,
    /// invalid_argument: no bytes).
    explicit Buffer(std::size_t size, std::shared_ptr<connect::Endpoint> endpoint = {});
    /// Memory of the program's, which outlives the Buffer and the operations on it. Throws as
    /// above.
    explicit Buffer(std::span<std::byte> memory, std::shared_ptr<connect::Endpoint> endpoint = {});

    [[nodiscard]] std::byte* data() const noexcept { return bytes_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

    /// `length` bytes from `offset` on. Throws Error (invalid_argument): they go beyond its end.
    [[nodiscard]] Slice slice(std::size_t offset, std::size_t length) const {
        if (offset > size() || length > size() - offset) [[unlikely]]
            refuse(offset, length);
        return {{data() + offset, length}, *registration_};
    }
    /// All of it.
    [[nodiscard]] Slice slice() const noexcept { return {bytes(), *registration_}; }

  private:
    [[noreturn]] void refuse(std::size_t offset, std::size_t length) const;

    /// Ends the Buffer's share: the holder of another one is the last now.
    struct GiveUp {
        void operator()(Slice::Registration* registration) const noexcept {
            const auto share = std::move(registration->share);
        }
    };
    void share_out(std::shared_ptr<Slice::Registration> made) noexcept;

    std::unique_ptr<Slice::Registration, GiveUp> registration_;
    std::span<std::byte> bytes_;
};

}  // namespace millrace::stream
