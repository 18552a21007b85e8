#include "fabric/atomic_locks.hpp"

#include <fcntl.h>
#include <sched.h>

#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::soft {
namespace {

/// Longer than an atomic takes. In time and not in tries: on a busy machine, giving the processor
/// away once may take longer than all of this.
constexpr std::chrono::microseconds patience{100};

bool set_record_lock(int file, std::size_t stripe, short type) noexcept {
    struct flock record {};
    record.l_type = type;
    record.l_whence = SEEK_SET;
    record.l_start = static_cast<off_t>(stripe);
    record.l_len = 1;
    base::count_system_call();
    return ::fcntl(file, F_OFD_SETLK, &record) == 0;
}

/// Gives the processor to the holder, which may be waiting for it.
void give_way(int tried) noexcept {
    if (tried < 4) {
        base::pause();
    } else {
        base::count_system_call();
        sched_yield();
    }
}

}  // namespace

bool AtomicLocks::lock(std::uint64_t address) noexcept {
    const std::size_t stripe = stripe_of(address);
    const std::uint64_t begin = base::ticks();
    static const std::uint64_t limit = base::ticks_in(patience);
    int tried = 0;
    while (!here_[stripe].try_lock()) {
        if (base::ticks() - begin > limit) return false;
        give_way(++tried);
    }
    while (!set_record_lock(file_, stripe, F_WRLCK)) {
        if (base::ticks() - begin > limit) {
            here_[stripe].unlock();
            return false;
        }
        give_way(++tried);
    }
    return true;
}

void AtomicLocks::unlock(std::uint64_t address) noexcept {
    const std::size_t stripe = stripe_of(address);
    set_record_lock(file_, stripe, F_UNLCK);
    here_[stripe].unlock();
}

}  // namespace millrace::soft
