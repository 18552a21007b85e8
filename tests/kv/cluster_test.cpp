// Several servers as one: keys are where they belong, and a server that dies costs its own alone.
#include "millrace/kv/cluster.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/error.hpp"
#include "serving.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::kv {
namespace {

constexpr std::size_t count = 3;

std::string key_of(int i) { return "key:" + std::to_string(i); }

class Clusters : public testing::Test {
  protected:
    Clusters() {
        for (std::size_t i = 0; i < count; ++i) start(i);
    }
    [[nodiscard]] connect::Address address(std::size_t which) const {
        return connect::Address::unix_socket(folder.path("server" + std::to_string(which)));
    }
    void start(std::size_t which) {
        if (serving.size() <= which) serving.resize(which + 1);
        ServerOptions options;
        options.messages.transports = connect::Transport::tcp;
        serving[which] = std::make_unique<Serving>(options, address(which));
    }
    [[nodiscard]] ClusterOptions by_sockets() const {
        ClusterOptions options;
        options.client.transport = connect::Transport::tcp;
        options.retry_period = std::chrono::milliseconds{50};
        return options;
    }
    /// Asks for a key of that server until it is back.
    static bool comes_back(Cluster& cluster, std::size_t which) {
        int i = 0;
        while (cluster.server_of(bytes(key_of(i))) != which) ++i;
        const base::Deadline deadline = soon();
        while (cluster.exists(bytes(key_of(i)), soon()).code == Code::unanswered) {
            if (deadline.expired()) return false;
        }
        return true;
    }
    [[nodiscard]] std::vector<ClusterServer> all() const {
        std::vector<ClusterServer> servers;
        for (std::size_t i = 0; i < count; ++i) servers.push_back({.address = address(i)});
        return servers;
    }
    [[nodiscard]] Cluster connect(ClusterOptions options) const {
        return Cluster::connect(all(), std::move(options), soon());
    }
    [[nodiscard]] Cluster connect() const { return connect(by_sockets()); }

