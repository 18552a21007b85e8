// How processes share UDP port 4791 of an address: 64 sockets in one SO_REUSEPORT group, of which
// the kernel chooses by the destination's queue pair number (a CBPF program that needs no
// privilege). A process leases a slot, a number of 1 to 63, and its node's number leaves that
// remainder, so that what is sent to its queue pairs comes to its socket. Used by the port alone.
//
//   queue pair number  node:12 index:12      slot = node mod 64 = bits 12 to 17
//                      BTH bytes 5, 6, 7            = (byte 5 & 3) << 4 | byte 6 >> 4
//
// Queue pair number 1 falls to slot 0, which is nobody's.
//
// The kernel moves the group's last socket into the place of one that closes. So every member holds
// all 64: the places stay as they are while one member lives, and nobody has to be a daemon. The
// first member (the founder) makes the group. A joiner connects to the abstract Unix socket
//
//   \0millrace-wire/<uid>/<address>
//
// and any member sends it by SCM_RIGHTS: the 64 sockets, the file of leases, and the listening Unix
// socket itself, which so lives as long as the last member, whoever dies when. A lease is an OFD
// lock of one byte of that file, through a description of one's own: the kernel ends it with the
// process. Two groups of the same address cannot be: who founds has the abstract name first. A
// founder tries each slot by a packet to itself before it listens, as sockets of a group that is
// just ending may still be in the kernel's array.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "layout/layout.hpp"
#include "system/descriptor.hpp"
#include "wire/wire_address.hpp"

namespace millrace::soft {

[[nodiscard]] constexpr std::uint32_t slot_of_qpn(std::uint32_t qpn) noexcept {
    return node_of_qpn(qpn) % wire_slots;
}

/// Joined by who made it, until it goes. Not thread-safe.
class WireSlots {
  public:
    /// Joins the group of that address, or founds it, and leases a slot: any, or `wanted`. Nullptr:
    /// another program or user has port 4791 of the address, or the group's members do not answer
    /// (logged), or `wanted` is leased. Throws base::Error: all 63 slots are leased; the kernel
    /// refuses.
    [[nodiscard]] static std::unique_ptr<WireSlots> join(
        const IpAddress& ip, std::optional<std::uint32_t> wanted = std::nullopt);

    /// Processes of this user have a group there. Joins none.
    [[nodiscard]] static bool has_members(const IpAddress& ip) noexcept;

    [[nodiscard]] std::uint32_t slot() const noexcept { return slot_; }
    /// What arrives for this process, and what it sends from.
    [[nodiscard]] int socket() const noexcept { return sockets_[slot_].get(); }
    /// Readable: somebody wants to join, see `admit`.
    [[nodiscard]] int door() const noexcept { return door_.get(); }
    /// Passes everything to those who want to join, without waiting for them.
    void admit() noexcept;
    /// So many slots are leased now.
    [[nodiscard]] std::uint32_t leased() const noexcept;
    /// In a child made by fork: it is no member.
    void become_copy() noexcept;

  private:
    enum class Entry : std::uint8_t { done, nobody_there, try_again, with_strangers, taken };

    WireSlots() = default;
    [[nodiscard]] Entry enter(const IpAddress& ip);
    [[nodiscard]] Entry found(const IpAddress& ip);
    [[nodiscard]] bool each_slot_is_reached(const IpAddress& ip) const;
    void open_leases(const IpAddress& ip);
    [[nodiscard]] bool lease(const IpAddress& ip, std::uint32_t slot);
    void lease_any(const IpAddress& ip);

    std::array<Descriptor, wire_slots> sockets_;
    Descriptor leases_;  ///< the description that is passed on
    Descriptor door_;
    Descriptor lease_;  ///< one's own description of `leases_`
    std::uint32_t slot_ = 0;
};

/// What every socket of the wire is: bound, without waiting, large buffers, GRO, never fragmented
/// (an unconnected socket's packets then have identification 0, which the ICRC covers). `shared`:
/// of a group. Empty: errno says why.
[[nodiscard]] Descriptor wire_socket(const UdpAddress& at, bool shared);
/// Bytes that the system has granted to a socket for what arrives; 0: it does not say.
[[nodiscard]] std::uint32_t wire_receive_buffer(int socket) noexcept;

}  // namespace millrace::soft
