#include "connection.hpp"

namespace millrace::stream {
namespace {

const Terms& checked(const Terms& terms) {
    check(terms);
    return terms;
}

const MessageHeader& header_of(const Message& message) noexcept {
    return *std::visit([](const auto& body) { return &body.header; }, message);
}

}  // namespace

Connection::Connection(const Terms& terms)
    : credits_{checked(terms).own_slots, terms.peer_slots},
      sender_{terms.outgoing, terms},
      receiver_{terms.incoming, terms} {}

Violation Connection::deliver(std::span<const std::byte> bytes) noexcept {
    if (violation_ != Violation::none) return violation_;
    Message message;
    violation_ = decode(bytes, message);
    if (violation_ == Violation::none) violation_ = credits_.take(header_of(message).credits);
    if (violation_ == Violation::none) violation_ = dispatch(message);
    return violation_;
}

Violation Connection::dispatch(const Message& message) noexcept {
    struct Visitor {
        Connection& end;
        Violation operator()(const AdvertMessage& body) const noexcept {
            return end.sender_.on_advert(body);
        }
        Violation operator()(const TransferMessage& body) const noexcept {
            return body.header.kind == MessageKind::direct ? end.receiver_.on_direct(body)
                                                           : end.receiver_.on_indirect(body);
        }
        Violation operator()(const AcknowledgementMessage& body) const noexcept {
            return end.sender_.on_acknowledgement(body);
        }
        Violation operator()(const CancelMessage&) const noexcept {
            return end.sender_.on_cancel();
        }
        Violation operator()(const CancelledMessage& body) const noexcept {
            return end.receiver_.on_cancelled(body);
        }
        Violation operator()(const FinMessage& body) const noexcept {
            return end.receiver_.on_fin(body);
        }
        Violation operator()(const CreditMessage&) const noexcept { return Violation::none; }
    };
    return std::visit(Visitor{*this}, message);
}

void Connection::break_off() noexcept {
    broken_ = true;
    sender_.break_off();
    receiver_.break_off();
}

Action Connection::next(bool may_post) noexcept {
    if (ReceiveDone done; receiver_.next_done(done)) return done;
    if (SendDone done; sender_.next_done(done)) return done;
    if (broken_ || violation_ != Violation::none) return Idle{};
    if (receiver_.owes_acknowledgement_early() && may_post && credits_.control_allowed()) {
        return SendMessage{stamp(receiver_.take_acknowledgement())};
    }
    if (CopyOut copy; receiver_.next_copy(copy)) return copy;
    if (!may_post) return Idle{};
    if (credits_.control_allowed()) {
        if (sender_.owes_cancelled()) return SendMessage{stamp(sender_.take_cancelled())};
        if (receiver_.owes_cancel()) return SendMessage{stamp(receiver_.take_cancel())};
        // Before the ACK of the last byte: a sender that waits for one finds the other there.
        if (receiver_.may_resume()) return SendMessage{stamp(receiver_.take_advert())};
        // Behind all copies that there are to do: one ACK for all of them.
        if (receiver_.owes_acknowledgement()) {
            return SendMessage{stamp(receiver_.take_acknowledgement())};
        }
        if (receiver_.may_advertise()) return SendMessage{stamp(receiver_.take_advert())};
        if (sender_.owes_fin()) return SendMessage{stamp(sender_.take_fin())};
    }
    if (sender_.unsent() != 0) {
        if (credits_.transfer_allowed()) {
            Transfer transfer;
            TransferMessage message;
            if (sender_.next_transfer(transfer, message)) return Write{transfer, stamp(message)};
        }
    }
    if (credits_.return_due()) return SendMessage{stamp(CreditMessage{})};
    return Idle{};
}

}  // namespace millrace::stream
