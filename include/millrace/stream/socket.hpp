// A byte stream in both directions between two processes, which chooses by itself between zero copy
// and buffering: bytes go straight into the buffer of a receive whose advertisement came in time,
// and otherwise through a ring at the receiver. What people use who have sockets today.
//
//     auto listener = stream::Listener::listen(connect::Address::parse(":7000"));
//     auto socket = listener.accept(base::Deadline::after(std::chrono::seconds{10}));
//     if (socket.receive(buffer.slice(), 1) != base::Status::ok) …
//     stream::Completion done;
//     if (socket.wait(done, deadline) == base::Status::ok) …       // done.id == 1, done.bytes
//
//     auto socket = stream::connect(address, {}, deadline);
//     if (socket.write_all(bytes, deadline) != base::Status::ok) …
//
// Operations are asynchronous, as in the Extended Sockets API: send() and receive() return at once,
// and completions say when a buffer is the program's again. Sends complete in their order, and so
// do receives. Progress is made within calls: a program that waits elsewhere waits for
// descriptor(), too, as long as an operation is outstanding. The protocol: docs/stream.md.
// Source: work 003, "UNH EXS Dynamic Protocol".
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/connect/connector.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/stream/buffer.hpp"
#include "millrace/stream/mode.hpp"
#include "millrace/stream/registration_cache.hpp"
#include "millrace/stream/tuning.hpp"
#include "millrace/stream/type.hpp"

namespace millrace::stream {

struct SocketOptions {
    /// Both ends say the same, or refuse each other.
    Type type = Type::stream;
    /// How bytes travel, both ways. Where the ends say different things, `dynamic` gives way; one
    /// that says `direct` and one that says `indirect` refuse each other.
    Mode mode = Mode::dynamic;
    /// Bytes of the ring that this side receives into: a power of two from 64 B to 1 GiB. None is
    /// made in mode `direct`. 0: bandwidth times delay, 256 KiB to 64 MiB (docs/stream-socket.md).
    /// The end that connects measures the delay (and with a Connector that it seldom looks at, its
    /// own), and a listener believes that: what its clients can make it take is for Admission's
    /// budget.
    std::size_t ring_bytes = 0;
    /// Advertisements of this side that may be unanswered: 1 to 65,536. 0: as many receives of
    /// Tuning::least_advertised bytes as would take the place of such a ring, 64 to 4,096.
    std::uint32_t adverts = 0;
    /// Sends and receives that may be outstanding, until their completion was taken: 1 to 2^19.
    std::uint32_t sends = 64;
    std::uint32_t receives = 64;
    /// Where registrations of plain memory are kept for later operations on it, which the program
    /// then owes a word before it gives that memory back; null: each is made for one operation.
    std::shared_ptr<RegistrationCache> registrations{};
    /// Strict use: send() and receive() of memory that is not registered with the socket's endpoint
    /// throw Error (invalid_argument), where one would otherwise copy or register it. What copies
    /// by its nature (read_some, write_some …) does so still.
    bool registered_only = false;
    /// What only an expert or a study sets.
    Tuning tuning{};
    /// How waits escalate.
    base::WaitPolicy wait{};
    std::shared_ptr<connect::Endpoint> endpoint{};  ///< null: Endpoint::shared()
    /// What carries messages and bytes for the ring: stores, where the peer's memory is
    /// addressable, or requests. Bytes that go straight into a receive are always posted.
    ring::Carrier carrier = ring::Carrier::automatic;
    /// Which peers are let in: a secret that both ends must know, a budget. Not own_domains.
    connect::Admission admission{};
};

enum class SendFlags : std::uint8_t {
    none = 0,
    /// More follows soon (MSG_MORE): the bytes may wait for it as long as earlier ones lie in the
    /// peer's ring. Plain memory of few bytes only, and the completion says that they are copied;
    /// they go with a send that has no such flag, at the latest.
    more = 1,
};
enum class ReceiveFlags : std::uint8_t {
    none = 0,
    /// Completes when it is full, or at the end of the stream (MSG_WAITALL). Says nothing where
    /// there are messages: a receive has one, always.
    wait_all = 1,
};

/// An operation is over, and its memory is the program's again.
struct Completion {
    enum class Kind : std::uint8_t { send, receive };

