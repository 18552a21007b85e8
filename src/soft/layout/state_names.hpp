// What the states of a queue pair are called, in lines of the log, traces and `millrace soft
// status`.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <string_view>

namespace millrace::soft {

[[nodiscard]] constexpr std::string_view state_name(ibv_qp_state state) noexcept {
    constexpr std::array<std::string_view, 7> names{"RESET", "INIT", "RTR",  "RTS",
                                                    "SQD",   "SQE",  "ERROR"};
    const auto index = static_cast<std::size_t>(state);
    return index < names.size() ? names[index] : "UNKNOWN";
}

}  // namespace millrace::soft
