// One end of a byte stream as a state machine: both directions, and the credits that their messages
// share. No I/O, no clock, no thread; allocates when it is made, and once for the first of sends,
// receives, advertisements and marks. What is above hands it what the program, the peer and the
// device do, and does what next() answers.
//
//          program                  device and peer
//   send, receive, cancel,      deliver, written, break_off
//   lend, shut_down            stop_awaiting
//             │                           │
//             ▼                           ▼
//       ┌──────────┬────────────┬──────────┐
//       │  Sender  │  Credits   │ Receiver │     one thread at a time
//       └──────────┴────────────┴──────────┘
//                        │ next
//                        ▼
//     Write, SendMessage, CopyOut, SendDone, ReceiveDone, Idle
//
// Whoever drives it promises: messages reach the peer in the order in which next() answered them, a
// transfer's notification behind its WRITE; a message's slot may be written again before the next
// action is asked for; an action is done before the next one is asked for. After a violation
// nothing is sent any more, and break_off() is for when the queue pair can carry no more either.
#pragma once

#include <cstdint>
#include <span>

#include "actions.hpp"
#include "credits.hpp"
#include "millrace/base/status.hpp"
#include "receiver.hpp"
#include "sender.hpp"
#include "terms.hpp"

namespace millrace::stream {

class Connection {
  public:
    /// Throws base::Error when the terms are out of range.
    explicit Connection(const Terms& terms);

    // ---- the program (what is answered: sender.hpp, receiver.hpp)

    /// Make the memory of the first send, or receive. False: there is none now.
    [[nodiscard]] bool prepare_to_send() noexcept { return sender_.prepare(); }
    [[nodiscard]] bool prepare_to_receive() noexcept { return receiver_.prepare(); }
    [[nodiscard]] base::Status send(std::uint64_t id, std::uint64_t length, bool patient = false,
                                    bool at_once = false) noexcept {
        return sender_.send(id, length, patient, at_once);
    }
    [[nodiscard]] base::Status receive(const ReceiveRequest& request) noexcept {
        return receiver_.receive(request);
    }
    [[nodiscard]] base::Status cancel(std::uint64_t id) noexcept { return receiver_.cancel(id); }
    [[nodiscard]] bool lend(Lent& lent) noexcept { return receiver_.lend(lent); }
    void give_back(std::uint64_t length, bool copied = false) noexcept {
        receiver_.give_back(length, copied);
    }
    /// This end sends no more; it goes on receiving.
    void shut_down() noexcept { sender_.shut_down(); }

    // ---- the device and the peer

    /// A message of the peer. Anything but `none` ends the stream: the same is answered from then
    /// on.
    [[nodiscard]] Violation deliver(std::span<const std::byte> bytes) noexcept;
    /// WRITEs completed, of `bytes` bytes.
    void written(std::uint64_t bytes) noexcept { sender_.written(bytes); }
    /// Time has passed while sender().is_awaiting().
    void stop_awaiting() noexcept { sender_.stop_awaiting(); }
    /// The peer takes nothing any more: every send that was not written ends with peer_lost.
    /// Receives go on with what has come. Behind it, next() is to be asked without may_post.
    void break_off_sending() noexcept { sender_.break_off(); }
    /// The queue pair is in error: nothing reads the program's buffers or writes to them any more.
    /// What is outstanding ends with peer_lost.
    void break_off() noexcept;

    // ---- what is to be done

    /// `may_post`: the send queue has room for a WRITE and a message. Without it, only what needs
    /// none.
    [[nodiscard]] Action next(bool may_post = true) noexcept;

    [[nodiscard]] const Sender& sender() const noexcept { return sender_; }
    [[nodiscard]] const Receiver& receiver() const noexcept { return receiver_; }
    [[nodiscard]] const Credits& credits() const noexcept { return credits_; }
    [[nodiscard]] Violation violation() const noexcept { return violation_; }
    /// break_off() was called.
    [[nodiscard]] bool is_broken() const noexcept { return broken_; }

  private:
    [[nodiscard]] Violation dispatch(const Message& message) noexcept;
    template <class Body>
    [[nodiscard]] EncodedMessage stamp(Body body) noexcept {
        body.header.credits = credits_.spend();
        return encode(body);
    }

    Credits credits_;
    Sender sender_;
    Receiver receiver_;
    Violation violation_ = Violation::none;
    bool broken_ = false;
};

}  // namespace millrace::stream