    test::TemporaryFolder folder;
    std::vector<std::unique_ptr<Serving>> serving;
};

TEST_F(Clusters, KeepEachKeyOnTheServerItBelongsTo) {
    Cluster cluster = connect();
    std::vector<std::uint64_t> items(count);
    for (int i = 0; i < 300; ++i) {
        ASSERT_TRUE(cluster.set(bytes(key_of(i)), bytes("v" + std::to_string(i)), soon()).ok());
        ++items[cluster.server_of(bytes(key_of(i)))];
    }
    for (std::size_t i = 0; i < count; ++i) {
        EXPECT_GT(items[i], 0U);
        EXPECT_EQ(serving[i]->server().store().stats().items, items[i]);
    }
    // Another client, which knows them in another order.
    auto turned = all();
    std::ranges::reverse(turned);
    Cluster other = Cluster::connect(std::move(turned), by_sockets(), soon());
    for (int i = 0; i < 300; ++i) {
        std::vector<std::byte> value;
        ASSERT_TRUE(other.get(bytes(key_of(i)), value, soon()).ok());
        EXPECT_EQ(value.size(), 1 + std::to_string(i).size());
    }
    EXPECT_TRUE(cluster.exists(bytes(key_of(7)), soon()).ok());
    EXPECT_EQ(cluster.set(bytes(key_of(7)), bytes("w"), soon(), {.if_version = 0}).code,
              Code::conflict);
    EXPECT_TRUE(cluster.erase(bytes(key_of(7)), soon()).ok());
    EXPECT_EQ(cluster.exists(bytes(key_of(7)), soon()).code, Code::key_error);
    EXPECT_EQ(cluster.close(soon()), base::Status::ok);
}

TEST_F(Clusters, GetManyKeysFromAllServersAtOnce) {
    Cluster cluster = connect();
    std::vector<std::string> names;
    for (int i = 0; i < 2000; ++i) names.push_back(key_of(i));
    names.emplace_back();  // no key
    std::vector<std::span<const std::byte>> keys;
    for (const std::string& name : names) keys.push_back(bytes(name));
    for (int i = 0; i < 2000; i += 2) {
        ASSERT_TRUE(cluster.set(keys[static_cast<std::size_t>(i)], bytes(key_of(i)), soon()).ok());
    }
    std::vector<int> taken(names.size());
    const auto take = [&](std::size_t index, const Result& result,
                          std::span<const std::byte> value) {
        ++taken[index];
        const bool is_set = index % 2 == 0 && index < 2000;
        EXPECT_EQ(result.code, is_set ? Code::ok : Code::key_error) << index;
        EXPECT_TRUE(!is_set || std::ranges::equal(value, keys[index])) << index;
    };
    ASSERT_EQ(cluster.multi_get(keys, take, soon()), base::Status::ok);
    EXPECT_TRUE(std::ranges::all_of(taken, [](int times) { return times == 1; }));
    // One that throws leaves nothing.
    const auto throws = [](std::size_t, const Result&, std::span<const std::byte>) { throw 7; };
    EXPECT_THROW((void)cluster.multi_get(keys, throws, soon()), int);
    std::ranges::fill(taken, 0);
    ASSERT_EQ(cluster.multi_get(keys, take, soon()), base::Status::ok);
    EXPECT_TRUE(std::ranges::all_of(taken, [](int times) { return times == 1; }));
}

TEST_F(Clusters, LoseTheKeysOfAServerThatDiesAndNothingElse) {
    Cluster cluster = connect();
    for (int i = 0; i < 300; ++i) {
        ASSERT_TRUE(cluster.set(bytes(key_of(i)), bytes("v"), soon()).ok());
    }
    constexpr std::size_t dies = 1;
    serving[dies].reset();
    for (int i = 0; i < 300; ++i) {
        const bool is_lost = cluster.server_of(bytes(key_of(i))) == dies;
        const Result result = cluster.exists(bytes(key_of(i)), soon());
        EXPECT_EQ(result.code, is_lost ? Code::unanswered : Code::ok) << i;
    }
    const ClusterHealth health = cluster.health(dies);
    EXPECT_FALSE(health.is_up);
    EXPECT_FALSE(health.failure.empty());
    EXPECT_EQ(health.lost, 1U);
    EXPECT_GT(health.turned_away, 0U);
    EXPECT_TRUE(cluster.health(0).is_up);

    std::vector<std::string> names;
    std::vector<std::span<const std::byte>> keys;
    for (int i = 0; i < 300; ++i) names.push_back(key_of(i));
    for (const std::string& name : names) keys.push_back(bytes(name));
    std::size_t taken = 0;
    ASSERT_EQ(cluster.multi_get(
                  keys,
                  [&](std::size_t index, const Result& result, std::span<const std::byte>) {
                      ++taken;
                      const bool is_lost = cluster.server_of(keys[index]) == dies;
                      EXPECT_EQ(result.code, is_lost ? Code::unanswered : Code::ok);
                      EXPECT_EQ(result.outcome == message::Outcome::peer_lost, is_lost);
                  },
                  soon()),
              base::Status::ok);
    EXPECT_EQ(taken, keys.size());

    // It comes back, empty; its keys are its own again.
    start(dies);
    ASSERT_TRUE(comes_back(cluster, dies));
    for (int i = 0; i < 300; ++i) {
        if (cluster.server_of(bytes(key_of(i))) != dies) continue;
        ASSERT_EQ(cluster.exists(bytes(key_of(i)), soon()).code, Code::key_error);
        ASSERT_TRUE(cluster.set(bytes(key_of(i)), bytes("v"), soon()).ok());
    }
    EXPECT_TRUE(cluster.health(dies).is_up);
    EXPECT_EQ(cluster.health(dies).connected, 2U);
}

TEST_F(Clusters, DoNotAskAServerThatIsAwayBeforeItIsTime) {
    ClusterOptions options = by_sockets();
    options.retry_period = std::chrono::hours{1};
    Cluster cluster = connect(options);
    serving[2].reset();
    int i = 0;
    while (cluster.server_of(bytes(key_of(i))) != 2) ++i;
    const auto key = key_of(i);
    EXPECT_EQ(cluster.exists(bytes(key), soon()).code, Code::unanswered);
    start(2);
    const Result result = cluster.exists(bytes(key), soon());
    EXPECT_EQ(result.code, Code::unanswered);
    EXPECT_EQ(result.outcome, message::Outcome::peer_lost);
    EXPECT_EQ(cluster.health(2).connected, 1U);
}

TEST_F(Clusters, BeginWithoutAServerButNotWithoutAll) {
    serving[0].reset();
    Cluster cluster = connect();
    EXPECT_FALSE(cluster.health(0).is_up);
    EXPECT_TRUE(cluster.health(1).is_up);
    start(0);
    EXPECT_TRUE(comes_back(cluster, 0));
    for (auto& one : serving) one.reset();
    EXPECT_THROW((void)connect(), base::Error);
    EXPECT_THROW((void)Cluster::connect({}, by_sockets(), soon()), base::Error);
    ClusterOptions wrong = by_sockets();
    wrong.retry_period = std::chrono::seconds{-1};
    EXPECT_THROW((void)connect(wrong), base::Error);
}

MILLRACE_CHILD(kv_cluster_server) {
    ServerOptions options;
    options.messages.transports = connect::Transport::tcp;
    auto server = Server::listen(connect::Address::parse(arguments.at(0)), options);
    test::say("listens");
    (void)server.serve(base::Deadline::after(std::chrono::seconds{100}));
    return 0;
}

/// Whose servers are processes, which can be killed and stopped.
class ClustersOfProcesses : public testing::Test {
  protected:
    ClustersOfProcesses() {
        for (std::size_t i = 0; i < count; ++i) {
            servers.push_back({.address = connect::Address::unix_socket(
                                   folder.path("server" + std::to_string(i)))});
            processes.push_back(start(i));
        }
        for (int i = 0; i < 600; ++i) names.push_back(key_of(i));
        for (const std::string& name : names) keys.push_back(bytes(name));
    }
    [[nodiscard]] test::ChildProcess start(std::size_t which) {
        auto process =
            test::ChildProcess::start("kv_cluster_server", {servers[which].address.to_string()});
        EXPECT_EQ(process.read_line(), "listens");
        return process;
    }
    [[nodiscard]] Cluster connect() {
        ClusterOptions options;
        options.client.transport = connect::Transport::tcp;
        options.retry_period = std::chrono::milliseconds{50};
        Cluster cluster = Cluster::connect(servers, options, soon());
        for (const auto& key : keys) EXPECT_TRUE(cluster.set(key, bytes("v"), soon()).ok());
        return cluster;
    }
    /// How many keys of each server were answered with `code`.
    std::map<std::size_t, std::size_t> answered(Cluster& cluster, Code code,
                                                const base::Deadline& deadline,
                                                base::Status wanted) {
        std::map<std::size_t, std::size_t> found;
        const base::Status status = cluster.multi_get(
            keys,
            [&](std::size_t index, const Result& result, std::span<const std::byte>) {
                if (result.code == code) ++found[cluster.server_of(keys[index])];
            },
            deadline);
        EXPECT_EQ(status, wanted);
        return found;
    }

