// Where many ends of flow queues come in, and the one hub that their owner sleeps in. What FanIn
// and Replicator have in common. Not for use by itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"

namespace millrace::flow::detail {

/// One thread: the hub's.
class Door {
  public:
    /// Nobody comes in.
    Door();
    /// Throws Error as Listener::listen. `most`: peers at a time.
    Door(const connect::Address& address, Options options, std::uint32_t most);

    /// Only if somebody may come in.
    [[nodiscard]] Listener& listener() noexcept { return *listener_; }
    [[nodiscard]] const Listener& listener() const noexcept { return *listener_; }
    [[nodiscard]] bool has_listener() const noexcept { return listener_.has_value(); }
    [[nodiscard]] connect::Hub& hub() noexcept { return hub_; }
    /// A look at the kernel is due: each millisecond.
    [[nodiscard]] bool is_due() const noexcept;
    /// Looks. True: somebody may have come.
    [[nodiscard]] bool look();
    /// Sleeps until something is due in the hub.
    void rest(const base::Deadline& deadline);
    void stop_accepting();
    /// Throws Error (invalid_argument): it is another thread's.
    void check_thread(const char* attempted) const;

  private:
    connect::Hub hub_;
    std::optional<Listener> listener_;
    std::optional<connect::Hub::Id> accepting_;
    bool somebody_came_ = false;
    bool must_look_ = true;
    std::uint64_t looked_at_ = 0;
    std::uint64_t period_;
};

/// Ends that sleep in a hub are awake no longer than that says.
[[nodiscard]] Options without_spin(Options options);

}  // namespace millrace::flow::detail
