// Where threads run: the cores this process may use, those of a NUMA node, pinning, and a sentence
// that says so.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// The processors this process may run on, ascending. Never empty.
[[nodiscard]] std::vector<int> available_cores();
/// Pins the calling thread to `core`. Throws `Error` (invalid_argument) if it may not run there.
void pin_this_thread(int core);
/// The same for any of `cores`, so that the scheduler chooses among them.
void bind_this_thread(std::span<const int> cores);
/// Moves the calling thread to another one of the cores that it may run on, and leaves it free to
/// run on all of them as before. False: there is no other, or it may not.
bool leave_this_core() noexcept;
/// Those of available_cores() that belong to a NUMA node, ascending. None: there is no such node,
/// or the process may not run there. Where the system knows no nodes, all cores are of node 0.
/// `nodes` is where the kernel tells of them.
[[nodiscard]] std::vector<int> cores_of_node(int node,
                                             const std::string& nodes = "/sys/devices/system/node");
/// "0-3,8" as the kernel writes it: 0, 1, 2, 3, 8. Nothing, if it is no such list.
[[nodiscard]] std::vector<int> parse_core_list(std::string_view text);
/// The processor the calling thread is on now.
[[nodiscard]] int current_core() noexcept;
/// "2 cores (Intel Xeon …), this thread pinned to core 0".
[[nodiscard]] std::string describe_placement();

}  // namespace millrace::base
