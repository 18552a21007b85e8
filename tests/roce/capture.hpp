// Files of packets (pcap) of Ethernet frames, for tests that read what others sent, and for judges
// that read what we send.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "roce/icrc.hpp"
#include "roce/packet.hpp"

namespace millrace::roce {

/// A RoCEv2 datagram of a file: what its receiver sees of it, and what it does not.
struct Captured {
    Route route;
    std::uint16_t identification = 0;
    std::vector<std::uint8_t> bytes;  ///< from the BTH to the end of the ICRC
};

/// For gtest's messages.
inline void PrintTo(const Route& route, std::ostream* stream) {
    *stream << (is_ipv4(route.source) ? "IPv4" : "IPv6");
}

inline Gid ipv4_gid(const std::uint8_t* address) {
    Gid gid{};
    gid[10] = gid[11] = 0xff;
    std::copy_n(address, 4, gid.begin() + 12);
    return gid;
}

inline std::uint16_t short_at(const std::uint8_t* at) {
    return static_cast<std::uint16_t>(at[0] << 8 | at[1]);
}

inline constexpr std::size_t ethernet_bytes = 14;
inline constexpr std::size_t captured_headers = ethernet_bytes + 20 + 8;

/// Of IPv4 without options.
inline std::vector<Captured> read_capture(const std::string& path) {
    std::ifstream file{path, std::ios::binary};
    const std::vector<char> chars{std::istreambuf_iterator<char>{file}, {}};
    const std::vector<std::uint8_t> all{chars.begin(), chars.end()};
    std::vector<Captured> packets;
    for (std::size_t at = 24; at + 16 <= all.size();) {
        std::uint32_t size = 0;
        std::memcpy(&size, all.data() + at + 8, sizeof size);
        const std::uint8_t* frame = all.data() + at + 16;
        const std::uint8_t* ip = frame + ethernet_bytes;
        Captured packet;
        packet.route = {ipv4_gid(ip + 12), ipv4_gid(ip + 16), short_at(ip + 20), short_at(ip + 22)};
        packet.identification = short_at(ip + 4);
        packet.bytes.assign(frame + captured_headers, frame + size);
        packets.push_back(std::move(packet));
        at += 16 + size;
    }
    return packets;
}

/// Packets from their BTH to the end of their padding get an ICRC, and headers with it.
inline void write_capture(const std::string& path, const Route& route,
                          const std::vector<std::vector<std::uint8_t>>& packets) {
    std::vector<std::uint8_t> all;
    const auto little = [&](std::uint32_t value) {
        for (int i = 0; i < 4; ++i) all.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
    };
    const auto big = [&](std::size_t value) {
        all.push_back(static_cast<std::uint8_t>(value >> 8));
        all.push_back(static_cast<std::uint8_t>(value));
    };
    for (const std::uint32_t word : {0xa1b2c3d4U, 0x00040002U, 0U, 0U, 65535U, 1U}) little(word);
    for (const auto& packet : packets) {
        const std::size_t udp_length = 8 + packet.size() + icrc_bytes;
        const bool four = is_ipv4(route.source);
        const auto size =
            static_cast<std::uint32_t>(ethernet_bytes + (four ? 20 : 40) + udp_length);
        little(0);
        little(0);
        little(size);
        little(size);
        all.insert(all.end(), 12, 0x02);
        if (four) {
            big(0x0800);
            big(0x4500);
            big(20 + udp_length);
            big(0);       // identification
            big(0x4000);  // "don't fragment"
            big(64 << 8 | 17);
            big(0);
        } else {
            big(0x86dd);
            big(0x6120);  // a traffic class and a flow label, which the ICRC does not cover
            big(0x3456);
            big(udp_length);
            big(17 << 8 | 64);
        }
        const std::ptrdiff_t begins = four ? 12 : 0;
        all.insert(all.end(), route.source.begin() + begins, route.source.end());
        all.insert(all.end(), route.destination.begin() + begins, route.destination.end());
        big(route.source_port);
        big(route.destination_port);
        big(udp_length);
        big(0);
        all.insert(all.end(), packet.begin(), packet.end());
        all.resize(all.size() + icrc_bytes);
        Icrc::put(Icrc{route}.of(packet), all.data() + all.size() - icrc_bytes);
    }
    std::ofstream{path, std::ios::binary}.write(reinterpret_cast<const char*>(all.data()),
                                                static_cast<std::streamsize>(all.size()));
}

}  // namespace millrace::roce
