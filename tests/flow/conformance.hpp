// One suite for every point of the design space: what holds for a flow queue holds for all 33.
// Item is an integer in front of some payload, or a frame whose length depends on its number.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "flow/any_ends.hpp"
#include "flow/ends.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/ring/detail/first_position.hpp"
#include "millrace/ring/terms.hpp"

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

template <class Producer>
[[nodiscard]] bool is_in_place(const Producer& producer) {
    return producer.explain().find("lays it where the consumer reads it") != std::string::npos;
}

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
                                                         Deadline::after(40s)));
            } catch (const base::Error& error) {
                ADD_FAILURE() << error.what();
            }
        }};
        try {
            consumer.emplace(AnyConsumer<T>::accept(design, listener, Deadline::after(40s)));
        } catch (const base::Error& error) {
            ADD_FAILURE() << error.what();
        }
        other.join();
        in_place_ = producer && is_in_place(*producer);
    }
    /// Enqueues the item of a number, while calls of the passive consumer return the space that it
    /// owes: nobody else does, where both ends share a thread.
    Status put(std::uint64_t number) {
        const Deadline deadline = Deadline::after(40s);
        for (;;) {
            const Status status = producer->enqueue(Kind<T>::make(number), Deadline::after(10ms));
            check_counters();
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
        const Deadline deadline = Deadline::after(40s);
        detail::Taken<T> item;
        for (;;) {
            const Status status = consumer->try_dequeue(item);
            check_counters();
            if (status == Status::ok) return Kind<T>::number_of(item);
            if (status != Status::empty || deadline.expired()) return failed - 1;
            (void)producer->flush(Deadline::now());
            std::this_thread::yield();  // a mover may want this core
        }
    }
    static constexpr std::uint64_t failed = ~0ULL;

    /// What docs/design/flow.md says of the counters, of bytes of ring, holds at every instant:
    ///   consumed <= intransit <= produced, transferred <= intransit,
    ///   produced - transferred <= S, intransit - consumed <= S, what is known of it included.
    /// Over pull data, and in place, the consumer may take what the producer has not told of yet,
    /// and both rings are one, whose space is free when it is consumed.
    void check_counters() {
        const std::uint64_t consumed =
            consumer->stats().ring.bytes;  // at most, until the next look
        const auto at_producer = producer->stats().ring;
        const bool pulls = producer->design().data == ring::DataFlow::pull;
        const std::uint64_t told = pulls || in_place_ ? at_producer.bytes : at_producer.intransit;
        EXPECT_LE(consumed, told);
        EXPECT_LE(at_producer.intransit, at_producer.bytes);
        EXPECT_LE(at_producer.transferred, told);
        EXPECT_LE(at_producer.credited, told);
        if (!in_place_) {
            EXPECT_LE(at_producer.bytes - at_producer.transferred, ring_bytes());
        }
        EXPECT_LE(told - at_producer.credited, ring_bytes());
        if (!pulls) {
            EXPECT_LE(at_producer.credited, consumer->stats().ring.bytes);
        }
    }

    std::optional<AnyProducer<T>> producer;
    std::optional<AnyConsumer<T>> consumer;

  private:
    [[nodiscard]] std::uint64_t ring_bytes() const {
        if constexpr (std::is_same_v<T, Bytes>) return producer->capacity();
        return producer->capacity() * ring::slot_bytes_of(sizeof(detail::Taken<T>),
                                                          alignof(detail::Taken<T>),
                                                          ring::has_marks(producer->design()));
    }
    bool in_place_ = false;
    std::deque<std::uint64_t> early_;  ///< what put() found, for take()
};

/// Points whose counter of transfers may have a queue pair of its own.
[[nodiscard]] inline std::vector<ring::Design> every_pushed_transfer() {
    std::vector<ring::Design> all = every_design();
    std::erase_if(all, [](ring::Design design) {
        return design.transfer != ring::TransferNotification::push;
    });
    return all;
}

class EveryDesign : public testing::TestWithParam<ring::Design> {};

