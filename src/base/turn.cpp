// Sleeping for a Turn, see the header: a queue of those that sleep, each with a bell of its own.
#include "millrace/base/detail/turn.hpp"

#include <chrono>
#include <mutex>
#include <new>
#include <utility>

namespace millrace::base {

void Turn::Sleeper::prepare() {
    bell_.announce();
    {
        const std::lock_guard lock{turn_.mutex_};
        turn_.enqueue(*this);
    }
    turn_.sleepers_.fetch_add(1, std::memory_order_seq_cst);
}

void Turn::Sleeper::park(std::chrono::nanoseconds limit, const Cancellation* cancellation) {
    bell_.sleep(limit, cancellation);
}

void Turn::Sleeper::retract() {
    turn_.sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    {
        const std::lock_guard lock{turn_.mutex_};
        turn_.unqueue(*this);
    }
    bell_.retract();
}

void Turn::become_copy() noexcept {
    new (&mutex_) std::mutex;
    first_ = last_ = nullptr;
    sleepers_.store(0, std::memory_order_relaxed);
    taken_.store(false, std::memory_order_relaxed);
}

void Turn::enqueue(Sleeper& sleeper) noexcept {
    sleeper.before_ = std::exchange(last_, &sleeper);
    (sleeper.before_ != nullptr ? sleeper.before_->behind_ : first_) = &sleeper;
    sleeper.is_queued_ = true;
}

void Turn::unqueue(Sleeper& sleeper) noexcept {
    if (!std::exchange(sleeper.is_queued_, false)) return;
    Sleeper* const before = std::exchange(sleeper.before_, nullptr);
    Sleeper* const behind = std::exchange(sleeper.behind_, nullptr);
    (before != nullptr ? before->behind_ : first_) = behind;
    (behind != nullptr ? behind->before_ : last_) = before;
}

void Turn::wake_one() noexcept {
    // Under the lock, so that the sleeper does not go meanwhile. It tries to take the turn behind
    // this, be it that its time is over: wait_until sees to that.
    const std::lock_guard lock{mutex_};
    if (first_ == nullptr) return;
    Sleeper& sleeper = *first_;
    unqueue(sleeper);
    sleeper.bell_.ring();
}

}  // namespace millrace::base
