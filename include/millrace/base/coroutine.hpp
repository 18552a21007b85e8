// Coroutines in one thread's event loop: tasks, and what they wait for. Included by programs that
// use them; nothing else of this library does.
//
//     base::Task<> greet(message::Channel& channel) {
//         std::vector<std::byte> message;
//         while (co_await message::receive(channel, message, Deadline::after(1s)) == Status::ok) …
//     }
//     connect::Hub hub;
//     base::spawn(hub, greet(channel));
//     (void)hub.run();
//
// The awaitable forms of an end's waiting operations lie beside the end (connect/coroutine.hpp,
// flow/coroutine.hpp, message/coroutine.hpp, stream/coroutine.hpp). They do what the waiting ones
// do, with the same answers, but give the thread to others meanwhile. An operation whose try_ form
// succeeds does not suspend and allocates nothing.
//
// Frames of tasks that have ended are kept, some of each size, for the next ones of the thread:
// what a program does again and again it does without allocating.
//
// A task may be destroyed whenever it is suspended: what it waits for is taken back, and its
// objects are destroyed as if an exception passed. docs/loops.md.
#pragma once

#include <chrono>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/cancellation_watch.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/executor.hpp"
#include "millrace/base/status.hpp"

namespace millrace::base {

template <class T>
class Task;

namespace detail {

/// One spawned task with all the tasks that it waits for: each of their frames is resumed through
/// it, so that nobody destroys them while one of them runs.
class Run : public std::enable_shared_from_this<Run> {
  public:
    /// Takes `root`, which has not begun.
    Run(Executor& executor, std::coroutine_handle<> root) noexcept
        : executor_{&executor}, root_{root} {}
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    ~Run() { destroy(); }

    [[nodiscard]] Executor& executor() const noexcept { return *executor_; }
    /// From now on a timer that is never due owns it: whoever removes that, or the executor's end,
    /// ends the task.
    Executor::Id keep();
    void begin() {
        if (root_) resume(root_);
    }
    /// Resumes `frame`, one of its own. Throws what ends the task.
    void resume(std::coroutine_handle<> frame);
    /// Destroys the frames; those that run, as soon as they are suspended.
    void end() noexcept {
        ended_ = true;
        if (!running_) destroy();
    }
    void finished(std::exception_ptr error) noexcept {
        finished_ = true;
        error_ = std::move(error);
    }

  private:
    void destroy() noexcept {
        if (const auto root = std::exchange(root_, {})) root.destroy();
    }

    Executor* executor_;
    std::coroutine_handle<> root_;
    Executor::Id keeper_{};
    bool running_ = false;
    bool ended_ = false;
    bool finished_ = false;
    std::exception_ptr error_;
};

/// What all frames know.
struct Promise {
    Run* run = nullptr;
    std::coroutine_handle<> waiting;  ///< for this one

    struct End {
        [[nodiscard]] bool await_ready() const noexcept { return false; }
        template <class Of>
        [[nodiscard]] std::coroutine_handle<> await_suspend(
            std::coroutine_handle<Of> ended) const noexcept {
            return ended.promise().waiting;
        }
        void await_resume() const noexcept {}
    };
    [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
    [[nodiscard]] End final_suspend() const noexcept { return {}; }

    /// Frames come from those of tasks that have ended in this thread (frame_pool.cpp).
    [[nodiscard]] static void* operator new(std::size_t size);
    static void operator delete(void* frame, std::size_t size) noexcept;
};

template <class T>
struct TaskPromise : Promise {
    [[nodiscard]] Task<T> get_return_object() noexcept;
    void unhandled_exception() noexcept { error = std::current_exception(); }
    template <class Value>
        requires std::is_constructible_v<T, Value&&>
    void return_value(Value&& value) {
        result.emplace(std::forward<Value>(value));
    }
    [[nodiscard]] T take() {
        if (error) std::rethrow_exception(error);
        return std::move(*result);
    }
    std::optional<T> result;
    std::exception_ptr error;
};

template <>
struct TaskPromise<void> : Promise {
    [[nodiscard]] Task<void> get_return_object() noexcept;
    void unhandled_exception() noexcept { error = std::current_exception(); }
    void return_void() const noexcept {}
    void take() const {
        if (error) std::rethrow_exception(error);
    }
    std::exception_ptr error;
};

}  // namespace detail

/// A coroutine that begins when it is awaited, or spawned, and gives a T (or nothing). Move-only;
/// destroys the coroutine. It, and all that it awaits, run in one executor's thread. What it throws
/// comes out of the co_await.
template <class T = void>
class [[nodiscard]] Task {
  public:
    using promise_type = detail::TaskPromise<T>;

