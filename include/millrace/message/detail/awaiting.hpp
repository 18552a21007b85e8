// What clients whose requests are awaited by coroutines have alike: the task that is suspended for
// a request, those that wait for a place in the window, and the client's part of the executor,
// which looks for answers when there is news, and ends what is over when its time has come. Used by
// rpc::AsyncClient and kv::AsyncClient.
#pragma once

#include <chrono>
#include <concepts>
#include <coroutine>
#include <memory>
#include <optional>

#include "millrace/base/clock.hpp"
#include "millrace/base/coroutine.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/cancellation_watch.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/executor.hpp"
#include "millrace/base/status.hpp"

namespace millrace::message::detail {

/// A task that waits, as long as its deadline allows: base of an awaiter. One thread, that of the
/// executor.
class Awaiting {
  public:
    Awaiting(const Awaiting&) = delete;
    Awaiting& operator=(const Awaiting&) = delete;

    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <std::derived_from<base::detail::Promise> Of>
    [[nodiscard]] bool await_suspend(std::coroutine_handle<Of> frame) {
        run_ = frame.promise().run;
        frame_ = frame;
        return begin();
    }
    [[nodiscard]] const base::Deadline& deadline() const noexcept { return deadline_; }
    /// `cancelled`, `timed_out`; `ok`: it may wait still.
    [[nodiscard]] base::Status why_over(base::Clock::time_point now) const noexcept {
        if (deadline_.cancelled()) return base::Status::cancelled;
        return deadline_.point() <= now ? base::Status::timed_out : base::Status::ok;
    }

  protected:
    explicit Awaiting(const base::Deadline& deadline) noexcept : deadline_{deadline} {}
    virtual ~Awaiting() = default;
    void go_on() const { run_->resume(frame_); }
    void end_watch() noexcept { cancellation_.end(); }

  private:
    friend class AwaitingCore;
    template <class T>
    friend class AwaitingList;
    /// False: it is over already, and the task goes on.
    [[nodiscard]] virtual bool begin() = 0;

    base::Deadline deadline_;
    base::CancellationWatch cancellation_;
    base::detail::Run* run_ = nullptr;
    std::coroutine_handle<> frame_;
    Awaiting* before_ = nullptr;  ///< of those in the same list
    Awaiting* behind_ = nullptr;
};

/// Those of type T that wait for a place, in their order. Owns nothing.
template <class T>
class AwaitingList {
  public:
    [[nodiscard]] T* first() const noexcept { return static_cast<T*>(first_); }
    [[nodiscard]] static T* after(const T& one) noexcept {
        return static_cast<T*>(static_cast<const Awaiting&>(one).behind_);
    }
    /// Null: at the end.
    void insert(T& one, T* next = nullptr) noexcept {
        Awaiting& inserted = one;
        Awaiting* const behind = next;
        Awaiting*& before = behind != nullptr ? behind->before_ : last_;
        inserted.before_ = before;
        inserted.behind_ = behind;
        (before != nullptr ? before->behind_ : first_) = &inserted;
        before = &inserted;
    }
    void erase(T& one) noexcept {
        const Awaiting& erased = one;
        (erased.before_ != nullptr ? erased.before_->behind_ : first_) = erased.behind_;
        (erased.behind_ != nullptr ? erased.behind_->before_ : last_) = erased.before_;
    }

  private:
    Awaiting* first_ = nullptr;
    Awaiting* last_ = nullptr;
};

/// One client in an executor. Held by a shared pointer, as a task that it resumes may destroy the
/// client.
class AwaitingCore : public std::enable_shared_from_this<AwaitingCore> {
  public:
    AwaitingCore(const AwaitingCore&) = delete;
    AwaitingCore& operator=(const AwaitingCore&) = delete;

    /// Takes one answer that is there, and resumes the task that waited for it. `ok`; `empty`;
    /// `closed`, `peer_lost`.
    virtual base::Status poll() = 0;
    [[nodiscard]] bool has_left() const noexcept { return has_left_; }

  protected:
    using Time = base::Clock::time_point;
    /// How long a wait takes at most to see what nobody tells of: a cancellation without a
    /// descriptor, and room in the server's ring.
    static constexpr std::chrono::milliseconds cancellation_slice{50};
    static constexpr std::chrono::milliseconds room_slice{1};

    explicit AwaitingCore(base::Executor& executor) noexcept : executor_{&executor} {}
    virtual ~AwaitingCore() = default;  // leave() came before
    [[nodiscard]] base::Executor& executor() const noexcept { return *executor_; }

    /// Nothing calls this any more.
    void leave() noexcept {
        unwatch();
        take_back(alarm_);
        has_left_ = true;
    }
    /// From now on readable() is called whenever the descriptor is. Throws Error as Executor::add.
    void watch(int descriptor) {
        watching_ = executor_->add(descriptor, [this] { readable(); });
    }
    void unwatch() noexcept { take_back(watching_); }
    /// For its cancellation, if it can be cancelled.
    void watch(Awaiting& one) {
        if (one.deadline_.cancellation() == nullptr) return;
        const bool is_watched = one.cancellation_.begin(*executor_, *one.deadline_.cancellation(),
                                                        [core = weak_from_this()] {
                                                            if (const auto alive = core.lock())
                                                                alive->look_around();
                                                        });
        if (!is_watched) looks_for_cancellations_ = true;
    }
    /// When cancellations are to be looked at by the clock, if `are_some` of what waits.
    [[nodiscard]] Time cancellation_due(bool are_some) const noexcept {
        return looks_for_cancellations_ && are_some ? base::Clock::now() + cancellation_slice
                                                    : Time::max();
    }
    [[nodiscard]] Time cancellation_due(const base::Deadline& of) const noexcept {
        return cancellation_due(of.cancellation() != nullptr);
    }
    /// Polls as long as there are answers, but for the turns of others.
    void readable();
    /// Ends what is over. Only while somebody holds this.
    void look_around() {
        if (has_left_) return;
        end_what_is_over();
        set_alarm();
    }
    void set_alarm();

  private:
    using Registration = std::optional<base::Executor::Id>;

    virtual void end_what_is_over() = 0;
    /// When that has something to do next; max(): never.
    [[nodiscard]] virtual Time due() = 0;
    void take_back(Registration& registration) noexcept {
        if (registration.has_value()) (void)executor_->remove(*registration);
        registration.reset();
    }

    base::Executor* executor_;
    Registration watching_;
    Registration alarm_;
    Time alarm_at_{};
    bool has_left_ = false;
    bool looks_for_cancellations_ = false;  ///< by the clock: there was no descriptor for one
};

}  // namespace millrace::message::detail
