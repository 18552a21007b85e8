// Producers that lay items where the consumer reads them: the same items in the same order, and
// what is different about it. Two processes and a kill: at the end.
#include "flow/conformance.hpp"
#include "support/child_process.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

/// Of push1 data, without a mover. Where the device cannot, the same tests show that nothing is
/// amiss.
class InPlace : public testing::TestWithParam<ring::Batching> {
  protected:
    [[nodiscard]] static Options asked() {
        Options options;
        options.in_place = true;
        return options;
    }
    template <class Test>
    static void at_every_point(Test&& test) {
        for (const ring::Design flows : every_design()) {
            if (flows.data != ring::DataFlow::push1) continue;
            const ring::Design design = with(flows, GetParam());
            SCOPED_TRACE(to_string(design));
            test(design);
            if (HasFatalFailure()) return;
        }
    }
};
INSTANTIATE_TEST_SUITE_P(Batching, InPlace,
                         testing::Values(ring::Batching::none, ring::Batching::fixed,
                                         ring::Batching::dynamic),
                         [](const auto& way) { return std::string{name_of(way.param)}; });

TEST_P(InPlace, KeepsOrderWhereTheRingWraps) {
    at_every_point(
        [](ring::Design design) { keeps_order_where_the_ring_wraps<Numbered>(design, asked()); });
}
TEST_P(InPlace, SaysFullAndGoesOn) {
    at_every_point(
        [](ring::Design design) { says_full_and_goes_on<Numbered>(design, 1, asked()); });
}
TEST_P(InPlace, KeepsOrderWhereItsCountersWrap) {
    at_every_point(
        [](ring::Design design) { keeps_order_where_counters_wrap<Numbered>(design, asked()); });
}
TEST_P(InPlace, SleepsAndWakes) {
    at_every_point([](ring::Design design) { sleeps_and_wakes<Numbered>(design, asked()); });
}
TEST_P(InPlace, LetsTheConsumerDrainAfterTheProducerClosed) {
    at_every_point([](ring::Design design) { drains_after_close<Numbered>(design, asked()); });
}
TEST_P(InPlace, TellsOfLossAndOfClose) {
    at_every_point(
        [](ring::Design design) { tells_of_loss_and_of_close<Numbered>(design, asked()); });
}

constexpr auto fixed = ring::with(ring::design_1, ring::Batching::fixed);

TEST(FlowInPlace, IsWhatTheSoftDeviceInModeFastAllows) {
    Ends<Numbered, ring::design_1> ends{Options{.capacity = 4, .in_place = true}};
    Ends<Numbered, ring::design_1> without{Options{.capacity = 4}};
#if defined(__SANITIZE_THREAD__)
    EXPECT_FALSE(is_in_place(ends.producer()));
#else
    EXPECT_EQ(is_in_place(ends.producer()), ends.completes_at_once());
#endif
    EXPECT_FALSE(is_in_place(without.producer()));
}

TEST(FlowInPlace, HoldsARingOfItemsAndPostsAWriteForEach) {
    Ends<Numbered, ring::design_1> ends{Options{.capacity = 5, .in_place = true}};
    if (!is_in_place(ends.producer())) GTEST_SKIP() << "not on this device";
    std::uint64_t held = 0;
    while (ends.producer().try_enqueue(Kind<Numbered>::make(held)) == Status::ok) ++held;
    EXPECT_EQ(held, 5U);
    EXPECT_EQ(ends.producer().stats().ring.data_writes, 5U);
    Numbered item;
    for (std::uint64_t i = 0; i < held; ++i) {
        ASSERT_EQ(ends.take(item), Status::ok);
        EXPECT_EQ(Kind<Numbered>::number_of(item), i);
    }
}

TEST(FlowInPlace, ShowsNothingOfABatchThatIsNotSent) {
    Ends<Numbered, fixed> ends{Options{.capacity = 16, .batch = 4, .in_place = true}};
    Numbered item;
    for (std::uint64_t batch = 0; batch < 20; ++batch) {
        for (std::uint64_t i = 0; i < 3; ++i) {
            ASSERT_EQ(ends.producer().try_enqueue(Kind<Numbered>::make(4 * batch + i)), Status::ok);
            ASSERT_EQ(ends.consumer().try_dequeue(item), Status::empty);
        }
        ASSERT_EQ(ends.producer().try_enqueue(Kind<Numbered>::make(4 * batch + 3)), Status::ok);
        for (std::uint64_t i = 0; i < 4; ++i) {
            ASSERT_EQ(ends.take(item), Status::ok);
            ASSERT_EQ(Kind<Numbered>::number_of(item), 4 * batch + i);
        }
    }
    ASSERT_EQ(ends.producer().try_enqueue(Kind<Numbered>::make(80)), Status::ok);
    ASSERT_EQ(ends.consumer().try_dequeue(item), Status::empty);
    ASSERT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
    EXPECT_EQ(ends.consumer().try_dequeue(item), Status::ok);
}

TEST(FlowInPlace, MayBeWrittenWhenTheConsumerIsGone) {
    Ends<Numbered, ring::design_1> ends{Options{.capacity = 8, .in_place = true}};
    Numbered* place = nullptr;
    ASSERT_EQ(ends.producer().claim(place), Status::ok);
    ends.drop_consumer();
    *place = Kind<Numbered>::make(0);
    Status status = ends.producer().commit();
    for (std::uint64_t i = 1; i < 20 && status == Status::ok; ++i) {
        status = ends.producer().enqueue(Kind<Numbered>::make(i), Deadline::after(40s));
    }
    EXPECT_EQ(status, Status::peer_lost);
}

