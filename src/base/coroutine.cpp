// What of coroutines depends on no type: their runs and their registrations.
#include "millrace/base/coroutine.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "millrace/base/standard_streams.hpp"

namespace millrace::base {
namespace detail {
namespace {

/// A cancellation that cannot be told of, for lack of a descriptor, is looked at so often.
constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds{50};
/// A descriptor that has been readable so often in vain is looked at by the clock: an end stays
/// readable for a while behind its last item, and a channel as long as messages lie in it, which
/// say nothing to who waits for room.
constexpr std::uint32_t most_vain_looks = 64;
constexpr std::chrono::nanoseconds shortest_nap = std::chrono::microseconds{50};
constexpr std::chrono::nanoseconds longest_nap = std::chrono::milliseconds{1};

}  // namespace

Executor::Id Run::keep() {
    struct Keeper {
        std::shared_ptr<Run> run;
        explicit Keeper(std::shared_ptr<Run> kept) : run{std::move(kept)} {}
        Keeper(const Keeper&) = delete;
        Keeper& operator=(const Keeper&) = delete;
        ~Keeper() { run->end(); }
    };
    keeper_ = executor_->at(Clock::time_point::max(),
                            [keeper = std::make_shared<Keeper>(shared_from_this())] {});
    return keeper_;
}

void Run::resume(std::coroutine_handle<> frame) {
    const std::shared_ptr<Run> alive = shared_from_this();
    running_ = true;
    frame.resume();
    running_ = false;
    // Its keeper goes, and with it the frames.
    if (finished_ && !ended_) (void)executor_->remove(keeper_);
    if (ended_) destroy();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool Waiting::begin(Run& run, std::coroutine_handle<> frame, int descriptor) {
    if (deadline_.cancelled() || deadline_.expired()) {
        outcome_ = deadline_.cancelled() ? Status::cancelled : Status::timed_out;
        return false;
    }
    run_ = &run;
    frame_ = frame;
    descriptor_ = descriptor;
    looks_for_cancellation_ = !watch_cancellation();
    if (descriptor_ >= 0) watch();
    set_alarm();
    return true;
}

void Waiting::watch() {
    Executor& executor = run_->executor();
    try {
        watching_ = executor.add(copy_ >= 0 ? copy_ : descriptor_, [this] { readable(); });
    } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_argument || copy_ >= 0) throw;
        // Another task waits for the same end, to read what this one writes for example: an epoll
        // takes a descriptor once, and a copy of it as another one.
        copy_ = above_standard_streams(fcntl(descriptor_, F_DUPFD_CLOEXEC, 0));
        if (copy_ < 0) throw;
        watching_ = executor.add(copy_, [this] { readable(); });
    }
}

bool Waiting::watch_cancellation() {
    const Cancellation* const cancellation = deadline_.cancellation();
    return cancellation == nullptr ||
           cancellation_.begin(run_->executor(), *cancellation, [this] { over(Status::cancelled); });
}

/// For what comes first: the deadline, a look at the cancellation, the end of a nap.
void Waiting::set_alarm() {
    auto delay = deadline_.remaining();
    if (looks_for_cancellation_) delay = std::min(delay, slice);
    if (nap_.count() != 0 && !watching_.has_value()) delay = std::min(delay, nap_);
    if (delay == std::chrono::nanoseconds::max()) return;
    alarm_ = run_->executor().at(Deadline::after(delay).point(), [this] { alarmed(); });
}

void Waiting::readable() {
    if (looked()) return;
    if (++vain_looks_ < most_vain_looks) return;
    take_back(watching_);
    take_back(alarm_);
    nap_ = nap_.count() == 0 ? shortest_nap : std::min(2 * nap_, longest_nap);
    set_alarm();
}

void Waiting::alarmed() {
    alarm_.reset();
    const bool napped = descriptor_ >= 0 && !watching_.has_value();
    if (napped && looked()) return;
    if (deadline_.cancelled()) return over(Status::cancelled);
    if (deadline_.expired()) return over(Status::timed_out);
    if (napped) {
        // Readable still: it is no news, and the next nap is a longer one.
        vain_looks_ = most_vain_looks - 1;
        watch();
    }
    set_alarm();
}

bool Waiting::looked() {
    try {
        if (!look()) return false;
    } catch (...) {
        error_ = std::current_exception();
    }
    over(Status::ok);
    return true;
}

void Waiting::over(Status outcome) {
    outcome_ = outcome;
    take_back();
    run_->resume(frame_);
}

void Waiting::take_back() noexcept {
    take_back(watching_);
    take_back(alarm_);
    cancellation_.end();
    if (copy_ >= 0) close(std::exchange(copy_, -1));
}

void Waiting::take_back(Registration& registration) noexcept {
    if (!registration.has_value()) return;
    (void)run_->executor().remove(*registration);
    registration.reset();
}

namespace {

/// The frame around a spawned task: it has no one to give a result to but its run.
struct Root {
    struct promise_type : Promise {
        [[nodiscard]] Root get_return_object() noexcept {
            return {std::coroutine_handle<promise_type>::from_promise(*this)};
        }
        [[nodiscard]] std::suspend_always final_suspend() const noexcept { return {}; }
        void unhandled_exception() const noexcept { run->finished(std::current_exception()); }
        void return_void() const noexcept { run->finished(nullptr); }
    };
    std::coroutine_handle<promise_type> frame;
};

Root root_of(Task<> task) { co_await std::move(task); }

}  // namespace
}  // namespace detail

Executor::Id spawn(Executor& executor, Task<> task) {
    const detail::Root root = detail::root_of(std::move(task));
    const auto run = std::make_shared<detail::Run>(executor, root.frame);
    root.frame.promise().run = run.get();
    const Executor::Id kept = run->keep();
    executor.post([run] { run->begin(); });
    return kept;
}

}  // namespace millrace::base
