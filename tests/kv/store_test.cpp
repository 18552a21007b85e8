// What each call of the store promises, one thread at a time, with both tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "stores.hpp"

namespace millrace::kv {
namespace {

class StoreCalls : public testing::TestWithParam<TableKind> {
  protected:
    Store store{options_of(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Tables, StoreCalls, testing::Values(TableKind::cuckoo, TableKind::thesis),
                         name_of_table);

TEST_P(StoreCalls, GetGivesWhatWasSet) {
    const SetResult result = store.set(view("key"), view("value"));
    ASSERT_EQ(result.outcome, Outcome::ok);
    Version version = 0;
    EXPECT_EQ(store.get(view("key"),
                        [&](const Entry& entry) {
                            EXPECT_EQ(text(entry.key), "key");
                            EXPECT_EQ(text(entry.value), "value");
                            EXPECT_FALSE(entry.expires_after);
                            version = entry.version;
                        }),
              Outcome::ok);
    EXPECT_EQ(version, result.version);
    EXPECT_TRUE(store.exists(view("key")));
    EXPECT_FALSE(store.exists(view("ke")));
    EXPECT_EQ(store.get(view("other"), [](const Entry&) { FAIL(); }), Outcome::not_found);
}

TEST_P(StoreCalls, ASetReplacesWithLongerAndShorterValues) {
    Version last = 0;
    for (const std::size_t length : {5U, 500U, 0U, 100'000U, 6U}) {
        const Bytes value = derived(length, length);
        const auto [outcome, version] = store.set(view("key"), value);
        ASSERT_EQ(outcome, Outcome::ok);
        EXPECT_GT(version, last);
        last = version;
        EXPECT_EQ(value_in(store, view("key")), text(value));
        EXPECT_EQ(store.stats().item_bytes, 3 + length);
    }
    EXPECT_EQ(store.stats().items, 1U);
}

TEST_P(StoreCalls, ErasedIsGone) {
    EXPECT_EQ(store.erase(view("key")), Outcome::not_found);
    ASSERT_EQ(store.set(view("key"), view("1")).outcome, Outcome::ok);
    EXPECT_EQ(store.erase(view("key")), Outcome::ok);
    EXPECT_EQ(value_in(store, view("key")), std::nullopt);
    EXPECT_EQ(store.erase(view("key")), Outcome::not_found);
    EXPECT_EQ(store.stats().items, 0U);
    EXPECT_EQ(store.stats().item_bytes, 0U);
}

TEST_P(StoreCalls, ConditionsAreOfTheVersion) {
    EXPECT_EQ(store.set(view("k"), view("a"), {.if_version = 7}).outcome, Outcome::conflict);
    const auto first = store.set(view("k"), view("a"), {.if_version = 0});
    ASSERT_EQ(first.outcome, Outcome::ok);
    const auto refused = store.set(view("k"), view("b"), {.if_version = 0});
    EXPECT_EQ(refused.outcome, Outcome::conflict);
    EXPECT_EQ(refused.version, first.version);
    const auto second = store.set(view("k"), view("c"), {.if_version = first.version});
    ASSERT_EQ(second.outcome, Outcome::ok);
    EXPECT_EQ(store.set(view("k"), view("d"), {.if_version = first.version}).version,
              second.version);
    EXPECT_EQ(value_in(store, view("k")), "c");
    EXPECT_EQ(store.erase(view("k"), first.version), Outcome::conflict);
    EXPECT_EQ(store.erase(view("k"), second.version), Outcome::ok);
    EXPECT_EQ(store.erase(view("k"), second.version), Outcome::not_found);
}

TEST_P(StoreCalls, WhatIsOverIsNowhereToBeFound) {
    const auto set = store.set(view("k"), view("over"), {.expires_after = no_time});
    ASSERT_EQ(set.outcome, Outcome::ok);
    EXPECT_EQ(value_in(store, view("k")), std::nullopt);
    EXPECT_FALSE(store.exists(view("k")));
    EXPECT_EQ(store.set(view("k"), view("x"), {.if_version = set.version}).outcome,
              Outcome::conflict);
    store.for_each([](const Entry&) { FAIL(); });
    EXPECT_EQ(store.erase(view("k")), Outcome::not_found);
    ASSERT_EQ(store.set(view("k"), view("over"), {.expires_after = no_time}).outcome, Outcome::ok);
    ASSERT_EQ(store.set(view("k"), view("new"), {.if_version = 0}).outcome, Outcome::ok);
    EXPECT_EQ(value_in(store, view("k")), "new");
    EXPECT_EQ(store.stats().expired, 2U);
}

TEST_P(StoreCalls, TellsHowLongAnItemStays) {
    ASSERT_EQ(store.set(view("k"), view("v"), {.expires_after = long_time}).outcome, Outcome::ok);
    std::optional<std::chrono::nanoseconds> left;
    store.get(view("k"), [&](const Entry& entry) { left = entry.expires_after; });
    ASSERT_TRUE(left);
    EXPECT_GT(left->count(), 0);
    EXPECT_LE(*left, long_time);
    const auto for_ever = std::chrono::nanoseconds::max();
    ASSERT_EQ(store.set(view("k"), view("v"), {.expires_after = for_ever}).outcome, Outcome::ok);
    EXPECT_TRUE(store.exists(view("k")));
    ASSERT_EQ(store.set(view("k"), view("v")).outcome, Outcome::ok);
    store.get(view("k"), [&](const Entry& entry) { left = entry.expires_after; });
    EXPECT_FALSE(left);
}

/// What another thread does to the item while it is read.
struct Meanwhile {
    const char* name;
    void (*act)(Store& store, View key);
    std::optional<bool> stays;  ///< the item that is read; none: it may
};
constexpr Meanwhile what_others_do[] = {
    {"look for it", [](Store& store, View key) { EXPECT_TRUE(store.exists(key)); }, true},
    {"read it",
     [](Store& store, View key) { EXPECT_EQ(store.get(key, [](const Entry&) {}), Outcome::ok); },
     true},
    {"set a value of its length",
     [](Store& store, View key) {
         EXPECT_EQ(store.set(key, derived(7, 1000)).outcome, Outcome::ok);
     },
     false},
    {"set a shorter one",
     [](Store& store, View key) { EXPECT_EQ(store.set(key, view("new")).outcome, Outcome::ok); },
     false},
    {"erase it", [](Store& store, View key) { EXPECT_EQ(store.erase(key), Outcome::ok); }, false},
    {"remove all", [](Store& store, View) { store.clear(); }, false},
    {"set others until it is evicted",
     [](Store& store, View key) {
         for (std::uint64_t i = 0; i < 20'000 && store.exists(key); ++i) {
             EXPECT_EQ(store.set(view("other " + std::to_string(i)), derived(i, 900)).outcome,
                       Outcome::ok);
         }
     },
     std::nullopt},
};

TEST_P(StoreCalls, AnItemThatIsReadHoldsUpNobodyAndStaysAsItIs) {
    for (const Meanwhile& what : what_others_do) {
        Store held{options_of(GetParam(), least_memory, WhenFull::evict)};
        const Bytes value = derived(1, 1000);
        // Also through the second way to an item.
        for (const bool visits : {false, true}) {
            ASSERT_EQ(held.set(view("key"), value).outcome, Outcome::ok);
            std::atomic<bool> is_done{false};
            std::thread other;
            const auto read = [&](const Entry& entry) {
                other = std::thread{[&] {
                    what.act(held, view("key"));
                    is_done = true;
                }};
                for (const auto deadline = base::Deadline::after(std::chrono::seconds{30});
                     !is_done && !deadline.expired();) {
                    std::this_thread::yield();
                }
                EXPECT_TRUE(is_done) << "they could not " << what.name << " while it was read";
                EXPECT_EQ(text(entry.key), "key");
                EXPECT_TRUE(std::ranges::equal(entry.value, value)) << what.name;
            };
            if (visits) {
                (void)held.visit_from(Cursor::begin, [&](const Entry& entry) {
                    if (text(entry.key) != "key") return true;
                    read(entry);
                    return false;
                });
            } else {
                EXPECT_EQ(held.get(view("key"), read), Outcome::ok);
            }
            ASSERT_TRUE(other.joinable()) << what.name;
            other.join();
            if (what.stays.has_value()) {
                EXPECT_EQ(value_in(held, view("key")) == text(value), *what.stays) << what.name;
            }
        }
    }
}

TEST_P(StoreCalls, WhatWasReadWhileItLeftIsFreedBehindTheLastWhoReadsIt) {
    // More of them than there is memory for.
    constexpr std::size_t large = 500'000;
    for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(store.set(view("key"), derived(1, large)).outcome, Outcome::ok) << i;
        EXPECT_EQ(store.get(view("key"),
                            [&](const Entry& entry) {
                                std::thread{[&] {
                                    EXPECT_EQ(store.erase(view("key")), Outcome::ok);
                                }}.join();
                                EXPECT_EQ(entry.value.size(), large);
                                EXPECT_EQ(store.stats().items, 0U);
                            }),
                  Outcome::ok);
    }
    EXPECT_EQ(store.stats().item_bytes, 0U);
}

TEST_P(StoreCalls, AFullStoreTakesAValueForOneThatIsReadOnceItIsNot) {
    constexpr std::size_t large = 500'000;
    int count = 0;
    while (store.set(view("key " + std::to_string(count)), derived(1, large)).outcome ==
           Outcome::ok) {
        ++count;
    }
    ASSERT_GT(count, 1);
    std::thread other;
    SetResult result{.outcome = Outcome::bad_key};
    EXPECT_EQ(store.get(view("key 0"),
                        [&](const Entry& entry) {
                            other = std::thread{
                                [&] { result = store.set(view("key 0"), derived(2, large)); }};
                            EXPECT_TRUE(std::ranges::equal(entry.value, derived(1, large)));
                        }),
              Outcome::ok);
    other.join();
    EXPECT_EQ(result.outcome, Outcome::ok);
    EXPECT_EQ(value_in(store, view("key 0")), text(derived(2, large)));
}

TEST_P(StoreCalls, ManyThreadsHaveOneItemAtATime) {
    // More than an item can count: the last one has it by the lock.
    constexpr int readers = 64;
    const Bytes value = derived(1, 10'000);
    ASSERT_EQ(store.set(view("key"), value).outcome, Outcome::ok);
    std::atomic<int> here{0};
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < readers; ++i) {
        threads.emplace_back([&] {
            EXPECT_EQ(store.get(view("key"),
                                [&](const Entry& entry) {
                                    ++here;
                                    while (!is_over) std::this_thread::yield();
                                    EXPECT_TRUE(std::ranges::equal(entry.value, value));
                                }),
                      Outcome::ok);
        });
    }
    for (const auto deadline = base::Deadline::after(std::chrono::seconds{60});
         here != readers && !deadline.expired();) {
        std::this_thread::yield();
    }
    EXPECT_EQ(here, readers);
    is_over = true;
    for (std::thread& one : threads) one.join();
    EXPECT_EQ(store.set(view("key"), view("new")).outcome, Outcome::ok);
    EXPECT_EQ(value_in(store, view("key")), "new");
}

TEST_P(StoreCalls, GetsSeveralInTheirOrderEachAsByItself) {
    const std::string too_long(longest_key + 1, 'k');
    std::vector<std::string> names;
    for (int i = 0; i < 40; ++i) names.push_back("key " + std::to_string(i));
    for (std::size_t i = 0; i < names.size(); i += 2) {
        ASSERT_EQ(store.set(view(names[i]), derived(i, 100 * i)).outcome, Outcome::ok);
    }
    names[11] = "";
    names[13] = too_long;
    names[15] = names[14];
    ASSERT_EQ(store.set(view("key 17"), view("over"), {.expires_after = no_time}).outcome,
              Outcome::ok);
    std::vector<View> keys;
    for (const std::string& name : names) keys.push_back(view(name));
    std::size_t next = 0;
    store.get_several(keys, [&](std::size_t index, Outcome outcome, const Entry& entry) {
        EXPECT_EQ(index, next++);
        const std::size_t number = index == 15 ? 14 : index;
        if (number % 2 == 0) {
            EXPECT_EQ(outcome, Outcome::ok) << index;
            EXPECT_EQ(text(entry.key), names[index]);
            EXPECT_TRUE(std::ranges::equal(entry.value, derived(number, 100 * number))) << index;
        } else {
            EXPECT_EQ(outcome, number == 11 || number == 13 ? Outcome::bad_key : Outcome::not_found)
                << index;
            EXPECT_TRUE(entry.value.empty());
        }
    });
    EXPECT_EQ(next, keys.size());
    EXPECT_EQ(store.stats().hits, 21U);
    EXPECT_EQ(store.stats().gets, 38U) << "a bad key is none";
}

TEST_P(StoreCalls, LetsGoOfSeveralWhoseReaderThrows) {
    const std::vector<View> keys{view("a"), view("b"), view("c")};
    for (const View key : keys) ASSERT_EQ(store.set(key, view("1")).outcome, Outcome::ok);
    EXPECT_THROW(store.get_several(keys, [](std::size_t, Outcome, const Entry&) { throw 7; }), int);
    // What nobody reads is written over where it is.
    const auto before = store.moment().moved;
    for (const View key : keys) ASSERT_EQ(store.set(key, view("2")).outcome, Outcome::ok);
    EXPECT_EQ(store.moment().moved, before);
}

TEST_P(StoreCalls, GetsSeveralOfOneItemThatManyThreadsHave) {
    // One less than an item can count.
    constexpr int readers = 62;
    ASSERT_EQ(store.set(view("key"), view("value")).outcome, Outcome::ok);
    std::atomic<int> here{0};
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < readers; ++i) {
        threads.emplace_back([&] {
            (void)store.get(view("key"), [&](const Entry&) {
                ++here;
                while (!is_over) std::this_thread::yield();
            });
        });
    }
    for (const auto deadline = base::Deadline::after(std::chrono::seconds{60});
         here != readers && !deadline.expired();) {
        std::this_thread::yield();
    }
    EXPECT_EQ(here, readers);
    const std::vector<View> keys(20, view("key"));
    std::size_t next = 0;
    store.get_several(keys, [&](std::size_t index, Outcome outcome, const Entry& entry) {
        EXPECT_EQ(index, next++);
        EXPECT_EQ(outcome, Outcome::ok);
        EXPECT_EQ(text(entry.value), "value");
    });
    EXPECT_EQ(next, keys.size());
    is_over = true;
    for (std::thread& one : threads) one.join();
    EXPECT_EQ(store.set(view("key"), view("other")).outcome, Outcome::ok);
    EXPECT_EQ(store.stats().hits, keys.size() + readers);
}

TEST_P(StoreCalls, SweepFreesWhatIsOverAndGoesOnWhereItWas) {
    for (int i = 0; i < 1000; ++i) {
        SetOptions options;
        if (i % 2 == 0) options.expires_after = no_time;
        ASSERT_EQ(store.set(view(std::to_string(i)), view("v"), options).outcome, Outcome::ok);
    }
    EXPECT_EQ(store.stats().items, 1000U);
    EXPECT_LE(store.sweep(10), 10U);
    std::size_t removed = store.stats().expired;
    for (int i = 0; i < 250; ++i) removed += store.sweep(10);
    EXPECT_EQ(removed, 500U);
    EXPECT_EQ(store.stats().items, 500U);
    EXPECT_EQ(store.stats().expired, 500U);
    EXPECT_EQ(store.sweep(~std::size_t{0}), 0U);
}

TEST_P(StoreCalls, ForEachMeetsEachItemOnce) {
    std::map<std::string, std::string> expected;
    for (std::size_t i = 0; i < 2000; ++i) {
        const std::string key = "key " + std::to_string(i);
        const std::string value = text(derived(i, i % 3000));
        ASSERT_EQ(store.set(view(key), view(value)).outcome, Outcome::ok);
        expected[key] = value;
    }
    std::map<std::string, std::string> met;
    store.for_each([&](const Entry& entry) {
        EXPECT_TRUE(met.emplace(text(entry.key), text(entry.value)).second);
    });
    EXPECT_EQ(met, expected);
}

TEST_P(StoreCalls, VisitsInPiecesThatMeetEachItemOnce) {
    std::set<std::string> expected;
    for (std::size_t i = 0; i < 2000; ++i) {
        const std::string key = "key " + std::to_string(i);
        ASSERT_EQ(store.set(view(key), derived(i, i % 3000)).outcome, Outcome::ok);
        expected.insert(key);
    }
    // What comes and goes between two pieces changes nothing for the others.
    std::set<std::string> met;
    int pieces = 0;
    for (Cursor at = Cursor::begin; at != Cursor::end; ++pieces) {
        int left = 7;
        const Cursor before = at;
        at = store.visit_from(at, [&](const Entry& entry) {
            if (left == 0) return false;
            --left;
            const std::string key = text(entry.key);
            EXPECT_TRUE(!key.starts_with("key ") || met.insert(key).second) << key;
            return true;
        });
        ASSERT_GT(at, before) << "it moves on, so it ends";
        ASSERT_EQ(store.set(view("passing " + std::to_string(pieces)), derived(1, 40)).outcome,
                  Outcome::ok);
        if (pieces % 2 == 1) store.erase(view("passing " + std::to_string(pieces)));
    }
    EXPECT_EQ(met, expected);
    EXPECT_GE(pieces, 2000 / 7);
}

TEST_P(StoreCalls, PassesManyEmptyPlacesInMoreThanOnePiece) {
    // One item in each extent is left, of many.
    Store sparse{options_of(GetParam(), std::uint64_t{64} << 20)};
    std::size_t count = 0;
    while (sparse.set(view("key " + std::to_string(count)), derived(count, 3000)).outcome ==
           Outcome::ok) {
        ++count;
        if (count == 20'000) break;
    }
    ASSERT_GT(count, 4000U);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (i % 20 == 0) {
            ++kept;
        } else {
            sparse.erase(view("key " + std::to_string(i)));
        }
    }
    std::size_t met = 0;
    int pieces = 0;
    for (Cursor at = Cursor::begin; at != Cursor::end; ++pieces) {
        at = sparse.visit_from(at, [&](const Entry&) {
            ++met;
            return true;
        });
    }
    EXPECT_EQ(met, kept);
    EXPECT_GT(pieces, 1) << "so a server that dumps serves others, too";
}

TEST_P(StoreCalls, ClearLeavesNothingAndGivesMemoryBack) {
    const std::uint64_t before = store.stats().memory_bytes;
    Version last = 0;
    for (int i = 0; i < 10'000; ++i) {
        last = store.set(view(std::to_string(i)), derived(1, 300)).version;
    }
    EXPECT_GT(store.stats().memory_bytes, before + 2'000'000);
    store.clear();
    EXPECT_EQ(store.stats().items, 0U);
    EXPECT_EQ(store.stats().item_bytes, 0U);
    // The table keeps what it grew to.
    EXPECT_LT(store.stats().memory_bytes, before + 1'500'000);
    EXPECT_EQ(value_in(store, view("1")), std::nullopt);
    EXPECT_GT(store.set(view("1"), view("again")).version, last);
    EXPECT_EQ(value_in(store, view("1")), "again");
}

TEST_P(StoreCalls, VersionsDoNotWrapHoweverOftenItIsCleared) {
    const Version first = store.set(view("1"), view("one")).version;
    constexpr Version clears = 1000;
    for (Version i = 0; i < clears; ++i) store.clear();
    const Version last = store.set(view("1"), view("again")).version;
    EXPECT_GT(last, first);
    // An answer has 56 bits for it.
    EXPECT_LE(last - first, clears + 1);
}

TEST_P(StoreCalls, RefusesBadKeysAndValues) {
    const Bytes longest_legal_key(longest_key, std::byte{1});
    const Bytes long_key(longest_key + 1, std::byte{1});
    const Bytes longest_legal_value = derived(1, longest_value);
    const Bytes long_value(longest_value + 1);
    for (const View key : {View{}, View{long_key}}) {
        EXPECT_EQ(store.set(key, view("v")).outcome, Outcome::bad_key);
        EXPECT_EQ(store.get(key, [](const Entry&) { FAIL(); }), Outcome::bad_key);
        EXPECT_EQ(store.erase(key), Outcome::bad_key);
        EXPECT_FALSE(store.exists(key));
        store.prefetch(key);
    }
    EXPECT_EQ(store.set(view("k"), long_value).outcome, Outcome::bad_value);
    EXPECT_EQ(store
                  .set(longest_legal_key, longest_legal_value,
                       {.if_version = 0, .expires_after = long_time})
                  .outcome,
              Outcome::ok);
    EXPECT_EQ(value_in(store, longest_legal_key), text(longest_legal_value));
    EXPECT_EQ(store.set(view("0"), {}).outcome, Outcome::ok);
    EXPECT_EQ(value_in(store, view("0")), "");
}

TEST_P(StoreCalls, CountsWhatItDoes) {
    store.set(view("a"), view("1"));
    store.set(view("b"), view("22"));
    store.set(view("a"), view("333"));
    store.erase(view("b"));
    store.get(view("a"), [](const Entry&) {});
    store.get(view("b"), [](const Entry&) {});
    const StoreStats stats = store.stats();
    EXPECT_EQ(stats.items, 1U);
    EXPECT_EQ(stats.item_bytes, 4U);
    EXPECT_EQ(stats.gets, 2U);
    EXPECT_EQ(stats.hits, 1U);
    EXPECT_EQ(stats.sets, 3U);
    EXPECT_EQ(stats.erased, 1U);
    EXPECT_EQ(stats.evicted + stats.expired + stats.refused, 0U);
}

TEST_P(StoreCalls, APrefetchChangesNothing) {
    store.prefetch(view("k"));
    for (int i = 0; i < 30'000; ++i) {
        const std::string key = std::to_string(i);
        store.prefetch(view(key));
        ASSERT_EQ(store.set(view(key), view("v")).outcome, Outcome::ok);
        store.prefetch(view(key));
    }
    EXPECT_EQ(store.stats().gets, 0U);
    EXPECT_EQ(store.stats().items, 30'000U);
}

TEST(StoreOfMemory, OutOfRangeIsAnError) {
    for (const std::uint64_t memory : {std::uint64_t{0}, least_memory - 1, ~std::uint64_t{0}}) {
        try {
            const Store store{options_of(TableKind::cuckoo, memory)};
            ADD_FAILURE() << memory;
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        }
    }
    const Store store{options_of(TableKind::cuckoo)};
    EXPECT_EQ(store.options().memory_bytes, least_memory);
}

TEST(StoreNames, OfOutcomes) {
    EXPECT_EQ(name_of(Outcome::ok), "ok");
    EXPECT_EQ(name_of(Outcome::bad_value), "bad value");
}

}  // namespace
}  // namespace millrace::kv
