// What to do when a device refuses to register memory. Called by protection domains.
#pragma once

#include <string>

namespace millrace::verbs {

/// For the errno value of a failed registration; may be empty.
[[nodiscard]] std::string registration_remedy(int error);

}  // namespace millrace::verbs
