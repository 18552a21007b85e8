// The half of a packet stream (packet_stream.hpp, which has the argument) that receives: which
// packets are here, where they lie, and the messages that they make. Used by PacketStream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "assembly.hpp"
#include "bounded_fifo.hpp"
#include "lane/packet_terms.hpp"
#include "millrace/base/status.hpp"

namespace millrace::message {

enum class PacketArrival : std::uint8_t {
    kept,     ///< the packet is needed where it is, until take_free() names its slot
    passed,   ///< nothing of it is needed any more
    foreign,  ///< it was for somebody else, or is no packet
};

/// One thread. As PacketStream.
class PacketReceiver {
  public:
    /// Both outlive it.
    PacketReceiver(const PacketTerms& terms, PacketLog& log);

    // --- what comes

    PacketArrival take(const PacketHead& head, std::span<const std::byte> payload,
                       std::uint32_t slot, bool may_keep) noexcept;
    [[nodiscard]] bool take_free(std::uint32_t& slot) noexcept;
    void drop_held() noexcept;
    base::Status look(std::span<const std::byte>& message);
    void pass() noexcept;

    [[nodiscard]] const Assembly& assembled() const noexcept { return assembled_; }
    [[nodiscard]] bool has_more() const noexcept {
        return whole_ || expected_ != consumed_ || has_ended();
    }

    // --- what is said of it: all packets before `expected` are here, and those with a bit

    [[nodiscard]] std::uint32_t expected() const noexcept { return expected_; }
    [[nodiscard]] std::uint64_t beyond() const noexcept { return beyond_; }
    /// After the last packet that this end has a place for.
    [[nodiscard]] std::uint32_t limit() const noexcept { return consumed_ + terms_->own_room; }
    /// It is to be said, be it by a packet without data.
    [[nodiscard]] bool owes_state() const noexcept { return owes_state_; }
    void owe_state() noexcept { owes_state_ = true; }
    void told_state() noexcept {
        owes_state_ = false;
        told_limit_ = limit();
    }

    // --- the end

    [[nodiscard]] bool end_at(std::uint32_t number) noexcept;
    [[nodiscard]] bool has_ended() const noexcept { return end_.has_value() && consumed_ == *end_; }
    /// The peer has said where it ends, and not all before that has come.
    [[nodiscard]] bool awaits_end() const noexcept {
        return end_.has_value() && expected_ != *end_;
    }

  private:
    static constexpr std::uint32_t spare_slot = ~std::uint32_t{0};
    static constexpr std::uint32_t index_mask = most_packets - 1;

    /// A packet that was received and not read.
    struct Held {
        const std::byte* payload = nullptr;
        std::uint32_t slot = 0;
        std::uint16_t length = 0;
        std::uint16_t flags = 0;
    };

    void release_front() noexcept;
    /// Nothing is needed any more where that packet lies.
    void free(const Held& held) noexcept;

    const PacketTerms* terms_;
    PacketLog* log_;
    std::uint32_t consumed_;
    std::uint32_t expected_;
    std::uint64_t beyond_ = 0;  ///< bit i: packet expected + 1 + i is held
    std::uint32_t told_limit_;
    std::optional<std::uint32_t> gap_told_;  ///< `expected` when a gap was noticed
    bool owes_state_ = false;
    std::array<Held, most_packets> held_{};
    std::vector<std::byte> spare_;  ///< where one payload lies that the owner has no memory for
    bool spare_is_taken_ = false;
    BoundedFifo<std::uint32_t> free_slots_{most_packets};
    Assembly assembled_;
    bool is_within_ = false;     ///< the last packet that was read did not end its message
    bool whole_ = false;         ///< `assembled_` is handed out until pass()
    bool is_too_large_ = false;  ///< … as what a message that is too large begins with
    std::optional<std::uint32_t> end_;
};

}  // namespace millrace::message
