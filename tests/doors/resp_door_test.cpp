// The RESP door with peers that do not behave, its limits, and that what goes through it is the
// same data as through our own client.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <set>

#include "doors/resp_client.hpp"

namespace millrace::kv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RespDoor, HasTheSameDataAsOurOwnClient) {
    DoorServing serving;
    RawClient theirs{serving};
    Client ours = serving.own_client();
    EXPECT_EQ(theirs.ask({"set", "name", "a value"}), "+OK\r\n");
    EXPECT_EQ(value_by(ours, "name"), "a value");
    ASSERT_TRUE(ours.set(bytes("name"), bytes("41"), in_time()).ok());
    EXPECT_EQ(theirs.ask({"incr", "name"}), ":42\r\n");
    EXPECT_EQ(value_by(ours, "name"), "42");
    ASSERT_TRUE(ours.erase(bytes("name"), in_time()).ok());
    EXPECT_EQ(theirs.ask({"get", "name"}), "$-1\r\n");
}

TEST(RespDoor, LetsExpireWhatEitherSideHasSet) {
    DoorServing serving;
    RawClient theirs{serving};
    Client ours = serving.own_client();
    SetOptions hour;
    hour.expires_after = std::chrono::hours{1};
    ASSERT_TRUE(ours.set(bytes("a"), bytes("1"), in_time(), hour).ok());
    const std::string left = theirs.ask({"ttl", "a"});
    EXPECT_TRUE(left == ":3600\r\n" || left == ":3599\r\n") << left;
    // What a change does to the value, it does not to the time.
    EXPECT_EQ(theirs.ask({"incr", "a"}), ":2\r\n");
    EXPECT_NE(theirs.ask({"ttl", "a"}), ":-1\r\n");
    EXPECT_EQ(theirs.ask({"set", "b", "1", "px", "1"}), "+OK\r\n");
    const auto deadline = in_time();
    while (value_by(ours, "b") != "none") ASSERT_FALSE(deadline.expired());
    EXPECT_EQ(theirs.ask({"exists", "b"}), ":0\r\n");
    // It is swept, too, by a server that had nothing to sweep before.
    while (serving.server().store().stats().expired == 0) ASSERT_FALSE(deadline.expired());
}

TEST(RespDoor, AnswersAPipelineOfAMillionCommands) {
    DoorServing serving;
    RawClient client{serving};
    constexpr int count = 1'000'000;
    std::thread sender{[&] {
        std::string some;
        for (int i = 0; i < 1000; ++i) some += "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
        for (int i = 0; i < count / 1000; ++i) ASSERT_TRUE(client.send(some));
    }};
    std::string last;
    for (int i = 0; i < count; ++i) last = client.answer();
    sender.join();
    EXPECT_EQ(last, ":1000000\r\n");
    EXPECT_EQ(client.ask({"get", "n"}), "$7\r\n1000000\r\n");
}

