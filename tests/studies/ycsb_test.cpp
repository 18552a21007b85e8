// The Yahoo! Cloud Serving Benchmark: its clients do what the workloads say, and every store can be
// measured. How fast is not asked here.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/framework/program.hpp"
#include "bench/ycsb/measure_ycsb.hpp"
#include "millrace/base/error.hpp"
#include "studies/framework/study.hpp"
#include "studies/ycsb/measure_lookups.hpp"
#include "studies/ycsb/run_ycsb.hpp"
#include "workload/ycsb/generators.hpp"
#include "workload/ycsb/workload.hpp"

namespace millrace::bench {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// A store in this process that can be told to be wrong.
class MapStore {
  public:
    std::function<YcsbOutcome()> before_read = [] { return YcsbOutcome::ok; };
    std::function<YcsbOutcome()> before_write = [] { return YcsbOutcome::ok; };
    std::function<void(const std::string& key, std::vector<std::byte>& value)> change_answer{};
    std::function<void(const std::vector<std::byte>& former, std::span<const std::byte> value)>
        see_change{};
    std::vector<std::vector<std::string>> scanned;
    std::map<std::string, std::vector<std::byte>, std::less<>> items;
    std::mutex lock;

    std::unique_ptr<YcsbConnection> connect() { return std::make_unique<Connection>(*this); }

  private:
    class Connection : public YcsbConnection {
      public:
        explicit Connection(MapStore& store) : store_{store} {}
        YcsbOutcome read(std::string_view key, const TakeValue& take) override {
            const std::lock_guard guard{store_.lock};
            return find(key, take);
        }
        YcsbOutcome write(std::string_view key, std::span<const std::byte> value) override {
            const std::lock_guard guard{store_.lock};
            const YcsbOutcome outcome = store_.before_write();
            if (outcome != YcsbOutcome::ok) return outcome;
            auto& item = store_.items[std::string{key}];
            if (store_.see_change && !item.empty()) store_.see_change(item, value);
            item.assign(value.begin(), value.end());
            return YcsbOutcome::ok;
        }
        YcsbOutcome read_several(std::span<const std::string> keys,
                                 const TakeOneValue& take) override {
            const std::lock_guard guard{store_.lock};
            store_.scanned.emplace_back(keys.begin(), keys.end());
            YcsbOutcome all = YcsbOutcome::ok;
            for (std::size_t i = 0; i != keys.size(); ++i) {
                const YcsbOutcome one =
                    find(keys[i], [&](std::span<const std::byte> value) { take(i, value); });
                if (one != YcsbOutcome::ok) all = one;
            }
            return all;
        }

