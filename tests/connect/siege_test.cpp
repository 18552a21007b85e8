// A listener under siege: a thousand peers that stop in the middle of their first words, or say
// them a byte at a time, and clients that guess at the secret. Who knows it is let in meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include "millrace/connect/hub.hpp"
#include "millrace/connect/link.hpp"
#include "peers.hpp"
#include "wire.hpp"

namespace millrace::connect {
namespace {

using namespace std::chrono_literals;
using test::fresh_address;
using test::soon;
using test::Stranger;

const Secret known{"what those who are let in know"};
const Secret guessed{"what those outside think it is"};

LinkOptions knowing(const Secret& secret) { return {.admission = {.secret = secret}}; }

/// While it lives, this process may open that many files, if it may at all.
class ManyDescriptors {
  public:
    explicit ManyDescriptors(rlim_t wanted) {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
        rlimit more = before_;
        more.rlim_cur = std::max(before_.rlim_cur, std::min(wanted, before_.rlim_max));
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &more), 0);
        has_ = more.rlim_cur >= wanted;
    }
    ManyDescriptors(const ManyDescriptors&) = delete;
    ManyDescriptors& operator=(const ManyDescriptors&) = delete;
    ~ManyDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
    explicit operator bool() const { return has_; }

  private:
    rlimit before_{};
    bool has_ = false;
};

/// Serves a listener in a thread of its own, in a hub, until it goes.
class Keep {
  public:
    explicit Keep(const LinkOptions& options)
        : listener_{Listener::listen(fresh_address(), options)}, thread_{[this] { serve(); }} {}
    Keep(const Keep&) = delete;
    Keep& operator=(const Keep&) = delete;
    ~Keep() { hub_.stop(); }
    [[nodiscard]] const Address& address() const { return listener_.address(); }
    [[nodiscard]] int let_in() const { return let_in_; }

  private:
    void serve() {
        hub_.adopt();
        const Hub::Id id = hub_.add(listener_.descriptor(), [this] {
            while (auto link = listener_.try_accept()) {
                links_.push_back(std::move(*link));
                ++let_in_;
            }
        });
        EXPECT_EQ(hub_.run(base::Deadline::after(120s)), base::Status::closed);
        hub_.remove(id);
        hub_.adopt();
    }
    Listener listener_;
    std::vector<Link> links_;
    std::atomic<int> let_in_{0};
    Hub hub_;
    std::jthread thread_;
};

std::vector<std::byte> first_words() {
    Hello hello;
    hello.service = LinkOptions{}.service;
    hello.has_secret = true;
    hello.host = "somewhere";
    hello.device = "soft0";
    return encode(hello);
}

TEST(Siege, KeepsOutNobodyWhoKnowsTheSecret) {
    const ManyDescriptors enough{4096};
    if (!enough) GTEST_SKIP() << "needs 4,096 open files";
    Keep keep{knowing(known)};
    const std::vector<std::byte> words = first_words();
    std::vector<Stranger> silent, dripping;
    for (int i = 0; i < 750; ++i) {
        silent.push_back(Stranger::connect_to(keep.address()));
        // Nothing, a part of the frame's head, or half of what it holds.
        const auto quarters = static_cast<std::size_t>(i % 3);
        silent.back().say(std::span{words}.first(words.size() * quarters / 4));
    }
    for (int i = 0; i < 250; ++i) dripping.push_back(Stranger::connect_to(keep.address()));
    std::atomic<bool> over{false};
    std::atomic<int> refused{0};
    std::jthread drips{[&] {
        for (std::size_t at = 0; !over; at = (at + 1) % words.size()) {
            for (const Stranger& one : dripping) one.say(std::span{words}.subspan(at, 1));
            std::this_thread::sleep_for(10ms);
        }
    }};
    std::jthread guesses{[&] {
        do {
            try {
                (void)connect(keep.address(), knowing(guessed), soon());
                ADD_FAILURE() << "it was let in";
            } catch (const base::Error& error) {
                EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
                ++refused;
            }
        } while (!over);
    }};
    std::vector<Link> friends;
    std::chrono::nanoseconds longest{0};
    for (int i = 0; i < 20; ++i) {
        const auto start = base::Clock::now();
        friends.push_back(connect(keep.address(), knowing(known), soon()));
        longest = std::max<std::chrono::nanoseconds>(longest, base::Clock::now() - start);
        std::this_thread::sleep_for(10ms);
    }
    over = true;
    guesses.join();
    drips.join();
    EXPECT_TRUE(test::eventually([&] { return keep.let_in() == 20; })) << keep.let_in();
    EXPECT_GT(refused, 0);
    for (Link& one : friends) EXPECT_EQ(one.peer_now(), PeerState::alive);
    const auto took = static_cast<int>(longest / 1ms);
    testing::Test::RecordProperty("longest_join_ms", took);
    std::printf("the longest of 20 joins took %d ms; %d guesses were refused\n", took,
                refused.load());
}

}  // namespace
}  // namespace millrace::connect
