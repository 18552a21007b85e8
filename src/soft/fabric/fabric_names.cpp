#include "fabric/fabric_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "millrace/base/error.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {
namespace {

constexpr std::string_view name_prefix = "@millrace/";
constexpr std::size_t longest_fabric_name = 64;
// The longest name must fit: "\0millrace/4294967295/<fabric>/4095".
static_assert(1 + 9 + 10 + 1 + longest_fabric_name + 1 + 4 < sizeof(sockaddr_un::sun_path));

bool allowed(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/// "@millrace/<uid>/<fabric>/<number>".
std::optional<NodeName> parse_name(std::string_view text) {
    text.remove_prefix(name_prefix.size());
    const auto first = text.find('/');
    const auto last = text.rfind('/');
    if (first == text.npos || last == first) return std::nullopt;
    const auto user = number_of<uid_t>(text.substr(0, first));
    const auto node = number_of<std::uint32_t>(text.substr(last + 1));
    if (!user || !node) return std::nullopt;
    return NodeName{*user, std::string{text.substr(first + 1, last - first - 1)}, *node};
}

}  // namespace

void check_fabric_name(std::string_view fabric) {
    const bool long_enough = !fabric.empty() && fabric.size() <= longest_fabric_name;
    if (long_enough && std::all_of(fabric.begin(), fabric.end(), allowed)) return;
    throw base::Error{
        base::ErrorCode::invalid_argument, "join the soft device's fabric",
        fmt::format("'{}'", fabric.substr(0, 2 * longest_fabric_name)),
        fmt::format("the name has {} characters, or others than A-Z a-z 0-9 . _ -", fabric.size()),
        fmt::format("set MILLRACE_FABRIC to 1 to {} such characters, or unset it",
                    longest_fabric_name)};
}

NodeAddress::NodeAddress(uid_t user, std::string_view fabric, std::uint32_t number) {
    const std::string name = fmt::format("millrace/{}/{}/{}", user, fabric, number);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

std::set<NodeName> names_in_use() {
    std::set<NodeName> names;
    std::ifstream sockets{"/proc/net/unix"};
    for (std::string line; std::getline(sockets, line);) {
        const auto at = line.find(name_prefix);
        if (at == line.npos) continue;
        // Connections have their listener's name.
        if (auto name = parse_name(std::string_view{line}.substr(at))) {
            names.insert(std::move(*name));
        }
    }
    return names;
}

std::string tables_name(std::string_view fabric, std::uint32_t number) {
    return fmt::format("millrace-node:{}:{}", fabric, number);
}

std::string blocks_name(std::string_view fabric, std::uint32_t number) {
    return fmt::format("millrace-blocks:{}:{}", fabric, number);
}

std::string describe_node(std::string_view fabric, std::uint32_t number) {
    return fmt::format("node {} of fabric '{}'", number, fabric);
}

}  // namespace millrace::soft
