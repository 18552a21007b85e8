// Notices when two threads are in an object at once that one at a time may use. Used by objects
// whose calls may wait for long, as stream::Socket.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "millrace/base/detail/forks.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"

namespace millrace::base {

/// Costs two loads and two stores, and no locked instruction: that a call is under way in another
/// thread is always noticed if it has been so for longer than a store takes to be seen, and two
/// that begin at the same moment may pass.
class SoleUse {
  public:
    SoleUse() noexcept = default;
    /// An object that goes elsewhere has nobody in it, there and here.
    SoleUse(SoleUse&& /*other*/) noexcept {}
    SoleUse& operator=(SoleUse&& /*other*/) noexcept { return *this; }

    /// False: somebody is in the object.
    [[nodiscard]] bool try_enter() noexcept {
        // Who was in it when this process was forked is in the parent's.
        const std::uint32_t here = forks() + 1;
        if (used_in_.load(std::memory_order_relaxed) == here) [[unlikely]]
            return false;
        used_in_.store(here, std::memory_order_relaxed);
        return true;
    }
    /// Only by who has entered.
    void leave() noexcept { used_in_.store(0, std::memory_order_release); }

  private:
    std::atomic<std::uint32_t> used_in_{0};  ///< forks() and one more; 0: nobody is in it
};

/// Throws the Error (invalid_argument) of a thread that comes into an object while another is.
[[noreturn]] void refuse_second_thread(const char* attempted, std::string object,
                                       const char* remedy);

/// A call that may take long (a wait, a close) is under way in an end, for as long as this lives.
/// Throws Error (invalid_argument): in another thread, too.
class [[nodiscard]] SoleCall {
  public:
    /// `peer`: whose end it is, for the error.
    SoleCall(SoleUse& use, const char* attempted, const std::string& peer) : use_{use} {
        if (!use.try_enter()) [[unlikely]]
            refuse_second_thread(attempted, peer,
                                 "let one thread at a time use an end, or give each its own");
    }
    SoleCall(const SoleCall&) = delete;
    SoleCall& operator=(const SoleCall&) = delete;
    ~SoleCall() { use_.leave(); }

  private:
    SoleUse& use_;
};

}  // namespace millrace::base
