// The half of a packet stream (packet_stream.hpp, which has the argument) that sends: where packets
// lie until the peer has them and every transmission of them has left, which of them have to be
// sent again, and the messages that wait to be cut into some. Used by PacketStream.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lane/kept_messages.hpp"
#include "lane/packet_terms.hpp"
#include "millrace/base/status.hpp"

namespace millrace::message {

/// How long a packet and its acknowledgement take (RFC 6298).
class RoundTrip {
  public:
    void measure(std::chrono::nanoseconds took) noexcept {
        took = std::max(took, std::chrono::nanoseconds{1});
        if (smoothed_.count() == 0) {
            smoothed_ = took;
            variation_ = took / 2;
            return;
        }
        const auto off = took > smoothed_ ? took - smoothed_ : smoothed_ - took;
        variation_ += (off - variation_) / 4;
        smoothed_ += (took - smoothed_) / 8;
    }
    /// What is waited for it before something may be lost.
    [[nodiscard]] std::chrono::nanoseconds patience(const PacketTerms& terms) const noexcept {
        if (smoothed_.count() == 0) return terms.first_patience;
        return std::clamp(smoothed_ + 4 * variation_, terms.least_patience, terms.most_patience);
    }

  private:
    std::chrono::nanoseconds smoothed_{0};  ///< 0: none was measured
    std::chrono::nanoseconds variation_{0};
};

/// One thread. As PacketStream.
class PacketSender {
  public:
    /// A packet that was laid and may be needed.
    struct Laid {
        std::size_t offset = 0;
        std::size_t bytes = 0;    ///< its head included
        std::uint64_t order = 0;  ///< of its last transmission
        std::uint64_t ticket = 0;
        PacketTime sent{};
        std::uint16_t flags = 0;
        bool is_repeated = false;
        bool is_acknowledged = false;
        bool is_due = false;  ///< to be sent again
    };

    /// `memory`: of packets with data. `terms` and `log` outlive it.
    PacketSender(const PacketTerms& terms, PacketLog& log, std::span<std::byte> memory);

    // --- what the peer says has come

    /// True: it has moved one of the numbers. What cannot be so is logged as a failure.
    bool take_state(const PacketHead& head, PacketTime now) noexcept;
    /// It has waited in vain: some of the oldest that are missing are sent again.
    void repeat_oldest() noexcept;
    /// This end has.
    void repeat_first() noexcept {
        if (unacknowledged_ != unsent_) repeat(laid(unacknowledged_));
    }

    // --- what goes

    base::Status claim(std::size_t size, std::span<std::byte>& place) noexcept;
    void commit(std::size_t size) noexcept;
    base::Status send(std::span<const std::byte> head, std::span<const std::byte> payload);
    [[nodiscard]] const KeptMessages& kept() const noexcept { return kept_; }
    [[nodiscard]] bool is_acknowledged() const noexcept {
        return unacknowledged_ == laid_ && kept_.empty();
    }
    /// Something of it is to come to pass at the peer.
    [[nodiscard]] bool is_waiting() const noexcept { return !is_acknowledged() || is_blocked_; }
    [[nodiscard]] const RoundTrip& round_trip() const noexcept { return round_trip_; }
    [[nodiscard]] std::uint64_t progress() const noexcept { return laid_ + unacknowledged_; }
    [[nodiscard]] std::uint32_t end() const noexcept { return laid_; }
    [[nodiscard]] std::size_t longest_single() const noexcept {
        return terms_->packet_bytes - packet_head_bytes;
    }

    /// The packet with data that is to be posted next, if there is one: its number.
    [[nodiscard]] std::optional<std::uint32_t> next() noexcept;
    /// Of a number that next() gave.
    [[nodiscard]] const Laid& at(std::uint32_t number) const noexcept {
        return packets_[number & index_mask];
    }
    [[nodiscard]] std::span<std::byte> bytes_of(const Laid& packet) const noexcept {
        return memory_.subspan(packet.offset, packet.bytes);
    }
    /// It is sent for the first time, and is to ask for an acknowledgement.
    [[nodiscard]] bool asks(const Laid& packet) const noexcept {
        return !packet.is_due && (asked_ >= terms_->peer_room / 2 ||
                                  asked_bytes_ + packet.bytes >= memory_.size() / 2);
    }
    [[nodiscard]] std::uint32_t unsent() const noexcept { return unsent_; }
    /// What next() gave was posted.
    void posted(std::uint32_t number, std::uint64_t ticket, PacketTime now, bool asked) noexcept;
    /// All tickets up to this one have left.
    void completed(std::uint64_t ticket) noexcept { completed_ = ticket; }
    [[nodiscard]] bool has_left(std::uint64_t ticket) const noexcept {
        return ticket <= completed_;
    }
    [[nodiscard]] bool lacks_completions() const noexcept { return lacks_completions_; }
    void lack_completions(bool lacks) noexcept { lacks_completions_ = lacks; }

  private:
    static constexpr std::uint32_t index_mask = most_packets - 1;

    [[nodiscard]] Laid& laid(std::uint32_t number) noexcept {
        return packets_[number & index_mask];
    }
    void repeat(Laid& packet) noexcept {
        if (packet.is_acknowledged || packet.is_due) return;
        packet.is_due = true;
        ++due_packets_;
    }
    void repeat_overtaken() noexcept;
    void note_acknowledged(Laid& packet, PacketTime now) noexcept;

    [[nodiscard]] std::optional<std::size_t> place_for(std::size_t bytes) noexcept;
    void free_packets() noexcept;
    /// Cuts one packet off what is kept. False: nothing is, or there is no room.
    bool cut() noexcept;
    void lay(std::size_t offset, std::size_t payload, std::uint16_t flags) noexcept;

    const PacketTerms* terms_;
    PacketLog* log_;
    std::span<std::byte> memory_;
    std::uint32_t freed_;
    std::uint32_t unacknowledged_;
    std::uint32_t unsent_;
    std::uint32_t laid_;
    std::uint32_t limit_;
    std::array<Laid, most_packets> packets_{};
    std::size_t front_ = 0;  ///< of the ring: where the next packet is laid
    std::size_t claimed_ = 0;
    std::size_t claimed_bytes_ = 0;  ///< 0: nothing is claimed; its head included
    bool is_blocked_ = false;        ///< the program has found the peer's room taken
    std::uint32_t due_packets_ = 0;  ///< that have to be sent again
    std::uint64_t orders_ = 0;
    std::uint64_t order_acknowledged_ = 0;
    std::uint64_t completed_ = 0;
    bool lacks_completions_ = false;
    std::uint32_t asked_ = 0;  ///< packets that were sent since one has asked, or all were there
    std::size_t asked_bytes_ = 0;  ///< of these
    RoundTrip round_trip_;         ///< only of an end with a timer
    KeptMessages kept_;
};

}  // namespace millrace::message
