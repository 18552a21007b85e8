// The carrier: producers that store items where the consumer reads them, and those that post them,
// whatever is chosen at the other end. The suites of every point run over both; here is what is
// different about a store. Two processes and a kill: at the end.
#include "flow/conformance.hpp"
#include "support/child_process.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

[[nodiscard]] bool can_store(const connect::Endpoint& endpoint) {
#if defined(__SANITIZE_THREAD__)
    (void)endpoint;
    return false;
#else
    return completes_at_once(endpoint);
#endif
}

/// Ends that do not choose alike understand each other.
TEST(FlowCarrier, IsEachEndsOwnChoice) {
    for (const ring::Design flows : every_design()) {
        if (flows.data != ring::DataFlow::push1) continue;
        for (const ring::Carrier of_producer : {ring::Carrier::automatic, ring::Carrier::post}) {
            SCOPED_TRACE(to_string(flows) + " " + std::string{name_of(of_producer)});
            const ring::Carrier of_consumer =
                of_producer == ring::Carrier::post ? ring::Carrier::automatic : ring::Carrier::post;
            AnyEnds<Numbered> ends{
                flows, with_endpoint({.ring = {.capacity = 5, .carrier = of_producer}}),
                with_endpoint({.ring = {.capacity = 5, .carrier = of_consumer}})};
            for (std::uint64_t i = 0; i < 100; ++i) {
                ASSERT_EQ(ends.put(i), Status::ok);
                if (i % 3 != 2) continue;
                for (std::uint64_t taken = i - 2; taken <= i; ++taken) {
                    ASSERT_EQ(ends.take(), taken);
                }
            }
        }
    }
}

/// What a text of explain() says of the carrier.
[[nodiscard]] bool says(const std::string& text, const char* words) {
    return text.find(words) != std::string::npos;
}

TEST(FlowCarrier, SaysWhichAndWhy) {
    Ends<Numbered, ring::design_1> automatic{Options{.ring = {.capacity = 4}}};
    const std::string text = automatic.producer().explain();
    if (can_store(*with_endpoint({}).endpoint)) {
        EXPECT_TRUE(says(text, "carrier: store, because the peer's memory is")) << text;
    } else {
        EXPECT_TRUE(says(text, "carrier: post, because the device does not")) << text;
    }
    Ends<Numbered, ring::design_1> posts{
        Options{.ring = {.capacity = 4, .carrier = ring::Carrier::post}}};
    EXPECT_TRUE(says(posts.producer().explain(), "carrier: post, because it was asked to"));
    const auto immediate = ring::parse_design("push1/immediate/push").design;
    AnyEnds<Numbered> told{immediate, Options{.ring = {.capacity = 4}}};
    EXPECT_TRUE(says(told.producer->explain(), "carrier: post, because immediate data come"));
}

TEST(FlowCarrier, IsRefusedWhereItCannotBe) {
    const auto refusal = [](ring::Design design) -> std::string {
        Listener listener =
            Listener::listen(unique_address(), with_endpoint({.ring = {.capacity = 4}}));
        base::Cancellation is_over;
        std::thread other{[&] {
            try {
                (void)AnyConsumer<Numbered>::accept(design, listener,
                                                    Deadline::after(40s).cancelled_by(is_over));
            } catch (const base::Error&) {
            }
        }};
        std::string text;
        try {
            (void)AnyProducer<Numbered>::connect(
                design, listener.address().to_string(),
                with_endpoint({.ring = {.capacity = 4, .carrier = ring::Carrier::store}}),
                Deadline::after(40s));
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::unsupported);
            text = error.what();
        }
        is_over.request();
        other.join();
        return text;
    };
    EXPECT_TRUE(says(refusal(ring::parse_design("push2/event/push").design), "SENDs"));
    EXPECT_TRUE(says(refusal(ring::parse_design("pull/push/push").design), "fetches them"));
    if (can_store(*with_endpoint({}).endpoint)) {
        AnyEnds<Numbered> ends{ring::design_1,
                               Options{.ring = {.capacity = 4, .carrier = ring::Carrier::store}}};
        EXPECT_EQ(ends.put(1), Status::ok);
    } else {
        const std::string of_push1 = refusal(ring::design_1);
        EXPECT_TRUE(says(of_push1, "does not make the peer's memory addressable")) << of_push1;
    }
}

constexpr auto fixed = ring::with(ring::design_1, ring::Batching::fixed);

