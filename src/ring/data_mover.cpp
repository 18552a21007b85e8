// The data mover's thread, see the header.
#include "millrace/ring/detail/data_mover.hpp"

#include <algorithm>
#include <cstdint>
#include <new>

#include <pthread.h>
#include <sched.h>

#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/signals.hpp"

namespace millrace::ring::detail {

/// Sleeps until notified; or naps, while something is on its way.
class DataMover::MoverParker final : public base::Parker {
  public:
    explicit MoverParker(DataMover& mover) noexcept : mover_{&mover} {}
    void prepare() override { mover_->bell_.announce(); }
    void park(std::chrono::nanoseconds limit, const base::Cancellation* /*none*/) override {
        using namespace std::chrono_literals;
        if (waiting) {
            nap_ = std::clamp<std::chrono::nanoseconds>(nap_ * 2, 20us, 1ms);
        } else {
            nap_ = limit;
            mover_->sleeps_.fetch_add(1, std::memory_order_relaxed);
        }
        mover_->bell_.sleep(std::min(nap_, limit));
        if (!waiting) nap_ = {};
    }
    void retract() override { mover_->bell_.retract(); }
    void wake_up() noexcept { nap_ = {}; }

    bool waiting = false;

  private:
    DataMover* mover_;
    std::chrono::nanoseconds nap_{0};
};

namespace {

std::mutex current_mutex;
std::weak_ptr<DataMover> current_mover;

/// The thread is the parent's, and another one of its threads may have held the lock.
void forget_in_child() noexcept {
    new (&current_mutex) std::mutex;
    new (&current_mover) std::weak_ptr<DataMover>;
}

}  // namespace

std::shared_ptr<DataMover> DataMover::of_this_process() {
    static const int handler = pthread_atfork(nullptr, nullptr, &forget_in_child);
    static_cast<void>(handler);
    const std::lock_guard lock{current_mutex};
    std::shared_ptr<DataMover> mover = current_mover.lock();
    if (mover == nullptr) current_mover = mover = std::make_shared<DataMover>();
    return mover;
}

void DataMover::forget(std::shared_ptr<DataMover>& mover) noexcept {
    new (&mover) std::shared_ptr<DataMover>;
}

DataMover::DataMover() {
    const base::SignalsBlocked blocked;
    thread_ = std::thread{[this] { run(); }};
    (void)pthread_setname_np(thread_.native_handle(), "millrace-mover");
}

DataMover::~DataMover() {
    stopping_.store(true, std::memory_order_seq_cst);
    bell_.ring();
    thread_.join();
}

std::unique_lock<std::mutex> DataMover::pause() noexcept {
    pausing_.fetch_add(1, std::memory_order_relaxed);
    std::unique_lock lock{flows_mutex_};
    pausing_.fetch_sub(1, std::memory_order_relaxed);
    return lock;
}

void DataMover::add(MovedFlow& flow) {
    const auto lock = pause();
    flows_.push_back(&flow);
}

void DataMover::remove(MovedFlow& flow) noexcept {
    const auto lock = pause();
    std::erase(flows_, &flow);
}

MovedFlow::Next DataMover::pass() noexcept {
    // A mutex goes to whoever asks first after it was let go, and that would be this loop.
    if (pausing_.load(std::memory_order_relaxed) != 0) {
        sched_yield();
        base::count_system_call();
    }
    const std::lock_guard lock{flows_mutex_};
    auto next = MovedFlow::Next::idle;
    for (MovedFlow* const flow : flows_) next = std::min(next, flow->move());
    return next;
}

void DataMover::run() noexcept {
    // Spinning would keep a thread that shares the core from filling the next batch.
    const base::WaitPolicy policy{.spin = std::chrono::microseconds{1},
                                  .yield = std::chrono::microseconds{200},
                                  .sleep = true};
    MoverParker parker{*this};
    while (!stopping_.load(std::memory_order_seq_cst)) {
        (void)base::wait_until(
            [&] {
                const MovedFlow::Next next = pass();
                parker.waiting = next == MovedFlow::Next::waiting;
                return next == MovedFlow::Next::moved || stopping_.load(std::memory_order_seq_cst);
            },
            base::Deadline::never(), policy, parker);
        parker.wake_up();
    }
}

}  // namespace millrace::ring::detail
