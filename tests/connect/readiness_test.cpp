// Readiness: descriptors that a parker lets sleep, nap or look.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "millrace/connect/readiness.hpp"
#include "support/readable.hpp"
#include "support/resources.hpp"

namespace millrace::connect {
namespace {

using namespace std::chrono_literals;
using millrace::test::becomes_readable;
using millrace::test::is_readable;

/// Answers as it is told.
class Told final : public base::StandingParker {
  public:
    void prepare() override {}
    void park(std::chrono::nanoseconds /*limit*/,
              const base::Cancellation* /*cancellation*/) override {}
    void retract() override {}
    [[nodiscard]] Rest settle() override { return rest; }
    void woken(Rest /*from*/) override {}
    [[nodiscard]] std::chrono::nanoseconds longest_sleep() const noexcept override {
        return longest;
    }

    Rest rest = Rest::sleep;
    std::chrono::nanoseconds longest = Readiness::until_woken;
};

TEST(Readiness, NapsForShortAgainBehindASleep) {
    Told parker;
    Readiness readiness{{}, std::chrono::nanoseconds{0}};
    const auto nothing = [] { return false; };
    for (int round = 0; round < 3; ++round) {
        parker.rest = Told::Rest::nap;
        for (int i = 0; i < 10; ++i) {
            readiness.rest(parker, nothing);
            EXPECT_TRUE(becomes_readable(readiness.descriptor(), 20s));
        }
        EXPECT_EQ(parker.next_nap(), 1ms);
        parker.rest = Told::Rest::sleep;
        readiness.rest(parker, nothing);
        EXPECT_FALSE(is_readable(readiness.descriptor()));
        EXPECT_EQ(parker.next_nap(), 20us);
    }
}

TEST(Readiness, SleepsNoLongerThanItsParkerAllows) {
    Told parker;
    Readiness readiness{{}, std::chrono::nanoseconds{0}};
    const auto nothing = [] { return false; };
    parker.longest = 2ms;
    readiness.rest(parker, nothing);
    EXPECT_TRUE(becomes_readable(readiness.descriptor(), 20s));
    readiness.rest(parker, nothing, 1h);
    EXPECT_TRUE(becomes_readable(readiness.descriptor(), 20s));
    parker.longest = 0ms;
    readiness.rest(parker, nothing);
    EXPECT_TRUE(is_readable(readiness.descriptor()));
    parker.longest = Readiness::until_woken;
    readiness.rest(parker, nothing);
    EXPECT_FALSE(is_readable(readiness.descriptor()));
}

/// Both ends of a connection within this process.
struct Sockets {
    Sockets() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0); }
    Sockets(const Sockets&) = delete;
    Sockets& operator=(const Sockets&) = delete;
    ~Sockets() {
        for (const int end : ends) close(end);
    }
    void fill() const {
        const std::vector<char> much(64 * 1024);
        while (write(ends[0], much.data(), much.size()) > 0) {
        }
    }
    int ends[2]{};
};

TEST(Readiness, TakesNoTimerBesideAQuietSocketUntilItNaps) {
    const Sockets sockets;
    Told parker;
    const auto nothing = [] { return false; };
    const std::size_t before = millrace::test::open_descriptors();
    Readiness readiness{std::span{sockets.ends, 1}, 0ns};
    EXPECT_EQ(millrace::test::open_descriptors(), before + 1);
    for (int round = 0; round < 3; ++round) {
        EXPECT_TRUE(is_readable(readiness.descriptor()));
        readiness.rest(parker, nothing);
        EXPECT_FALSE(is_readable(readiness.descriptor()));
        EXPECT_EQ(write(sockets.ends[1], "x", 1), 1) << "news";
        EXPECT_TRUE(is_readable(readiness.descriptor()));
        char taken = 0;
        EXPECT_EQ(read(sockets.ends[0], &taken, 1), 1);
        EXPECT_FALSE(is_readable(readiness.descriptor()));
        readiness.end(parker);
        readiness.wake();
    }
    EXPECT_EQ(millrace::test::open_descriptors(), before + 1);
    parker.rest = Told::Rest::nap;
    readiness.rest(parker, nothing);
    EXPECT_TRUE(becomes_readable(readiness.descriptor(), 20s));
    EXPECT_EQ(millrace::test::open_descriptors(), before + 2);
}

TEST(Readiness, IsAwakeThoughItsSocketIsFull) {
    const Sockets sockets;
    Told parker;
    const auto nothing = [] { return false; };
    Readiness readiness{std::span{sockets.ends, 1}, 0ns};
    readiness.rest(parker, nothing);
    EXPECT_FALSE(is_readable(readiness.descriptor()));
    sockets.fill();
    readiness.end(parker);
    readiness.wake();
    EXPECT_TRUE(becomes_readable(readiness.descriptor(), 20s));
    readiness.rest(parker, nothing);
    EXPECT_FALSE(is_readable(readiness.descriptor()));
}

TEST(Readiness, IsAwakeByATimerWhereSocketsFill) {
    const Sockets sockets;
    const Readiness readiness{std::span{sockets.ends, 1}, 0ns, Readiness::Alarm::timer};
    sockets.fill();
    EXPECT_TRUE(becomes_readable(readiness.descriptor(), 20s));
}

}  // namespace
}  // namespace millrace::connect
