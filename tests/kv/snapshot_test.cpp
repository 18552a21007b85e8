// Snapshots: what is written comes back, and what was cut or changed is told.
#include "snapshot.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "millrace/base/error.hpp"
#include "stores.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::kv {
namespace {

namespace fs = std::filesystem;

struct Saved {
    std::string value;
    std::optional<base::Clock::time_point> expires_at;
    std::uint64_t note;
};
std::map<std::string, Saved> items_of(const Store& store) {
    std::map<std::string, Saved> items;
    store.for_each([&](const Entry& entry) {
        items[text(entry.key)] = {text(entry.value), entry.expires_at, entry.note};
    });
    return items;
}

class Snapshots : public testing::Test {
  protected:
    /// What it takes a file with these bytes for; empty: for a snapshot.
    std::string complaint_of(const std::string& bytes) const {
        const std::string path = folder.path("wrong");
        std::ofstream{path, std::ios::binary} << bytes;
        Store other{options_of(TableKind::cuckoo, least_memory)};
        try {
            (void)read_snapshot(other, path);
        } catch (const base::Error& error) {
            // Nothing of it is there.
            EXPECT_EQ(other.stats().items, 0U);
            return error.what();
        }
        return {};
    }
    std::string bytes_of_file() const {
        std::ifstream file{path, std::ios::binary};
        return {std::istreambuf_iterator<char>{file}, {}};
    }

    test::TemporaryFolder folder;
    std::string path = folder.path("snapshot");
    Store store{options_of(TableKind::cuckoo, std::uint64_t{64} << 20)};
};

TEST_F(Snapshots, GiveBackAllThatIsKnownOfItems) {
    const auto then = base::Clock::now() + long_time;
    store.set(view("plain"), view("a value"));
    store.set(view("empty"), {});
    store.set_until(view("noted"), view("v"), {}, {}, 0x0123'4567'89ab'cdef);
    store.set_until(view("both"), view("v"), then, {}, 7);
    store.set(view(std::string(longest_key, 'k')), view(std::string(longest_value, 'v')));
    for (int i = 0; i < 5000; ++i) {
        store.set(view("key:" + std::to_string(i)), view(std::string(i % 3000, 'v')));
    }
    EXPECT_EQ(write_snapshot(store, path), 5005U);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U) << "others may not read what they may not ask for";
    EXPECT_FALSE(fs::exists(path + ".new"));

    Store other{options_of(TableKind::thesis, std::uint64_t{64} << 20)};
    const SnapshotRead read = read_snapshot(other, path);
    EXPECT_EQ(read.items, 5005U);
    EXPECT_EQ(read.expires, 1U);
    EXPECT_EQ(read.refused + read.over, 0U);
    const auto wanted = items_of(store);
    const auto found = items_of(other);
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [key, item] : wanted) {
        const auto at = found.find(key);
        ASSERT_NE(at, found.end()) << key.substr(0, 100);
        EXPECT_TRUE(at->second.value == item.value) << key.substr(0, 100);
        EXPECT_EQ(at->second.note, item.note);
        ASSERT_EQ(at->second.expires_at.has_value(), item.expires_at.has_value());
        if (!item.expires_at) continue;
        // By way of the time of day, which two readings of it do not give exactly.
        const auto apart = *at->second.expires_at - *item.expires_at;
        EXPECT_LT(std::chrono::abs(apart), std::chrono::minutes{1});
    }
}

TEST_F(Snapshots, LeaveOutWhatIsOverByThen) {
    store.set(view("stays"), view("v"));
    store.set_until(view("goes"), view("v"), base::Clock::now() + std::chrono::milliseconds{20});
    ASSERT_EQ(write_snapshot(store, path), 2U);
    while (store.exists(view("goes"))) {
    }
    Store other{options_of(TableKind::cuckoo, least_memory)};
    const SnapshotRead read = read_snapshot(other, path);
    EXPECT_EQ(read.items, 1U);
    EXPECT_EQ(read.over, 1U);
    EXPECT_FALSE(other.exists(view("goes")));
}

