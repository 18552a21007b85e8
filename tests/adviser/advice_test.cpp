// What choose() answers: each row of the table of docs/structures.md comes out of it, what
// contradicts itself is refused by name, and what is advised carries items.
#include "millrace/flow/advice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "adviser/rules.hpp"
#include "flow/any_ends.hpp"
#include "millrace/flow/fan_in.hpp"
#include "structures/crowd.hpp"

namespace millrace::flow {
namespace {

using base::Error;
using base::ErrorCode;
using test::Numbered;
using test::soon;
using testing::HasSubstr;

struct Row {
    Requirements wanted{};
    Structure structure{};
    std::string producer{};
    std::string consumer{};
};

/// The table's rows, and a queue.
const std::vector<Row>& rows() {
    static const std::vector<Row> list{
        {{}, Structure::queue, "Producer<", "Consumer<"},
        {{.producers = 8}, Structure::fan_in, "Producer<", "FanIn<"},
        {{.producers = 1000, .may_share_ring = true},
         Structure::shared_fan_in,
         "SharedProducer<",
         "SharedFanIn<"},
        {{.selective = true}, Structure::queue, "Producer<Filtered<Item, Filter>, D>", "Consumer<"},
        {{.producers = 8, .in_order = true}, Structure::merge, "Producer<", "Merge<"},
        {{.consumers = 3}, Structure::fan_out, "FanOut<", "Consumer<"},
        {{.producers = 4, .consumers = 3, .delivery = Delivery::by_key},
         Structure::shuffle,
         "FanOut<",
         "FanIn<"},
        {{.producers = 4, .consumers = 3, .delivery = Delivery::by_key, .consumers_change = true},
         Structure::keyed_shuffle,
         "KeyedFanOut<",
         "KeyedFanIn<"},
        {{.consumers = 3,
          .delivery = Delivery::by_key,
          .consumers_change = true,
          .selective = true},
         Structure::keyed_shuffle,
         "KeyedFanOut<Filtered<Item, Filter>, D>",
         "KeyedFanIn<"},
        {{.consumers = 3, .delivery = Delivery::everyone},
         Structure::replication,
         "Replicator<",
         "Consumer<"},
        {{.producers = 2, .levels = 3}, Structure::priorities, "PriorityProducer<", "FanIn<"},
        {{.keep = Keep::folded}, Structure::reduction, "Producer<", "reduce(Consumer<"},
        {{.keep = Keep::newest}, Structure::reduction, "Producer<", "take_last(Consumer<"},
        {{.keep = Keep::folded, .keys = 500},
         Structure::aggregation,
         "AggregatingProducer<Producer<",
         "Consumer<"},
        {{.keep = Keep::windows, .keys = 500},
         Structure::windows,
         "WindowedProducer<Producer<",
         "Consumer<"},
        {{.keep = Keep::newest, .keys = 5000, .consumer_is_busy = true},
         Structure::conflation,
         "ConflatingProducer<Producer<",
         "Consumer<"},
        {{.keep = Keep::newest, .keys = 20}, Structure::latest, "LatestWriter<", "LatestReader<"},
        {{.late_readers = true}, Structure::log, "Log<", "LogReader<"},
    };
    return list;
}

TEST(AdviceTable, EachRowComesOut) {
    for (const Row& row : rows()) {
        const Advice advice = choose(row.wanted);
        SCOPED_TRACE(to_string(row.wanted) + "\n" + advice.text());
        EXPECT_EQ(advice.structure, row.structure);
        EXPECT_TRUE(advice.producer.starts_with(row.producer));
        EXPECT_TRUE(advice.consumer.starts_with(row.consumer));
        EXPECT_FALSE(advice.reasons.empty());
        const bool has_point = row.structure != Structure::latest &&
                               row.structure != Structure::log &&
                               row.structure != Structure::shared_fan_in;
        EXPECT_EQ(advice.design.has_value(), has_point);
    }
}

TEST(AdviceTable, NamesEverythingThatTheDocumentationAdvises) {
    std::ifstream file{MILLRACE_SOURCE_DIR "/docs/structures.md"};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    const auto begin = text.find("| you have | take | |");
    ASSERT_NE(begin, std::string::npos);
    const std::string table = text.substr(begin, text.find("\n\n", begin) - begin);
    std::string advised;
    for (const Row& row : rows()) {
        const Advice advice = choose(row.wanted);
        advised += advice.producer + ' ' + advice.consumer + ' ';
    }
    static const std::regex name{"`(?:flow::)?(\\w+)`"};
    std::size_t found = 0;
    for (std::sregex_iterator at{table.begin(), table.end(), name}, end; at != end; ++at, ++found) {
        EXPECT_THAT(advised, HasSubstr((*at)[1].str()));
    }
    EXPECT_GT(found, 15U);
}

TEST(AdviceTable, CombinesWhatCanBeCombined) {
    const Advice feed = choose({.producers = 2,
                                .consumers = 3,
                                .delivery = Delivery::everyone,
                                .keep = Keep::newest,
                                .keys = 5000});
    EXPECT_EQ(feed.producer, "ConflatingProducer<Replicator<Item, D>, KeyOf>");
    EXPECT_EQ(feed.consumer, "FanIn<Item, D>");
    const Advice log = choose({.producers = 5, .in_order = true, .late_readers = true});
    EXPECT_EQ(log.producer, "Producer<Item, D>");
    EXPECT_THAT(log.between, testing::AllOf(HasSubstr("Merge<"), HasSubstr("Log<Item>")));
    EXPECT_EQ(log.consumer, "LogReader<Item>");
    EXPECT_TRUE(log.design.has_value()) << "of the queues in front of it";
    EXPECT_EQ(choose({.consumer_is_busy = true}).structure, Structure::queue);
    EXPECT_EQ(choose({.keep = Keep::newest, .consumer_is_busy = true}).structure, Structure::latest)
        << "a slow consumer needs only the newest";
}

/// A case of each contradiction, in the order of the rules.
const std::vector<Requirements>& impossible() {
    static const std::vector<Requirements> list{
        {.keep = Keep::newest, .late_readers = true},
        {.consumers = 2, .late_readers = true},
        {.levels = 2, .late_readers = true},
        {.in_order = true, .levels = 2},
        {.keep = Keep::folded, .in_order = true},
        {.in_order = true, .consumers_change = true},
        {.keep = Keep::windows, .levels = 2},
        {.consumers = 2, .levels = 2},
        {.levels = 2, .consumers_change = true},
        {.consumers = 2, .keep = Keep::folded, .keys = 5},
        {.consumers = 2, .delivery = Delivery::by_key, .keep = Keep::newest},
        {.producers = 2, .levels = 2, .may_share_ring = true},
        {.producers = 2, .in_order = true, .may_share_ring = true},
        {.producers = 2, .may_share_ring = true, .selective = true},
        {.keep = Keep::folded, .selective = true},
        {.levels = 2, .selective = true},
        {.keep = Keep::folded, .keys = 5, .consumers_change = true},
        {.item_bytes = 1000, .producers = 10, .memory_bytes = 10'000},
    };
    return list;
}

TEST(Contradictions, AreRefusedByTheNamesOfBothAndWhy) {
    const auto rules = detail::contradictions();
    ASSERT_EQ(impossible().size(), rules.size()) << "each has a case";
    for (std::size_t i = 0; i != rules.size(); ++i) {
        SCOPED_TRACE(to_string(impossible()[i]));
        try {
            (void)choose(impossible()[i]);
            ADD_FAILURE() << "it was answered";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
            EXPECT_EQ(error.object(), std::string{rules[i].one} + " and " + rules[i].other);
            EXPECT_THAT(error.cause(), HasSubstr(rules[i].why));
            EXPECT_NE(error.remedy(), "");
        }
    }
}

TEST(Contradictions, AreNoneOncePartOfThemIsGone) {
    for (Requirements wanted : impossible()) {
        SCOPED_TRACE(to_string(wanted));
        if (wanted.memory_bytes != 0) {
            wanted.memory_bytes *= 100;
        } else if (wanted.selective || wanted.may_share_ring) {
            wanted.selective = wanted.may_share_ring = false;
        } else if (wanted.late_readers) {
            wanted.late_readers = false;
        } else if (wanted.consumers_change) {
            wanted.consumers_change = false;
        } else if (wanted.levels > 1) {
            wanted.levels = 1;
        } else if (wanted.in_order) {
            wanted.in_order = false;
        } else {
            wanted.keep = Keep::every;
        }
        EXPECT_NO_THROW((void)choose(wanted));
    }
}

TEST(Requirements, OutOfRangeAreRefusedByName) {
    const std::map<std::string, Requirements> wrong{
        {"item_bytes = 0", {.item_bytes = 0}},
        {"item_bytes = 67108865", {.item_bytes = (64U << 20) + 1}},
        {"producers = 0", {.producers = 0}},
        {"consumers = 65537", {.consumers = 65'537}},
        {"keys = 4194305", {.keys = 4'194'305}},
        {"levels = 257", {.levels = 257}},
        {"burst = 65537", {.burst = 65'537}},
    };
    for (const auto& [field, wanted] : wrong) {
        try {
            (void)choose(wanted);
            ADD_FAILURE() << field;
        } catch (const Error& error) {
            EXPECT_EQ(error.object(), field);
        }
    }
}

TEST(Advice, SaysTheSameInJson) {
    for (const Row& row : rows()) {
        const Advice advice = choose(row.wanted);
        const auto document = nlohmann::json::parse(advice.json());
        EXPECT_EQ(document.at("structure"), name_of(advice.structure));
        EXPECT_EQ(document.at("producer"), advice.producer);
        EXPECT_EQ(document.at("reasons").size(), advice.reasons.size());
        EXPECT_EQ(document.contains("design"), advice.design.has_value());
        for (const std::string& reason : advice.reasons) {
            EXPECT_THAT(advice.text(), HasSubstr(reason));
        }
    }
}

TEST(Advice, HasNoTypedDesignWhereThereIsNoneToChoose) {
    const Advice log = choose({.late_readers = true});
    EXPECT_THROW(with_design(log, []<ring::Design D>() {}), Error);
}

// ---- what is advised can be made, and carries items

Requirements generated() {
    const auto flag = [] { return *rc::gen::arbitrary<bool>(); };
    Requirements wanted;
    wanted.item_bytes = sizeof(Numbered);
    wanted.producers = *rc::gen::element(1U, 1U, 2U, 300U);
    wanted.consumers = *rc::gen::element(1U, 1U, 3U);
    wanted.delivery = *rc::gen::element(Delivery::share, Delivery::by_key, Delivery::everyone);
    wanted.keep =
        *rc::gen::element(Keep::every, Keep::every, Keep::newest, Keep::folded, Keep::windows);
    wanted.keys = *rc::gen::element(0U, 10U, 5000U);
    wanted.in_order = flag();
    wanted.levels = *rc::gen::element(1U, 1U, 1U, 4U);
    wanted.late_readers = *rc::gen::element(false, false, false, true);
    wanted.may_share_ring = *rc::gen::element(false, false, false, true);
    wanted.selective = *rc::gen::element(false, false, false, true);
    wanted.consumers_change = *rc::gen::element(false, false, false, true);
    wanted.aim = flag() ? Aim::latency : Aim::throughput;
    wanted.burst = *rc::gen::element(0U, 1U, 17U, 1000U, 65'536U);
    wanted.producer_is_busy = flag();
    wanted.consumer_is_busy = flag();
    wanted.other_hosts = flag();
    wanted.spare_core = flag();
    wanted.memory_bytes = *rc::gen::element<std::uint64_t>(0, 0, 100, 1000, 1'000'000);
    return wanted;
}

/// Points that were never measured, in any order.
Profile generated_profile() {
    std::vector<ProfileLine> lines;
    for (const bool streams : {true, false}) {
        for (const std::size_t bytes : {8, 4096}) {
            for (const ring::Design point : detail::every_design) {
                for (const auto batching :
                     {ring::Batching::none, ring::Batching::fixed, ring::Batching::dynamic}) {
                    for (const auto mover : {ring::Mover::passive, ring::Mover::active}) {
                        const ring::Design design = ring::with(point, batching, mover);
                        lines.push_back({{.item_bytes = bytes, .burst = streams ? 0U : 1U},
                                         {design, {}},
                                         *rc::gen::inRange(1, 1000) * 1.0});
                    }
                }
            }
        }
    }
    return Profile{{.device = "drawn", .is_stored = false}, std::move(lines)};
}

constexpr std::uint64_t moved = 300;

void expect_moved(const Advice& advice) {
    const std::string address = test::fresh_address();
    std::jthread sending{[&] {
        auto producer =
            AnyProducer<Numbered>::listen(*advice.design, address, advice.options, soon());
        for (std::uint64_t i = 0; i != moved; ++i) {
            ASSERT_EQ(producer.enqueue({.number = i}, soon()), base::Status::ok);
        }
        EXPECT_EQ(producer.close(soon()), base::Status::ok);
    }};
    auto consumer = [&] {
        while (true) {
            try {
                return AnyConsumer<Numbered>::connect(*advice.design, address, advice.options,
                                                      soon());
            } catch (const Error& error) {  // it does not listen yet
                if (error.code() != ErrorCode::refused && error.code() != ErrorCode::not_found)
                    throw;
                std::this_thread::yield();
            }
        }
    }();
    Numbered item;
    for (std::uint64_t i = 0; i != moved; ++i) {
        ASSERT_EQ(consumer.dequeue(item, soon()), base::Status::ok);
        ASSERT_EQ(item.number, i);
    }
    EXPECT_EQ(consumer.dequeue(item, soon()), base::Status::closed);
}

TEST(AnyAdvice, MovesItems) {
    std::map<std::string, int> seen;
    rc::check([&] {
        const Requirements wanted = generated();
        Advice advice;
        try {
            advice = choose(wanted);
        } catch (const Error& error) {
            RC_ASSERT(error.code() == ErrorCode::invalid_argument);
            RC_ASSERT(error.object().find(" and ") != std::string::npos);
            RC_DISCARD("it contradicts itself");
        }
        RC_LOG(advice.text());
        if (!advice.design.has_value()) return;
        RC_ASSERT(ring::is_valid(*advice.design));
        if (wanted.memory_bytes != 0) {
            const std::uint64_t rings =
                std::max(wanted.producers, wanted.consumers) * std::uint64_t{wanted.levels};
            RC_ASSERT(*advice.options.ring.capacity * wanted.item_bytes * rings <=
                      wanted.memory_bytes);
        }
        ++seen[std::string{name_of(advice.structure)}];
        expect_moved(advice);
        RC_ASSERT(!testing::Test::HasFailure());
    });
    EXPECT_GT(seen.size(), 3U);
}

TEST(AnyAdvice, MovesItemsAtWhateverPointAProfileNames) {
    std::set<std::string> points;
    rc::check([&] {
        const Profile profile = generated_profile();
        Requirements wanted;
        wanted.item_bytes = sizeof(Numbered);
        wanted.burst = *rc::gen::element(0U, 1U, 40U);
        wanted.spare_core = *rc::gen::arbitrary<bool>();
        wanted.memory_bytes = *rc::gen::element<std::uint64_t>(0, 100, 2000);
        const Advice advice = choose(wanted, profile);
        RC_LOG(advice.text());
        RC_ASSERT(advice.design.has_value());
        RC_ASSERT(advice.source.find("drawn") != std::string::npos);
        points.insert(ring::to_string(*advice.design));
        expect_moved(advice);
        RC_ASSERT(!testing::Test::HasFailure());
    });
    EXPECT_GT(points.size(), 10U);
}

TEST(AnyAdvice, MovesItemsThroughAFanInOfItsDesign) {
    const Advice advice = choose({.item_bytes = sizeof(Numbered), .producers = 3, .burst = 1});
    ASSERT_EQ(advice.structure, Structure::fan_in);
    const std::uint64_t taken = with_design(advice, [&]<ring::Design D>() {
        auto fan_in = FanIn<Numbered, D>::listen(test::fresh_address(),
                                                 {.queue = advice.options, .expected = 3});
        std::vector<std::jthread> producers;
        for (int i = 0; i != 3; ++i) {
            producers.emplace_back([&] {
                auto producer = AnyProducer<Numbered>::connect(*advice.design, fan_in.address(),
                                                               advice.options, soon());
                for (std::uint64_t number = 0; number != moved; ++number) {
                    ASSERT_EQ(producer.enqueue({.number = number}, soon()), base::Status::ok);
                }
                EXPECT_EQ(producer.close(soon()), base::Status::ok);
            });
        }
        std::uint64_t count = 0;
        for (Numbered item; fan_in.dequeue(item, soon()) == base::Status::ok;) ++count;
        return count;
    });
    EXPECT_EQ(taken, 3 * moved);
}

}  // namespace
}  // namespace millrace::flow
