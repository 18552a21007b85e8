// How long a request lay unread, of a client whose clock began at another time: the difference of
// the two clocks is known up to the shortest way that a request has taken, which is counted as
// none. So a request is never taken for later than it is, but for what the clocks run apart
// meanwhile: the least difference grows by 200 parts of a million, more than clocks of computers
// differ.
#pragma once

#include <algorithm>
#include <cstdint>

namespace millrace::rpc {

/// Of one client.
class Lateness {
  public:
    /// Nanoseconds that a request, stamped at `sent_at` by the client's clock, has lain unread at
    /// `now`. Any numbers.
    [[nodiscard]] std::uint64_t age(std::uint64_t sent_at, std::uint64_t now) noexcept {
        const std::uint64_t difference = now - sent_at;
        const auto passed = static_cast<std::int64_t>(now - grown_at_);
        if (known_ && passed > 0) {
            // What is less than one counts with what follows it: requests may come at any rate.
            const std::int64_t grown = passed / one_of;
            least_ += static_cast<std::uint64_t>(grown);
            grown_at_ += static_cast<std::uint64_t>(grown * one_of);
        }
        const auto above = static_cast<std::int64_t>(difference - least_);
        if (!known_ || above < 0) {
            known_ = true;
            least_ = difference;
            grown_at_ = now;
            return 0;
        }
        return static_cast<std::uint64_t>(above);
    }
    /// The clocks are compared anew.
    void forget() noexcept { known_ = false; }

  private:
    static constexpr std::int64_t one_of = 5000;  ///< 200 parts of a million

    std::uint64_t least_ = 0;
    std::uint64_t grown_at_ = 0;  ///< up to when the least has grown
    bool known_ = false;
};

}  // namespace millrace::rpc
