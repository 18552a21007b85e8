// What the values of a window come to, by key: windows in time and in values, one after the other
// and over one another.
#include "millrace/flow/windowed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "crowd.hpp"
#include "rpc/allocations.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using std::chrono::nanoseconds;
using testing::HasSubstr;

/// The values themselves, in their order: nothing is lost in it, or joined in another order.
struct Sequence {
    std::uint32_t length = 0;
    std::array<std::uint16_t, 60> numbers{};

    void add(std::uint16_t number) { numbers.at(length++) = number; }
    void join(const Sequence& other) {
        for (std::uint32_t i = 0; i != other.length; ++i) add(other.numbers.at(i));
    }
    friend bool operator==(const Sequence&, const Sequence&) = default;
};
using Seen = Windowed<std::uint32_t, Sequence>;
/// By key and beginning.
using Windows = std::map<std::pair<std::uint32_t, std::int64_t>, Sequence>;

WindowedProducer<Producer<Seen>> windows_to(QueueEnds<Seen>& ends, Window window,
                                            WindowOptions options = {}) {
    return {std::move(*ends.producer), window, std::move(options)};
}
std::vector<Seen> results_of(Consumer<Seen>& consumer) {
    std::vector<Seen> results;
    for (Seen one; consumer.try_dequeue(one) == Status::ok;) results.push_back(one);
    return results;
}
/// The same, after everything that was sent has arrived.
template <class Windowing>
std::vector<Seen> results_of(Consumer<Seen>& consumer, Windowing& producer) {
    EXPECT_EQ(producer.producer().flush(soon()), Status::ok);
    return results_of(consumer);
}
/// Joins parts of a window; how many.
std::size_t join(Consumer<Seen>& consumer, Windows& windows) {
    const std::vector<Seen> results = results_of(consumer);
    for (const Seen& one : results) {
        EXPECT_EQ(one.items, one.value.length);
        windows[{one.key, one.begin}].join(one.value);
    }
    return results.size();
}
std::vector<std::uint16_t> numbers_of(const Seen& one) {
    return {one.value.numbers.begin(), one.value.numbers.begin() + one.value.length};
}
using Numbers = std::vector<std::uint16_t>;

TEST(Windowed, TumblesByTheClock) {
    QueueEnds<Seen> ends;
    nanoseconds now{1003};
    auto producer = windows_to(ends, Window::tumbling(10ns), {.clock = [&] { return now; }});
    EXPECT_EQ(producer.due_in(), nanoseconds::max());
    ASSERT_EQ(producer.try_enqueue(7, std::uint16_t{1}), Status::ok);
    now += 6ns;
    ASSERT_EQ(producer.try_enqueue(7, std::uint16_t{2}), Status::ok);
    ASSERT_EQ(producer.try_enqueue(8, std::uint16_t{3}), Status::ok);
    EXPECT_EQ(producer.due_in(), 1ns);
    EXPECT_TRUE(results_of(*ends.consumer, producer).empty());
    now += 1ns;
    ASSERT_EQ(producer.try_enqueue(7, std::uint16_t{4}), Status::ok);
    auto results = results_of(*ends.consumer, producer);
    ASSERT_EQ(results.size(), 2U);
    EXPECT_EQ(results[0].key, 7U);
    EXPECT_EQ(numbers_of(results[0]), (Numbers{1, 2}));
    EXPECT_EQ(results[0].begin, 1000);
    EXPECT_EQ(results[0].end, 1010);
    EXPECT_EQ(results[0].items, 2U);
    EXPECT_EQ(results[1].key, 8U);
    EXPECT_EQ(numbers_of(results[1]), (Numbers{3}));
    // A long time without a value, and nothing that would be empty.
    now += 1'000'000ns;
    EXPECT_EQ(producer.try_send(), Status::ok);
    results = results_of(*ends.consumer, producer);
    ASSERT_EQ(results.size(), 1U);
    EXPECT_EQ(numbers_of(results[0]), (Numbers{4}));
    EXPECT_EQ(producer.stats().waiting, 0U) << "a key without values takes no place";
    // A clock that goes back stands still.
    now -= 500ns;
    ASSERT_EQ(producer.try_enqueue(7, std::uint16_t{5}), Status::ok);
    EXPECT_EQ(producer.close(soon()), Status::ok);
    results = results_of(*ends.consumer);
    ASSERT_EQ(results.size(), 1U);
    EXPECT_EQ(results[0].begin, 1'001'010);
}

