// The ring that producers share, see the header.
#include "millrace/flow/shared_ring.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/log.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/terms.hpp"
#include "shared_facts.hpp"
#include "shared_member.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;
using ring::PositionWord;

namespace {

/// An empty place that has an owner is filled within that, as a rule.
constexpr std::chrono::microseconds usual_fill{100};
constexpr std::uint64_t most_bytes = ring::RingOptions::max_bytes;

SharedShape shape_of(const SharedRing::Plan& plan) {
    SharedShape shape;
    shape.slot_bytes = ring::slot_bytes_of(plan.item.size, plan.item.alignment);
    shape.alignment = plan.item.alignment;
    shape.slots = plan.capacity.value_or(
        std::max<std::uint64_t>(ring::RingOptions::default_bytes / shape.slot_bytes, 1));
    const auto refuse = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, shared_attempt, std::move(what),
                          std::move(why), std::move(remedy)};
    };
    if (shape.slots == 0 || shape.slots > most_bytes / shape.slot_bytes) {
        refuse(fmt::format("a capacity of {} items", shape.slots),
               fmt::format("it is from 1 to {}, of a GiB", most_bytes / shape.slot_bytes),
               "leave the default, or choose a number in that range");
    }
    if (plan.max_producers > most_shared_owners) {
        refuse(fmt::format("a budget of {} producers", plan.max_producers),
               fmt::format("at most {} can share a ring", most_shared_owners),
               "use the default of 1024, or several rings");
    }
    if (plan.patience <= std::chrono::nanoseconds::zero()) {
        refuse("a patience of no time", "then every producer would be given up",
               "use the default of 2 s");
    }
    if (plan.options.admission.own_domains) {
        refuse("a domain for each producer", "all of them write into one ring",
               "leave Admission::own_domains, or use a FanIn, whose producers have a ring each");
    }
    return shape;
}

}  // namespace

SharedOptions with_endpoint(SharedOptions options) {
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    return options;
}

connect::LinkOptions shared_link_options(const SharedOptions& options) {
    if (options.endpoint->context().attributes().atomic_cap == IBV_ATOMIC_NONE) {
        throw base::Error{base::ErrorCode::unsupported, shared_attempt,
                          options.endpoint->describe(), "the device has no atomics",
                          "use a FanIn, which needs none"};
    }
    return {.service = "shared ring",
            .endpoint = options.endpoint,
            .max_send_requests = 8,
            .max_receive_requests = 4,
            .max_send_slices = 1,
            .max_inline = 64,
            .remote = verbs::Access::remote_write | verbs::Access::remote_read |
                      verbs::Access::remote_atomic,
            .admission = options.admission};
}

SharedRing::SharedRing(Plan plan)
    : shape_{shape_of(plan)},
      seats_(plan.max_producers + std::size_t{1}),
      plan_{std::move(plan)},
      look_ticks_{base::ticks_in(std::chrono::microseconds{5})},
      resolve_ticks_{base::ticks_in(usual_fill)},
      patience_ticks_{base::ticks_in(plan_.patience)} {
    plan_.options = with_endpoint(std::move(plan_.options));
    expelled_.reserve(seats_.size());
    gone_.reserve(seats_.size());
    step_ = std::max<std::uint64_t>(shape_.slots / 8, 1);
    begin(make_body(0));
}

SharedRing::~SharedRing() = default;

std::unique_ptr<SharedRing::Body> SharedRing::make_body(std::uint64_t first) {
    auto body = std::make_unique<Body>();
    body->memory = plan_.options.endpoint->protection_domain().allocate(
        shape_.bytes(),
        verbs::Access::remote_write | verbs::Access::remote_read | verbs::Access::remote_atomic);
    body->first = first;
    body->tail().store(shared_word(0, first), std::memory_order_relaxed);
    body->consumed().store(PositionWord::pack(first * PositionWord::unit));
    return body;
}

void SharedRing::begin(std::unique_ptr<Body> body) noexcept {
    body_ = std::move(body);
    front_ = returned_ = body_->first;
    stand_back_.begin(front_ * shape_.slot_bytes);
    slots_ = body_->memory.data() + shape_.slots_at();
    slots_end_ = slots_ + shape_.slots * shape_.slot_bytes;
    slot_ = slots_ + front_ % shape_.slots * shape_.slot_bytes;
    stuck_.is_waiting = false;
}

