// Clients of Redis as they are in Debian, at the RESP door: what a program does by them usually.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "doors/resp_client.hpp"

#ifdef MILLRACE_HAS_HIREDIS
#include <hiredis/hiredis.h>
#endif

namespace millrace::kv {
namespace {

TEST(RespClients, AreServedByRedisCli) {
    if (!is_installed("redis-cli")) GTEST_SKIP() << "redis-cli: scripts/install-dependencies test";
    const DoorServing serving;
    const auto ask = [&](std::vector<std::string> words) {
        words.insert(words.begin(), {"/usr/bin/redis-cli", "-s", serving.path()});
        return run(std::move(words)).text;
    };
    EXPECT_EQ(ask({"set", "name", "a value"}), "OK\n");
    EXPECT_EQ(ask({"get", "name"}), "a value\n");
    EXPECT_EQ(ask({"-3", "get", "none"}), "\n");
    EXPECT_EQ(ask({"-3", "config", "get", "save"}), "save \n");
    EXPECT_EQ(ask({"--scan", "--pattern", "na*"}), "name\n");
    EXPECT_EQ(ask({"-r", "3", "incr", "n"}), "1\n2\n3\n");
    EXPECT_NE(ask({"info", "server"}).find("redis_version:"), std::string::npos);
    // Asks with what it takes from `command docs`.
    EXPECT_NE(ask({"command", "docs", "get"}).find("Tells a value"), std::string::npos);
}

TEST(RespClients, AreServedByRedisBenchmark) {
    if (!is_installed("redis-benchmark")) {
        GTEST_SKIP() << "redis-benchmark: scripts/install-dependencies test";
    }
    DoorServing serving;
    for (const char* const pipeline : {"1", "16"}) {
        const Said said =
            run({"/usr/bin/redis-benchmark", "-s", serving.path(), "-q", "-n", "20000", "-c", "20",
                 "-P", pipeline, "-r", "1000", "-t", "ping,set,get,incr,mset"});
        EXPECT_TRUE(said.exit.success()) << said.text;
        EXPECT_NE(said.text.find("MSET (10 keys): "), std::string::npos) << said.text;
    }
    const DoorStats stats = serving.server().door_stats(DoorKind::resp);
    EXPECT_GE(stats.commands, 2U * 5 * 20'000);
    EXPECT_EQ(stats.errors, 0U);
}

TEST(RespClients, AreServedByRedisPy) {
    if (run({"/usr/bin/python3", "-c", "import redis; print(1)"}).text != "1\n") {
        GTEST_SKIP() << "python3-redis: scripts/install-dependencies test";
    }
    const DoorServing serving;
    const Said said =
        run({"/usr/bin/python3", MILLRACE_SOURCE_DIR "/tests/doors/redis_py.py", serving.path()});
    EXPECT_TRUE(said.exit.success());
    EXPECT_EQ(said.text, "done\n");
}

#ifdef MILLRACE_HAS_HIREDIS
class Hiredis {
  public:
    explicit Hiredis(const std::string& path) : context_{redisConnectUnix(path.c_str())} {}
    Hiredis(const Hiredis&) = delete;
    Hiredis& operator=(const Hiredis&) = delete;
    ~Hiredis() { redisFree(context_); }
    [[nodiscard]] redisContext* context() const { return context_; }
    /// "string", ":number", "!error", or what is in an array, in brackets.
    template <class... Arguments>
    std::string ask(const char* format, Arguments... arguments) {
        return take(redisCommand(context_, format, arguments...));
    }
    std::string answer() {
        void* reply = nullptr;
        if (redisGetReply(context_, &reply) != REDIS_OK) return "broken";
        return take(reply);
    }

  private:
    static std::string take(void* reply) {
        if (reply == nullptr) return "broken";
        std::string text = text_of(*static_cast<redisReply*>(reply));
        freeReplyObject(reply);
        return text;
    }
    static std::string text_of(const redisReply& reply) {
        switch (reply.type) {
            case REDIS_REPLY_INTEGER: return ':' + std::to_string(reply.integer);
            case REDIS_REPLY_NIL: return "nil";
            case REDIS_REPLY_ERROR: return '!' + std::string{reply.str, reply.len};
            case REDIS_REPLY_ARRAY: {
                std::string all = "[";
                for (std::size_t i = 0; i < reply.elements; ++i) {
                    all += text_of(*reply.element[i]) + ' ';
                }
                return all + ']';
            }
            default: return {reply.str, reply.len};
        }
    }
    redisContext* context_;
};
#endif

TEST(RespClients, AreServedByHiredis) {
#ifdef MILLRACE_HAS_HIREDIS
    // It writes to a connection that may have been closed by then.
    (void)std::signal(SIGPIPE, SIG_IGN);
    const DoorServing serving;
    Hiredis client{serving.path()};
    ASSERT_EQ(client.context()->err, 0);
    EXPECT_EQ(client.ask("SET %s %b", "key", "a\0b", std::size_t{3}), "OK");
    EXPECT_EQ(client.ask("GET key"), std::string("a\0b", 3));
    EXPECT_EQ(client.ask("GET none"), "nil");
    EXPECT_EQ(client.ask("INCRBY n %d", 5), ":5");
    EXPECT_EQ(client.ask("MGET n none"), "[5 nil ]");
    EXPECT_EQ(client.ask("INCR key"), "!ERR value is not an integer or out of range");
    for (int i = 0; i < 10'000; ++i) redisAppendCommand(client.context(), "INCR n");
    for (int i = 0; i < 10'000; ++i) ASSERT_EQ(client.answer(), ':' + std::to_string(6 + i));
    EXPECT_EQ(client.ask("MULTI"), "OK");
    EXPECT_EQ(client.ask("SET n 1"), "QUEUED");
    EXPECT_EQ(client.ask("INCR n"), "QUEUED");
    EXPECT_EQ(client.ask("EXEC"), "[OK :2 ]");
    EXPECT_EQ(client.ask("QUIT"), "OK");
    EXPECT_EQ(client.ask("PING"), "broken");
    ASSERT_EQ(redisReconnect(client.context()), REDIS_OK);
    EXPECT_EQ(client.ask("GET n"), "2");
#else
    GTEST_SKIP() << "libhiredis-dev: scripts/install-dependencies test, and configure again";
#endif
}

}  // namespace
}  // namespace millrace::kv