    Kind kind = Kind::send;
    /// `ok`; `too_large`: receiving a message, which was longer than the memory: its beginning is
    /// there, and the rest of it is gone; `closed`: receiving, the end of the stream, after its
    /// last byte; sending, the peer closed, or this side did; `cancelled`, with what had come;
    /// `peer_lost`.
    base::Status status = base::Status::ok;
    std::uint64_t id = 0;     ///< as the program named it
    std::uint64_t bytes = 0;  ///< that were sent or received
};

/// Bytes of the stream where they lie, in this side's memory, until Socket::release. The peer could
/// write there: one that breaks the protocol can change them while they are looked at, so what must
/// hold is checked on a copy, unless the peer is trusted.
struct View {
    std::span<const std::byte> bytes;
    /// Where there are messages: this is the end of one. Otherwise its next bytes come with the
    /// next view.
    bool ends_message = false;
};

/// Counted since the socket was made. Readable from outside as a statistics page, too.
struct SocketStats {
    std::uint64_t direct_bytes_sent = 0;
    std::uint64_t direct_transfers = 0;  ///< sent
    std::uint64_t indirect_bytes_sent = 0;
    std::uint64_t indirect_transfers = 0;  ///< sent
    std::uint64_t direct_bytes_received = 0;
    std::uint64_t direct_transfers_received = 0;
    std::uint64_t indirect_bytes_received = 0;
    std::uint64_t indirect_transfers_received = 0;
    std::uint64_t copies = 0;         ///< out of this side's ring
    std::uint64_t lent_bytes = 0;     ///< ... taken by read_zero_copy, without one
    std::uint64_t adverts_sent = 0;   ///< by this side
    std::uint64_t adverts_used = 0;   ///< of the peer's
    std::uint64_t adverts_stale = 0;  ///< ... that came late
    std::uint64_t adverts_withdrawn = 0;
    std::uint64_t adverts_forgone = 0;  ///< ... that short sends left for the ring
    std::uint64_t phase_changes = 0;    ///< as a sender
    std::uint64_t messages_sent = 0;    ///< of the protocol
    std::uint64_t messages_received = 0;
    std::uint64_t credits = 0;         ///< that came back: messages of this side that the peer took
    std::uint64_t requests = 0;        ///< posted, for bytes and messages
    std::uint64_t stalls_advert = 0;   ///< bytes had to wait: for an advertisement
    std::uint64_t stalls_room = 0;     ///< ... for room in the peer's ring
    std::uint64_t stalls_credit = 0;   ///< ... until the peer had taken messages
    std::uint64_t stalls_request = 0;  ///< ... until the device had completed requests
    std::uint64_t staged = 0;          ///< sends that were copied before they went
    std::uint64_t registrations = 0;   ///< of plain memory, that were made
    std::uint64_t registrations_kept = 0;  ///< ... that a RegistrationCache had
    /// Read by this side, and stored to, so that the peer's processor gets the lines back sooner.
    std::uint64_t taken_bytes = 0;
    std::uint64_t sleeps = 0;
    std::uint64_t events_sent = 0;  ///< wake-ups for a sleeping peer
    std::uint64_t events_received = 0;

    /// Of the bytes sent, those that no receiver copied, in percent; 0 when there are none.
    [[nodiscard]] double percent_direct() const noexcept {
        const std::uint64_t all = direct_bytes_sent + indirect_bytes_sent;
        return all == 0 ? 0.0
                        : 100.0 * static_cast<double>(direct_bytes_sent) / static_cast<double>(all);
    }
};

/// One end of a byte stream. Move-only; one thread at a time: while a call is under way, one of
/// another thread throws Error (invalid_argument), and nothing is done. (Two that begin at the same
/// moment may pass unnoticed.)
///
/// In type `seqpacket` each send is a message, and each receive has one, which may be empty. Both
/// ways of sending and receiving may be mixed.
///
/// Operations answer (apart from `ok`):
///   full              as many sends or receives as there may be: take completions; or, with none
///                     outstanding, no memory for the first one
///   empty             an operation of no bytes (but a message may be empty); poll: no completion
///                     now; try_read_some: no bytes now
///   too_large         more than 1 TiB
///   timed_out,        (waiting)
///   cancelled
///   closed            this side closed; sending: or the peer did
///   peer_lost         it died, or the connection broke, or it spoke nonsense: see failure()
class Socket {
  public:
    Socket(Socket&&) noexcept;
    Socket& operator=(Socket&&) noexcept;
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    /// Without close() before it, the peer reports this side as lost.
    ~Socket();

