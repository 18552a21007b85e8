// Who is likely to write next, and that a server that looks at these first is fair all the same.
#include "server/hot_places.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "message/serving.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using testing::ElementsAre;
using testing::UnorderedElementsAre;
using namespace std::chrono_literals;

/// That many waits ended there.
void find(HotPlaces& hot, std::size_t place, std::uint32_t times = 1) {
    for (; times != 0; --times) hot.found(place);
}

TEST(HotPlaces, AreLikelyOnceTheyHaveEndedSeveralWaitsInARow) {
    HotPlaces hot;
    EXPECT_FALSE(hot.are_likely());
    find(hot, 7);
    find(hot, 9);
    for (std::uint32_t wait = 0; wait != HotPlaces::enough; ++wait) {
        EXPECT_FALSE(hot.are_likely());
        find(hot, wait % 2 == 0 ? 7 : 9);
    }
    EXPECT_TRUE(hot.are_likely());
    EXPECT_THAT(hot.places(), UnorderedElementsAre(7U, 9U));
}

TEST(HotPlaces, AreNotLikelyWhereAnotherOneEndsAWait) {
    HotPlaces hot;
    find(hot, 7, HotPlaces::enough + 1);
    ASSERT_TRUE(hot.are_likely());
    find(hot, 8);
    EXPECT_FALSE(hot.are_likely());
    find(hot, 8, HotPlaces::enough);
    EXPECT_TRUE(hot.are_likely());
}

TEST(HotPlaces, AreNotLikelyWhereManyAreServed) {
    HotPlaces hot;
    find(hot, 7, HotPlaces::enough + 1);
    hot.forget();
    EXPECT_FALSE(hot.are_likely());
}

TEST(HotPlaces, AreThoseThatCameLast) {
    HotPlaces hot;
    for (const std::size_t place : {1, 2, 3, 4, 5}) find(hot, place);
    EXPECT_THAT(hot.places(), UnorderedElementsAre(2U, 3U, 4U, 5U));
}

TEST(HotPlaces, AreNeverLikelyWhereMoreClientsCallInTurn) {
    HotPlaces hot;
    for (std::size_t call = 0; call != 100; ++call) {
        find(hot, call % (HotPlaces::most + 1));
        EXPECT_FALSE(hot.are_likely());
    }
}

/// A server and so many clients that it looks at hot ones before all, in one thread.
class HotClients : public ByEveryWay {
  protected:
    static constexpr std::size_t count = 12;

    HotClients() : server_{Server::listen(unique_address(), options())} {
        for (std::size_t i = 0; i != count; ++i) {
            clients_.push_back(join_in_turns(server_, [&] {
                return Client::connect(server_.address(), options_of_client(), patience());
            }));
        }
    }
    [[nodiscard]] bool submit(std::size_t whose) {
        Client& client = clients_[whose];
        std::uint64_t id = 0;
        Status status = client.submit(content(whose, 0, 16), id);
        // Where requests travel, its slots may be under way still.
        for (const Deadline deadline = patience(); status == Status::full && !deadline.expired();) {
            (void)client.poll([](const Answer&) {});
            status = client.submit(content(whose, 0, 16), id);
        }
        return status == Status::ok;
    }
    /// Serves until so many requests are answered, at most `budget` in a turn.
    template <class Handler>
    void serve(std::size_t requests, std::size_t budget, Handler&& handler) {
        std::size_t served = 0;
        const Deadline deadline = patience();
        while (served < requests && !deadline.expired()) {
            ASSERT_EQ(server_.rest(deadline), Status::ok);
            served += server_.turn(handler, budget);
        }
        ASSERT_EQ(served, requests);
        while (server_.turn(handler) != 0) {
        }
        for (Client& client : clients_) {
            while (client.outstanding() != 0 && !deadline.expired()) {
                (void)client.poll([](const Answer&) {});
            }
        }
    }
    /// From here on it looks at this one first.
    void heat(std::size_t whose) {
        for (std::uint32_t call = 0; call != HotPlaces::enough + 4; ++call) {
            ASSERT_TRUE(submit(whose));
            ASSERT_NO_FATAL_FAILURE(serve(1, 1, echo));
        }
    }

    Server server_;
    std::vector<Client> clients_;
};
INSTANTIATE_TEST_SUITE_P(Every, HotClients, testing::ValuesIn(every_ring_way),
                         [](const auto& each) { return name_of(each.param); });

TEST_P(HotClients, AreNotServedTwiceWhileAnotherWaits) {
    constexpr std::size_t hot = count / 2;
    for (const std::size_t budget : {std::size_t{1}, std::size_t{1024}}) {
        for (const std::size_t other : {std::size_t{0}, hot - 1, hot + 1, count - 1}) {
            std::vector<std::uint64_t> order;
            // Where requests travel, a round in which they did for too long proves nothing.
            for (std::chrono::milliseconds travel = 0ms; travel < 1s; travel = 2 * travel + 1ms) {
                ASSERT_NO_FATAL_FAILURE(heat(hot));
                order.clear();
                const auto handler = [&](Request& request) {
                    order.push_back(0);
                    std::memcpy(&order.back(), request.payload().data(), sizeof order.back());
                    echo(request);
                    if (order.size() != 1) return;
                    // Both wait by the time that this turn is over.
                    EXPECT_TRUE(submit(hot) && submit(other));
                    std::this_thread::sleep_for(travel);
                };
                ASSERT_TRUE(submit(hot));
                ASSERT_NO_FATAL_FAILURE(serve(3, budget, handler));
                if (order == std::vector<std::uint64_t>{hot, other, hot}) break;
            }
            ASSERT_THAT(order, ElementsAre(hot, other, hot)) << "with a budget of " << budget;
        }
    }
}

TEST_P(HotClients, DoNotHideTheOthers) {
    ASSERT_NO_FATAL_FAILURE(heat(3));
    for (std::size_t other = 0; other != count; ++other) {
        ASSERT_TRUE(submit(other));
        ASSERT_NO_FATAL_FAILURE(serve(1, 1, [&](Request& request) {
            EXPECT_EQ(Bytes(request.payload().begin(), request.payload().end()),
                      content(other, 0, 16));
            echo(request);
        }));
    }
}

TEST_P(HotClients, MayLeave) {
    constexpr std::size_t hot = count - 1;
    ASSERT_NO_FATAL_FAILURE(heat(hot));
    ASSERT_TRUE(submit(hot));
    ASSERT_EQ(server_.rest(patience()), Status::ok);
    clients_.pop_back();
    const Deadline deadline = patience();
    while (server_.stats().clients == count && !deadline.expired()) (void)server_.turn(echo);
    ASSERT_EQ(server_.stats().clients, count - 1);
    ASSERT_TRUE(submit(0));
    ASSERT_NO_FATAL_FAILURE(serve(1, 1, echo));
}

}  // namespace
}  // namespace millrace::message
