// Readiness: descriptors that a parker lets sleep, nap or look.
#include <gtest/gtest.h>

#include <chrono>

#include "millrace/connect/readiness.hpp"
#include "support/readable.hpp"

namespace millrace::connect {
namespace {

using namespace std::chrono_literals;
using millrace::test::becomes_readable;
using millrace::test::is_readable;

/// Answers as it is told.
class Told final : public base::StandingParker {
  public:
    void prepare() override {}
    void park(std::chrono::nanoseconds /*limit*/) override {}
    void retract() override {}
    [[nodiscard]] Rest settle() override { return rest; }
    void woken(Rest /*from*/) override {}

    Rest rest = Rest::sleep;
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

}  // namespace
}  // namespace millrace::connect
