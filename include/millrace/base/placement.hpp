// Where threads run: the cores this process may use, pinning, and a sentence that says so.
#pragma once

#include <string>
#include <vector>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// The processors this process may run on, ascending. Never empty.
[[nodiscard]] std::vector<int> available_cores();
/// Pins the calling thread to `core`. Throws `Error` (invalid_argument) if it may not run there.
void pin_this_thread(int core);
/// The processor the calling thread is on now.
[[nodiscard]] int current_core() noexcept;
/// "2 cores (Intel Xeon …), this thread pinned to core 0".
[[nodiscard]] std::string describe_placement();

}  // namespace millrace::base
