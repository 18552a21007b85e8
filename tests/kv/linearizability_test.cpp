// The checker on histories that are and are not linearizable; then histories of the store, and of a
// server's clients, recorded by threads on one key. What one thread does to other keys makes
// chains, eviction and the table's growth take part.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "linearizability.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"
#include "millrace/message/transfer.hpp"
#include "stores.hpp"
#include "support/child_process.hpp"

namespace millrace::kv {
namespace {

using CallKind = Call::Kind;

TEST(Linearizability, OfCallsOneAfterTheOther) {
    EXPECT_TRUE(is_linearizable({{CallKind::set, 1, 2, 7}, {CallKind::get, 3, 4, 7}}));
    EXPECT_FALSE(is_linearizable({{CallKind::set, 1, 2, 7}, {CallKind::get, 3, 4, 0}}));
    EXPECT_FALSE(is_linearizable({{CallKind::get, 1, 2, 7}, {CallKind::set, 3, 4, 7}}));
    EXPECT_TRUE(is_linearizable(
        {{CallKind::set, 1, 2, 7}, {CallKind::erase, 3, 4}, {CallKind::erase, 5, 6, 0, 0, false}}));
    EXPECT_FALSE(is_linearizable(
        {{CallKind::set, 1, 2, 7}, {CallKind::erase, 3, 4}, {CallKind::erase, 5, 6}}));
}

TEST(Linearizability, OfCallsAtATime) {
    EXPECT_TRUE(is_linearizable({{CallKind::set, 1, 4, 7}, {CallKind::get, 2, 3, 0}}));
    EXPECT_TRUE(is_linearizable({{CallKind::set, 1, 4, 7}, {CallKind::get, 2, 3, 7}}));
    // New and then old again.
    EXPECT_FALSE(is_linearizable(
        {{CallKind::set, 1, 9, 7}, {CallKind::get, 2, 3, 7}, {CallKind::get, 4, 5, 0}}));
    // Two readers who see two writers in different orders.
    EXPECT_FALSE(is_linearizable({{CallKind::set, 1, 9, 7},
                                  {CallKind::set, 1, 9, 8},
                                  {CallKind::get, 2, 3, 7},
                                  {CallKind::get, 4, 5, 8},
                                  {CallKind::get, 2, 3, 8},
                                  {CallKind::get, 4, 5, 7}}));
}

TEST(Linearizability, IsNotJudgedWhereTooManyCallsAreOpenAtOnce) {
    std::vector<Call> calls(most_open_calls, {CallKind::set, 1, 9, 7});
    EXPECT_TRUE(is_linearizable(calls));
    calls.push_back({CallKind::get, 10, 11, 7});
    EXPECT_TRUE(is_linearizable(calls)) << "it begins behind them";
    calls.push_back({CallKind::get, 9, 11, 7});
    EXPECT_THROW((void)is_linearizable(calls), std::invalid_argument);
}

TEST(Linearizability, OfConditions) {
    EXPECT_TRUE(is_linearizable({{CallKind::compare_and_set, 1, 4, 7, 0},
                                 {CallKind::compare_and_set, 1, 4, 8, 0, false},
                                 {CallKind::get, 5, 6, 7}}));
    // Both won.
    EXPECT_FALSE(is_linearizable(
        {{CallKind::compare_and_set, 1, 4, 7, 0}, {CallKind::compare_and_set, 1, 4, 8, 0}}));
    // A lost update.
    EXPECT_FALSE(is_linearizable({{CallKind::set, 1, 2, 7},
                                  {CallKind::compare_and_set, 3, 4, 8, 7},
                                  {CallKind::compare_and_set, 3, 4, 9, 7}}));
}

struct Setting {
    TableKind table;
    HashFunction hash;
    const char* name;
};

class StoreHistory : public testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Tables, StoreHistory,
                         testing::Values(Setting{TableKind::cuckoo, hash_of, "cuckoo"},
                                         Setting{TableKind::thesis, hash_of, "thesis"},
                                         Setting{TableKind::cuckoo, weak_hash, "cuckoo_collisions"},
                                         Setting{TableKind::thesis, weak_hash,
                                                 "thesis_collisions"}),
                         [](const auto& of) { return std::string{of.param.name}; });

/// One thread's calls on the key, drawn at random. `Store`: an Engine, or what has its calls.
template <class Store, class Clock = std::atomic<std::uint64_t>>
class Caller {
  public:
    Caller(Store& engine, Clock& clock, unsigned seed)
        : engine_{engine}, clock_{clock}, random_{seed}, next_value_{seed << 20} {}

