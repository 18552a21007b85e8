// What a device does not release yet, and is tried again.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "kept.hpp"
#include "millrace/base/deadline.hpp"
#include "support/forked.hpp"

namespace millrace::verbs {
namespace {

using namespace std::chrono_literals;

TEST(KeptThings, OfAParentAreNoneOfItsChildWhoeverIsAtThemMeanwhile) {
    std::promise<void> is_at_them;
    std::promise<void> may_go_on;
    keep(nullptr, [&] {
        is_at_them.set_value();
        may_go_on.get_future().wait();
        return true;
    });
    auto entered = is_at_them.get_future();
    std::thread trying{[&] {
        // Another test may have tried a moment ago.
        const auto deadline = base::Deadline::after(40s);
        while (entered.wait_for(0s) != std::future_status::ready && !deadline.expired()) {
            try_kept();
            std::this_thread::sleep_for(10ms);
        }
    }};
    EXPECT_EQ(entered.wait_for(40s), std::future_status::ready);
    EXPECT_EQ(millrace::test::in_forked_child(
                  [](millrace::test::Complaints& complaints) {
                      bool is_called = false;
                      forget_kept(nullptr);
                      keep(nullptr, [&] { return is_called = true; });
                      try_kept();
                      std::this_thread::sleep_for(100ms);
                      try_kept();
                      complaints.unless(is_called, "its own is not called");
                  },
                  20),
              "");
    may_go_on.set_value();
    trying.join();
}

}  // namespace
}  // namespace millrace::verbs
