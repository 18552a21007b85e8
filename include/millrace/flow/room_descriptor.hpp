// The one descriptor of who sends to several consumers, each of which has a descriptor of its own.
// Used by FanOut, KeyedFanOut and Replicator.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/connect/hub.hpp"

namespace millrace::flow::detail {

/// Readable until a call has found no room, and again once there may be some at one of the ends
/// where that call looked. One thread at a time.
class RoomDescriptor {
  public:
    RoomDescriptor() = default;
    /// In the hub that the owner sleeps in, so that it is readable for what else is due there.
    explicit RoomDescriptor(connect::Hub& hub) noexcept : hub_{&hub} {}

    /// From now on found_full() is to be called. Throws Error (resource_exhausted).
    [[nodiscard]] int get();
    [[nodiscard]] bool is_used() const noexcept { return is_used_; }
    /// A call has answered `full`, after it looked at the ends of these descriptors.
    void found_full(std::span<const int> descriptors);
    /// The call is to be made again at that time, whatever comes until then.
    void wake_at(base::Clock::time_point time);
    /// The end of this one goes, and the call is to be made again.
    void forget(int descriptor);

  private:
    struct Watched {
        int descriptor;
        connect::Hub::Id id;
    };

    std::unique_ptr<connect::Hub> own_{};
    connect::Hub* hub_ = nullptr;
    bool is_used_ = false;
    connect::Hub::Id alarm_{};
    std::vector<Watched> watched_{};
};

}  // namespace millrace::flow::detail
