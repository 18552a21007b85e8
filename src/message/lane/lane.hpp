// A lane: what carries the messages of one session, at one end of it. Messages arrive whole, in
// order and once each, or the lane has ended. Nothing waits: what finds no room is kept by the
// lane until flush() finds some. Server and client know of a connection what is said here, and for
// rings what RingLane offers beyond it; nobody reaches past a lane.
//
//   RingLane     rings that the peer writes into, by store, WRITE or SEND      (ring_lane.hpp)
//   PacketLane   packets that may be lost: UC, UD, a buffer that clients share (packet_lane.hpp)
//   SocketLane   a stream socket, TCP or a Unix one                            (socket_lane.hpp)
//
// The latter two have no memory that a peer writes messages into, and share how they wait
// (network_lane.hpp). lanes.hpp makes all three.
//
// Work 002 compares these ways for a store; work 004, section 2, has the transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "assembly.hpp"
#include "lane/rendezvous.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/readiness.hpp"
#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::message {

class NetworkLane;
class RingLane;

/// One thread. Nothing but close() and wait() blocks; nothing throws but bad_alloc.
class Lane {
  public:
    Lane() = default;
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;
    virtual ~Lane() = default;

    // --- receiving

    /// `ok`: the next message is whole, and stays until pass(). `too_large`: a longer one than
    /// allowed has begun; `message` is what its first piece brought, until pass(), and the rest
    /// will be passed over. `empty`. `closed`, `peer_lost`: nothing more comes.
    virtual base::Status look(std::span<const std::byte>& message) = 0;
    virtual void pass() noexcept = 0;
    /// What look() has called too large was so because this end holds too much (held_bytes.hpp).
    [[nodiscard]] virtual bool exceeds_budget() const noexcept = 0;
    /// The message of which a part has come, if there is one; not one that is READ.
    [[nodiscard]] virtual Begun begun() const noexcept = 0;

    // --- sending

    /// Room for a message of `size` bytes, its head included, where the peer will read it or where
    /// it is sent from; to be filled and committed. Asked once more before that, it is the same
    /// place, whose content stays. `too_large`: only send() takes it; `full`: there is no room now,
    /// or older messages wait; `closed`, `peer_lost`.
    virtual base::Status claim(std::size_t size, std::span<std::byte>& place) = 0;
    virtual base::Status commit(std::size_t size) noexcept = 0;
    /// Sends a copy, if there is room and nothing waits. Answers as claim().
    virtual base::Status try_send(const SessionHead& head, std::span<const std::byte> payload) = 0;
    /// Sends a copy, or keeps it. `ok`, `closed` or `peer_lost`.
    virtual base::Status send(const SessionHead& head, std::span<const std::byte> payload) = 0;
    /// Sends what is kept as far as there is room. `ok`: nothing is left; `full`; `closed`;
    /// `peer_lost`.
    virtual base::Status flush() noexcept = 0;
    /// No message is kept.
    [[nodiscard]] virtual bool is_clear() const noexcept = 0;
    /// Of messages that are kept.
    [[nodiscard]] virtual std::size_t waiting_bytes() const noexcept = 0;
    /// Bytes of messages that were kept, or announced, and are no more, all in all.
    [[nodiscard]] virtual std::uint64_t flushed_bytes() const noexcept = 0;

    // --- large messages, which a ring does not carry: the peer is told where they lie, and READs
    // them (rendezvous.hpp). Other lanes announce nothing, and are announced nothing.

