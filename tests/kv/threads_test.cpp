// Many threads on few keys, with everything that the store can do at a time: no value is torn, and
// who reads a key sees its versions grow.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "stores.hpp"

namespace millrace::kv {
namespace {

struct ThreadSetting {
    TableKind table;
    WhenFull when_full;
    HashFunction hash;
    const char* name;
};

class StoreThreads : public testing::TestWithParam<ThreadSetting> {
  protected:
    [[nodiscard]] static StoreOptions options() {
        return options_of(GetParam().table, least_memory, GetParam().when_full);
    }
    static void run(std::vector<std::function<void()>> bodies) {
        std::vector<std::thread> threads;
        for (auto& body : bodies) threads.emplace_back(std::move(body));
        for (std::thread& thread : threads) thread.join();
    }
    static constexpr int keys = 16;
};
INSTANTIATE_TEST_SUITE_P(
    Tables, StoreThreads,
    testing::Values(ThreadSetting{TableKind::cuckoo, WhenFull::evict, hash_of, "cuckoo_evict"},
                    ThreadSetting{TableKind::cuckoo, WhenFull::refuse, hash_of, "cuckoo_refuse"},
                    ThreadSetting{TableKind::cuckoo, WhenFull::evict, weak_hash,
                                  "cuckoo_collisions"},
                    ThreadSetting{TableKind::thesis, WhenFull::evict, hash_of, "thesis_evict"}),
    [](const auto& of) { return std::string{of.param.name}; });

TEST_P(StoreThreads, SeeWholeValuesAndVersionsThatGrow) {
    Engine engine{options(), GetParam().hash};
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> seeds{1};
    const auto writer = [&](unsigned seed) {
        std::mt19937 random{seed};
        for (int i = 0; i < 3000; ++i) {
            const std::string key = std::to_string(random() % keys);
            const auto one_of = random() % 100;
            if (one_of < 15) {
                engine.erase(view(key), {});
            } else if (one_of == 15) {
                engine.clear();
            } else if (one_of < 20) {
                engine.sweep(10);
            } else {
                SetOptions set;
                if (one_of < 30) set.expires_after = no_time;
                if (one_of < 40) set.expires_after = long_time;
                const std::size_t length = one_of < 97 ? random() % 2000 : random() % 400'000;
                const auto outcome = engine.set(view(key), sealed(seeds++, length), set).outcome;
                ASSERT_TRUE(outcome == Outcome::ok || outcome == Outcome::full);
            }
        }
    };
    const auto reader = [&](unsigned seed) {
        std::mt19937 random{seed};
        std::array<Version, keys> last{};
        while (!over) {
            const auto at = random() % keys;
            const std::string key = std::to_string(at);
            engine.find(view(key), [&](const Entry& entry) {
                ASSERT_TRUE(is_whole(entry.value));
                ASSERT_EQ(text(entry.key), key);
                ASSERT_GE(entry.version, last[at]);
                last[at] = entry.version;
            });
            if (random() % 100 == 0) {
                engine.for_each([&](const Entry& entry) { ASSERT_TRUE(is_whole(entry.value)); });
            }
            ASSERT_LE(engine.stats().memory_bytes, least_memory);
        }
    };
    std::thread readers[] = {std::thread{reader, 1}, std::thread{reader, 2}};
    run({[&] { writer(3); }, [&] { writer(4); }, [&] { writer(5); }});
    over = true;
    for (std::thread& thread : readers) thread.join();
    engine.clear();
    EXPECT_EQ(engine.stats().items, 0U);
    EXPECT_EQ(engine.stats().item_bytes, 0U);
}

TEST_P(StoreThreads, CountWithConditionsAndLoseNothing) {
    constexpr int each = 2000;
    Engine engine{options(), GetParam().hash};
    const auto count = [&] {
        for (int i = 0; i < each;) {
            std::uint64_t value = 0;
            Version version = 0;
            engine.find(view("counter"), [&](const Entry& entry) {
                std::memcpy(&value, entry.value.data(), sizeof value);
                version = entry.version;
            });
            ++value;
            const auto bytes = std::as_bytes(std::span{&value, 1});
            const auto outcome =
                engine.set(view("counter"), bytes, {.if_version = version}).outcome;
            ASSERT_TRUE(outcome == Outcome::ok || outcome == Outcome::conflict);
            if (outcome == Outcome::ok) ++i;
        }
    };
    run({count, count, count, count});
    std::uint64_t value = 0;
    engine.find(view("counter"),
                [&](const Entry& entry) { std::memcpy(&value, entry.value.data(), sizeof value); });
    EXPECT_EQ(value, std::uint64_t{4 * each});
}

TEST_P(StoreThreads, FillItTogetherWithAllSizes) {
    Engine engine{options(), GetParam().hash};
    const auto fill = [&](unsigned seed) {
        std::mt19937_64 random{seed};
        const int sets = GetParam().hash == weak_hash ? 1000 : 8000;
        for (int i = 0; i < sets; ++i) {
            const std::string key = std::to_string(random() % 50'000);
            // Later ones are larger, and then small again.
            const std::size_t length = random() % (std::size_t{8} << (i * 24 / sets) % 16);
            const auto outcome = engine.set(view(key), sealed(random(), length), {}).outcome;
            ASSERT_TRUE(outcome == Outcome::ok ||
                        (outcome == Outcome::full && GetParam().when_full == WhenFull::refuse));
            engine.find(view(std::to_string(random() % 50'000)),
                        [&](const Entry& entry) { ASSERT_TRUE(is_whole(entry.value)); });
        }
    };
    run({[&] { fill(1); }, [&] { fill(2); }, [&] { fill(3); }, [&] { fill(4); }});
    EXPECT_LE(engine.stats().memory_bytes, least_memory);
    std::uint64_t items = 0;
    std::uint64_t bytes = 0;
    engine.for_each([&](const Entry& entry) {
        EXPECT_TRUE(is_whole(entry.value));
        ++items;
        bytes += entry.key.size() + entry.value.size();
    });
    EXPECT_EQ(items, engine.stats().items);
    EXPECT_EQ(bytes, engine.stats().item_bytes);
}

/// A clear() beside conditional sets: nothing set for a version that it removed stays.
TEST_P(StoreThreads, ClearIsBeforeOrAfterEachConditionalSet) {
    Engine engine{options(), GetParam().hash};
    for (int round = 0; round < 300; ++round) {
        const Version first = engine.set(view("k"), sealed(1, 50), {}).version;
        Outcome outcome{};
        run({[&] { engine.clear(); },
             [&] {
                 outcome = engine.set(view("k"), sealed(2, 500), {.if_version = first}).outcome;
             }});
        // If it was set, then before the clear().
        ASSERT_FALSE(engine.exists(view("k")));
        ASSERT_TRUE(outcome == Outcome::ok || outcome == Outcome::conflict);
    }
}

}  // namespace
}  // namespace millrace::kv
