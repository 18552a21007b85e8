// Unmodified programs of rdma-core and perftest between two hosts, over the drop-in's wire: two
// addresses of this machine's loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "programs.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing::Not;

using Command = std::vector<std::string>;

/// Its words without their dashes, joined.
std::string name_of_wire_test(const testing::TestParamInfo<Command>& info) {
    std::string name;
    for (const std::string& word : info.param) {
        if (!name.empty()) name += '_';
        for (const char c : word) {
            if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
        }
    }
    return name;
}

const HostsOfPair two_hosts{"127.0.0.2", "127.0.0.3"};

class PingpongOverWire : public testing::TestWithParam<Command> {};

// GID index 1 is the host's address, by RoCE version 2.
TEST_P(PingpongOverWire, EndsWellOnBothHosts) {
    Command command = GetParam();
    command.insert(command.end(), {"-d", "soft0", "-g", "1"});
    const auto pair = run_pair(command, Loading::library_path, patience, two_hosts);
    ASSERT_TRUE(pair.success()) << pair;
    EXPECT_THAT(pair.client.output, HasSubstr(" usec/iter")) << pair;
    EXPECT_THAT(pair.client.output, HasSubstr("::ffff:127.0.0.3")) << pair;
    EXPECT_THAT(pair.client.output, HasSubstr("::ffff:127.0.0.2")) << pair;
    EXPECT_THAT(pair.client.output, Not(HasSubstr("invalid data")));
}

INSTANTIATE_TEST_SUITE_P(
    Programs, PingpongOverWire,
    testing::Values(Command{"ibv_rc_pingpong", "-c"}, Command{"ibv_rc_pingpong", "-e", "-c"},
                    Command{"ibv_rc_pingpong", "-s", "1", "-n", "2000"},
                    Command{"ibv_rc_pingpong", "-s", "1000000", "-n", "100", "-c"},
                    Command{"ibv_rc_pingpong", "-N", "-c"},
                    Command{"ibv_uc_pingpong", "-n", "200", "-c"}, Command{"ibv_ud_pingpong", "-c"},
                    Command{"ibv_ud_pingpong", "-e", "-c"}, Command{"ibv_srq_pingpong", "-c"},
                    Command{"ibv_srq_pingpong", "-e", "-c"}),
    name_of_wire_test);

class PerftestOverWire : public testing::TestWithParam<Command> {};

TEST_P(PerftestOverWire, EndsWellOnBothHostsAndPrintsAResult) {
    Command command = GetParam();
    command.insert(command.end(), {"-d", "soft0", "-x", "1", "-F"});
    const auto pair = run_perftest([&] {
        return run_pair(command, Loading::library_path, std::chrono::seconds{90}, two_hosts);
    });
    expect_result_of_perftest(pair);
}

INSTANTIATE_TEST_SUITE_P(
    Programs, PerftestOverWire,
    testing::Values(Command{"ib_write_bw", "-s", "65536", "-n", "300"},
                    Command{"ib_write_bw", "-s", "8", "-n", "1000", "-q", "4"},
                    Command{"ib_write_lat", "-s", "8", "-n", "300", "-C"},
                    Command{"ib_send_bw", "-s", "65536", "-n", "300"},
                    Command{"ib_send_lat", "-s", "64", "-n", "300", "-C"},
                    Command{"ib_read_bw", "-s", "65536", "-n", "300"},
                    Command{"ib_read_lat", "-s", "8", "-n", "300", "-C"},
                    Command{"ib_atomic_bw", "-n", "300"},
                    Command{"ib_atomic_lat", "-A", "CMP_AND_SWAP", "-n", "300", "-C"},
                    Command{"ib_write_bw", "-c", "UC", "-s", "4096", "-n", "300"},
                    Command{"ib_send_lat", "-c", "UD", "-s", "64", "-n", "300", "-C"}),
    name_of_wire_test);

class UcxOverWire : public testing::TestWithParam<Command> {};

// The first word is the transport.
TEST_P(UcxOverWire, EndsWellOnBothHosts) {
    Command command = GetParam();
    setenv("UCX_TLS", command[0].c_str(), 1);
    setenv("UCX_NET_DEVICES", "soft0:1", 1);
    command[0] = "ucx_perftest";
    const auto pair = run_pair(command, Loading::library_path, std::chrono::seconds{90}, two_hosts);
    unsetenv("UCX_TLS");
    unsetenv("UCX_NET_DEVICES");
    ASSERT_TRUE(pair.success()) << pair;
    EXPECT_THAT(pair.client.output, HasSubstr("Final:")) << pair;
    for (const auto* output : {&pair.client.output, &pair.server.output}) {
        EXPECT_THAT(*output, Not(HasSubstr("ERROR"))) << pair;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, UcxOverWire,
    testing::Values(Command{"rc_verbs,ud_verbs:aux", "-t", "tag_lat", "-s", "8", "-n", "300"},
                    Command{"rc_verbs,ud_verbs:aux", "-t", "ucp_put_bw", "-s", "100000", "-n",
                            "100"},
                    Command{"ud_verbs", "-t", "tag_bw", "-s", "8", "-n", "500"}),
    name_of_wire_test);

}  // namespace
}  // namespace millrace::test
