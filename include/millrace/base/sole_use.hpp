// Notices when two threads are in an object at once that one at a time may use. Used by objects
// whose calls may wait for long, as stream::Socket.
#pragma once

#include <atomic>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// Costs a load and two stores, and no locked instruction: that a call is under way in another
/// thread is always noticed if it has been so for longer than a store takes to be seen, and two
/// that begin at the same moment may pass.
class SoleUse {
  public:
    /// False: somebody is in the object.
    [[nodiscard]] bool try_enter() noexcept {
        if (used_.load(std::memory_order_relaxed)) [[unlikely]]
            return false;
        used_.store(true, std::memory_order_relaxed);
        return true;
    }
    /// Only by who has entered.
    void leave() noexcept { used_.store(false, std::memory_order_release); }

  private:
    std::atomic<bool> used_{false};
};

}  // namespace millrace::base
