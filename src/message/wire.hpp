// A wire: what carries a session's messages where no ring of a peer can be written into, namely a
// stream socket (socket_wire.hpp) or datagrams that may be lost (datagram_wire.hpp). Line
// (line.hpp) hands its calls on to it; server and client know of it only what is below.
//
// Messages arrive whole, in order and once each, or the wire has ended: what that takes (cutting
// into packets, acknowledging, sending again) is the wire's own affair.
//
// A client's wire waits for itself (parker, news). Those of a server are heard of all at once: the
// WireHost of their kind made them, and tells the places of those to whom something may have come.
// wires.hpp makes both.
//
// Work 002 compares these ways for a store; work 004, section 2, has the transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// A message of which a part has come.
struct Begun {
    std::uint64_t number = 0;  ///< which one of all that have begun
    std::size_t bytes = 0;     ///< that have come of it; 0: there is none
};

/// One end. One thread. Nothing but close() and its parker() blocks; nothing throws but bad_alloc.
class Wire {
  public:
    Wire() = default;
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;
    virtual ~Wire() = default;

    /// Bytes of a message, its head included, beyond which none is sent.
    static constexpr std::size_t largest_message = 0xffff'0000;

    // --- receiving

    /// Takes what the network has for us, if no message is here yet. `ok`: the next message is
    /// whole, and stays until pass(). `too_large`: as Line::look. `empty`; and then what waits to
    /// be sent is on its way, as far as that is possible. `closed`, `peer_lost`: nothing more
    /// comes.
    virtual base::Status look(std::span<const std::byte>& message) = 0;
    virtual void pass() noexcept = 0;
    /// What look() has called too large was so because this end holds too much (held_bytes.hpp).
    [[nodiscard]] virtual bool exceeds_budget() const noexcept = 0;
    /// The message of which a part has come, if there is one.
    [[nodiscard]] virtual Begun begun() const noexcept = 0;
    /// A look may find something although nobody tells of it (any more): a message or the end, or
    /// bytes that the network has still.
    [[nodiscard]] virtual bool has_more() const noexcept = 0;

    // --- sending

    /// Room for a message of `size` bytes, its head included, in the memory that it is sent from;
    /// to be filled and committed. Asked once more before that, it is the same place, whose content
    /// stays. `too_large`: only send() takes it; `full`: there is no room now, or older ones wait;
    /// `closed`, `peer_lost`.
    virtual base::Status claim(std::size_t size, std::span<std::byte>& place) = 0;
    virtual base::Status commit(std::size_t size) noexcept = 0;
    /// Takes a copy of a message of at most `largest_message` bytes, and sends what it can of it.
    /// The rest waits here. `ok`, `closed`, `peer_lost`.
    virtual base::Status send(const SessionHead& head, std::span<const std::byte> payload) = 0;
    /// Sends of what is here as much as it can. `ok`: nothing is left; `full`, `closed`,
    /// `peer_lost`.
    virtual base::Status flush() noexcept = 0;
    /// Some of what was committed was not sent yet, as more may follow: a look, or flush(), sends
    /// it.
    [[nodiscard]] virtual bool holds_back() const noexcept { return false; }
    /// Bytes of messages that wait here because the network, or the peer, takes no more of them;
    /// not those that flush() was not asked to send yet.
    [[nodiscard]] virtual std::size_t waiting_bytes() const noexcept = 0;
    /// Bytes that did not have to wait any longer, all in all: it grows while the peer takes some.
    [[nodiscard]] virtual std::uint64_t flushed_bytes() const noexcept = 0;

    /// Another number, once something has come, or was laid, or is no longer waited for: also a
    /// piece of a message.
    [[nodiscard]] virtual std::uint64_t progress() const noexcept = 0;

    // --- waiting, of a client

    /// Sleeps until something may have come, or room, or it is due.
    [[nodiscard]] virtual base::StandingParker& parker() noexcept = 0;
    /// What becomes readable when the parker's events come: a look is to be had. As long as the
    /// wire lives. Throws Error (resource_exhausted).
    [[nodiscard]] virtual std::span<const int> news() = 0;
    /// When it has to be looked at even if nothing comes (what was sent may have been lost);
    /// time_point::max(): never.
    [[nodiscard]] virtual base::Clock::time_point due() const noexcept = 0;

    // --- the conversation

    /// How the peer has ended (`closed`, `peer_lost`), if that is known although neither look() nor
    /// flush() says so yet: what it sent before is to be read first, and nothing more reaches it.
    [[nodiscard]] virtual base::Status end_of_peer() const noexcept { return base::Status::ok; }
    /// If the peer has said goodbye: tells it that all was read, and that nothing more comes.
    virtual void answer_goodbye() noexcept = 0;
    /// Says goodbye, without waiting: for who has many to close. Only close() comes behind it.
    virtual void begin_close() noexcept = 0;
    /// Sends what waits, says goodbye, and waits until the peer's host has taken all. As
    /// Channel::close.
    virtual base::Status close(const base::Deadline& deadline) = 0;

    [[nodiscard]] virtual connect::Link& link() noexcept = 0;
    /// Why it has ended; empty while it has not.
    [[nodiscard]] virtual std::string failure() const = 0;
    /// What it is, in a line or more.
    [[nodiscard]] virtual std::string explain() const = 0;

    static constexpr std::uint32_t no_place = ~std::uint32_t{0};
    /// What a server's WireHost tells when something may have come; no_place: nothing is told.
    std::uint32_t server_place = no_place;
};

/// A server's end of all wires of one kind: makes them, and hears the network for them. One thread.
class WireHost {
  public:
    WireHost() = default;
    WireHost(const WireHost&) = delete;
    WireHost& operator=(const WireHost&) = delete;
    /// Behind all of its wires.
    virtual ~WireHost() = default;

    /// Of a peer that was accepted and has said its word. Does not wait. Throws Error as
    /// Link::exchange; protocol, refused.
    [[nodiscard]] virtual std::unique_ptr<Wire> meet(connect::Link link) = 0;
    /// Appends the places of wires to which something may have come since the last time; some of
    /// them several times. Never blocks.
    virtual void look(std::vector<std::uint32_t>& places) = 0;
    /// Readable: look() may find some. Once rest() was called, and until then at any time.
    [[nodiscard]] virtual int descriptor() const noexcept = 0;
    /// Posts what its wires were asked to flush, if they leave that to it.
    virtual void post_gathered() noexcept {}
    /// The server is about to sleep on descriptor(), behind one more look().
    virtual void rest() noexcept = 0;
    /// What it is, in a line.
    [[nodiscard]] virtual std::string explain() const = 0;
};

}  // namespace millrace::message
