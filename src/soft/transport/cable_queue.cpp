#include "transport/cable_queue.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"
#include "transport/cable_random.hpp"
#include "transport/failure_lines.hpp"
#include "transport/rnr_timer.hpp"
#include "transport/strict_plan.hpp"

namespace millrace::soft {
namespace {

constexpr std::int64_t first_nap = 20'000;
constexpr std::int64_t longest_nap = 1'000'000;

/// What it takes in software, at least, until a request that is due has been found, executed and
/// seen: so much earlier it is due. Never more than a twentieth of the way.
constexpr std::int64_t software_share = 700;

}  // namespace

CableQueue::CableQueue(std::function<void()> serve, std::shared_ptr<Cable> cable,
                       const CableView& view, std::uint32_t entries, std::uint32_t slots,
                       bool reliable)
    : CableEnd{std::move(serve), std::move(cable)},
      view_{view},
      mask_{entries - 1},
      ahead_{entries - slots},
      reliable_{reliable},
      strict_{cable_->mode.kind == ModeKind::strict},
      requests_{std::make_unique<Request[]>(entries)} {
    restart();
}

bool CableQueue::agrees_with(const ModeLine& peer) const noexcept {
    ModeLine own{};
    publish_mode(own, cable_->mode);
    return load_once(peer.kind) == own.kind && load_once(peer.mtu) == own.mtu &&
           load_once(peer.header) == own.header &&
           load_once(peer.packets_in_flight) == own.packets_in_flight &&
           load_once(peer.bits_per_second) == own.bits_per_second &&
           load_once(peer.latency_ns) == own.latency_ns &&
           load_once(peer.jitter_ns) == own.jitter_ns && load_once(peer.delay_ns) == own.delay_ns &&
           load_once(peer.in_order) == own.in_order;
}

void CableQueue::schedule(PendingEntry& entry, std::uint32_t position,
                          std::uint64_t bytes) noexcept {
    // Who posts much is at hand, too; who posts one and waits for it without calls is not.
    if (position % 8 == 7) note_poll(base::ticks());
    Request& posted = request(position);
    posted = Request{};
    posted.bytes = static_cast<std::uint32_t>(bytes);
    posted.slot = entry.slot;
    posted.signaled = (entry.flags & IBV_SEND_SIGNALED) != 0;
    entry.flags &= ~static_cast<std::uint32_t>(IBV_SEND_SIGNALED);
    if (strict_) {
        schedule_strictly(entry, posted);
    } else {
        // Of too long a message nothing leaves: it fails in its turn.
        schedule_on_link(entry, posted, bytes > max_message_bytes ? 0 : bytes);
        const bool local = entry.opcode == IBV_WR_BIND_MW || entry.opcode == IBV_WR_LOCAL_INV;
        posted.carried = !local && (bytes == 0 || (entry.flags & IBV_SEND_INLINE) != 0);
    }
    store_due(entry, posted.arrival);
}

void CableQueue::schedule_strictly(PendingEntry& entry, Request& posted) noexcept {
    const std::int64_t longest = cable_->mode.strict.delay_ns;
    last_arrival_ =
        std::max(last_arrival_, cable_now() + draw_delay(next_random(random_), longest));
    last_completion_ = last_arrival_;
    posted.arrival = last_arrival_;
    posted.completion = last_completion_;
    posted.late = draw_delay(next_random(random_), longest);
    entry.plan = static_cast<std::uint32_t>(next_random(random_)) | plan_is_one;
    // It then stays in the pending ring when its slot is free again.
    if (ahead_ == 0) entry.plan &= ~std::uint32_t{plan_tells_late};
    // What a fenced request carries may be what a READ before it brings.
    if ((entry.flags & IBV_SEND_FENCE) != 0) return;
    const auto checksum = view_.own.checksum_of_source(entry);
    posted.watched = checksum.has_value();
    posted.checksum = checksum.value_or(0);
}

void CableQueue::schedule_on_link(PendingEntry& entry, Request& posted,
                                  std::uint64_t bytes) noexcept {
    const std::int64_t way = cable_->mode.cable.latency_ns;
    // The answer of a READ or an atomic carries the bytes.
    const bool fetches = entry.opcode == IBV_WR_RDMA_READ ||
                         entry.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                         entry.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    const bool local = entry.opcode == IBV_WR_BIND_MW || entry.opcode == IBV_WR_LOCAL_INV;
    const FlightKind kind = fetches     ? FlightKind::fetching
                            : reliable_ ? FlightKind::acknowledged
                                        : FlightKind::unreliable;
    Flight flight;  // what is not sent only waits for what was before
    if (!local) flight = cable_->port.send(cable_now(), bytes, kind, cable_->jitter(random_));
    cable_->count_operation();
    if (faults_ && !local) posted.doom = fate_of(entry, flight, bytes);
    const bool arrives = flight.arrival != cable_never;
    if ((entry.flags & IBV_SEND_FENCE) != 0 && flight.departure < last_fetch_) {
        const std::int64_t later = last_fetch_ - flight.departure;
        if (arrives) flight.arrival += later;
        flight.completion += later;
    }
    // One queue pair's requests arrive, and complete, in order.
    if (arrives) last_arrival_ = std::max(flight.arrival, last_arrival_);
    last_completion_ = std::max(flight.completion, last_completion_);
    if (reliable_ && !local) last_completion_ = std::max(last_completion_, last_arrival_ + way);
    if (fetches) last_fetch_ = last_completion_;
    posted.arrival = arrives ? last_arrival_ - std::min(software_share, way / 20) : cable_never;
    posted.completion = last_completion_;
}

ibv_wc_status CableQueue::fate_of(PendingEntry& entry, Flight& flight,
                                  std::uint64_t bytes) noexcept {
    if (reliable_) return fate_of_reliable(entry, flight);
    const std::uint64_t mtu = std::min<std::uint64_t>(
        cable_->mode.cable.mtu, std::uint64_t{128} << view_.attributes.path_mtu);
    const UnreliableFate fate =
        faults_->unreliable(static_cast<std::uint32_t>((bytes + mtu - 1) / mtu));
    if (fate.lost) {
        entry.flags |= pending_lost;
        entry.swap = fate.packets * mtu;
    }
    return IBV_WC_SUCCESS;
}

ibv_wc_status CableQueue::fate_of_reliable(const PendingEntry& entry, Flight& flight) noexcept {
    RetryLimits limits;
    limits.retries = view_.attributes.retry_cnt;
    limits.rnr_retries = view_.attributes.rnr_retry;
    limits.gives_up = view_.attributes.timeout != 0;
    limits.needs_receive = entry.opcode != IBV_WR_RDMA_WRITE && entry.opcode < IBV_WR_RDMA_READ;
    const ReliableFate fate = faults_->reliable(limits);
    // A loss is found by the timer; without one, by what comes after it.
    const std::int64_t timeout =
        limits.gives_up ? std::int64_t{4096} << view_.attributes.timeout : faults_->delay_ns();
    const std::int64_t not_ready =
        fate.not_ready == 0
            ? 0
            : std::chrono::nanoseconds{rnr_time(view_.peer.control == nullptr
                                                    ? 0
                                                    : view_.peer.control->min_rnr_timer.load(
                                                          std::memory_order_relaxed))}
                  .count();
    const std::int64_t before = fate.lost_requests * timeout + fate.not_ready * not_ready;
    flight.arrival += before;
    flight.completion += before + fate.lost_answers * timeout;
    if (!fate.executed) flight.arrival = cable_never;
    return fate.exhausted;
}

std::uint32_t CableQueue::executed() const noexcept {
    const std::uint32_t head = view_.block.pending->head.load(std::memory_order_acquire);
    // The peer may have written anything there.
    return view_.pending.tail() - head <= mask_ + 1 ? head : view_.pending.tail() - (mask_ + 1);
}

bool CableQueue::may_release(std::uint32_t head) const noexcept {
    if (static_cast<std::int32_t>(completable(head) - released_) > 0) {
        return request(released_).doom == IBV_WC_SUCCESS;
    }
    // Complete when it has left, whether it has arrived or not: if its bytes are no longer the
    // program's, and as far as the pending ring has room for it to stay.
    return !reliable_ && !strict_ && released_ != view_.pending.tail() &&
           request(released_).carried && released_ - head < ahead_;
}

std::uint32_t CableQueue::completable(std::uint32_t head) const noexcept {
    if (!strict_) return head;
    const std::uint32_t step = view_.block.pending->step.load(std::memory_order_acquire);
    return step == step_landed && head != view_.pending.tail() ? head + 1 : head;
}

void CableQueue::release_one() noexcept {
    if (strict_) check_source(released_);
    const Request& done = request(released_);
    if (done.signaled) view_.own.complete_send(done.slot, done.bytes);
    ++released_;
}

void CableQueue::release_executed() noexcept {
    for (const std::uint32_t head = executed(); static_cast<std::int32_t>(head - released_) > 0;) {
        if (request(released_).doom != IBV_WC_SUCCESS) return;
        release_one();
    }
}

ibv_wc_status CableQueue::release(std::int64_t now) noexcept {
    const std::uint32_t head = executed();
    if (stalled_ && static_cast<std::int32_t>(head - stalled_position_) > 0) {
        // It came late, so its acknowledgement does.
        stalled_ = false;
        Request& late = request(stalled_position_);
        late.completion = std::max(late.completion, cable_now() + cable_->mode.cable.latency_ns);
    }
    if (strict_) notice_executed(completable(head));
    while (may_release(head)) {
        released_at_ = std::max(released_at_, request(released_).completion);
        if (released_at_ > now) break;
        release_one();
    }
    return doomed() && request(released_).completion <= now ? request(released_).doom
                                                            : IBV_WC_SUCCESS;
}

bool CableQueue::doomed() const noexcept {
    return released_ != view_.pending.tail() && request(released_).doom != IBV_WC_SUCCESS;
}

void CableQueue::notice_executed(std::uint32_t end) noexcept {
    if (noticed_ == end) return;
    const std::int64_t now = cable_now();
    for (; static_cast<std::int32_t>(end - noticed_) > 0; ++noticed_) {
        Request& executed = request(noticed_);
        executed.completion = std::max(executed.completion, now + executed.late);
    }
}

void CableQueue::check_source(std::uint32_t position) noexcept {
    const Request& done = request(position);
    if (!done.watched) return;
    const auto now = view_.own.checksum_of_source(view_.pending.entry(position));
    if (!now || *now == done.checksum) return;
    tell_changed_buffer(view_.qp.qp_num, view_.slots.at(done.slot), done.bytes);
}

std::uint32_t CableQueue::uncompleted() const noexcept { return view_.pending.tail() - released_; }

bool CableQueue::completed_has_landed() const noexcept {
    return static_cast<std::int32_t>(released_ - executed()) <= 0;
}

void CableQueue::stalled(std::uint32_t position) noexcept {
    if (stalled_ && stalled_position_ == position) return;
    stalled_ = true;
    stalled_position_ = position;
    nap_ = first_nap;
}

void CableQueue::expect() noexcept {
    const std::uint32_t head = executed();
    std::int64_t due = cable_never;
    if (may_release(head) || doomed()) {
        due = std::max(request(released_).completion, released_at_);
    }
    if (static_cast<std::int32_t>(view_.pending.shown() - head) > 0) {
        std::int64_t arrival = strict_ ? view_.block.pending_due(head) : request(head).arrival;
        if (stalled_ && stalled_position_ == head) {
            arrival = cable_now() + nap_;
            nap_ = std::min(2 * nap_, longest_nap);
        }
        due = std::min(due, arrival);
    }
    publish_due(due);
}

void CableQueue::restart() noexcept {
    begin_random();
    released_ = noticed_ = view_.pending.tail();
    last_arrival_ = last_completion_ = last_fetch_ = released_at_ = 0;
    stalled_ = false;
    next_due.store(cable_never, std::memory_order_relaxed);
    peer_due.store(cable_never, std::memory_order_relaxed);
}

bool CableQueue::waits_for(std::int64_t now) const noexcept {
    const std::uint32_t head = view_.block.pending->head.load(std::memory_order_acquire);
    const std::uint32_t tail = view_.block.pending->tail.load(std::memory_order_acquire);
    if (head == tail) return false;
    return view_.block.pending_due(head) <= now;
}

void publish_mode(ModeLine& line, const Mode& mode) noexcept {
    line.kind = static_cast<std::uint32_t>(mode.kind);
    line.mtu = mode.cable.mtu;
    line.header = mode.cable.header;
    line.packets_in_flight = mode.cable.packets_in_flight;
    line.bits_per_second = mode.cable.bits_per_second;
    line.latency_ns = mode.cable.latency_ns;
    line.jitter_ns = mode.cable.jitter_ns;
    line.delay_ns = mode.strict.delay_ns;
    line.in_order = mode.strict.in_order ? 1 : 0;
}

bool is_fast(const ModeLine& line) noexcept {
    return load_once(line.kind) == static_cast<std::uint32_t>(ModeKind::fast);
}

std::string describe(const ModeLine& line) {
    Mode mode;
    mode.kind = static_cast<ModeKind>(load_once(line.kind));
    if (mode.kind == ModeKind::strict) {
        mode.strict.delay_ns = load_once(line.delay_ns);
        mode.strict.in_order = load_once(line.in_order) != 0;
    } else if (mode.kind != ModeKind::fast) {
        mode.cable.mtu = std::max(1U, load_once(line.mtu));
        mode.cable.header = load_once(line.header);
        mode.cable.packets_in_flight = load_once(line.packets_in_flight);
        mode.cable.bits_per_second = load_once(line.bits_per_second);
        // A peer may have written anything there, and these are added up.
        mode.cable.latency_ns = std::clamp<std::int64_t>(load_once(line.latency_ns), 0, longest_ns);
        mode.cable.jitter_ns = std::clamp<std::int64_t>(load_once(line.jitter_ns), 0, longest_ns);
    }
    return describe_agreement(mode);
}

}  // namespace millrace::soft
