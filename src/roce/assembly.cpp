#include "assembly.hpp"

namespace millrace::roce {

MessagePart part_of(Kind kind) noexcept {
    const bool is_write = kind >= Kind::write_first && kind <= Kind::write_only_immediate;
    switch (kind) {
        case Kind::send_first:
        case Kind::write_first: return {true, is_write, true, false, false, false};
        case Kind::send_middle:
        case Kind::write_middle: return {true, is_write, false, false, false, false};
        case Kind::send_last:
        case Kind::write_last: return {true, is_write, false, true, false, false};
        case Kind::send_last_immediate:
        case Kind::write_last_immediate: return {true, is_write, false, true, true, false};
        case Kind::send_only:
        case Kind::write_only: return {true, is_write, true, true, false, false};
        case Kind::send_only_immediate:
        case Kind::write_only_immediate: return {true, is_write, true, true, true, false};
        case Kind::send_last_invalidate: return {true, false, false, true, false, true};
        case Kind::send_only_invalidate: return {true, false, true, true, false, true};
        default: return {};
    }
}

Kind kind_of(Operation operation, bool is_first, bool is_last) noexcept {
    const bool is_write =
        operation == Operation::write || operation == Operation::write_immediate;
    const bool has_immediate =
        operation == Operation::send_immediate || operation == Operation::write_immediate;
    if (!is_last) {
        if (is_first) return is_write ? Kind::write_first : Kind::send_first;
        return is_write ? Kind::write_middle : Kind::send_middle;
    }
    if (operation == Operation::send_invalidate) {
        return is_first ? Kind::send_only_invalidate : Kind::send_last_invalidate;
    }
    if (is_first) {
        if (has_immediate) {
            return is_write ? Kind::write_only_immediate : Kind::send_only_immediate;
        }
        return is_write ? Kind::write_only : Kind::send_only;
    }
    if (has_immediate) return is_write ? Kind::write_last_immediate : Kind::send_last_immediate;
    return is_write ? Kind::write_last : Kind::send_last;
}

Outcome Assembly::take(const Packet& packet) noexcept {
    const Outcome outcome = step(packet);
    if (outcome != Outcome::done && outcome != Outcome::no_receive) in_ = In::none;
    return outcome;
}

Outcome Assembly::step(const Packet& packet) noexcept {
    const MessagePart part = part_of(packet.kind);
    const auto size = static_cast<std::uint32_t>(packet.payload.size());
    const In in = part.is_write ? In::write : In::send;
    if (!part.is_message || part.is_first != (in_ == In::none)) return Outcome::invalid_request;
    if (!part.is_first && in_ != in) return Outcome::invalid_request;
    // Full packets until the last one, which has something, if it is not the only one.
    if (part.is_last ? size > mtu_ || (size == 0 && !part.is_first) : size != mtu_) {
        return Outcome::invalid_request;
    }
    const std::uint32_t placed = part.is_first ? 0 : placed_;
    const std::uint32_t length = part.is_first && part.is_write ? packet.length : length_;
    if (part.is_write) {
        if (length > most_message_bytes) return Outcome::invalid_request;
        const std::uint32_t rest = length - placed;
        if (part.is_last ? size != rest : size >= rest) return Outcome::invalid_request;
    } else if (most_message_bytes - placed < size) {
        return Outcome::invalid_request;
    }

    if (part.is_write ? part.has_immediate : part.is_first) {
        const Outcome claimed = side_.claim();
        if (claimed != Outcome::done) return claimed;
    }
    if (part.is_write && part.is_first && length != 0) {
        const Outcome begun = side_.begin_write(packet.remote_key, packet.address, length);
        if (begun != Outcome::done) return begun;
    }
    if (size != 0) {
        const Outcome laid = side_.place(placed, packet.payload);
        if (laid != Outcome::done) return laid;
    }
    in_ = part.is_last ? In::none : in;
    placed_ = placed + size;
    length_ = length;
    if (!part.is_last) return Outcome::done;
    Arrival arrival{};
    arrival.is_write = part.is_write;
    arrival.solicited = packet.solicited;
    arrival.has_immediate = part.has_immediate;
    arrival.invalidates = part.invalidates;
    if (part.has_immediate) arrival.immediate = packet.immediate;
    if (part.invalidates) arrival.invalidate_key = packet.invalidate_key;
    arrival.length = placed_;
    return side_.finish(arrival);
}

void Assembly::abandon() noexcept {
    if (in_ == In::none) return;
    in_ = In::none;
    side_.abandon();
}

}  // namespace millrace::roce
