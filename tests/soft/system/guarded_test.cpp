// What a lock guards is reached by its holder alone.
#include "system/guarded.hpp"

#include <type_traits>

#include <gtest/gtest.h>

#include "system/spin_lock.hpp"

namespace {

namespace soft = millrace::soft;

struct Sum {
    int value = 0;
};
using Proof = soft::Held<Sum>;

// Nobody makes a proof but the lock, and to hand it on costs no register.
static_assert(!std::is_default_constructible_v<Proof> && !std::is_aggregate_v<Proof>);
static_assert(std::is_empty_v<Proof> && std::is_trivially_copyable_v<Proof>);

void add(soft::Guarded<Sum, soft::SpinLock>& sum, Proof held) { ++sum(held).value; }

TEST(Guarded, IsReachedByItsHolder) {
    soft::Guarded<Sum, soft::SpinLock> sum;
    {
        const auto held = sum.hold();
        add(sum, held);
        EXPECT_EQ(held->value, 1);
    }
    EXPECT_EQ(sum.hold()->value, 1);
}

TEST(Guarded, IsNotHeldTwice) {
    soft::Guarded<Sum, soft::SpinLock> sum;
    {
        const auto held = sum.hold();
        EXPECT_FALSE(sum.try_hold());
    }
    EXPECT_TRUE(sum.try_hold());
}

}  // namespace