    void call() {
        Call call;
        call.begin = clock_.fetch_add(1);
        switch (random_() % 4) {
            case 0: get(call); break;
            case 1: set(call); break;
            case 2: erase(call); break;
            default: compare_and_set(call); break;
        }
        call.end = clock_.fetch_add(1);
        calls_.push_back(call);
    }
    [[nodiscard]] const std::vector<Call>& calls() const { return calls_; }

  private:
    /// Short and long ones, as the store treats them differently.
    Bytes new_value(Call& call) {
        call.value = ++next_value_;
        return sealed(call.value, random_() % 3 == 0 ? 6000 : 8 + random_() % 300);
    }
    void get(Call& call) {
        call.kind = CallKind::get;
        engine_.find(view("key"), [&](const Entry& entry) {
            EXPECT_TRUE(is_whole(entry.value));
            call.value = seed_of(entry.value);
            seen_[entry.version] = call.value;
            version_ = entry.version;
        });
    }
    void set(Call& call) {
        call.kind = CallKind::set;
        const SetResult result = engine_.set(view("key"), new_value(call), {});
        ASSERT_EQ(result.outcome, Outcome::ok);
        seen_[version_ = result.version] = call.value;
    }
    void erase(Call& call) {
        call.kind = CallKind::erase;
        call.done = engine_.erase(view("key"), {}) == Outcome::ok;
    }
    /// Of the version that it saw last, or of none.
    void compare_and_set(Call& call) {
        call.kind = CallKind::compare_and_set;
        const Version wanted = random_() % 3 == 0 ? 0 : version_;
        call.expected = wanted == 0 ? 0 : seen_.at(wanted);
        const SetResult result = engine_.set(view("key"), new_value(call), {.if_version = wanted});
        call.done = result.outcome == Outcome::ok;
        ASSERT_TRUE(call.done || result.outcome == Outcome::conflict);
        if (call.done) seen_[version_ = result.version] = call.value;
    }

