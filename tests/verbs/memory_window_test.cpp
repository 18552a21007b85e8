// Memory windows of type 2, over any device that has them.
#include "millrace/verbs/memory_window.hpp"

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "loopback.hpp"
#include "millrace/base/deadline.hpp"

namespace millrace::verbs::test {
namespace {

class Windows : public testing::Test {
  protected:
    void SetUp() override {
        if (!has_windows(loopback.context)) GTEST_SKIP() << "this device has no windows";
        window = MemoryWindow::allocate(loopback.domain);
    }
    /// b, the owner, posts it and waits.
    template <class Request>
    ibv_wc_status done(const Request& request) {
        if (loopback.b.queue_pair.post(request) != 0) return IBV_WC_GENERAL_ERR;
        return next(loopback.b.sends).raw.status;
    }
    /// a WRITEs 8 bytes there.
    ibv_wc_status write(RemoteAddress to) {
        const ibv_sge from = loopback.a.memory.slice(0, 8);
        if (loopback.a.queue_pair.post(
                Write{.from = {&from, 1}, .to = to, .flags = SendFlags::signaled}) != 0) {
            return IBV_WC_GENERAL_ERR;
        }
        return next(loopback.a.sends).raw.status;
    }
    [[nodiscard]] const MemoryRegion& region() const { return loopback.b.memory.region(); }

    // No peer may do anything with the regions themselves.
    Loopback loopback{true, everything, Access::local_write | shown_by_windows};
    MemoryWindow window;
};

TEST_F(Windows, ShowAPeerWhatTheirRegionsHide) {
    loopback.a.memory.data()[0] = std::byte{42};
    ASSERT_EQ(done(window.show(region(), 4096, 64, Access::remote_write)), IBV_WC_SUCCESS);
    EXPECT_EQ(write(window.remote() + 56), IBV_WC_SUCCESS);
    EXPECT_EQ(loopback.b.memory.data()[4096 + 56], std::byte{42});
}

TEST_F(Windows, ShowNothingBesideIt) {
    ASSERT_EQ(done(window.show(region(), 4096, 64, Access::remote_write)), IBV_WC_SUCCESS);
    EXPECT_EQ(write(window.remote() + 60), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, ShowNothingOnceTheyAreHidden) {
    ASSERT_EQ(done(window.show(region(), 0, 64, Access::remote_write)), IBV_WC_SUCCESS);
    ASSERT_EQ(done(window.hide()), IBV_WC_SUCCESS);
    EXPECT_EQ(write(window.remote()), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, ShowSomethingElseByAnotherKey) {
    ASSERT_EQ(done(window.show(region(), 0, 64, Access::remote_write)), IBV_WC_SUCCESS);
    const RemoteAddress before = window.remote();
    ASSERT_EQ(done(window.hide()), IBV_WC_SUCCESS);
    ASSERT_EQ(done(window.show(region(), 128, 64, Access::remote_write)), IBV_WC_SUCCESS);
    EXPECT_NE(window.remote().rkey, before.rkey);
    EXPECT_EQ(write(window.remote()), IBV_WC_SUCCESS);
    EXPECT_EQ(write(before), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, GiveNoMoreThanTheyWereTold) {
    ASSERT_EQ(done(window.show(region(), 0, 64, Access::remote_read)), IBV_WC_SUCCESS);
    EXPECT_EQ(write(window.remote()), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, KeepTheMemoryThatTheyShowUntilTheyAreHidden) {
    const std::byte* data = nullptr;
    {
        const RegisteredBuffer buffer =
            loopback.domain.allocate(8192, Access::local_write | shown_by_windows);
        data = buffer.data();
        ASSERT_EQ(done(window.show(buffer.region(), 0, 64, Access::remote_write)), IBV_WC_SUCCESS);
    }
    const auto is_there = [&] {
        unsigned char resident = 0;
        return mincore(const_cast<std::byte*>(data), 4096, &resident) == 0;
    };
    EXPECT_TRUE(is_there()) << "a peer may still write there";
    ASSERT_EQ(done(window.hide()), IBV_WC_SUCCESS);
    // It is tried again when something else is registered.
    const base::Deadline patience = base::Deadline::after(std::chrono::seconds{40});
    while (is_there() && !patience.expired()) {
        static_cast<void>(loopback.domain.allocate(4096, Access::none));
    }
    EXPECT_FALSE(is_there());
}

TEST_F(Windows, MoveWithTheirKeys) {
    ASSERT_EQ(done(window.show(region(), 0, 64, Access::remote_write)), IBV_WC_SUCCESS);
    const MemoryWindow moved{std::move(window)};
    EXPECT_EQ(window.raw(), nullptr);
    EXPECT_EQ(write(moved.remote()), IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace millrace::verbs::test
