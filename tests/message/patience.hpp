// How long the tests of messages wait for what comes soon.
#pragma once

#include <chrono>

#include "millrace/base/deadline.hpp"

namespace millrace::message {

/// Generous: it only ends what has failed.
inline base::Deadline patience() { return base::Deadline::after(std::chrono::seconds{40}); }

}  // namespace millrace::message