    Store& engine_;
    Clock& clock_;
    std::mt19937 random_;
    std::uint64_t next_value_;
    Version version_ = 0;
    std::map<Version, std::uint64_t> seen_;
    std::vector<Call> calls_;
};

/// What they call at the same time, `calls` times each.
template <class Store>
std::vector<Call> history_of(std::vector<Caller<Store>>& callers, int calls) {
    std::barrier start{static_cast<std::ptrdiff_t>(callers.size())};
    std::vector<std::thread> threads;
    for (Caller<Store>& caller : callers) {
        threads.emplace_back([&] {
            start.arrive_and_wait();
            for (int i = 0; i < calls; ++i) caller.call();
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<Call> history;
    for (const Caller<Store>& caller : callers) {
        history.insert(history.end(), caller.calls().begin(), caller.calls().end());
    }
    return history;
}

TEST_P(StoreHistory, OfOneKeyIsLinearizable) {
    constexpr int rounds = 150;
    constexpr int callers = 4;
    constexpr int calls = 12;
    Engine engine{options_of(GetParam().table), GetParam().hash};
    std::atomic<bool> over{false};
    std::thread others{[&] {
        std::mt19937 random{99};
        while (!over) {
            const std::string key = "other " + std::to_string(random() % 2000);
            if (random() % 8 == 0) {
                engine.erase(view(key), {});
            } else {
                engine.set(view(key), sealed(1, random() % 1000), {});
            }
        }
    }};
    for (int round = 0; round < rounds; ++round) {
        engine.erase(view("key"), {});
        std::atomic<std::uint64_t> clock{1};
        std::vector<Caller<Engine>> recorded;
        for (int i = 0; i < callers; ++i) {
            recorded.emplace_back(engine, clock, static_cast<unsigned>(round * callers + i + 1));
        }
        EXPECT_TRUE(is_linearizable(history_of(recorded, calls))) << "round " << round;
    }
    over = true;
    others.join();
}

/// How a client's requests and their answers travel.
struct Way {
    connect::Transport transport = connect::Transport::rc;
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
};
/// "tcp", or "rc_write_send".
std::string name_of(const Way& way) {
    std::string name{connect::name_of(way.transport)};
    if (way.answers == message::Transfer::write) return name;
    return name + "_" + std::string{message::name_of(way.requests)} + "_" +
           std::string{message::name_of(way.answers)};
}

/// A client, with the calls of an Engine.
class Remote {
  public:
    Remote(const connect::Address& server, const Way& way)
        : client_{[&] {
              message::ClientOptions options;
              options.transport = way.transport;
              options.requests = way.requests;
              options.answers = way.answers;
              return Client::connect(server, options, soon());
          }()} {}
    template <class Visit>
    void find(View key, Visit&& visit) {
        asks_for_many_ = !asks_for_many_;
        const Result result =
            asks_for_many_ ? get_among_others(key) : client_.get(key, value_, soon());
        EXPECT_TRUE(result.ok() || result.code == Code::key_error);
        if (result.ok()) visit(Entry{.key = key, .value = value_, .version = result.version});
    }
    SetResult set(View key, View value, const SetOptions& options) {
        const Result result = client_.set(key, value, soon(), options);
        return {outcome_of(result), result.version};
    }
    Outcome erase(View key, std::optional<Version> version) {
        return outcome_of(client_.erase(key, soon(), version));
    }

  private:
    static base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{40}); }
    static Outcome outcome_of(const Result& result) {
        EXPECT_NE(result.code, Code::unanswered) << name_of(result.outcome);
        return result.ok()                      ? Outcome::ok
               : result.code == Code::conflict  ? Outcome::conflict
               : result.code == Code::key_error ? Outcome::not_found
                                                : Outcome::full;
    }
    Result get_among_others(View key) {
        const View keys[] = {view("no other"), key, view("no other")};
        Result found;
        EXPECT_EQ(client_.multi_get(
                      keys,
                      [&](std::size_t index, const Result& result, View value) {
                          if (index != 1) return;
                          found = result;
                          value_.assign(value.begin(), value.end());
                      },
                      soon()),
                  base::Status::ok);
        return found;
    }

    Client client_;
    std::vector<std::byte> value_;
    bool asks_for_many_ = false;  ///< every second time
};

constexpr Way by_rc{};
constexpr Way by_tcp{connect::Transport::tcp};
constexpr Way by_uc{connect::Transport::uc};
constexpr Way by_ud{connect::Transport::ud};
// As work 002 does over RC; and as HERD does.
constexpr Way by_sends{.requests = message::Transfer::send, .answers = message::Transfer::send};
constexpr Way as_herd{.answers = message::Transfer::send};

/// How the requests travel, by how many threads they are served, from which table.
struct Served {
    Way way;
    std::uint32_t threads = 1;
    TableKind table = TableKind::cuckoo;
};
class ServerHistory : public testing::TestWithParam<Served> {};
INSTANTIATE_TEST_SUITE_P(
    Transports, ServerHistory,
    testing::Values(Served{by_rc}, Served{by_sends}, Served{as_herd}, Served{by_tcp}, Served{by_uc},
                    Served{by_ud}, Served{by_rc, 4}, Served{by_sends, 4}, Served{as_herd, 4},
                    Served{by_tcp, 4}, Served{by_uc, 4}, Served{by_ud, 4},
                    Served{by_rc, 4, TableKind::thesis}),
    [](const auto& of) {
        return name_of(of.param.way) +
               (of.param.threads == 1 ? "" : "_by_" + std::to_string(of.param.threads)) +
               (of.param.table == TableKind::thesis ? "_thesis" : "");
    });

TEST_P(ServerHistory, OfOneKeyIsLinearizable) {
    constexpr int callers = 4;
    ServerOptions options;
    options.messages.transports = GetParam().way.transport;
    if (GetParam().way.transport == connect::Transport::ud) {
        options.messages.protection = message::Protection::trusted;
    }
    options.threads.count = GetParam().threads;
    options.store.table = GetParam().table;
    Server server = Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
    std::jthread serving{[&] {
        server.adopt();
        EXPECT_EQ(server.serve(base::Deadline::never()), base::Status::closed);
    }};
    std::vector<Remote> clients;
    for (int i = 0; i < callers; ++i) {
        clients.emplace_back(server.address(), GetParam().way);
    }
    for (int round = 0; round < 40; ++round) {
        (void)clients[0].erase(view("key"), {});
        std::atomic<std::uint64_t> clock{1};
        std::vector<Caller<Remote>> recorded;
        for (int i = 0; i < callers; ++i) {
            recorded.emplace_back(clients[static_cast<std::size_t>(i)], clock,
                                  static_cast<unsigned>(round * callers + i + 1));
        }
        EXPECT_TRUE(is_linearizable(history_of(recorded, 12))) << "round " << round;
    }
    server.stop();
    serving.join();
    server.adopt();
}

/// The same moments for all processes of a host.
struct HostClock {
    [[nodiscard]] std::uint64_t fetch_add(std::uint64_t) const noexcept {
        return static_cast<std::uint64_t>(base::Clock::now().time_since_epoch().count());
    }
};

/// port, transport, requests, answers, seed. Hears "go" and says a line for each of its calls, then
/// "over"; round by round, until its input ends.
MILLRACE_CHILD(kv_caller) {
    const auto port = static_cast<std::uint16_t>(std::stoi(arguments.at(0)));
    const Way way{connect::parse_transport(arguments.at(1)).value(),
                  message::parse_transfer(arguments.at(2)).value(),
                  message::parse_transfer(arguments.at(3)).value()};
    Remote client{connect::Address::tcp("127.0.0.1", port), way};
    HostClock clock;
    test::say("in");
    for (auto seed = static_cast<unsigned>(std::stoul(arguments.at(4))); test::hear(); seed += 16) {
        Caller<Remote, HostClock> caller{client, clock, seed};
        for (int i = 0; i < 12; ++i) caller.call();
        for (const Call& call : caller.calls()) {
            std::ostringstream line;
            line << static_cast<int>(call.kind) << ' ' << call.begin << ' ' << call.end << ' '
                 << call.value << ' ' << call.expected << ' ' << call.done;
            test::say(line.str());
        }
        test::say("over");
    }
    return 0;
}

class HistoryOfProcesses : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, HistoryOfProcesses,
                         testing::Values(by_rc, by_sends, as_herd, by_tcp, by_uc, by_ud),
                         [](const auto& of) { return name_of(of.param); });

TEST_P(HistoryOfProcesses, OfOneKeyIsLinearizable) {
    constexpr unsigned callers = 4;
    const Way way = GetParam();
    ServerOptions options;
    options.messages.transports = way.transport;
    if (way.transport == connect::Transport::ud) {
        options.messages.protection = message::Protection::trusted;
    }
    Server server = Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
    std::jthread serving{[&] {
        server.adopt();
        EXPECT_EQ(server.serve(base::Deadline::never()), base::Status::closed);
    }};
    std::vector<test::ChildProcess> children;
    for (unsigned i = 0; i < callers; ++i) {
        children.push_back(test::ChildProcess::start(
            "kv_caller",
            {std::to_string(server.address().port()), std::string{connect::name_of(way.transport)},
             std::string{message::name_of(way.requests)},
             std::string{message::name_of(way.answers)}, std::to_string(i + 1)}));
    }
    for (test::ChildProcess& child : children) ASSERT_EQ(child.read_line(), "in");
    for (int round = 0; round < 15; ++round) {
        (void)server.store().erase(view("key"));
        for (test::ChildProcess& child : children) ASSERT_TRUE(child.write_line("go"));
        std::vector<Call> history;
        for (test::ChildProcess& child : children) {
            std::optional<std::string> line;
            while ((line = child.read_line()) && *line != "over") {
                std::istringstream words{*line};
                int kind = 0;
                Call call;
                words >> kind >> call.begin >> call.end >> call.value >> call.expected >> call.done;
                ASSERT_FALSE(words.fail()) << *line;
                call.kind = static_cast<CallKind>(kind);
                history.push_back(call);
            }
            ASSERT_TRUE(line.has_value());
        }
        ASSERT_EQ(history.size(), callers * 12U);
        EXPECT_TRUE(is_linearizable(std::move(history))) << "round " << round;
    }
    for (test::ChildProcess& child : children) {
        child.close_input();
        EXPECT_TRUE(child.wait().success());
    }
    server.stop();
    serving.join();
    server.adopt();
}

}  // namespace
}  // namespace millrace::kv
