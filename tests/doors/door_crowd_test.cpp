// Many clients of all doors at a time: ten thousand connections, a crowd that trickles, processes
// that are killed while they flood, and a full store whose items expire.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>

#include "doors/memcached_client.hpp"
#include "doors/resp_client.hpp"

namespace millrace::kv {
namespace {

using std::chrono::milliseconds;

/// This process may have as many descriptors as the system lets it; the limit that was, afterwards.
class MostDescriptors {
  public:
    MostDescriptors() {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
        const rlimit most{before_.rlim_max, before_.rlim_max};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &most), 0);
    }
    MostDescriptors(const MostDescriptors&) = delete;
    MostDescriptors& operator=(const MostDescriptors&) = delete;
    ~MostDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
    [[nodiscard]] rlim_t count() const { return before_.rlim_max; }

  private:
    rlimit before_{};
};

constexpr std::size_t ten_thousand = 10'000;

bool is_answered(RawClient& client) { return client.ask({"get", "k"}) == "$1\r\nv\r\n"; }
bool is_answered(TextClient& client) {
    return client.ask("get k\r\n") == "VALUE k 0 1\r\nv\r\nEND\r\n";
}

/// Half of ten thousand connections at each door, whose paths are the arguments. It asks by all of
/// them for each line that it hears.
MILLRACE_CHILD(door_crowd) {
    const MostDescriptors descriptors;
    std::vector<RawClient> resp;
    std::vector<TextClient> text;
    while (resp.size() != ten_thousand / 2) resp.emplace_back(arguments[0]);
    while (text.size() != ten_thousand / 2) text.emplace_back(arguments[1]);
    do {
        const auto ask = [](auto& client) { return is_answered(client); };
        test::say(std::ranges::all_of(resp, ask) && std::ranges::all_of(text, ask) ? "served"
                                                                                   : "not served");
    } while (test::hear());
    return 0;
}

class DoorCrowds : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, DoorCrowds, testing::Values(1U, 3U));

TEST_P(DoorCrowds, OfTenThousandIsServedAndForgotten) {
    const MostDescriptors descriptors;
    if (descriptors.count() < ten_thousand + 500) {
        GTEST_SKIP() << "no process may have " << ten_thousand + 500 << " descriptors: ulimit -Hn";
    }
    DoorServing serving{of_threads(GetParam())};
    Client own = serving.own_client();
    ASSERT_TRUE(own.set(bytes("k"), bytes("v"), in_time()).ok());
    auto crowd = test::ChildProcess::start(
        "door_crowd", {serving.path(DoorKind::resp), serving.path(DoorKind::memcached)});
    const auto have_so_many = [&](std::uint64_t each) {
        const auto is_so = [&](const DoorStats& now) { return now.connections == each; };
        return serving.counts(is_so, DoorKind::resp) && serving.counts(is_so, DoorKind::memcached);
    };
    ASSERT_EQ(crowd.read_line(std::chrono::seconds{60}), "served");
    EXPECT_TRUE(have_so_many(ten_thousand / 2));
    // One more is one too many, at either door.
    EXPECT_EQ(RawClient{serving}.rest(), "-ERR max number of clients reached\r\n");
    EXPECT_EQ(TextClient{serving}.rest(), "ERROR Too many open connections\r\n");
    EXPECT_EQ(value_by(own, "k"), "v");
    crowd.write_line("once more");
    EXPECT_EQ(crowd.read_line(std::chrono::seconds{60}), "served");
    EXPECT_TRUE(crowd.kill_and_wait().killed_by(SIGKILL));
    EXPECT_TRUE(have_so_many(0));
    RawClient resp{serving};
    TextClient text{serving};
    EXPECT_TRUE(is_answered(resp));
    EXPECT_TRUE(is_answered(text));
}

