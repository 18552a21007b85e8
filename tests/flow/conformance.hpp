// One suite for every point of the design space: what holds for a flow queue holds for all 33.
// Item is an integer in front of some payload, or a frame whose length depends on its number.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "flow/ends.hpp"
#include "millrace/flow/any.hpp"
#include "millrace/ring/design_name.hpp"

namespace millrace::flow::test {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

[[nodiscard]] inline std::vector<ring::Design> every_design() {
    std::vector<ring::Design> all;
#define MILLRACE_ADD(D) all.push_back(D);
    MILLRACE_EVERY_DESIGN(MILLRACE_ADD)
#undef MILLRACE_ADD
    return all;
}
[[nodiscard]] inline std::string name_of_point(ring::Design design) {
    return std::string{name_of(design.data)} + "_" + std::string{name_of(design.transfer)} + "_" +
           std::string{name_of(design.space)};
}

struct Numbered {
    std::uint64_t number = 0;
    std::uint32_t body[5] = {};
};

/// How a test makes the item of a number, and which number an item has (~0: it is damaged).
template <class T>
struct Kind;
template <>
struct Kind<Numbered> {
    static Numbered make(std::uint64_t number) {
        Numbered item{number, {}};
        for (std::uint32_t i = 0; i < 5; ++i) {
            item.body[i] = static_cast<std::uint32_t>(number * 31 + i);
        }
        return item;
    }
    static std::uint64_t number_of(const Numbered& item) {
        for (std::uint32_t i = 0; i < 5; ++i) {
            if (item.body[i] != static_cast<std::uint32_t>(item.number * 31 + i)) return ~0ULL;
        }
        return item.number;
    }
    static std::uint64_t capacity(std::uint64_t items) { return items; }
};
template <>
struct Kind<Bytes> {
    /// 8 to 47 bytes; in between, none of them a multiple of anything.
    static std::vector<std::byte> make(std::uint64_t number) {
        std::vector<std::byte> item(8 + number * 7 % 40, static_cast<std::byte>(number * 13));
        std::memcpy(item.data(), &number, sizeof number);
        return item;
    }
    static std::uint64_t number_of(const std::vector<std::byte>& item) {
        std::uint64_t number;
        if (item.size() < sizeof number) return ~0ULL;
        std::memcpy(&number, item.data(), sizeof number);
        return item == make(number) ? number : ~0ULL;
    }
    /// Bytes of ring: the smallest holds little more than one frame.
    static std::uint64_t capacity(std::uint64_t items) { return 160 + 64 * (items - 1); }
};

/// Both ends of a queue of any design, in this process.
template <class T>
class AnyEnds {
  public:
    explicit AnyEnds(ring::Design design, Options options)
        : AnyEnds{design, with_endpoint(options), with_endpoint(options)} {}
    AnyEnds(ring::Design design, const Options& producer_options, const Options& consumer_options) {
        Listener listener = Listener::listen(unique_address(), consumer_options);
        const std::string address = listener.address().to_string();
        std::thread other{[&] {
            try {
                producer.emplace(AnyProducer<T>::connect(design, address, producer_options,
                                                         Deadline::after(20s)));
            } catch (const base::Error& error) {
                ADD_FAILURE() << error.what();
            }
        }};
        try {
            consumer.emplace(AnyConsumer<T>::accept(design, listener, Deadline::after(20s)));
        } catch (const base::Error& error) {
            ADD_FAILURE() << error.what();
        }
        other.join();
    }
    /// Enqueues the item of a number, while calls of the passive consumer return the space that it
    /// owes: nobody else does, where both ends share a thread.
    Status put(std::uint64_t number) {
        const Deadline deadline = Deadline::after(20s);
        for (;;) {
            const Status status = producer->enqueue(Kind<T>::make(number), Deadline::after(10ms));
            if (status != Status::timed_out || deadline.expired()) return status;
            detail::Taken<T> item;
            if (consumer->try_dequeue(item) == Status::ok) {
                early_.push_back(Kind<T>::number_of(item));
            }
        }
    }
    /// The number of the next item, or the status with which there is none, negated less one.
    std::uint64_t take() {
        if (!early_.empty()) {
            const std::uint64_t number = early_.front();
            early_.pop_front();
            return number;
        }
        const Deadline deadline = Deadline::after(10s);
        detail::Taken<T> item;
        for (;;) {
            const Status status = consumer->try_dequeue(item);
            if (status == Status::ok) return Kind<T>::number_of(item);
            if (status != Status::empty || deadline.expired()) return failed - 1;
            (void)producer->flush(Deadline::now());
            std::this_thread::yield();  // a mover may want this core
        }
    }
    static constexpr std::uint64_t failed = ~0ULL;

