// The RESP door answers as redis-server does: generated commands, right and wrong ones, byte by
// byte. MILLRACE_TEST_SEED repeats what has failed.
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "doors/resp_client.hpp"

namespace millrace::kv {
namespace {

std::int64_t unix_seconds() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

/// Words of commands that Redis and the door know, by chance: mostly right.
class Commands {
  public:
    explicit Commands(std::uint64_t seed) : random_{seed} {}

    Words next() {
        Words words = one();
        // Now and then a word too many or too few, in letters of the other case, or another one.
        if (one_of(25)) words.push_back(option());
        if (words.size() > 1 && one_of(40)) words.pop_back();
        if (one_of(10)) std::ranges::transform(words[0], words[0].begin(), ::toupper);
        if (words.size() > 2 && one_of(60)) words[1 + below(words.size() - 1)] = 'v' + value();
        return words;
    }

  private:
    std::size_t below(std::size_t count) { return random_() % count; }
    bool one_of(std::size_t count) { return below(count) == 0; }
    std::string among(std::initializer_list<const char*> words) {
        return *(words.begin() + below(words.size()));
    }
    std::string key() { return "key:" + std::to_string(below(8)); }
    std::string integer() {
        switch (below(12)) {
            case 0: return "9223372036854775807";
            case 1: return "-9223372036854775808";
            case 2: return "9223372036854775808";
            case 3: return "007";
            case 4: return "+1";
            case 5: return " 1";
            case 6: return "1.5";
            default: return std::to_string(static_cast<int>(below(200)) - 100);
        }
    }
    std::string real() {
        return among({"1.5", "-0.25", "3", "1e3", "0", "-0", "1e-5", "nan", "inf", "abc", "",
                      "10.0", "5.0e3", " 1", "1 ", "0x10", "1e5000", "100000000000000000000"});
    }
    std::string value() {
        switch (below(6)) {
            case 0: return integer();
            case 1: return real();
            case 2: return std::string(below(300), static_cast<char>('a' + below(26)));
            case 3: {
                std::string bytes;
                for (std::size_t i = below(40); i-- != 0;) bytes += static_cast<char>(below(256));
                return bytes;
            }
            case 4: return option();
            default: return among({"", "hello", "Hello World", "\r\n", "0", "100"});
        }
    }
    std::string option() {
        return among({"nx", "XX", "get", "keepttl", "persist", "ex", "PX", "exat", "pxat", "gt",
                      "LT", "replace", "db", "count", "match", "type", "foo"});
    }
    /// Far apart, so that it does not matter which server was asked first.
    std::string seconds() {
        if (one_of(20)) return "9223372036854775807";
        if (one_of(6)) return integer_of_time();
        return std::to_string(1000 * (1 + below(20)));
    }
    std::string unix_time() {
        if (one_of(6)) return integer_of_time();
        return std::to_string(begin_ + 500 + 1000 * static_cast<std::int64_t>(1 + below(20)));
    }
    std::string milliseconds(std::string seconds) {
        return seconds.find_first_not_of("0123456789") == std::string::npos && seconds.size() < 12
                   ? seconds + "000"
                   : seconds;
    }
    /// Those that no store takes, or that have passed. (What is more than a century away never
    /// comes in this store.)
    std::string integer_of_time() {
        return among(
            {"0", "-1", "-100", "abc", "-9223372036854775808", "9223372036854775809", "1.5", ""});
    }
    Words several(std::string command, std::size_t most, bool with_values) {
        Words words{std::move(command)};
        for (std::size_t i = 1 + below(most); i-- != 0;) {
            words.push_back(key());
            if (with_values) words.push_back(value());
        }
        return words;
    }
    Words timed(Words words) {
        switch (below(5)) {
            case 0: words.insert(words.end(), {"ex", seconds()}); break;
            case 1: words.insert(words.end(), {"PX", milliseconds(seconds())}); break;
            case 2: words.insert(words.end(), {"exat", unix_time()}); break;
            case 3: words.insert(words.end(), {"pxat", milliseconds(unix_time())}); break;
            default: break;
        }
        return words;
    }
    Words one() {
        switch (below(46)) {
            case 0:
            case 1: return {"get", key()};
            case 2:
            case 3: {
                Words words = timed({"set", key(), value()});
                while (one_of(3)) words.push_back(among({"nx", "xx", "get", "KEEPTTL"}));
                return words;
            }
            case 4: return {"setnx", key(), value()};
            case 5: return {"setex", key(), seconds(), value()};
            case 6: return {"psetex", key(), milliseconds(seconds()), value()};
            case 7: return {"getset", key(), value()};
            case 8: return {"getdel", key()};
            case 9: {
                Words words = timed({"getex", key()});
                if (one_of(4)) words.emplace_back("persist");
                return words;
            }
            case 10: return several("mget", 4, false);
            case 11: return several("mset", 4, true);
            case 12: return several("msetnx", 2, true);
            case 13: return {"append", key(), value()};
            case 14: return {"strlen", key()};
            case 15:
                return {"setrange", key(),
                        one_of(8) ? among({"-1", "1048577", "x", "9223372036854775807"})
                                  : std::to_string(below(300)),
                        value()};
            case 16: return {among({"getrange", "substr"}), key(), integer(), integer()};
            case 17:
            case 18: return {among({"incr", "decr"}), key()};
            case 19:
            case 20: return {among({"incrby", "decrby"}), key(), integer()};
            case 21:
            case 22: return {"incrbyfloat", key(), real()};
            case 23: return several(among({"del", "unlink"}), 3, false);
            case 24: return several(among({"exists", "touch"}), 4, false);
            case 25:
            case 26: {
                Words words{"expire", key(), seconds()};
                while (one_of(3)) words.push_back(among({"nx", "xx", "gt", "lt"}));
                return words;
            }
            case 27: return {"pexpire", key(), milliseconds(seconds())};
            case 28: {
                Words words{"expireat", key(), unix_time()};
                while (one_of(3)) words.push_back(among({"nx", "xx", "gt", "lt"}));
                return words;
            }
            case 29: return {"pexpireat", key(), milliseconds(unix_time())};
            case 30: return {among({"ttl", "pttl", "expiretime", "pexpiretime"}), key()};
            case 31: return {"persist", key()};
            case 32: return {"type", key()};
            case 33:
                return {"keys", among({"*", "key:*", "key:[1-3]", "k?y:\\1", "[^k]*", "*:*", ""})};
            case 34: return {"rename", key(), key()};
            case 35: return {"renamenx", key(), key()};
            case 36: {
                Words words{"copy", key(), key()};
                if (one_of(2)) words.emplace_back("replace");
                if (one_of(6)) words.insert(words.end(), {"db", among({"0", "x", "-1", "99"})});
                return words;
            }
            case 37: return {"dbsize"};
            case 38: return one_of(20) ? Words{among({"flushall", "flushdb"})} : Words{"ping"};
            case 39: return {among({"ping", "echo"}), value()};
            case 40: return {"select", among({"0", "x", "-1", "99"})};
            case 41: return {among({"foo", "", "GET\r\n", "set2"}), value(), value()};
            case 42:
                return {among({"client", "config", "object", "memory"}),
                        among({"foo", "getname", ""})};
            case 43: return {among({"multi", "exec", "discard", "unwatch"})};
            case 44: return {"multi"};
            default: return several("watch", 2, false);
        }
    }

