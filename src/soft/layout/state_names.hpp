// What the states and the types of a queue pair are called, in lines of the log, traces and
// `millrace soft status`.
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

[[nodiscard]] constexpr std::string_view type_name(ibv_qp_type type) noexcept {
    switch (type) {
        case IBV_QPT_RC: return "RC";
        case IBV_QPT_UC: return "UC";
        case IBV_QPT_UD: return "UD";
        default: return "OTHER";
    }
}

}  // namespace millrace::soft
