// How one that sends to several consumers waits until a full one may have room: within a call, or
// by a descriptor in a loop of the program's own. Used by FanOut, KeyedFanOut and Replicator.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/hub.hpp"

namespace millrace::flow::detail {

/// Any thread, one at a time. Calls that watch throw Error (resource_exhausted).
class RoomWaiter {
  public:
    explicit RoomWaiter(base::WaitPolicy policy) noexcept : policy_{policy} {}

    /// For the program's loop: readable until a call has found no room, which it must tell by
    /// watch_only() or watch_all() from now on, and again once there may be some. Also readable
    /// while `other` is, which says what else is due.
    [[nodiscard]] int descriptor(int other = -1);
    [[nodiscard]] bool has_descriptor() const noexcept { return has_descriptor_; }

    /// A call has found no room at the end of this descriptor, and may find some there alone.
    void watch_only(int descriptor);
    /// For every end: `add_each(add)` calls `add(descriptor)` for each of those that are
    /// left, and is asked once.
    template <class AddEach>
    void watch_all(AddEach&& add_each) {
        if (!std::exchange(watches_all_, true)) {
            add_each([this](int descriptor) { watch(descriptor); });
        }
        settle();
    }
    /// After one of these: the call is to be made again at that time, whatever comes until then.
    void wake_at(base::Clock::time_point time);
    /// Something is watched, or was.
    [[nodiscard]] bool is_used() const noexcept { return hub_ != nullptr; }
    /// The end of this descriptor goes, and the call is to be made again.
    void forget(int descriptor);

    /// Waits until `ready()`, which is asked again when one of those that are watched may have
    /// room.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline) {
        class Sleeper final : public base::Parker {
          public:
            explicit Sleeper(RoomWaiter& waiter) noexcept : waiter_{&waiter} {}
            void prepare() override {}
            void park(std::chrono::nanoseconds limit,
                      const base::Cancellation* cancellation) override {
                waiter_->rest(base::Deadline::after(limit).cancelled_by(cancellation));
            }
            void retract() override {}

          private:
            RoomWaiter* waiter_;
        };
        Sleeper sleeper{*this};
        return base::wait_until(std::forward<Ready>(ready), deadline, policy_, sleeper);
    }

  private:
    struct Watched {
        int descriptor;
        connect::Hub::Id id;
    };

    /// The hub, which belongs to the calling thread from now on.
    connect::Hub& hub();
    void watch(int descriptor);
    /// Makes the calls that were due.
    void settle();
    void rest(const base::Deadline& deadline);

    base::WaitPolicy policy_;
    std::unique_ptr<connect::Hub> hub_{};
    std::vector<Watched> watched_{};
    connect::Hub::Id alarm_{};
    bool watches_all_ = false;
    bool has_descriptor_ = false;
};

}  // namespace millrace::flow::detail