    /// Sends the bytes; their memory stays as it is until the completion. `id` comes back in it;
    /// sends may have equal ones. Never blocks. A Slice of another endpoint counts as plain memory.
    /// A Buffer that goes meanwhile stays registered, and its memory with it, until the completion.
    [[nodiscard]] base::Status send(Slice from, std::uint64_t id,
                                    SendFlags flags = SendFlags::none);
    /// The same from plain memory. What can be stored in the peer's ring stays where it is. Of what
    /// is posted, few bytes are copied, and more are registered, until the completion or by
    /// SocketOptions::registrations: throws Error (resource_exhausted) if they cannot be. (Where an
    /// advertisement comes later for what was to be stored, the stream ends then, with peer_lost.)
    /// Throws Error (invalid_argument) with SocketOptions::registered_only.
    [[nodiscard]] base::Status send(std::span<const std::byte> from, std::uint64_t id,
                                    SendFlags flags = SendFlags::none);
    /// Receives between one byte and all that fit; the memory is the peer's until the completion.
    /// After the end of the stream it completes with `closed`.
    /// Throws Error (invalid_argument) where a read has asked for what comes next and has not had
    /// all of it, and it lands in memory of the socket's: in mode `direct`, where a read that found
    /// nothing, or left something, has asked so; and of a message whose beginning has come. Bytes
    /// would change their order: read them first.
    /// No two outstanding receives should have equal ids, if they may be cancelled. Never blocks.
    [[nodiscard]] base::Status receive(Slice into, std::uint64_t id,
                                       ReceiveFlags flags = ReceiveFlags::none);
    /// The same into plain memory, which is registered if it is advertised: throws as send().
    [[nodiscard]] base::Status receive(std::span<std::byte> into, std::uint64_t id,
                                       ReceiveFlags flags = ReceiveFlags::none);
    /// `ok`: the receive completes, `cancelled` unless bytes come first: at once, or when the peer
    /// has given its buffer back. `empty`: there is no such receive any more. A receive that has
    /// the beginning of a message completes with that message.
    [[nodiscard]] base::Status cancel(std::uint64_t id);

    /// The next completion, if there is one: `ok`, otherwise `empty`. Never blocks.
    [[nodiscard]] base::Status poll(Completion& completion);
    /// As many as there are and fit: how many.
    [[nodiscard]] std::size_t poll(std::span<Completion> completions);
    /// Waits for the next one: `ok`, `timed_out`, `cancelled`; `empty`, at once: no operation is
    /// outstanding.
    [[nodiscard]] base::Status wait(Completion& completion, const base::Deadline& deadline);
    /// Operations whose completion was not taken: while there are none, none comes.
    [[nodiscard]] std::uint64_t outstanding() const;

    /// For a program's own loop (poll, epoll, asio …): readable means that there may be a
    /// completion, or what another call that does not wait (try_read_some, try_write_some,
    /// try_close) has asked for in vain. It stays readable until one of them has found nothing,
    /// and the others were told of what it came upon, once. From the first call on, finding nothing
    /// asks the peer for a wake-up, SocketOptions::wait.spin after the last message either way.
    /// Lives as long as the socket. Not for EPOLLET. Throws Error (resource_exhausted).
    /// docs/loops.md.
    [[nodiscard]] int descriptor();

    /// Waits for bytes, and copies what is there to the beginning of `into`: `ok` and `size` > 0;
    /// `closed`: the end of the stream. The memory is never lent to the peer, so this can time out;
    /// receive() saves the copy. After receives that are outstanding. A message: one of them, of
    /// `size` bytes, or `too_large`, with its beginning there and the rest gone; in mode `direct`
    /// of 256 KiB at most. `full`: there is a view of read_zero_copy.
    [[nodiscard]] base::Status read_some(std::span<std::byte> into, std::size_t& size,
                                         const base::Deadline& deadline);
    /// As the one that waits, of what is there: `empty` if that is nothing. Never blocks.
    [[nodiscard]] base::Status try_read_some(std::span<std::byte> into, std::size_t& size);
    /// Waits for bytes, and hands out what is there in one piece, without a copy (recv_zero_copy):
    /// bytes of the ring, or in mode `direct` of memory of the socket's. `ok`, `closed`,
    /// `too_large`: as read_some; the view counts in the first and the last. After receives that
    /// are outstanding; those that come after it wait for release() (but in mode
    /// `direct`, where they do not lie in the ring, they take what comes). A view stays as it is
    /// until then, also when the connection ends, and no longer than the socket. There is one at a
    /// time: asked again, this answers at once, with what has come meanwhile. One that is kept
    /// stalls the peer: its room is missing, and long sends may wait until the whole ring is free.
    /// So a program that needs more bytes after those of a view copies them, and releases it.
    [[nodiscard]] base::Status read_zero_copy(View& view, const base::Deadline& deadline);
    /// As the one that waits, of what is there: `empty` if that is nothing. Never blocks.
    [[nodiscard]] base::Status try_read_zero_copy(View& view);
    /// Ends the view. Its first `size` bytes are read, and the peer may write there again; the
    /// others are read next. Of the last view of a message all bytes: so is the message. `empty`:
    /// there is no view; `too_large`: it has not so many bytes, and stays; `full`: in mode `direct`
    /// receive() was called after it and has what follows, so all that is there has to be read
    /// first, and it stays.
    [[nodiscard]] base::Status release(std::size_t size);
    /// Sends a copy of some of the bytes, from the first on: `ok` and `size` > 0. They are under
    /// way when it returns, and need no further call of this side. After sends that are
    /// outstanding. A message: all of it. `too_large`: it is longer than 64 KiB, or does not fit
    /// into the peer's ring; send() takes it. Where bytes are posted, the first one registers
    /// memory to copy them to: throws Error (resource_exhausted) if it cannot be.
    [[nodiscard]] base::Status write_some(std::span<const std::byte> from, std::size_t& size,
                                          const base::Deadline& deadline);
    /// As the one that waits, of what can go now: `full` if that is nothing. Never blocks.
    [[nodiscard]] base::Status try_write_some(std::span<const std::byte> from, std::size_t& size);
    /// The same until all are under way. Anything but `ok`: some of them may be, if they are not a
    /// message.
    [[nodiscard]] base::Status write_all(std::span<const std::byte> from,
                                         const base::Deadline& deadline);

