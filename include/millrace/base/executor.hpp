// Where calls are made one after the other, in one thread: what a coroutine (base/coroutine.hpp)
// needs of an event loop. connect::Hub is one; a program's own loop becomes one by implementing
// this, over asio for example with post(), a steady_timer and a posix::stream_descriptor.
#pragma once

#include <cstdint>
#include <functional>

#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"

namespace millrace::base {

/// But for post() and is_current(), for its own thread only.
class Executor {
  public:
    using Call = std::function<void()>;
    /// What add() and at() give, to take it back. Never used twice.
    enum class Id : std::uint64_t {};

    virtual ~Executor() = default;
    /// Makes `call` in its own thread, soon. Any thread. Calls of one thread are made in their
    /// order.
    virtual void post(Call call) = 0;
    /// Calls `call` once, at that time or soon after.
    virtual Id at(Clock::time_point time, Call call) = 0;
    /// Calls `call` whenever `descriptor` is readable, until it is removed. Throws Error
    /// (invalid_argument: it is no descriptor that can be waited for, or here already).
    virtual Id add(int descriptor, Call call) = 0;
    /// It is not called any more, and what it holds is destroyed: at once, or behind the call that
    /// is under way. False: there is no such thing (any more).
    virtual bool remove(Id id) = 0;
    /// The calling thread is its own. Any thread.
    [[nodiscard]] virtual bool is_current() const noexcept = 0;
};

}  // namespace millrace::base
