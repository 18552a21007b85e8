// A producer of a shared ring, see the header.
#include "millrace/flow/shared_producer.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/name_hash.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/end/end.hpp"
#include "millrace/end/far_fence.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/verbs/work_request.hpp"
#include "shared_facts.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;
using ring::PositionWord;

namespace {

/// What is laid by one request, where items are posted.
constexpr std::uint64_t most_staged_bytes = 64 * 1024;
/// Compare-and-swaps of one call that others were faster with.
constexpr int most_tries = 4096;

SharedOptions of_domain(const connect::Link& link, SharedOptions chosen) {
    chosen.endpoint = link.shared_endpoint();
    return chosen;
}

}  // namespace

struct SharedProducerEnd::State {
    State(const ItemFacts& item, connect::Link connected, SharedOptions chosen,
          const Deadline& deadline);
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    [[nodiscard]] SharedProducerPage& page() noexcept {
        return *reinterpret_cast<SharedProducerPage*>(page_memory.data());
    }
    void meet(const SharedFacts& peer);
    /// From now on it lays items there.
    void turn_to(verbs::RemoteAddress memory, std::uint64_t first);
    [[nodiscard]] bool stores() const noexcept { return ring_here != nullptr; }

    /// Places for so many items or fewer, of which `count` is told then. `ok`; `full`; how it
    /// ended.
    Status claim(std::uint64_t wanted, std::uint64_t& position, std::uint64_t& count) noexcept;
    /// The tail, which becomes `desired` if it is `expected`.
    Status swap_tail(std::uint64_t expected, std::uint64_t desired, std::uint64_t attempt,
                     std::uint64_t& found) noexcept;
    Status say_attempt(std::uint64_t attempt) noexcept;
    /// Says that it tries for nothing, unless it has said so.
    void give_up_attempt() noexcept {
        if (lost_attempt) (void)say_attempt(shared_word(0, home));
        lost_attempt = false;
    }
    /// `ok`: there is room for one item or more behind `position`.
    Status look_for_room(std::uint64_t position) noexcept;
    void take_consumed(std::uint64_t word) noexcept;
    [[nodiscard]] std::uint64_t room_behind(std::uint64_t position) const noexcept {
        const std::uint64_t used = position - consumed;
        return used >= shape.slots ? 0 : shape.slots - used;
    }
    /// Of the last move that it was told of.
    [[nodiscard]] std::uint64_t notice_number() noexcept {
        return std::atomic_ref<std::uint64_t>{page().notice.number}.load(std::memory_order_acquire);
    }
    /// `ok`: it has followed the ring; `full`: it has not heard yet where that is.
    [[gnu::cold]] Status follow() noexcept;

    Status lay(std::uint64_t position, const std::byte* items, std::uint64_t count) noexcept;
    Status post(std::uint64_t position, const std::byte* items, std::uint64_t count) noexcept;
    Status write(const std::byte* from, std::uint64_t at, std::uint64_t bytes) noexcept;

    BatchResult try_enqueue(const std::byte* items, std::size_t count) noexcept;
    Status full() noexcept;
    Status flush(const Deadline& deadline);
    Status look() noexcept { return tell_of(end.look()); }
    Status look_now() noexcept { return tell_of(end.look_now()); }
    /// Of an end that the consumer has given up, says so.
    Status tell_of(Status status) noexcept {
        return status == Status::ok ? status : how_it_ended();
    }
    [[gnu::cold]] Status how_it_ended() noexcept;
    void wake_peer() noexcept {
        if (bell.ring() == Status::ok) ++counts.events;
    }

    void become_copy() noexcept { (void)end.end(Status::peer_lost); }

    SharedOptions options;  ///< its endpoint outlives what is registered there
    std::uint64_t size;
    std::uint64_t alignment;
    std::uint64_t name;
    SharedShape shape;
    std::uint64_t owner = 0;
    std::uint64_t secret = 0;
    std::chrono::nanoseconds patience{};

    // Declared in the order in which they may go: the queue pair before the memory it reaches.
    verbs::RegisteredBuffer page_memory;
    verbs::RegisteredBuffer staging;  ///< where items are posted
    end::End end;
    end::Bell bell;
    ring::PeerMemory carrier;
    std::shared_ptr<std::byte> ring_here;     ///< by store
    std::shared_ptr<std::byte> attempt_here;  ///< by store
    verbs::RemoteAddress ring_memory{};
    verbs::RemoteAddress peer_page{};
    end::CounterPull consumed_there;  ///< by post
    std::uint64_t batch = 1;          ///< the most of one claim
    bool in_order = false;

    std::uint64_t tail = 0;  ///< as it was seen last
    std::uint64_t consumed = 0;
    std::uint64_t home = 0;     ///< the first position of the memory that it lays items in
    bool lost_attempt = false;  ///< it has said what it does not own
    std::uint64_t moved = 0;    ///< moves that it has followed
    std::uint64_t total = 0;
    std::uint64_t looked = 0;
    const std::uint64_t look_ticks = base::ticks_in(std::chrono::milliseconds{1});
    SharedProducerStats counts;
    base::ForkWatch fork_watch{*this};
};

