// Limits of devices, see the header.
#include "millrace/ring/device_limits.hpp"

#include <cstdint>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::ring {

void check_pool(std::uint32_t receive_pool, std::uint32_t device_limit, std::string_view device) {
    if (receive_pool <= device_limit) return;
    throw base::Error{base::ErrorCode::invalid_argument, "set up a ring",
                      fmt::format("a pool of {} receives on {}", receive_pool, device),
                      fmt::format("a queue pair there has at most {} (max_qp_wr)", device_limit),
                      "choose a smaller pool"};
}

}  // namespace millrace::ring
