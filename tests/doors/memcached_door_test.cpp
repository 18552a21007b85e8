// The memcached door with peers that do not behave, its limits, and that what goes through it is
// the same data as through the other door and our own client.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>

#include "doors/memcached_client.hpp"
#include "doors/resp_client.hpp"

namespace millrace::kv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr DoorKind memcached_door = DoorKind::memcached;

/// The cas unique in an answer to gets.
std::string cas_in(const std::string& answer) {
    const std::string line = answer.substr(0, answer.find('\r'));
    return line.substr(line.rfind(' ') + 1);
}

TEST(MemcachedDoor, HasTheSameDataAsTheOthers) {
    DoorServing serving;
    TextClient text{serving};
    RawClient resp{serving};
    Client ours = serving.own_client();
    EXPECT_EQ(text.ask("set name 7 0 2\r\n41\r\n"), "STORED\r\n");
    EXPECT_EQ(value_by(ours, "name"), "41");
    EXPECT_EQ(resp.ask({"incr", "name"}), ":42\r\n");
    // What a change does to the value, it does not to the flags.
    EXPECT_EQ(text.ask("get name\r\n"), "VALUE name 7 2\r\n42\r\nEND\r\n");
    for (const Words& words :
         {Words{"append", "name", "0"}, Words{"expire", "name", "1000"}, Words{"persist", "name"},
          Words{"getex", "name", "ex", "1000"}, Words{"set", "name", "420", "keepttl", "get"}}) {
        (void)resp.ask(words);
    }
    EXPECT_EQ(text.ask("get name\r\n"), "VALUE name 0 3\r\n420\r\nEND\r\n");
    EXPECT_EQ(text.ask("set name 4294967295 0 1\r\n1\r\n"), "STORED\r\n");
    EXPECT_EQ(resp.ask({"append", "name", "0"}), ":2\r\n");
    EXPECT_EQ(resp.ask({"expire", "name", "1000"}), ":1\r\n");
    EXPECT_EQ(resp.ask({"copy", "name", "copied"}), ":1\r\n");
    EXPECT_EQ(resp.ask({"rename", "name", "renamed"}), "+OK\r\n");
    EXPECT_EQ(text.ask("get copied renamed\r\n"),
              "VALUE copied 4294967295 2\r\n10\r\nVALUE renamed 4294967295 2\r\n10\r\nEND\r\n");
    // Who sets an item says all of it.
    ASSERT_TRUE(ours.set(bytes("renamed"), bytes("42"), in_time()).ok());
    EXPECT_EQ(text.ask("get renamed\r\n"), "VALUE renamed 0 2\r\n42\r\nEND\r\n");
    EXPECT_EQ(text.ask("delete renamed\r\n"), "DELETED\r\n");
    EXPECT_EQ(value_by(ours, "renamed"), "none");
    // A key that no line can have is reached in base64.
    EXPECT_EQ(resp.ask({"set", "foo bar", "v"}), "+OK\r\n");
    EXPECT_EQ(text.ask("mg Zm9vIGJhcg== b v\r\n"), "VA 1\r\nv\r\n");
}

TEST(MemcachedDoor, HasTheVersionsOfOurOwnClientAsCasUniques) {
    DoorServing serving;
    TextClient text{serving};
    Client ours = serving.own_client();
    ASSERT_TRUE(ours.set(bytes("k"), bytes("v"), in_time()).ok());
    const Result seen = ours.get(
        bytes("k"), [](auto) {}, in_time());
    EXPECT_EQ(cas_in(text.ask("gets k\r\n")), std::to_string(seen.version));
    // touch makes another item of it, which is newer.
    EXPECT_EQ(text.ask("touch k 1000\r\n"), "TOUCHED\r\n");
    EXPECT_NE(cas_in(text.ask("gets k\r\n")), std::to_string(seen.version));
    const std::string told = cas_in(text.ask("gats 1000 k\r\n"));
    EXPECT_EQ(cas_in(text.ask("gets k\r\n")), told);
    EXPECT_EQ(text.ask("cas k 0 0 1 " + told + "\r\nx\r\n"), "STORED\r\n");
    EXPECT_EQ(text.ask("cas k 0 0 1 " + told + "\r\nx\r\n"), "EXISTS\r\n");
    EXPECT_EQ(text.ask("cas none 0 0 1 " + told + "\r\nx\r\n"), "NOT_FOUND\r\n");
}

