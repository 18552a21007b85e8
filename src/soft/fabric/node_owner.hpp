// Which process holds a node of the fabric.
#pragma once

#include <fmt/format.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/base/log.hpp"

namespace millrace::soft {

/// Why a node cannot be reached is said once in two seconds for each: queue pairs look again and
/// again. False: it was said lately.
[[nodiscard]] bool may_complain_of_node(std::uint32_t number) noexcept;

template <class... Args>
void complain_of_node(std::uint32_t number, base::LogLevel level, fmt::format_string<Args...> text,
                      Args&&... args) {
    if (may_complain_of_node(number)) {
        base::log(level, "soft", text, std::forward<Args>(args)...);
    }
}

/// What /proc says of a descriptor of a node's tables.
[[nodiscard]] std::string link_to_tables(std::string_view fabric, std::uint32_t number);
/// A process of ours that holds the node, found without its socket; 0: there is none. That takes
/// some ms: not more than four times a second for a node that is not found.
[[nodiscard]] pid_t find_owner(std::string_view fabric, std::uint32_t number);
/// Who listens at the other end, as the kernel says; 0: nobody to talk to (logged).
[[nodiscard]] pid_t pid_of_owner(int connection, std::string_view fabric, std::uint32_t number);

}  // namespace millrace::soft
