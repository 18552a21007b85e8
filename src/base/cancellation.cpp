// The descriptor of a Cancellation, an eventfd, see the header.
#include "millrace/base/cancellation.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::base {

namespace {

/// 0 is no place: numbers begin behind the standard streams.
[[nodiscard]] std::uint64_t place_of(int number) noexcept {
    return std::uint64_t{forks()} << 32 | static_cast<std::uint32_t>(number);
}
[[nodiscard]] int number_in(std::uint64_t place) noexcept { return static_cast<int>(place); }

}  // namespace

Cancellation::~Cancellation() {
    // A parent's is closed in the child, too: it is a copy.
    if (const std::uint64_t place = place_.exchange(0, std::memory_order_relaxed); place != 0) {
        close(number_in(place));
    }
}

int Cancellation::number() const noexcept {
    const std::uint64_t place = place_.load(std::memory_order_seq_cst);
    return place != 0 && place == place_of(number_in(place)) ? number_in(place) : -1;
}

int Cancellation::descriptor() const noexcept {
    if (const int known = number(); known >= 0) return known;
    const int before = errno;
    count_forks();
    std::uint64_t place = place_.load(std::memory_order_seq_cst);
    const int made = above_standard_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    count_system_call();
    if (made < 0) {
        errno = before;
        return -1;
    }
    if (!place_.compare_exchange_strong(place, place_of(made), std::memory_order_seq_cst)) {
        close(made);  // another thread came first
        return number();
    }
    if (place != 0) close(number_in(place));  // the parent's
    // Who requested before it was there has written nowhere.
    if (requested_.load(std::memory_order_seq_cst)) ring();
    return made;
}

void Cancellation::ring() const noexcept {
    const int descriptor = number();
    if (descriptor < 0) return;
    const int before = errno;  // of what a signal handler interrupts
    const std::uint64_t one = 1;
    (void)!write(descriptor, &one, sizeof one);
    count_system_call();
    // Behind the write: whoever sees this and reads finds it.
    has_rung_.store(true, std::memory_order_seq_cst);
    errno = before;
}

void Cancellation::quieten() const noexcept {
    const int descriptor = number();
    if (descriptor < 0) return;
    has_rung_.store(false, std::memory_order_seq_cst);
    std::uint64_t count = 0;
    (void)!read(descriptor, &count, sizeof count);
    count_system_call();
    // What was read may have been said for a request that came meanwhile.
    if (requested_.load(std::memory_order_seq_cst)) ring();
}

}  // namespace millrace::base