void SharedRing::return_credit() noexcept {
    if (returned_ == front_ || is_moving()) return;
    returned_ = front_;
    base::telling_peers();
    body_->consumed().store(PositionWord::pack(front_ * PositionWord::unit));
}

void SharedRing::stand_back(const Deadline& deadline) noexcept {
    using ring::detail::StandBack;
    if (plan_.options.wait.spin < StandBack::longest) return;
    const std::uint64_t slot = shape_.slot_bytes;
    const std::uint64_t ahead = stand_back_.drained(front_ * slot, slot, shape_.slots * slot);
    if (ahead == 0) return;
    std::byte* place = slot_ + ahead * slot;
    if (place >= slots_end_) place -= shape_.slots * slot;
    const std::byte* const mark = place + slot - ring::mark_bytes;
    const std::uint64_t before = ring::load_word(mark);
    StandBack::wait(ahead, deadline, [&] { return ring::load_word(mark) != before; });
}

std::uint64_t SharedRing::last_claim() const noexcept {
    const Body& target = this->target();
    const std::uint64_t from = is_moving() ? target.first : front_;
    const std::int64_t ahead = shared_ahead(target.tail().load(std::memory_order_acquire), from);
    return from + static_cast<std::uint64_t>(
                      std::clamp<std::int64_t>(ahead, 0, static_cast<std::int64_t>(shape_.slots)));
}

bool SharedRing::is_stuck() noexcept {
    const std::uint64_t now = base::ticks();
    if (now - stuck_.looked < look_ticks_) return false;
    stuck_.looked = now;
    if (!former_.empty() && !is_moving() && now - stuck_.resolved >= resolve_ticks_) [[unlikely]]
        drop_former();
    if (!is_moving() && !must_move_) {
        const std::int64_t ahead =
            shared_ahead(body_->tail().load(std::memory_order_acquire), front_);
        if (ahead == 0) {
            stuck_.is_waiting = false;
            return false;
        }
        if (ahead < 0 || ahead > static_cast<std::int64_t>(shape_.slots)) [[unlikely]] {
            base::log(base::LogLevel::warn, "flow",
                      "the tail of a shared ring says what cannot be: a producer wrote there, or "
                      "its memory is damaged; the ring moves");
            must_move_ = true;
        }
    }
    if (!stuck_.is_waiting || stuck_.at != front_) {
        stuck_.is_waiting = true;
        stuck_.at = front_;
        stuck_.since = now;
    }
    if (!is_moving() && !must_move_ && now - stuck_.since < resolve_ticks_) return false;
    if (now - stuck_.resolved < resolve_ticks_) return false;
    stuck_.resolved = now;
    return true;
}

bool SharedRing::is_fenced(SharedMember::State& member) noexcept {
    verbs::QueuePair& queue_pair = member.end.link().queue_pair();
    queue_pair.fail();
    return queue_pair.state() == IBV_QPS_ERR;
}

bool SharedRing::holds_up(const Seat& seat, std::uint64_t now) const noexcept {
    const std::uint64_t stuck = now - stuck_.since;
    return stuck >= 2 * patience_ticks_ ||
           (stuck >= patience_ticks_ && now - seat.tries_since >= patience_ticks_ / 2);
}

std::uint64_t SharedRing::first_of_the_living(std::uint64_t limit) noexcept {
    const std::uint64_t now = base::ticks();
    expelled_.clear();
    gone_.clear();
    const std::lock_guard lock{mutex_};
    for (Seat& seat : seats_) {
        if (seat.member == nullptr) continue;
        const std::uint64_t attempt = seat.member->attempt();
        if (attempt != seat.tries) {
            seat.tries = attempt;
            seat.tries_since = now;
        }
        const auto count = static_cast<std::int64_t>(upper_of(attempt));
        const std::int64_t begins = shared_ahead(attempt, front_);
        if (count == 0 || begins + count <= 0 ||
            begins >= static_cast<std::int64_t>(limit - front_)) {
            continue;
        }
        void* const source = seat.source.load(std::memory_order_acquire);
        // Who was not taken in yet is another thread's.
        if (source != nullptr) {
            if (seat.member->end.look_now() != Status::ok) {
                if (!is_fenced(*seat.member)) must_move_ = true;
                gone_.push_back(&seat);
                continue;
            }
            if (begins <= 0 && holds_up(seat, now)) {
                expelled_.push_back(source);
                continue;
            }
        }
        limit = front_ + static_cast<std::uint64_t>(std::max<std::int64_t>(begins, 0));
    }
    return limit;
}

