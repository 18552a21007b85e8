// Which file has the ends of a size.
#include "queue_ends.hpp"

#include <cstddef>

namespace millrace::bench {

#define MILLRACE_SIZES(DO) \
    DO(4)                  \
    DO(8)                  \
    DO(16)                 \
    DO(32)                 \
    DO(64) DO(128) DO(256) DO(512) DO(1024) DO(2048) DO(4096) DO(8192) DO(16384) DO(32768) DO(65536)

#define MILLRACE_DECLARE(SIZE) const EndMakers* ends_of_##SIZE(ring::Design design);
MILLRACE_SIZES(MILLRACE_DECLARE)
#undef MILLRACE_DECLARE

const EndMakers* ends_of(ring::Design design, std::size_t item_bytes) {
    switch (item_bytes) {
#define MILLRACE_CASE(SIZE) \
    case SIZE: return ends_of_##SIZE(design);
        MILLRACE_SIZES(MILLRACE_CASE)
#undef MILLRACE_CASE
        default: return nullptr;
    }
}

}  // namespace millrace::bench