TEST(FlowStore, HoldsOneRingOfItemsAndPostsNothing) {
    Ends<Numbered, ring::design_1> ends{Options{.ring = {.capacity = 5}}};
    if (ends.rings() != 1) GTEST_SKIP() << "not on this device";
    Numbered item;
    for (std::uint64_t round = 0; round < 20; ++round) {
        std::uint64_t held = 0;
        while (ends.producer().try_enqueue(Kind<Numbered>::make(held)) == Status::ok) ++held;
        EXPECT_EQ(held, 5U);
        for (std::uint64_t i = 0; i < held; ++i) {
            ASSERT_EQ(ends.take(item), Status::ok);
            EXPECT_EQ(Kind<Numbered>::number_of(item), i);
        }
        std::this_thread::sleep_for(1ms);
        EXPECT_EQ(ends.consumer().try_dequeue(item), Status::empty);  // returns what it owes
    }
    EXPECT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
    EXPECT_EQ(ends.producer().stats().ring.work_requests, 0U);
    EXPECT_EQ(ends.consumer().stats().ring.work_requests, 0U);
}

TEST(FlowStore, ShowsNothingOfABatchThatIsNotSent) {
    Ends<Numbered, fixed> ends{Options{.ring = {.capacity = 16, .batch = 4}}};
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

TEST(FlowStore, MayBeWrittenWhenTheConsumerIsGone) {
    Ends<Numbered, ring::design_1> ends{Options{.ring = {.capacity = 8}}};
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

/// A producer that was given up goes on storing to memory that was given back.
TEST(FlowStore, ALateStoreHitsNobody) {
    constexpr std::uint64_t capacity = 8;
    constexpr std::uint64_t lie = 1000;
    const Options options{.ring = {.capacity = capacity}};
    using Queue = Ends<Numbered, ring::design_1>;
    Queue late{options};
    if (late.rings() != 1) GTEST_SKIP() << "not on this device";
    Numbered* place = nullptr;
    ASSERT_EQ(late.producer().claim(place), Status::ok);
    late.drop_consumer();
    // Rings of the same size, for which a pool would take that memory.
    std::vector<std::unique_ptr<Queue>> others;
    for (int i = 0; i < 4; ++i) {
        others.push_back(std::make_unique<Queue>(options));
        for (std::uint64_t number = 0; number < capacity; ++number) {
            ASSERT_EQ(others.back()->producer().try_enqueue(Kind<Numbered>::make(number)),
                      Status::ok);
        }
    }
    *place = Kind<Numbered>::make(lie);
    std::uint64_t stored = 1;
    Status status = late.producer().commit();
    while (status == Status::ok && stored < capacity) {
        status = late.producer().try_enqueue(Kind<Numbered>::make(lie + stored));
        if (status == Status::ok) ++stored;
    }
    EXPECT_GT(stored, 1U) << "nothing was stored late";
    for (const auto& ends : others) {
        Numbered item;
        for (std::uint64_t number = 0; number < capacity; ++number) {
            ASSERT_EQ(ends->consumer().try_dequeue(item), Status::ok);
            EXPECT_EQ(Kind<Numbered>::number_of(item), number);
        }
        EXPECT_EQ(ends->consumer().try_dequeue(item), Status::empty);
    }
}

TEST(FlowStore, GathersByCopies) {
    Ends<Numbered, ring::design_1> ends{Options{.ring = {.capacity = 64}, .gather = 4}};
    if (ends.rings() != 1) GTEST_SKIP() << "not on this device";
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

// ---- two processes. Children: address, design, count

MILLRACE_CHILD(storing_producer) {
    const auto named = ring::parse_design(arguments[1]);
    auto producer = AnyProducer<Numbered>::connect(
        named.design, arguments[0], {.ring = {.capacity = 100}}, Deadline::after(40s));
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

class StoreBetweenProcesses : public testing::TestWithParam<const char*> {
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
INSTANTIATE_TEST_SUITE_P(Designs, StoreBetweenProcesses,
                         testing::Values("push1/watermark/pull", "push1/watermark/push+fixed16",
                                         "push1/immediate/push+dynamic", "push1/push/push2"),
                         [](const auto& tested) {
                             std::string name = tested.param;
                             for (char& c : name) {
                                 if (c == '/' || c == '+') c = '_';
                             }
                             return name;
                         });

TEST_P(StoreBetweenProcesses, DeliversEveryItemInOrder) {
    const std::string address = unique_address();
    auto listener = Listener::listen(address, with_endpoint({}));
    ChildProcess child = ChildProcess::start("storing_producer", {address, GetParam(), "20000"});
    auto consumer = AnyConsumer<Numbered>::accept(ring::parse_design(GetParam()).design, listener,
                                                  Deadline::after(40s));
    Status last = Status::ok;
    EXPECT_EQ(take_all(consumer, last), 20000U);
    EXPECT_EQ(last, Status::closed);
    EXPECT_EQ(child.read_line(60s), "connected");
    EXPECT_EQ(child.read_line(60s), "ok");
    EXPECT_TRUE(child.wait().success());
}

TEST_P(StoreBetweenProcesses, SurvivesAKillOfItsProducer) {
    for (int round = 0; round < 5; ++round) {
        const std::string address = unique_address();
        auto listener = Listener::listen(address, with_endpoint({}));
        ChildProcess child =
            ChildProcess::start("storing_producer", {address, GetParam(), "1000000000"});
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