/// Points with transfer push, on a queue pair of its own.
class EveryOwnQueue : public EveryDesign {
  protected:
    [[nodiscard]] static Options asked() {
        Options options;
        options.ring.own_transfer_queue = true;
        return options;
    }
    /// Passive, and with the mover.
    template <class Test>
    static void both_ways(Test&& test) {
        test(GetParam());
        test(with(GetParam(), ring::Batching::dynamic, ring::Mover::active));
    }
};

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
    static const bool in_order =
        Ends<Numbered, ring::design_2>{Options{.ring = {.carrier = ring::Carrier::post}}}
            .in_order();
    return in_order || design.data != ring::DataFlow::push2 ||
           design.transfer != ring::TransferNotification::watermark;
}
/// False: it posts whatever the carrier, and is run where nobody has asked for one.
[[nodiscard]] inline bool differs_by_carrier(ring::Design design) {
    return std::getenv("MILLRACE_CARRIER") == nullptr ||
           (design.data == ring::DataFlow::push1 &&
            design.transfer != ring::TransferNotification::immediate);
}
class EveryWay : public testing::TestWithParam<RunAs> {
  protected:
    template <class Test>
    static void at_every_point(Test&& test) {
        for (const ring::Design flows : every_design()) {
            if (!can_run(flows) || !differs_by_carrier(flows)) continue;
            const ring::Design design = with(flows, GetParam().batching, GetParam().mover);
            SCOPED_TRACE(to_string(design));
            test(design);
            if (HasFatalFailure()) return;
        }
    }
};

/// More than a queue of requests holds.
inline constexpr std::uint64_t large_ring = 1024;
/// Which ring sizes are tried.
inline constexpr std::uint64_t ring_sizes[] = {1, 2, 3, large_ring};