TEST(Windowed, SlidesByTheClock) {
    QueueEnds<Seen> ends;
    nanoseconds now{-5};  // before its epoch
    auto producer = windows_to(ends, Window::sliding(30ns, 10ns), {.clock = [&] { return now; }});
    for (std::uint16_t i = 1; i <= 5; ++i) {
        ASSERT_EQ(producer.try_enqueue(1, i), Status::ok);
        now += 10ns;
    }
    now += 100ns;
    ASSERT_EQ(producer.try_send(), Status::ok);
    std::vector<std::pair<std::int64_t, Numbers>> seen;
    for (const Seen& one : results_of(*ends.consumer, producer))
        seen.emplace_back(one.begin, numbers_of(one));
    const std::vector<std::pair<std::int64_t, Numbers>> expected{
        {-30, {1}},      {-20, {1, 2}}, {-10, {1, 2, 3}}, {0, {2, 3, 4}},
        {10, {3, 4, 5}}, {20, {4, 5}},  {30, {5}}};
    EXPECT_EQ(seen, expected);
}

TEST(Windowed, CountsTheValuesOfEachKey) {
    QueueEnds<Seen> ends;
    auto producer = windows_to(ends, Window::tumbling_items(3));
    for (std::uint16_t i = 1; i <= 14; ++i) ASSERT_EQ(producer.try_enqueue(i % 2, i), Status::ok);
    auto results = results_of(*ends.consumer, producer);
    ASSERT_EQ(results.size(), 4U);
    EXPECT_EQ(numbers_of(results[0]), (Numbers{1, 3, 5}));
    EXPECT_EQ(results[0].begin, 0);
    EXPECT_EQ(results[0].end, 3);
    EXPECT_EQ(numbers_of(results[1]), (Numbers{2, 4, 6}));
    EXPECT_EQ(numbers_of(results[3]), (Numbers{8, 10, 12}));
    EXPECT_EQ(results[3].begin, 3);
    ASSERT_EQ(producer.close(soon()), Status::ok);
    results = results_of(*ends.consumer);
    ASSERT_EQ(results.size(), 2U);
    EXPECT_EQ(numbers_of(results[0]), (Numbers{13}));
    EXPECT_EQ(results[0].begin, 6);
    EXPECT_EQ(results[0].items, 1U) << "cut short";
}

TEST(Windowed, SlidesOverTheValuesOfAKey) {
    QueueEnds<Seen> ends;
    auto producer = windows_to(ends, Window::sliding_items(4, 2));
    for (std::uint16_t i = 1; i <= 9; ++i) ASSERT_EQ(producer.try_enqueue(1, i), Status::ok);
    ASSERT_EQ(producer.close(soon()), Status::ok);
    std::vector<Numbers> seen;
    for (const Seen& one : results_of(*ends.consumer)) seen.push_back(numbers_of(one));
    EXPECT_EQ(seen, (std::vector<Numbers>{{1, 2, 3, 4}, {3, 4, 5, 6}, {5, 6, 7, 8}, {7, 8, 9}}));
}

TEST(Windowed, TakesNoValueWhileTheResultOfAnEndedWindowFindsNoRoom) {
    QueueEnds<Seen> ends{small(2)};
    nanoseconds now{0};
    auto producer = windows_to(ends, Window::tumbling(10ns), {.clock = [&] { return now; }});
    for (std::uint32_t key = 0; key != 20; ++key) {
        ASSERT_EQ(producer.try_enqueue(key, std::uint16_t{1}), Status::ok);
    }
    now = 10ns;
    EXPECT_EQ(producer.try_enqueue(0, std::uint16_t{2}), Status::full);
    EXPECT_EQ(producer.try_send(), Status::full);
    EXPECT_EQ(producer.due_in(), 0ns);
    EXPECT_EQ(producer.enqueue(0, std::uint16_t{2}, Deadline::after(10ms)), Status::timed_out);
    Windows windows;
    const Deadline deadline = soon();
    while (producer.try_enqueue(0, std::uint16_t{3}) == Status::full && !deadline.expired()) {
        (void)join(*ends.consumer, windows);
    }
    while (producer.close(Deadline::now()) != Status::ok && !deadline.expired()) {
        (void)join(*ends.consumer, windows);
    }
    (void)join(*ends.consumer, windows);
    EXPECT_EQ(windows.size(), 21U);
    EXPECT_EQ((windows[{0, 0}].numbers[0]), 1);
    EXPECT_EQ((windows[{0, 10}].numbers[0]), 3);
    EXPECT_EQ((windows[{0, 10}].length), 1U) << "what was answered otherwise is not in it";
}

