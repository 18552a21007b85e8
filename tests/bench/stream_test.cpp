// Byte streams are measured in the modes that were asked for, through the same buffers. How fast is
// not asked here.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "bench/stream/measure_stream.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::bench {
namespace {

TEST(StreamsThroughTheSameBuffers, GoInTheModesThatWereAskedFor) {
    if (base::available_cores().size() < 2) GTEST_SKIP() << "pairs need two cores";
    const std::array modes{stream::Mode::indirect, stream::Mode::direct};
    const auto flows = measure_modes({.bytes = std::size_t{16} << 10,
                                      .sends = 2,
                                      .receives = 4,
                                      .wait_all = true,
                                      .seconds = 0.4},
                                     modes);
    ASSERT_EQ(flows.size(), modes.size());
    EXPECT_EQ(flows[0].percent_direct, 0);
    EXPECT_EQ(flows[1].percent_direct, 100);
    for (const StreamFlow& flow : flows) {
        EXPECT_GT(flow.bytes_per_second, 0);
        EXPECT_GT(flow.cpu_seconds_per_gigabyte, 0);
    }
}

TEST(StreamsThroughTheSameBuffers, GoByThePublishedProtocolToo) {
    if (base::available_cores().size() < 2) GTEST_SKIP() << "pairs need two cores";
    const StreamFlow flow = measure_stream({.protocol = stream::Protocol::published,
                                            .bytes = std::size_t{64} << 10,
                                            .receives = 8,
                                            .wait_all = true});
    EXPECT_GT(flow.bytes_per_second, 0);
    EXPECT_GE(flow.percent_direct_transfers, 0);
    EXPECT_LE(flow.percent_direct_transfers, 100);
    EXPECT_GT(flow.sender_cpu_percent, 0);
    EXPECT_GT(flow.receiver_cpu_percent, 0);
}

/// 10 receives of 100 bytes, a millisecond apart, in each of 20 bursts.
std::vector<Arrived> bursts(std::chrono::milliseconds apart) {
    std::vector<Arrived> made;
    const base::Clock::time_point begin{};
    for (int burst = 0; burst < 20; ++burst) {
        for (int one = 1; one <= 10; ++one) {
            made.push_back({begin + burst * apart + std::chrono::milliseconds{one},
                            100 * static_cast<std::uint64_t>(burst * 10 + one)});
        }
    }
    return made;
}

TEST(RateOverWindows, IsThatOfBurstsWhereverItBegins) {
    // 1,000 bytes every 100 ms, of which the burst takes ten.
    const auto all = bursts(std::chrono::milliseconds{100});
    for (const int first : {0, 3, 7, 50, 104}) {
        EXPECT_NEAR(rate_over(all, base::Clock::time_point{} + std::chrono::milliseconds{first},
                              std::chrono::milliseconds{850}),
                    10'000, 700)
            << first;
    }
}

TEST(RateOverWindows, IsNotMoreThanTheLinkWhereTheReceiverWasBehind) {
    // No pause: 100 bytes each millisecond. 20 ms long nothing was taken, and then all of it.
    auto all = bursts(std::chrono::milliseconds{10});
    for (Arrived& one : all) {
        const auto since = one.when - base::Clock::time_point{};
        if (since > std::chrono::milliseconds{50} && since < std::chrono::milliseconds{70}) {
            one.when = base::Clock::time_point{} + std::chrono::milliseconds{70};
        }
    }
    const double rate = rate_over(all, base::Clock::time_point{} + std::chrono::milliseconds{45},
                                  std::chrono::milliseconds{85});
    EXPECT_NEAR(rate, 100'000, 1'000);
}

TEST(RateOverWindows, IsNoneOfAStreamShorterThanTheWindow) {
    EXPECT_EQ(rate_over(bursts(std::chrono::milliseconds{10}), {}, std::chrono::seconds{1}), 0);
    EXPECT_EQ(rate_over({}, {}, std::chrono::seconds{1}), 0);
}

}  // namespace
}  // namespace millrace::bench
