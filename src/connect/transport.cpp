#include "millrace/connect/transport.hpp"

#include <algorithm>
#include <array>

namespace millrace::connect {
namespace {
constexpr std::array<std::string_view, 4> names{"rc", "uc", "ud", "tcp"};
}

std::string_view name_of(Transport transport) noexcept {
    return names[static_cast<std::size_t>(transport)];
}

std::optional<Transport> parse_transport(std::string_view name) noexcept {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) return std::nullopt;
    return static_cast<Transport>(found - names.begin());
}

std::string Transports::to_string() const {
    std::string text;
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (!has(static_cast<Transport>(i))) continue;
        if (!text.empty()) text += ", ";
        text += names[i];
    }
    return text;
}

}  // namespace millrace::connect
