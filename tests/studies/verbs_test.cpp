// Echoes over raw verbs arrive whole by every way and transport. How fast is not asked here.
#include "studies/verbs/measure_echo.hpp"

#include <string>

#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::bench {
namespace {

constexpr Way all_ways[] = {
    Way::send,         Way::immediate_alone, Way::write,           Way::write_immediate,
    Way::read_memory,  Way::read_completion, Way::place_immediate, Way::place_behind,
    Way::place_before, Way::chained_behind,  Way::chained_before};

class Echo : public testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        if (base::available_cores().size() < 2) GTEST_SKIP() << "pairs need two cores";
    }
    static EchoCase of(Way way, std::size_t bytes) {
        return {.way = way, .bytes = bytes, .mode = GetParam(), .echoes = 100};
    }
};

TEST_P(Echo, ArrivesWholeByEveryWay) {
    for (const Way way : all_ways) {
        for (const std::size_t bytes : {4U, 300U, 4096U}) {
            EXPECT_GT(measure_echo(of(way, bytes)), 0) << static_cast<int>(way) << ' ' << bytes;
        }
    }
}

TEST_P(Echo, ArrivesOverEveryTransport) {
    for (const Transport transport : {Transport::unreliable, Transport::datagram}) {
        for (const Way way : {Way::send, Way::immediate_alone}) {
            for (const std::size_t bytes : {4U, 64U, 1024U}) {
                EchoCase chosen = of(way, bytes);
                chosen.transport = transport;
                EXPECT_GT(measure_echo(chosen), 0) << bytes;
            }
        }
    }
}

TEST_P(Echo, ArrivesByEventsAndFromMemory) {
    for (const Way way : {Way::send, Way::write_immediate}) {
        EchoCase chosen = of(way, 64);
        chosen.inlined = false;
        chosen.events = true;
        EXPECT_GT(measure_echo(chosen), 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Modes, Echo, testing::Values("fast", "strict", "shaped:40g,latency=0.85us"),
                         [](const auto& each) {
                             const std::string mode = each.param;
                             return mode.substr(0, mode.find(':'));
                         });

TEST(EchoCase, IsRefusedWhereTheTransportCannot) {
    const auto refused = [](const EchoCase& chosen) {
        try {
            (void)measure_echo(chosen);
        } catch (const base::Error& error) {
            return error.code() == base::ErrorCode::invalid_argument;
        }
        return false;
    };
    EXPECT_TRUE(refused({.way = Way::write, .transport = Transport::datagram}));
    EXPECT_TRUE(refused({.way = Way::read_memory, .transport = Transport::unreliable}));
    EXPECT_TRUE(refused({.way = Way::send, .transport = Transport::datagram, .bytes = 1025}));
    EXPECT_TRUE(refused({.way = Way::send, .bytes = 3}));
    EXPECT_TRUE(refused({.way = Way::write, .events = true}));
}

}  // namespace
}  // namespace millrace::bench
