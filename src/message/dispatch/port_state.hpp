// What a port and its dispatcher share: the places of its requests, and how each tells the other;
// and what is the port's own. Used by port.cpp and dispatcher_state.hpp.
//
//   PortState                       written by     read by
//   Place: request                  the port       the dispatcher, once it is prepared
//   Place: answer                   dispatcher     the port, once it is answered
//   requests[n & mask], prepared    the port       dispatcher: places that may be sent, in order
//   answers[n & mask], answered     dispatcher     the port: places that are answered, in order
//   cancels, Place::is_cancelled    the port       dispatcher: look at the places for those
//   has_left                        the port       dispatcher
//   taken_at_end                    dispatcher     the port: no request from that on was, or will
//   be
//
// "dispatcher" is whose turn it is: its thread, or the port that takes a turn for it
// (PortGate::turn_at).
//
// A place is the port's, until it stands in `requests`; the dispatcher's, until it stands in
// `answers`; then the port's again. Each one that the dispatcher took stands there exactly once,
// those that were cancelled included, so both need as many entries as there are places. Any free
// place will do for the next request: one that waits long for its answer takes no other's.
//
// Sleeping: both sides announce and ring by base::ThreadBell; what they publish before they ring
// (`prepared`, `cancels`, `has_left`, `answered`, `taken_at_end`) is stored sequentially
// consistent.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "client/kept_answers.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/thread_bell.hpp"
#include "millrace/base/status.hpp"
#include "millrace/message/dispatcher.hpp"

namespace millrace::message::detail {

struct PortState;

/// What all ports of a dispatcher share, and what may outlive it.
struct PortGate {
    /// `most`: servers over the dispatcher's life.
    PortGate(std::size_t of_servers, std::size_t most) : servers{of_servers}, ended(most) {}

    base::ThreadBell bell;  ///< the dispatcher's
    std::atomic<bool> is_closed{false};
    std::atomic<std::size_t> servers;  ///< grows, guarded by mutex
    /// By server; `ok` while its connection stands.
    std::vector<std::atomic<base::Status>> ended;
    std::mutex mutex;
    std::vector<std::shared_ptr<PortState>> arriving;  ///< guarded by mutex
    std::atomic<bool> has_arriving{false};             ///< ports or servers
    std::atomic<std::uint64_t> spared_sleeps{0};       ///< counted by ports

    /// Whose turn it is, or could be: while the dispatcher rests without sleeping, the number of
    /// the processor that it rests on. Who runs there keeps it from running, and so may take the
    /// turn for it, one at a time. Every port that waits looks at it: it is on a line of its own.
    alignas(64) std::atomic<int> turn_at{of_dispatcher};
    static constexpr int of_dispatcher = -1;
    static constexpr int of_port = -2;
    Dispatcher::State* dispatcher = nullptr;  ///< lives while turn_at is a processor, or a port's
};

struct PortState {
    static constexpr std::uint64_t not_ended = ~std::uint64_t{0};
    /// Answers up to here keep their memory for the next one in their place.
    static constexpr std::size_t longest_kept = std::size_t{64} << 10;

    enum class Call : std::uint8_t {
        none,
        wanted,    ///< its answer will be handed out
        unwanted,  ///< it was given up, and its answer is still to come
    };
    /// Of a request on its way. In the dispatcher's hands alone.
    enum class Way : std::uint8_t { none, queued, sent };

    struct alignas(64) Place {
        // The request. Its number is that of the place, and how often that was used.
        std::uint64_t id = 0;
        std::byte* memory = nullptr;  ///< `request_bytes`, of the port
        std::uint32_t size = 0;
        std::uint32_t server = 0;
        std::uint16_t procedure = 0;
        bool is_long = false;  ///< it lies in `longer`
        Call call = Call::none;
        Way way = Way::none;
        Outcome outcome = Outcome::ok;
        std::atomic<bool> is_cancelled{false};
        base::Deadline deadline = base::Deadline::never();
        base::Clock::time_point told_from = base::Clock::time_point::min();
        std::uint64_t sent_as = 0;  ///< the client's number
        Place* next = nullptr;      ///< after it in the same queue
        std::vector<std::byte> answer{};
        std::vector<std::byte> longer{};

