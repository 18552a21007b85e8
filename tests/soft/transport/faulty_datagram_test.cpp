// Mode faulty, datagrams: lost, doubled and out of order, and the same ones with the same seed.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "soft/mode_scope.hpp"
#include "soft/station.hpp"
#include "soft/words.hpp"

namespace millrace::test {
namespace {

struct Arrivals {
    std::vector<std::uint64_t> words;  ///< in the order in which they came
    bool all_completed = true;
};

/// `count` numbered datagrams, one every so often.
[[nodiscard]] Arrivals arrivals_of(const std::string& setting, std::uint64_t count) {
    const ModeScope mode{setting};
    StationOptions options;
    options.receive_wr = 1024;
    Station station{options};
    ibv_qp* const left = station.datagram();
    ibv_qp* const right = station.datagram();
    ibv_ah* const to = station.handle();
    for (std::uint64_t i = 0; i < 1000; ++i) {
        EXPECT_EQ(station.receive(right, i, 4096 + 48 * i, 48), 0);
    }
    Arrivals arrivals;
    const auto take = [&](const ibv_wc& wc) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id < 1000) {
            arrivals.words.push_back(word_at(station.memory + 4096 + 48 * wc.wr_id + 40));
        }
        return wc.wr_id == 5000;
    };
    for (std::uint64_t i = 0; i < count; ++i) {
        put_word(station.memory, i);
        EXPECT_EQ(station.send_to(left, to, right->qp_num, 5000, 0, 8), 0);
        bool completed = false;
        while (!completed) {
            const auto wc = station.complete();
            if (!wc) break;
            completed = take(*wc);
        }
        arrivals.all_completed = arrivals.all_completed && completed;
    }
    while (const auto wc = station.complete(std::chrono::milliseconds{50})) take(*wc);
    return arrivals;
}

TEST(FaultyDatagrams, AreLostAndComeTwiceAndOutOfOrder) {
    const Arrivals arrivals =
        arrivals_of("faulty:seed=1,loss=10%,duplicate=10%,reorder=10%,delay=1ms", 500);
    EXPECT_TRUE(arrivals.all_completed) << "the sender does not know";
    std::map<std::uint64_t, int> seen;
    bool overtaken = false;
    std::uint64_t last = 0;
    for (const std::uint64_t word : arrivals.words) {
        if (seen[word]++ == 0 && word < last) overtaken = true;
        last = std::max(last, word);
        ASSERT_LT(word, 500U);
    }
    EXPECT_GT(seen.size(), 400U);
    EXPECT_LT(seen.size(), 490U) << "none was lost";
    int twice = 0;
    for (const auto& [word, times] : seen) {
        EXPECT_LE(times, 2) << word;
        twice += times == 2 ? 1 : 0;
    }
    EXPECT_GT(twice, 10);
    EXPECT_TRUE(overtaken);
}

TEST(FaultyDatagrams, AreTheSameOnesWithTheSameSeed) {
    const std::string setting = "faulty:loss=20%,duplicate=0%,reorder=0%,seed=";
    const Arrivals first = arrivals_of(setting + "7", 200);
    EXPECT_EQ(arrivals_of(setting + "7", 200).words, first.words);
    EXPECT_NE(arrivals_of(setting + "8", 200).words, first.words);
    EXPECT_TRUE(std::is_sorted(first.words.begin(), first.words.end()));
}

TEST(FaultyDatagrams, AllArriveWhereNothingIsSet) {
    const Arrivals arrivals = arrivals_of("faulty:loss=0%,duplicate=0%,reorder=0%", 300);
    ASSERT_EQ(arrivals.words.size(), 300U);
    for (std::uint64_t i = 0; i < 300; ++i) EXPECT_EQ(arrivals.words[i], i);
}

}  // namespace
}  // namespace millrace::test
