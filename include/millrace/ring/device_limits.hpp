// What a device allows is less than what a ring may ask for. Called by the floors that set rings
// up, before anything is made on the device, so that the error names what the user has set.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/error.hpp"

namespace millrace::ring {

/// Throws Error (invalid_argument) for a pool of more receives than a queue pair of `device` takes.
/// `device_limit`: its max_qp_wr.
void check_pool(std::uint32_t receive_pool, std::uint32_t device_limit, std::string_view device);

}  // namespace millrace::ring