template <class T>
void keeps_order_where_the_ring_wraps(ring::Design design, Options asked = {}) {
    for (const std::uint64_t size : ring_sizes) {
        asked.ring.capacity = Kind<T>::capacity(size);
        AnyEnds<T> ends{design, asked};
        ASSERT_TRUE(ends.producer && ends.consumer);
        const std::uint64_t rounds = size == large_ring ? 9 : 12;
        const std::uint64_t fill = size == large_ring ? 377 : size;
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
void says_full_and_goes_on(ring::Design design, int rounds = 5, Options asked = {}) {
    for (const std::uint64_t size : {1, 2, 3, 100}) {
        asked.ring.capacity = Kind<T>::capacity(size);
        AnyEnds<T> ends{design, asked};
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
void keeps_order_where_counters_wrap(ring::Design design, Options asked = {}) {
    for (const std::uint64_t initial : {(std::uint64_t{1} << 32) - 120, std::uint64_t{0} - 120,
                                        std::uint64_t{0} - 8, (std::uint64_t{1} << 35) - 120}) {
        asked.ring.capacity = Kind<T>::capacity(3);
        const ring::detail::FirstPosition begins{initial};
        AnyEnds<T> ends{design, asked};
        ASSERT_TRUE(ends.producer && ends.consumer);
        for (std::uint64_t i = 0; i < 20; ++i) {
            ASSERT_EQ(ends.put(i), Status::ok);
            ASSERT_EQ(ends.take(), i);
        }
    }
}

/// Each end waits for the other in turn, asleep: again until both have slept, since nothing makes a
/// busy machine's threads meet.
template <class T>
void sleeps_and_wakes(ring::Design design, Options asked = {}) {
    asked.ring.capacity = Kind<T>::capacity(4);
    asked.wait = base::WaitPolicy::blocking();
    AnyEnds<T> ends{design, asked};
    ASSERT_TRUE(ends.producer && ends.consumer);
    constexpr std::uint64_t items = 120;
    const auto both_slept = [&] {
        return ends.consumer->stats().ring.sleeps != 0 && ends.producer->stats().ring.sleeps != 0;
    };
    std::uint64_t first = 0;
    for (const Deadline deadline = Deadline::after(40s); !both_slept() && !deadline.expired();
         first += items) {
        std::atomic<bool> flushed{false};
        std::thread consumer{[&] {
            for (std::uint64_t i = 0; i < items; ++i) {
                if (i >= items / 2 && i % 9 == 0) std::this_thread::sleep_for(2ms);
                detail::Taken<T> item;
                ASSERT_EQ(ends.consumer->dequeue(item, Deadline::after(40s)), Status::ok) << i;
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
                EXPECT_EQ(ends.producer->flush(Deadline::after(40s)), Status::ok);
                std::this_thread::sleep_for(2ms);
            }
            EXPECT_EQ(ends.producer->enqueue(Kind<T>::make(first + i), Deadline::after(40s)),
                      Status::ok)
                << i;
        }
        EXPECT_EQ(ends.producer->flush(Deadline::after(40s)), Status::ok);
        flushed = true;
        consumer.join();
        if (testing::Test::HasFailure()) return;
    }
    EXPECT_TRUE(both_slept());
}

/// The producer's flush ends when everything was taken, although the consumer makes no call
/// behind its last item: whatever credit it owes then, it owes for ever.
template <class T>
void flushes_what_was_taken(ring::Design design, Options asked = {}) {
    for (const auto& policy : {base::WaitPolicy{}, base::WaitPolicy::polling()}) {
        asked.ring.capacity = Kind<T>::capacity(100);
        asked.wait = policy;
        AnyEnds<T> ends{design, asked};
        ASSERT_TRUE(ends.producer && ends.consumer);
        std::uint64_t sent = 0;
        while (sent < 100 && ends.producer->try_enqueue(Kind<T>::make(sent)) == Status::ok) ++sent;
        ASSERT_GT(sent, 0U);
        for (std::uint64_t taken = 0; taken < sent; ++taken) ASSERT_EQ(ends.take(), taken);
        const Deadline deadline = Deadline::after(40s);
        EXPECT_EQ(ends.producer->flush(deadline), Status::ok);
        EXPECT_FALSE(deadline.expired()) << "the last look found it, and no sleep ended for it";
    }
}

/// An item in place, of a number; or a batch of `count` from that number on.
template <class T, class End>
Status put_in_place(End& producer, std::uint64_t number) {
    const auto item = Kind<T>::make(number);
    Status status;
    if constexpr (std::is_same_v<T, Bytes>) {
        std::span<std::byte> place;
        status = producer.claim(item.size() + 3, place);
        if (status == Status::ok) {
            std::memcpy(place.data(), item.data(), item.size());
            return producer.commit(item.size());
        }
    } else {
        T* place = nullptr;
        status = producer.claim(place);
        if (status == Status::ok) {
            *place = item;
            return producer.commit();
        }
    }
    return status;
}
template <class T>
[[nodiscard]] auto batch_of(std::uint64_t first, std::uint64_t count) {
    std::vector<detail::Taken<T>> items;
    for (std::uint64_t i = 0; i < count; ++i) items.push_back(Kind<T>::make(first + i));
    return items;
}

/// Items put one by one, in place and in batches come out the same, one by one, in place and in
/// batches.
template <class T>
void takes_items_in_place_and_in_batches(ring::Design design, Options asked = {}) {
    asked.ring.capacity = Kind<T>::capacity(7);
    AnyEnds<T> ends{design, asked};
    ASSERT_TRUE(ends.producer && ends.consumer);
    constexpr std::uint64_t items = 150;
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
    const Deadline deadline = Deadline::after(40s);
    for (std::uint64_t turn = 0; taken < items; ++turn) {
        ASSERT_FALSE(deadline.expired()) << sent << " put, " << taken << " taken";
        if (sent < items) {
            Status status = Status::ok;
            switch (turn % 3) {
                case 0: status = ends.producer->try_enqueue(Kind<T>::make(sent)); break;
                case 1: status = put_in_place<T>(*ends.producer, sent); break;
                default: {
                    const auto batch =
                        batch_of<T>(sent, std::min<std::uint64_t>(turn % 5, items - sent));
                    const std::vector<typename AnyProducer<T>::Item> given(batch.begin(),
                                                                           batch.end());
                    const BatchResult in = ends.producer->try_enqueue_batch(given);
                    ASSERT_LE(in.count, given.size());
                    ASSERT_EQ(in.status == Status::ok, in.count == given.size());
                    status = in.status;
                    sent += in.count;
                }
            }
            ASSERT_TRUE(status == Status::ok || status == Status::full) << name_of(status);
            if (status == Status::ok && turn % 3 != 2) ++sent;
        }
        ends.check_counters();
        (void)ends.producer->flush(Deadline::now());
        if (turn % 4 == 0) {
            detail::Seen<T> item;
            while (ends.consumer->peek(item) == Status::ok) {
                detail::Seen<T> again;
                ASSERT_EQ(ends.consumer->peek(again), Status::ok);
                if constexpr (std::is_same_v<T, Bytes>) {
                    ASSERT_EQ(item.data(), again.data());
                    ASSERT_EQ(Kind<T>::number_of({item.begin(), item.end()}), taken);
                } else {
                    ASSERT_EQ(item, again);
                    ASSERT_EQ(Kind<T>::number_of(*item), taken);
                }
                ends.consumer->release();
                ++taken;
            }
        } else if (turn % 4 == 2) {
            std::vector<detail::Taken<T>> out(3);
            const BatchResult result = ends.consumer->try_dequeue_batch(out);
            for (std::uint64_t i = 0; i < result.count; ++i) {
                ASSERT_EQ(Kind<T>::number_of(out[i]), taken++);
            }
            ASSERT_TRUE(result.status == Status::ok || result.status == Status::empty);
        }
        ends.check_counters();
        std::this_thread::yield();  // a mover may want this core
    }
}

/// Cancelling ends the wait of either end, whether it sleeps already or has not begun; nothing of
/// what was enqueued is lost by it.
template <class T>
void ends_waits_that_are_cancelled(ring::Design design) {
    AnyEnds<T> ends{design, Options{.ring = {.capacity = Kind<T>::capacity(2)},
                                    .wait = base::WaitPolicy::blocking()}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    detail::Taken<T> item;
    {
        base::Cancellation cancellation;
        std::thread other{[&] {
            std::this_thread::sleep_for(2ms);
            cancellation.request();
        }};
        EXPECT_EQ(ends.consumer->dequeue(item, Deadline::after(40s).cancelled_by(cancellation)),
                  Status::cancelled);
        other.join();
        EXPECT_EQ(ends.consumer->dequeue(item, Deadline::after(40s).cancelled_by(cancellation)),
                  Status::cancelled);
    }
    std::uint64_t sent = 0;
    while (ends.producer->enqueue(Kind<T>::make(sent), Deadline::after(5ms)) == Status::ok) {
        ASSERT_LE(++sent, 60U);
    }
    base::Cancellation cancellation;
    cancellation.request();
    // What was on its way may have made room since.
    Status status;
    while ((status = ends.producer->enqueue(Kind<T>::make(sent),
                                            Deadline::after(40s).cancelled_by(cancellation))) ==
           Status::ok) {
        ASSERT_LE(++sent, 60U);
    }
    EXPECT_EQ(status, Status::cancelled);
    for (std::uint64_t taken = 0; taken < sent; ++taken) ASSERT_EQ(ends.take(), taken);
    EXPECT_EQ(ends.consumer->try_dequeue(item), Status::empty);
}

template <class T>
void drains_after_close(ring::Design design, Options asked = {}) {
    asked.ring.capacity = Kind<T>::capacity(8);
    AnyEnds<T> ends{design, asked};
    ASSERT_TRUE(ends.producer && ends.consumer);
    std::uint64_t sent = 0;
    while (sent < 5 && ends.producer->try_enqueue(Kind<T>::make(sent)) == Status::ok) ++sent;
    std::uint64_t taken = 0;
    // Over pull it is the consumer's calls that move what is left.
    const Deadline deadline = Deadline::after(40s);
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
        ASSERT_EQ(ends.consumer->dequeue(item, Deadline::after(40s)), Status::ok);
        ASSERT_EQ(Kind<T>::number_of(item), taken);
    }
    EXPECT_EQ(ends.consumer->dequeue(item, Deadline::after(40s)), Status::closed);
    EXPECT_EQ(ends.consumer->try_dequeue(item), Status::closed);
}

template <class T>
void tells_of_loss_and_of_close(ring::Design design, Options asked = {}) {
    asked.ring.capacity = Kind<T>::capacity(2);
    {
        AnyEnds<T> ends{design, asked};
        ASSERT_TRUE(ends.producer && ends.consumer);
        ends.producer.reset();
        detail::Taken<T> item;
        EXPECT_EQ(ends.consumer->dequeue(item, Deadline::after(40s)), Status::peer_lost);
        EXPECT_EQ(ends.consumer->look_around(), Status::peer_lost);
    }
    for (const bool closes : {false, true}) {
        AnyEnds<T> ends{design, asked};
        ASSERT_TRUE(ends.producer && ends.consumer);
        if (closes) {
            ends.consumer->close();
        } else {
            ends.consumer.reset();
        }
        Status status = Status::ok;
        for (std::uint64_t i = 0; i < 20 && status == Status::ok; ++i) {
            status = ends.producer->enqueue(Kind<T>::make(i), Deadline::after(40s));
        }
        EXPECT_EQ(status, closes ? Status::closed : Status::peer_lost);
        EXPECT_EQ(ends.producer->look_around(), status);
    }
}

}  // namespace millrace::flow::test
