// What carries a link's data once its two ends have met. The end that connects chooses; the
// listener says which ones it takes, and refuses the others with the reason.
// Source: work 002, section 2.2 (RDMA transport types); InfiniBand specification, chapter 9.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::connect {

enum class Transport : std::uint8_t {
    rc,   ///< a reliable connected queue pair of each end
    uc,   ///< an unreliable connected one: what is sent may be lost, and arrives in order otherwise
    ud,   ///< datagrams: lost, doubled or out of order; the listener's end is one for all its links
    tcp,  ///< no RDMA at all: the stream socket, over TCP or between processes of a host, on which
          ///< the two ends met
};
/// "rc", "uc", "ud", "tcp".
[[nodiscard]] std::string_view name_of(Transport transport) noexcept;
/// None: it is the name of none.
[[nodiscard]] std::optional<Transport> parse_transport(std::string_view name) noexcept;

/// Some of them.
class Transports {
  public:
    constexpr Transports() noexcept = default;
    constexpr Transports(Transport only) noexcept : bits_{bit(only)} {}
    constexpr Transports(std::initializer_list<Transport> some) noexcept {
        for (const Transport one : some) add(one);
    }
    [[nodiscard]] static constexpr Transports all() noexcept {
        return {Transport::rc, Transport::uc, Transport::ud, Transport::tcp};
    }

    constexpr void add(Transport one) noexcept { bits_ |= bit(one); }
    [[nodiscard]] constexpr bool has(Transport one) const noexcept {
        return (bits_ & bit(one)) != 0;
    }
    [[nodiscard]] constexpr bool empty() const noexcept { return bits_ == 0; }
    /// One of them needs an RDMA device.
    [[nodiscard]] constexpr bool has_rdma() const noexcept {
        return (bits_ & ~bit(Transport::tcp)) != 0;
    }
    /// "rc, tcp".
    [[nodiscard]] std::string to_string() const;
    friend constexpr bool operator==(Transports, Transports) noexcept = default;

  private:
    static constexpr std::uint8_t bit(Transport one) noexcept {
        return static_cast<std::uint8_t>(1U << static_cast<unsigned>(one));
    }
    std::uint8_t bits_ = 0;
};

}  // namespace millrace::connect
