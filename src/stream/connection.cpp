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

// One variable for all answers, made where the caller wants it: an Action is large.
Action Connection::next(bool may_post) noexcept {
    Action action;
    if (receiver_.has_done()) {
        receiver_.next_done(action.emplace<ReceiveDone>());
        return action;
    }
    if (sender_.has_done()) {
        sender_.next_done(action.emplace<SendDone>());
        return action;
    }
    if (broken_ || violation_ != Violation::none) return action;
    const auto say = [&](const auto& message) {
        action.emplace<SendMessage>().message = stamp(message);
    };
    if (receiver_.owes_acknowledgement_early() && may_post && credits_.control_allowed()) {
        say(receiver_.take_acknowledgement());
        return action;
    }
    if (receiver_.buffered() != 0) {
        if (receiver_.next_copy(action.emplace<CopyOut>())) return action;
        action.emplace<Idle>();
    }
    if (!may_post) return action;
    if (credits_.control_allowed()) {
        if (sender_.owes_cancelled()) {
            say(sender_.take_cancelled());
        } else if (receiver_.owes_cancel()) {
            say(receiver_.take_cancel());
        } else if (receiver_.may_resume()) {
            // Before the ACK of the last byte: a sender that waits for one finds the other there.
            say(receiver_.take_advert());
        } else if (receiver_.owes_acknowledgement()) {
            // Behind all copies that there are to do: one ACK for all of them.
            say(receiver_.take_acknowledgement());
        } else if (receiver_.may_advertise()) {
            say(receiver_.take_advert());
        } else if (sender_.owes_fin()) {
            say(sender_.take_fin());
        }
        if (action.index() != 0) return action;
    }
    if (sender_.unsent() != 0) {
        if (credits_.transfer_allowed()) {
            Write& write = action.emplace<Write>();
            TransferMessage message;
            if (sender_.next_transfer(write.transfer, message)) {
                write.notification = stamp(message);
                return action;
            }
            action.emplace<Idle>();
        }
    }
    if (credits_.return_due()) say(CreditMessage{});
    return action;
}

}  // namespace millrace::stream
