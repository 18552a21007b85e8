// How a program's thread sleeps in ibv_get_cq_event and ibv_get_async_event: as in the read() that
// libibverbs makes there, which can be cancelled and which a signal ends or does not.
#pragma once

#include <poll.h>

#include <span>

#include "millrace/base/detail/uncancelled.hpp"

namespace millrace::soft {

/// Waits until one of `files` has something, and says in `revents` which: how many. A cancellation
/// point. Negative: with EINTR, a signal came whose handler does not ask for the wait to go on
/// (SA_RESTART). Which one it was nobody says, so one handler without SA_RESTART suffices; handlers
/// of signals that tell of the program's own faults do not count.
[[nodiscard]] int wait_for_news(std::span<pollfd> files, const base::Uncancelled& held);

/// The same without waiting, and no cancellation point.
[[nodiscard]] int look_for_news(std::span<pollfd> files) noexcept;

}  // namespace millrace::soft
