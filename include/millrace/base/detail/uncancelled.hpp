// pthread_cancel strikes in system calls that may wait, and unwinds the thread from there: through
// locks, half-written state, and functions that nothing may leave by unwinding (then the program
// ends). Whoever makes such calls and is no cancellation point itself holds it off.
#pragma once

#include <pthread.h>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// While it lives, a cancellation of the calling thread waits.
class Uncancelled {
  public:
    Uncancelled() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
    Uncancelled(const Uncancelled&) = delete;
    Uncancelled& operator=(const Uncancelled&) = delete;

    /// `wait()` as it would be without: a cancellation that the program allows unwinds from there,
    /// so nothing that lives may be half done.
    template <class Wait>
    auto except_in(Wait&& wait) const {
        int held = 0;
        pthread_setcancelstate(before_, &held);
        const auto result = wait();
        pthread_setcancelstate(held, nullptr);
        return result;
    }

  private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace millrace::base
