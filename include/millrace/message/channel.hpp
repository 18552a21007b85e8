// A channel: messages of any size in both directions between two processes, each message laid in a
// ring of the receiver, by one RDMA WRITE or by plain stores; the receiver finds it by looking at
// memory.
//
//     auto listener = message::Listener::listen(connect::Address::parse(":7000"));
//     auto channel = listener.accept(base::Deadline::after(std::chrono::seconds{10}));
//     (void)channel.receive([&](std::span<const std::byte> message) { … }, deadline);
//
//     auto channel = message::connect(address, {}, deadline);
//     if (channel.send(bytes, deadline) != base::Status::ok) …
//
// Order and completeness: what one side sends arrives whole, once and in order, or the channel
// ends with `closed` or `peer_lost`. How a message lies in the ring: frame.hpp; how one side
// tells the other what has been consumed, and how a side sleeps: docs/message.md.
// Source: work 001, section 4.1 (one-to-one communication).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/connector.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/message/detail/frame_reader.hpp"
#include "millrace/message/detail/in_place.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/ring/carrier.hpp"

namespace millrace::message {

class ChannelReceiver;
class ChannelSender;
struct ChannelHalves;
namespace detail {
struct SplitChannel;
}  // namespace detail

struct ChannelOptions {
    /// Bytes of the ring that this side receives into: a power of two from 128 B to 1 GiB. A peer
    /// that posts keeps a copy of the same size to send from.
    std::size_t ring_bytes = std::size_t{256} << 10;
    /// The largest ring of the peer that this side is ready to map, or to keep a copy of.
    std::size_t max_peer_ring_bytes = std::size_t{64} << 20;
    /// The largest message that receive() puts together from pieces.
    std::size_t max_message_bytes = std::size_t{1} << 30;
    base::WaitPolicy wait{};                        ///< how waits escalate
    std::shared_ptr<connect::Endpoint> endpoint{};  ///< null: Endpoint::shared()
    /// Which peers are let in: a secret that both ends must know, a budget for a listener's
    /// clients.
    connect::Admission admission{};
    /// What carries frames and credit: stores, where the peer's memory is addressable, or requests.
    /// Each end chooses for itself; see ring/carrier.hpp.
    ring::Carrier carrier = ring::Carrier::automatic;
    PostingHabits posting{};
    /// What the statistics page of the channel is called, after "message channel ": for those who
    /// look from outside. Cut where the title is longer than 47 bytes.
    std::string name{};
};

/// Counted since the channel was made. Readable from outside as a statistics page, too.
struct ChannelStats {
    std::uint64_t messages_sent = 0;
    std::uint64_t bytes_sent = 0;  ///< of payload
    std::uint64_t messages_received = 0;
    std::uint64_t bytes_received = 0;
    std::uint64_t pieces_sent = 0;  ///< a message that fits in the ring is one piece
    std::uint64_t pieces_received = 0;
    std::uint64_t frame_writes = 0;   ///< WRITEs that carried pieces
    std::uint64_t other_writes = 0;   ///< WRITEs for skips at the end of the ring and closing
    std::uint64_t credit_writes = 0;  ///< WRITEs that told the peer what we consumed
    std::uint64_t credit_reads = 0;   ///< READs that asked the peer what it consumed
    std::uint64_t full = 0;           ///< attempts to send that found no room
    std::uint64_t sleeps = 0;
    std::uint64_t events_sent = 0;  ///< wake-ups for a sleeping peer
    std::uint64_t events_received = 0;
};

/// One end of a channel. Move-only; one thread at a time: a second one that waits in it or closes
/// it meanwhile gets an Error (invalid_argument) that says so.
///
/// `try_…` never blocks and makes no system call while the peer is awake; the other forms wait as
/// ChannelOptions::wait says, until the deadline. Operations answer (apart from `ok`):
///   full, empty       (try_…) no room, no message now
///   timed_out,        (waiting) nothing was done; a message larger than the ring that was begun
///   cancelled         is given up, and the receiver drops what it has of it
///   closed            the peer closed (receiving: and everything it sent was received)
///   peer_lost         it died, or the connection broke, or it spoke nonsense: see failure()
///   too_large         the message can never fit
class Channel {
  public:
    Channel(Channel&&) noexcept;
    Channel& operator=(Channel&&) noexcept;
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    /// Without close() before it, the peer reports this side as lost (once it has drained).
    ~Channel();

    /// The longest message that travels in one piece; longer ones travel in several.
    [[nodiscard]] std::size_t max_piece() const noexcept;

