#include "connection.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <type_traits>

namespace millrace::cm {
namespace {

constexpr std::uint16_t permissive_lid = 0xffff;

/// As the kernel rounds 4.096 µs * 2^exponent.
constexpr std::chrono::milliseconds duration_of(std::uint8_t exponent) noexcept {
    return std::chrono::milliseconds{std::int64_t{1} << (exponent > 8 ? exponent - 8 : 0)};
}

/// The exponent for the time of both together.
constexpr std::uint8_t together(std::uint8_t one, std::uint8_t other) noexcept {
    const auto [smaller, larger] = std::minmax({one, other});
    return static_cast<std::uint8_t>(std::min(31, larger + (smaller + 1 >= larger ? 1 : 0)));
}

constexpr std::uint8_t at_most_7(std::uint8_t count) noexcept {
    return std::min<std::uint8_t>(count, 7);
}

template <std::size_t Size>
void copy_private(std::span<const std::uint8_t> from, std::array<std::uint8_t, Size>& to) noexcept {
    std::ranges::copy(from.first(std::min(from.size(), Size)), to.begin());
}

void add_private(Event& event, std::span<const std::uint8_t> from) noexcept {
    copy_private(from, event.private_data);
    event.private_size = static_cast<std::uint8_t>(from.size());
}

Step failed(int error) noexcept {
    Step step;
    step.error = error;
    return step;
}

/// What a REJ for reason timeout says of its sender.
std::array<std::uint8_t, 8> bytes_of(std::uint64_t guid) noexcept {
    std::array<std::uint8_t, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::uint8_t>(guid >> (56 - 8 * i));
    }
    return bytes;
}

Event event_of(EventKind kind, int status = 0) noexcept {
    Event event;
    event.kind = kind;
    event.status = status;
    return event;
}

Path from_the_other_end(const Path& path) noexcept {
    Path back = path;
    std::swap(back.local_lid, back.remote_lid);
    std::swap(back.local_gid, back.remote_gid);
    return back;
}

Mad rej_of(std::uint64_t transaction, std::uint32_t local, std::uint32_t remote, Answered answered,
           RejectReason reason) noexcept {
    Rej rej;
    rej.local_comm_id = local;
    rej.remote_comm_id = remote;
    rej.answered = answered;
    rej.reason = reason;
    return {transaction, rej};
}

}  // namespace

// What is said, and to whom.

std::uint64_t Connection::own_transaction() const noexcept { return guid_ << 32 | comm_id_; }

void Connection::say(Step& step, const Mad& mad) const noexcept {
    if (!cut_) step.mad = mad;
}

void Connection::tell(Step& step, const Event& event) const noexcept {
    if (!closed_) step.event = event;
}

void Connection::rest(State next) noexcept {
    state_ = next;
    deadline_.reset();
}

void Connection::ask(Step& step, State next, const Mad& mad, Time now) noexcept {
    state_ = next;
    kept_ = mad;
    noted_ = false;
    retries_left_ = retries_;
    wait_ = patience_;
    deadline_ = now + wait_;
    say(step, mad);
}

void Connection::enter_timewait(Time now) noexcept {
    state_ = State::timewait;
    deadline_ = now + duration_of(facts_.timeout);
}

void Connection::refuse_peer(Step& step, const Mad& refusal, State next, Time now) noexcept {
    kept_ = refusal;
    say(step, refusal);
    if (next == State::timewait) {
        enter_timewait(now);
    } else {
        rest(next);
    }
}

Step Connection::repeat_refusal() const noexcept {
    Step step;
    if (std::holds_alternative<Rej>(kept_.body)) say(step, kept_);
    return step;
}

Mad Connection::rej(RejectReason reason,
                    std::span<const std::uint8_t> private_data) const noexcept {
    Answered answered = Answered::other;
    if (state_ == State::request_received) answered = Answered::req;
    if (state_ == State::response_received) answered = Answered::rep;
    Mad mad = rej_of(transaction_, comm_id_, remote_comm_id_, answered, reason);
    auto& body = std::get<Rej>(mad.body);
    if (reason == RejectReason::timeout) {  // by its GUID, as the peer's comm id may be unknown
        copy_private(bytes_of(guid_), body.information);
        body.information_size = sizeof guid_;
    }
    copy_private(private_data, body.private_data);
    return mad;
}

