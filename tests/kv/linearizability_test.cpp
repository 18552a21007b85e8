// The checker on histories that are and are not linearizable; then histories of the store, recorded
// by threads on one key. What one thread does to other keys makes chains, eviction and the table's
// growth take part.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "linearizability.hpp"
#include "stores.hpp"

namespace millrace::kv {
namespace {

using Kind = Call::Kind;

TEST(Linearizability, OfCallsOneAfterTheOther) {
    EXPECT_TRUE(is_linearizable({{Kind::set, 1, 2, 7}, {Kind::get, 3, 4, 7}}));
    EXPECT_FALSE(is_linearizable({{Kind::set, 1, 2, 7}, {Kind::get, 3, 4, 0}}));
    EXPECT_FALSE(is_linearizable({{Kind::get, 1, 2, 7}, {Kind::set, 3, 4, 7}}));
    EXPECT_TRUE(is_linearizable(
        {{Kind::set, 1, 2, 7}, {Kind::erase, 3, 4}, {Kind::erase, 5, 6, 0, 0, false}}));
    EXPECT_FALSE(is_linearizable({{Kind::set, 1, 2, 7}, {Kind::erase, 3, 4}, {Kind::erase, 5, 6}}));
}

TEST(Linearizability, OfCallsAtATime) {
    EXPECT_TRUE(is_linearizable({{Kind::set, 1, 4, 7}, {Kind::get, 2, 3, 0}}));
    EXPECT_TRUE(is_linearizable({{Kind::set, 1, 4, 7}, {Kind::get, 2, 3, 7}}));
    // New and then old again.
    EXPECT_FALSE(
        is_linearizable({{Kind::set, 1, 9, 7}, {Kind::get, 2, 3, 7}, {Kind::get, 4, 5, 0}}));
    // Two readers who see two writers in different orders.
    EXPECT_FALSE(is_linearizable({{Kind::set, 1, 9, 7},
                                  {Kind::set, 1, 9, 8},
                                  {Kind::get, 2, 3, 7},
                                  {Kind::get, 4, 5, 8},
                                  {Kind::get, 2, 3, 8},
                                  {Kind::get, 4, 5, 7}}));
}

TEST(Linearizability, OfConditions) {
    EXPECT_TRUE(is_linearizable({{Kind::compare_and_set, 1, 4, 7, 0},
                                 {Kind::compare_and_set, 1, 4, 8, 0, false},
                                 {Kind::get, 5, 6, 7}}));
    // Both won.
    EXPECT_FALSE(is_linearizable(
        {{Kind::compare_and_set, 1, 4, 7, 0}, {Kind::compare_and_set, 1, 4, 8, 0}}));
    // A lost update.
    EXPECT_FALSE(is_linearizable({{Kind::set, 1, 2, 7},
                                  {Kind::compare_and_set, 3, 4, 8, 7},
                                  {Kind::compare_and_set, 3, 4, 9, 7}}));
}

struct Setting {
    TableKind table;
    HashFunction hash;
    const char* name;
};

class StoreHistory : public testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Tables, StoreHistory,
                         testing::Values(Setting{TableKind::cuckoo, hash_of, "cuckoo"},
                                         Setting{TableKind::thesis, hash_of, "thesis"},
                                         Setting{TableKind::cuckoo, weak_hash, "cuckoo_collisions"},
                                         Setting{TableKind::thesis, weak_hash,
                                                 "thesis_collisions"}),
                         [](const auto& of) { return std::string{of.param.name}; });

/// One thread's calls on the key, drawn at random.
class Caller {
  public:
    Caller(Engine& engine, std::atomic<std::uint64_t>& clock, unsigned seed)
        : engine_{engine}, clock_{clock}, random_{seed}, next_value_{seed << 20} {}

    void call() {
        Call call;
        call.begin = clock_.fetch_add(1);
        switch (random_() % 4) {
            case 0: get(call); break;
            case 1: set(call); break;
            case 2: erase(call); break;
            default: compare_and_set(call); break;
        }
        call.end = clock_.fetch_add(1);
        calls_.push_back(call);
    }
    [[nodiscard]] const std::vector<Call>& calls() const { return calls_; }

  private:
    /// Short and long ones, as the store treats them differently.
    Bytes new_value(Call& call) {
        call.value = ++next_value_;
        return sealed(call.value, random_() % 3 == 0 ? 6000 : 8 + random_() % 300);
    }
    void get(Call& call) {
        call.kind = Kind::get;
        engine_.find(view("key"), [&](const Entry& entry) {
            EXPECT_TRUE(is_whole(entry.value));
            call.value = seed_of(entry.value);
            seen_[entry.version] = call.value;
            version_ = entry.version;
        });
    }
    void set(Call& call) {
        call.kind = Kind::set;
        const SetResult result = engine_.set(view("key"), new_value(call), {});
        ASSERT_EQ(result.outcome, Outcome::ok);
        seen_[version_ = result.version] = call.value;
    }
    void erase(Call& call) {
        call.kind = Kind::erase;
        call.done = engine_.erase(view("key"), {}) == Outcome::ok;
    }
    /// Of the version that it saw last, or of none.
    void compare_and_set(Call& call) {
        call.kind = Kind::compare_and_set;
        const Version wanted = random_() % 3 == 0 ? 0 : version_;
        call.expected = wanted == 0 ? 0 : seen_.at(wanted);
        const SetResult result = engine_.set(view("key"), new_value(call), {.if_version = wanted});
        call.done = result.outcome == Outcome::ok;
        ASSERT_TRUE(call.done || result.outcome == Outcome::conflict);
        if (call.done) seen_[version_ = result.version] = call.value;
    }

    Engine& engine_;
    std::atomic<std::uint64_t>& clock_;
    std::mt19937 random_;
    std::uint64_t next_value_;
    Version version_ = 0;
    std::map<Version, std::uint64_t> seen_;
    std::vector<Call> calls_;
};

TEST_P(StoreHistory, OfOneKeyIsLinearizable) {
    constexpr int rounds = 150;
    constexpr int callers = 4;
    constexpr int calls = 12;
    Engine engine{options_of(GetParam().table), GetParam().hash};
    std::atomic<bool> over{false};
    std::thread others{[&] {
        std::mt19937 random{99};
        while (!over) {
            const std::string key = "other " + std::to_string(random() % 2000);
            if (random() % 8 == 0) {
                engine.erase(view(key), {});
            } else {
                engine.set(view(key), sealed(1, random() % 1000), {});
            }
        }
    }};
    for (int round = 0; round < rounds; ++round) {
        engine.erase(view("key"), {});
        std::atomic<std::uint64_t> clock{1};
        std::vector<Caller> recorded;
        for (int i = 0; i < callers; ++i) {
            recorded.emplace_back(engine, clock, static_cast<unsigned>(round * callers + i + 1));
        }
        std::barrier start{callers};
        std::vector<std::thread> threads;
        for (Caller& caller : recorded) {
            threads.emplace_back([&] {
                start.arrive_and_wait();
                for (int i = 0; i < calls; ++i) caller.call();
            });
        }
        for (std::thread& thread : threads) thread.join();
        std::vector<Call> history;
        for (const Caller& caller : recorded) {
            history.insert(history.end(), caller.calls().begin(), caller.calls().end());
        }
        EXPECT_TRUE(is_linearizable(history)) << "round " << round;
    }
    over = true;
    others.join();
}

}  // namespace
}  // namespace millrace::kv
