#include "icrc.hpp"

#include <algorithm>
#include <cstring>

#include <libdeflate.h>

#include "packet.hpp"

namespace millrace::roce {
namespace {

/// The CRC-32 of Ethernet and zlib: bit 31 of a number is the coefficient of x^0, bit 0 of x^31.
constexpr std::uint32_t polynomial = 0xedb88320;
constexpr std::uint32_t one = 0x80000000;

constexpr std::uint32_t divided_by_x(std::uint32_t number) noexcept {
    return (number & one) != 0 ? (number ^ polynomial) << 1 | 1 : number << 1;
}

constexpr std::uint32_t product(std::uint32_t left, std::uint32_t right) noexcept {
    std::uint32_t result = 0;
    for (std::uint32_t bit = one; bit != 0; bit >>= 1) {
        if ((left & bit) != 0) result ^= right;
        right = (right & 1) != 0 ? right >> 1 ^ polynomial : right >> 1;  // times x
    }
    return result;
}

/// x^(-8 * 2^n): takes 2^n bytes back.
constexpr auto powers = [] {
    std::array<std::uint32_t, 16> all{};
    std::uint32_t power = one;
    for (int bit = 0; bit < 8; ++bit) power = divided_by_x(power);
    for (std::uint32_t& one_of_them : all) {
        one_of_them = power;
        power = product(power, power);
    }
    return all;
}();

/// x^(-8 * bytes)
std::uint32_t back_by(std::size_t bytes) noexcept {
    std::uint32_t power = one;
    for (std::size_t bit = 0; bit < powers.size() && bytes >> bit != 0; ++bit) {
        if ((bytes >> bit & 1) != 0) power = product(power, powers[bit]);
    }
    return power;
}

constexpr std::size_t ones_bytes = 8;  ///< in place of the header of an InfiniBand link
constexpr std::size_t ipv4_bytes = 20;
constexpr std::size_t ipv6_bytes = 40;
constexpr std::size_t udp_bytes = 8;
constexpr std::size_t identification_at = ones_bytes + 4;
constexpr std::size_t congestion_at = 4;  ///< in the BTH
constexpr std::uint8_t udp_protocol = 17;

void put_short(std::uint8_t* to, std::size_t value) noexcept {
    to[0] = static_cast<std::uint8_t>(value >> 8);
    to[1] = static_cast<std::uint8_t>(value);
}

}  // namespace

bool is_ipv4(const Gid& gid) noexcept {
    static constexpr std::array<std::uint8_t, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::equal(mapped.begin(), mapped.end(), gid.begin());
}

Icrc::Icrc(const Route& route) noexcept : is_ipv4_{is_ipv4(route.source)} {
    std::uint8_t* ip = headers_.data() + ones_bytes;
    std::memset(headers_.data(), 0xff, ones_bytes);
    if (is_ipv4_) {
        header_bytes_ = ones_bytes + ipv4_bytes + udp_bytes;
        ip[0] = 0x45;
        ip[1] = 0xff;
        ip[6] = 0x40;  // "don't fragment"
        ip[8] = 0xff;
        ip[9] = udp_protocol;
        put_short(ip + 10, 0xffff);
        std::memcpy(ip + 12, route.source.data() + 12, 4);
        std::memcpy(ip + 16, route.destination.data() + 12, 4);
    } else {
        header_bytes_ = ones_bytes + ipv6_bytes + udp_bytes;
        std::memset(ip, 0xff, 4);
        ip[0] = 0x6f;
        ip[6] = udp_protocol;
        ip[7] = 0xff;
        std::memcpy(ip + 8, route.source.data(), 16);
        std::memcpy(ip + 24, route.destination.data(), 16);
    }
    std::uint8_t* udp = headers_.data() + header_bytes_ - udp_bytes;
    put_short(udp, route.source_port);
    put_short(udp + 2, route.destination_port);
    put_short(udp + 6, 0xffff);
}

std::uint32_t Icrc::of(std::span<const std::uint8_t> bytes,
                       std::uint16_t identification) const noexcept {
    if (bytes.size() < bth_bytes) return 0;
    std::array<std::uint8_t, most_bytes + bth_bytes> first;
    std::memcpy(first.data(), headers_.data(), most_bytes);
    std::uint8_t* bth = first.data() + header_bytes_;
    std::memcpy(bth, bytes.data(), bth_bytes);
    bth[congestion_at] = 0xff;
    const std::size_t udp_length = udp_bytes + bytes.size() + icrc_bytes;
    put_short(bth - udp_bytes + 4, udp_length);
    std::uint8_t* ip = first.data() + ones_bytes;
    if (is_ipv4_) {
        put_short(ip + 2, ipv4_bytes + udp_length);
        put_short(ip + 4, identification);
    } else {
        put_short(ip + 4, udp_length);
    }
    const std::uint32_t start = libdeflate_crc32(0, first.data(), header_bytes_ + bth_bytes);
    return libdeflate_crc32(start, bytes.data() + bth_bytes, bytes.size() - bth_bytes);
}

std::optional<std::uint16_t> Icrc::check(std::span<const std::uint8_t> bytes, std::uint32_t icrc,
                                         std::uint16_t likely) const noexcept {
    if (bytes.size() < bth_bytes) return std::nullopt;
    if (!is_ipv4_) likely = 0;
    const std::uint32_t difference = of(bytes, likely) ^ icrc;
    if (difference == 0) return likely;
    if (!is_ipv4_) return std::nullopt;
    // The difference is (identification ^ likely) * x^(8 * bytes after it + 32): a CRC's own 32
    // bits, too.
    const std::size_t after = header_bytes_ - identification_at - 2 + bytes.size();
    const std::uint32_t found = product(difference, back_by(after + icrc_bytes));
    if ((found & 0xffff) != 0) return std::nullopt;
    // Its first byte's bits are the lower ones: a byte is sent lowest bit first.
    return static_cast<std::uint16_t>(((found >> 16 & 0xff) << 8 | found >> 24) ^ likely);
}

}  // namespace millrace::roce
