// One end of a flow queue for several threads: the writers of a producer, the readers of a consumer
// (work 000, figure 3.1).
//
//     flow::Shared producer{flow::Producer<Item>::connect("host:7000", {}, Deadline::after(5s))};
//     // in each of several threads
//     if (producer.enqueue(item, Deadline::after(1s)) != Status::ok) …
//
// The threads take turns: whatever one call does to the ring happens at once. So the items of one
// writer come out in the order of its calls, those of different writers in any order, each item at
// one reader; and what one reader takes of one writer's items is in order. Threads that shall not
// wait for each other have a queue each.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/turn.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/flow/stats.hpp"

namespace millrace::flow {

/// `End` is a Producer, Consumer, AnyProducer or AnyConsumer; see there for what the functions of
/// the same name do. Every function from any thread. Move-only; moved and destroyed while no other
/// thread uses it.
///
/// A thread that waits for room or for an item has the end meanwhile, for 50 ms at most before
/// others that want it otherwise come in between. Waiting calls of others wait for it with their
/// own deadline; their try_ calls answer as if they had found the ring full, or empty, which it
/// mostly is. Where nobody waits, a try_ call waits for the calls of other threads, which are
/// short.
template <class End>
class Shared {
  public:
    /// `wait`: how threads wait for each other.
    explicit Shared(End end, base::WaitPolicy wait = {})
        : state_{std::make_unique<State>(std::move(end), wait)} {}

    // --- writers

    template <class Item>
    base::Status try_enqueue(const Item& item)
        requires requires(End& end) { end.try_enqueue(item); }
    {
        return attempt(base::Status::full, [&](End& end) { return end.try_enqueue(item); });
    }
    template <class Item>
    base::Status enqueue(const Item& item, const base::Deadline& deadline)
        requires requires(End& end) { end.enqueue(item, deadline); }
    {
        return wait_for(
            base::Status::full, deadline, [&](End& end) { return end.try_enqueue(item); },
            [&](End& end, const base::Deadline& until) { return end.enqueue(item, until); });
    }
    /// What fits of `items` comes out without those of other writers in between.
    template <class Item>
    [[nodiscard]] BatchResult try_enqueue_batch(std::span<const Item> items)
        requires requires(End& end) { end.try_enqueue_batch(items); }
    {
        return attempt(BatchResult{base::Status::full, 0},
                       [&](End& end) { return end.try_enqueue_batch(items); });
    }
    base::Status flush(const base::Deadline& deadline)
        requires requires(End& end) { end.flush(deadline); }
    {
        return alone(deadline, [&](End& end) { return end.flush(deadline); });
    }

    // --- readers

    template <class Item>
    base::Status try_dequeue(Item& into)
        requires requires(End& end) { end.try_dequeue(into); }
    {
        return attempt(base::Status::empty, [&](End& end) { return end.try_dequeue(into); });
    }
    template <class Item>
    base::Status dequeue(Item& into, const base::Deadline& deadline)
        requires requires(End& end) { end.dequeue(into, deadline); }
    {
        return wait_for(
            base::Status::empty, deadline, [&](End& end) { return end.try_dequeue(into); },
            [&](End& end, const base::Deadline& until) { return end.dequeue(into, until); });
    }
    template <class Item>
    [[nodiscard]] BatchResult try_dequeue_batch(std::span<Item> items)
        requires requires(End& end) { end.try_dequeue_batch(items); }
    {
        return attempt(BatchResult{base::Status::empty, 0},
                       [&](End& end) { return end.try_dequeue_batch(items); });
    }

    // --- both

    /// Closes for all threads, whose later calls answer `closed`. As the end's (docs/closing.md).
    base::Status close(const base::Deadline& deadline) {
        return alone(deadline, [&](End& end) {
            if constexpr (requires { end.close(deadline); }) {
                return end.close(deadline);
            } else {
                end.close();
                return base::Status::ok;
            }
        });
    }
    /// Calls `use(End&)`, which answers a Status, while no other thread has the end: for items in
    /// place (claim to commit, peek to release) and for whatever must not be torn apart.
    template <class Use>
    base::Status alone(const base::Deadline& deadline, Use&& use) {
        const Wanted wanted{*state_};
        if (const base::Status status = state_->turn.take(deadline, state_->policy);
            status != base::Status::ok) {
            return status;
        }
        const Hold hold{*state_, true};
        return use(state_->end);
    }

