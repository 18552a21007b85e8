// Producers that learn of completions through the event descriptor (work 000, section 6.4.1): the
// same items in the same order at every point, asleep and awake, and the system calls it costs.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flow/any_ends.hpp"
#include "flow/ends.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/ring/every_design.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

Deadline completion_patience() { return Deadline::after(60s); }

class CompletionEvents : public testing::TestWithParam<ring::Design> {
  protected:
    using Producer = AnyProducer<test::Numbered>;
    using Consumer = AnyConsumer<test::Numbered>;

    void join_ends(ring::Design design, const Options& options) {
        Options of_consumer = options;
        of_consumer.ring.completions = end::Completions::polled;
        Listener listener =
            Listener::listen(test::unique_address(), test::with_endpoint(of_consumer));
        std::thread other{[&] {
            producer_.emplace(Producer::connect(design, listener.address().to_string(),
                                                test::with_endpoint(options),
                                                completion_patience()));
        }};
        consumer_.emplace(Consumer::accept(design, listener, completion_patience()));
        other.join();
    }
    /// The consumer takes `count` items in a thread of its own, and then reads `closed`.
    void exchange(std::uint64_t count) {
        std::uint64_t taken = 0;
        Status last = Status::ok;
        std::thread reader{[&] {
            test::Numbered item;
            while ((last = consumer_->dequeue(item, completion_patience())) == Status::ok &&
                   item.number == taken) {
                ++taken;
            }
        }};
        for (std::uint64_t n = 0; n < count; ++n) {
            if (producer_->enqueue({n}, completion_patience()) != Status::ok) break;
        }
        EXPECT_EQ(producer_->close(completion_patience()), Status::ok);
        reader.join();
        EXPECT_EQ(taken, count);
        EXPECT_EQ(last, Status::closed);
    }

    std::optional<Producer> producer_;
    std::optional<Consumer> consumer_;
};

TEST_P(CompletionEvents, BringEveryItemInOrder) {
    join_ends(GetParam(), {.ring = {.capacity = 8, .completions = end::Completions::events}});
    exchange(1000);
}

TEST_P(CompletionEvents, DoNotLeaveASleeperAsleep) {
    join_ends(GetParam(), {.ring = {.capacity = 2, .completions = end::Completions::events},
                           .wait = base::WaitPolicy::blocking()});
    exchange(300);
}

const auto every_point = [] {
    std::vector<ring::Design> list;
#define MILLRACE_ADD(D) \
    list.push_back(D);  \
    list.push_back(with(D, ring::Batching::dynamic));
    MILLRACE_EVERY_DESIGN(MILLRACE_ADD)
#undef MILLRACE_ADD
    list.push_back(with(ring::design_1, ring::Batching::fixed));
    list.push_back(with(ring::design_1, ring::Batching::dynamic, ring::Mover::active));
    list.push_back(with(ring::design_2, ring::Batching::none, ring::Mover::active));
    return list;
}();
INSTANTIATE_TEST_SUITE_P(Points, CompletionEvents, testing::ValuesIn(every_point),
                         [](const auto& point) {
                             std::string name = to_string(point.param);
                             for (char& c : name) {
                                 if (c == '/' || c == '+') c = '_';
                             }
                             return name;
                         });

struct CompletionsOfDesign1 : CompletionEvents {
    /// System calls of this thread for each of some items that nobody takes meanwhile.
    double calls_per_item(end::Completions completions) {
        constexpr std::uint64_t items = 1000;
        join_ends(ring::design_1, {.ring = {.capacity = 4096,
                                            .completions = completions,
                                            .carrier = ring::Carrier::post}});
        const std::uint64_t before = base::system_calls_of_this_thread();
        for (std::uint64_t n = 0; n < items; ++n) {
            EXPECT_EQ(producer_->try_enqueue({n}), Status::ok);
        }
        return static_cast<double>(base::system_calls_of_this_thread() - before) / items;
    }
};

TEST_F(CompletionsOfDesign1, CostASystemCallForEachItemByEventsAndNoneWhenPolled) {
    EXPECT_GE(calls_per_item(end::Completions::events), 1);
    EXPECT_NE(producer_->explain().find("completions: by events"), std::string::npos);
    EXPECT_LT(calls_per_item(end::Completions::polled), 0.01);
    EXPECT_EQ(producer_->explain().find("completions:"), std::string::npos);
}

}  // namespace
}  // namespace millrace::flow
