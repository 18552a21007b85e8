// Answers to calls that were taken back: whatever the design and however large, they find nobody,
// and no later call. And of calls whose connections break under them: each is executed once at
// most.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rpc/serving.hpp"
#include "support/extent.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Status;
using Bytes = std::vector<std::byte>;

/// So many bytes that follow from a number.
struct Fill {
    static constexpr std::string_view name = "fill";
    struct Request {
        std::uint64_t number = 0;
        std::uint64_t size = 0;
        std::uint64_t is_late = 0;  ///< its answer is for the test to give
    };
    using Response = std::span<const std::byte>;
};

Bytes filling(std::uint64_t number, std::size_t size) {
    Bytes bytes(size);
    std::uint64_t state = (number + 1) * 0x9e3779b97f4a7c15U;
    for (std::byte& byte : bytes) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        byte = static_cast<std::byte>(state >> 56);
    }
    return bytes;
}

/// Those that are late, until the test gives their answers.
class LateAnswers {
  public:
    void take(const Fill::Request& request, Call<Fill>& call) {
        if (request.is_late == 0) {
            (void)call.answer(filling(request.number, request.size));
            return;
        }
        const std::lock_guard guard{mutex_};
        replies_.emplace_back(request, call.defer());
    }
    [[nodiscard]] bool await(std::size_t count) {
        return comes_true([&] {
            const std::lock_guard guard{mutex_};
            return replies_.size() == count;
        });
    }
    [[nodiscard]] bool await_unwanted() {
        return comes_true([&] {
            const std::lock_guard guard{mutex_};
            for (const auto& one : replies_) {
                if (one.second.is_wanted()) return false;
            }
            return true;
        });
    }
    void give() {
        const std::lock_guard guard{mutex_};
        for (auto& [request, reply] : replies_) {
            EXPECT_EQ(reply.answer(filling(request.number, request.size)), Status::ok);
        }
        replies_.clear();
    }

  private:
    std::mutex mutex_;
    std::vector<std::pair<Fill::Request, Reply<std::span<const std::byte>>>> replies_;
};

class LateAnswersBy : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, LateAnswersBy, all_ways(), name_of_way);

TEST_P(LateAnswersBy, FindNobodyWhateverTheirSize) {
    LateAnswers late;
    Running running{server_options_of(GetParam()), [&](Server& server) {
                        server.handle<Fill>([&](const Fill::Request& request, Call<Fill>& call) {
                            late.take(request, call);
                        });
                    }};
    std::optional<Dispatching> dispatching;
    ClientOptions options = client_options_of(GetParam(), dispatching);
    options.messages.window = 4;
    // Some answers fit in a corner of the ring, others fill most of it, others go round it often.
    options.messages.ring_bytes = std::size_t{16} << 10;
    Client client = running.connect<Fill>(options);
    constexpr std::size_t sizes[] = {16, 3000, 9000, 100'000};
    std::uint64_t number = 0;
    // Each size with each of the three.
    for (int round = 0; round < (test::in_full() ? 24 : 12); ++round) {
        const std::size_t size = sizes[round % 4];
        // Two of which nobody wants to know.
        std::uint64_t ids[2] = {};
        for (std::uint64_t& id : ids) {
            ASSERT_EQ(client.submit_or_wait<Fill>(
                          {++number, size, 1}, [](const Result<Bytes>&) { ADD_FAILURE(); },
                          patience(), {}, &id),
                      Status::ok);
        }
        ASSERT_TRUE(late.await(2));
        // Given before they are taken back, at the same time, or when the server knows.
        if (round % 3 == 0) late.give();
        for (const std::uint64_t id : ids) {
            EXPECT_TRUE(client.cancel(id));
            EXPECT_FALSE(client.cancel(id));
        }
        if (round % 3 == 2) {
            ASSERT_TRUE(late.await_unwanted());
        }
        // Others are asked while the late ones come, or do not.
        int answers = 0;
        for (int i = 0; i < 2; ++i) {
            const auto look = [&, mine = ++number](const Result<Bytes>& bytes) {
                ASSERT_TRUE(bytes) << name_of(bytes.code());
                EXPECT_TRUE(*bytes == filling(mine, size));
                late.give();
                ++answers;
            };
            Status status = Status::full;
            while (status == Status::full) {
                status = client.submit_or_wait<Fill>({number, size, 0}, look, patience());
                if (status == Status::full) (void)client.poll();
            }
            ASSERT_EQ(status, Status::ok);
        }
        while (answers != 2) ASSERT_EQ(client.wait(patience()), Status::ok);
        const auto whole = client.call<Fill>({++number, size, 0}, patience());
        ASSERT_TRUE(whole) << name_of(whole.code());
        EXPECT_TRUE(*whole == filling(number, size));
    }
    EXPECT_EQ(client.outstanding(), 0U);
    running.stop();
    EXPECT_EQ(running.server.procedures().at(0).pending, 0U);
    EXPECT_GE(running.server.procedures().at(0).unwanted, 16U);
}

/// Adds one to what it has done for a number. Nobody may do that twice, and nobody says it may.
struct Once {
    static constexpr std::string_view name = "once";
    using Request = std::uint64_t;
    using Response = std::uint64_t;
};

class Broken : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Sessions, Broken, testing::Values("ends", "resumes", "shared"),
                         [](const auto& each) { return std::string{each.param}; });