Mad Connection::mra(Answered answered) const noexcept {
    Mra mra;
    mra.local_comm_id = comm_id_;
    mra.remote_comm_id = remote_comm_id_;
    mra.answered = answered;
    mra.service_timeout = service_timeout;
    return {transaction_, mra};
}

Mad Connection::rtu() const noexcept {
    Rtu rtu;
    rtu.local_comm_id = comm_id_;
    rtu.remote_comm_id = remote_comm_id_;
    return {transaction_, rtu};
}

Mad Connection::dreq() const noexcept {
    Dreq dreq;
    dreq.local_comm_id = comm_id_;
    dreq.remote_comm_id = remote_comm_id_;
    dreq.remote_qpn = facts_.remote_qpn;
    return {own_transaction(), dreq};
}

Mad Connection::drep() const noexcept {
    Drep drep;
    drep.local_comm_id = comm_id_;
    drep.remote_comm_id = remote_comm_id_;
    return {transaction_, drep};
}

// Commands.

Step Connection::connect(const Destination& destination, const Terms& terms, Time now) noexcept {
    const bool is_connected =
        destination.transport == TransportType::rc || destination.transport == TransportType::uc;
    if (state_ != State::idle || !is_connected ||
        terms.private_data.size() > connect_private_bytes) {
        return failed(EINVAL);
    }
    Path path = destination.path;
    path.local_ack_timeout = destination.life_time + 1;
    path.subnet_local = path.hop_limit <= 1;
    if (!path.subnet_local) path.local_lid = path.remote_lid = permissive_lid;

    Req req;
    req.local_comm_id = comm_id_;
    req.service_id = destination.service_id;
    req.local_ca_guid = guid_;
    req.local_qpn = terms.qpn;
    req.responder_resources = terms.responder_resources;
    req.initiator_depth = terms.initiator_depth;
    req.remote_response_timeout = response_timeout;
    req.transport = destination.transport;
    req.end_to_end_flow_control = terms.flow_control;
    req.starting_psn = terms.starting_psn;
    req.local_response_timeout = response_timeout;
    req.retry_count = at_most_7(terms.retry_count);
    req.partition_key = destination.partition_key;
    req.path_mtu = destination.path_mtu;
    req.rnr_retry_count = at_most_7(terms.rnr_retry_count);
    req.max_cm_retries = most_retries;
    req.srq = terms.srq;
    req.primary = path;
    put_address_header(destination.addresses, req.private_data);
    std::ranges::copy(terms.private_data, req.private_data.begin() + address_header_bytes);

    facts_.transport = destination.transport;
    facts_.local_qpn = terms.qpn;
    facts_.receive_psn = terms.starting_psn;
    facts_.path_mtu = destination.path_mtu;
    facts_.responder_resources = terms.responder_resources;
    facts_.initiator_depth = terms.initiator_depth;
    facts_.retry_count = req.retry_count;
    facts_.timeout = path.local_ack_timeout;
    facts_.partition_key = destination.partition_key;
    facts_.path = path;

    transaction_ = own_transaction();
    retries_ = most_retries;
    patience_ = duration_of(response_timeout) + 2 * duration_of(destination.life_time);
    Step step;
    ask(step, State::request_sent, {transaction_, req}, now);
    return step;
}

Step Connection::resolve(std::uint64_t service_id, const AddressHeader& addresses,
                         std::uint16_t partition_key, std::span<const std::uint8_t> private_data,
                         Time now) noexcept {
    if (state_ != State::idle || private_data.size() > resolve_private_bytes) {
        return failed(EINVAL);
    }
    SidrReq req;
    req.request_id = comm_id_;
    req.partition_key = partition_key;
    req.service_id = service_id;
    put_address_header(addresses, req.private_data);
    std::ranges::copy(private_data, req.private_data.begin() + address_header_bytes);

    transaction_ = own_transaction();
    retries_ = most_retries;
    patience_ = duration_of(response_timeout);
    Step step;
    ask(step, State::resolve_sent, {transaction_, req}, now);
    return step;
}

