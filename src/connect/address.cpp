// Reading and writing addresses as text.
#include "millrace/connect/address.hpp"

#include <sys/un.h>

#include <charconv>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "printable.hpp"

namespace millrace::connect {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string cause) {
    throw base::Error(base::ErrorCode::invalid_argument, "read an address",
                      fmt::format("'{}'", printable(text, 300)), std::move(cause),
                      "write host:port, [::1]:7000, :7000, unix:/path or unix:@name");
}

std::uint16_t parse_port(std::string_view whole, std::string_view digits) {
    std::uint16_t port = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, port);
    if (digits.empty() || error != std::errc{} || stop != end) {
        refuse(whole, fmt::format("'{}' is not a port number between 0 and 65535",
                                  printable(digits, 300)));
    }
    return port;
}

}  // namespace

Address Address::parse(std::string_view text) {
    constexpr std::string_view unix_prefix = "unix:";
    if (text.find('\0') != std::string_view::npos) refuse(text, "it contains a zero byte");
    if (text.starts_with(unix_prefix)) {
        const std::string_view path = text.substr(unix_prefix.size());
        if (path.empty() || path == "@") refuse(text, "the Unix socket has no path");
        constexpr std::size_t longest = sizeof(sockaddr_un::sun_path) - 1;
        if (path.size() > longest) {
            refuse(text, fmt::format("its path has {} bytes, and a Unix socket's at most {}",
                                     path.size(), longest));
        }
        return unix_socket(std::string{path});
    }
    if (text.starts_with('[')) {
        const std::size_t close = text.find(']');
        if (close == std::string_view::npos) refuse(text, "the '[' has no ']'");
        if (close + 1 >= text.size() || text[close + 1] != ':') {
            refuse(text, "':' and a port must follow the ']'");
        }
        return tcp(std::string{text.substr(1, close - 1)},
                   parse_port(text, text.substr(close + 2)));
    }
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) {
        refuse(text, text.starts_with('/') ? "a path needs 'unix:' before it" : "it has no port");
    }
    const std::string_view host = text.substr(0, colon);
    if (host.find(':') != std::string_view::npos) {
        refuse(text, fmt::format("'{}' looks like an IPv6 address, which needs brackets",
                                 printable(host, 300)));
    }
    return tcp(std::string{host}, parse_port(text, text.substr(colon + 1)));
}

Address Address::tcp(std::string host, std::uint16_t port) {
    Address address;
    address.kind_ = Kind::tcp;
    address.host_ = std::move(host);
    address.port_ = port;
    return address;
}

Address Address::unix_socket(std::string path) {
    Address address;
    address.kind_ = Kind::unix_socket;
    address.host_ = std::move(path);
    return address;
}

std::string Address::to_string() const {
    if (kind_ == Kind::unix_socket) return "unix:" + host_;
    if (host_.find(':') != std::string::npos) return fmt::format("[{}]:{}", host_, port_);
    return fmt::format("{}:{}", host_, port_);
}

}  // namespace millrace::connect
