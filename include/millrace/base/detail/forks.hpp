// In which process one is: what a child made by fork must not share with its parent, descriptors
// above all, notes it when it is made, and compares. What has no time to compare is told.
//
// The one rule of fork: an end belongs to the process that made it. In a child it is a copy, which
// answers `peer_lost` to every call, and says why in failure(); what has no Status to answer with
// (servers, listeners, hubs, descriptor()) throws an Error. Nothing of it reaches the peer, and it
// may be destroyed. Ends that the child makes are its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::base {

namespace detail {
inline std::atomic<std::uint32_t> forks{0};
}

/// From now on forks are counted. To be called before forks() is noted. Any thread.
void count_forks() noexcept;
/// How many forks that were counted lie between the first process and this one.
[[nodiscard]] inline std::uint32_t forks() noexcept {
    return detail::forks.load(std::memory_order_relaxed);
}

/// Why a copy is of no use, and what to do, for failure() and for errors.
inline constexpr std::string_view copy_in_child =
    "it belongs to the process that made it, and this one is its child, made by fork";
inline constexpr std::string_view remedy_of_copy = "make one in the child, after the fork";
/// Throws the Error (invalid_argument) of a call that has no Status to say so.
[[noreturn]] void refuse_copy(std::string attempted, std::string object);

/// While it lives, a child made by fork is told that it has a copy of something: so the hot path
/// of that need not ask. Any thread; made and destroyed under a lock that is held for that alone.
class ForkWatch {
  public:
    /// `end.become_copy()` is called in the child, before fork() returns there. The child's only
    /// thread calls it: locks of others may be held for ever, and what they were at stands still.
    /// It makes and destroys no ForkWatch.
    template <class End>
    explicit ForkWatch(End& end) noexcept
        : ForkWatch{[](void* whom) noexcept { static_cast<End*>(whom)->become_copy(); }, &end} {}
    ForkWatch(const ForkWatch&) = delete;
    ForkWatch& operator=(const ForkWatch&) = delete;
    ~ForkWatch();

  private:
    struct All;
    using Tell = void (*)(void* whom) noexcept;
    ForkWatch(Tell tell, void* whom) noexcept;

    Tell tell_;
    void* whom_;
    ForkWatch* before_ = nullptr;
    ForkWatch* behind_ = nullptr;
};

}  // namespace millrace::base
