#include "responder.hpp"

#include <algorithm>
#include <bit>

namespace millrace::roce {
namespace {

constexpr std::uint64_t atomic_alignment = 8;

constexpr Status status_of(std::uint8_t syndrome) noexcept {
    switch (static_cast<Refusal>(syndrome & syndrome_value)) {
        case Refusal::remote_access: return Status::remote_access;
        case Refusal::remote_operation: return Status::remote_operation;
        default: return Status::remote_invalid_request;
    }
}

constexpr std::uint8_t sequence_refusal =
    syndrome_negative | static_cast<std::uint8_t>(Refusal::sequence);

}  // namespace

Responder::Responder(ReceiveSide& side, std::uint32_t most_reads)
    : side_{side},
      assembly_{side},
      answer_mask_{std::bit_ceil(2 * std::max(most_reads, 1U)) - 1},
      answers_{new Answer[answer_mask_ + 1]{}},
      replays_{new Replay[std::max(most_reads, 1U)]{}},
      replay_slots_{most_reads} {}

void Responder::start(const ResponderAttributes& attributes) noexcept {
    attributes_ = attributes;
    attributes_.most_reads = std::min(attributes.most_reads, replay_slots_);
    assembly_.start(attributes.mtu);
    mtu_shift_ = static_cast<std::uint32_t>(std::countr_zero(attributes.mtu));
    expected_ = attributes.first_psn & psn_mask;
    message_sequence_ = 0;
    awaits_repetition_ = must_acknowledge_ = must_refuse_ = false;
    acknowledgement_due_ = never;
    answered_ = asked_ = reads_waiting_ = 0;
    replay_count_ = next_replay_ = 0;
    counts_ = {};
    state_ = State::running;
}

void Responder::change(const ResponderAttributes& attributes) noexcept {
    attributes_.min_rnr_timer = attributes.min_rnr_timer;
}

std::int64_t Responder::next_deadline() const noexcept {
    if (state_ == State::stopped) return never;
    if (answered_ != asked_ || must_refuse_) return 0;
    return must_acknowledge_ ? acknowledgement_due_ : never;
}

// What comes.

void Responder::arrived(const Packet& packet, std::int64_t now) noexcept {
    if (state_ != State::running || is_answer(packet.kind)) return;
    ++counts_.packets;
    const std::int32_t distance = psn_distance(packet.psn, expected_);
    if (distance == 0) {
        execute(packet, now);
    } else if (distance < 0) {
        repeated(packet, now);
    } else {
        missed(packet.psn);
    }
}

void Responder::execute(const Packet& packet, std::int64_t now) noexcept {
    switch (packet.kind) {
        case Kind::read_request: return execute_read(packet);
        case Kind::compare_swap:
        case Kind::fetch_add: return execute_atomic(packet);
        default: break;
    }
    const Outcome outcome = assembly_.take(packet);
    if (outcome != Outcome::done) return refuse(outcome);
    if (!assembly_.is_within()) message_sequence_ = psn_after(message_sequence_, 1);
    done(1);
    if (packet.asks_acknowledge) acknowledge(now);
}

void Responder::execute_read(const Packet& packet) noexcept {
    if (assembly_.is_within() || packet.length > most_message_bytes || !has_room(false)) {
        return refuse(Refusal::invalid_request);
    }
    if (packet.length != 0) {
        const Outcome outcome = side_.check_read(packet.remote_key, packet.address, packet.length);
        if (outcome != Outcome::done) return refuse(outcome);
    }
    message_sequence_ = psn_after(message_sequence_, 1);
    queue({.is_read = true,
           .is_repeated = false,
           .psn = expected_,
           .message_sequence = message_sequence_,
           .remote_key = packet.remote_key,
           .length = packet.length,
           .offset = 0,
           .address = packet.address,
           .original = 0});
    remember({.is_read = true,
              .psn = packet.psn,
              .remote_key = packet.remote_key,
              .length = packet.length,
              .address = packet.address,
              .original = 0});
    done(packets_of(packet.length));
}

void Responder::execute_atomic(const Packet& packet) noexcept {
    if (assembly_.is_within() || packet.address % atomic_alignment != 0 || !has_room(false)) {
        return refuse(Refusal::invalid_request);
    }
    const bool is_swap = packet.kind == Kind::compare_swap;
    std::uint64_t original = 0;
    const Outcome outcome = side_.atomic(
        is_swap ? Operation::compare_swap : Operation::fetch_add, packet.remote_key,
        packet.address, is_swap ? packet.compare : packet.swap_or_add,
        is_swap ? packet.swap_or_add : 0, original);
    if (outcome != Outcome::done) return refuse(outcome);
    remember({.is_read = false,
              .psn = packet.psn,
              .remote_key = 0,
              .length = 0,
              .address = 0,
              .original = original});
    message_sequence_ = psn_after(message_sequence_, 1);
    queue({.is_read = false,
           .is_repeated = false,
           .psn = expected_,
           .message_sequence = message_sequence_,
           .remote_key = 0,
           .length = 0,
           .offset = 0,
           .address = 0,
           .original = original});
    done(1);
}

/// So many PSNs are dealt with.
void Responder::done(std::uint32_t packets) noexcept {
    expected_ = psn_after(expected_, packets);
    awaits_repetition_ = false;
    if (!must_refuse_) return;
    // What was missing came before its refusal left. Still missing is what came too early.
    if (psn_distance(furthest_missed_, expected_) >= 0) {
        refusal_ = sequence_refusal;
        awaits_repetition_ = true;
    } else {
        must_refuse_ = false;
        must_acknowledge_ = true;
        acknowledgement_due_ = 0;
    }
}

void Responder::acknowledge(std::int64_t now) noexcept {
    if (must_acknowledge_) return;
    must_acknowledge_ = true;
    acknowledgement_due_ = now + acknowledgement_delay;
}

void Responder::missed(std::uint32_t psn) noexcept {
    if (must_refuse_ && psn_distance(psn, furthest_missed_) > 0) furthest_missed_ = psn;
    if (awaits_repetition_) return;
    ++counts_.gaps;
    awaits_repetition_ = must_refuse_ = true;
    refusal_ = sequence_refusal;
    furthest_missed_ = psn;
}

void Responder::refuse(Outcome outcome) noexcept {
    switch (outcome) {
        case Outcome::no_receive:
            ++counts_.not_ready;
            awaits_repetition_ = must_refuse_ = true;
            refusal_ = static_cast<std::uint8_t>(syndrome_receiver_not_ready |
                                                 (attributes_.min_rnr_timer & syndrome_value));
            furthest_missed_ = expected_;
            return;
        case Outcome::remote_access: return refuse(Refusal::remote_access);
        case Outcome::remote_operation: return refuse(Refusal::remote_operation);
        default: return refuse(Refusal::invalid_request);
    }
}

void Responder::refuse(Refusal why) noexcept {
    must_refuse_ = true;
    refusal_ = static_cast<std::uint8_t>(syndrome_negative | static_cast<std::uint8_t>(why));
    state_ = State::failing;
}

void Responder::repeated(const Packet& packet, std::int64_t now) noexcept {
    ++counts_.duplicates;
    switch (packet.kind) {
        case Kind::read_request: return repeat_read(packet);
        case Kind::compare_swap:
        case Kind::fetch_add: return repeat_atomic(packet);
        default: return acknowledge(now);
    }
}

void Responder::remember(const Replay& done) noexcept {
    replays_[next_replay_] = done;
    next_replay_ = next_replay_ + 1 == attributes_.most_reads ? 0 : next_replay_ + 1;
    replay_count_ = std::min(replay_count_ + 1, attributes_.most_reads);
}

/// The READ or atomic that comes again, a READ from any of its packets on. Null: it was never asked
/// for, or is none of the last.
const Responder::Replay* Responder::find_replay(const Packet& packet) const noexcept {
    const bool is_read = packet.kind == Kind::read_request;
    for (std::uint32_t i = 0; i < replay_count_; ++i) {
        const Replay& known = replays_[i];
        if (known.is_read != is_read) continue;
        const std::uint32_t later = (packet.psn - known.psn) & psn_mask;
        if (!is_read) {
            if (later == 0) return &known;
            continue;
        }
        const std::uint64_t offset = std::uint64_t{later} << mtu_shift_;
        if (later < packets_of(known.length) && packet.remote_key == known.remote_key &&
            packet.address == known.address + offset && packet.length <= known.length - offset) {
            return &known;
        }
    }
    return nullptr;
}

/// What is no longer allowed is dropped: an old packet that comes late must not end a connection.
void Responder::repeat_read(const Packet& packet) noexcept {
    if (will_answer(packet.psn)) return;
    const bool is_allowed =
        find_replay(packet) != nullptr && has_room(true) &&
        (packet.length == 0 ||
         side_.check_read(packet.remote_key, packet.address, packet.length) == Outcome::done);
    if (!is_allowed) {
        ++counts_.dropped;
        return;
    }
    queue({.is_read = true,
           .is_repeated = true,
           .psn = packet.psn,
           .message_sequence = message_sequence_,
           .remote_key = packet.remote_key,
           .length = packet.length,
           .offset = 0,
           .address = packet.address,
           .original = 0});
}

void Responder::repeat_atomic(const Packet& packet) noexcept {
    if (will_answer(packet.psn)) return;
    const Replay* const found = find_replay(packet);
    if (found == nullptr || !has_room(true)) {
        ++counts_.dropped;
        return;
    }
    queue({.is_read = false,
           .is_repeated = true,
           .psn = packet.psn,
           .message_sequence = message_sequence_,
           .remote_key = 0,
           .length = 0,
           .offset = 0,
           .address = 0,
           .original = found->original});
}

// Answers.

std::uint32_t Responder::packets_of(std::uint32_t length) const noexcept {
    return length == 0 ? 1 : ((length - 1) >> mtu_shift_) + 1;
}

bool Responder::will_answer(std::uint32_t psn) const noexcept {
    for (std::uint32_t index = answered_; index != asked_; ++index) {
        const Answer& waiting = answer(index);
        const std::uint32_t packets = packets_of(waiting.length - waiting.offset);
        const std::int32_t distance = psn_distance(psn, waiting.psn);
        if (distance >= 0 && distance < static_cast<std::int32_t>(packets)) return true;
    }
    return false;
}

bool Responder::has_room(bool is_repeated) const noexcept {
    const std::uint32_t waiting =
        is_repeated ? asked_ - answered_ - reads_waiting_ : reads_waiting_;
    return waiting < attributes_.most_reads;
}

void Responder::queue(const Answer& given) noexcept {
    answer(asked_++) = given;
    if (!given.is_repeated) ++reads_waiting_;
}

void Responder::answered() noexcept {
    if (!answer(answered_++).is_repeated) --reads_waiting_;
}

// What leaves.

bool Responder::send(std::int64_t now, Outlet& outlet, bool at_once) noexcept {
    if (state_ == State::stopped) return true;
    if (!send_answers(outlet)) return false;
    if (must_refuse_) {
        if (!send_acknowledgement(refusal_, expected_, outlet)) return false;
        must_refuse_ = must_acknowledge_ = false;
        if (state_ == State::failing) {
            state_ = State::stopped;
            side_.failed(status_of(refusal_));
        }
        return true;
    }
    if (!must_acknowledge_ || (!at_once && now < acknowledgement_due_)) return true;
    const std::uint32_t last = psn_after(expected_, psn_mask);  // one back
    if (!send_acknowledgement(syndrome_acknowledge | credits_invalid, last, outlet)) return false;
    must_acknowledge_ = false;
    return true;
}

bool Responder::send_answers(Outlet& outlet) noexcept {
    while (answered_ != asked_) {
        Answer& first = answer(answered_);
        if (first.is_read ? !send_read(first, outlet) : !send_atomic(first, outlet)) return false;
    }
    return true;
}

void Responder::head(Packet& packet, Kind kind, std::uint32_t psn) const noexcept {
    packet.service = Service::rc;
    packet.kind = kind;
    packet.solicited = false;
    packet.asks_acknowledge = false;
    packet.partition_key = attributes_.partition_key;
    packet.destination = attributes_.destination;
    packet.psn = psn;
    packet.syndrome = syndrome_acknowledge | credits_invalid;
    packet.payload = {};
}

bool Responder::send_read(Answer& reading, Outlet& outlet) noexcept {
    for (;;) {
        const std::uint32_t size =
            std::min(reading.length - reading.offset, std::uint32_t{1} << mtu_shift_);
        const bool is_first = reading.offset == 0;
        const bool is_last = reading.offset + size == reading.length;
        Packet packet;
        const Kind kind = is_first && is_last ? Kind::read_response_only
                          : is_first          ? Kind::read_response_first
                          : is_last           ? Kind::read_response_last
                                              : Kind::read_response_middle;
        head(packet, kind, reading.psn);
        packet.message_sequence = reading.message_sequence;
        const std::size_t headers = header_bytes(Service::rc, kind);
        std::uint8_t* room = outlet.begin(packet_bytes(headers, size));
        if (room == nullptr) return false;
        packet.payload = {room + headers, size};
        std::uint8_t* payload = compose(packet, room);
        if (size != 0) {
            const Outcome outcome = side_.read(reading.remote_key, reading.address + reading.offset,
                                               {payload, size});
            if (outcome != Outcome::done) {
                const bool is_repeated = reading.is_repeated;
                const std::uint32_t psn = reading.psn;
                answered();
                if (is_repeated) return true;
                // It was allowed when it came. Nothing after it is answered any more.
                answered_ = asked_;
                reads_waiting_ = 0;
                expected_ = psn;
                refuse(outcome);
                return true;
            }
        }
        outlet.commit();
        reading.offset += size;
        reading.psn = psn_after(reading.psn, 1);
        if (!is_last) continue;
        answered();
        return true;
    }
}

bool Responder::send_atomic(const Answer& atomic, Outlet& outlet) noexcept {
    Packet packet;
    head(packet, Kind::atomic_acknowledge, atomic.psn);
    packet.message_sequence = atomic.message_sequence;
    packet.original = atomic.original;
    std::uint8_t* room = outlet.begin(header_bytes(Service::rc, packet.kind));
    if (room == nullptr) return false;
    compose(packet, room);
    outlet.commit();
    answered();
    return true;
}

bool Responder::send_acknowledgement(std::uint8_t syndrome, std::uint32_t psn,
                                     Outlet& outlet) noexcept {
    Packet packet;
    head(packet, Kind::acknowledge, psn);
    packet.syndrome = syndrome;
    packet.message_sequence = message_sequence_;
    std::uint8_t* room = outlet.begin(header_bytes(Service::rc, packet.kind));
    if (room == nullptr) return false;
    compose(packet, room);
    outlet.commit();
    return true;
}

}  // namespace millrace::roce
