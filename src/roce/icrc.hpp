// The invariant CRC of RoCEv2: over the packet, and over what of the IP and UDP headers no router
// changes. Called by whoever sends and takes datagrams.
//
//   eight bytes 0xff | IPv4 or IPv6 header | UDP header | BTH ... padding
//
// with 0xff in place of what routers may change: IPv4's type of service, time to live and
// checksum; IPv6's class, flow label and hop limit; UDP's checksum; the BTH's congestion marks.
//
// **An IPv4 datagram's identification is covered, too, and a UDP socket does not tell it.** CRCs
// are linear: the CRC with identification 0 and the packet's differ by what two bytes at a known
// place contribute. Divided by x to the power of the bits from there on, their difference is the
// identification itself where the packet is right, and where it is not has 16 bits that are zero by
// chance in one of 65,536 cases. So what is checked is 16 bits, and 32 over IPv6, or where the
// identification is 0, as that of our own datagrams is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace millrace::roce {

/// A GID: an IPv6 address, or `::ffff:a.b.c.d`.
using Gid = std::array<std::uint8_t, 16>;

/// From where to where a datagram goes. Both GIDs are of one family. Ports in host order.
struct Route {
    Gid source{};
    Gid destination{};
    std::uint16_t source_port = 0;
    std::uint16_t destination_port = 0;

    bool operator==(const Route&) const = default;
};

[[nodiscard]] bool is_ipv4(const Gid& gid) noexcept;

/// Of one route, in either direction, for packets of any length.
class Icrc {
  public:
    Icrc() = default;
    explicit Icrc(const Route& route) noexcept;

    /// As the four bytes lie in the packet, first byte lowest. `bytes`: from the BTH to the end of
    /// the padding. Over IPv4, the datagram has this identification, and "don't fragment".
    [[nodiscard]] std::uint32_t of(std::span<const std::uint8_t> bytes,
                                   std::uint16_t identification = 0) const noexcept;

    /// The identification with which `icrc` is right; 0 over IPv6. None: the packet is damaged.
    /// `likely`: the identification that it probably has, which makes the check cheap.
    [[nodiscard]] std::optional<std::uint16_t> check(std::span<const std::uint8_t> bytes,
                                                     std::uint32_t icrc,
                                                     std::uint16_t likely = 0) const noexcept;

    /// Writes the four bytes to the end of a packet.
    static void put(std::uint32_t icrc, std::uint8_t* to) noexcept {
        for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(icrc >> (8 * i));
    }
    [[nodiscard]] static std::uint32_t get(const std::uint8_t* from) noexcept {
        return from[0] | static_cast<std::uint32_t>(from[1]) << 8 |
               static_cast<std::uint32_t>(from[2]) << 16 |
               static_cast<std::uint32_t>(from[3]) << 24;
    }

  private:
    /// Bytes of 0xff, IPv6 header, UDP header.
    static constexpr std::size_t most_bytes = 8 + 40 + 8;

    std::array<std::uint8_t, most_bytes> headers_{};  ///< lengths and identification are 0
    std::uint8_t header_bytes_ = 0;
    bool is_ipv4_ = true;
};

}  // namespace millrace::roce
