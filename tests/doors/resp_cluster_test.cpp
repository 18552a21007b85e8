// CLUSTER, and clients of Redis clusters, at the RESP door: to them it is one node with all slots.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "doors/resp_client.hpp"

namespace millrace::kv {
namespace {

/// A server whose RESP door is at a TCP port, as clients of clusters want it.
ServerOptions over_tcp() {
    ServerOptions options;
    options.doors.resp = connect::Address::parse("127.0.0.1:0");
    return options;
}
std::string port_of(const DoorServing& serving) {
    return std::to_string(serving.server().door_address(DoorKind::resp)->port());
}

TEST(RespCluster, HasSlotsByThePublishedChecksum) {
    const DoorServing serving;
    RawClient client{serving};
    const auto slot_of = [&](const std::string& key) {
        return client.ask({"cluster", "keyslot", key});
    };
    // Of the specification: the checksum of these digits is 0x31C3.
    EXPECT_EQ(slot_of("123456789"), ":12739\r\n");
    EXPECT_EQ(slot_of("{user1000}.following"), slot_of("user1000"));
    EXPECT_EQ(slot_of("foo{bar}{zap}"), slot_of("bar"));
    EXPECT_EQ(slot_of("foo{{bar}}zap"), slot_of("{bar"));
    EXPECT_NE(slot_of("foo{}{bar}"), slot_of("bar")) << "nothing is between its first braces";
}

TEST(RespCluster, CountsAndNamesTheKeysOfASlot) {
    const DoorServing serving;
    RawClient client{serving};
    ASSERT_EQ(client.ask({"mset", "a{x}", "1", "b{x}", "2", "c", "3"}), "+OK\r\n");
    const std::string slot = client.ask({"cluster", "keyslot", "x"});
    const std::string number = slot.substr(1, slot.size() - 3);
    EXPECT_EQ(client.ask({"cluster", "countkeysinslot", number}), ":2\r\n");
    const std::string both = client.ask({"cluster", "getkeysinslot", number, "10"});
    EXPECT_EQ(both.substr(0, 4), "*2\r\n");
    EXPECT_NE(both.find("a{x}"), std::string::npos);
    EXPECT_NE(both.find("b{x}"), std::string::npos);
    EXPECT_EQ(client.ask({"cluster", "getkeysinslot", number, "1"}).substr(0, 4), "*1\r\n");
    EXPECT_EQ(client.ask({"cluster", "getkeysinslot", number, "0"}), "*0\r\n");
}

/// Besides redis-server as a cluster of one node.
class ClusterAlike : public testing::TestWithParam<int> {
  protected:
    void SetUp() override {
        if (!is_installed("redis-server")) {
            GTEST_SKIP() << "redis-server is not installed: scripts/install-dependencies test";
        }
        redis.emplace(std::vector<std::string>{"/usr/bin/redis-server", "--port", "0", "--save", "",
                                               "--cluster-enabled", "yes", "--cluster-port",
                                               free_tcp_port(), "--loglevel", "warning", "--dir",
                                               folder.path(), "--unixsocket"},
                      folder);
        theirs.emplace(redis->path());
        for (RawClient* const client : {&ours, &*theirs}) {
            (void)client->ask({"hello", std::to_string(GetParam())});
        }
        ASSERT_EQ(theirs->ask({"cluster", "addslotsrange", "0", "16383"}), "+OK\r\n");
    }
    /// With this node's name in place of either's.
    static std::string ask(RawClient& client, const Words& words) {
        const std::string own = client.ask({"cluster", "myid"}).substr(5, 40);
        std::string answer = client.ask(words);
        for (std::size_t at = 0; (at = answer.find(own, at)) != answer.npos;) {
            answer.replace(at, own.size(), "SELF");
        }
        return answer;
    }