      private:
        YcsbOutcome find(std::string_view key, const TakeValue& take) {
            const YcsbOutcome outcome = store_.before_read();
            if (outcome != YcsbOutcome::ok) return outcome;
            const auto found = store_.items.find(key);
            if (found == store_.items.end()) return YcsbOutcome::missing;
            std::vector<std::byte> value = found->second;
            if (store_.change_answer) store_.change_answer(found->first, value);
            take(value);
            return YcsbOutcome::ok;
        }
        MapStore& store_;
    };
};

YcsbCase little(char workload, unsigned clients = 2) {
    YcsbCase made;
    made.workload = workload::ycsb_workloads[static_cast<std::size_t>(workload - 'A')];
    made.records = 200;
    made.clients = clients;
    made.warm_up = 5ms;
    made.duration = 50ms;
    return made;
}
/// How much comes about in a time is the machine's affair: so it runs again, for longer, until
/// there was enough of it.
template <class Run, class Enough>
YcsbResult run_until(YcsbCase chosen, Run&& run, Enough&& enough) {
    for (;;) {
        YcsbResult result = run(chosen);
        if (enough(result) || chosen.duration > 10s) return result;
        chosen.duration *= 4;
    }
}
auto has_all_kinds_of(const YcsbCase& chosen) {
    return [&chosen](const YcsbResult& result) {
        return std::ranges::all_of(workload::every_ycsb_operation,
                                   [&](workload::YcsbOperation operation) {
                                       return chosen.workload.percent_of(operation) == 0 ||
                                              result.times_of(operation).count() != 0;
                                   });
    };
}
bool has_failed(const YcsbResult& result) { return result.failed() != 0; }

YcsbResult run_over(MapStore& store, const YcsbCase& chosen) {
    return run_ycsb_clients(chosen, [&] { return store.connect(); });
}
template <class Enough>
YcsbResult run_over_until(MapStore& store, const YcsbCase& chosen, Enough&& enough) {
    return run_until(
        chosen, [&](const YcsbCase& one) { return run_over(store, one); }, enough);
}

class YcsbClients : public testing::TestWithParam<char> {};
INSTANTIATE_TEST_SUITE_P(Of, YcsbClients, testing::Values('A', 'B', 'C', 'D', 'E', 'F'),
                         [](const auto& one) { return std::string{one.param}; });
TEST_P(YcsbClients, MakeEachKindOfOperationAndFailInNone) {
    MapStore store;
    const YcsbCase chosen = little(GetParam(), 4);
    const YcsbResult result = run_over_until(store, chosen, has_all_kinds_of(chosen));
    EXPECT_EQ(result.failed(), 0U) << result.missing << " missing, " << result.wrong << " wrong";
    EXPECT_GT(result.operations_per_second, 0);
    EXPECT_GT(result.load_per_second, 0);
    for (const workload::YcsbOperation operation : workload::every_ycsb_operation) {
        EXPECT_EQ(result.times_of(operation).count() != 0,
                  chosen.workload.percent_of(operation) != 0)
            << name_of(operation);
    }
    const bool inserts = chosen.workload.percent_of(workload::YcsbOperation::insert) != 0;
    EXPECT_EQ(store.items.size() > chosen.records, inserts);
}

TEST(YcsbScans, ReadRecordsOneAfterTheOther) {
    MapStore store;
    (void)run_over_until(store, little('E'), [&](const YcsbResult&) {
        return std::ranges::any_of(store.scanned, [](const auto& keys) { return keys.size() > 1; });
    });
    std::map<std::string, std::uint64_t> numbers;
    std::string key;
    for (std::uint64_t record = 0; record != store.items.size(); ++record) {
        workload::write_key(record, key);
        numbers[key] = record;
    }
    std::size_t longest = 0;
    ASSERT_FALSE(store.scanned.empty());
    for (const auto& keys : store.scanned) {
        longest = std::max(longest, keys.size());
        for (std::size_t i = 1; i < keys.size(); ++i) {
            ASSERT_EQ(numbers.at(keys[i]), numbers.at(keys[i - 1]) + 1);
        }
    }
    EXPECT_LE(longest, workload::longest_scan);
    EXPECT_GT(longest, 1U);
}

TEST(YcsbReadModifyWrites, ChangeOneFieldOfWhatTheyRead) {
    MapStore store;
    std::uint64_t changes = 0;
    store.see_change = [&](const std::vector<std::byte>& former, std::span<const std::byte> now) {
        std::size_t changed = 0;
        for (std::size_t at = 0; at != former.size(); at += 100) {
            changed += !std::equal(now.begin() + static_cast<std::ptrdiff_t>(at),
                                   now.begin() + static_cast<std::ptrdiff_t>(at + 100),
                                   former.begin() + static_cast<std::ptrdiff_t>(at));
        }
        EXPECT_EQ(changed, 1U);
        ++changes;
    };
    // Of several clients one may write in between.
    (void)run_over_until(store, little('F', 1), [&](const YcsbResult&) { return changes != 0; });
    EXPECT_GT(changes, 0U);
}

TEST(YcsbErrors, AreCountedByWhatWentWrongAndNowhereElse) {
    YcsbCase unloaded = little('C');
    unloaded.loads = false;
    MapStore empty;
    const YcsbResult missing = run_over_until(empty, unloaded, has_failed);
    EXPECT_GT(missing.missing, 0U);
    EXPECT_EQ(missing.failed(), missing.missing);
    EXPECT_EQ(missing.operations_per_second, 0);
    EXPECT_EQ(missing.load_per_second, 0);

    MapStore refusing;
    refusing.before_read = [] { return YcsbOutcome::refused; };
    const YcsbResult refused = run_over_until(refusing, little('C'), has_failed);
    EXPECT_GT(refused.refused, 0U);
    EXPECT_EQ(refused.failed(), refused.refused);

    for (const char workload : {'C', 'E', 'F'}) {
        MapStore lying;
        lying.change_answer = [](const std::string&, std::vector<std::byte>& value) {
            value[500] ^= std::byte{1};
        };
        const YcsbResult wrong = run_over_until(lying, little(workload), has_failed);
        EXPECT_GT(wrong.wrong, 0U) << workload;
        EXPECT_EQ(wrong.failed(), wrong.wrong) << workload;
        EXPECT_EQ(wrong.times_of(workload::YcsbOperation::read).count(), 0U) << workload;
    }
}

TEST(YcsbErrors, EndTheLoadingOfRecords) {
    MapStore full;
    std::atomic<int> left = 100;
    full.before_write = [&] { return left-- > 0 ? YcsbOutcome::ok : YcsbOutcome::refused; };
    try {
        (void)run_over(full, little('C'));
        FAIL() << "it is full";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::resource_exhausted);
        EXPECT_THAT(error.what(), HasSubstr("--records"));
    }
}

// A closed loop would have one operation that took long: the others are not made meanwhile.
TEST(YcsbRates, CountFromWhenAnOperationWasDue) {
    MapStore stalling;
    std::atomic<bool> is_first = true;
    stalling.before_read = [&] {
        if (is_first.exchange(false)) std::this_thread::sleep_for(100ms);
        return YcsbOutcome::ok;
    };
    YcsbCase chosen = little('C', 1);
    chosen.warm_up = 0ms;
    chosen.duration = 200ms;
    chosen.offered_per_second = 1000;
    const YcsbResult result = run_over(stalling, chosen);
    EXPECT_GE(result.times_of(workload::YcsbOperation::read).quantile(0.8), 40'000'000U);
}