TEST_P(DoorCrowds, ThatTricklesHoldsUpNobody) {
    DoorServing serving{of_threads(GetParam())};
    const std::string value(300, 'v');
    const std::string set = request_of({"set", "k", value});
    const std::string stored = storing("set k 0 0", value);
    std::vector<RawClient> resp;
    std::vector<TextClient> text;
    for (int i = 0; i < 100; ++i) {
        resp.emplace_back(serving);
        text.emplace_back(serving);
    }
    RawClient other{serving};
    TextClient another{serving};
    for (std::size_t at = 0; at < std::max(set.size(), stored.size()); ++at) {
        const auto give = [at](auto& clients, const std::string& request) {
            for (auto& client : clients) {
                if (at < request.size()) {
                    ASSERT_TRUE(client.send(std::string_view{request}.substr(at, 1)));
                }
            }
        };
        give(resp, set);
        give(text, stored);
        ASSERT_EQ(other.ask({"incr", "n"}), ':' + std::to_string(2 * at + 1) + "\r\n");
        ASSERT_EQ(another.ask("incr n 1\r\n"), std::to_string(2 * at + 2) + "\r\n");
    }
    for (RawClient& client : resp) EXPECT_EQ(client.answer(), "+OK\r\n");
    for (TextClient& client : text) EXPECT_EQ(client.line(), "STORED\r\n");
    EXPECT_EQ(other.ask({"strlen", "k"}), ":300\r\n");
}

/// Letters of which each follows from how many there are.
std::string even_value(std::size_t size) {
    return std::string(size, static_cast<char>('a' + size % 26));
}
bool is_even(std::string_view value) { return value == even_value(value.size()); }

/// Sends `requests` for ever, and reads what is there, or does not.
void flood(DoorClient client, const std::function<std::string(std::size_t size)>& requests,
           bool reads) {
    std::mt19937 random{std::random_device{}()};
    std::array<char, 65536> come;
    while (client.send(requests(random() % 3000))) {
        while (reads && ::recv(client.descriptor(), come.data(), come.size(), MSG_DONTWAIT) > 0) {
        }
    }
}

/// Arguments: how; where.
MILLRACE_CHILD(door_flood) {
    const std::string& how = arguments[0];
    const std::string& where = arguments[1];
    const bool reads = how.ends_with("reads");
    if (how.starts_with("resp")) {
        flood(
            RawClient{where},
            [](std::size_t size) {
                const std::string value = even_value(size);
                return request_of({"multi"}) + request_of({"set", "a", value}) +
                       request_of({"set", "b", value}) + request_of({"exec"}) +
                       request_of({"mset", "c", value, "d", value}) +
                       request_of({"mget", "a", "b", "c", "d"});
            },
            reads);
    } else if (how.starts_with("memcached")) {
        flood(
            TextClient{where},
            [](std::size_t size) {
                return storing("set e 0 0", even_value(size)) + "get e\r\nms f " +
                       std::to_string(size) + "\r\n" + even_value(size) + "\r\nmg f v\r\n";
            },
            reads);
    } else {
        message::ClientOptions options;
        options.transport = connect::Transport::tcp;
        Client client = Client::connect(connect::Address::parse(where), options, in_time());
        for (std::size_t size = 0;; size = (size + 7) % 3000) {
            std::uint64_t id = 0;
            const std::string value = even_value(size);
            const auto status = client.submit(
                Command::set, {.key = bytes("g"), .value = bytes(value)}, id, in_time());
            if (status != base::Status::ok) return 1;
            while (client.poll([](const Answer&) {}) == base::Status::ok) {
            }
        }
    }
    return 1;  // the server ended it
}

TEST_P(DoorCrowds, ThatFloodsMayBeKilledAtAnyTime) {
    DoorServing serving{of_threads(GetParam())};
    RawClient resp{serving};
    TextClient text{serving};
    for (const char* key : {"a", "b", "c", "d", "e", "f", "g"}) {
        ASSERT_EQ(resp.ask({"set", key, ""}), "+OK\r\n");
    }
    std::mt19937 random{1};
    for (int round = 0; round < 6; ++round) {
        const std::string reads = round % 2 == 0 ? "reads" : "";
        std::vector<test::ChildProcess> children;
        for (const char* const how : {"resp", "memcached", "own"}) {
            const std::string kind = how;
            children.push_back(test::ChildProcess::start(
                "door_flood",
                {kind + reads,
                 kind == "own"
                     ? serving.server().address().to_string()
                     : serving.path(kind == "resp" ? DoorKind::resp : DoorKind::memcached)}));
        }
        // They are in the middle of something.
        const std::uint64_t own_before = serving.server().stats().requests;
        const std::uint64_t more = 50 + random() % 2000;
        const std::uint64_t before[] = {serving.server().door_stats(DoorKind::resp).commands,
                                        serving.server().door_stats(DoorKind::memcached).commands};
        for (const DoorKind kind : all_doors) {
            ASSERT_TRUE(serving.counts(
                [&](const DoorStats& now) {
                    return now.commands >= before[static_cast<std::size_t>(kind)] + more;
                },
                kind));
        }
        const auto deadline = in_time();
        while (serving.server().stats().requests < own_before + more) {
            ASSERT_FALSE(deadline.expired());
        }
        for (auto& child : children) child.kill();
        for (auto& child : children) EXPECT_TRUE(child.wait().killed_by(SIGKILL));
        for (const DoorKind kind : all_doors) {
            EXPECT_TRUE(
                serving.counts([](const DoorStats& now) { return now.connections == 1; }, kind));
        }
        // What was done is whole, and what was to be done at once was.
        const auto value_of = [&](const char* key) {
            const std::string answer = resp.ask({"get", key});
            return answer.substr(answer.find('\n') + 1, answer.size() - answer.find('\n') - 3);
        };
        for (const char* key : {"a", "b", "c", "d", "e", "f", "g"}) {
            EXPECT_TRUE(is_even(value_of(key))) << key;
        }
        EXPECT_EQ(value_of("a"), value_of("b"));
        EXPECT_EQ(value_of("c"), value_of("d"));
        EXPECT_EQ(text.ask(storing("set e 0 0", "")), "STORED\r\n");
    }
    const auto deadline = in_time();
    while (serving.server().stats().clients != 0) ASSERT_FALSE(deadline.expired());
}

