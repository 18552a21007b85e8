#include "shared_member.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/detail/name_hash.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/end/far_fence.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;

SharedMember::State::State(connect::Link connected, std::shared_ptr<SharedRing> its_ring)
    : ring{std::move(its_ring)},
      page_memory{connected.allocate_packed(
          sizeof(SharedMemberPage), verbs::Access::remote_write | verbs::Access::remote_read)},
      end{std::move(connected)} {
    connect::Link& link = end.link();
    new (page_memory.data()) SharedMemberPage{};
    // Whoever is accepted has spoken.
    const auto theirs = connect::facts_in<SharedFacts>(
        link.hear(Deadline::after(connect::setup_patience)), shared_attempt, link.peer_name());
    const ItemFacts& item = ring->plan().item;
    if (theirs.role != 0) {
        link.refuse(shared_attempt, "both ends take items",
                    "connect a SharedProducer to a SharedFanIn");
    }
    if (theirs.size != item.size || theirs.alignment != item.alignment ||
        theirs.name != base::name_hash(item.name)) {
        link.refuse(
            shared_attempt,
            fmt::format("the consumer has items '{}' of {} bytes aligned to {}, the "
                        "producer others, of {} bytes aligned to {}",
                        item.name, item.size, item.alignment, theirs.size, theirs.alignment),
            "use the same type at both ends; if it is the same and only its name differs, "
            "give it one (flow::ItemName)");
    }
    label = static_cast<std::uint32_t>(theirs.label);
    peer_page = {theirs.page, theirs.page_rkey};
    const bool far_fences = theirs.far_fences != 0 && end::can_make_far_fences(link);
    sleeper.emplace(*this);
    sleeper->connect_to(peer_page, far_fences);
    end.sleep_by(*sleeper);

    const std::uint64_t secret = base::random_bits();
    const std::lock_guard lock{ring->mutex_};
    auto& seats = ring->seats_;
    const auto free = std::find_if(seats.begin() + 1, seats.end(),
                                   [](const auto& one) { return one.member == nullptr; });
    if (free == seats.end()) {
        link.refuse(shared_attempt,
                    fmt::format("{} producers have been let in, and there may be no more",
                                seats.size() - 1),
                    "raise SharedFanInOptions::max_producers, or wait until one has left");
    }
    const SharedRing::Body& target = ring->target();
    const SharedFacts mine{.role = 1,
                           .size = item.size,
                           .alignment = item.alignment,
                           .name = base::name_hash(item.name),
                           .page = page_memory.remote().address,
                           .page_rkey = page_memory.remote().rkey,
                           .far_fences = end::can_make_far_fences(link) ? 1U : 0U,
                           .ring = target.memory.remote().address,
                           .ring_rkey = target.memory.remote().rkey,
                           .owner = static_cast<std::uint32_t>(free - seats.begin()),
                           .slots = ring->shape().slots,
                           .first = target.first,
                           .secret = secret,
                           .patience = static_cast<std::uint64_t>(ring->plan().patience.count())};
    page().attempt.store(shared_word(0, target.first));
    link.say(connect::bytes_of(mine));
    seat = &*free;
    seat->secret = secret;
    seat->taken = 0;
    seat->member = this;
    seat->is_taken.store(true, std::memory_order_release);
}

SharedMember::State::~State() {
    if (seat == nullptr) return;
    const std::lock_guard lock{ring->mutex_};
    seat->is_taken.store(false, std::memory_order_relaxed);
    seat->source.store(nullptr, std::memory_order_relaxed);
    seat->member = nullptr;
}

void SharedMember::State::offer_notice() noexcept {
    const ibv_sge slice{
        reinterpret_cast<std::uint64_t>(&*notice),
        static_cast<std::uint32_t>(offsetof(SharedNotice, check) + sizeof notice->check), 0};
    const Status status =
        end.window().post(verbs::Write{.from = {&slice, 1},
                                       .to = peer_page + offsetof(SharedProducerPage, notice),
                                       .flags = verbs::SendFlags::inlined});
    if (status != Status::full) notice.reset();
}

Status SharedMember::State::look_around() noexcept {
    if (notice.has_value()) [[unlikely]]
        offer_notice();
    if (end.look() == Status::ok) return Status::empty;
    // What it has laid lies before what had an owner when it was gone.
    if (!leaves_at.has_value()) leaves_at = ring->last_claim();
    if (ring->front_ < *leaves_at) return Status::empty;
    if (end.ended() == Status::closed && end.peer_position() != seat->taken) {
        return end.fail([] { return std::string{"it left, and items of it are missing"}; });
    }
    return end.ended();
}

SharedMember::SharedMember(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
SharedMember::SharedMember(SharedMember&&) noexcept = default;
SharedMember& SharedMember::operator=(SharedMember&&) noexcept = default;
SharedMember::~SharedMember() = default;

std::optional<SharedMember> SharedMember::try_accept(Listener& listener,
                                                     const std::shared_ptr<SharedRing>& ring) {
    return connect::try_accept_set_up(listener.links(), [&](connect::Link link) {
        return SharedMember{std::make_unique<State>(std::move(link), ring)};
    });
}

Status SharedMember::look_around() noexcept { return state_->look_around(); }

Status SharedMember::peek(Seen& item) noexcept {
    State& state = *state_;
    if (const Status status = state.look_around(); status != Status::empty) return status;
    if (state.is_leaving() || state.ring->has_front()) {
        item = state.ring->front();
        return Status::ok;
    }
    if (!state.end.has_descriptor()) return Status::empty;
    state.end.end_rest();
    const auto finds = [&state] {
        return state.ring->has_front() || state.look_around() != Status::empty;
    };
    if (finds()) {
        state.end.wake();
    } else if (!state.end.stays_awake(state.seat->taken)) {
        state.end.rest(finds);
    }
    return Status::empty;
}

int SharedMember::descriptor() { return state_->end.descriptor(std::chrono::nanoseconds{0}); }

void SharedMember::close() noexcept {
    State& state = *state_;
    state.end.say_goodbye(state.seat->taken);
    // It may be writing.
    const std::lock_guard lock{state.ring->mutex_};
    state.ring->must_move_ = true;
}

const std::string& SharedMember::peer() const noexcept { return state_->end.link().peer_name(); }
std::uint32_t SharedMember::peer_label() const noexcept { return state_->label; }
std::string SharedMember::explain() const { return state_->end.link().explain(); }
void SharedMember::bind(void* source) noexcept {
    state_->seat->source.store(source, std::memory_order_release);
}

}  // namespace millrace::flow::detail
