// TLS at the doors: clients as they are in Debian, and clients that do what they should not.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <string>

#include "doors/resp_client.hpp"
#include "doors/tls_client.hpp"

namespace millrace::kv {
namespace {

class Tls : public testing::Test {
  protected:
    void SetUp() override {
        if (!Certificate::can_be_made())
            GTEST_SKIP() << "openssl: scripts/install-dependencies test";
    }
    [[nodiscard]] ServerOptions with_tls(std::uint32_t threads = 1) const {
        ServerOptions options = of_threads(threads);
        options.doors.tls = own.files();
        return options;
    }
    [[nodiscard]] ServerOptions over_tcp() const {
        ServerOptions options = with_tls();
        options.doors.resp = connect::Address::parse("127.0.0.1:0");
        options.doors.memcached = connect::Address::parse("127.0.0.1:0");
        return options;
    }
    static std::string port_of(const DoorServing& serving, DoorKind kind) {
        return std::to_string(serving.server().door_address(kind)->port());
    }
    static std::string ask(TlsClient& client, const Words& words, std::size_t answer) {
        return client.send_by_tls(request_of(words)) ? client.receive_by_tls(answer)
                                                     : std::string{};
    }
    static void expect_served(TlsClient& client) {
        ASSERT_TRUE(client.shake_hands());
        EXPECT_EQ(ask(client, {"set", "k", "value"}, 5), "+OK\r\n");
        EXPECT_EQ(ask(client, {"get", "k"}, 11), "$5\r\nvalue\r\n");
    }

    const Certificate own;
};

TEST_F(Tls, ServesRedisCliAndRedisBenchmark) {
    if (!is_installed("redis-cli")) GTEST_SKIP() << "redis-cli: scripts/install-dependencies test";
    const DoorServing serving{over_tcp()};
    const auto by = [&](const char* program, std::vector<std::string> words) {
        words.insert(words.begin(), {std::string{"/usr/bin/"} + program, "--tls", "--cacert",
                                     own.certificate(), "-p", port_of(serving, DoorKind::resp)});
        return run(std::move(words));
    };
    EXPECT_EQ(by("redis-cli", {"set", "name", "a value"}).text, "OK\n");
    EXPECT_EQ(by("redis-cli", {"get", "name"}).text, "a value\n");
    for (const char* const pipeline : {"1", "16"}) {
        const Said said = by("redis-benchmark", {"-q", "-n", "5000", "-c", "10", "-P", pipeline,
                                                 "-d", "3000", "-t", "set,get"});
        EXPECT_TRUE(said.exit.success()) << said.text;
        EXPECT_NE(said.text.find("GET: "), std::string::npos) << said.text;
    }
    const DoorStats stats = serving.server().door_stats(DoorKind::resp);
    EXPECT_EQ(stats.errors, 0U);
    EXPECT_EQ(stats.tls_accepted, stats.accepted);
    EXPECT_EQ(stats.tls_failed, 0U);
    EXPECT_NE(run({"/usr/bin/redis-cli", "-p", port_of(serving, DoorKind::resp), "ping"}).text,
              "PONG\n")
        << "nobody is served without TLS";
}

TEST_F(Tls, ServesRedisPyAndPymemcache) {
    if (run({"/usr/bin/python3", "-c", "import redis, pymemcache; print(1)"}).text != "1\n") {
        GTEST_SKIP() << "python3-redis, python3-pymemcache: scripts/install-dependencies test";
    }
    const DoorServing serving{over_tcp()};
    const Said said = run({"/usr/bin/python3", MILLRACE_SOURCE_DIR "/tests/doors/tls_py.py",
                           port_of(serving, DoorKind::resp), port_of(serving, DoorKind::memcached),
                           own.certificate()});
    EXPECT_TRUE(said.exit.success());
    EXPECT_EQ(said.text, "done\n");
}

TEST_F(Tls, ServesByEachVersionThatIsSafeAndByNoOther) {
    DoorServing serving{with_tls()};
    for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
        TlsClient client{serving.path(), 65536, version};
        expect_served(client);
    }
    TlsClient old{serving.path(), 65536, TLS1_1_VERSION};
    EXPECT_FALSE(old.shake_hands());
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.tls_failed == 1; }));
}

