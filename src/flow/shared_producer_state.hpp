// A producer of a shared ring. Used by shared_producer.cpp, which sets it up and ends it, and by
// shared_claims.cpp, which takes places and lays items.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/status.hpp"
#include "millrace/end/end.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/flow/shared_producer.hpp"
#include "shared_facts.hpp"

namespace millrace::flow::detail {

/// What is laid by one request, where items are posted.
inline constexpr std::uint64_t most_staged_bytes = 64 * 1024;

struct SharedProducerEnd::State {
    /// Says what this end has to say.
    State(const ItemFacts& item, connect::Link connected, SharedOptions chosen);
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
    base::Status claim(std::uint64_t wanted, std::uint64_t& position,
                       std::uint64_t& count) noexcept;
    /// The tail, which becomes `desired` if it is `expected`.
    base::Status swap_tail(std::uint64_t expected, std::uint64_t desired, std::uint64_t attempt,
                           std::uint64_t& found) noexcept;
    base::Status say_attempt(std::uint64_t attempt,
                             verbs::SendFlags flags = verbs::SendFlags::none) noexcept;
    /// Says that it tries for nothing, unless it has said so.
    void give_up_attempt() noexcept {
        lost_attempt = lost_attempt && say_attempt(shared_word(0, home)) == base::Status::full;
    }
    /// `ok`: there is room for one item or more after `position`.
    base::Status look_for_room(std::uint64_t position) noexcept;
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
    [[gnu::cold]] base::Status follow() noexcept;

    base::Status lay(std::uint64_t position, const std::byte* items, std::uint64_t count) noexcept;
    base::Status post(std::uint64_t position, const std::byte* items, std::uint64_t count) noexcept;
    base::Status write(const std::byte* from, std::uint64_t at, std::uint64_t bytes) noexcept;

    BatchResult try_enqueue(const std::byte* items, std::size_t count) noexcept;
    base::Status full() noexcept;
    base::Status flush(const base::Deadline& deadline);
    base::Status look() noexcept { return tell_of(end.look()); }
    base::Status look_now() noexcept { return tell_of(end.look_now()); }
    /// Of an end that the consumer has given up, says so.
    base::Status tell_of(base::Status status) noexcept {
        return status == base::Status::ok ? status : how_it_ended();
    }
    [[gnu::cold]] base::Status how_it_ended() noexcept;
    void wake_peer() noexcept {
        if (bell.ring() == base::Status::ok) ++counts.events;
    }

    void become_copy() noexcept { (void)end.end(base::Status::peer_lost); }

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

}  // namespace millrace::flow::detail