    [[nodiscard]] std::uint64_t capacity() const { return state_->end.capacity(); }
    /// Waits until another thread's flush(), close() or alone() is over.
    [[nodiscard]] auto stats() const {
        return look([](End& end) { return end.stats(); });
    }
    /// Waits as stats().
    [[nodiscard]] std::string explain() const {
        return look([](End& end) { return end.explain(); });
    }

  private:
    static constexpr std::chrono::milliseconds slice{50};

    struct State {
        State(End e, base::WaitPolicy p) : end{std::move(e)}, policy{p} {}
        End end;
        base::WaitPolicy policy;
        base::Turn turn;
        std::atomic<bool> held_long{false};    ///< by a thread that waits in it
        std::atomic<std::uint32_t> wanted{0};  ///< by threads that want more than an item
    };
    /// What was taken is given back.
    class Hold {
      public:
        Hold(State& state, bool held_long) noexcept : state_{state} {
            if (held_long) state_.held_long.store(true, std::memory_order_relaxed);
        }
        ~Hold() {
            state_.held_long.store(false, std::memory_order_relaxed);
            state_.turn.give_back();
        }
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;

      private:
        State& state_;
    };
    class Wanted {
      public:
        explicit Wanted(State& state) noexcept : state_{state} {
            state_.wanted.fetch_add(1, std::memory_order_relaxed);
        }
        ~Wanted() { state_.wanted.fetch_sub(1, std::memory_order_relaxed); }
        Wanted(const Wanted&) = delete;
        Wanted& operator=(const Wanted&) = delete;

      private:
        State& state_;
    };

    template <class Answer, class Try>
    Answer attempt(Answer busy, Try&& try_once) {
        State& state = *state_;
        bool taken = state.turn.try_take();
        if (!taken) [[unlikely]] {
            base::WaitPolicy policy = state.policy;
            policy.sleep = false;
            base::NapParker nap;
            (void)base::wait_until(
                [&] {
                    taken = state.turn.try_take();
                    return taken || state.held_long.load(std::memory_order_relaxed);
                },
                base::Deadline::never(), policy, nap);
            if (!taken) return busy;
        }
        const Hold hold{state, false};
        return try_once(state.end);
    }

    template <class Try, class Wait>
    base::Status wait_for(base::Status busy, const base::Deadline& deadline, Try&& try_once,
                          Wait&& wait_long) {
        State& state = *state_;
        for (;;) {
            if (const base::Status taken = state.turn.take(deadline, state.policy);
                taken != base::Status::ok) [[unlikely]] {
                return taken;
            }
            base::Status status;
            {
                const Hold hold{state, false};
                status = try_once(state.end);
                if (status == busy) {
                    state.held_long.store(true, std::memory_order_relaxed);
                    status =
                        wait_long(state.end, deadline.no_later_than(base::Clock::now() + slice));
                }
            }
            if (status != base::Status::timed_out || deadline.expired()) return status;
            if (state.wanted.load(std::memory_order_relaxed) != 0) {
                base::NapParker nap;
                (void)base::wait_until(
                    [&] { return state.wanted.load(std::memory_order_relaxed) == 0; },
                    deadline.no_later_than(base::Clock::now() + slice), state.policy, nap);
            }
        }
    }

    template <class Look>
    auto look(Look&& look_at) const {
        State& state = *state_;
        const Wanted wanted{state};
        (void)state.turn.take(base::Deadline::never(), state.policy);
        const Hold hold{state, false};
        return look_at(state.end);
    }

    std::unique_ptr<State> state_;
};

}  // namespace millrace::flow