TEST(Windowed, KeepsNoPlaceForAKeyWhoseFirstValueItRefused) {
    QueueEnds<Seen> ends{small(2)};
    auto producer = windows_to(ends, Window::tumbling_items(1));
    std::uint32_t key = 0;
    while (producer.try_enqueue(key, std::uint16_t{1}) == Status::ok) ++key;
    EXPECT_EQ(producer.stats().waiting, key);
    std::vector<Seen> of_key;
    const auto take = [&] {
        for (const Seen& one : results_of(*ends.consumer)) {
            if (one.key == key) of_key.push_back(one);
        }
    };
    const Deadline deadline = soon();
    while (producer.try_enqueue(key, std::uint16_t{2}) == Status::full && !deadline.expired())
        take();
    while (producer.flush(Deadline::now()) != Status::ok && !deadline.expired()) take();
    take();
    ASSERT_EQ(of_key.size(), 1U);
    EXPECT_EQ(numbers_of(of_key[0]), (Numbers{2}));
    EXPECT_EQ(of_key[0].begin, 0);
}

/// Every window that a value at `time`, of `panes` panes of `distance`, is in.
void add_to_all(Windows& windows, std::uint32_t key, std::int64_t time, std::int64_t distance,
                std::int64_t panes, std::uint16_t value) {
    const std::int64_t pane = time / distance;
    for (std::int64_t first = pane - panes + 1; first <= pane; ++first) {
        windows[{key, first * distance}].add(value);
    }
}

TEST(Windowed, OfAnyHistoryByTheClockEqualsAPlainComputation) {
    const bool held = rc::check([] {
        const auto panes = *rc::gen::inRange<std::int64_t>(1, 5);
        const auto keys = *rc::gen::inRange<std::uint32_t>(1, 6);
        QueueEnds<Seen> ends{small(*rc::gen::inRange<std::uint64_t>(1, 6))};
        nanoseconds now{1000};
        auto producer = windows_to(
            ends, panes == 1 ? Window::tumbling(10ns) : Window::sliding(panes * 10ns, 10ns),
            {.keys = keys, .clock = [&] { return now; }});
        Windows plain, joined;
        std::vector<Seen> whole;
        std::uint16_t value = 0;
        // 0 to 4: a value of that key; 5, 6: the consumer takes all; 7, 8: time goes on; 9: a look.
        const auto steps = *rc::gen::container<std::vector<int>>(rc::gen::weightedOneOf<int>(
            {{6, rc::gen::inRange(0, 5)}, {4, rc::gen::inRange(5, 10)}}));
        for (const int step : steps) {
            if (value == 55) break;
            if (step == 9) {
                (void)producer.try_send();
            } else if (step >= 7) {
                now += step == 7 ? 4ns : 23ns;
            } else if (step >= 5) {
                (void)join(*ends.consumer, joined);
            } else {
                const auto key = static_cast<std::uint32_t>(step);
                const Status status = producer.try_enqueue(key, ++value);
                RC_ASSERT(status == Status::ok || status == Status::full);
                if (status == Status::ok) {
                    add_to_all(plain, key, now.count(), 10, panes, value);
                }
            }
        }
        const Deadline deadline = soon();
        while (producer.close(Deadline::now()) != Status::ok && !deadline.expired()) {
            (void)join(*ends.consumer, joined);
        }
        (void)join(*ends.consumer, joined);
        RC_ASSERT(plain == joined);
    });
    EXPECT_TRUE(held);
}