    /// Room for a payload that claim() does not take, to be filled and committed. False: send() it.
    [[nodiscard]] virtual bool claim_large(std::size_t /*size*/, std::span<std::byte>& /*place*/) {
        return false;
    }
    virtual base::Status commit_large(const SessionHead& /*head*/, std::size_t /*size*/) {
        return base::Status::too_large;
    }
    /// As flush(), and `full` also while something is announced.
    virtual base::Status flush_all() noexcept { return flush(); }
    /// Both ends have agreed to announce.
    [[nodiscard]] bool has_agreed() const noexcept { return agreed_.allowed; }
    /// The peer may READ what was announced to it still.
    [[nodiscard]] bool has_announced() const noexcept {
        return large_ != nullptr && large_->has_announced();
    }
    /// Messages that were announced since it was asked last.
    [[nodiscard]] std::uint64_t count_announced() noexcept {
        return large_ == nullptr ? 0 : large_->count_announced();
    }
    /// Bytes of messages that are kept, and of those that the peer is to READ.
    [[nodiscard]] std::size_t owed_bytes() const noexcept {
        return waiting_bytes() + (large_ == nullptr ? 0 : large_->staged_bytes());
    }
    /// Gives back memory that was not used for long.
    void tidy() noexcept {
        if (large_ == nullptr) return;
        (void)large_->reclaim();
        large_->tidy(base::Clock::now());
    }
    void tidy_now_and_then() noexcept {
        constexpr std::uint32_t looks_between = 63;
        if ((++looks_since_tidy_ & looks_between) == 0) tidy();
    }
    [[nodiscard]] bool keeps_memory() const noexcept {
        return large_ != nullptr && (large_->has_announced() || large_->keeps_memory());
    }
    /// The payload of a message …_by_read. None: nobody may send it.
    [[nodiscard]] std::optional<Announcement> announced(
        std::span<const std::byte> payload) const noexcept {
        return has_agreed() ? parse_announcement(payload) : std::nullopt;
    }
    /// As Rendezvous::give_up, and others.
    bool give_up(std::uint64_t id) noexcept { return large_ != nullptr && large_->give_up(id); }
    [[nodiscard]] bool is_fetching(std::uint64_t id) const noexcept {
        return large_ != nullptr && large_->is_fetching(id);
    }
    [[nodiscard]] bool is_fetching() const noexcept {
        return large_ != nullptr && large_->is_busy();
    }
    /// … and it was not declined.
    [[nodiscard]] bool wants_fetched() const noexcept {
        return large_ != nullptr && large_->wants_some();
    }
    /// Another number, once some more of it has come.
    [[nodiscard]] std::uint64_t fetch_progress() const noexcept {
        return large_ == nullptr ? 0 : large_->progress();
    }
    /// Some of it is whole, and look() will find it.
    [[nodiscard]] bool has_fetched() const noexcept {
        return large_ != nullptr && large_->has_done();
    }
    /// A look would go on with what is READ.
    [[nodiscard]] bool fetch_is_due() noexcept { return large_ != nullptr && large_->is_due(); }
    /// How what look() found came, if it was READ. `given_up`, and `no_memory` (which look() calls
    /// `too_large`): only its head did.
    using Arrival = Rendezvous::Arrival;
    [[nodiscard]] Arrival arrival() const noexcept { return arrived_; }

    // --- waiting, of a client

    /// Another number, once something has come or goes on, be it a piece of a message.
    [[nodiscard]] virtual std::uint64_t progress() const noexcept = 0;
    /// Waits until `ready()`, which looks or flushes, has found something.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
        end_rest();
        const connect::HeldReadiness held{readiness()};
        const base::Status status = base::wait_until(ready, deadline, policy, parker());
        end_wait();
        return status;
    }
    /// As Client::descriptor.
    [[nodiscard]] virtual int descriptor(const base::WaitPolicy& policy) = 0;

    // --- of a server

    static constexpr std::uint32_t no_place = ~std::uint32_t{0};
    /// The place that is told when something may have come, by a host that hears of many at once.
    virtual void set_place(std::uint32_t place) noexcept = 0;

    // --- the conversation

    /// If the peer has said goodbye: tells it that all was read, and that nothing more comes.
    virtual void answer_goodbye() noexcept = 0;
    /// Sends what is kept, and says goodbye once the peer has all of it (docs/closing.md). From the
    /// first call on its owner sends nothing new. `full`: not yet, and messages still come.
    /// Otherwise the lane has ended, and every later call answers the same.
    virtual base::Status try_close() = 0;
    /// The same, waiting. `timed_out`, `cancelled`: it has not ended.
    base::Status close(const base::Deadline& deadline, const base::WaitPolicy& policy) {
        end_rest();
        const connect::HeldReadiness held{readiness()};
        base::NapParker nap;  // nobody tells when the peer has all
        base::Status status = base::Status::full;
        const base::Status waited = base::wait_until(
            [&] { return (status = try_close()) != base::Status::full; }, deadline, policy, nap);
        return waited == base::Status::ok ? status : waited;
    }

    [[nodiscard]] virtual connect::Link& link() noexcept = 0;
    /// Why it has ended; empty while it has not.
    [[nodiscard]] virtual std::string failure() const = 0;
    /// What it is, in a line or more.
    [[nodiscard]] virtual std::string explain() const = 0;

  protected:
    /// Takes back what was announced for a program that sleeps in a loop of its own.
    virtual void end_rest() noexcept = 0;
    virtual void end_wait() noexcept {}
    /// The program's descriptor; null: none was asked for.
    [[nodiscard]] virtual std::unique_ptr<connect::Readiness>& readiness() noexcept = 0;
    [[nodiscard]] virtual base::StandingParker& parker() noexcept = 0;

    LargeMessages agreed_{.allowed = false};
    std::unique_ptr<Rendezvous> large_;  ///< made when it is needed; outlives the queue pair
    Arrival arrived_ = Arrival::none;

  private:
    std::uint32_t looks_since_tidy_ = 0;
};

}  // namespace millrace::message
