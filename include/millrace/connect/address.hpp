// Where to listen and what to connect to: "host:port", "[::1]:7000", ":7000", "unix:/path",
// "unix:@abstract".
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/error.hpp"

namespace millrace::connect {

/// A parsed address. A value type. Text may stand wherever an address is asked for.
class Address {
  public:
    enum class Kind : std::uint8_t { tcp, unix_socket };

    Address() = default;
    /// As parse. Throws Error.
    template <std::convertible_to<std::string_view> Text>
    Address(const Text& text) : Address{parse(text)} {}
    /// Throws Error (invalid_argument) that shows what was understood and the accepted forms.
    /// Port 0 lets a listener choose; an empty host listens on every interface and connects to
    /// this host.
    [[nodiscard]] static Address parse(std::string_view text);
    [[nodiscard]] static Address tcp(std::string host, std::uint16_t port);
    [[nodiscard]] static Address unix_socket(std::string path);

    [[nodiscard]] Kind kind() const noexcept { return kind_; }
    [[nodiscard]] const std::string& host() const noexcept { return host_; }
    [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
    /// A leading '@' means the abstract namespace.
    [[nodiscard]] const std::string& path() const noexcept { return host_; }
    /// The text `parse` accepts again.
    [[nodiscard]] std::string to_string() const;
    friend bool operator==(const Address&, const Address&) = default;

  private:
    Kind kind_ = Kind::tcp;
    std::string host_;
    std::uint16_t port_ = 0;
};

}  // namespace millrace::connect
