// What gRPC takes for the calls that Millrace's are compared to: unary, 64 bytes each way, over a
// Unix socket, client and server on a core of their own. Package libgrpc++-dev; where it was
// missing when this was built, these throw Error (not_found).
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// Nanoseconds of each call of one client thread that keeps so many outstanding, in the median
/// window.
[[nodiscard]] double grpc_call(std::size_t outstanding, std::uint64_t calls);

}  // namespace millrace::bench
