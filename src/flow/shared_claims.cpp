// How a producer takes places of a shared ring, follows it where it moves, and lays items.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/verbs/work_request.hpp"
#include "shared_producer_state.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;
using ring::PositionWord;

namespace {

/// Compare-and-swaps of one call that others were faster with.
constexpr int most_tries = 4096;

}  // namespace

Status SharedProducerEnd::State::say_attempt(std::uint64_t attempt,
                                             verbs::SendFlags flags) noexcept {
    if (stores()) {
        ring::store_word(attempt_here.get() + offsetof(SharedMemberPage, attempt), attempt);
        return Status::ok;
    }
    const ibv_sge slice{reinterpret_cast<std::uint64_t>(&attempt), sizeof attempt, 0};
    ++counts.requests;
    return end.window().post(verbs::Write{.from = {&slice, 1},
                                          .to = peer_page + offsetof(SharedMemberPage, attempt),
                                          .flags = verbs::SendFlags::inlined | flags});
}

Status SharedProducerEnd::State::swap_tail(std::uint64_t expected, std::uint64_t desired,
                                           std::uint64_t attempt, std::uint64_t& found) noexcept {
    if (stores()) {
        // The attempt is there before the place is taken.
        (void)say_attempt(attempt);
        base::telling_peers();
        found = expected;
        (void)std::atomic_ref<std::uint64_t>{
            *reinterpret_cast<std::uint64_t*>(ring_here.get() + SharedShape::tail_at)}
            .compare_exchange_strong(found, desired, std::memory_order_acq_rel);
        return Status::ok;
    }
    end::SendWindow& window = end.window();
    const ibv_sge said{reinterpret_cast<std::uint64_t>(&attempt), sizeof attempt, 0};
    const ibv_sge answer = page_memory.slice(offsetof(SharedProducerPage, answer), sizeof found);
    verbs::Batch<2> requests;
    Status status = window.free() < 2 ? window.reap() : Status::ok;
    if (status == Status::ok && window.free() < 2) return Status::full;
    if (status == Status::ok) {
        status = window.chain(requests,
                              verbs::Write{.from = {&said, 1},
                                           .to = peer_page + offsetof(SharedMemberPage, attempt),
                                           .flags = verbs::SendFlags::inlined});
    }
    if (status == Status::ok) {
        status = window.chain(requests,
                              verbs::CompareAndSwap{.into = {&answer, 1},
                                                    .at = ring_memory + SharedShape::tail_at,
                                                    .expected = expected,
                                                    .desired = desired},
                              end::Signal::now);
    }
    if (status == Status::ok) status = window.post_chain(requests);
    if (status != Status::ok) return tell_of(end.lost());
    counts.requests += 2;
    // A place may be this end's by now, so it cannot leave before it knows.
    const std::uint64_t ticket = window.posted();
    const auto is_over = [&] {
        return window.reap() != Status::ok || window.done(ticket) || look() != Status::ok;
    };
    if (!is_over()) (void)end.wait(is_over, Deadline::never(), options.wait);
    if (!window.done(ticket)) return tell_of(end.lost());
    found = page().answer.load();
    return Status::ok;
}

void SharedProducerEnd::State::take_consumed(std::uint64_t word) noexcept {
    if (!PositionWord::whole(word)) return;
    const std::int64_t ahead = PositionWord::ahead(word, consumed * PositionWord::unit) /
                               static_cast<std::int64_t>(PositionWord::unit);
    if (ahead > 0) consumed += static_cast<std::uint64_t>(ahead);
}

Status SharedProducerEnd::State::look_for_room(std::uint64_t position) noexcept {
    if (stores()) {
        take_consumed(ring::load_word(ring_here.get() + SharedShape::consumed_at));
        base::heard_from_peers();
    } else {
        if (!consumed_there.pending()) {
            if (const Status status = consumed_there.start(); status != Status::ok) {
                return status == Status::full ? status : tell_of(end.lost());
            }
            ++counts.space_reads;
            ++counts.requests;
        }
        if (end.window().reap() != Status::ok) return tell_of(end.lost());
        if (consumed_there.poll()) take_consumed(consumed_there.value());
    }
    return room_behind(position) == 0 ? Status::full : Status::ok;
}

Status SharedProducerEnd::State::claim(std::uint64_t wanted, std::uint64_t& position,
                                       std::uint64_t& count) noexcept {
    for (int tries = 0; tries != most_tries; ++tries) {
        const std::int64_t ahead = shared_ahead(tail, consumed);
        // Behind what is consumed it was seen long ago: the answer will tell.
        position = consumed + static_cast<std::uint64_t>(std::max<std::int64_t>(ahead, 0));
        if (room_behind(position) == 0) {
            const std::uint64_t known = consumed;
            Status status = look_for_room(position);
            // Nothing is given back any more where the ring has moved away.
            if (status == Status::full && notice_number() > moved) {
                status = follow();
                if (status == Status::ok) continue;
            }
            if (status != Status::ok) return status;
            if (consumed != known) continue;
        }
        count = std::min(wanted, room_behind(position));
        const std::uint64_t desired = shared_word(owner, position + count);
        std::uint64_t found = 0;
        const Status status = swap_tail(tail, desired, shared_word(count, position), found);
        if (status != Status::ok) return status;
        if (found == tail) {
            tail = desired;
            lost_attempt = false;
            ++counts.claims;
            return Status::ok;
        }
        lost_attempt = true;
        ++counts.lost_claims;
        if (found == shared_moved) {
            if (const Status followed = follow(); followed != Status::ok) return followed;
        } else if (shared_ahead(found, consumed) < 0) [[unlikely]] {
            return Status::full;  // somebody has damaged it: the consumer will move the ring
        } else {
            tail = found;
        }
    }
    return Status::full;
}

