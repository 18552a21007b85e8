// Sleeping for a Turn, see the header.
#include "millrace/base/turn.hpp"

#include <chrono>
#include <mutex>

#include "millrace/base/system_calls.hpp"

namespace millrace::base {

void Turn::Sleeper::prepare() {
    {
        const std::lock_guard lock{turn_.mutex_};
        seen_ = turn_.wakes_;
    }
    turn_.sleepers_.fetch_add(1, std::memory_order_seq_cst);
}

void Turn::Sleeper::park(std::chrono::nanoseconds limit) {
    std::unique_lock lock{turn_.mutex_};
    count_system_call();
    turn_.given_back_.wait_for(lock, limit, [&] { return turn_.wakes_ != seen_; });
}

void Turn::Sleeper::retract() { turn_.sleepers_.fetch_sub(1, std::memory_order_seq_cst); }

void Turn::wake_one() noexcept {
    {
        const std::lock_guard lock{mutex_};
        ++wakes_;
    }
    count_system_call();
    given_back_.notify_one();
}

}  // namespace millrace::base