SharedProducerEnd::State::State(const ItemFacts& item, connect::Link connected,
                                SharedOptions chosen, const Deadline& deadline)
    : options{of_domain(connected, std::move(chosen))},
      size{item.size},
      alignment{item.alignment},
      name{base::name_hash(item.name)},
      page_memory{connected.allocate_packed(
          sizeof(SharedProducerPage), verbs::Access::remote_write | verbs::Access::remote_read)},
      end{std::move(connected)} {
    connect::Link& link = end.link();
    new (page_memory.data()) SharedProducerPage{};
    shape.slot_bytes = ring::slot_bytes_of(size, alignment);
    shape.alignment = alignment;
    const SharedFacts mine{.role = 0,
                           .size = size,
                           .alignment = alignment,
                           .name = name,
                           .page = page_memory.remote().address,
                           .page_rkey = page_memory.remote().rkey,
                           .far_fences = end::can_make_far_fences(link) ? 1U : 0U,
                           .label = options.label};
    const auto theirs = link.exchange(connect::bytes_of(mine), deadline);
    meet(connect::facts_in<SharedFacts>(theirs, shared_attempt, link.peer_name()));
}

void SharedProducerEnd::State::meet(const SharedFacts& peer) {
    connect::Link& link = end.link();
    if (peer.role != 1 || peer.size != size || peer.alignment != alignment || peer.name != name ||
        peer.owner == 0 || peer.owner > most_shared_owners || peer.slots == 0 ||
        peer.slots > ring::RingOptions::max_bytes / shape.slot_bytes) {
        throw base::Error{base::ErrorCode::protocol, shared_attempt, link.peer_name(),
                          "what it says of its ring cannot be",
                          "use the same version of the library at both ends"};
    }
    shape.slots = peer.slots;
    owner = peer.owner;
    secret = peer.secret;
    patience = std::chrono::nanoseconds{static_cast<std::int64_t>(peer.patience)};
    peer_page = {peer.page, peer.page_rkey};
    in_order = link.writes_in_order();
    carrier = ring::PeerMemory::behind(link, options.carrier, {});
    turn_to({peer.ring, peer.ring_rkey}, peer.first);
    if (stores()) attempt_here = carrier.map(peer_page, sizeof(SharedMemberPage));
    batch = std::min(shape.slots, most_shared_claim);
    if (!stores()) {
        batch = std::min(batch, std::max<std::uint64_t>(most_staged_bytes / shape.slot_bytes, 1));
        staging = link.allocate(batch * shape.slot_bytes, verbs::Access::none);
    }
    const bool far_fences = peer.far_fences != 0 && end::can_make_far_fences(link);
    bell = end::Bell{end.window(), page().wake, peer_page, far_fences};
}

void SharedProducerEnd::State::turn_to(verbs::RemoteAddress memory, std::uint64_t first) {
    ring_memory = memory;
    ring_here = carrier.map(memory, shape.bytes());
    home = consumed = first;
    tail = shared_word(0, first);
    if (!stores()) {
        consumed_there = end::CounterPull{
            end.window(), memory + SharedShape::consumed_at,
            page_memory.slice(offsetof(SharedProducerPage, consumed), sizeof(std::uint64_t))};
    }
}

Status SharedProducerEnd::State::how_it_ended() noexcept {
    const std::span<const std::byte> words = end.link().last_words();
    std::array<std::uint64_t, 2> said{};
    if (words.size() != sizeof said) return end.ended();
    std::memcpy(said.data(), words.data(), sizeof said);
    if (said[1] != shared_expelled) return end.ended();
    return end.fail([this] {
        return fmt::format(
            "the consumer has given this end up: it had taken a place of the ring and left it "
            "empty for {:.1f} s, while all others waited",
            std::chrono::duration<double>{patience}.count());
    });
}

// --- places