    std::optional<AnyProducer<T>> producer;
    std::optional<AnyConsumer<T>> consumer;

  private:
    std::deque<std::uint64_t> early_;  ///< what put() found, for take()
};

class EveryDesign : public testing::TestWithParam<ring::Design> {};

/// How the flows of a design are run. Its tests go through all points, one after the other.
struct RunAs {
    ring::Batching batching = ring::Batching::none;
    ring::Mover mover = ring::Mover::passive;
};
[[nodiscard]] inline std::vector<RunAs> every_way() {
    return {{ring::Batching::fixed, ring::Mover::passive},
            {ring::Batching::dynamic, ring::Mover::passive},
            {ring::Batching::none, ring::Mover::active},
            {ring::Batching::fixed, ring::Mover::active},
            {ring::Batching::dynamic, ring::Mover::active}};
}
[[nodiscard]] inline std::string name_of_way(const testing::TestParamInfo<RunAs>& way) {
    return std::string{name_of(way.param.batching)} +
           (way.param.mover == ring::Mover::active ? "_mover" : "");
}
/// False: this device does not promise the order of a WRITE's bytes, which some points need.
[[nodiscard]] inline bool can_run(ring::Design design) {
    static const bool in_order = Ends<Numbered, ring::design_2>{Options{}}.in_order();
    return in_order || design.data != ring::DataFlow::push2 ||
           design.transfer != ring::TransferNotification::watermark;
}
class EveryWay : public testing::TestWithParam<RunAs> {
  protected:
    template <class Test>
    static void at_every_point(Test&& test) {
        for (const ring::Design flows : every_design()) {
            if (!can_run(flows)) continue;
            const ring::Design design = with(flows, GetParam().batching, GetParam().mover);
            SCOPED_TRACE(to_string(design));
            test(design);
            if (HasFatalFailure()) return;
        }
    }
};

/// Which ring sizes are tried.
inline constexpr std::uint64_t ring_sizes[] = {1, 2, 3, 8192};

template <class T>
void keeps_order_where_the_ring_wraps(ring::Design design) {
    for (const std::uint64_t size : ring_sizes) {
        AnyEnds<T> ends{design, Options{.capacity = Kind<T>::capacity(size)}};
        ASSERT_TRUE(ends.producer && ends.consumer);
        const std::uint64_t rounds = size == 8192 ? 9 : 40;
        const std::uint64_t fill = size == 8192 ? 3001 : size;
        std::uint64_t sent = 0;
        std::uint64_t taken = 0;
        for (std::uint64_t round = 0; round < rounds; ++round) {
            for (std::uint64_t i = 0; i < fill; ++i) {
                // An empty queue takes an item, as soon as it knows that it is empty.
                const Status status = sent == taken
                                          ? ends.put(sent)
                                          : ends.producer->try_enqueue(Kind<T>::make(sent));
                if (status != Status::ok) break;
                ++sent;
            }
            ASSERT_GT(sent, taken) << "nothing fits in an empty queue of " << size;
            for (std::uint64_t i = 0; i <= round % fill && taken < sent; ++i) {
                ASSERT_EQ(ends.take(), taken) << "ring of " << size;
                ++taken;
            }
        }
        while (taken < sent) {
            ASSERT_EQ(ends.take(), taken) << "ring of " << size;
            ++taken;
        }
        detail::Taken<T> item;
        EXPECT_EQ(ends.consumer->try_dequeue(item), Status::empty);
    }
}

template <class T>
void says_full_and_goes_on(ring::Design design, int rounds = 5) {
    for (const std::uint64_t size : {1, 2, 3, 100}) {
        AnyEnds<T> ends{design, Options{.capacity = Kind<T>::capacity(size)}};
        ASSERT_TRUE(ends.producer && ends.consumer);
        std::uint64_t sent = 0;
        std::uint64_t taken = 0;
        for (int round = 0; round < rounds; ++round) {
            Status status;
            // There is room for one, however long the device takes to tell of it.
            ASSERT_EQ(ends.put(sent), Status::ok);
            ++sent;
            while ((status = ends.producer->enqueue(Kind<T>::make(sent), Deadline::after(2ms))) ==
                   Status::ok) {
                ++sent;
                ASSERT_LE(sent - taken, 20 * size + 20);
            }
            EXPECT_EQ(status, Status::timed_out);
            EXPECT_GT(ends.producer->stats().ring.full_returns, 0U);
            if (std::is_same_v<T, Numbered>) {
                EXPECT_LE(sent - taken, 2 * size);
            }
            while (taken < sent) {
                ASSERT_EQ(ends.take(), taken);
                ++taken;
            }
        }
    }
}

template <class T>
void keeps_order_where_counters_wrap(ring::Design design) {
    for (const std::uint64_t initial : {(std::uint64_t{1} << 32) - 360, std::uint64_t{0} - 360,
                                        std::uint64_t{0} - 8, (std::uint64_t{1} << 35) - 360}) {
        AnyEnds<T> ends{design,
                        Options{.capacity = Kind<T>::capacity(3), .initial_position = initial}};
        ASSERT_TRUE(ends.producer && ends.consumer);
        for (std::uint64_t i = 0; i < 50; ++i) {
            ASSERT_EQ(ends.put(i), Status::ok);
            ASSERT_EQ(ends.take(), i);
        }
    }
}

/// Each end waits for the other in turn, asleep: again until both have slept, since nothing makes a
/// busy machine's threads meet.
template <class T>
void sleeps_and_wakes(ring::Design design) {
    AnyEnds<T> ends{
        design, Options{.capacity = Kind<T>::capacity(4), .wait = base::WaitPolicy::blocking()}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    constexpr std::uint64_t items = 120;
    const auto both_slept = [&] {
        return ends.consumer->stats().ring.sleeps != 0 && ends.producer->stats().ring.sleeps != 0;
    };
    std::uint64_t first = 0;
    for (int round = 0; round < 50 && !both_slept(); ++round, first += items) {
        std::atomic<bool> flushed{false};
        std::thread consumer{[&] {
            for (std::uint64_t i = 0; i < items; ++i) {
                if (i >= items / 2 && i % 9 == 0) std::this_thread::sleep_for(2ms);
                detail::Taken<T> item;
                ASSERT_EQ(ends.consumer->dequeue(item, Deadline::after(10s)), Status::ok) << i;
                ASSERT_EQ(Kind<T>::number_of(item), first + i);
            }
            // What it owes the producer it sends when it is called.
            while (!flushed.load()) {
                detail::Taken<T> item;
                ASSERT_EQ(ends.consumer->try_dequeue(item), Status::empty);
                std::this_thread::sleep_for(100us);
            }
        }};
        for (std::uint64_t i = 0; i < items; ++i) {
            if (i < items / 2 && i % 9 == 0) {
                EXPECT_EQ(ends.producer->flush(Deadline::after(10s)), Status::ok);
                std::this_thread::sleep_for(2ms);
            }
            EXPECT_EQ(ends.producer->enqueue(Kind<T>::make(first + i), Deadline::after(10s)),
                      Status::ok)
                << i;
        }
        EXPECT_EQ(ends.producer->flush(Deadline::after(10s)), Status::ok);
        flushed = true;
        consumer.join();
        if (testing::Test::HasFailure()) return;
    }
    EXPECT_TRUE(both_slept());
}

/// The producer's flush ends when everything was taken, although the consumer makes no call
/// behind its last item: whatever credit it owes then, it owes for ever.
template <class T>
void flushes_what_was_taken(ring::Design design) {
    for (const auto& policy : {base::WaitPolicy{}, base::WaitPolicy::polling()}) {
        AnyEnds<T> ends{design, Options{.capacity = Kind<T>::capacity(100), .wait = policy}};
        ASSERT_TRUE(ends.producer && ends.consumer);
        std::uint64_t sent = 0;
        while (sent < 100 && ends.producer->try_enqueue(Kind<T>::make(sent)) == Status::ok) ++sent;
        ASSERT_GT(sent, 0U);
        for (std::uint64_t taken = 0; taken < sent; ++taken) ASSERT_EQ(ends.take(), taken);
        EXPECT_EQ(ends.producer->flush(Deadline::after(20s)), Status::ok);
    }
}

template <class T>
void drains_after_close(ring::Design design) {
    AnyEnds<T> ends{design, Options{.capacity = Kind<T>::capacity(8)}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    std::uint64_t sent = 0;
    while (sent < 5 && ends.producer->try_enqueue(Kind<T>::make(sent)) == Status::ok) ++sent;
    std::uint64_t taken = 0;
    // Over pull it is the consumer's calls that move what is left.
    const Deadline deadline = Deadline::after(10s);
    Status closed = Status::timed_out;
    while (closed == Status::timed_out && !deadline.expired()) {
        closed = ends.producer->close(Deadline::after(1ms));
        if (closed == Status::ok) break;
        detail::Taken<T> item;
        if (ends.consumer->try_dequeue(item) == Status::ok) {
            ASSERT_EQ(Kind<T>::number_of(item), taken++);
        }
    }
    ASSERT_EQ(closed, Status::ok);
    EXPECT_EQ(ends.producer->try_enqueue(Kind<T>::make(9)), Status::closed);
    ends.producer.reset();
    detail::Taken<T> item;
    for (; taken < sent; ++taken) {
        ASSERT_EQ(ends.consumer->dequeue(item, Deadline::after(10s)), Status::ok);
        ASSERT_EQ(Kind<T>::number_of(item), taken);
    }
    EXPECT_EQ(ends.consumer->dequeue(item, Deadline::after(10s)), Status::closed);
    EXPECT_EQ(ends.consumer->try_dequeue(item), Status::closed);
}

template <class T>
void tells_of_loss_and_of_close(ring::Design design) {
    {
        AnyEnds<T> ends{design, Options{.capacity = Kind<T>::capacity(2)}};
        ASSERT_TRUE(ends.producer && ends.consumer);
        ends.producer.reset();
        detail::Taken<T> item;
        EXPECT_EQ(ends.consumer->dequeue(item, Deadline::after(10s)), Status::peer_lost);
    }
    for (const bool closes : {false, true}) {
        AnyEnds<T> ends{design, Options{.capacity = Kind<T>::capacity(2)}};
        ASSERT_TRUE(ends.producer && ends.consumer);
        if (closes) {
            ends.consumer->close();
        } else {
            ends.consumer.reset();
        }
        Status status = Status::ok;
        for (std::uint64_t i = 0; i < 20 && status == Status::ok; ++i) {
            status = ends.producer->enqueue(Kind<T>::make(i), Deadline::after(10s));
        }
        EXPECT_EQ(status, closes ? Status::closed : Status::peer_lost);
    }
}

}  // namespace millrace::flow::test