Step Connection::accept(const Terms& terms, Time now) noexcept {
    if (state_ != State::request_received || terms.private_data.size() > rep_private_bytes) {
        return failed(EINVAL);
    }
    Rep rep;
    rep.local_comm_id = comm_id_;
    rep.remote_comm_id = remote_comm_id_;
    rep.local_qpn = terms.qpn;
    rep.starting_psn = terms.starting_psn;
    rep.responder_resources = terms.responder_resources;
    rep.initiator_depth = terms.initiator_depth;
    rep.end_to_end_flow_control = terms.flow_control;
    rep.rnr_retry_count = at_most_7(terms.rnr_retry_count);
    rep.srq = terms.srq;
    rep.local_ca_guid = guid_;
    copy_private(terms.private_data, rep.private_data);

    facts_.local_qpn = terms.qpn;
    facts_.receive_psn = terms.starting_psn;
    facts_.responder_resources = terms.responder_resources;
    facts_.initiator_depth = terms.initiator_depth;
    Step step;
    ask(step, State::response_sent, {transaction_, rep}, now);
    return step;
}

Step Connection::confirm(Time) noexcept {
    if (state_ != State::response_received) return failed(EINVAL);
    Step step;
    rest(State::established);
    say(step, rtu());
    return step;
}

Step Connection::answer(SidrStatus status, std::uint32_t qpn, std::uint32_t q_key,
                        std::span<const std::uint8_t> private_data) noexcept {
    if (state_ != State::resolve_received || private_data.size() > sidr_rep_private_bytes) {
        return failed(EINVAL);
    }
    SidrRep rep;
    rep.request_id = remote_comm_id_;
    rep.status = status;
    rep.service_id = service_id_;
    if (status == SidrStatus::success) {
        rep.qpn = qpn;
        rep.q_key = q_key;
    }
    copy_private(private_data, rep.private_data);
    kept_ = {transaction_, rep};
    Step step;
    rest(State::resolve_answered);
    say(step, kept_);
    return step;
}

Step Connection::reject(RejectReason reason, std::span<const std::uint8_t> private_data,
                        Time now) noexcept {
    if (private_data.size() > rej_private_bytes) return failed(EINVAL);
    Step step;
    switch (state_) {
        case State::request_sent:
        case State::request_received:
        case State::response_received:
            refuse_peer(step, rej(reason, private_data), State::over, now);
            return step;
        case State::response_sent:
            refuse_peer(step, rej(reason, private_data), State::timewait, now);
            return step;
        default: return failed(EINVAL);
    }
}

Step Connection::disconnect(Time now) noexcept {
    Step step;
    switch (state_) {
        case State::idle: return failed(EINVAL);
        case State::established: ask(step, State::disconnect_sent, dreq(), now); break;
        case State::disconnect_received:
            enter_timewait(now);
            say(step, drep());
            break;
        default: break;
    }
    return step;
}

Step Connection::establish(Time) noexcept {
    if (state_ == State::established) return failed(EISCONN);
    if (state_ != State::response_sent) return failed(EINVAL);
    Step step;
    rest(State::established);
    tell(step, event_of(EventKind::established));
    return step;
}

Step Connection::close(Time now) noexcept {
    closed_ = true;
    Step step;
    switch (state_) {
        case State::request_sent: return reject(RejectReason::timeout, {}, now);
        case State::request_received:
        case State::response_sent:
        case State::response_received: return reject(RejectReason::consumer_defined, {}, now);
        case State::established:
        case State::disconnect_received: return disconnect(now);
        case State::disconnect_sent:
        case State::timewait: return step;  // until it is over
        case State::resolve_received:
            step = answer(SidrStatus::rejected, 0, 0, {});
            rest(State::over);
            return step;
        case State::idle:
        case State::resolve_sent:
        case State::resolve_answered:
        case State::over: rest(State::over); return step;
    }
    return step;
}

// What comes.

Step Connection::receive(const Mad& mad, Time now) noexcept {
    if (state_ == State::idle) {
        if (const auto* const req = std::get_if<Req>(&mad.body)) return become_passive(mad, *req);
        if (const auto* const req = std::get_if<SidrReq>(&mad.body)) {
            return become_passive(mad, *req);
        }
    }
    if (!is_for(mad)) return {};
    return std::visit([&](const auto& message) { return take(mad, message, now); }, mad.body);
}