TEST(MemcachedDoor, LetsItemsExpire) {
    DoorServing serving;
    TextClient text{serving};
    RawClient resp{serving};
    EXPECT_EQ(text.ask("set k 0 1000 1\r\nv\r\n"), "STORED\r\n");
    EXPECT_EQ(resp.ask({"ttl", "k"}), ":1000\r\n");
    // More than 30 days are a time of day; far in the future, too.
    EXPECT_EQ(text.ask("touch k 2592000\r\n"), "TOUCHED\r\n");
    EXPECT_EQ(text.ask("mg k t\r\n"), "HD t2592000\r\n");
    EXPECT_EQ(text.ask("touch k 4000000000\r\n"), "TOUCHED\r\n");
    EXPECT_EQ(resp.ask({"expiretime", "k"}), ":4000000000\r\n");
    EXPECT_EQ(text.ask("touch k 2592001\r\nget k\r\n"), "TOUCHED\r\nEND\r\n");
    EXPECT_EQ(text.ask("set k 0 -1 1\r\nv\r\nget k\r\n"), "STORED\r\nEND\r\n");
    EXPECT_EQ(text.ask("set k 0 1 1\r\nv\r\n"), "STORED\r\n");
    const auto deadline = in_time();
    while (text.ask("get k\r\n") != "END\r\n") ASSERT_FALSE(deadline.expired());
    // It is swept, too.
    while (serving.server().store().stats().items != 0) ASSERT_FALSE(deadline.expired());
}