    /// Sends a copy of `message`. try_send: at most max_piece() bytes.
    base::Status try_send(std::span<const std::byte> message) noexcept;
    base::Status send(std::span<const std::byte> message, const base::Deadline& deadline);

    /// Sends a message of at most max_piece() bytes that `fill(std::span<std::byte>)` writes in
    /// place, where the device sends it from or the peer reads it. The room is `size` bytes with
    /// any content, aligned to 8. `fill` returns nothing, or how many bytes it used, from the first
    /// on. If it throws, nothing is sent. It must not use this channel: if it has, Error
    /// (invalid_argument) is thrown, and what it wrote is not sent.
    template <class Fill>
    base::Status try_send(std::size_t size, Fill&& fill) {
        return detail::send_in_place([&](std::span<std::byte>& room) { return claim(size, room); },
                                     fill, [this](std::size_t used) { return commit(used); });
    }
    template <class Fill>
    base::Status send(std::size_t size, Fill&& fill, const base::Deadline& deadline) {
        return detail::send_in_place(
            [&](std::span<std::byte>& room) { return claim(size, room, deadline); }, fill,
            [this](std::size_t used) { return commit(used); });
    }

    /// Hands the next message to `take`, in place, in the memory the peer wrote it to; its room
    /// returns to the peer after `take` returns. If `take` throws, the message stays the next.
    ///   take(std::span<const std::byte>)  a whole message. Larger ones than the ring are put
    ///                                     together in memory of the channel (which allocates).
    ///   take(const Piece&)                pieces as they come, nothing is put together.
    /// A message begun in one way is to be ended in the same. `take` must not use this channel: if
    /// it has taken messages from it, Error (invalid_argument) is thrown, and nothing more is
    /// taken.
    template <class Take>
    base::Status try_receive(Take&& take) {
        return deliver<Take>([this](Piece& piece) { return look(piece); },
                             [this](Piece& piece) { return look_whole(piece); }, take);
    }
    template <class Take>
        requires(!std::is_same_v<std::remove_cvref_t<Take>, std::vector<std::byte>>)
    base::Status receive(Take&& take, const base::Deadline& deadline) {
        return deliver<Take>([&](Piece& piece) { return look(piece, deadline); },
                             [&](Piece& piece) { return look_whole(piece, deadline); }, take);
    }
    /// Replaces `into` by the next message.
    base::Status receive(std::vector<std::byte>& into, const base::Deadline& deadline);
    /// Copies the next message to the beginning of `into` and sets `size`. `too_large`: it stays
    /// the next one, and `size` says how much room it needs.
    base::Status try_receive(std::span<std::byte> into, std::size_t& size);
    base::Status receive(std::span<std::byte> into, std::size_t& size,
                         const base::Deadline& deadline);

    /// Sends no more: the peer receives what was sent, then `closed`. Receiving goes on.
    base::Status finish(const base::Deadline& deadline);
    /// Sends nothing new, finishes, waits until the device has delivered everything to the peer's
    /// ring (not until the peer has read it), and ends the connection in good order. Both
    /// directions are closed then. `timed_out`, `cancelled`: nothing was given up; it receives
    /// still, and close() may be called again. `closed`: the peer closed before it had received
    /// everything, and the rest it never will. `peer_lost`. docs/closing.md.
    base::Status close(const base::Deadline& deadline);

    /// For a program's own loop (poll, epoll, asio …): readable means that there may be a message,
    /// or the end; and, after a `full`, room. It stays readable until receiving has answered
    /// `empty`: a program that only sends has to receive, too, to learn of the end. From the first
    /// call on, an `empty` or `full` asks the peer for a wake-up, ChannelOptions::wait.spin after
    /// the last message either way. Lives as long as the channel. Not for EPOLLET. Throws Error
    /// (resource_exhausted). docs/loops.md.
    [[nodiscard]] int descriptor();
    /// For code that hands a new channel to the thread of such a loop, as connect::Acceptor does:
    /// the descriptor is readable from now on if there is something, and needs no call that finds
    /// nothing before. That takes some ten system calls, which the loop would make. Where something
    /// was sent or received already, it is as it was. Throws Error as descriptor().
    void fall_asleep();