Step Connection::become_passive(const Mad& mad, const Req& req) noexcept {
    Step step;
    if (req.local_comm_id == 0) return step;
    if (req.transport != TransportType::rc && req.transport != TransportType::uc) {
        say(step, refuse(mad, RejectReason::invalid_transport).value());
        return step;
    }
    is_passive_ = true;
    remote_comm_id_ = req.local_comm_id;
    remote_guid_ = req.local_ca_guid;
    service_id_ = req.service_id;
    transaction_ = mad.transaction;
    retries_ = req.max_cm_retries;
    patience_ = duration_of(req.local_response_timeout);
    facts_.transport = req.transport;
    facts_.remote_qpn = req.local_qpn;
    facts_.send_psn = req.starting_psn;
    facts_.path_mtu = req.path_mtu;
    facts_.responder_resources = req.initiator_depth;
    facts_.initiator_depth = req.responder_resources;
    facts_.retry_count = req.retry_count;
    facts_.rnr_retry_count = req.rnr_retry_count;
    facts_.timeout = req.primary.local_ack_timeout;
    facts_.partition_key = req.partition_key;
    facts_.path = from_the_other_end(req.primary);
    rest(State::request_received);

    Event event = event_of(EventKind::connect_request);
    event.qpn = req.local_qpn;
    event.responder_resources = req.initiator_depth;
    event.initiator_depth = req.responder_resources;
    event.flow_control = req.end_to_end_flow_control;
    event.retry_count = req.retry_count;
    event.rnr_retry_count = req.rnr_retry_count;
    event.srq = req.srq;
    add_private(event, std::span{req.private_data}.subspan(address_header_bytes));
    tell(step, event);
    return step;
}

Step Connection::become_passive(const Mad& mad, const SidrReq& req) noexcept {
    Step step;
    if (req.request_id == 0) return step;
    is_passive_ = true;
    remote_comm_id_ = req.request_id;
    service_id_ = req.service_id;
    transaction_ = mad.transaction;
    rest(State::resolve_received);
    Event event = event_of(EventKind::connect_request);
    add_private(event, std::span{req.private_data}.subspan(address_header_bytes));
    tell(step, event);
    return step;
}

Step Connection::take(const Mad&, const Req&, Time) noexcept {
    Step step;
    switch (state_) {
        case State::request_received: say(step, mra(Answered::req)); return step;
        case State::response_sent: say(step, kept_); return step;
        case State::timewait:
        case State::over: return repeat_refusal();
        default: return step;
    }
}

Step Connection::take(const Mad&, const Mra& mra, Time now) noexcept {
    const bool is_due = (state_ == State::request_sent && mra.answered == Answered::req) ||
                        (state_ == State::response_sent && mra.answered == Answered::rep);
    if (is_due && !noted_) {
        noted_ = true;
        wait_ = duration_of(mra.service_timeout) + duration_of(facts_.timeout);
        deadline_ = now + wait_;
    }
    return {};
}

Step Connection::take(const Mad&, const Rej& rej, Time now) noexcept {
    const bool is_stale = rej.reason == RejectReason::stale_connection;
    switch (state_) {
        case State::request_sent:
            if (rej.answered == Answered::rep) return {};
            break;
        case State::request_received:
        case State::response_sent:
        case State::response_received:
        case State::established:
        case State::disconnect_sent:
            if (rej.answered == Answered::req) return {};
            break;
        default: return {};
    }
    const bool had_both = state_ == State::response_received || state_ == State::established ||
                          state_ == State::disconnect_sent;
    if (is_stale || had_both) {
        enter_timewait(now);
    } else {
        rest(State::over);
    }
    Event event = event_of(EventKind::rejected, static_cast<int>(rej.reason));
    add_private(event, rej.private_data);
    Step step;
    tell(step, event);
    return step;
}

Step Connection::take(const Mad&, const Rep& rep, Time) noexcept {
    Step step;
    switch (state_) {
        case State::request_sent: break;
        case State::response_received: say(step, mra(Answered::rep)); return step;
        case State::established:
        case State::disconnect_sent: say(step, rtu()); return step;
        case State::timewait:
        case State::over: return repeat_refusal();
        default: return step;
    }
    remote_comm_id_ = rep.local_comm_id;
    remote_guid_ = rep.local_ca_guid;
    facts_.remote_qpn = rep.local_qpn;
    facts_.send_psn = rep.starting_psn;
    facts_.responder_resources = rep.initiator_depth;
    facts_.initiator_depth = rep.responder_resources;
    facts_.rnr_retry_count = rep.rnr_retry_count;
    facts_.timeout = together(facts_.timeout, rep.target_ack_delay);
    rest(State::response_received);

    Event event = event_of(EventKind::connect_response);
    event.qpn = rep.local_qpn;
    event.responder_resources = rep.initiator_depth;
    event.initiator_depth = rep.responder_resources;
    event.flow_control = rep.end_to_end_flow_control;
    event.rnr_retry_count = rep.rnr_retry_count;
    event.srq = rep.srq;
    add_private(event, rep.private_data);
    tell(step, event);
    return step;
}