TEST_F(Tls, TakesHandshakesAndRequestsAByteAtATime) {
    DoorServing serving{with_tls(3)};
    for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
        TlsClient client{serving.path(), 1, version};
        expect_served(client);
    }
}

TEST_F(Tls, GoesOnAfterKeysWereChanged) {
    DoorServing serving{with_tls()};
    TlsClient client{serving.path()};
    expect_served(client);
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(client.change_keys());
        EXPECT_EQ(ask(client, {"get", "k"}, 11), "$5\r\nvalue\r\n");
    }
}

TEST_F(Tls, SkipsNothingOfALongPipelineAndOfLongAnswers) {
    DoorServing serving{with_tls()};
    TlsClient client{serving.path()};
    ASSERT_TRUE(client.shake_hands());
    constexpr int many = 100'000;
    std::string requests;
    std::string answers;
    for (int i = 1; i <= many; ++i) {
        requests += "INCR n\r\n";
        answers += ':' + std::to_string(i) + "\r\n";
    }
    ASSERT_TRUE(client.send_by_tls(requests));
    EXPECT_TRUE(client.receive_by_tls(answers.size()) == answers);

    const std::string value(longest_value, 'v');
    EXPECT_EQ(ask(client, {"set", "long", value}, 5), "+OK\r\n");
    std::string gets;
    std::string values;
    for (int i = 0; i < 50; ++i) {
        gets += "GET long\r\n";
        values += '$' + std::to_string(value.size()) + "\r\n" + value + "\r\n";
    }
    // More than sockets take: the rest waits until it has read.
    ASSERT_TRUE(client.send_by_tls(gets));
    EXPECT_TRUE(client.receive_by_tls(values.size()) == values);
}

TEST_F(Tls, ClosesWhoBeginsAHandshakeAndDoesNotEndIt) {
    ServerOptions options = with_tls();
    options.doors.patience = std::chrono::milliseconds{500};
    DoorServing serving{options};
    TlsClient slow{serving.path()};
    const std::string hello = slow.hello();
    ASSERT_TRUE(slow.send(std::string_view{hello}.substr(0, hello.size() / 2)));
    TlsClient silent{serving.path()};
    TlsClient other{serving.path()};
    expect_served(other);
    EXPECT_EQ(slow.rest(), "");
    EXPECT_EQ(silent.rest(), "");
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.tls_failed == 2; }));
    EXPECT_EQ(ask(other, {"get", "k"}, 11), "$5\r\nvalue\r\n");
    EXPECT_EQ(serving.server().door_stats(DoorKind::resp).connections, 1U);
}

TEST_F(Tls, ClosesWhoLeavesAnywhereInAHandshake) {
    DoorServing serving{with_tls()};
    std::size_t left = 0;
    const std::string hello = TlsClient{serving.path()}.hello();
    for (std::size_t size = 0; size <= hello.size(); size += 7) {
        TlsClient client{serving.path()};
        ASSERT_TRUE(client.send(std::string_view{client.hello()}.substr(0, size)));
        client.end();
        ++left;
    }
    EXPECT_TRUE(serving.counts([&](const DoorStats& now) { return now.tls_failed == left + 1; }));
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.connections == 0; }));
    TlsClient client{serving.path()};
    expect_served(client);
}

TEST_F(Tls, ClosesWhoSaysWhatIsNoHandshake) {
    DoorServing serving{with_tls()};
    for (const std::string& bytes :
         {std::string{"PING\r\n"}, std::string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
          std::string{"\x16\x03\x01\xff\xff\x01\xff\xff\xff", 9}, std::string(20'000, '\0'),
          std::string(300'000, '\x16')}) {
        RawClient client{serving};
        (void)client.send(bytes);
        EXPECT_LT(client.rest().size(), 100U) << "an alert at most";
    }
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.tls_failed == 5; }));
    TlsClient client{serving.path()};
    expect_served(client);
}