void SharedRing::forget_rest_of_claim() noexcept {
    for (Seat* const seat : gone_) {
        const std::uint64_t attempt = seat->member->attempt();
        if (shared_ahead(attempt, front_) <= 0 &&
            shared_ahead(attempt, front_) + static_cast<std::int64_t>(upper_of(attempt)) > 0) {
            seat->is_taken.store(false, std::memory_order_relaxed);
        }
    }
}

bool SharedRing::resolve(Tell tell, void* context) noexcept {
    if (must_move_ && !is_moving() && !move()) return false;
    if (is_moving() && body_->tail().load(std::memory_order_acquire) != shared_moved) {
        // An atomic that was on its way when the ring moved has come after that.
        body_->tail().store(shared_moved, std::memory_order_release);
        return false;
    }
    std::uint64_t end = first_of_the_living(is_moving() ? drain_end_ : last_claim());
    base::heard_from_peers();
    if (!expelled_.empty()) {
        // Who is given up while the ring moves may have followed it by now: then it moves once
        // more.
        must_move_ = true;
        for (void* const source : expelled_) {
            for (Seat& seat : seats_) {
                if (seat.source.load(std::memory_order_relaxed) == source) seat.member->give_up();
            }
            tell(context, source);
        }
    }
    if (must_move_ && !is_moving()) return move();
    if (is_moving() && body_->tail().load(std::memory_order_acquire) != shared_moved) return false;
    bool passed = false;
    // What a producer has laid it has laid before it said anything else.
    while (front_ < end && !has_front()) {
        forget_rest_of_claim();
        pass();
        if (!is_moving()) ++counts_.tombstones;
        passed = true;
    }
    if (passed) stuck_.resolved = 0;
    if (is_moving() && front_ == drain_end_) {
        finish_move();
        return true;
    }
    return passed;
}

bool SharedRing::move() noexcept {
    std::unique_ptr<Body> next;
    // No position of the former memory is one of the new.
    const std::uint64_t first = front_ + 4 * shape_.slots + most_shared_claim;
    try {
        former_.reserve(former_.size() + 1);
        next = make_body(first);
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "flow", "a shared ring cannot move: {}", error.what());
        stuck_.since = base::ticks();
        return false;
    }
    const std::lock_guard lock{mutex_};
    ++counts_.moves;
    SharedNotice notice{.number = counts_.moves,
                        .address = next->memory.remote().address,
                        .rkey = next->memory.remote().rkey,
                        .first = first};
    notice.check = notice.right_check();
    for (Seat& seat : seats_) {
        if (seat.member == nullptr) continue;
        seat.member->notice = notice;
        // Who was not taken in yet is told then.
        if (seat.source.load(std::memory_order_relaxed) != nullptr) seat.member->offer_notice();
    }
    drain_end_ = returned_ + shape_.slots;
    body_->tail().store(shared_moved, std::memory_order_release);
    next_ = std::move(next);
    must_move_ = false;
    return true;
}

void SharedRing::finish_move() noexcept {
    const std::lock_guard lock{mutex_};
    former_.push_back(std::move(body_));
    begin(std::move(next_));
}

void SharedRing::drop_former() noexcept {
    const std::lock_guard lock{mutex_};
    for (const Seat& seat : seats_) {
        if (seat.member != nullptr && shared_ahead(seat.member->attempt(), body_->first) < 0)
            return;
    }
    former_.clear();
}

std::string SharedRing::explain() const {
    return fmt::format(
        "ring: {} items that all producers share, {} bytes, {} a slot\n"
        "per item: a producer takes its place by one compare-and-swap, alone or with others of a "
        "batch, and lays it there\n"
        "an empty place is waited for {:.1f} s, if its producer lives; {} places passed over, the "
        "ring moved {} times\n",
        shape_.slots, shape_.bytes(), shape_.slot_bytes,
        std::chrono::duration<double>{plan_.patience}.count(), counts_.tombstones, counts_.moves);
}

}  // namespace millrace::flow::detail
