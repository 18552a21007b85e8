// Byte streams are measured in the modes that were asked for, through the same buffers. How fast is
// not asked here.
#include <array>
#include <cstddef>

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

}  // namespace
}  // namespace millrace::bench
