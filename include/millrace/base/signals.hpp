// Threads of the library leave the program's signals to the program's threads. Called by whoever
// makes one.
#pragma once

#include <pthread.h>
#include <signal.h>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// While it lives, the calling thread blocks all signals, and so does, for good, what thread it
/// makes: a thread inherits its maker's mask.
class SignalsBlocked {
  public:
    SignalsBlocked() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_;
};

}  // namespace millrace::base