    Task(Task&& other) noexcept : frame_{std::exchange(other.frame_, {})} {}
    Task& operator=(Task&& other) noexcept {
        std::swap(frame_, other.frame_);
        return *this;
    }
    ~Task() {
        if (frame_) frame_.destroy();
    }

    class Awaiter {
      public:
        explicit Awaiter(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
        [[nodiscard]] bool await_ready() const noexcept { return false; }
        template <std::derived_from<detail::Promise> Of>
        [[nodiscard]] std::coroutine_handle<> await_suspend(
            std::coroutine_handle<Of> waiting) const noexcept {
            frame_.promise().run = waiting.promise().run;
            frame_.promise().waiting = waiting;
            return frame_;
        }
        [[nodiscard]] T await_resume() const { return frame_.promise().take(); }

      private:
        std::coroutine_handle<promise_type> frame_;
    };
    /// Once.
    [[nodiscard]] Awaiter operator co_await() && noexcept { return Awaiter{frame_}; }

  private:
    friend promise_type;
    explicit Task(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
    std::coroutine_handle<promise_type> frame_;
};

/// Begins `task` in the executor's next turn, and owns it: to the end; or until it is removed by
/// the number that this gives, within itself, too; or the executor is destroyed. What it throws
/// comes out of the executor's call (of Hub::turn or run). Within the executor's thread only.
Executor::Id spawn(Executor& executor, Task<> task);

namespace detail {

template <class T>
Task<T> TaskPromise<T>::get_return_object() noexcept {
    return Task<T>{std::coroutine_handle<TaskPromise>::from_promise(*this)};
}
inline Task<void> TaskPromise<void>::get_return_object() noexcept {
    return Task<void>{std::coroutine_handle<TaskPromise>::from_promise(*this)};
}

/// A suspended coroutine that is registered with its executor: for a descriptor, for a time, for a
/// cancellation. Destroying it takes the registrations back.
class Waiting {
  public:
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

  protected:
    explicit Waiting(const Deadline& deadline) noexcept : deadline_{deadline} {}
    ~Waiting() { take_back(); }

    /// What is awaited may have come. True: it has, and the operation has its result.
    virtual bool look() = 0;
    /// False: the time is over already. Negative: no descriptor.
    [[nodiscard]] bool begin(Run& run, std::coroutine_handle<> frame, int descriptor);
    /// ok: look() said true. Throws what that threw.
    [[nodiscard]] Status outcome() const {
        if (error_) std::rethrow_exception(error_);
        return outcome_;
    }

  private:
    using Registration = std::optional<Executor::Id>;

    void watch();
    /// False: it cannot be told of, and is looked at by the clock.
    [[nodiscard]] bool watch_cancellation();
    void set_alarm();
    void readable();
    void alarmed();
    /// True: it was over, and the coroutine has gone on; this object may be gone, too.
    bool looked();
    void over(Status outcome);
    void take_back() noexcept;
    void take_back(Registration& registration) noexcept;

