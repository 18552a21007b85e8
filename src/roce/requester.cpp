#include "requester.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "assembly.hpp"

namespace millrace::roce {
namespace {

/// An acknowledgement is asked for after so many packets, and four times in a window, so that the
/// next packets leave before all are acknowledged; and at the end of what leaves together.
constexpr std::uint32_t packets_per_acknowledgement = 32;
constexpr std::uint32_t acknowledgements_per_window = 4;
/// No loss makes the window smaller.
constexpr std::uint32_t least_window = 8;
constexpr std::uint32_t atomic_operand_bytes = 8;
constexpr std::uint8_t for_ever = 7;  ///< rnr_retry

/// Nanoseconds of the five bits in which a receiver says how long to wait.
constexpr std::array<std::int64_t, 32> rnr_times = [] {
    constexpr std::array<std::int64_t, 32> units{
        // of 10 µs
        65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
        48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
        2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    std::array<std::int64_t, 32> times{};
    for (std::size_t i = 0; i < times.size(); ++i) times[i] = units[i] * 10'000;
    return times;
}();

constexpr std::int64_t timeout_of(std::uint8_t exponent) noexcept {
    return exponent == 0 ? never : std::int64_t{4096} << (exponent & 31);
}

constexpr bool brings_data(Operation operation) noexcept {
    return operation == Operation::read || operation == Operation::compare_swap ||
           operation == Operation::fetch_add;
}

}  // namespace

Requester::Requester(SendSide& side, std::uint32_t most_requests, std::uint32_t most_reads)
    : side_{side},
      mask_{std::bit_ceil(std::max(most_requests, 1U)) - 1},
      entries_{new Entry[mask_ + 1]{}},
      read_mask_{std::bit_ceil(std::max(most_reads, 1U)) - 1},
      read_ends_{new std::uint32_t[read_mask_ + 1]{}} {}

void Requester::start(const RequesterAttributes& attributes) noexcept {
    attributes_ = attributes;
    mtu_shift_ = static_cast<std::uint32_t>(std::countr_zero(attributes.mtu));
    done_ = cursor_ = fresh_ = posted_ = 0;
    unacknowledged_ = cursor_psn_ = sent_psn_ = attributes.first_psn & psn_mask;
    since_asked_ = since_wider_ = 0;
    window_ = attributes_.window = std::max(attributes.window, 1U);
    reads_done_ = reads_sent_ = 0;
    timer_ = early_ = paused_ = measured_ = never;
    round_trip_ = 0;
    bursts_.clear();
    is_running_ = true;
    is_held_ = is_recovering_ = false;
    broken_ = Status::success;
    counts_ = {};
    change(attributes);
}

void Requester::change(const RequesterAttributes& attributes) noexcept {
    attributes_.timeout = attributes.timeout;
    attributes_.retry_count = attributes.retry_count;
    attributes_.rnr_retry = attributes.rnr_retry;
    attributes_.most_reads = std::clamp(attributes.most_reads, 1U, read_mask_ + 1);
    timeout_ = timeout_of(attributes.timeout);
    retries_ = attributes.retry_count;
    rnr_retries_ = attributes.rnr_retry;
}

void Requester::post(const Request& request) noexcept {
    entry(posted_).request = request;
    ++posted_;
}

std::uint32_t Requester::abort() noexcept {
    const std::uint32_t left = posted_ - done_;
    done_ = cursor_ = fresh_ = posted_;
    unacknowledged_ = cursor_psn_ = sent_psn_;
    reads_done_ = reads_sent_;
    timer_ = early_ = paused_ = never;
    broken_ = Status::success;
    is_running_ = false;
    return left;
}

std::int64_t Requester::next_deadline() const noexcept {
    return std::min({timer_, early_, paused_});
}

// What leaves.

bool Requester::send(std::int64_t now, Outlet& outlet) noexcept {
    if (!is_running_) return true;
    if (paused_ != never) {
        if (now < paused_) return true;
        paused_ = never;
    }
    now_ = now;
    if (timer_ <= now) {
        ++counts_.timeouts;
        timer_ = early_ = never;
        repeat();
    } else if (early_ <= now) {
        repeat_early(now);
    }
    const std::uint32_t before = cursor_psn_;
    Sent last = Sent::yes;
    while (last == Sent::yes && is_running_ && cursor_ != posted_) last = send_next(outlet);
    if (cursor_psn_ != before) bursts_.left(cursor_psn_);
    if (timer_ == never) restart_timer(now);
    return last != Sent::outlet_full;
}

Requester::Sent Requester::send_next(Outlet& outlet) noexcept {
    Entry& next = entry(cursor_);
    if (broken_ != Status::success) {
        if (done_ == cursor_) {
            fail_first(broken_);
        } else if (since_asked_ != 0) {
            go_back();  // the one that failed was to ask for an acknowledgement
            return Sent::yes;
        }
        return Sent::not_now;
    }
    if (cursor_ == fresh_) {
        if (!may_begin(next)) return Sent::not_now;
        begin(next);
        if (next.request.operation == Operation::local) {
            run_local();
            return Sent::yes;
        }
    }
    if (under_way() >= window_) return Sent::not_now;
    if (is_short(next) && bursts_.must_wait()) return Sent::not_now;
    switch (next.request.operation) {
        case Operation::read: return send_read(next, outlet);
        case Operation::compare_swap:
        case Operation::fetch_add: return send_atomic(next, outlet);
        default: return send_message(next, outlet);
    }
}

bool Requester::may_begin(const Entry& entry) const noexcept {
    if (is_held_) return false;
    if (entry.request.operation == Operation::local) return done_ == cursor_;
    return !entry.request.fence || reads_done_ == reads_sent_;
}

void Requester::begin(Entry& entry) noexcept {
    const Request& request = entry.request;
    entry.first_psn = cursor_psn_;
    const bool is_atomic = brings_data(request.operation) && request.operation != Operation::read;
    if (request.operation == Operation::local) {
        entry.packets = 0;
    } else if (request.length == 0 || is_atomic) {
        entry.packets = 1;
    } else {
        entry.packets = ((request.length - 1) >> mtu_shift_) + 1;
    }
    ++fresh_;
}

void Requester::run_local() noexcept {
    const Status status = side_.run_local(entry(cursor_).request.slot);
    ++cursor_;
    if (status == Status::success) {
        complete_first();
    } else {
        fail_first(status);
    }
}

void Requester::head(Packet& packet, Kind kind) const noexcept {
    packet.service = Service::rc;
    packet.kind = kind;
    packet.solicited = false;
    packet.asks_acknowledge = false;
    packet.partition_key = attributes_.partition_key;
    packet.destination = attributes_.destination;
    packet.psn = cursor_psn_;
    packet.payload = {};
}

std::uint32_t Requester::size_at(const Entry& entry, std::uint32_t packet) const noexcept {
    return std::min(attributes_.mtu, entry.request.length - (packet << mtu_shift_));
}

Requester::Sent Requester::send_message(const Entry& entry, Outlet& outlet) noexcept {
    const Request& request = entry.request;
    const std::uint32_t number = (cursor_psn_ - entry.first_psn) & psn_mask;
    const bool is_last = number + 1 == entry.packets;
    const std::uint32_t size = size_at(entry, number);
    Packet packet;
    head(packet, kind_of(request.operation, number == 0, is_last));
    packet.solicited = is_last && request.solicited;
    packet.asks_acknowledge = (is_last && !is_followed()) || since_asked_ + 1 >= most_unasked() ||
                              under_way() + 1 >= window_;
    packet.address = request.remote_address;
    packet.remote_key = request.remote_key;
    packet.length = request.length;
    packet.immediate = request.immediate;

    const std::size_t headers = header_bytes(Service::rc, packet.kind);
    std::uint8_t* room = outlet.begin(packet_bytes(headers, size));
    if (room == nullptr) return Sent::outlet_full;
    packet.payload = {room + headers, size};
    std::uint8_t* payload = compose(packet, room);
    if (size != 0) {
        broken_ = side_.gather(request.slot, number << mtu_shift_, {payload, size});
        if (broken_ != Status::success) return Sent::yes;  // which then sees it
    }
    outlet.commit();
    since_asked_ = packet.asks_acknowledge ? 0 : since_asked_ + 1;
    sent(entry, 1);
    return Sent::yes;
}

bool Requester::is_followed() const noexcept {
    const bool is_repeated = cursor_psn_ != sent_psn_;
    if (is_repeated || cursor_ + 1 == posted_ || is_held_) return false;
    const Entry& next = entry(cursor_ + 1);
    const Operation operation = next.request.operation;
    return operation != Operation::local && !brings_data(operation) && !next.request.fence &&
           !(is_short(next) && bursts_.must_wait());
}

std::uint32_t Requester::most_unasked() const noexcept {
    const std::uint32_t part = std::max(window_ / acknowledgements_per_window, 1U);
    return std::min(packets_per_acknowledgement, part);
}

bool Requester::may_read() const noexcept {
    return reads_sent_ - reads_done_ < attributes_.most_reads;
}

Requester::Sent Requester::send_read(const Entry& entry, Outlet& outlet) noexcept {
    const Request& request = entry.request;
    const std::uint32_t number = (cursor_psn_ - entry.first_psn) & psn_mask;
    // Pieces end at the same places whenever they are asked for: the responder answers again only
    // what it has answered.
    const std::uint32_t piece = number / most_read_packets + 1;
    const std::uint32_t end = std::min(entry.packets, piece * most_read_packets);
    const std::uint32_t packets = end - number;
    const bool fits = under_way() == 0 || under_way() + packets <= window_;
    if (!fits || !may_read()) return Sent::not_now;
    const std::uint32_t offset = number << mtu_shift_;
    Packet packet;
    head(packet, Kind::read_request);
    packet.address = request.remote_address + offset;
    packet.remote_key = request.remote_key;
    packet.length = std::min(request.length - offset, packets << mtu_shift_);
    std::uint8_t* room = outlet.begin(header_bytes(Service::rc, packet.kind));
    if (room == nullptr) return Sent::outlet_full;
    compose(packet, room);
    outlet.commit();
    sent(entry, packets);
    read_ends_[reads_sent_++ & read_mask_] = cursor_psn_;
    return Sent::yes;
}

Requester::Sent Requester::send_atomic(const Entry& entry, Outlet& outlet) noexcept {
    if (!may_read()) return Sent::not_now;
    const Request& request = entry.request;
    const bool is_swap = request.operation == Operation::compare_swap;
    Packet packet;
    head(packet, is_swap ? Kind::compare_swap : Kind::fetch_add);
    packet.asks_acknowledge = true;
    packet.address = request.remote_address;
    packet.remote_key = request.remote_key;
    packet.swap_or_add = is_swap ? request.swap : request.compare_or_add;
    packet.compare = is_swap ? request.compare_or_add : 0;
    std::uint8_t* room = outlet.begin(header_bytes(Service::rc, packet.kind));
    if (room == nullptr) return Sent::outlet_full;
    compose(packet, room);
    outlet.commit();
    sent(entry, 1);
    read_ends_[reads_sent_++ & read_mask_] = cursor_psn_;
    return Sent::yes;
}

/// The cursor passes what has left.
void Requester::sent(const Entry& entry, std::uint32_t packets) noexcept {
    ++counts_.packets;
    if (cursor_psn_ != sent_psn_) {
        ++counts_.repeated;
    } else if (measured_ == never) {
        measured_ = now_;
        measured_psn_ = cursor_psn_;
    }
    if (is_short(entry)) bursts_.add();
    cursor_psn_ = psn_after(cursor_psn_, packets);
    if (psn_distance(cursor_psn_, sent_psn_) > 0) sent_psn_ = cursor_psn_;
    if (cursor_psn_ == end_of(entry)) ++cursor_;
}

// What comes.

bool Requester::is_between(std::uint32_t psn) const noexcept {
    return psn_distance(psn, unacknowledged_) >= 0 && psn_distance(psn, sent_psn_) < 0;
}

void Requester::arrived(const Packet& packet, std::int64_t now) noexcept {
    if (!is_running_) return;
    if (!is_between(packet.psn)) {
        // Often an acknowledgement that came again.
        if (psn_distance(packet.psn, unacknowledged_) >= 0) ++counts_.strange;
        return;
    }
    switch (packet.kind) {
        case Kind::acknowledge: acknowledged(packet, now); break;
        case Kind::atomic_acknowledge:
        case Kind::read_response_first:
        case Kind::read_response_middle:
        case Kind::read_response_last:
        case Kind::read_response_only: responded(packet, now); break;
        default: ++counts_.strange;
    }
}

void Requester::acknowledged(const Packet& packet, std::int64_t now) noexcept {
    const std::uint8_t kind = packet.syndrome & syndrome_kind;
    const std::uint8_t value = packet.syndrome & syndrome_value;
    const bool is_positive = kind == syndrome_acknowledge;
    if (!is_positive && kind != syndrome_negative && kind != syndrome_receiver_not_ready) {
        ++counts_.strange;
        return;
    }
    // A refusal says that everything before it was done.
    if (!advance(is_positive ? psn_after(packet.psn, 1) : packet.psn, now)) {
        lacks_response();
    } else if (kind == syndrome_negative) {
        refused(static_cast<Refusal>(value));
    } else if (kind == syndrome_receiver_not_ready) {
        not_ready(value, now);
    }
}

void Requester::refused(Refusal why) noexcept {
    switch (why) {
        case Refusal::sequence:
            ++counts_.gaps;
            repeat();
            break;
        case Refusal::invalid_request: fail_first(Status::remote_invalid_request); break;
        case Refusal::remote_access: fail_first(Status::remote_access); break;
        case Refusal::remote_operation: fail_first(Status::remote_operation); break;
        default: ++counts_.strange;
    }
}

void Requester::not_ready(std::uint8_t timer, std::int64_t now) noexcept {
    if (paused_ != never) return;  // it came again
    ++counts_.not_ready;
    if (rnr_retries_ == 0) return fail_first(Status::rnr_retries_exceeded);
    if (attributes_.rnr_retry != for_ever) --rnr_retries_;
    go_back();
    timer_ = early_ = never;
    paused_ = now + rnr_times[timer];
}

void Requester::responded(const Packet& packet, std::int64_t now) noexcept {
    // A response says, too, that everything before it was done.
    if (!advance(packet.psn, now)) return lacks_response();
    const Entry& first = entry(done_);
    const Request& request = first.request;
    const auto size = static_cast<std::uint32_t>(packet.payload.size());
    Status status = Status::bad_response;
    if (request.operation == Operation::read) {
        const std::uint32_t number = (packet.psn - first.first_psn) & psn_mask;
        if (packet.kind != Kind::atomic_acknowledge && size == size_at(first, number)) {
            status = size == 0 ? Status::success
                               : side_.scatter(request.slot, number << mtu_shift_, packet.payload);
        }
    } else if (brings_data(request.operation) && packet.kind == Kind::atomic_acknowledge) {
        std::array<std::uint8_t, atomic_operand_bytes> original;
        std::copy_n(reinterpret_cast<const std::uint8_t*>(&packet.original), original.size(),
                    original.begin());
        status = side_.scatter(request.slot, 0, original);
    }
    if (status != Status::success) return fail_first(status);
    unacknowledged_ = psn_after(packet.psn, 1);
    if (unacknowledged_ == end_of(first)) complete_first();
    progressed(packet.psn, now);
}

/// Everything before `psn` was done by the responder. False: there is a READ or an atomic before
/// it that has not brought its data; up to there all is acknowledged.
bool Requester::advance(std::uint32_t psn, std::int64_t now) noexcept {
    const std::uint32_t before = unacknowledged_;
    while (unacknowledged_ != psn) {
        const Entry& first = entry(done_);
        if (brings_data(first.request.operation)) break;
        const std::uint32_t end = end_of(first);
        if (psn_distance(psn, end) < 0) {
            unacknowledged_ = psn;
        } else {
            unacknowledged_ = end;
            complete_first();
        }
    }
    const bool is_reached = unacknowledged_ == psn;
    if (unacknowledged_ != before) progressed(before, now);
    return is_reached;
}

/// `before`: the oldest PSN without an acknowledgement until now.
void Requester::progressed(std::uint32_t before, std::int64_t now) noexcept {
    since_wider_ += (unacknowledged_ - before) & psn_mask;
    if (since_wider_ >= window_) {
        since_wider_ = 0;
        if (window_ < attributes_.window) ++window_;
    }
    retries_ = attributes_.retry_count;
    rnr_retries_ = attributes_.rnr_retry;
    is_recovering_ = false;
    bursts_.acknowledged(unacknowledged_);
    measure(now);
    while (reads_done_ != reads_sent_ &&
           psn_distance(read_ends_[reads_done_ & read_mask_], unacknowledged_) <= 0) {
        ++reads_done_;
    }
    // What was to be sent again has been acknowledged meanwhile.
    if (psn_distance(cursor_psn_, unacknowledged_) < 0) go_back();
    restart_timer(now);
}

void Requester::complete_first() noexcept {
    const std::uint32_t slot = entry(done_).request.slot;
    ++done_;
    side_.complete(slot);
}

/// Once for each gap: what still comes of the old requests would ask for it again and again.
void Requester::lacks_response() noexcept {
    if (is_recovering_) return;
    ++counts_.gaps;
    repeat();
    is_recovering_ = true;
}

void Requester::repeat() noexcept {
    if (retries_ == 0) return fail_first(Status::retries_exceeded);
    --retries_;
    narrow();
    go_back();
}

void Requester::repeat_early(std::int64_t now) noexcept {
    ++counts_.early;
    narrow();
    go_back();
    patience_ *= 2;
    early_ = now + patience_;
}

void Requester::narrow() noexcept {
    window_ = std::max(window_ / 2, std::min(least_window, attributes_.window));
}

/// Of packets that were sent once alone: else nobody knows which of them was acknowledged.
void Requester::measure(std::int64_t now) noexcept {
    if (measured_ == never || psn_distance(unacknowledged_, measured_psn_) <= 0) return;
    const std::int64_t taken = now - measured_;
    round_trip_ = round_trip_ == 0 ? taken : round_trip_ + (taken - round_trip_) / 8;
    measured_ = never;
}

void Requester::go_back() noexcept {
    measured_ = never;
    bursts_.clear();
    cursor_ = done_;
    cursor_psn_ = unacknowledged_;
    reads_done_ = reads_sent_;
    since_asked_ = 0;
    broken_ = Status::success;
}

void Requester::restart_timer(std::int64_t now) noexcept {
    const bool runs = is_running_ && paused_ == never && is_awaited() && timeout_ != never;
    timer_ = runs ? now + timeout_ : never;
    patience_ = std::max(4 * round_trip_, least_patience);
    early_ = runs && patience_ < timeout_ ? now + patience_ : never;
}

void Requester::fail_first(Status status) noexcept {
    const std::uint32_t slot = entry(done_).request.slot;
    is_running_ = false;
    timer_ = early_ = paused_ = never;
    ++done_;
    side_.fail(slot, status);
}

}  // namespace millrace::roce