/// Sets items and reads them through one door.
class Redis {
  public:
    explicit Redis(DoorServing& serving) : client_{serving} {}
    void set(const std::string& key, const std::string& value) {
        ASSERT_EQ(client_.ask({"set", key, value}), "+OK\r\n");
    }
    void set_for_a_moment(const std::string& key, const std::string& value) {
        ASSERT_EQ(client_.ask({"set", key, value, "px", "20"}), "+OK\r\n");
    }
    std::string get(const std::string& key) {
        const std::string answer = client_.ask({"get", key});
        if (answer == "$-1\r\n") return {};
        const std::size_t begin = answer.find('\n') + 1;
        return answer.substr(begin, answer.size() - begin - 2);
    }

  private:
    RawClient client_;
};
class Memcached {
  public:
    explicit Memcached(DoorServing& serving) : client_{serving} {}
    void set(const std::string& key, const std::string& value) {
        ASSERT_EQ(client_.set(key, value), "STORED\r\n");
    }
    void set_for_a_moment(const std::string& key, const std::string& value) {
        ASSERT_EQ(client_.ask(storing("set " + key + " 0 1", value)), "STORED\r\n");
    }
    std::string get(const std::string& key) {
        const std::string answer = client_.ask("get " + key + "\r\n");
        if (answer == "END\r\n") return {};
        const std::size_t begin = answer.find('\n') + 1;
        return answer.substr(begin, answer.size() - begin - std::strlen("\r\nEND\r\n"));
    }

  private:
    TextClient client_;
};
class Own {
  public:
    explicit Own(DoorServing& serving) : client_{serving.own_client()} {}
    void set(const std::string& key, const std::string& value) {
        ASSERT_TRUE(client_.set(bytes(key), bytes(value), in_time()).ok());
    }
    void set_for_a_moment(const std::string& key, const std::string& value) {
        SetOptions how;
        how.expires_after = milliseconds{20};
        ASSERT_TRUE(client_.set(bytes(key), bytes(value), in_time(), how).ok());
    }
    std::string get(const std::string& key) {
        const std::string value = value_by(client_, key);
        return value == "none" ? std::string{} : value;
    }

  private:
    Client client_;
};

/// Of a key, and of no other.
std::string value_for(const std::string& key, std::mt19937& random) {
    return key + '=' + even_value(random() % 2000);
}
bool is_value_for(const std::string& key, std::string_view value) {
    return value.empty() || (value.starts_with(key + '=') && is_even(value.substr(key.size() + 1)));
}