    Deadline deadline_;
    Run* run_ = nullptr;
    std::coroutine_handle<> frame_;
    int descriptor_ = -1;
    int copy_ = -1;  ///< of a descriptor that the executor has for somebody else
    Registration watching_;
    Registration alarm_;
    CancellationWatch cancellation_;
    std::uint32_t vain_looks_ = 0;
    std::chrono::nanoseconds nap_{0};
    bool looks_for_cancellation_ = false;
    Status outcome_ = Status::ok;
    std::exception_ptr error_;
};

/// A descriptor, or nothing but the time.
class ReadableAwaiter : public Waiting {
  public:
    ReadableAwaiter(int descriptor, const Deadline& deadline) noexcept
        : Waiting{deadline}, watched_{descriptor} {}
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <std::derived_from<Promise> Of>
    [[nodiscard]] bool await_suspend(std::coroutine_handle<Of> frame) {
        return begin(*frame.promise().run, frame, watched_);
    }
    Status await_resume() const { return outcome(); }

  protected:
    ~ReadableAwaiter() = default;

  private:
    bool look() override { return true; }
    int watched_;
};

struct StatusAwaiter final : ReadableAwaiter {
    using ReadableAwaiter::ReadableAwaiter;
};

struct SleepAwaiter final : ReadableAwaiter {
    explicit SleepAwaiter(const Deadline& deadline) noexcept : ReadableAwaiter{-1, deadline} {}
    void await_resume() const { (void)ReadableAwaiter::await_resume(); }
};

/// `end`: has a descriptor() that is readable when `attempt` may answer otherwise than not_yet.
template <class End, class Attempt>
class AttemptAwaiter final : public Waiting {
  public:
    AttemptAwaiter(End& end, Attempt attempt, const Deadline& deadline)
        : Waiting{deadline}, end_{&end}, attempt_{std::move(attempt)} {}
    [[nodiscard]] bool await_ready() { return look(); }
    template <std::derived_from<Promise> Of>
    [[nodiscard]] bool await_suspend(std::coroutine_handle<Of> frame) {
        return begin(*frame.promise().run, frame, end_->descriptor());
    }
    Status await_resume() const {
        const Status waited = outcome();
        return waited == Status::ok ? answer_ : waited;
    }

  private:
    bool look() override {
        if constexpr (std::is_same_v<std::invoke_result_t<Attempt&>, Status>) {
            answer_ = attempt_();
            return answer_ != Status::empty && answer_ != Status::full;
        } else {
            const std::optional<Status> answer = attempt_();
            answer_ = answer.value_or(Status::empty);
            return answer.has_value();
        }
    }
    End* end_;
    Attempt attempt_;
    Status answer_ = Status::empty;
};

}  // namespace detail

/// co_await: until the descriptor is readable (`ok`), `timed_out` or `cancelled`. It must stay open
/// meanwhile. Throws Error as Executor::add.
[[nodiscard]] inline detail::StatusAwaiter readable(int descriptor, const Deadline& deadline) {
    return {descriptor, deadline};
}

/// co_await: to the deadline (`timed_out`), or until it is `cancelled`.
[[nodiscard]] inline detail::StatusAwaiter sleep_until(const Deadline& deadline) {
    return {-1, deadline};
}
/// co_await: for so long.
[[nodiscard]] inline detail::SleepAwaiter sleep_for(std::chrono::nanoseconds time) {
    return detail::SleepAwaiter{Deadline::after(time)};
}

/// co_await: until `attempt()` answers something else than `empty` or `full`, which it answers
/// then; or `timed_out` or `cancelled`. Where it gives a std::optional, any answer is one. It is
/// asked at once, and whenever `end.descriptor()` is readable; where that is so again and again
/// without another answer, every 50 µs to 1 ms. What the awaitable forms of all ends are made of.
/// Throws what `attempt` throws.
template <class End, class Attempt>
[[nodiscard]] detail::AttemptAwaiter<End, Attempt> until_done(End& end, Attempt attempt,
                                                              const Deadline& deadline) {
    return {end, std::move(attempt), deadline};
}

}  // namespace millrace::base
