// Giving the processor away while there is nothing to do. On few processors that many threads share
// it may be the one that the awaited peer needs; on a processor of one's own it only delays what
// is awaited. Used by `wait_until`, and by the soft device for programs that poll by themselves.
//
// Whether anybody needs the processor shows when it is offered: sched_yield comes back at once, or
// after another thread has run. While nobody takes it, it is offered less and less often; and while
// other programs compute, who keep it for milliseconds, not at all (contention.hpp).
#pragma once

#include <cstdint>

#include "millrace/base/detail/contention.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"

namespace millrace::base {

/// When it is offered; `MILLRACE_YIELD`.
enum class Yields : std::uint8_t {
    as_needed,  ///< "auto": seldom, while nobody takes it
    always,     ///< at each look, once patience is over
    never,
};

/// What the environment says now. Throws Error (invalid_argument) if there is no such value.
[[nodiscard]] Yields yields_of_environment();
/// The same at the first call in this process; `as_needed` if there is no such value.
[[nodiscard]] Yields yields_of_process() noexcept;

/// One poller's. Times are base::ticks().
class Yielding {
  public:
    explicit Yielding(Yields how) noexcept : how_{how} {}

    /// There has been nothing since `now`; the processor is kept for `patience` ticks.
    void begin(std::uint64_t now, std::uint64_t patience) noexcept {
        due_ = now + (patience > rest_ ? patience : rest_);
    }
    [[nodiscard]] bool due(std::uint64_t now) const noexcept {
        return static_cast<std::int64_t>(now - due_) >= 0 && may_offer(now);
    }
    /// Offers it: a system call.
    Taken offer() noexcept;
    /// It was offered, and came back at `now` after `away` ticks.
    Taken note(std::uint64_t now, std::uint64_t away) noexcept;

  private:
    [[nodiscard]] bool may_offer(std::uint64_t now) const noexcept;

    Yields how_;
    std::uint64_t rest_ = 0;  ///< so long it is kept after nobody took it
    std::uint64_t due_ = 0;
};

namespace detail {
inline thread_local bool waits_by_policy = false;
}

/// While it lives, the calling thread waits by a policy that says itself when to yield: what it
/// asks meanwhile must not.
class WaitsByPolicy {
  public:
    WaitsByPolicy() noexcept : before_{detail::waits_by_policy} { detail::waits_by_policy = true; }
    ~WaitsByPolicy() { detail::waits_by_policy = before_; }
    WaitsByPolicy(const WaitsByPolicy&) = delete;
    WaitsByPolicy& operator=(const WaitsByPolicy&) = delete;

    [[nodiscard]] static bool here() noexcept { return detail::waits_by_policy; }

  private:
    bool before_;
};

}  // namespace millrace::base
