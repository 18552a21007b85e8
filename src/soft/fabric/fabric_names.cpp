#include "fabric/fabric_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "millrace/base/error.hpp"

namespace millrace::soft {
namespace {

constexpr std::size_t longest_fabric_name = 64;
// The longest name must fit: "\0millrace/4294967295/<fabric>/4095".
static_assert(1 + 9 + 10 + 1 + longest_fabric_name + 1 + 4 < sizeof(sockaddr_un::sun_path));

bool allowed(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
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

std::vector<std::uint32_t> list_nodes(uid_t user, std::string_view fabric) {
    const std::string prefix = fmt::format(" @millrace/{}/{}/", user, fabric);
    std::vector<std::uint32_t> numbers;
    std::ifstream sockets{"/proc/net/unix"};
    for (std::string line; std::getline(sockets, line);) {
        const auto at = line.rfind(prefix);
        if (at == std::string::npos) continue;
        std::uint32_t number = 0;
        const char* const begin = line.data() + at + prefix.size();
        const char* const end = line.data() + line.size();
        const auto read = std::from_chars(begin, end, number);
        if (read.ec == std::errc{} && read.ptr == end) numbers.push_back(number);
    }
    std::sort(numbers.begin(), numbers.end());  // connections have their listener's name
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    return numbers;
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