TEST_F(Tls, ClosesWhoSaysWhatIsNoRecordAfterTheHandshake) {
    DoorServing serving{with_tls()};
    TlsClient client{serving.path()};
    expect_served(client);
    (void)client.send(std::string(1000, '\x17'));
    (void)client.rest();
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.connections == 0; }));
}

TEST_F(Tls, ServesOthersWhereAClientIsKilled) {
    DoorServing serving{with_tls()};
    for (int i = 0; i < 5; ++i) {
        auto client = test::ChildProcess::start_program(
            {"/usr/bin/openssl", "s_client", "-quiet", "-unix", serving.path()});
        const std::uint64_t wanted = static_cast<std::uint64_t>(i) + 1;
        ASSERT_TRUE(
            serving.counts([&](const DoorStats& now) { return now.tls_accepted == wanted; }));
        client.send_signal(SIGKILL);
        (void)client.wait();
    }
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.connections == 0; }));
    TlsClient client{serving.path()};
    expect_served(client);
}

TEST_F(Tls, EndsInGoodOrderWhicheverSideEnds) {
    DoorServing serving{with_tls()};
    TlsClient quits{serving.path()};
    ASSERT_TRUE(quits.shake_hands());
    ASSERT_TRUE(quits.send_by_tls("QUIT\r\n"));
    EXPECT_EQ(quits.receive_by_tls(100), "+OK\r\n");
    EXPECT_TRUE(quits.has_ended_in_order());
    // This one leaves its socket open: its last word is enough, though it came with a request.
    TlsClient leaves{serving.path()};
    ASSERT_TRUE(leaves.shake_hands());
    ASSERT_TRUE(leaves.send_last_by_tls("PING\r\n"));
    EXPECT_EQ(leaves.receive_by_tls(100), "+PONG\r\n");
    EXPECT_TRUE(leaves.has_ended_in_order());
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.connections == 0; }));
}

TEST_F(Tls, SaysNothingToOneTooMany) {
    ServerOptions options = with_tls();
    options.doors.max_connections = 1;
    DoorServing serving{options};
    TlsClient client{serving.path()};
    expect_served(client);
    EXPECT_EQ(RawClient{serving}.rest(), "");
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.refused == 1; }));
}

TEST_F(Tls, RefusesFilesThatAreNotAsTheyShould) {
    const auto why_of = [&](const DoorTls& files) -> std::string {
        ServerOptions options;
        options.doors.tls = files;
        try {
            const DoorServing serving{options};
        } catch (const base::Error& error) {
            return error.what();
        }
        return "none";
    };
    const test::TemporaryFolder folder;
    const auto expect = [&](const DoorTls& files, const std::string& reason) {
        const std::string why = why_of(files);
        EXPECT_NE(why.find(reason), std::string::npos) << why;
    };
    expect({folder.path("none"), own.key()}, folder.path("none"));
    expect({own.certificate(), folder.path("none")}, folder.path("none"));
    expect({own.certificate(), folder.path("")}, "not a regular file");
    expect({own.key(), own.key()}, "holds no certificate");
    std::ofstream{folder.path("text")} << "a letter\n";
    ::chmod(folder.path("text").c_str(), 0600);
    expect({own.certificate(), folder.path("text")}, "holds no key");
    const Certificate other;
    expect({own.certificate(), other.key()}, "not the key of");
    ASSERT_TRUE(run({"/usr/bin/openssl", "pkey", "-in", own.key(), "-aes128", "-passout",
                     "pass:secret", "-out", folder.path("locked")})
                    .exit.success());
    ::chmod(folder.path("locked").c_str(), 0600);
    expect({own.certificate(), folder.path("locked")}, "passphrase");
    ::chmod(own.key().c_str(), 0640);
    expect(own.files(), "its mode 0640 lets others");
    ::chmod(own.key().c_str(), 0600);
    EXPECT_EQ(why_of(own.files()), "none");
}

}  // namespace
}  // namespace millrace::kv