// --- stores

/// What a way needs that is not installed. Empty: nothing.
std::string missing_program(const YcsbWay& way) {
    if (way.protocol == YcsbWay::Protocol::own) return {};
    const std::string program =
        way.protocol == YcsbWay::Protocol::redis ? "redis-server" : "memcached";
    try {
        require_program(program, program);
    } catch (const base::Error&) {
        return program;
    }
    return {};
}

class YcsbStores : public testing::TestWithParam<YcsbWay> {};
INSTANTIATE_TEST_SUITE_P(Of, YcsbStores, testing::ValuesIn(ycsb_ways),
                         [](const auto& way) { return std::string{way.param.name}; });
TEST_P(YcsbStores, AreMeasuredByEachWorkload) {
    const YcsbWay& way = GetParam();
    if (const auto program = missing_program(way); !program.empty()) {
        GTEST_SKIP() << program << " is not installed";
    }
    for (const char workload : {'A', 'D', 'E', 'F'}) {
        const YcsbCase chosen = little(workload);
        const YcsbResult result = measure_ycsb(chosen, way, "fast");
        EXPECT_EQ(result.failed(), 0U)
            << workload << ": " << result.missing << " missing, " << result.refused << " refused, "
            << result.wrong << " wrong";
        for (const workload::YcsbOperation operation : workload::every_ycsb_operation) {
            EXPECT_EQ(result.times_of(operation).count() != 0,
                      chosen.workload.percent_of(operation) != 0)
                << workload << ' ' << name_of(operation);
        }
    }
}
TEST_P(YcsbStores, SayWhichRecordsAreNotThere) {
    const YcsbWay& way = GetParam();
    if (const auto program = missing_program(way); !program.empty()) {
        GTEST_SKIP() << program << " is not installed";
    }
    for (const char workload : {'C', 'E'}) {
        YcsbCase chosen = little(workload);
        chosen.loads = false;
        const YcsbResult result = run_until(
            chosen, [&](const YcsbCase& one) { return measure_ycsb(one, way, "fast"); },
            has_failed);
        EXPECT_GT(result.missing, 0U) << workload;
        EXPECT_EQ(result.failed(), result.missing) << workload;
    }
}

// --- the work's figures, and the command

TEST(YcsbLookups, AreMeasuredInEveryWay) {
    for (const LookupWay way : {LookupWay::tcp, LookupWay::unix_socket, LookupWay::posted,
                                LookupWay::stored, LookupWay::table}) {
        const LookupResult result = measure_lookups({.way = way, .lookups = 500});
        EXPECT_GT(result.us, 0) << static_cast<int>(way);
    }
    const LookupLoadResult load =
        measure_lookup_load({.clients = 10, .clients_at_most = 20, .share = 0.5, .duration = 50ms});
    EXPECT_GT(load.capacity, 0);
    EXPECT_GT(load.per_second, 0);
    EXPECT_GT(load.times->count(), 0U);
}

TEST(YcsbStudy, JudgesTheWorkByWhatItMeasured) {
    const Study study = ycsb_study({.over = {"rc"}}, true);
    StudyResults results;
    auto& values = results.values["fast"];
    values[{"5.1", "TCP", 100}] = {1e6 / 15};
    values[{"5.1", "RDMA", 100}] = {1e6 / 1.4};
    values[{"5.1", "shared memory", 100}] = {1e6 / 0.01};
    values[{"5.1 switches", "RDMA", 100}] = {0.25};
    const auto document = document_of(study, {.quick = true}, results);
    ASSERT_EQ(document["findings"].size(), 2U) << document["findings"];
    EXPECT_EQ(document["findings"][0]["verdict"], "agrees");
    EXPECT_FALSE(document["findings"][0].contains("counted"));
    EXPECT_EQ(document["findings"][1]["verdict"], "stronger");
    EXPECT_THAT(document["findings"][1]["counted"].get<std::string>(),
                testing::StartsWith("RDMA had 0.25 context switches"));
}

TEST(YcsbStudy, RefusesOptionsThatExcludeEachOther) {
    const auto refused = [](const YcsbOptions& options, const char* text) {
        try {
            (void)ycsb_study(options, true);
            ADD_FAILURE() << text;
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            EXPECT_THAT(error.what(), HasSubstr(text));
        }
    };
    refused({.server = "127.0.0.1:1"}, "--over");
    refused({.loads = false}, "--server");
    refused({.clients = {1, 2}, .rates = {1000}}, "--clients");
}

TEST(YcsbStudy, GoesOverRatesWhereSomeAreAskedFor) {
    const Study study =
        ycsb_study({.workloads = {'A'}, .over = {"rc"}, .rates = {1000, 2000}}, true);
    ASSERT_FALSE(study.figures.empty());
    EXPECT_EQ(study.figures[0].over, "operations offered a second");
    EXPECT_EQ(study.figures[0].xs, (std::vector<std::size_t>{1000, 2000}));
    EXPECT_TRUE(study.findings.empty());
}

}  // namespace
}  // namespace millrace::bench
