// Histories of one key, of clients of all kinds at a time: they can have happened call by call.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "doors/memcached_client.hpp"
#include "doors/resp_client.hpp"
#include "kv/linearizability.hpp"

namespace millrace::kv {
namespace {

using CallKind = Call::Kind;

std::uint64_t number_of(const std::string& text) { return text.empty() ? 0 : std::stoull(text); }

/// What a client of Redis sees of the key "k", whose values are numbers.
class RedisCaller {
  public:
    explicit RedisCaller(DoorServing& serving) : client_{serving} {}
    std::uint64_t get() { return found_in(client_.ask({"get", "k"})); }
    void set(std::uint64_t value) {
        ASSERT_EQ(client_.ask({"set", "k", std::to_string(value)}), "+OK\r\n");
    }
    bool erase() { return client_.ask({"del", "k"}) == ":1\r\n"; }
    bool compare_and_set(std::uint64_t expected, std::uint64_t value) {
        const std::string text = std::to_string(value);
        const Words words = expected == 0
                                ? Words{"set", "k", text, "nx"}
                                : Words{"set", "k", text, "ifeq", std::to_string(expected)};
        return client_.ask(words) == "+OK\r\n";
    }

  private:
    static std::uint64_t found_in(const std::string& answer) {
        if (answer == "$-1\r\n") return 0;
        return number_of(answer.substr(answer.find('\n') + 1));
    }
    RawClient client_;
};

/// What a client of memcached sees of it.
class MemcachedCaller {
  public:
    explicit MemcachedCaller(DoorServing& serving) : client_{serving} {}
    std::uint64_t get() {
        const std::string answer = client_.ask("gets k\r\n");
        cas_.clear();
        seen_ = 0;
        if (answer == "END\r\n") return seen_;
        // VALUE k 0 <bytes> <cas>, and the value.
        const std::size_t end = answer.find("\r\n");
        cas_ = answer.substr(answer.rfind(' ', end) + 1, end - answer.rfind(' ', end) - 1);
        seen_ = number_of(answer.substr(end + 2));
        return seen_;
    }
    void set(std::uint64_t value) { ASSERT_EQ(store("set k 0 0", value, ""), "STORED\r\n"); }
    bool erase() { return client_.ask("delete k\r\n") == "DELETED\r\n"; }
    /// By the cas unique that it saw last, whose value is the one that was expected.
    bool compare_and_set(std::uint64_t& expected, std::uint64_t value) {
        expected = seen_;
        const std::string answer =
            cas_.empty() ? store("add k 0 0", value, "") : store("cas k 0 0", value, ' ' + cas_);
        return answer == "STORED\r\n";
    }

  private:
    std::string store(const std::string& line, std::uint64_t value, const std::string& cas) {
        const std::string text = std::to_string(value);
        return client_.ask(line + ' ' + std::to_string(text.size()) + cas + "\r\n" + text + "\r\n");
    }
    TextClient client_;
    std::string cas_;  ///< empty: there was none
    std::uint64_t seen_ = 0;
};

/// The same by our own client.
class OwnCaller {
  public:
    explicit OwnCaller(DoorServing& serving) : client_{serving.own_client()} {}
    std::uint64_t get() {
        std::string text;
        const Result result = client_.get(
            bytes("k"),
            [&](std::span<const std::byte> value) {
                text.assign(reinterpret_cast<const char*>(value.data()), value.size());
            },
            in_time());
        version_ = result.ok() ? result.version : 0;
        seen_ = number_of(text);
        return seen_;
    }
    void set(std::uint64_t value) {
        ASSERT_TRUE(client_.set(bytes("k"), bytes(std::to_string(value)), in_time()).ok());
    }
    bool erase() { return client_.erase(bytes("k"), in_time()).ok(); }
    /// By the version that it saw last, whose value is the one that was expected.
    bool compare_and_set(std::uint64_t& expected, std::uint64_t value) {
        expected = seen_;
        SetOptions how;
        how.if_version = version_;
        return client_.set(bytes("k"), bytes(std::to_string(value)), in_time(), how).ok();
    }

  private:
    Client client_;
    Version version_ = 0;
    std::uint64_t seen_ = 0;
};

/// Some calls of one client, by chance.
template <class Caller>
void call(Caller& caller, std::mt19937& random, std::atomic<std::uint64_t>& clock,
          std::uint64_t& next_value, std::vector<Call>& calls) {
    std::uint64_t seen = 0;
    for (int i = 0; i < 8; ++i) {
        Call one;
        one.kind = static_cast<CallKind>(random() % 4);
        one.begin = clock.fetch_add(1);
        switch (one.kind) {
            case CallKind::get: one.value = seen = caller.get(); break;
            case CallKind::set: caller.set(one.value = ++next_value); break;
            case CallKind::erase: one.done = caller.erase(); break;
            case CallKind::compare_and_set:
                one.expected = seen;
                one.value = ++next_value;
                one.done = caller.compare_and_set(one.expected, one.value);
                break;
        }
        one.end = clock.fetch_add(1);
        calls.push_back(one);
    }
}

class DoorHistory : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, DoorHistory, testing::Values(1U, 3U));

TEST_P(DoorHistory, OfClientsOfAllKindsIsLinearizable) {
    ServerOptions options;
    options.threads.count = GetParam();
    DoorServing serving{options};
    RawClient cleaner{serving};
    constexpr int rounds = 150;
    constexpr std::size_t callers = 5;
    std::array<std::vector<Call>, callers> calls;
    std::atomic<std::uint64_t> clock{1};
    int round = 0;
    std::barrier between{callers, [&]() noexcept {
                             std::vector<Call> all;
                             for (auto& of_one : calls) {
                                 all.insert(all.end(), of_one.begin(), of_one.end());
                                 of_one.clear();
                             }
                             EXPECT_TRUE(is_linearizable(all)) << "round " << round;
                             ++round;
                             (void)cleaner.ask({"del", "k"});
                         }};
    const auto run = [&](auto caller, std::size_t number) {
        std::mt19937 random{static_cast<unsigned>(number)};
        std::uint64_t next_value = (number + 1) << 32;
        for (int i = 0; i < rounds; ++i) {
            call(caller, random, clock, next_value, calls[number]);
            between.arrive_and_wait();
        }
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < callers; ++i) {
        threads.emplace_back([&, i] {
            switch (i % 3) {
                case 0: return run(RedisCaller{serving}, i);
                case 1: return run(OwnCaller{serving}, i);
                default: return run(MemcachedCaller{serving}, i);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(round, rounds);
}

}  // namespace
}  // namespace millrace::kv
