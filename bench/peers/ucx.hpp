// UCX's own benchmark over its shared memory: a server and a client on two cores. Used by the bar
// of message round trips.
#pragma once

#include <cstdint>

namespace millrace::bench {

/// Nanoseconds for one round trip of tagged messages of `bytes` bytes over UCX's transport `posix`,
/// on average over all iterations. Throws base::Error; not_found where ucx_perftest is missing.
[[nodiscard]] double ucx_round_trip(std::uint64_t bytes, std::uint64_t iterations);

}  // namespace millrace::bench
