// Memory is bounded, what is kept is whole, and a full store goes on: it refuses, or evicts what
// has not been used for long, of whichever size.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "size_classes.hpp"
#include "stores.hpp"

namespace millrace::kv {
namespace {

TEST(SizeClasses, LoseAnEighthAtMost) {
    for (std::size_t bytes = sizeof(Item) + 1; bytes <= longest_item; bytes += 1 + bytes / 100) {
        const std::size_t chunk = chunk_of(class_of(bytes));
        ASSERT_GE(chunk, bytes);
        ASSERT_LE(chunk, std::max({least_chunk, bytes + 15, bytes + bytes / 8}));
    }
    EXPECT_LT(class_of(longest_item), size_classes);
}

struct StoreKind {
    TableKind table;
    WhenFull when_full;
};

class StoreMemory : public testing::TestWithParam<StoreKind> {
  protected:
    [[nodiscard]] static StoreOptions options(std::uint64_t memory = least_memory) {
        return options_of(GetParam().table, memory, GetParam().when_full);
    }
    [[nodiscard]] static bool evicts() { return GetParam().when_full == WhenFull::evict; }
};
INSTANTIATE_TEST_SUITE_P(Kinds, StoreMemory,
                         testing::Values(StoreKind{TableKind::cuckoo, WhenFull::refuse},
                                         StoreKind{TableKind::cuckoo, WhenFull::evict},
                                         StoreKind{TableKind::thesis, WhenFull::refuse},
                                         StoreKind{TableKind::thesis, WhenFull::evict}),
                         [](const auto& of) {
                             return std::string{of.param.table == TableKind::cuckoo ? "cuckoo"
                                                                                    : "thesis"} +
                                    (of.param.when_full == WhenFull::evict ? "_evict" : "_refuse");
                         });

TEST_P(StoreMemory, IsBoundedForRandomSizesAndWhatIsKeptIsWhole) {
    Store store{options()};
    std::mt19937_64 random{42};
    std::map<std::string, std::uint64_t> seeds;
    for (std::uint64_t i = 1; i <= 6000; ++i) {
        const std::string key = std::to_string(random() % 2000);
        // As many of each order of magnitude, up to the longest.
        const std::size_t length = random() % (std::size_t{2} << random() % 20);
        const auto outcome = store.set(view(key), sealed(i, length)).outcome;
        ASSERT_TRUE(outcome == Outcome::ok || (outcome == Outcome::full && !evicts())) << i;
        if (outcome == Outcome::ok) seeds[key] = length < sizeof i ? 0 : i;
        if (random() % 8 == 0) {
            const std::string erased = std::to_string(random() % 2000);
            store.erase(view(erased));
            seeds.erase(erased);
        }
        ASSERT_LE(store.stats().memory_bytes, least_memory);
    }
    std::size_t kept = 0;
    for (const auto& [key, seed] : seeds) {
        const Outcome outcome = store.get(view(key), [&](const Entry& entry) {
            EXPECT_EQ(seed_of(entry.value), seed);
            EXPECT_TRUE(is_whole(entry.value));
        });
        kept += outcome == Outcome::ok ? 1 : 0;
    }
    EXPECT_EQ(kept, store.stats().items);
    EXPECT_GT(kept, 20U);
    if (evicts()) {
        EXPECT_GT(store.stats().evicted, 0U);
        EXPECT_EQ(store.stats().refused, 0U);
    } else {
        EXPECT_EQ(kept, seeds.size());
        EXPECT_EQ(store.stats().evicted, 0U);
        EXPECT_GT(store.stats().refused, 0U);
    }
}

TEST_P(StoreMemory, TheLeastTakesTheLongestItems) {
    Store store{options()};
    const Bytes value = sealed(3, longest_value);
    int taken = 0;
    for (char c = 'a'; c <= 'z'; ++c) {
        Bytes key(longest_key, static_cast<std::byte>(c));
        taken += store.set(key, value).outcome == Outcome::ok ? 1 : 0;
    }
    EXPECT_GE(store.stats().items, 5U);
    EXPECT_LE(store.stats().memory_bytes, least_memory);
    if (evicts()) {
        EXPECT_EQ(taken, 26);
    } else {
        EXPECT_LT(taken, 26);
    }
}

TEST_P(StoreMemory, AFullStoreStillReplacesBySizesThatFit) {
    Store store{options()};
    int items = 0;
    while (items < 100 && store.stats().refused + store.stats().evicted == 0) {
        store.set(view(std::to_string(items++)), sealed(1, 200'000));
    }
    ASSERT_LT(items, 100);
    EXPECT_EQ(store.set(view("1"), sealed(2, 200'000)).outcome, Outcome::ok);
    store.get(view("1"), [](const Entry& entry) { EXPECT_EQ(seed_of(entry.value), 2U); });
    const auto longer = store.set(view("1"), sealed(3, 400'000)).outcome;
    store.get(view("1"), [&](const Entry& entry) {
        EXPECT_EQ(seed_of(entry.value), longer == Outcome::ok ? 3U : 2U);
        EXPECT_TRUE(is_whole(entry.value));
    });
    EXPECT_EQ(longer, evicts() ? Outcome::ok : Outcome::full);
}

TEST_P(StoreMemory, PassesToOtherSizesWhenItIsErased) {
    Store store{options()};
    for (const std::size_t length : {40U, 900'000U, 3000U, 0U, 30'000U, 200U}) {
        std::vector<std::string> keys;
        std::uint64_t bytes = 0;
        for (int i = 0; bytes < 3'000'000 && i < 30'000; ++i) {
            keys.push_back(std::to_string(i));
            ASSERT_EQ(store.set(view(keys.back()), sealed(1, length)).outcome, Outcome::ok)
                << length << " after " << bytes;
            bytes += length;
        }
        for (const std::string& key : keys) store.erase(view(key));
        EXPECT_EQ(store.stats().items, 0U);
    }
}

class StoreEviction : public testing::TestWithParam<TableKind> {};
INSTANTIATE_TEST_SUITE_P(Tables, StoreEviction,
                         testing::Values(TableKind::cuckoo, TableKind::thesis), name_of_table);

TEST_P(StoreEviction, NeverAnswersFullWhenTheSizesShift) {
    Store store{options_of(GetParam(), least_memory, WhenFull::evict)};
    for (const std::size_t length : {100U, 1'000'000U, 1000U, 10U, 50'000U, 100U, 5000U}) {
        // Twice what fits.
        const std::size_t sets = 2 * least_memory / (length + 45);
        for (std::size_t i = 0; i < sets; ++i) {
            const std::string key = std::to_string(length) + " " + std::to_string(i);
            ASSERT_EQ(store.set(view(key), sealed(i, length)).outcome, Outcome::ok);
        }
        const StoreStats stats = store.stats();
        EXPECT_LE(stats.memory_bytes, least_memory);
        // The newest is there, and memory is mostly of the new size.
        EXPECT_TRUE(store.exists(view(std::to_string(length) + " " + std::to_string(sets - 1))));
        std::uint64_t of_size = 0;
        store.for_each([&](const Entry& entry) {
            EXPECT_TRUE(is_whole(entry.value));
            if (entry.value.size() == length) of_size += entry.key.size() + length;
        });
        EXPECT_GE(of_size * 2, stats.item_bytes) << length;
    }
    EXPECT_EQ(store.stats().refused, 0U);
}

TEST_P(StoreEviction, KeepsWhatIsUsedWhileOthersPassThrough) {
    Store store{options_of(GetParam(), least_memory, WhenFull::evict)};
    constexpr int hot = 2000;
    const auto hot_key = [](int i) { return "hot " + std::to_string(i); };
    for (int i = 0; i < hot; ++i) store.set(view(hot_key(i)), sealed(1, 200));
    // Four times the memory, and each hot one is read while a tenth of the memory passes.
    const auto scanned = static_cast<int>(4 * least_memory / 250);
    for (int i = 0; i < scanned; ++i) {
        ASSERT_EQ(store.set(view("scan " + std::to_string(i)), sealed(1, 200)).outcome,
                  Outcome::ok);
        store.get(view(hot_key(i % hot)), [](const Entry&) {});
    }
    int kept = 0;
    for (int i = 0; i < hot; ++i) kept += store.exists(view(hot_key(i))) ? 1 : 0;
    EXPECT_GT(kept, hot * 9 / 10);
}

TEST_P(StoreEviction, KeepsWhatIsUsedWhileOtherSizesPassThrough) {
    Store store{options_of(GetParam(), least_memory, WhenFull::evict)};
    constexpr int hot = 2000;
    const auto hot_key = [](int i) { return "hot " + std::to_string(i); };
    for (int i = 0; i < hot; ++i) store.set(view(hot_key(i)), sealed(1, 200));
    const auto scanned = static_cast<int>(10 * least_memory / 10'000);
    for (int i = 0; i < scanned; ++i) {
        ASSERT_EQ(store.set(view("scan " + std::to_string(i)), sealed(1, 9000)).outcome,
                  Outcome::ok);
        for (int j = 0; j < 20; ++j) {
            store.get(view(hot_key((20 * i + j) % hot)), [](const Entry&) {});
        }
    }
    int kept = 0;
    for (int i = 0; i < hot; ++i) kept += store.exists(view(hot_key(i))) ? 1 : 0;
    EXPECT_GT(kept, hot * 9 / 10);
}

TEST_P(StoreEviction, KeepsWhatIsUsedAmongMuchThatIsNot) {
    Store store{options_of(GetParam(), least_memory, WhenFull::evict)};
    constexpr int small = 24'000;
    constexpr int apart = 16;
    constexpr int hot = small / apart;
    for (int i = 0; i < small; ++i) store.set(view(std::to_string(i)), sealed(1, 200));
    ASSERT_EQ(store.stats().evicted, 0U);
    const auto scanned = static_cast<int>(10 * least_memory / 10'000);
    for (int i = 0; i < scanned; ++i) {
        ASSERT_EQ(store.set(view("scan " + std::to_string(i)), sealed(1, 9000)).outcome,
                  Outcome::ok);
        for (int j = 0; j < 20; ++j) {
            const std::string key = std::to_string((20 * i + j) % hot * apart);
            store.get(view(key), [](const Entry& entry) { ASSERT_TRUE(is_whole(entry.value)); });
        }
    }
    int kept = 0;
    for (int i = 0; i < hot; ++i) kept += store.exists(view(std::to_string(i * apart))) ? 1 : 0;
    EXPECT_GT(kept, hot * 9 / 10);
    // Their neighbours made room.
    EXPECT_LT(store.stats().items, std::uint64_t{small / 4});
}

TEST(StoreGrowth, FindsEverythingWhileTheTableGrows) {
    Store store{options_of(TableKind::cuckoo, std::uint64_t{64} << 20)};
    int items = 0;
    for (; items < 1'000'000; ++items) {
        const std::string key = std::to_string(items);
        if (store.set(view(key), view(key)).outcome != Outcome::ok) break;
    }
    EXPECT_GT(items, 500'000);
    EXPECT_LE(store.stats().memory_bytes, store.options().memory_bytes);
    for (int i = 0; i < items; ++i) {
        const std::string key = std::to_string(i);
        ASSERT_EQ(value_in(store, view(key)), key);
    }
}

TEST(StoreGrowth, WithEvictionTheTableGetsItsMemory) {
    Store store{options_of(TableKind::cuckoo, std::uint64_t{16} << 20, WhenFull::evict)};
    for (int i = 0; i < 40; ++i) {
        ASSERT_EQ(store.set(view("large " + std::to_string(i)), sealed(1, 500'000)).outcome,
                  Outcome::ok);
    }
    for (int i = 0; i < 400'000; ++i) {
        const std::string key = std::to_string(i);
        ASSERT_EQ(store.set(view(key), {}).outcome, Outcome::ok);
    }
    EXPECT_GT(store.stats().items, 100'000U);
    EXPECT_LE(store.stats().memory_bytes, store.options().memory_bytes);
}

}  // namespace
}  // namespace millrace::kv