TEST(FlowInPlace, GathersByCopies) {
    Ends<Numbered, ring::design_1> ends{Options{.capacity = 64, .gather = 4, .in_place = true}};
    if (!is_in_place(ends.producer())) GTEST_SKIP() << "not on this device";
    std::vector<Numbered> table;
    for (std::uint64_t i = 0; i < 8; ++i) table.push_back(Kind<Numbered>::make(i));
    const auto memory = ends.producer().register_memory(std::as_writable_bytes(std::span{table}));
    const std::array<const Numbered*, 3> rows{&table[5], &table[0], &table[7]};
    EXPECT_EQ(ends.producer().try_enqueue_gather(memory, rows).count, 3U);
    Numbered item;
    for (const std::uint64_t expected : {5, 0, 7}) {
        ASSERT_EQ(ends.take(item), Status::ok);
        EXPECT_EQ(Kind<Numbered>::number_of(item), expected);
    }
}

TEST(FlowInPlace, IsRefusedWhereItCannotBe) {
    const auto refused = [](auto make) {
        try {
            (void)make();
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            EXPECT_NE(std::string{error.what()}.find("in place"), std::string::npos);
            return true;
        }
        return false;
    };
    const auto options = with_endpoint({.in_place = true});
    EXPECT_TRUE(refused(
        [&] { return Producer<Bytes>::connect(unique_address(), options, Deadline::after(1s)); }));
    constexpr auto moved = ring::with(ring::design_1, ring::Batching::none, ring::Mover::active);
    EXPECT_TRUE(refused([&] {
        return Producer<Numbered, moved>::connect(unique_address(), options, Deadline::after(1s));
    }));
    EXPECT_TRUE(refused([&] {
        return AnyProducer<Numbered>::connect(ring::parse_design("pull/push/push").design,
                                              unique_address(), options, Deadline::after(1s));
    }));
}

// ---- two processes. Children: address, design, count

MILLRACE_CHILD(in_place_producer) {
    const auto named = ring::parse_design(arguments[1]);
    auto producer = AnyProducer<Numbered>::connect(
        named.design, arguments[0], {.capacity = 100, .in_place = true}, Deadline::after(40s));
    say("connected");
    const std::uint64_t count = std::stoull(arguments[2]);
    Status status = Status::ok;
    for (std::uint64_t i = 0; i < count && status == Status::ok; ++i) {
        status = producer.enqueue(Kind<Numbered>::make(i), Deadline::after(40s));
    }
    if (status == Status::ok) status = producer.close(Deadline::after(40s));
    say(std::string{name_of(status)});
    return 0;
}

class InPlaceBetweenProcesses : public testing::TestWithParam<const char*> {
  protected:
    /// Items taken in order until `last`.
    static std::uint64_t take_all(AnyConsumer<Numbered>& consumer, Status& last) {
        std::uint64_t taken = 0;
        Numbered item;
        while ((last = consumer.dequeue(item, Deadline::after(40s))) == Status::ok) {
            if (Kind<Numbered>::number_of(item) != taken) {
                ADD_FAILURE() << "wrong item at " << taken;
                break;
            }
            ++taken;
        }
        return taken;
    }
};
INSTANTIATE_TEST_SUITE_P(Designs, InPlaceBetweenProcesses,
                         testing::Values("push1/watermark/pull", "push1/watermark/push+fixed16",
                                         "push1/immediate/push+dynamic", "push1/push/push2"),
                         [](const auto& tested) {
                             std::string name = tested.param;
                             for (char& c : name) {
                                 if (c == '/' || c == '+') c = '_';
                             }
                             return name;
                         });

TEST_P(InPlaceBetweenProcesses, DeliversEveryItemInOrder) {
    const std::string address = unique_address();
    auto listener = Listener::listen(address, with_endpoint({}));
    ChildProcess child = ChildProcess::start("in_place_producer", {address, GetParam(), "20000"});
    auto consumer = AnyConsumer<Numbered>::accept(ring::parse_design(GetParam()).design, listener,
                                                  Deadline::after(40s));
    Status last = Status::ok;
    EXPECT_EQ(take_all(consumer, last), 20000U);
    EXPECT_EQ(last, Status::closed);
    EXPECT_EQ(child.read_line(60s), "connected");
    EXPECT_EQ(child.read_line(60s), "ok");
    EXPECT_TRUE(child.wait().success());
}

TEST_P(InPlaceBetweenProcesses, SurvivesAKillOfItsProducer) {
    for (int round = 0; round < 5; ++round) {
        const std::string address = unique_address();
        auto listener = Listener::listen(address, with_endpoint({}));
        ChildProcess child =
            ChildProcess::start("in_place_producer", {address, GetParam(), "1000000000"});
        auto consumer = AnyConsumer<Numbered>::accept(ring::parse_design(GetParam()).design,
                                                      listener, Deadline::after(40s));
        Numbered item;
        std::uint64_t taken = 0;
        for (; taken < 500U * static_cast<std::uint64_t>(round); ++taken) {
            ASSERT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::ok);
            ASSERT_EQ(Kind<Numbered>::number_of(item), taken);
        }
        child.kill();
        Status status;
        while ((status = consumer.dequeue(item, Deadline::after(40s))) == Status::ok) {
            ASSERT_EQ(Kind<Numbered>::number_of(item), taken++);
        }
        EXPECT_EQ(status, Status::peer_lost);
    }
}

}  // namespace
}  // namespace millrace::flow