Step Connection::take(const Mad&, const Rtu&, Time) noexcept {
    Step step;
    if (state_ != State::response_sent) return step;
    rest(State::established);
    tell(step, event_of(EventKind::established));
    return step;
}

Step Connection::take(const Mad& mad, const Dreq& dreq, Time now) noexcept {
    Step step;
    if (dreq.remote_qpn != facts_.local_qpn) return step;
    switch (state_) {
        case State::response_sent:
        case State::established:
            transaction_ = mad.transaction;
            rest(State::disconnect_received);
            break;
        case State::disconnect_sent:
            transaction_ = mad.transaction;
            say(step, drep());
            enter_timewait(now);
            break;
        case State::timewait:
        case State::over:
            transaction_ = mad.transaction;
            say(step, drep());
            return step;
        default: return step;
    }
    disconnected_ = true;
    tell(step, event_of(EventKind::disconnected));
    return step;
}

Step Connection::take(const Mad&, const Drep&, Time now) noexcept {
    Step step;
    if (state_ != State::disconnect_sent) return step;
    enter_timewait(now);
    disconnected_ = true;
    tell(step, event_of(EventKind::disconnected));
    return step;
}

Step Connection::take(const Mad&, const SidrReq&, Time) noexcept {
    Step step;
    if (state_ == State::resolve_answered) say(step, kept_);
    return step;
}

Step Connection::take(const Mad&, const SidrRep& rep, Time) noexcept {
    Step step;
    if (state_ != State::resolve_sent) return step;
    rest(State::over);
    const bool is_success = rep.status == SidrStatus::success;
    Event event = event_of(is_success ? EventKind::established : EventKind::unreachable,
                           static_cast<int>(rep.status));
    if (is_success) {
        event.qpn = rep.qpn;
        event.q_key = rep.q_key;
    }
    add_private(event, rep.private_data);
    tell(step, event);
    return step;
}

Step Connection::hang_up(Time now) noexcept {
    cut_ = true;
    Step step;
    switch (state_) {
        case State::request_received:
            rest(State::over);
            tell(step, event_of(EventKind::rejected, static_cast<int>(RejectReason::timeout)));
            break;
        case State::request_sent:
        case State::response_sent:
            rest(State::over);
            tell(step,
                 event_of(EventKind::rejected, static_cast<int>(RejectReason::consumer_defined)));
            break;
        case State::response_received:
            enter_timewait(now);
            tell(step,
                 event_of(EventKind::rejected, static_cast<int>(RejectReason::consumer_defined)));
            break;
        case State::established:
            disconnected_ = true;
            rest(State::disconnect_received);
            tell(step, event_of(EventKind::disconnected));
            break;
        case State::disconnect_sent:
            disconnected_ = true;
            enter_timewait(now);
            tell(step, event_of(EventKind::disconnected));
            break;
        case State::resolve_sent:
            rest(State::over);
            tell(step, event_of(EventKind::unreachable, static_cast<int>(SidrStatus::rejected)));
            break;
        default: break;
    }
    return step;
}

Step Connection::expire(Time now) noexcept {
    Step step;
    if (!deadline_ || now < *deadline_) return step;
    if (state_ == State::timewait) {
        rest(State::over);
        if (disconnected_) tell(step, event_of(EventKind::timewait_exit));
        return step;
    }
    if (retries_left_ == 0) return give_up(now);
    --retries_left_;
    deadline_ = now + wait_;
    say(step, kept_);
    return step;
}

Step Connection::give_up(Time now) noexcept {
    Step step;
    switch (state_) {
        case State::request_sent:
            refuse_peer(step, rej(RejectReason::timeout, {}), State::over, now);
            tell(step, event_of(EventKind::unreachable, -ETIMEDOUT));
            break;
        case State::response_sent:
            refuse_peer(step, rej(RejectReason::timeout, {}), State::timewait, now);
            tell(step, event_of(EventKind::unreachable, -ETIMEDOUT));
            break;
        case State::disconnect_sent:
            enter_timewait(now);
            disconnected_ = true;
            tell(step, event_of(EventKind::disconnected, -ETIMEDOUT));
            break;
        case State::resolve_sent:
            rest(State::over);
            tell(step, event_of(EventKind::unreachable, -ETIMEDOUT));
            break;
        default: break;
    }
    return step;
}