        [[nodiscard]] std::span<const std::byte> request() const noexcept {
            return {is_long ? longer.data() : memory, size};
        }
    };
    PortState(std::shared_ptr<PortGate> its_gate, const PortOptions& chosen)
        : gate{std::move(its_gate)},
          options{chosen},
          mask{std::bit_ceil(std::uint64_t{chosen.window}) - 1},
          places(chosen.window),
          memory(chosen.window * chosen.request_bytes),
          requests(mask + 1),
          answers(mask + 1) {
        for (std::uint32_t i = 0; i != chosen.window; ++i) {
            places[i].id = i;
            places[i].memory = memory.data() + i * chosen.request_bytes;
        }
    }
    /// By the dispatcher, after what it published.
    void ring() noexcept {
        bell.ring();
        rings.store(rings.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    [[nodiscard]] static std::uint32_t place_of(std::uint64_t id) noexcept {
        return static_cast<std::uint32_t>(id % largest_window);
    }

    std::shared_ptr<PortGate> gate;
    PortOptions options;
    std::uint64_t mask;
    std::vector<Place> places;
    std::vector<std::byte> memory;
    std::vector<std::uint32_t> requests;
    std::vector<std::uint32_t> answers;

    // Written by the port.
    alignas(64) std::atomic<std::uint64_t> prepared{0};
    std::atomic<std::uint64_t> cancels{0};
    std::atomic<bool> has_left{false};
    // Written by the dispatcher.
    alignas(64) std::atomic<std::uint64_t> answered{0};
    std::atomic<std::uint64_t> taken_at_end{not_ended};
    base::ThreadBell bell;  ///< the port's
    /// How often it was rung, counted after each time.
    std::atomic<std::uint64_t> rings{0};
};

/// What only the port's thread uses.
struct PortOwn final : PortState {
    PortOwn(std::shared_ptr<PortGate> its_gate, const PortOptions& chosen)
        : PortState{std::move(its_gate), chosen} {
        free.reserve(places.size());
        for (std::uint32_t i = chosen.window; i-- != 0;) free.push_back(i);
    }
    /// In a child made by fork: nobody serves it.
    void become_copy() noexcept { is_copy = true; }
    [[nodiscard]] bool is_claimed() const noexcept {
        return !free.empty() && free.back() == claimed && places[claimed].id == claimed_id;
    }
    /// What was handed out last was not passed yet.
    [[nodiscard]] bool is_handed_out() const noexcept { return kept_index != nothing; }

    std::vector<std::uint32_t> free;  ///< places
    std::uint64_t submitted = 0;
    std::uint64_t handed = 0;           ///< of answers
    std::uint32_t current = 0;          ///< the place of what was handed out …
    std::size_t kept_index = in_place;  ///< … unless it is one of `kept`
    static constexpr std::size_t in_place = ~std::size_t{0};
    static constexpr std::size_t nothing = in_place - 1;  ///< what was handed out was passed
    std::size_t wanted = 0;                               ///< places of calls that are
    std::uint32_t waits = 0;                              ///< before which no crowd was seen
    std::uint32_t server = 0;
    bool is_watched = false;     ///< by its descriptor …
    bool is_armed = false;       ///< … which the dispatcher makes readable with the next answer
    std::uint64_t armed_at = 0;  ///< of rings
    KeptAnswers kept;
    std::uint32_t claimed = 0;     ///< the place of the next request …
    std::uint64_t claimed_id = 0;  ///< … whose number was that
    bool is_copy = false;          ///< the port is of the parent of this process
    base::ForkWatch fork_watch{*this};
};

}  // namespace millrace::message::detail