TEST(MemcachedDoor, FlushesWhenItIsTime) {
    DoorServing serving;
    TextClient text{serving};
    Client ours = serving.own_client();
    ASSERT_EQ(text.set("k", "v"), "STORED\r\n");
    EXPECT_EQ(text.ask("flush_all 1000\r\nflush_all 2 noreply\r\nget k\r\n"),
              "OK\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
    // What is set until then goes with it; for all, whoever looks.
    ASSERT_EQ(text.set("other", "v"), "STORED\r\n");
    const auto deadline = in_time();
    while (value_by(ours, "k") != "none") ASSERT_FALSE(deadline.expired());
    EXPECT_EQ(value_by(ours, "other"), "none");
    // The last one that was asked for is the one.
    ASSERT_EQ(text.set("k", "v"), "STORED\r\n");
    EXPECT_EQ(text.ask("flush_all 1\r\nflush_all 1000\r\n"), "OK\r\nOK\r\n");
    EXPECT_EQ(text.ask("flush_all\r\nget k\r\n"), "OK\r\nEND\r\n");
}

TEST(MemcachedDoor, CountsInSixtyFourBits) {
    DoorServing serving;
    TextClient text{serving};
    ASSERT_EQ(text.set("n", "18446744073709551615"), "STORED\r\n");
    EXPECT_EQ(text.ask("incr n 2\r\n"), "1\r\n");
    EXPECT_EQ(text.ask("incr n 18446744073709551613\r\n"), "18446744073709551614\r\n");
    EXPECT_EQ(text.ask("decr n 18446744073709551615\r\n"), "0\r\n");
    // What has become shorter leaves nothing behind: it is a number for all.
    ASSERT_EQ(text.set("n", "100"), "STORED\r\n");
    EXPECT_EQ(text.ask("decr n 1\r\nget n\r\n"), "99\r\nVALUE n 0 2\r\n99\r\nEND\r\n");
    EXPECT_EQ(RawClient{serving}.ask({"incr", "n"}), ":100\r\n");
}

TEST(MemcachedDoor, RemembersWhoMakesANumberAnewHoweverItIsCountedOn) {
    DoorServing serving;
    TextClient text{serving};
    ASSERT_EQ(text.ask("set n 0 1000 1\r\n9\r\n"), "STORED\r\n");
    EXPECT_EQ(text.ask("mg n R2000 v\r\n"), "VA 1 W\r\n9\r\n");
    EXPECT_EQ(text.ask("incr n 1\r\nmg n v\r\n"), "10\r\nVA 2 Z\r\n10\r\n");
    EXPECT_EQ(text.ask("decr n 5\r\nmg n R2000 v\r\n"), "5\r\nVA 1 Z\r\n5\r\n");
    EXPECT_EQ(text.ask("ma n D95 v\r\nmg n v\r\n"), "VA 3\r\n100\r\nVA 3 Z\r\n100\r\n");
    EXPECT_EQ(RawClient{serving}.ask({"incr", "n"}), ":101\r\n");
    EXPECT_EQ(text.ask("mg n v\r\n"), "VA 3 Z\r\n101\r\n");
    // Who makes it anew ends that.
    EXPECT_EQ(text.ask("set n 0 1000 1\r\n1\r\nmg n v\r\n"), "STORED\r\nVA 1\r\n1\r\n");
}

TEST(MemcachedDoor, RefusesWhatItDoesNotKeep) {
    DoorServing serving;
    TextClient text{serving};
    ASSERT_EQ(text.set("k", "v"), "STORED\r\n");
    for (const char* const flag : {"h", "l"}) {
        EXPECT_EQ(text.ask(std::string{"mg k v "} + flag + "\r\n"),
                  "CLIENT_ERROR flags h and l: this store keeps no such times\r\n");
    }
    EXPECT_EQ(text.ask("get a\x01"
                       "b\r\n"),
              "CLIENT_ERROR bad command line format\r\n");
    EXPECT_EQ(text.ask("set a\x01"
                       "b 0 0 1\r\n"),
              "CLIENT_ERROR bad command line format\r\n");
    EXPECT_EQ(text.ask("set k 0 0 4294967297\r\n"), "CLIENT_ERROR bad command line format\r\n");
    EXPECT_EQ(text.ask("set k 4294967296 0 1\r\n"), "CLIENT_ERROR bad command line format\r\n");
    EXPECT_EQ(text.ask("stats reset\r\n"),
              "CLIENT_ERROR counts are not set back: others look at them, too\r\n");
    const std::string told = text.ask("me k\r\n");
    EXPECT_EQ(told.substr(0, 16), "ME k exp=-1 cas=") << told;
}

TEST(MemcachedDoor, AnswersAPipelineOfAMillionCommands) {
    DoorServing serving;
    TextClient client{serving};
    ASSERT_EQ(client.set("n", "0"), "STORED\r\n");
    constexpr int count = 1'000'000;
    std::thread sender{[&] {
        std::string some;
        for (int i = 0; i < 1000; ++i) some += "incr n 1\r\n";
        for (int i = 0; i < count / 1000; ++i) ASSERT_TRUE(client.send(some));
    }};
    std::string last;
    for (int i = 0; i < count; ++i) last = client.line();
    sender.join();
    EXPECT_EQ(last, "1000000\r\n");
}

TEST(MemcachedDoor, CarriesOutAPipelineThatWantsNoAnswers) {
    DoorServing serving;
    TextClient client{serving};
    std::string many;
    for (int i = 0; i < 50'000; ++i) {
        const std::string key = "k" + std::to_string(i % 100);
        many += "set " + key + " 0 0 1 noreply\r\nv\r\nms " + key + " 1 q\r\nw\r\n";
    }
    EXPECT_EQ(client.ask(many), "");
    EXPECT_EQ(client.ask("get k99\r\n"), "VALUE k99 0 1\r\nw\r\nEND\r\n");
}

TEST(MemcachedDoor, TakesARequestAByteAtATime) {
    DoorServing serving;
    TextClient client{serving};
    const std::string value(5000, 'v');
    for (const char byte : storing("set k 0 0", value)) {
        ASSERT_TRUE(client.send(std::string_view{&byte, 1}));
    }
    EXPECT_EQ(client.line(), "STORED\r\n");
    EXPECT_EQ(client.ask("get k\r\n"), "VALUE k 0 5000\r\n" + value + "\r\nEND\r\n");
}

TEST(MemcachedDoor, CarriesTheLongestValueAndSkipsALongerOne) {
    DoorServing serving;
    TextClient client{serving};
    const std::string value(longest_value, 'v');
    EXPECT_EQ(client.set("k", value), "STORED\r\n");
    EXPECT_EQ(client.ask("get k\r\n"), "VALUE k 0 1048576\r\n" + value + "\r\nEND\r\n");
    EXPECT_EQ(client.ask(storing("append k 0 0", "x")), "NOT_STORED\r\n");
    EXPECT_EQ(client.set("k", value + 'x'), "SERVER_ERROR object too large for cache\r\n");
    EXPECT_EQ(client.ask("get k\r\n"), "END\r\n");
}

TEST(MemcachedDoor, HoldsNothingOfWhatItSkips) {
    ServerOptions options;
    options.doors.max_held_bytes = std::size_t{4} << 20;
    DoorServing serving{options};
    TextClient liar{serving};
    ASSERT_TRUE(liar.send("set k 0 0 2147483645\r\n"));
    EXPECT_EQ(liar.line(), "SERVER_ERROR object too large for cache\r\n");
    const std::string some(std::size_t{1} << 20, 'v');
    for (int i = 0; i < 32; ++i) ASSERT_TRUE(liar.send(some));
    EXPECT_EQ(TextClient{serving}.ask("get k\r\n"), "END\r\n");
    EXPECT_TRUE(serving.counts(
        [&](const DoorStats& stats) { return stats.bytes_in > 32 * some.size(); }, memcached_door));
    EXPECT_EQ(serving.server().door_stats(memcached_door).greedy, 0U);
}

TEST(MemcachedDoor, HoldsLittleForWhoSaysThatMuchWillCome) {
    ServerOptions options;
    options.doors.max_held_bytes = std::size_t{4} << 20;
    DoorServing serving{options};
    static constexpr std::string_view lie = "set k 0 0 1048576\r\nabc";
    constexpr std::size_t count = 100;
    std::vector<TextClient> liars;
    for (std::size_t i = 0; i < count; ++i) {
        liars.emplace_back(serving);
        ASSERT_TRUE(liars.back().send(lie));
    }
    ASSERT_TRUE(
        serving.counts([](const DoorStats& stats) { return stats.bytes_in == count * lie.size(); },
                       memcached_door));
    for (TextClient& liar : liars) ASSERT_TRUE(liar.send("d"));
    ASSERT_TRUE(serving.counts(
        [](const DoorStats& stats) { return stats.bytes_in == count * (lie.size() + 1); },
        memcached_door));
    EXPECT_EQ(TextClient{serving}.ask("get k\r\n"), "END\r\n");
    EXPECT_EQ(serving.server().door_stats(memcached_door).greedy, 0U);
}

TEST(MemcachedDoor, ClosesWhoSaysWhatIsNoCommand) {
    DoorServing serving;
    TextClient binary{serving};
    ASSERT_TRUE(binary.send(std::string("\x80\x0a\0\0\0\0\0\0", 8)));
    EXPECT_EQ(binary.rest(), "CLIENT_ERROR the binary protocol is not spoken here\r\n");
    TextClient endless{serving};
    (void)endless.send("set " + std::string(3000, 'k'));
    EXPECT_EQ(endless.rest(), "CLIENT_ERROR line is too long\r\n");
    // A get may be longer, and not without end.
    TextClient getter{serving};
    ASSERT_TRUE(getter.send("get"));
    const std::string keys = " " + std::string(200, 'k');
    while (getter.send(keys) && !getter.has_more(0)) {
    }
    EXPECT_EQ(getter.rest(), "CLIENT_ERROR line is too long\r\n");
    EXPECT_EQ(serving.server().door_stats(memcached_door).malformed, 3U);
}

TEST(MemcachedDoor, ServesOthersWhereAClientDiesInTheMiddle) {
    DoorServing serving;
    TextClient client{serving};
    std::mt19937 random{7};
    const std::string request = storing("set k 0 0", "value") + "ms k 2 q c\r\nab\r\n" +
                                "gat 10 k k k\r\nmg k v N30\r\nset k 0 0 2000000\r\n" +
                                std::string(1000, 'v');
    for (int i = 0; i < 500; ++i) {
        TextClient victim{serving};
        (void)victim.send(request.substr(0, random() % (request.size() + 1)));
        victim.end();
        ASSERT_EQ(client.ask(""), "");
    }
    ASSERT_TRUE(serving.counts([](const DoorStats& stats) { return stats.connections == 1; },
                               memcached_door));
}

TEST(MemcachedDoor, GivesItsLastAnswersToWhoSaysNoMore) {
    DoorServing serving;
    TextClient client{serving};
    ASSERT_TRUE(client.send("get k\r\nversion\r\n"));
    ::shutdown(client.descriptor(), SHUT_WR);
    EXPECT_EQ(client.rest(), "END\r\nVERSION 1.6.18\r\n");
    TextClient quits{serving};
    ASSERT_TRUE(quits.send("get k\r\nquit\r\nget k\r\n"));
    EXPECT_EQ(quits.rest(), "END\r\n");
}

TEST(MemcachedDoor, ClosesWhoDoesNotReadAndCountsIt) {
    ServerOptions options;
    options.doors.max_unread_bytes = longest_value;
    options.doors.patience = milliseconds{200};
    DoorServing serving{options};
    TextClient slow{serving};
    TextClient other{serving};
    ASSERT_EQ(other.set("k", std::string(100'000, 'v')), "STORED\r\n");
    std::string many;
    for (int i = 0; i < 100; ++i) many += "get k\r\n";
    ASSERT_TRUE(slow.send(many));
    ASSERT_TRUE(
        serving.counts([](const DoorStats& stats) { return stats.slow == 1; }, memcached_door));
    EXPECT_EQ(other.ask(""), "");
    // The same for one that reads: all of it.
    TextClient reader{serving};
    EXPECT_EQ(reader.ask(many).size(), 100U * 100'025);
    // And who asks for an answer that is too long.
    std::string keys = "get";
    for (int i = 0; i < 30; ++i) keys += " k";
    (void)reader.send(keys + "\r\n");
    EXPECT_TRUE(
        serving.counts([](const DoorStats& stats) { return stats.slow == 2; }, memcached_door));
}

// It reads all that there is while nothing more is taken from it; what it has asked for is answered
// all the same.
TEST(MemcachedDoor, GoesOnWithWhoHasReadAll) {
    ServerOptions options;
    options.doors.max_unread_bytes = longest_value;
    DoorServing serving{options};
    TextClient client{serving};
    ASSERT_EQ(client.set("k", std::string(longest_value, 'v')), "STORED\r\n");
    constexpr int count = 40;
    std::string many;
    for (int i = 0; i < count; ++i) many += "get k\r\n";
    ASSERT_TRUE(client.send(many));
    for (int i = 0; i < 3 * count; ++i) ASSERT_NE(client.line(), "");
    EXPECT_EQ(client.ask(""), "");
}

TEST(MemcachedDoor, SharesTheLimitOfConnectionsWithTheOtherDoor) {
    ServerOptions options;
    options.doors.max_connections = 2;
    DoorServing serving{options};
    TextClient first{serving};
    ASSERT_EQ(first.ask("get k\r\n"), "END\r\n");
    RawClient second{serving};
    ASSERT_EQ(second.ask({"ping"}), "+PONG\r\n");
    EXPECT_EQ(TextClient{serving}.rest(), "ERROR Too many open connections\r\n");
    EXPECT_EQ(RawClient{serving}.rest(), "-ERR max number of clients reached\r\n");
    EXPECT_EQ(serving.server().door_stats(memcached_door).refused, 1U);
    second.end();
    ASSERT_TRUE(serving.counts([](const DoorStats& stats) { return stats.connections == 0; }));
    TextClient third{serving};
    EXPECT_EQ(third.ask("get k\r\n"), "END\r\n");
}

TEST(MemcachedDoor, ClosesWhoAsksForNothingHoweverItTrickles) {
    ServerOptions options;
    options.doors.idle_timeout = seconds{1};
    DoorServing serving{options};
    TextClient silent{serving};
    TextClient loris{serving};
    ASSERT_TRUE(loris.send("set k 0 0 100000\r\n"));
    const auto deadline = in_time();
    while (loris.send("v") && !loris.has_more(10)) ASSERT_FALSE(deadline.expired());
    EXPECT_TRUE(
        serving.counts([](const DoorStats& stats) { return stats.idle == 2; }, memcached_door));
    EXPECT_EQ(silent.rest(), "");
}

TEST(MemcachedDoor, WantsThePasswordFirst) {
    ServerOptions options;
    options.doors.password = connect::Secret{std::string_view{"a long and secret word"}};
    DoorServing serving{options};
    const auto said = [](const std::string& data) { return storing("set any 0 0", data); };
    TextClient client{serving};
    ASSERT_TRUE(client.send("get k\r\nset k 0 0\r\nmn\r\n"));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(client.line(), "CLIENT_ERROR unauthenticated\r\n");
    const auto answer_to = [&](const std::string& request) {
        return client.send(request) ? client.line() : std::string{};
    };
    EXPECT_EQ(answer_to(said("word")), "CLIENT_ERROR bad authentication token format\r\n");
    for (const char* const word :
         {"default a long and secret wor", "default a long and secret wordx",
          "other a long and secret word", "default "}) {
        EXPECT_EQ(answer_to(said(word)), "CLIENT_ERROR authentication failure\r\n");
    }
    EXPECT_EQ(serving.server().door_stats(memcached_door).denied, 4U);
    EXPECT_EQ(answer_to("set any 0 0 1\r\nxyz"), "CLIENT_ERROR bad command line termination\r\n");
    EXPECT_EQ(answer_to("get k\r\n"), "CLIENT_ERROR unauthenticated\r\n");
    EXPECT_EQ(answer_to(said("default a long and secret word")), "STORED\r\n");
    // It was no item, and from now on it is one.
    EXPECT_EQ(client.ask("get any\r\n"), "END\r\n");
    EXPECT_EQ(client.set("any", "default word"), "STORED\r\n");
    EXPECT_EQ(client.ask("get any\r\n"), "VALUE any 0 12\r\ndefault word\r\nEND\r\n");
    // A stranger may not say much.
    TextClient stranger{serving};
    ASSERT_TRUE(stranger.send("get " + std::string(3000, 'k')));
    EXPECT_EQ(stranger.rest(), "CLIENT_ERROR line is too long\r\n");
    TextClient endless{serving};
    ASSERT_TRUE(endless.send("set any 0 0 1000000\r\n"));
    EXPECT_EQ(endless.line(), "CLIENT_ERROR authentication failure\r\n");
}

TEST(MemcachedDoor, AnswersWhatIsFullAsSuch) {
    DoorServing serving;
    TextClient client{serving};
    const std::string value(50'000, 'v');
    std::string answer = "STORED\r\n";
    for (int i = 0; answer == "STORED\r\n"; ++i)
        answer = client.set("k" + std::to_string(i), value);
    EXPECT_EQ(answer, "SERVER_ERROR out of memory storing object\r\n");
    // A value that is replaced in vain is gone, so that nobody takes it for the new one.
    EXPECT_EQ(client.set("k0", std::string(100'000, 'v')),
              "SERVER_ERROR out of memory storing object\r\n");
    EXPECT_EQ(client.ask("get k0\r\n"), "END\r\n");
}

TEST(MemcachedDoor, IsInTheServersStatistics) {
    DoorServing serving;
    TextClient client{serving};
    for (int i = 0; i < 99; ++i) (void)client.ask("");
    const std::string told = client.ask("stats\r\n");
    EXPECT_NE(told.find("STAT curr_connections 1\r\n"), std::string::npos) << told;
    EXPECT_TRUE(told.ends_with("END\r\n"));
    for (const char* const of : {"settings", "items", "slabs", "sizes"}) {
        EXPECT_TRUE(client.ask(std::string{"stats "} + of + "\r\n").ends_with("END\r\n")) << of;
    }
    Client ours = serving.own_client();
    std::string lines;
    ASSERT_TRUE(ours.stats(lines, in_time()).ok());
    EXPECT_NE(lines.find("memcached_connections 1\n"), std::string::npos) << lines;
    EXPECT_NE(lines.find("memcached_commands 109\n"), std::string::npos) << lines;
    EXPECT_GE(serving.server().door_times(memcached_door).timed, 3U);
}

class MemcachedThreads : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Counts, MemcachedThreads, testing::Values(1U, 4U));

TEST_P(MemcachedThreads, CountRightWhereManyCount) {
    DoorServing serving{of_threads(GetParam())};
    ASSERT_EQ(TextClient{serving}.set("n", "0"), "STORED\r\n");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            TextClient client{serving};
            const char* const one = t % 2 == 0 ? "incr n 1\r\n" : "ma n\r\n";
            for (int i = 0; i < 2000; ++i) ASSERT_NE(client.ask(one), "");
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(TextClient{serving}.ask("get n\r\n"), "VALUE n 0 4\r\n8000\r\nEND\r\n");
}

// Of all who ask for what is not there, one is told to make it.
TEST_P(MemcachedThreads, LetOneWin) {
    DoorServing serving{of_threads(GetParam())};
    for (int round = 0; round < 50; ++round) {
        const std::string request = "mg k" + std::to_string(round) + " v N30\r\n";
        std::atomic<int> winners{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&] {
                const std::string answer = TextClient{serving}.ask(request);
                if (answer == "VA 0 W\r\n\r\n") {
                    ++winners;
                } else {
                    EXPECT_EQ(answer, "VA 0 Z\r\n\r\n");
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
        ASSERT_EQ(winners, 1);
    }
}

}  // namespace
}  // namespace millrace::kv