TEST_P(DoorCrowds, FindsWholeValuesWhereItemsGoAndExpire) {
    ServerOptions options = of_threads(GetParam());
    options.store.memory_bytes = least_memory;
    options.store.when_full = WhenFull::evict;
    options.sweep_period = milliseconds{5};
    DoorServing serving{options};
    std::atomic<bool> is_over{false};
    std::atomic<std::uint64_t> found{0};
    const auto run = [&](auto caller, unsigned number) {
        std::mt19937 random{number};
        while (!is_over) {
            const std::string key = 'k' + std::to_string(random() % 20'000);
            switch (random() % 4) {
                case 0: caller.set_for_a_moment(key, value_for(key, random)); break;
                case 1: caller.set(key, value_for(key, random)); break;
                default: {
                    const std::string value = caller.get(key);
                    ASSERT_TRUE(is_value_for(key, value)) << key << " has " << value;
                    if (!value.empty()) ++found;
                }
            }
        }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 6; ++i) {
        threads.emplace_back([&, i] {
            switch (i % 3) {
                case 0: return run(Redis{serving}, i);
                case 1: return run(Memcached{serving}, i);
                default: return run(Own{serving}, i);
            }
        });
    }
    // Meanwhile what any of them has set for a moment goes, for all of them.
    Redis redis{serving};
    Memcached memcached{serving};
    Own own{serving};
    redis.set_for_a_moment("of redis", "v");
    memcached.set_for_a_moment("of_memcached", "v");
    own.set_for_a_moment("of us", "v");
    const auto deadline = base::Deadline::after(2 * test::patience);
    const auto is_gone = [&](const std::string& key) {
        // memcached has no keys with blanks.
        const bool is_for_all = key.find(' ') == std::string::npos;
        return redis.get(key).empty() && own.get(key).empty() &&
               (!is_for_all || memcached.get(key).empty());
    };
    for (const char* key : {"of redis", "of_memcached", "of us"}) {
        while (!is_gone(key) && !deadline.expired()) {
        }
        EXPECT_TRUE(is_gone(key)) << key;
    }
    const auto stats = [&] { return serving.server().store().stats(); };
    while ((stats().evicted < 3000 || stats().expired < 3000 || found < 3000) &&
           !deadline.expired()) {
        EXPECT_LE(stats().memory_bytes, options.store.memory_bytes);
        std::this_thread::sleep_for(milliseconds{1});
    }
    is_over = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_GE(stats().evicted, 3000U);
    EXPECT_GE(stats().expired, 3000U);
    EXPECT_GE(found, 3000U);
}

/// What gives an item its time, on a server that had none to look after before.
struct Timing {
    DoorKind door;
    std::string first;  ///< without a time
    std::string then;   ///< gives it one
};

TEST(DoorTimes, AreLookedAfterWhicheverCommandGaveTheFirst) {
    const std::string set = request_of({"set", "k", "v"});
    const std::string stored = storing("set k 0 0", "1");
    const Timing timings[] = {
        {DoorKind::resp, "PING\r\n", request_of({"set", "k", "v", "px", "1"})},
        {DoorKind::resp, "PING\r\n", request_of({"psetex", "k", "1", "v"})},
        {DoorKind::resp, set, request_of({"getex", "k", "px", "1"})},
        {DoorKind::resp, set, request_of({"pexpire", "k", "50"})},
        {DoorKind::memcached, "mn\r\n", storing("set k 0 1", "1")},
        {DoorKind::memcached, "mn\r\n", "ms k 1 T1\r\n1\r\n"},
        {DoorKind::memcached, "mn\r\n", "mg k N1\r\n"},
        {DoorKind::memcached, "mn\r\n", "ma k N1\r\n"},
        {DoorKind::memcached, stored, "touch k 1\r\n"},
        {DoorKind::memcached, stored, "gat 1 k\r\n"},
        {DoorKind::memcached, stored, "mg k T1\r\n"},
        {DoorKind::memcached, stored, "ma k T1\r\n"},
        {DoorKind::memcached, stored, "md k I T1\r\n"},
    };
    // All at once, as a second is the shortest time that memcached has.
    std::vector<std::unique_ptr<DoorServing>> servers;
    for (const Timing& timing : timings) {
        ServerOptions options;
        options.store.memory_bytes = least_memory;
        options.sweep_period = milliseconds{20};
        servers.push_back(std::make_unique<DoorServing>(options));
        DoorClient client{servers.back()->path(timing.door)};
        ASSERT_TRUE(client.send(timing.first + timing.then));
        ASSERT_TRUE(client.has_more(static_cast<int>(test::patience.count())));
    }
    const auto deadline = in_time();
    for (std::size_t i = 0; i < servers.size(); ++i) {
        // Nobody asks for it.
        const auto expired = [&] { return servers[i]->server().store().stats().expired; };
        while (expired() == 0 && !deadline.expired()) {
            std::this_thread::sleep_for(milliseconds{1});
        }
        EXPECT_EQ(expired(), 1U) << timings[i].first << timings[i].then;
    }
}

}  // namespace
}  // namespace millrace::kv