TEST_F(Snapshots, CountWhatAStoreHasNoMemoryFor) {
    for (int i = 0; i < 400; ++i) {
        store.set(view("key:" + std::to_string(i)), view(std::string(50'000, 'v')));
    }
    const std::uint64_t all = write_snapshot(store, path);
    ASSERT_EQ(all, 400U);
    Store small{options_of(TableKind::cuckoo, least_memory)};
    const SnapshotRead read = read_snapshot(small, path);
    EXPECT_GT(read.items, 0U);
    EXPECT_GT(read.refused, 0U);
    EXPECT_EQ(read.items + read.refused, all);
}

TEST_F(Snapshots, TellWhereverTheyWereCutOrChanged) {
    store.set(view("first"), view("a value"));
    store.set_until(view("second"), view(std::string(100, 'v')), base::Clock::now() + long_time, {},
                    5);
    write_snapshot(store, path);
    const std::string whole = bytes_of_file();
    ASSERT_EQ(complaint_of(whole), "");
    for (std::size_t size = 0; size < whole.size(); ++size) {
        ASSERT_NE(complaint_of(whole.substr(0, size)), "") << "cut at " << size;
    }
    for (std::size_t at = 0; at < whole.size(); ++at) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ 1);
        ASSERT_NE(complaint_of(changed), "") << "changed at " << at;
    }
    EXPECT_NE(complaint_of(whole + 'x').find("something follows its end"), std::string::npos);
    EXPECT_NE(complaint_of("a letter to a friend, and a long one").find("no snapshot"),
              std::string::npos);
}

TEST_F(Snapshots, StayAsTheyWereWhereNoneCanBeWritten) {
    store.set(view("k"), view("v"));
    ASSERT_EQ(write_snapshot(store, path), 1U);
    const std::string before = bytes_of_file();
    store.set(view("k"), view("other"));
    // Nothing can be written aside, as a folder is there.
    ASSERT_TRUE(fs::create_directory(path + ".new"));
    EXPECT_THROW(write_snapshot(store, path), base::Error);
    EXPECT_EQ(bytes_of_file(), before);
    ASSERT_TRUE(fs::remove(path + ".new"));
    EXPECT_EQ(write_snapshot(store, path), 1U);
    EXPECT_NE(bytes_of_file(), before);
    EXPECT_THROW(write_snapshot(store, folder.path("none/snapshot")), base::Error);
}

/// Calls that writing beside clients asks, where there is nobody else.
constexpr auto alone = [](FunctionRef<void()> last) {
    last();
    return true;
};
constexpr auto goes_on = [] { return true; };

TEST_F(Snapshots, MissNothingThatIsThereAllTheWhileHoweverItMoves) {
    constexpr int keys = 3000;
    const auto key = [](int i) { return "key:" + std::to_string(i); };
    std::mt19937 random{7};
    // An item of another length lies elsewhere from then on: perhaps where the writer has been.
    const auto change = [&](int i) {
        store.set(view(key(i)), view(std::string(1 + random() % 2000, 'v')));
    };
    for (int i = 0; i < keys; ++i) change(i);
    int pieces = 0;
    const auto written = write_snapshot_beside(store, path, alone, [&] {
        ++pieces;
        for (int i = 0; i < keys / 2; ++i) change(static_cast<int>(random() % keys));
        return true;
    });
    ASSERT_TRUE(written.has_value());
    EXPECT_GT(*written, std::uint64_t{keys}) << "what has moved is written once more";
    EXPECT_GT(pieces, 3);
    Store other{options_of(TableKind::cuckoo, std::uint64_t{64} << 20)};
    const SnapshotRead read = read_snapshot(other, path);
    EXPECT_EQ(read.items, std::uint64_t{keys}) << "one that is written twice is one item";
    EXPECT_EQ(other.stats().items, std::uint64_t{keys});
    // The last look was alone: it has what is there now.
    const auto found = items_of(other);
    for (const auto& [name, item] : items_of(store)) {
        ASSERT_TRUE(found.contains(name)) << name;
        EXPECT_EQ(found.at(name).value.size(), item.value.size()) << name;
    }
}

TEST_F(Snapshots, ForgetWhatWasThereBeforeATimeThatIsOver) {
    store.set(view("goes"), view("v"));
    store.set(view("stays"), view("v"));
    const auto soon = base::Clock::now() + std::chrono::milliseconds{20};
    const auto written = write_snapshot_beside(store, path, alone, [&, is_first = true]() mutable {
        // Of another length, so that it is written again, with a time.
        if (std::exchange(is_first, false)) {
            store.set_until(view("goes"), view(std::string(500, 'v')), soon);
        }
        return true;
    });
    ASSERT_EQ(written, 3U);
    while (base::Clock::now() < soon) {
    }
    Store other{options_of(TableKind::cuckoo, least_memory)};
    const SnapshotRead read = read_snapshot(other, path);
    EXPECT_EQ(read.items, 1U);
    EXPECT_EQ(read.over, 1U);
    EXPECT_FALSE(other.exists(view("goes")));
}

TEST_F(Snapshots, ThatAreGivenUpLeaveTheFileAsItWas) {
    store.set(view("k"), view("v"));
    ASSERT_EQ(write_snapshot_beside(store, path, alone, goes_on), 1U);
    const std::string before = bytes_of_file();
    store.set(view("k"), view("other"));
    EXPECT_EQ(write_snapshot_beside(store, path, alone, [] { return false; }), std::nullopt);
    EXPECT_EQ(write_snapshot_beside(
                  store, path, [](FunctionRef<void()>) { return false; }, goes_on),
              std::nullopt);
    EXPECT_EQ(bytes_of_file(), before);
    EXPECT_FALSE(fs::exists(path + ".new"));
}

TEST_F(Snapshots, AreEmptyWhereThereIsNone) {
    EXPECT_EQ(read_snapshot(store, path).items, 0U);
    EXPECT_THROW(read_snapshot(store, folder.path("")), base::Error);
}

}  // namespace
}  // namespace millrace::kv