Status SharedProducerEnd::State::say_attempt(std::uint64_t attempt) noexcept {
    if (stores()) {
        ring::store_word(attempt_here.get() + offsetof(SharedMemberPage, attempt), attempt);
        return Status::ok;
    }
    const ibv_sge slice{reinterpret_cast<std::uint64_t>(&attempt), sizeof attempt, 0};
    ++counts.requests;
    return end.window().post(verbs::Write{.from = {&slice, 1},
                                          .to = peer_page + offsetof(SharedMemberPage, attempt),
                                          .flags = verbs::SendFlags::inlined});
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
    // The former memory is not needed any more.
    const Status said = say_attempt(shared_word(0, home));
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
        // Without order, the first mark comes behind all others.
        const std::uint64_t mark =
            i == 0 && !in_order ? 0 : shared_mark(owner, secret, position + i);
        std::memcpy(at + slot - ring::mark_bytes, &mark, sizeof mark);
    }
    const std::uint64_t index = position % shape.slots;
    const std::uint64_t straight = std::min(count, shape.slots - index);
    // Where it wraps, what the consumer comes to first goes last.
    Status status = Status::ok;
    if (straight != count) {
        status =
            write(staging.data() + straight * slot, shape.slot_at(0), (count - straight) * slot);
    }
    if (status == Status::ok) {
        status = write(staging.data(), shape.slot_at(index), straight * slot);
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

Status SharedProducerEnd::State::flush(const Deadline& deadline) {
    if (stores() || end.window().posted() == 0) return look_now();
    const Status waited = end.wait(
        [this] {
            end::SendWindow& window = end.window();
            if (window.reap() != Status::ok || look() != Status::ok) return true;
            if (!window.done(window.posted()) && !window.last_is_signaled()) {
                (void)window.post(verbs::Write{.from = {}, .to = ring_memory}, end::Signal::now);
                ++counts.requests;
            }
            return window.done(window.posted());
        },
        deadline, options.wait);
    if (waited != Status::ok) return waited;
    if (end.window().broken()) return tell_of(end.lost());
    return look_now();
}

// ---- the calls

SharedProducerEnd::SharedProducerEnd(std::unique_ptr<State> state) noexcept
    : state_{std::move(state)} {}
SharedProducerEnd::SharedProducerEnd(SharedProducerEnd&&) noexcept = default;
SharedProducerEnd& SharedProducerEnd::operator=(SharedProducerEnd&&) noexcept = default;
SharedProducerEnd::~SharedProducerEnd() = default;

SharedProducerEnd SharedProducerEnd::connect(const ItemFacts& item, const connect::Address& address,
                                             SharedOptions options, const Deadline& deadline) {
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    connect::Link link = connect::connect(address, shared_link_options(options), deadline);
    return SharedProducerEnd{
        std::make_unique<State>(item, std::move(link), std::move(options), deadline)};
}

BatchResult SharedProducerEnd::try_enqueue(const std::byte* items, std::size_t count) noexcept {
    return state_->try_enqueue(items, count);
}

Status SharedProducerEnd::enqueue(const std::byte* item, const Deadline& deadline) {
    State& state = *state_;
    Status status = state.try_enqueue(item, 1).status;
    if (status != Status::full) [[likely]]
        return status;
    base::NapParker nap;
    const Status waited = base::wait_until(
        [&] {
            status = state.try_enqueue(item, 1).status;
            return status != Status::full;
        },
        deadline, state.options.wait, nap);
    return waited == Status::ok ? status : waited;
}

Status SharedProducerEnd::flush(const Deadline& deadline) {
    State& state = *state_;
    return state.end.is_closed() ? Status::closed : state.flush(deadline);
}

Status SharedProducerEnd::close(const Deadline& deadline) {
    State& state = *state_;
    return state.end.close(
        [&] {
            const Status status = state.flush(deadline);
            if (status == Status::ok && state.bell.owes()) state.wake_peer();
            return status;
        },
        [&] { return state.end.peer_position() == state.total; }, [&] { return state.total; },
        deadline, state.options.wait);
}

Status SharedProducerEnd::look_around() noexcept {
    State& state = *state_;
    if (state.end.is_closed()) return Status::closed;
    const Status status = state.look_now();
    if (status == Status::ok && state.bell.owes()) state.wake_peer();
    return status;
}

int SharedProducerEnd::descriptor() { return state_->end.descriptor(state_->options.wait.spin); }
const std::string& SharedProducerEnd::peer() const noexcept {
    return state_->end.link().peer_name();
}
std::uint64_t SharedProducerEnd::capacity() const noexcept { return state_->shape.slots; }

SharedProducerStats SharedProducerEnd::stats() const noexcept {
    SharedProducerStats stats = state_->counts;
    stats.payload_bytes = stats.items * state_->size;
    return stats;
}

std::string SharedProducerEnd::failure() const { return state_->end.failure(); }

std::string SharedProducerEnd::explain() const {
    const State& state = *state_;
    return fmt::format(
        "producer of a shared ring\n"
        "ring: {} items that all producers share, {} a slot\n"
        "per call: {}, for up to {} items\n"
        "space: {}\n"
        "carrier: {}, because {}\n{}",
        state.shape.slots, state.shape.slot_bytes,
        state.stores() ? "no request: a compare-and-swap takes the places, and stores fill them"
                       : "1 WRITE of 8 bytes and 1 compare-and-swap take the places, a round trip; "
                         "1 WRITE fills them (2 where they wrap)",
        state.batch,
        state.stores() ? "the producer loads 8 bytes when it knows of no room"
                       : "the producer READs 8 bytes when it knows of no room",
        state.stores() ? "store" : "post", state.carrier.reason(), state.end.link().explain());
}

}  // namespace millrace::flow::detail
