// A bell's number stands in memory that other processes write to: whatever it says, only a bell is
// rung.
#include "system/bells.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>

#include "completion/ringing.hpp"
#include "rpc/allocations.hpp"

namespace millrace::soft {
namespace {

TEST(Bells, AreOpenedByTheirNumbers) {
    const Descriptor bell = new_bell();
    Bells bells;
    const auto opened = bells.open(getpid(), bell.get());
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(bells.open(getpid(), bell.get()), opened);
    EXPECT_FALSE(drain_bell(bell.get()));
    ring_bell(opened->get());
    EXPECT_TRUE(drain_bell(bell.get()));
}

TEST(Bells, AreNotThePipesOfTheProgram) {
    std::array<int, 2> ends{-1, -1};
    ASSERT_EQ(::pipe(ends.data()), 0);
    const Descriptor reading{ends[0]}, writing{ends[1]};
    Bells bells;
    EXPECT_EQ(bells.open(getpid(), reading.get()), nullptr);
    EXPECT_EQ(bells.open(getpid(), writing.get()), nullptr);
}

TEST(Bells, AreNotWhatIsNotOpen) {
    Bells bells;
    EXPECT_EQ(bells.open(getpid(), -1), nullptr);
    EXPECT_EQ(bells.open(getpid(), 1 << 20), nullptr);
}

TEST(Bells, AreRungWhereThereIsNoMemoryToKeepThem) {
    std::uint64_t others = 0;
    for (bool has_failed = true; has_failed; ++others) {
        const Descriptor bell = new_bell();
        Bells bells;
        std::shared_ptr<const Descriptor> opened;
        {
            const rpc::FailingAllocation failing{others};
            opened = bells.open(getpid(), bell.get());
            has_failed = failing.has_failed();
        }
        EXPECT_EQ(opened != nullptr, !has_failed);
        EXPECT_EQ(drain_bell(bell.get()), has_failed);
        EXPECT_NE(bells.open(getpid(), bell.get()), nullptr) << "for the next ring";
    }
    EXPECT_GT(others, 1U);
}

}  // namespace
}  // namespace millrace::soft