    /// Sends no more: after the sends so far the peer's receives end with `closed`. Receiving goes
    /// on.
    void shut_down();
    /// Shuts down, waits until everything and the end of the stream lies in the peer's memory, and
    /// ends the connection in good order, both ways. What is outstanding then completes with
    /// `closed`. `timed_out`, `cancelled`: nothing was given up; it receives still, and close() may
    /// be called again. `closed`: the peer closed before it had everything, and the rest it never
    /// will. `peer_lost`. docs/closing.md.
    [[nodiscard]] base::Status close(const base::Deadline& deadline);
    /// Shuts down, and closes as soon as that takes no wait: `full` until then. Never blocks.
    [[nodiscard]] base::Status try_close();

    [[nodiscard]] SocketStats stats() const;
    /// What was chosen and why: device, path, mode, ring, carrier.
    [[nodiscard]] std::string explain() const;
    /// Why the connection is broken. Empty while it is not.
    [[nodiscard]] std::string failure() const;
    /// What the peer is called, for messages.
    [[nodiscard]] const std::string& peer_name() const noexcept;
    /// The connection beneath: its socket, its queue pair.
    [[nodiscard]] connect::Link& link() noexcept;

    struct Core;  ///< private to stream/
    explicit Socket(std::unique_ptr<Core> core) noexcept;

  private:
    std::unique_ptr<Core> core_;
};

/// Accepts sockets. Move-only; one thread at a time.
class Listener {
  public:
    /// Throws Error (invalid_argument, permission, system: the address is in use …).
    [[nodiscard]] static Listener listen(const connect::Address& address,
                                         SocketOptions options = {});
    [[nodiscard]] const connect::Address& address() const noexcept { return listener_.address(); }
    /// The next peer that sets up its socket. Peers that do not manage to are logged and passed
    /// over. Throws Error (timed_out, cancelled).
    [[nodiscard]] Socket accept(const base::Deadline& deadline);
    /// As accept, but never blocks: none yet, or the socket of the next peer. Throws Error
    /// (resource_exhausted).
    [[nodiscard]] std::optional<Socket> try_accept();
    /// For a program's own loop: readable means that try_accept has something to do.
    /// Level-triggered. Lives as long as the listener.
    [[nodiscard]] int descriptor() const noexcept { return listener_.descriptor(); }

  private:
    Listener(connect::Listener listener, SocketOptions options)
        : listener_{std::move(listener)}, options_{std::move(options)} {}
    connect::Listener listener_;
    SocketOptions options_;
};

/// A connection on its way, for programs that do not wait: cancelled by its end. Move-only; one
/// thread at a time.
class Connector {
  public:
    /// Begins. Throws Error as connect::Connector; it looks up the names of hosts.
    explicit Connector(const connect::Address& address, SocketOptions options = {});
    Connector(Connector&&) noexcept;
    Connector& operator=(Connector&&) noexcept;
    ~Connector();
    /// The socket, once it is connected and agreed on; none yet. Never blocks. Not to be called
    /// again after the socket or an Error. Throws Error as connect::connect, but never timed_out.
    [[nodiscard]] std::optional<Socket> try_connect();
    /// The same, waiting: connect() from here on. With Deadline::now() the error says how far it
    /// came.
    [[nodiscard]] Socket wait(const base::Deadline& deadline);
    /// For a program's own loop: readable means that try_connect has something to do.
    /// Level-triggered. Lives as long as the connector. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor() { return connector_.descriptor(); }

  private:
    struct Measured;
    [[nodiscard]] bool has_measured();
    void begin();
    [[nodiscard]] Socket finish(std::span<const std::byte> theirs);
    SocketOptions options_;
    connect::Connector connector_;
    std::unique_ptr<Measured> way_;       ///< once there is a link, which is measured
    std::unique_ptr<Socket::Core> core_;  ///< after the link
};

/// Connects to a Listener. Throws Error as connect::connect.
[[nodiscard]] Socket connect(const connect::Address& address, SocketOptions options,
                             const base::Deadline& deadline);

}  // namespace millrace::stream
