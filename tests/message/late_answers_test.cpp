// Answers to requests that were given up: however large, and whenever they come, they never land
// where the answer to a later request is being read.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "message/serving.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

/// What a request of these tests says: which, of how many bytes its answer is, and whether that is
/// for the test to give.
struct Asked {
    std::uint64_t number = 0;
    std::uint64_t size = 0;
    std::uint64_t is_late = 0;
};

class LateRepliesOf : public ByEveryWay {
  protected:
    void handle(Request& request) {
        Asked asked;
        ASSERT_EQ(request.payload().size(), sizeof asked);
        std::memcpy(&asked, request.payload().data(), sizeof asked);
        if (asked.is_late == 0) {
            (void)request.answer(content(1, asked.number, asked.size));
            return;
        }
        const std::lock_guard guard{mutex_};
        late_.emplace_back(asked, request.defer());
    }
    void await(std::size_t count) {
        const Deadline deadline = patience();
        for (std::size_t seen = 0; seen != count && !deadline.expired();) {
            std::this_thread::sleep_for(50us);
            const std::lock_guard guard{mutex_};
            seen = late_.size();
        }
    }
    void give() {
        const std::lock_guard guard{mutex_};
        for (auto& [asked, reply] : late_) {
            EXPECT_EQ(reply.answer(content(1, asked.number, asked.size)), Status::ok);
        }
        late_.clear();
    }
    std::uint64_t submit(Client& client, const Asked& asked) {
        std::uint64_t id = 0;
        EXPECT_EQ(client.submit(std::as_bytes(std::span{&asked, 1}), id, patience()), Status::ok);
        return id;
    }

  private:
    std::mutex mutex_;
    std::vector<std::pair<Asked, Reply>> late_;
};
INSTANTIATE_TEST_SUITE_P(Every, LateRepliesOf, testing::ValuesIn(every_way),
                         [](const auto& way) { return name_of(way.param); });

TEST_P(LateRepliesOf, CancelledRequestsLandInNoMemoryThatIsRead) {
    Running running{options(), [this](Request& request) { handle(request); }};
    ClientOptions client_options;
    client_options.window = 4;
    client_options.ring_bytes = std::size_t{16} << 10;
    Client client = running.connect(client_options);
    // In a corner of the ring, in most of it, and round it several times.
    constexpr std::size_t sizes[] = {16, 400, 3000, 9000, 60'000};
    std::uint64_t number = 0;
    for (int round = 0; round < 30; ++round) {
        const std::size_t size = sizes[round % 5];
        const std::array ids{submit(client, {++number, size, 1}),
                             submit(client, {++number, size, 1})};
        await(2);
        // Given before they are given up, or while the next answer is being read.
        if (round % 2 == 0) give();
        for (const std::uint64_t id : ids) EXPECT_TRUE(client.cancel(id));
        const std::uint64_t wanted = submit(client, {++number, size, 0});
        const Bytes right = content(1, number, size);
        ASSERT_EQ(client.wait(
                      [&](const Answer& answer) {
                          EXPECT_EQ(answer.id, wanted);
                          EXPECT_EQ(answer.outcome, Outcome::ok);
                          EXPECT_TRUE(std::ranges::equal(answer.payload, right));
                          give();
                          std::this_thread::sleep_for(300us);
                          EXPECT_TRUE(std::ranges::equal(answer.payload, right))
                              << "somebody wrote where it was being read";
                      },
                      patience()),
                  Status::ok);
    }
    EXPECT_EQ(client.outstanding(), 0U);
    EXPECT_GT(client.stats().unwanted, 0U);
}

}  // namespace
}  // namespace millrace::message
