// What doors need of the store beyond GET and SET: changes that depend on the item, times that come
// back as they were, walks that miss nothing, some key, and to be alone.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "change.hpp"
#include "gate.hpp"
#include "scan.hpp"
#include "stores.hpp"

namespace millrace::kv {
namespace {

using Time = base::Clock::time_point;

std::optional<Time> time_of(Store& store, View key) {
    std::optional<Time> time;
    store.get(key, [&](const Entry& entry) { time = entry.expires_at; });
    return time;
}

class Operations : public testing::TestWithParam<TableKind> {
  protected:
    Store store{options_of(GetParam(), std::uint64_t{64} << 20)};
};
INSTANTIATE_TEST_SUITE_P(Tables, Operations, testing::Values(TableKind::cuckoo, TableKind::thesis),
                         name_of_table);

TEST_P(Operations, GiveATimeBackAsItWas) {
    const Time then = base::Clock::now() + long_time + std::chrono::nanoseconds{123'456'789};
    EXPECT_EQ(store.set_until(view("k"), view("v"), then).outcome, Outcome::ok);
    EXPECT_EQ(time_of(store, view("k")), then);
    EXPECT_EQ(store.set_until(view("k"), view("other"), then, 7).outcome, Outcome::conflict);
    EXPECT_EQ(store.set_until(view("k"), view("v"), {}).outcome, Outcome::ok);
    EXPECT_EQ(time_of(store, view("k")), std::nullopt);
    // What is over is not there; what is more than a century away, for ever.
    EXPECT_EQ(store.set_until(view("k"), view("v"), base::Clock::now() - long_time).outcome,
              Outcome::ok);
    EXPECT_FALSE(store.exists(view("k")));
    EXPECT_EQ(store.set_until(view("k"), view("v"), base::Clock::now() + longest_time + long_time)
                  .outcome,
              Outcome::ok);
    EXPECT_EQ(time_of(store, view("k")), std::nullopt);
}

TEST_P(Operations, GiveANoteBackAsItWas) {
    const auto note_of = [this](View key) {
        std::uint64_t note = 1;
        store.get(key, [&](const Entry& entry) { note = entry.note; });
        return note;
    };
    constexpr std::uint64_t note = 0x0123'4567'89ab'cdef;
    const Time then = base::Clock::now() + long_time;
    for (const auto& time : {std::optional<Time>{}, std::optional<Time>{then}}) {
        ASSERT_EQ(store.set_until(view("k"), view("value"), time, {}, note).outcome, Outcome::ok);
        EXPECT_EQ(note_of(view("k")), note);
        EXPECT_EQ(time_of(store, view("k")), time);
        EXPECT_EQ(value_in(store, view("k")), "value");
        // Over the same place, and elsewhere.
        ASSERT_EQ(store.set_until(view("k"), view("other"), time, {}, ~note).outcome, Outcome::ok);
        EXPECT_EQ(note_of(view("k")), ~note);
        ASSERT_EQ(store.set_until(view("k"), view(std::string(500, 'v')), time, {}, 1).outcome,
                  Outcome::ok);
        EXPECT_EQ(note_of(view("k")), 1U);
        store.set(view("k"), view("value"));
        EXPECT_EQ(note_of(view("k")), 0U);
    }
    Version version = 0;
    const SetResult made = store.set(view("k"), view("value"));
    EXPECT_EQ(change(
                  store, view("k"), [](const Entry*) { return Change{}; }, &version),
              Outcome::ok);
    EXPECT_EQ(version, made.version);
    EXPECT_EQ(change(
                  store, view("k"),
                  [](const Entry*) {
                      return Change{Change::Kind::set, view("new"), {}, note};
                  },
                  &version),
              Outcome::ok);
    EXPECT_GT(version, made.version);
    EXPECT_EQ(note_of(view("k")), note);
}

TEST_P(Operations, ChangeAnItemInOneStepWhereManyDo) {
    constexpr int threads = 4;
    constexpr int each = 5000;
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
        all.emplace_back([this] {
            std::string text_now;
            for (int i = 0; i < each; ++i) {
                const Outcome outcome = change(store, view("n"), [&](const Entry* entry) {
                    const int now = entry == nullptr ? 0 : std::stoi(text(entry->value));
                    text_now = std::to_string(now + 1);
                    return Change{Change::Kind::set, view(text_now), {}};
                });
                ASSERT_EQ(outcome, Outcome::ok);
            }
        });
    }
    for (std::thread& one : all) one.join();
    EXPECT_EQ(value_in(store, view("n")), std::to_string(threads * each));
}

TEST_P(Operations, DecideAnewWhereAnotherWasFaster) {
    // Who erases, and finds it gone, or another one: each of two values is taken once.
    store.set(view("k"), view("first"));
    int calls = 0;
    std::string taken;
    const Outcome outcome = change(store, view("k"), [&](const Entry* entry) {
        if (entry != nullptr) taken = text(entry->value);
        if (calls++ == 0) {
            std::thread{[this] { store.set(view("k"), view("second")); }}.join();
        }
        return Change{.kind = Change::Kind::erase};
    });
    EXPECT_EQ(outcome, Outcome::ok);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(taken, "second");
    EXPECT_FALSE(store.exists(view("k")));
    EXPECT_EQ(change(store, {}, [](const Entry*) { return Change{}; }), Outcome::bad_key);
}

TEST_P(Operations, PickEachKeyAboutAsOften) {
    EXPECT_FALSE(store.pick(1, [](const Entry&) { FAIL(); }));
    constexpr int keys = 5000;
    for (int i = 0; i < keys; ++i) {
        store.set(view(std::to_string(i)), sealed(1, static_cast<std::size_t>(i) % 200));
    }
    std::map<std::string, int> met;
    std::mt19937_64 random{3};
    for (int i = 0; i < 20 * keys; ++i) {
        ASSERT_TRUE(store.pick(random(), [&](const Entry& entry) { ++met[text(entry.key)]; }));
    }
    EXPECT_GT(met.size(), std::size_t{keys} * 99 / 100);
    for (const auto& [key, times] : met) ASSERT_LT(times, 20 * 30) << key;
}

TEST_P(Operations, PickWhatIsLeft) {
    for (int i = 0; i < 100; ++i) store.set(view(std::to_string(i)), view("v"));
    for (int i = 0; i < 99; ++i) store.erase(view(std::to_string(i)));
    std::mt19937_64 random{3};
    for (int i = 0; i < 100; ++i) {
        std::string key;
        ASSERT_TRUE(store.pick(random(), [&](const Entry& entry) { key = text(entry.key); }));
        EXPECT_EQ(key, "99");
    }
}

/// All keys of a walk by pieces of `count`, between which `meanwhile` is called.
template <class Meanwhile>
std::multiset<std::string> walked(Scans& scans, std::size_t count, Meanwhile meanwhile) {
    std::multiset<std::string> met;
    const auto visit = [&](const Entry& entry) { met.insert(text(entry.key)); };
    std::uint64_t at = 0;
    for (;;) {
        const std::uint64_t next = scans.step(at, count, visit);
        if (next == Scans::end()) break;
        EXPECT_LT(next, std::uint64_t{1} << 63);
        at = next;
        meanwhile();
    }
    scans.finish(at, visit);
    return met;
}

TEST_P(Operations, WalkOverEachKeyOnceWhereNothingChanges) {
    Scans scans{store};
    EXPECT_TRUE(walked(scans, 10, [] {}).empty());
    for (int i = 0; i < 3000; ++i) {
        store.set(view(std::to_string(i)), sealed(1, static_cast<std::size_t>(i)));
    }
    for (const std::size_t count : {1U, 7U, 1000U, 100'000U}) {
        EXPECT_EQ(walked(scans, count, [] {}).size(), 3000U);
    }
}

TEST_P(Operations, WalkMissesNothingThatMoves) {
    Scans scans{store};
    constexpr int keys = 2000;
    std::mt19937_64 random{5};
    for (int round = 0; round < 5; ++round) {
        for (int i = 0; i < keys; ++i)
            store.set(view(std::to_string(i)), sealed(1, random() % 500));
        const auto met = walked(scans, 20, [&] {
            for (int i = 0; i < 30; ++i) {
                store.set(view(std::to_string(random() % keys)), sealed(1, random() % 500));
            }
        });
        EXPECT_EQ((std::set<std::string>{met.begin(), met.end()}.size()), std::size_t{keys});
    }
}

TEST_P(Operations, WalkThatManyOthersHaveOvertakenMissesNothingEither) {
    Scans scans{store};
    for (int i = 0; i < 500; ++i) store.set(view(std::to_string(i)), sealed(1, 400));
    std::set<std::string> met;
    const auto visit = [&](const Entry& entry) { met.insert(text(entry.key)); };
    std::uint64_t at = 0;
    at = scans.step(at, 100, visit);
    for (int i = 0; i < 3000; ++i) {
        std::uint64_t other = 0;
        (void)scans.step(other, 1, [](const Entry&) {});
    }
    for (int i = 0; i < 500; ++i) store.set(view(std::to_string(i)), view("short"));
    for (std::uint64_t next; (next = scans.step(at, 100, visit)) != Scans::end();) at = next;
    scans.finish(at, visit);
    EXPECT_EQ(met.size(), 500U);
}

TEST_P(Operations, WalkGoesRoundInPiecesForWhatItMayHaveMissed) {
    Scans scans{store};
    for (int i = 0; i < 500; ++i) store.set(view(std::to_string(i)), sealed(1, 400));
    std::set<std::string> met;
    std::size_t in_piece = 0;
    const auto visit = [&](const Entry& entry) {
        met.insert(text(entry.key));
        ++in_piece;
    };
    std::uint64_t at = 0;
    at = scans.step(at, 100, visit);
    for (int i = 0; i < 300; ++i) store.set(view(std::to_string(i)), view("short"));
    int rounds = 0;
    for (bool has_more = true; has_more; ++rounds) {
        met.clear();
        for (std::uint64_t next = at; next != Scans::end(); next = scans.step(at, 100, visit)) {
            at = next;
            EXPECT_LE(in_piece, 100U);
            in_piece = 0;
        }
        EXPECT_EQ(met.size(), rounds == 0 ? 200U : 300U);
        has_more = Scans::may_go_round(at);
        const std::uint64_t next = scans.go_round(at);
        EXPECT_EQ(next != Scans::end(), has_more);
        at = next;
        for (int i = 0; i < 300; ++i) {
            store.set(view(std::to_string(i)), sealed(1, rounds % 2 == 0 ? 400 : 5));
        }
    }
    EXPECT_EQ(rounds, 4);
}

TEST_P(Operations, WalkIsAtItsEndWhereNobodyWasGivenItsCursor) {
    Scans scans{store};
    store.set(view("a"), view("1"));
    for (std::uint64_t at : {std::uint64_t{1}, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
        const auto visit = [](const Entry&) { ADD_FAILURE(); };
        EXPECT_EQ(scans.step(at, 1, visit), Scans::end());
        scans.finish(at, visit);
    }
}

// What eviction moves keeps its version, and is none the less where the walk has been.
TEST(Walks, MissNothingThatEvictionMoves) {
    Store store{{.memory_bytes = std::uint64_t{8} << 20, .when_full = WhenFull::evict}};
    Scans scans{store};
    constexpr int keys = 1000;
    const auto key = [](int i) { return "kept" + std::to_string(i); };
    std::mt19937_64 random{3};
    int junk = 0;
    std::uint64_t relocated = 0;
    for (int round = 0; round < 6; ++round) {
        store.clear();
        for (int i = 0; i < 20 * keys; ++i) {
            const bool is_kept = i % 20 == 0;
            store.set(view(is_kept ? key(i / 20) : "j" + std::to_string(++junk)), sealed(1, 100));
        }
        const auto met = walked(scans, 1000, [&] {
            for (int i = 0; i < keys; ++i) (void)store.get(view(key(i)), [](const Entry&) {});
            for (int i = 0; i < 40; ++i) {
                store.set(view("j" + std::to_string(++junk)), sealed(1, 3000U << random() % 3));
            }
        });
        for (int i = 0; i < keys; ++i) {
            EXPECT_TRUE(!store.exists(view(key(i))) || met.contains(key(i))) << key(i);
        }
        relocated = store.moment().relocated;
    }
    EXPECT_NE(relocated, 0U);
}

TEST(Gate, LetsOneBeAlone) {
    constexpr std::size_t threads = 4;
    Gate gate{threads};
    int first = 0;  // by who is alone, or read by who is inside
    int second = 0;
    std::vector<std::thread> all;
    for (std::size_t t = 0; t < threads; ++t) {
        all.emplace_back([&, t] {
            for (int i = 0; i < 20'000; ++i) {
                const Gate::Inside inside{gate, t};
                if (i % 8 == 0) {
                    const Gate::Alone alone{gate, t};
                    const Gate::Alone again{gate, t};  // as a command within EXEC
                    ++first;
                    ++second;
                } else {
                    ASSERT_EQ(first, second);
                }
            }
        });
    }
    for (std::thread& one : all) one.join();
    EXPECT_EQ(first, static_cast<int>(threads) * 2500);
}

}  // namespace
}  // namespace millrace::kv
