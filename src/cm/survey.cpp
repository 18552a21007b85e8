#include "millrace/cm/survey.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace millrace::cm {
namespace {

template <class Number>
[[nodiscard]] bool read_number(std::string_view text, Number& number, int base = 10) noexcept {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number, base);
    return error == std::errc{} && at == end;
}

/// The next part of a name, up to a slash or the end.
[[nodiscard]] std::string_view next_part(std::string_view& rest) noexcept {
    const auto slash = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, slash);
    rest.remove_prefix(std::min(slash + 1, rest.size()));
    return part;
}

/// "Num RefCount Protocol Flags Type St Inode Path"
[[nodiscard]] std::optional<TakenPort> port_in(std::string_view line) {
    constexpr std::string_view prefix = "@millrace-cm/";
    const auto at = line.find(prefix);
    if (at == line.npos) return std::nullopt;
    std::string_view rest = line.substr(at + prefix.size());
    TakenPort taken;
    if (!read_number(next_part(rest), taken.user)) return std::nullopt;
    taken.fabric = next_part(rest);
    taken.space = next_part(rest);
    taken.key = next_part(rest);
    const auto plus = std::min(rest.find('+'), rest.size());
    taken.shared = plus != rest.size();
    if (taken.key.empty() || !read_number(rest.substr(0, plus), taken.port)) return std::nullopt;
    const std::string_view columns = line.substr(0, at);
    taken.listening = columns.find(" 00010000 ") != columns.npos;
    taken.connected = columns.find(" 03 ") != columns.npos;
    return taken;
}

}  // namespace

std::string TakenPort::address() const {
    if (key == "*4") return fmt::format("0.0.0.0:{}", port);
    std::array<std::uint8_t, 16> bytes{};
    const std::size_t size = key.size() == 8 ? 4 : bytes.size();
    for (std::size_t i = 0; key[0] != '*' && i < size && 2 * i + 1 < key.size(); ++i) {
        static_cast<void>(read_number(std::string_view{key}.substr(2 * i, 2), bytes[i], 16));
    }
    char text[INET6_ADDRSTRLEN] = "";
    ::inet_ntop(size == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
    return size == 4 ? fmt::format("{}:{}", text, port) : fmt::format("[{}]:{}", text, port);
}

std::vector<TakenPort> taken_ports() {
    std::vector<TakenPort> ports;
    std::ifstream sockets{"/proc/net/unix"};
    for (std::string line; std::getline(sockets, line);) {
        if (auto port = port_in(line)) ports.push_back(*std::move(port));
    }
    return ports;
}

}  // namespace millrace::cm