TEST(Windowed, OfAnyHistoryInValuesEqualsAPlainComputation) {
    const bool held = rc::check([] {
        const auto panes = *rc::gen::inRange<std::uint32_t>(1, 4);
        const auto distance = *rc::gen::inRange<std::uint32_t>(1, 4);
        const std::uint32_t length = panes * distance;
        QueueEnds<Seen> ends{small(*rc::gen::inRange<std::uint64_t>(1, 6))};
        auto producer = windows_to(ends, Window::sliding_items(length, distance), {.keys = 5});
        std::map<std::uint32_t, Numbers> values;
        Windows joined;
        std::uint16_t value = 0;
        for (const int step : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 7))) {
            if (step >= 5) {
                (void)join(*ends.consumer, joined);
                continue;
            }
            const auto key = static_cast<std::uint32_t>(step);
            const Status status = producer.try_enqueue(key, ++value);
            RC_ASSERT(status == Status::ok || status == Status::full);
            if (status == Status::ok) values[key].push_back(value);
        }
        const Deadline deadline = soon();
        while (producer.close(Deadline::now()) != Status::ok && !deadline.expired()) {
            (void)join(*ends.consumer, joined);
        }
        (void)join(*ends.consumer, joined);
        Windows plain;
        for (const auto& [key, all] : values) {
            // Those that are filled, and what is left after the last of them.
            std::size_t told = 0;
            for (std::size_t end = length; end <= all.size(); end += distance) {
                for (std::size_t i = end - length; i != end; ++i) {
                    plain[{key, static_cast<std::int64_t>(end - length)}].add(all[i]);
                }
                told = end;
            }
            if (told == all.size()) continue;
            const std::size_t end = (all.size() + distance - 1) / distance * distance;
            const std::size_t begin = end < length ? 0 : end - length;
            for (std::size_t i = begin; i != all.size(); ++i) {
                plain[{key, static_cast<std::int64_t>(begin)}].add(all[i]);
            }
        }
        RC_ASSERT(plain == joined);
    });
    EXPECT_TRUE(held);
}

TEST(Windowed, SendsEachWindowOfAKeyOnceWhereThereIsAPlaceForAll) {
    QueueEnds<Seen> ends{small(64)};
    nanoseconds now{0};
    auto producer =
        windows_to(ends, Window::sliding(20ns, 10ns), {.keys = 3, .clock = [&] { return now; }});
    std::map<std::pair<std::uint32_t, std::int64_t>, int> times;
    for (int i = 0; i != 60; ++i) {
        ASSERT_EQ(producer.try_enqueue(static_cast<std::uint32_t>(i % 3), std::uint16_t{1}),
                  Status::ok);
        now += 3ns;
        for (const Seen& one : results_of(*ends.consumer)) ++times[{one.key, one.begin}];
    }
    ASSERT_FALSE(times.empty());
    for (const auto& [window, count] : times) EXPECT_EQ(count, 1) << window.second;
}

TEST(Windowed, TakesItsMemoryWhenItIsMade) {
    QueueEnds<Seen> ends{small(64)};
    nanoseconds now{0};
    auto producer =
        windows_to(ends, Window::sliding(50ns, 10ns), {.keys = 20, .clock = [&] { return now; }});
    (void)producer.try_enqueue(0, std::uint16_t{1});
    now += 100ns;
    (void)producer.try_send();
    ASSERT_EQ(producer.producer().flush(soon()), Status::ok);
    Seen one;
    ASSERT_EQ(ends.consumer->try_dequeue(one), Status::ok);
    const std::uint64_t before = rpc::allocations();
    for (std::uint32_t i = 0; i != 10'000; ++i) {
        (void)producer.try_enqueue(i * 7919 % 30, std::uint16_t{1});
        now += 2ns;
        while (ends.consumer->try_dequeue(one) == Status::ok) {
        }
    }
    // The device tidies up now and then, with a list of its peers.
    EXPECT_LT(rpc::allocations() - before, 100U);
    EXPECT_GT(producer.stats().crowded, 0U);
}

TEST(Windowed, RefusesWhatIsNoWindow) {
    const auto refusal = [](Window window, WindowOptions options = {}) {
        QueueEnds<Seen> ends;
        return std::string{error_of([&] { (void)windows_to(ends, window, options); }).what()};
    };
    EXPECT_THAT(refusal(Window::sliding(25ms, 10ms)), HasSubstr("25 ms"));
    EXPECT_THAT(refusal(Window::tumbling(0ns)), HasSubstr("multiple"));
    EXPECT_THAT(refusal(Window::sliding_items(5000, 1)), HasSubstr("1024"));
    EXPECT_THAT(refusal(Window::tumbling(1s), {.keys = 0}), HasSubstr("0 keys"));
}

TEST(Windowed, ExplainsItsWindows) {
    QueueEnds<Seen> ends;
    EXPECT_THAT(windows_to(ends, Window::sliding(60s, 10s)).explain(),
                HasSubstr("sliding windows of 60 s, one in each 10 s"));
}

}  // namespace
}  // namespace millrace::flow