Status SharedProducerEnd::State::follow() noexcept {
    // Whoever is given up is told before the ring moves, unless it says that it tries for nothing.
    give_up_attempt();
    if (const Status status = look_now(); status != Status::ok) return status;
    const auto load = [](const std::uint64_t& word) {
        return std::atomic_ref<std::uint64_t>{const_cast<std::uint64_t&>(word)}.load(
            std::memory_order_acquire);
    };
    const SharedNotice& there = page().notice;
    const SharedNotice notice{.number = load(there.number),
                              .address = load(there.address),
                              .rkey = load(there.rkey),
                              .first = load(there.first),
                              .check = load(there.check)};
    base::heard_from_peers();
    if (notice.check != notice.right_check() || notice.number <= moved) return Status::full;
    try {
        turn_to({notice.address, static_cast<std::uint32_t>(notice.rkey)}, notice.first);
    } catch (const std::exception& error) {
        return end.fail([&] { return std::string{error.what()}; });
    }
    if (attempt_here != nullptr && ring_here == nullptr) {
        return end.fail([] { return std::string{"the ring moved to where it cannot be stored"}; });
    }
    moved = notice.number;
    ++counts.moves;
    // The former memory is not needed any more, once a READ of it is over: WRITEs pass READs.
    const Status said = say_attempt(shared_word(0, home), verbs::SendFlags::fence);
    return said == Status::ok ? said : tell_of(end.lost());
}

// --- items

Status SharedProducerEnd::State::lay(std::uint64_t position, const std::byte* items,
                                     std::uint64_t count) noexcept {
    if (!stores()) return post(position, items, count);
    std::byte* const slots = ring_here.get() + shape.slots_at();
    std::uint64_t index = position % shape.slots;
    for (std::uint64_t i = 0; i != count; ++i) {
        std::byte* const at = slots + index * shape.slot_bytes;
        std::memcpy(at, items + i * size, size);
        base::telling_peers();
        ring::store_word(at + shape.slot_bytes - ring::mark_bytes,
                         shared_mark(owner, secret, position + i));
        if (++index == shape.slots) index = 0;
    }
    return Status::ok;
}

Status SharedProducerEnd::State::write(const std::byte* from, std::uint64_t at,
                                       std::uint64_t bytes) noexcept {
    const ibv_sge slice = staging.slice(static_cast<std::size_t>(from - staging.data()), bytes);
    ++counts.requests;
    return end.window().post(verbs::Write{.from = {&slice, 1}, .to = ring_memory + at});
}

/// The answer to the claim has said that everything posted before is done: staging is free.
Status SharedProducerEnd::State::post(std::uint64_t position, const std::byte* items,
                                      std::uint64_t count) noexcept {
    const std::uint64_t slot = shape.slot_bytes;
    for (std::uint64_t i = 0; i != count; ++i) {
        std::byte* const at = staging.data() + i * slot;
        std::memcpy(at, items + i * size, size);
        // Without order, the first mark comes after all others.
        const std::uint64_t mark =
            i == 0 && !in_order ? 0 : shared_mark(owner, secret, position + i);
        std::memcpy(at + slot - ring::mark_bytes, &mark, sizeof mark);
    }
    const std::uint64_t index = position % shape.slots;
    const std::uint64_t straight = std::min(count, shape.slots - index);
    Status status = write(staging.data(), shape.slot_at(index), straight * slot);
    if (status == Status::ok && straight != count) {
        status =
            write(staging.data() + straight * slot, shape.slot_at(0), (count - straight) * slot);
    }
    if (status == Status::ok && !in_order) {
        const std::uint64_t mark = shared_mark(owner, secret, position);
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&mark), sizeof mark, 0};
        ++counts.requests;
        status = end.window().post(
            verbs::Write{.from = {&slice, 1},
                         .to = ring_memory + (shape.slot_at(index) + slot - ring::mark_bytes),
                         .flags = verbs::SendFlags::inlined});
    }
    return status == Status::ok ? status : tell_of(end.lost());
}

BatchResult SharedProducerEnd::State::try_enqueue(const std::byte* items,
                                                  std::size_t wanted) noexcept {
    BatchResult result;
    if (end.is_closing()) return {Status::closed, 0};
    if (end.ended() != Status::ok) [[unlikely]]
        return {end.ended(), 0};
    if (const std::uint64_t now = base::ticks(); now - looked >= look_ticks) [[unlikely]] {
        looked = now;
        if (result.status = look(); result.status != Status::ok) return result;
        if (bell.owes()) wake_peer();
    }
    while (result.count != wanted) {
        std::uint64_t position = 0;
        std::uint64_t count = 0;
        result.status =
            claim(std::min<std::uint64_t>(wanted - result.count, batch), position, count);
        if (result.status != Status::ok) break;
        result.status = lay(position, items + result.count * size, count);
        if (result.status != Status::ok) break;
        result.count += count;
        counts.items += count;
        total += count;
        if (bell.publish(total)) [[unlikely]]
            wake_peer();
    }
    if (result.status != Status::ok) give_up_attempt();
    if (result.status == Status::full) result.status = full();
    return result;
}

Status SharedProducerEnd::State::full() noexcept {
    ++counts.full_returns;
    if (!end.has_descriptor()) return Status::full;
    end.end_rest();
    end.rest([] { return false; }, std::chrono::milliseconds{1});
    return Status::full;
}

}  // namespace millrace::flow::detail