    std::mt19937_64 random_;
    const std::int64_t begin_ = unix_seconds();
};

/// The strings of an answer of several, in order: which comes first is nobody's promise.
std::multiset<std::string> parts_of(const std::string& answer) {
    std::multiset<std::string> parts;
    std::size_t begin = 0;
    for (std::size_t end; (end = answer.find("\r\n", begin)) != std::string::npos;
         begin = end + 2) {
        parts.insert(answer.substr(begin, end - begin));
    }
    return parts;
}

std::optional<std::int64_t> number_in(const std::string& answer) {
    if (!answer.starts_with(':')) return std::nullopt;
    return std::stoll(answer.substr(1));
}

/// What tells how long a key stays, or until when: the servers were not asked at one moment.
bool is_about(const std::string& ours, const std::string& theirs, std::int64_t tolerance) {
    const auto a = number_in(ours);
    const auto b = number_in(theirs);
    if (!a || !b) return ours == theirs;
    return (*a < 0 || *b < 0) ? *a == *b : std::abs(*a - *b) <= tolerance;
}

bool is_same(const Words& words, const std::string& ours, const std::string& theirs) {
    std::string name = words[0];
    std::ranges::transform(name, name.begin(), ::tolower);
    if (name == "keys") return parts_of(ours) == parts_of(theirs);
    if (name == "ttl" || name == "expiretime") return is_about(ours, theirs, 60);
    if (name == "pttl" || name == "pexpiretime") return is_about(ours, theirs, 60'000);
    // Whether a transaction was carried out; times are among its parts.
    if (name == "exec")
        return ours.substr(0, ours.find('\r')) == theirs.substr(0, theirs.find('\r'));
    return ours == theirs;
}

bool is_watch(std::string name) {
    std::ranges::transform(name, name.begin(), ::tolower);
    return name == "watch";
}

std::string shown(const Words& words) {
    std::string text;
    for (const std::string& word : words) text += testing::PrintToString(word) + ' ';
    return text;
}

class BesideRedis : public testing::TestWithParam<int> {
  protected:
    void SetUp() override {
        if (redis == nullptr) {
            GTEST_SKIP() << "redis-server is not installed: scripts/install-dependencies test";
        }
        (void)ours.ask({"hello", std::to_string(GetParam())});
        (void)theirs.ask({"hello", std::to_string(GetParam())});
    }
    std::unique_ptr<RedisServer> redis = RedisServer::start();
    DoorServing serving;
    RawClient ours{serving};
    RawClient theirs = redis != nullptr ? redis->client() : RawClient{serving};
};
INSTANTIATE_TEST_SUITE_P(Protocols, BesideRedis, testing::Values(2, 3),
                         [](const auto& of) { return "resp" + std::to_string(of.param); });

TEST_P(BesideRedis, AnswersGeneratedCommandsByteByByte) {
    const char* const chosen = std::getenv("MILLRACE_TEST_SEED");
    const bool lengthy = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    const std::uint64_t seed = chosen != nullptr ? std::stoull(chosen)
                               : lengthy         ? std::random_device{}()
                                                 : 1;
    SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
    Commands commands{seed};
    RawClient beside{serving};  // no transaction is open there
    std::vector<Words> last;
    for (int i = 0; i < 20'000; ++i) {
        const Words words = commands.next();
        // One that is not there, comes and goes again has changed for Redis, and not here.
        if (is_watch(words[0]) &&
            !std::all_of(words.begin() + 1, words.end(), [&](const auto& key) {
                return beside.ask({"exists", key}) == ":1\r\n";
            })) {
            continue;
        }
        last.push_back(words);
        const std::string mine = ours.ask(words);
        const std::string other = theirs.ask(words);
        if (is_same(words, mine, other)) continue;
        std::string before;
        for (std::size_t at = last.size() < 12 ? 0 : last.size() - 12; at < last.size(); ++at) {
            before += "\n    " + shown(last[at]);
        }
        FAIL() << "command " << i << " of seed " << seed << ", behind" << before
               << "\n  ours:   " << testing::PrintToString(mine.substr(0, 400))
               << "\n  redis': " << testing::PrintToString(other.substr(0, 400));
    }
}

/// What is written here is asked of both.
class SaidAlike : public BesideRedis {
  protected:
    void expect_same(const Words& words) {
        EXPECT_EQ(ours.ask(words), theirs.ask(words)) << shown(words);
    }
};
INSTANTIATE_TEST_SUITE_P(Protocols, SaidAlike, testing::Values(2, 3),
                         [](const auto& of) { return "resp" + std::to_string(of.param); });

TEST_P(SaidAlike, OfConnections) {
    for (const Words& words : std::initializer_list<Words>{{"client", "getname"},
                                                           {"client", "setname", "me"},
                                                           {"client", "getname"},
                                                           {"client", "setname", "a b"},
                                                           {"client", "setname", ""},
                                                           {"client", "setname"},
                                                           {"client"},
                                                           {"client", "foo", "x"},
                                                           {"client", "id", "x"},
                                                           {"client", "no-evict", "on"},
                                                           {"client", "no-evict", "x"},
                                                           {"client", "list", "x"},
                                                           {"client", "tracking", "off"},
                                                           {"hello", "9"},
                                                           {"hello", "x"},
                                                           {"hello", "2", "foo"},
                                                           {"hello", "3", "setname", "a b"},
                                                           {"auth", "a"},
                                                           {"auth", "a", "b"},
                                                           {"auth", "a", "b", "c"},
                                                           {"auth", "default", "x"},
                                                           {"ping", "a", "b"},
                                                           {"echo"},
                                                           {"reset"},
                                                           {"debug", "sleep", "0"},
                                                           {"select", "0"},
                                                           {"quit"}}) {
        expect_same(words);
    }
    EXPECT_EQ(ours.rest(), theirs.rest());
}

TEST_P(SaidAlike, OfKeys) {
    for (const Words& words :
         std::initializer_list<Words>{{"randomkey"},
                                      {"set", "n", "12"},
                                      {"randomkey"},
                                      {"object", "encoding", "n"},
                                      {"set", "t", "short"},
                                      {"object", "encoding", "t"},
                                      {"set", "l", std::string(45, 'x')},
                                      {"object", "encoding", "l"},
                                      {"object", "encoding", "none"},
                                      {"object", "foo"},
                                      {"object", "encoding"},
                                      {"memory", "usage", "none"},
                                      {"memory", "usage", "n", "samples"},
                                      {"memory", "usage", "n", "samples", "x"},
                                      {"scan", "x"},
                                      {"scan", "0", "count", "0"},
                                      {"scan", "0", "count"},
                                      {"scan", "0", "count", "x"},
                                      {"scan", "0", "type", "list"},
                                      {"scan", "0", "foo", "x"},
                                      {"scan", "0", "match", "none*", "count", "1000"},
                                      {"expireat", "n", "4000000000"},
                                      {"expiretime", "n"},
                                      {"expireat", "n", "9223372036854775807"},
                                      {"pexpireat", "n", "4000000000123"},
                                      {"pexpiretime", "n"},
                                      {"expiretime", "n"},
                                      {"incr", "n"},
                                      {"pexpiretime", "n"},
                                      {"append", "n", "4"},
                                      {"pexpiretime", "n"},
                                      {"rename", "n", "m"},
                                      {"pexpiretime", "m"},
                                      {"copy", "m", "o"},
                                      {"pexpiretime", "o"},
                                      {"setrange", "o", "1", "9"},
                                      {"pexpiretime", "o"},
                                      // The same time is neither later nor earlier.
                                      {"set", "g", "v", "exat", "4000000000"},
                                      {"expireat", "g", "4000000000", "gt"},
                                      {"expireat", "g", "4000000000", "lt"},
                                      {"expireat", "g", "4000000001", "gt"},
                                      {"expireat", "g", "4000000000", "lt"},
                                      {"expiretime", "g"},
                                      {"getex", "o", "persist"},
                                      {"pexpiretime", "o"},
                                      {"config", "get", "save"},
                                      {"config", "get"},
                                      {"config", "get", "appendonly"},
                                      {"command", "getkeys", "mset", "a", "1", "b", "2"},
                                      {"command", "getkeys", "ping", "x"},
                                      {"command", "getkeys", "foo", "x"},
                                      {"flushall", "x"},
                                      {"flushall", "async"},
                                      {"dbsize"}}) {
        expect_same(words);
    }
}

TEST_P(SaidAlike, OfTransactions) {
    for (const Words& words : std::initializer_list<Words>{{"exec"},
                                                           {"discard"},
                                                           {"multi"},
                                                           {"multi"},
                                                           {"watch", "a"},
                                                           {"set", "a", "1"},
                                                           {"incr", "a"},
                                                           {"incr", "b", "c"},
                                                           {"exec"},
                                                           {"multi"},
                                                           {"set", "a", "x"},
                                                           {"incr", "a"},
                                                           {"get", "a"},
                                                           {"ping"},
                                                           {"exec"},
                                                           {"get", "a"},
                                                           {"watch", "a", "b"},
                                                           {"set", "a", "2"},
                                                           {"multi"},
                                                           {"get", "a"},
                                                           {"exec"},
                                                           {"watch", "a"},
                                                           {"unwatch"},
                                                           {"set", "a", "3"},
                                                           {"multi"},
                                                           {"get", "a"},
                                                           {"exec"},
                                                           {"watch", "none"},
                                                           {"multi"},
                                                           {"set", "a", "4"},
                                                           {"exec"},
                                                           {"multi"},
                                                           {"foo"},
                                                           {"discard"},
                                                           {"multi"},
                                                           {"hello", "2"},
                                                           {"exec"},
                                                           {"multi"},
                                                           {"quit"}}) {
        if (words[0] == "hello") continue;  // what it answers names the connection
        expect_same(words);
    }
}

TEST_P(SaidAlike, OfWhatIsNoRequest) {
    for (const char* const bytes :
         {"*x\r\n", "*\r\n", "*2147483648\r\n", "*1\r\n+PING\r\n", "*1\r\n$x\r\n", "*1\r\n$-1\r\n",
          "*1\r\n$1048577\r\n", "*1\r\n$99999999999999999999\r\n", "get \"a\r\n", "set a 'b'c\r\n",
          "*-1\r\nPING\r\nQUIT\r\n", "*0\r\nPING\r\nQUIT\r\n", "\r\n\r\nPING\r\nQUIT\r\n",
          "PING\nquit\n", "set k \"\\x41\\n\\\"\" \r\nget k\r\nset k 'it\\'s'\r\nget k\r\nQUIT\r\n",
          "*1\r\n$4\r\nPINGxx*1\r\n$4\r\nQUIT\r\n", "POST / HTTP/1.1\r\nHost: x\r\n",
          "\"\"\r\nquit\r\n"}) {
        RawClient mine{serving};
        RawClient other = redis->client();
        mine.send(bytes);
        other.send(bytes);
        EXPECT_EQ(mine.rest(), other.rest()) << testing::PrintToString(bytes);
    }
    const std::string line(70'000, 'x');
    RawClient mine{serving};
    RawClient other = redis->client();
    mine.send(line);
    other.send(line);
    EXPECT_EQ(mine.rest(), other.rest());
}

}  // namespace
}  // namespace millrace::kv
