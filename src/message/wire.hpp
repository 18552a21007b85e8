// A wire: what carries a session's messages where no ring of a peer can be written into, namely a
// stream socket (socket_wire.hpp) or datagrams that may be lost (datagram_wire.hpp). Line
// (line.hpp) hands its calls on to it; server and client know of it only what is below.
//
// Messages arrive whole, in order and once each, or the wire has ended: what that takes (cutting
// into packets, acknowledging, sending again) is the wire's own affair.
//
// Work 002 compares these ways for a store; work 004, section 2, has the transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// One end. One thread. Nothing but close() and its parker() blocks; nothing throws but bad_alloc.
class Wire {
  public:
    Wire() = default;
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;
    virtual ~Wire() = default;

    // --- receiving

    /// Takes what the network has for us, if no message is here yet. `ok`: the next message is
    /// whole, and stays until pass(). `too_large`: as Line::look. `empty`; and then what waits to
    /// be sent is on its way, as far as that is possible. `closed`, `peer_lost`: nothing more
    /// comes.
    virtual base::Status look(std::span<const std::byte>& message) = 0;
    virtual void pass() noexcept = 0;
    /// A look would find a message, or the end, without asking the network.
    [[nodiscard]] virtual bool has_more() const noexcept = 0;

    // --- sending

    /// Room for a message of `size` bytes, its head included, in the memory that it is sent from;
    /// to be filled and committed before any other call. `too_large`: only send() takes it;
    /// `full`: there is no room now, or older ones wait; `closed`, `peer_lost`.
    virtual base::Status claim(std::size_t size, std::span<std::byte>& place) noexcept = 0;
    virtual base::Status commit(std::size_t size) noexcept = 0;
    /// Takes a copy of a message of any size, and sends what it can of it. The rest waits here.
    /// `ok`, `closed`, `peer_lost`.
    virtual base::Status send(const SessionHead& head, std::span<const std::byte> payload) = 0;
    /// Sends of what waits as much as it can. `ok`: nothing is left; `full`, `closed`, `peer_lost`.
    virtual base::Status flush() noexcept = 0;
    /// Bytes of messages that wait here because the network, or the peer, takes no more of them.
    [[nodiscard]] virtual std::size_t waiting_bytes() const noexcept = 0;
    /// Bytes that did not have to wait any longer, all in all: it grows while the peer takes some.
    [[nodiscard]] virtual std::uint64_t flushed_bytes() const noexcept = 0;

    // --- waiting

    /// For base::wait_until: sleeps until something may have come, or room.
    [[nodiscard]] virtual base::Parker& parker() noexcept = 0;
    /// Readable means: call look(), or flush() if something waits. Once rest() was called, and
    /// until then at any time. Lives as long as the wire. -1: whoever made it tells by other means
    /// (a server, for all its clients).
    [[nodiscard]] virtual int descriptor() const noexcept = 0;
    /// The owner is about to sleep on descriptor(), unless something has come: true.
    virtual bool rest() noexcept = 0;
    /// When it has to be looked at even if nothing comes (what was sent may have been lost);
    /// time_point::max(): never.
    [[nodiscard]] virtual base::Clock::time_point due() const noexcept = 0;

    // --- the conversation

    /// Tells the peer that nothing more comes and that all was read.
    virtual void say_goodbye() noexcept = 0;
    /// Sends what waits, says goodbye, and waits until the peer has taken all. As Channel::close.
    virtual base::Status close(const base::Deadline& deadline) = 0;

    [[nodiscard]] virtual connect::Link& link() noexcept = 0;
    /// Why it has ended; empty while it has not.
    [[nodiscard]] virtual std::string failure() const = 0;
    /// What it is, in a line.
    [[nodiscard]] virtual std::string explain() const = 0;
};

}  // namespace millrace::message
