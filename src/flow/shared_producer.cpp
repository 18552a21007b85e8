// A producer of a shared ring, see the header.
#include "millrace/flow/shared_producer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/detail/name_hash.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/end/far_fence.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/verbs/work_request.hpp"
#include "shared_facts.hpp"
#include "shared_producer_state.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;

namespace {

SharedOptions of_domain(const connect::Link& link, SharedOptions chosen) {
    chosen.endpoint = link.shared_endpoint();
    return chosen;
}

}  // namespace

SharedProducerEnd::State::State(const ItemFacts& item, connect::Link connected,
                                SharedOptions chosen)
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
    link.say(connect::bytes_of(mine));
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

// ---- connecting

SharedConnector::SharedConnector(const ItemFacts& item, const connect::Address& address,
                                 SharedOptions options)
    : item_{item},
      options_{with_endpoint(std::move(options))},
      connector_{address, shared_link_options(options_)} {}
SharedConnector::SharedConnector(SharedConnector&&) noexcept = default;
SharedConnector& SharedConnector::operator=(SharedConnector&&) noexcept = default;
SharedConnector::~SharedConnector() = default;

void SharedConnector::begin(connect::Link link) {
    state_ = std::make_unique<SharedProducerEnd::State>(item_, std::move(link), options_);
}

SharedProducerEnd SharedConnector::finish(std::span<const std::byte> theirs) {
    state_->meet(
        connect::facts_in<SharedFacts>(theirs, shared_attempt, state_->end.link().peer_name()));
    return SharedProducerEnd{std::move(state_)};
}

std::optional<SharedProducerEnd> SharedConnector::try_connect() {
    if (state_ == nullptr) {
        std::optional<connect::Link> link = connector_.try_connect();
        if (!link.has_value()) return std::nullopt;
        begin(std::move(*link));
    }
    const auto theirs = state_->end.link().heard();
    if (!theirs.has_value()) return std::nullopt;
    return finish(*theirs);
}

SharedProducerEnd SharedConnector::wait(const Deadline& deadline) {
    if (state_ == nullptr) begin(connector_.wait(deadline));
    return finish(state_->end.link().hear(deadline));
}

// ---- the calls

SharedProducerEnd::SharedProducerEnd(std::unique_ptr<State> state) noexcept
    : state_{std::move(state)} {}
SharedProducerEnd::SharedProducerEnd(SharedProducerEnd&&) noexcept = default;
SharedProducerEnd& SharedProducerEnd::operator=(SharedProducerEnd&&) noexcept = default;
SharedProducerEnd::~SharedProducerEnd() = default;

SharedProducerEnd SharedProducerEnd::connect(const ItemFacts& item, const connect::Address& address,
                                             SharedOptions options, const Deadline& deadline) {
    return SharedConnector{item, address, std::move(options)}.wait(deadline);
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