TEST(RespDoor, TakesAllOfAPipelineWhoseClientReadsAtItsEnd) {
    DoorServing serving;
    RawClient client{serving};
    std::string all;
    for (int i = 0; i < 300'000; ++i) all += "PING\r\n";
    ASSERT_TRUE(client.send(all));
    for (int i = 0; i < 300'000; ++i) ASSERT_EQ(client.answer(), "+PONG\r\n");
}

TEST(RespDoor, TakesARequestAByteAtATime) {
    DoorServing serving;
    RawClient client{serving};
    const std::string value(5000, 'v');
    for (const char byte : request_of({"set", "k", value})) {
        ASSERT_TRUE(client.send(std::string_view{&byte, 1}));
    }
    EXPECT_EQ(client.answer(), "+OK\r\n");
    EXPECT_EQ(client.ask({"get", "k"}), "$5000\r\n" + value + "\r\n");
}

TEST(RespDoor, CarriesTheLongestValueAndRefusesALongerOne) {
    DoorServing serving;
    RawClient client{serving};
    const std::string value(longest_value, 'v');
    EXPECT_EQ(client.ask({"set", "k", value}), "+OK\r\n");
    EXPECT_EQ(client.ask({"get", "k"}), "$1048576\r\n" + value + "\r\n");
    EXPECT_EQ(client.ask({"append", "k", "x"}),
              "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n");
    (void)client.send(request_of({"set", "k", value + 'x'}));
    EXPECT_EQ(client.rest(), "-ERR Protocol error: invalid bulk length\r\n");
}

TEST(RespDoor, HoldsLittleForWhoSaysThatMuchWillCome) {
    ServerOptions options;
    options.doors.max_held_bytes = std::size_t{4} << 20;
    DoorServing serving{options};
    static constexpr std::string_view lie = "*1000000000\r\n$3\r\nSET\r\n$1048576\r\nabc";
    constexpr std::size_t count = 100;
    std::vector<RawClient> liars;
    for (std::size_t i = 0; i < count; ++i) {
        liars.push_back(RawClient{serving});
        ASSERT_TRUE(liars.back().send(lie));
    }
    ASSERT_TRUE(serving.counts(
        [](const DoorStats& stats) { return stats.bytes_in == count * lie.size(); }));
    // From now on there is memory for what follows; of all of them together less than four times of
    // what each has said.
    for (RawClient& liar : liars) ASSERT_TRUE(liar.send("d"));
    ASSERT_TRUE(serving.counts(
        [](const DoorStats& stats) { return stats.bytes_in == count * (lie.size() + 1); }));
    EXPECT_EQ(RawClient{serving}.ask({"ping"}), "+PONG\r\n");
    EXPECT_EQ(serving.server().door_stats(DoorKind::resp).greedy, 0U);
}

TEST(RespDoor, ServesOthersWhereAClientDiesInTheMiddle) {
    DoorServing serving;
    RawClient client{serving};
    std::mt19937 random{7};
    const std::string request =
        request_of({"multi"}) + request_of({"mset", "a", "1", "b", "2"}) + request_of({"exec"});
    for (int i = 0; i < 500; ++i) {
        RawClient victim{serving};
        (void)victim.send(request.substr(0, random() % (request.size() + 1)));
        victim.end();
        ASSERT_EQ(client.ask({"ping"}), "+PONG\r\n");
    }
    ASSERT_TRUE(serving.counts([](const DoorStats& stats) { return stats.connections == 1; }));
}

TEST(RespDoor, ForgetsAConnectionThatAForkedChildStillHolds) {
    DoorServing serving;
    RawClient client{serving};
    RawClient leaves{serving};
    ASSERT_EQ(leaves.ask({"ping"}), "+PONG\r\n");
    const pid_t child = ::fork();
    if (child == 0) {
        for (;;) ::pause();
    }
    ASSERT_GT(child, 0);
    EXPECT_EQ(leaves.ask({"quit"}), "+OK\r\n");
    EXPECT_TRUE(serving.counts([](const DoorStats& now) { return now.connections == 1; }));
    // What comes now goes to the socket that the child has, and concerns the server no more: it
    // serves others, and falls asleep where they ask for nothing.
    ASSERT_TRUE(leaves.send("PING\r\n"));
    EXPECT_EQ(client.ask({"ping"}), "+PONG\r\n");
    const std::uint64_t before = serving.server().stats().sleeps;
    const auto deadline = in_time();
    while (serving.server().stats().sleeps == before && !deadline.expired()) {
        std::this_thread::yield();
    }
    EXPECT_NE(serving.server().stats().sleeps, before);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
}

TEST(RespDoor, GivesItsLastAnswersToWhoSaysNoMore) {
    DoorServing serving;
    RawClient client{serving};
    ASSERT_TRUE(client.send("PING\r\nPING\r\n"));
    ::shutdown(client.descriptor(), SHUT_WR);
    EXPECT_EQ(client.rest(), "+PONG\r\n+PONG\r\n");
}

TEST(RespDoor, ClosesWhoDoesNotReadAndCountsIt) {
    ServerOptions options;
    options.doors.max_unread_bytes = longest_value;
    options.doors.patience = milliseconds{200};
    DoorServing serving{options};
    RawClient slow{serving};
    RawClient other{serving};
    ASSERT_EQ(other.ask({"set", "k", std::string(100'000, 'v')}), "+OK\r\n");
    std::string many;
    for (int i = 0; i < 100; ++i) many += request_of({"get", "k"});
    ASSERT_TRUE(slow.send(many));
    ASSERT_TRUE(serving.counts([](const DoorStats& stats) { return stats.slow == 1; }));
    EXPECT_EQ(other.ask({"ping"}), "+PONG\r\n");
    // The same for one that reads: all of it.
    RawClient reader{serving};
    ASSERT_TRUE(reader.send(many));
    for (int i = 0; i < 100; ++i) ASSERT_EQ(reader.answer().size(), std::size_t{100'011});
    EXPECT_EQ(serving.server().door_stats(DoorKind::resp).slow, 1U);
}

TEST(RespDoor, ClosesWhoAsksForAnAnswerThatIsTooLong) {
    ServerOptions options;
    options.doors.max_unread_bytes = longest_value;
    DoorServing serving{options};
    RawClient client{serving};
    ASSERT_EQ(client.ask({"set", "k", std::string(longest_value, 'v')}), "+OK\r\n");
    (void)client.send(request_of({"mget", "k", "k", "k"}));
    EXPECT_TRUE(serving.counts([](const DoorStats& stats) { return stats.slow == 1; }));
    RawClient next{serving};
    EXPECT_EQ(next.ask({"ping"}), "+PONG\r\n");
}

TEST(RespDoor, SendsLongAnswersInAPipelineToWhoReads) {
    ServerOptions options;
    options.doors.max_unread_bytes = longest_value;
    DoorServing serving{options};
    RawClient client{serving};
    const std::string value(100'000, 'v');
    ASSERT_EQ(client.ask({"set", "k", value}), "+OK\r\n");
    // Each answer is shorter than two of what may be unread; two of them are not.
    Words words{"mget"};
    words.resize(1 + 18, "k");
    const std::string request = request_of(words);
    ASSERT_TRUE(client.send(request + request + request + request));
    for (int i = 0; i < 4; ++i) ASSERT_GT(client.answer().size(), 18 * value.size());
    EXPECT_EQ(serving.server().door_stats(DoorKind::resp).slow, 0U);
}

TEST(RespDoor, ClosesWhoHoldsMuchWhereAllHoldTooMuch) {
    ServerOptions options;
    options.doors.max_held_bytes = std::size_t{4} << 20;
    DoorServing serving{options};
    std::vector<RawClient> clients;
    const std::string half =
        request_of({"set", "k", std::string(longest_value, 'v')}).substr(0, 900'000);
    for (int i = 0; i < 12; ++i) {
        clients.push_back(RawClient{serving});
        (void)clients.back().send(half);
    }
    EXPECT_TRUE(serving.counts([](const DoorStats& stats) { return stats.greedy != 0; }));
    // So is who queues without end.
    clients.clear();
    RawClient queuing{serving};
    ASSERT_EQ(queuing.ask({"multi"}), "+OK\r\n");
    const std::string set = request_of({"set", "k", std::string(500'000, 'v')});
    for (int i = 0; i < 20 && queuing.send(set); ++i) {
    }
    EXPECT_NE(queuing.rest().find("+QUEUED"), std::string::npos);
    RawClient next{serving};
    EXPECT_EQ(next.ask({"ping"}), "+PONG\r\n");
}

TEST(RespDoor, ClosesWhoDoesNotReadWhereAllHoldTooMuch) {
    ServerOptions options;
    options.doors.max_held_bytes = std::size_t{4} << 20;
    DoorServing serving{options};
    RawClient other{serving};
    ASSERT_EQ(other.ask({"set", "k", std::string(longest_value, 'v')}), "+OK\r\n");
    std::string many;
    for (int i = 0; i < 20; ++i) many += request_of({"get", "k"});
    std::vector<RawClient> slow;
    for (int i = 0; i < 8; ++i) {
        slow.push_back(RawClient{serving});
        ASSERT_TRUE(slow.back().send(many));
    }
    // None may leave its 20 MiB there, though each may as far as it alone goes.
    EXPECT_TRUE(serving.counts([](const DoorStats& stats) { return stats.greedy == 8; }));
    EXPECT_LT(serving.server().door_stats(DoorKind::resp).commands, 1U + 8 * 20);
    EXPECT_EQ(other.ask({"ping"}), "+PONG\r\n");
}

TEST(RespDoor, HoldsNothingOfTransactionsThatHaveEnded) {
    ServerOptions options;
    options.doors.max_held_bytes = std::size_t{4} << 20;
    DoorServing serving{options};
    RawClient client{serving};
    const Words set{"set", "k", std::string(200'000, 'v')};
    for (const char* const end : {"exec", "discard", "reset"}) {
        for (int i = 0; i < 30; ++i) {
            ASSERT_EQ(client.ask({"multi"}), "+OK\r\n") << end << ' ' << i;
            ASSERT_EQ(client.ask(set), "+QUEUED\r\n") << end << ' ' << i;
            ASSERT_NE(client.ask({end}), "") << end << ' ' << i;
        }
    }
    EXPECT_EQ(serving.server().door_stats(DoorKind::resp).greedy, 0U);
}

TEST(RespDoor, TakesAtMostSoManyConnections) {
    ServerOptions options;
    options.doors.max_connections = 2;
    DoorServing serving{options};
    RawClient first{serving};
    RawClient second{serving};
    ASSERT_EQ(first.ask({"ping"}), "+PONG\r\n");
    ASSERT_EQ(second.ask({"ping"}), "+PONG\r\n");
    EXPECT_EQ(RawClient{serving}.rest(), "-ERR max number of clients reached\r\n");
    EXPECT_TRUE(serving.counts([](const DoorStats& stats) { return stats.refused == 1; }));
    second.end();
    ASSERT_TRUE(serving.counts([](const DoorStats& stats) { return stats.connections == 1; }));
    RawClient third{serving};
    EXPECT_EQ(third.ask({"ping"}), "+PONG\r\n");
}

TEST(RespDoor, ClosesWhoAsksForNothingHoweverItTrickles) {
    ServerOptions options;
    options.doors.idle_timeout = seconds{1};
    DoorServing serving{options};
    RawClient silent{serving};
    RawClient loris{serving};
    const auto deadline = in_time();
    // A request that never is whole is none.
    while (loris.send("*") && loris.has_more(10) == false) ASSERT_FALSE(deadline.expired());
    EXPECT_TRUE(
        serving.counts([](const DoorStats& stats) { return stats.idle + stats.malformed >= 2; }));
    EXPECT_EQ(silent.rest(), "");
}

TEST(RespDoor, WantsThePasswordFirst) {
    ServerOptions options;
    options.doors.password = connect::Secret{std::string_view{"a long and secret word"}};
    DoorServing serving{options};
    RawClient client{serving};
    EXPECT_EQ(client.ask({"get", "k"}), "-NOAUTH Authentication required.\r\n");
    EXPECT_EQ(client.ask({"hello", "3"}),
              "-NOAUTH HELLO must be called with the client already authenticated, otherwise the "
              "HELLO AUTH <user> <pass> option can be used to authenticate the client and select "
              "the RESP protocol version at the same time\r\n");
    const std::string wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    for (const char* const word : {"", "a long and secret wor", "a long and secret wordx", "x"}) {
        EXPECT_EQ(client.ask({"auth", word}), wrong);
    }
    for (const char* const user : {"other", "DEFAULT"}) {
        EXPECT_EQ(client.ask({"auth", user, "a long and secret word"}), wrong);
    }
    EXPECT_EQ(client.ask({"get", "k"}), "-NOAUTH Authentication required.\r\n");
    EXPECT_EQ(client.ask({"auth", "a long and secret word"}), "+OK\r\n");
    EXPECT_EQ(client.ask({"get", "k"}), "$-1\r\n");
    EXPECT_EQ(serving.server().door_stats(DoorKind::resp).denied, 6U);
    // What is known of it ends with RESET.
    EXPECT_EQ(client.ask({"reset"}), "+RESET\r\n");
    EXPECT_EQ(client.ask({"get", "k"}), "-NOAUTH Authentication required.\r\n");
    RawClient greeted{serving};
    const std::string hello =
        greeted.ask({"hello", "3", "auth", "default", "a long and secret word", "setname", "me"});
    EXPECT_EQ(hello.substr(0, 4), "%7\r\n");
    EXPECT_EQ(greeted.ask({"client", "getname"}), "$2\r\nme\r\n");
    // A stranger may not say much.
    RawClient stranger{serving};
    ASSERT_TRUE(stranger.send("*100\r\n"));
    EXPECT_EQ(stranger.rest(), "-ERR Protocol error: unauthenticated multibulk length\r\n");
}

TEST(RespDoor, ScansEveryKeyThatIsThereAllTheWhileHoweverItsValueChanges) {
    DoorServing serving;
    RawClient client{serving};
    RawClient other{serving};
    constexpr int keys = 3000;
    for (int i = 0; i < keys; ++i) {
        (void)client.ask({"set", "key:" + std::to_string(i), std::string(1000, 'v')});
    }
    std::set<std::string> seen;
    std::string cursor = "0";
    int next = 0;
    do {
        const std::string answer = client.ask({"scan", cursor, "count", "50"});
        std::vector<std::string> lines;
        for (std::size_t at = 0, end; (end = answer.find("\r\n", at)) != std::string::npos;
             at = end + 2) {
            lines.push_back(answer.substr(at, end - at));
        }
        cursor = lines.at(2);
        for (std::size_t i = 5; i < lines.size(); i += 2) seen.insert(lines[i]);
        // Those that lie behind go to where the walk has been: shorter values are before longer
        // ones.
        for (int i = 0; i < 60 && next < keys; ++i) {
            (void)other.ask({"set", "key:" + std::to_string(keys - ++next), "short"});
        }
    } while (cursor != "0");
    EXPECT_EQ(seen.size(), std::size_t{keys});
}

TEST(RespDoor, ScansInPiecesHoweverMuchItsWalkMayHaveMissed) {
    ServerOptions options;
    options.doors.max_unread_bytes = longest_value;
    DoorServing serving{options};
    RawClient client{serving};
    constexpr int keys = 40'000;
    const auto set_all = [&](const std::string& value) {
        Words words{"mset"};
        for (int i = 0; i < keys; ++i) {
            words.push_back(std::string(60, 'k') + std::to_string(i));
            words.push_back(value);
        }
        ASSERT_EQ(client.ask(words), "+OK\r\n");
    };
    set_all("short");
    std::set<std::string> seen;
    std::string cursor = "0";
    int pieces = 0;
    do {
        const std::string answer = client.ask({"scan", cursor, "count", "5000"});
        ASSERT_NE(answer, "");
        std::vector<std::string> lines;
        for (std::size_t at = 0, end; (end = answer.find("\r\n", at)) != std::string::npos;
             at = end + 2) {
            lines.push_back(answer.substr(at, end - at));
        }
        cursor = lines.at(2);
        for (std::size_t i = 5; i < lines.size(); i += 2) seen.insert(lines[i]);
        if (++pieces == 2) set_all(std::string(50, 'v'));
    } while (cursor != "0");
    EXPECT_EQ(seen.size(), std::size_t{keys});
    EXPECT_GE(pieces, 2 * keys / 5000);
}

TEST(RespDoor, PicksAboutEveryKeyAsOften) {
    DoorServing serving;
    RawClient client{serving};
    EXPECT_EQ(client.ask({"randomkey"}), "$-1\r\n");
    for (int i = 0; i < 20; ++i) (void)client.ask({"set", "k" + std::to_string(i), "v"});
    std::set<std::string> met;
    for (int i = 0; i < 2000; ++i) met.insert(client.ask({"randomkey"}));
    EXPECT_EQ(met.size(), 20U);
}

TEST(RespDoor, SetsNoneOfSeveralNewKeysWhereTheStoreIsFull) {
    DoorServing serving;
    RawClient client{serving};
    const std::string value(50'000, 'v');
    ASSERT_EQ(client.ask({"set", "small", "1"}), "+OK\r\n");  // there is room for others as small
    std::string answer = "+OK\r\n";
    for (int i = 0; answer == "+OK\r\n"; ++i) {
        answer = client.ask({"set", "k" + std::to_string(i), value});
    }
    ASSERT_EQ(answer.substr(0, 5), "-OOM ");
    EXPECT_EQ(client.ask({"msetnx", "a", "1", "b", value}), answer);
    EXPECT_EQ(client.ask({"exists", "a", "b"}), ":0\r\n");
    EXPECT_EQ(client.ask({"msetnx", "a", "1", "c", "1"}), ":1\r\n");
}

TEST(RespDoor, ChangesNothingWhereAKeyThatStaysIsToStay) {
    DoorServing serving;
    RawClient client{serving};
    RawClient other{serving};
    ASSERT_EQ(client.ask({"set", "k", "v"}), "+OK\r\n");
    ASSERT_EQ(client.ask({"watch", "k"}), "+OK\r\n");
    EXPECT_EQ(other.ask({"getex", "k", "persist"}), "$1\r\nv\r\n");
    ASSERT_EQ(client.ask({"multi"}), "+OK\r\n");
    ASSERT_EQ(client.ask({"get", "k"}), "+QUEUED\r\n");
    EXPECT_EQ(client.ask({"exec"}), "*1\r\n$1\r\nv\r\n");
}

// Where each key is compared with all before it, no answer comes in time.
TEST(RespDoor, WatchesManyKeysInOneCommand) {
    DoorServing serving;
    RawClient client{serving};
    RawClient other{serving};
    Words words{"watch"};
    for (int i = 0; i < 300'000; ++i) words.push_back("key:" + std::to_string(i));
    words.push_back(words[1]);
    const std::string last = words[words.size() - 2];
    ASSERT_EQ(client.ask(words), "+OK\r\n");
    ASSERT_EQ(client.ask({"multi"}), "+OK\r\n");
    EXPECT_EQ(client.ask({"exec"}), "*0\r\n");
    ASSERT_EQ(client.ask(words), "+OK\r\n");
    ASSERT_EQ(other.ask({"set", last, "v"}), "+OK\r\n");
    ASSERT_EQ(client.ask({"multi"}), "+OK\r\n");
    EXPECT_EQ(client.ask({"exec"}), "*-1\r\n");
}

TEST(RespDoor, SavesAllThatIsThereAtOneMoment) {
    const test::TemporaryFolder folder;
    ServerOptions options = of_threads(3);
    {
        DoorServing serving{options};
        EXPECT_NE(RawClient{serving}.ask({"save"}).find("--snapshot"), std::string::npos);
    }
    options.snapshot_file = folder.path("none/items");
    {
        DoorServing serving{options};
        EXPECT_EQ(RawClient{serving}.ask({"save"}).substr(0, 5), "-ERR ");
    }
    options.snapshot_file = folder.path("items");
    {
        DoorServing serving{options};
        RawClient client{serving};
        EXPECT_EQ(client.ask({"mset", "a", "0", "b", "0"}), "+OK\r\n");
        std::atomic<bool> ends{false};
        std::thread writer{[&] {
            RawClient other{serving};
            for (int i = 0; !ends; ++i) {
                const std::string value = std::to_string(i);
                (void)other.ask({"mset", "a", value, "b", value});
            }
        }};
        for (int i = 0; i < 20; ++i) EXPECT_EQ(client.ask({"save"}), "+OK\r\n");
        ends = true;
        writer.join();
    }
    // Neither of them without the other.
    DoorServing serving{options};
    EXPECT_EQ(serving.server().loaded().items, 2U);
    const std::string both = RawClient{serving}.ask({"mget", "a", "b"});
    const std::size_t half = (both.size() - 4) / 2;
    EXPECT_EQ(both.substr(4, half), both.substr(4 + half)) << both;
}

TEST(RespDoor, KnowsNestedCommandsByTwoWordsOnly) {
    DoorServing serving;
    RawClient client{serving};
    EXPECT_EQ(client.ask({"client|id"}),
              "-ERR unknown command 'client|id', with args beginning with: \r\n");
    EXPECT_EQ(client.ask({"config|get", "x", "y"}),
              "-ERR unknown command 'config|get', with args beginning with: 'x' 'y' \r\n");
}

TEST(RespDoor, SetsIfEqual) {
    DoorServing serving;
    RawClient client{serving};
    EXPECT_EQ(client.ask({"set", "k", "new", "ifeq", "old"}), "$-1\r\n");
    EXPECT_EQ(client.ask({"set", "k", "old"}), "+OK\r\n");
    EXPECT_EQ(client.ask({"set", "k", "new", "IFEQ", "other"}), "$-1\r\n");
    EXPECT_EQ(client.ask({"set", "k", "new", "ifeq", "old"}), "+OK\r\n");
    EXPECT_EQ(client.ask({"get", "k"}), "$3\r\nnew\r\n");
}

TEST(RespDoor, SaysOfOtherTypesThatThereAreStringsOnly) {
    DoorServing serving;
    RawClient client{serving};
    EXPECT_NE(client.ask({"lpush", "l", "1"}).find("strings only"), std::string::npos);
    EXPECT_NE(client.ask({"ZADD", "z", "1", "a"}).find("strings only"), std::string::npos);
    // Of what is no other type, nothing else is said.
    for (const char* const name : {"getbit", "publish", "eval", "lcs", "wait"}) {
        EXPECT_EQ(client.ask({name, "a", "1"}),
                  "-ERR '" + std::string{name} +
                      "' is not known here: this store keeps strings "
                      "only, and COMMAND LIST names what it knows\r\n");
    }
}

class RespThreads : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Counts, RespThreads, testing::Values(1U, 4U));

TEST_P(RespThreads, CountsRightWhereManyCount) {
    DoorServing serving{of_threads(GetParam())};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            RawClient client{serving};
            for (int i = 0; i < 2000; ++i) ASSERT_TRUE(client.ask({"incr", "n"}).starts_with(':'));
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(RawClient{serving}.ask({"get", "n"}), "$4\r\n8000\r\n");
}

// Sets two keys alike, and renames, in one step for all: nobody sees one of both.
TEST_P(RespThreads, ShowsTransactionsAsOneStep) {
    DoorServing serving{of_threads(GetParam())};
    (void)RawClient{serving}.ask({"mset", "a", "0", "b", "0"});
    std::atomic<bool> ends{false};
    std::vector<std::thread> writers;
    for (int t = 0; t < 2; ++t) {
        writers.emplace_back([&, t] {
            RawClient client{serving};
            for (int i = 0; !ends; ++i) {
                const std::string value = std::to_string(2 * i + t);
                if (i % 2 == 0) {
                    (void)client.ask({"mset", "a", value, "b", value});
                } else {
                    (void)client.send(request_of({"multi"}) + request_of({"set", "a", value}) +
                                      request_of({"set", "b", value}) + request_of({"exec"}));
                    for (int n = 0; n < 4; ++n) (void)client.answer();
                }
            }
        });
    }
    RawClient reader{serving};
    for (int i = 0; i < 3000; ++i) {
        const std::string both = reader.ask({"mget", "a", "b"});
        const std::size_t half = (both.size() - 4) / 2;
        ASSERT_EQ(both.substr(4, half), both.substr(4 + half)) << both;
    }
    ends = true;
    for (std::thread& writer : writers) writer.join();
}

// A counter by WATCH, as it is done without INCR: none is lost.
TEST_P(RespThreads, LosesNoChangeThatWasWatched) {
    DoorServing serving{of_threads(GetParam())};
    Client ours = serving.own_client();
    ASSERT_TRUE(ours.set(bytes("n"), bytes("0"), in_time()).ok());
    constexpr int each = 300;
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            RawClient client{serving};
            for (int done = 0; done < each;) {
                (void)client.ask({"watch", "n"});
                const std::string answer = client.ask({"get", "n"});
                const int now = std::stoi(answer.substr(answer.find('\n') + 1));
                (void)client.ask({"multi"});
                (void)client.ask({"set", "n", std::to_string(now + 1)});
                if (client.ask({"exec"}) != "*-1\r\n") ++done;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(value_by(ours, "n"), std::to_string(3 * each));
}

TEST_P(RespThreads, ListsTheConnectionsOfAllThreads) {
    DoorServing serving{of_threads(GetParam())};
    std::vector<RawClient> clients;
    for (int i = 0; i < 8; ++i) {
        clients.push_back(RawClient{serving});
        (void)clients.back().ask({"client", "setname", "me" + std::to_string(i)});
    }
    const std::string list = clients.front().ask({"client", "list"});
    for (int i = 0; i < 8; ++i) {
        EXPECT_NE(list.find("name=me" + std::to_string(i)), std::string::npos) << list;
    }
}

TEST(RespDoor, IsInTheServersStatistics) {
    DoorServing serving;
    RawClient client{serving};
    for (int i = 0; i < 100; ++i) (void)client.ask({"ping"});
    Client ours = serving.own_client();
    std::string lines;
    ASSERT_TRUE(ours.stats(lines, in_time()).ok());
    EXPECT_NE(lines.find("resp_connections 1\n"), std::string::npos) << lines;
    EXPECT_NE(lines.find("resp_commands 100\n"), std::string::npos) << lines;
    EXPECT_GE(serving.server().door_times(DoorKind::resp).timed, 3U);
}

}  // namespace
}  // namespace millrace::kv