TEST_P(Broken, ConnectionsLetEachCallBeExecutedOnceAtMost) {
    constexpr std::uint64_t all = 1'000'000;
    std::vector<std::atomic<int>> executed(all);
    Running running{{}, [&](Server& server) {
                        server.handle<Once>([&](const std::uint64_t& number) {
                            ++executed.at(number);
                            return number;
                        });
                    }};
    const std::string name = GetParam();
    std::optional<Dispatching> dispatching;
    ClientOptions options;
    options.messages.resumes = name == "resumes";
    options.retry = {.attempts = 5, .largest_budget = 1000};
    if (name == "shared") {
        dispatching.emplace();
        options.design = Design{.connection = Connection::dispatcher};
        options.dispatcher = dispatching->dispatcher;
    }
    Client client = running.connect<Once>(options);
    const std::string address = running.server.address().to_string();
    std::atomic<bool> ends{false};
    std::atomic<int> breaks{0};
    std::atomic<std::uint64_t> answered{0};
    std::thread breaker{[&] {
        // At any instant, but not before the last one has been got over: nobody resumes a session
        // by a connection that breaks while that is done.
        std::minstd_rand random{7};
        const auto connections = [&] {
            const message::ServerStats stats = running.server.stats().messages;
            return stats.joined + stats.resumed;
        };
        const auto pause = [&] {
            std::this_thread::sleep_for(std::chrono::microseconds{random() % 500});
            return !ends;
        };
        for (std::uint64_t known = 0; !ends;) {
            while (pause() && connections() == known) {
            }
            for (const std::uint64_t seen = answered; pause() && answered < seen + 3;) {
            }
            known = connections();
            breaks += break_connections(address);
        }
    }};
    std::uint64_t number = 0;
    for (const auto deadline = patience(); number < all && !deadline.expired(); ++number) {
        if (breaks >= 10 && number >= 200) break;
        const Result<std::uint64_t> result = client.call<Once>(number, patience());
        if (result) {
            EXPECT_EQ(*result, number);
            EXPECT_EQ(executed[number], 1) << number;
            ++answered;
        } else if (is_safe_to_repeat(result.code())) {
            EXPECT_EQ(executed[number], 0) << number << ": " << name_of(result.code());
        } else {
            EXPECT_NE(name, "resumes") << number << ": " << name_of(result.code());
        }
    }
    ends = true;
    breaker.join();
    for (std::uint64_t i = 0; i < number; ++i) EXPECT_LE(executed[i], 1) << i;
    EXPECT_GT(breaks, 3);
    EXPECT_GT(answered, 30U);
    // It goes on where nobody breaks anything.
    EXPECT_TRUE(comes_true([&] { return client.call<Once>(0, patience()).ok(); }));
}

}  // namespace
}  // namespace millrace::rpc
