// The soft device's statistics page, read from another process while its owner is at work.
#include <chrono>
#include <cstdint>
#include <thread>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/statistics.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

/// What process `pid` says of itself; nullopt: it has no such page or counter.
std::optional<std::uint64_t> counted(pid_t pid, const std::string& name) {
    for (const auto& page : base::StatisticsPage::of_process(pid)) {
        if (page.title != "soft device") continue;
        for (const auto& [counter, value] : page.counters) {
            if (counter == name) return value;
        }
    }
    return std::nullopt;
}

/// Waits until the counter of `pid` exceeds `least`.
std::optional<std::uint64_t> counted_beyond(pid_t pid, const std::string& name,
                                            std::uint64_t least) {
    const auto limit = std::chrono::steady_clock::now() + patience;
    for (;;) {
        const auto value = counted(pid, name);
        if (!value || *value > least) return value;
        if (std::chrono::steady_clock::now() > limit) return value;
        std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
}

TEST(SoftStatistics, GrowWhileTheProcessThatIsReadGoesOnRunning) {
    RemotePair pair;
    ASSERT_EQ(pair.right.ask("flood 64 " + std::to_string(pair.left.address()) + ' ' +
                             std::to_string(pair.left.mr->rkey)),
              "flooding");
    const pid_t peer = pair.right.child.pid();
    for (const std::string name :
         {"WRITE requests", "post_send calls", "send completions polled"}) {
        std::uint64_t before = 0;
        for (int look = 0; look < 3; ++look) {
            const auto now = counted_beyond(peer, name, before);
            ASSERT_TRUE(now) << name;
            ASSERT_GT(*now, before) << name;
            before = *now;
        }
    }
}

TEST(SoftStatistics, AreCompleteWhileTheProcessSleepsOnItsChannel) {
    RemotePair pair{{}, {"events"}};
    const pid_t peer = pair.right.child.pid();
    const auto before = counted(peer, "SEND requests");
    ASSERT_TRUE(before);
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(pair.left.receive(1, 0, 64), 0);
        ASSERT_EQ(pair.right.ask("send 1 0 8"), "0");
        ASSERT_EQ(pair.right.ask("complete"), "1 0 8");
    }
    ASSERT_EQ(pair.right.ask("notify 0"), "0");
    ASSERT_EQ(pair.right.ask("event"), "waiting");
    EXPECT_EQ(counted_beyond(peer, "SEND requests", *before + 2), *before + 3);
    EXPECT_EQ(counted_beyond(peer, "send completions polled", 2), 3);
}

}  // namespace
}  // namespace millrace::test
