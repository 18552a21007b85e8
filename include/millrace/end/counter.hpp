// Counters that one end writes and the other end reads: credits, positions. Pushed by the writer
// with an inline WRITE, or pulled by the reader with a READ; or, where the carrier is to store
// (carrier.hpp), stored to and loaded from the peer's memory, and nothing is posted.
//
//   CounterLine   one counter alone on its cache line, in registered memory
//   CounterPush   the writer's half of a pushed counter   -> CounterLine at the reader
//   CounterPull   the reader's half of a pulled counter   <- CounterLine at the writer
//
// What travels is a word: 8 bytes that the reader may find torn (position.hpp says why). Counters
// that are believed travel as PositionWords. All of it belongs to one thread at a time, and nothing
// blocks, throws or allocates.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/status.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::end {

inline constexpr std::size_t cache_line = 64;

/// A counter with one writer. The writer is this side's thread (then peers READ it), or the device
/// on behalf of the peer (then this side only loads it).
struct alignas(cache_line) CounterLine {
    std::uint64_t value = 0;

    /// Everything written before the peer's store is visible after this.
    [[nodiscard]] std::uint64_t load() const noexcept {
        return std::atomic_ref<std::uint64_t>{const_cast<std::uint64_t&>(value)}.load(
            std::memory_order_acquire);
    }
    void store(std::uint64_t number) noexcept {
        std::atomic_ref<std::uint64_t>{value}.store(number, std::memory_order_release);
    }
};
static_assert(sizeof(CounterLine) == cache_line && alignof(CounterLine) == cache_line);

/// A word of the peer's memory that this process can address, or none.
using PeerWord = std::shared_ptr<std::uint64_t>;

/// Pushes a counter to the line it is mirrored in: an inline 8-byte WRITE, at most one in flight;
/// or a store.
class CounterPush {
  public:
    CounterPush() noexcept = default;
    /// `sent`: what the mirror holds already.
    CounterPush(SendWindow& window, verbs::RemoteAddress mirror, std::uint64_t sent = 0) noexcept
        : window_{&window}, mirror_{mirror}, sent_{sent} {}
    /// From now on stores to `memory`, which is the mirror. None: posts, as ever.
    void store_to(PeerWord memory) noexcept { memory_ = std::move(memory); }

    /// Sends `value` unless the peer was sent it already. `full`: the push before it is still in
    /// flight, or no slot is free; the value is not lost as long as the caller offers again (on
    /// its idle path, and before it sleeps). `peer_lost`: broken.
    base::Status offer(std::uint64_t value) noexcept {
        if (value == sent_) return base::Status::ok;
        if (memory_ == nullptr) return send(value);
        base::telling_peers();
        std::atomic_ref<std::uint64_t>{*memory_}.store(value, std::memory_order_release);
        sent_ = value;
        return base::Status::ok;
    }
    /// The last value that was sent.
    [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
    /// How many WRITEs it posted.
    [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }

  private:
    base::Status send(std::uint64_t value) noexcept;

    SendWindow* window_ = nullptr;
    verbs::RemoteAddress mirror_{};
    std::uint64_t sent_ = 0;
    std::uint64_t ticket_ = 0;
    std::uint64_t posted_ = 0;
    PeerWord memory_;
};

/// Pulls a counter from the line its writer keeps: an 8-byte READ, at most one in flight; or a
/// load.
class CounterPull {
  public:
    CounterPull() noexcept = default;
    /// `landing`: 8 aligned bytes of own registered memory (local write) that nothing else uses.
    /// `known`: the value before the first READ.
    CounterPull(SendWindow& window, verbs::RemoteAddress source, ibv_sge landing,
                std::uint64_t known = 0) noexcept
        : window_{&window}, source_{source}, landing_{landing}, value_{known} {}

    /// From now on loads from `memory`, which is the source. None: posts, as ever.
    void load_from(PeerWord memory) noexcept { memory_ = std::move(memory); }

    /// Starts a READ unless one is on its way. `full`: no slot is free. `peer_lost`: broken.
    base::Status start() noexcept;
    [[nodiscard]] bool pending() const noexcept { return ticket_ != 0 || loaded_; }
    /// Takes the result of a READ whose completion the window has reaped. True: it was there.
    bool poll() noexcept;
    /// The newest value that is known.
    [[nodiscard]] std::uint64_t value() const noexcept { return value_; }
    /// How many READs it posted.
    [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }

  private:
    SendWindow* window_ = nullptr;
    verbs::RemoteAddress source_{};
    ibv_sge landing_{};
    std::uint64_t value_ = 0;
    std::uint64_t ticket_ = 0;  ///< of the READ on its way; 0: none
    std::uint64_t posted_ = 0;
    bool loaded_ = false;  ///< value_ is there, and was not taken yet
    PeerWord memory_;
};

}  // namespace millrace::end