// What there is to know.

bool Connection::has_path() const noexcept { return state_ == State::request_sent || has_peer(); }

bool Connection::has_peer() const noexcept {
    return state_ == State::request_received || state_ == State::response_sent ||
           state_ == State::response_received || state_ == State::established;
}

bool Connection::is_for(const Mad& mad) const noexcept {
    const auto is_from_peer = [this](std::uint32_t sender) {
        return remote_comm_id_ != 0 && sender == remote_comm_id_;
    };
    return std::visit(
        [&]<class Message>(const Message& message) {
            if constexpr (std::is_same_v<Message, Req>) {
                return is_passive_ && is_from_peer(message.local_comm_id) &&
                       message.local_ca_guid == remote_guid_;
            } else if constexpr (std::is_same_v<Message, SidrReq>) {
                return is_passive_ && is_from_peer(message.request_id);
            } else if constexpr (std::is_same_v<Message, SidrRep>) {
                return !is_passive_ && message.request_id == comm_id_;
            } else if constexpr (std::is_same_v<Message, Rep>) {
                return !is_passive_ && message.remote_comm_id == comm_id_ &&
                       message.local_comm_id != 0 &&
                       (remote_comm_id_ == 0 || is_from_peer(message.local_comm_id));
            } else if constexpr (std::is_same_v<Message, Rej>) {
                // A peer that gave up before it knew our id says its own, and its GUID.
                if (message.remote_comm_id == 0) {
                    return message.reason == RejectReason::timeout &&
                           is_from_peer(message.local_comm_id) &&
                           std::ranges::equal(
                               std::span{message.information}.first(sizeof remote_guid_),
                               bytes_of(remote_guid_));
                }
                return message.remote_comm_id == comm_id_ &&
                       (message.local_comm_id == 0 || remote_comm_id_ == 0 ||
                        is_from_peer(message.local_comm_id));
            } else if constexpr (std::is_same_v<Message, Mra>) {
                return message.remote_comm_id == comm_id_ &&
                       (remote_comm_id_ == 0 || is_from_peer(message.local_comm_id));
            } else {
                return message.remote_comm_id == comm_id_ && is_from_peer(message.local_comm_id);
            }
        },
        mad.body);
}

bool Connection::is_stale_by(const Mad& mad) const noexcept {
    const bool has_had_peer = has_peer() || state_ == State::disconnect_sent ||
                              state_ == State::disconnect_received || state_ == State::timewait;
    if (!has_had_peer || is_for(mad)) return false;
    const auto is_ours = [this](const auto& message) {
        return message.local_ca_guid == remote_guid_ && message.local_qpn == facts_.remote_qpn;
    };
    if (const auto* const req = std::get_if<Req>(&mad.body)) return is_ours(*req);
    if (const auto* const rep = std::get_if<Rep>(&mad.body)) return is_ours(*rep);
    return false;
}

std::optional<Mad> refuse(const Mad& mad, std::optional<RejectReason> reason) noexcept {
    if (const auto* const req = std::get_if<Req>(&mad.body)) {
        return rej_of(mad.transaction, 0, req->local_comm_id, Answered::req,
                      reason.value_or(RejectReason::invalid_service_id));
    }
    if (const auto* const rep = std::get_if<Rep>(&mad.body); rep != nullptr && reason) {
        return rej_of(mad.transaction, rep->remote_comm_id, rep->local_comm_id, Answered::rep,
                      *reason);
    }
    if (const auto* const dreq = std::get_if<Dreq>(&mad.body)) {
        Drep drep;
        drep.local_comm_id = dreq->remote_comm_id;
        drep.remote_comm_id = dreq->local_comm_id;
        return Mad{mad.transaction, drep};
    }
    if (const auto* const req = std::get_if<SidrReq>(&mad.body)) {
        SidrRep rep;
        rep.request_id = req->request_id;
        rep.status = SidrStatus::unsupported;
        rep.service_id = req->service_id;
        return Mad{mad.transaction, rep};
    }
    return std::nullopt;
}

}  // namespace millrace::cm