    [[nodiscard]] ChannelStats stats() const;
    /// What was chosen and why: device, path, rings, requests per message.
    [[nodiscard]] std::string explain() const;
    /// The other end, for messages: its process, and where it is.
    [[nodiscard]] const std::string& peer() const noexcept;
    /// Why the channel is broken. Empty while it is not.
    [[nodiscard]] std::string failure() const;
    /// The connection beneath: peer's name, its socket, its queue pair.
    [[nodiscard]] connect::Link& link() noexcept;

    /// Two halves for two threads, one that sends and one that receives: halves.hpp. A descriptor
    /// that was asked for is theirs from then on. Throws Error (resource_exhausted).
    [[nodiscard]] ChannelHalves split() &&;

    struct Core;  ///< private to message/
    explicit Channel(std::unique_ptr<Core> core) noexcept;

  private:
    friend class ChannelReceiver;
    friend class ChannelSender;
    friend struct detail::SplitChannel;
    base::Status claim(std::size_t size, std::span<std::byte>& room) noexcept;
    base::Status claim(std::size_t size, std::span<std::byte>& room,
                       const base::Deadline& deadline);
    base::Status commit(std::size_t size);

    base::Status look(Piece& piece) noexcept;
    base::Status look(Piece& piece, const base::Deadline& deadline);
    base::Status look_whole(Piece& piece);
    base::Status look_whole(Piece& piece, const base::Deadline& deadline);
    base::Status receive_any(std::span<std::byte> into, std::size_t& size);
    base::Status copy_out(const Piece& piece, std::span<std::byte> into,
                          std::size_t& size) noexcept;
    void release();
    void release_current() noexcept;

    template <class Take, class Look, class LookWhole>
    base::Status deliver(Look look_piece, LookWhole look_message, Take& take) {
        const auto give_back = [this] { release(); };
        if constexpr (std::is_invocable_v<Take&, const Piece&>) {
            return detail::receive_in_place(look_piece, take, give_back);
        } else {
            return detail::receive_in_place(
                look_message, [&take](const Piece& piece) { take(piece.payload); }, give_back);
        }
    }

    std::unique_ptr<Core> core_;
};

/// Accepts channels. Move-only; one thread at a time.
class Listener {
  public:
    /// Throws Error (invalid_argument, permission, system: the address is in use …).
    [[nodiscard]] static Listener listen(const connect::Address& address,
                                         ChannelOptions options = {});
    [[nodiscard]] const connect::Address& address() const noexcept { return listener_.address(); }
    /// The next peer that sets up its channel. Peers that do not manage to are logged and passed
    /// over. Throws Error (timed_out, cancelled).
    [[nodiscard]] Channel accept(const base::Deadline& deadline);
    /// As accept, but never blocks: none yet, or the channel of the next peer. Throws Error
    /// (resource_exhausted).
    [[nodiscard]] std::optional<Channel> try_accept();
    /// For a program's own loop: readable means that try_accept has something to do.
    /// Level-triggered. Lives as long as the listener.
    [[nodiscard]] int descriptor() const noexcept { return listener_.descriptor(); }

  private:
    Listener(connect::Listener listener, ChannelOptions options)
        : listener_{std::move(listener)}, options_{std::move(options)} {}
    connect::Listener listener_;
    ChannelOptions options_;
};

/// A connection on its way, for programs that do not wait: cancelled by its end. Move-only; one
/// thread at a time.
class Connector {
  public:
    /// Begins. Throws Error as connect::Connector; it looks up the names of hosts.
    explicit Connector(const connect::Address& address, ChannelOptions options = {});
    Connector(Connector&&) noexcept;
    Connector& operator=(Connector&&) noexcept;
    ~Connector();
    /// The channel, once it is connected and agreed on; none yet. Never blocks. Not to be called
    /// again after the channel or an Error. Throws Error as connect::connect, but never timed_out.
    [[nodiscard]] std::optional<Channel> try_connect();
    /// The same, waiting: connect() from here on. With Deadline::now() the error says how far it
    /// came.
    [[nodiscard]] Channel wait(const base::Deadline& deadline);
    /// For a program's own loop: readable means that try_connect has something to do.
    /// Level-triggered. Lives as long as the connector. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor() { return connector_.descriptor(); }

  private:
    void begin(connect::Link link);
    [[nodiscard]] Channel finish(std::span<const std::byte> theirs);
    ChannelOptions options_;
    connect::Connector connector_;
    std::unique_ptr<Channel::Core> core_;  ///< once there is a link
};

/// Connects to a Listener. Throws Error as connect::connect.
[[nodiscard]] Channel connect(const connect::Address& address, ChannelOptions options,
                              const base::Deadline& deadline);

}  // namespace millrace::message