    test::TemporaryFolder folder;
    std::optional<DebiansServer> redis;
    DoorServing serving;
    RawClient ours{serving};
    std::optional<RawClient> theirs;
};
INSTANTIATE_TEST_SUITE_P(Protocols, ClusterAlike, testing::Values(2, 3),
                         [](const auto& of) { return "resp" + std::to_string(of.param); });

TEST_P(ClusterAlike, AnswersAsAClusterOfOneNode) {
    for (const Words& words :
         std::initializer_list<Words>{{"cluster"},
                                      {"cluster", "foo"},
                                      {"cluster", "slots"},
                                      {"cluster", "shards"},
                                      {"cluster", "links"},
                                      {"cluster", "slaves", "x"},
                                      {"cluster", "replicas", "x"},
                                      {"cluster", "replicas"},
                                      {"cluster", "count-failure-reports", "x"},
                                      {"cluster", "keyslot"},
                                      {"cluster", "countkeysinslot", "5"},
                                      {"cluster", "countkeysinslot", "-1"},
                                      {"cluster", "countkeysinslot", "16384"},
                                      {"cluster", "countkeysinslot", "x"},
                                      {"cluster", "getkeysinslot", "5", "10"},
                                      {"cluster", "getkeysinslot", "5", "-1"},
                                      {"cluster", "getkeysinslot", "x", "1"},
                                      {"cluster", "getkeysinslot", "5", "x"},
                                      {"cluster", "getkeysinslot", "20000", "1"},
                                      {"readonly"},
                                      {"readwrite"},
                                      {"asking"},
                                      {"info", "cluster"}}) {
        EXPECT_EQ(ask(ours, words), ask(*theirs, words)) << testing::PrintToString(words);
    }
    const std::string self = ours.ask({"cluster", "myid"}).substr(5, 40);
    EXPECT_EQ(ours.ask({"cluster", "replicas", self}), "*0\r\n");
    EXPECT_EQ(ours.ask({"cluster", "count-failure-reports", self}), ":0\r\n");
    // Redis' names the port by which its nodes would talk to each other, and is not sure of itself
    // before it has waited.
    EXPECT_NE(ours.ask({"cluster", "nodes"}).find(" :0@0 myself,master - 0 0 0 connected 0-16383"),
              std::string::npos);
    EXPECT_NE(ours.ask({"cluster", "info"}).find("cluster_state:ok\r\n"), std::string::npos);
}

TEST_P(ClusterAlike, HasEveryKeyInTheSameSlot) {
    std::mt19937 random{11};
    for (int i = 0; i < 2000; ++i) {
        std::string key(random() % 40, ' ');
        for (char& letter : key) letter = "ab{}\xff\r"[random() % 6];
        const Words words{"cluster", "keyslot", key};
        ASSERT_EQ(ours.ask(words), theirs->ask(words)) << testing::PrintToString(key);
    }
}

TEST(RespClusterClients, AreServedByRedisPy) {
    if (run({"/usr/bin/python3", "-c", "import redis; print(1)"}).text != "1\n") {
        GTEST_SKIP() << "python3-redis: scripts/install-dependencies test";
    }
    const DoorServing serving{over_tcp()};
    const Said said =
        run({"/usr/bin/python3", MILLRACE_SOURCE_DIR "/tests/doors/redis_cluster_py.py",
             port_of(serving)});
    EXPECT_TRUE(said.exit.success());
    EXPECT_EQ(said.text, "done\n");
}

TEST(RespClusterClients, AreServedByRedisCli) {
    if (!is_installed("redis-cli")) GTEST_SKIP() << "redis-cli: scripts/install-dependencies test";
    const DoorServing serving{over_tcp()};
    const auto ask = [&](std::vector<std::string> words) {
        words.insert(words.begin(), {"/usr/bin/redis-cli", "-c", "-p", port_of(serving)});
        return run(std::move(words)).text;
    };
    EXPECT_EQ(ask({"set", "name", "a value"}), "OK\n");
    EXPECT_EQ(ask({"get", "name"}), "a value\n");
    const Said check =
        run({"/usr/bin/redis-cli", "--cluster", "check", "127.0.0.1:" + port_of(serving)});
    EXPECT_TRUE(check.exit.success()) << check.text;
    EXPECT_NE(check.text.find("[OK] All 16384 slots covered."), std::string::npos) << check.text;
}

}  // namespace
}  // namespace millrace::kv
