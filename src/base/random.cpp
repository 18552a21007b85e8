#include "millrace/base/detail/random.hpp"

#include <sys/random.h>
#include <sys/types.h>

#include <cerrno>
#include <random>

namespace millrace::base {

std::uint64_t random_bits() {
    std::uint64_t bits = 0;
    ssize_t got;
    do {
        got = getrandom(&bits, sizeof bits, 0);
    } while (got < 0 && errno == EINTR);
    if (got == static_cast<ssize_t>(sizeof bits)) return bits;
    std::random_device other;  // a filter forbids that one
    return std::uint64_t{other()} << 32 | other();
}

}  // namespace millrace::base
