// The client's half of a shared buffer (shared_buffer.hpp): lays its packets there, by store or by
// two WRITEs of one queue pair, and rings when the server sleeps. Used by a client's PacketLane.
//
// Ringing is an empty SEND, whose completion wakes the server; at most one for each of its sleeps.
// Whether it sleeps stands in its memory. It says so first and looks for packets then; the client
// writes first and looks whether it sleeps then. So one of the two sees the other. By store that
// look is a load after each packet. By post it is a READ after the WRITEs of the packet, on the
// same queue pair: only where no answer has come for a while, and the client looks for it; while it
// does not look, nothing of a packet that was lost would be sent again either.
//
// Source: work 001, section 4.2.1.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lane/packet_chain.hpp"
#include "lane/shared_buffer.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::message {

/// What a server tells a client of its shared buffer, after its PacketFacts.
struct SharedFacts {
    std::uint64_t address = 0;  ///< of all of it
    std::uint32_t rkey = 0;
    std::uint32_t place = 0;  ///< of the client's row
    std::uint32_t places = 0;
    std::uint32_t slots = 0;
    std::uint32_t lines = 0;
    std::uint32_t zero = 0;

    [[nodiscard]] SharedShape shape() const noexcept {
        return {.places = places, .slots = slots, .lines = lines};
    }
    /// Whether it can be so, for packets of so many bytes.
    [[nodiscard]] bool is_valid(std::size_t packet_bytes) const noexcept;
};
static_assert(sizeof(SharedFacts) == 32);

/// One thread. Nothing blocks, allocates or throws once it is made.
class SharedSender {
  public:
    using Time = base::Clock::time_point;

    /// `token`, `packet_bytes`: of packets to the server. `link` and `window` outlive it. Throws
    /// Error (protocol; resource_exhausted; unsupported: a store was asked for that cannot be).
    SharedSender(connect::Link& link, end::SendWindow& window, ring::Carrier carrier,
                 const SharedFacts& facts, std::uint64_t token, std::size_t packet_bytes);

    /// Stored, not posted: a packet has left at once.
    [[nodiscard]] bool stores() const noexcept { return memory_ != nullptr; }
    /// Requests of one packet in a chain.
    static constexpr std::size_t requests = 2;
    /// By post: adds the packet, which lies in memory of `key`, to a chain that has room for it.
    /// Answers as SendWindow::chain. By store: lays it.
    base::Status send(PacketChain& chain, std::span<const std::byte> packet, std::uint32_t key,
                      verbs::SendFlags flags, end::Signal signal) noexcept;
    /// What was sent is stored, or posted.
    void sent(Time now) noexcept;
    /// Nothing has come.
    void idle(Time now) noexcept;
    /// The server has all that was sent.
    void forget() noexcept { is_unchecked_ = false; }
    /// When idle() has to be called; Time::max(): never.
    [[nodiscard]] Time due() const noexcept {
        return is_unchecked_ && reading_ == 0 ? unchecked_since_ + patience : Time::max();
    }
    [[nodiscard]] std::uint64_t rings() const noexcept { return rings_; }
    [[nodiscard]] std::uint64_t reads() const noexcept { return reads_; }

  private:
    /// How long an answer may take until it is asked whether the server sleeps.
    static constexpr std::chrono::microseconds patience{10};

    /// What the server's word said after the last packet.
    void take(std::uint64_t resting, Time now) noexcept;

    end::SendWindow* window_;
    SharedPlaces places_;
    SharedShape shape_;
    verbs::RemoteAddress remote_;        ///< of all of it
    std::size_t row_at_;                 ///< … of its row
    std::shared_ptr<std::byte> memory_;  ///< the same by store
    verbs::RegisteredBuffer words_;      ///< by post: what WRITEs of words are from; READs into
    bool inlines_ = false;
    bool has_sent_ = false;      ///< since sent() was called last
    bool is_unchecked_ = false;  ///< nobody knows whether the server has slept after the last one
    Time unchecked_since_{};
    std::uint64_t reading_ = 0;  ///< ticket of the READ that is under way; 0: none is
    std::uint64_t rung_ = 0;     ///< the sleep that was ended
    std::uint64_t rings_ = 0;
    std::uint64_t reads_ = 0;
};

}  // namespace millrace::message