    test::TemporaryFolder folder;
    std::vector<ClusterServer> servers;
    std::vector<test::ChildProcess> processes;
    std::vector<std::string> names;
    std::vector<std::span<const std::byte>> keys;
};

TEST_F(ClustersOfProcesses, LoseOnlyWhatAServerHadThatIsKilled) {
    Cluster cluster = connect();
    const auto whole = answered(cluster, Code::ok, soon(), base::Status::ok);
    ASSERT_EQ(whole.size(), count);
    processes[1].kill_and_wait();
    auto left = answered(cluster, Code::ok, soon(), base::Status::ok);
    EXPECT_EQ(left[0], whole.at(0));
    EXPECT_EQ(left[1], 0U);
    EXPECT_EQ(left[2], whole.at(2));
    processes[1] = start(1);
    for (const auto deadline = soon(); !cluster.health(1).is_up;) {
        ASSERT_FALSE(deadline.expired());
        (void)answered(cluster, Code::ok, soon(), base::Status::ok);
    }
    auto empty = answered(cluster, Code::key_error, soon(), base::Status::ok);
    EXPECT_EQ(empty[1], whole.at(1)) << "it is back, and has nothing";
    EXPECT_EQ(empty[0] + empty[2], 0U);
}

TEST_F(ClustersOfProcesses, AnswerForTheOthersWhereAServerHangs) {
    Cluster cluster = connect();
    const auto whole = answered(cluster, Code::ok, soon(), base::Status::ok);
    ASSERT_TRUE(processes[0].stop());
    auto left = answered(cluster, Code::ok, base::Deadline::after(std::chrono::milliseconds{1500}),
                         base::Status::timed_out);
    EXPECT_EQ(left[0], 0U);
    EXPECT_EQ(left[1], whole.at(1));
    EXPECT_EQ(left[2], whole.at(2));
    processes[0].resume();
    EXPECT_EQ(answered(cluster, Code::ok, soon(), base::Status::ok), whole)
        << "what had no answer is not taken for one";
}

}  // namespace
}  // namespace millrace::kv
