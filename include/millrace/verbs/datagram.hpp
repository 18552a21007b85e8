// Unreliable datagrams (UD): one queue pair sends to any other and receives from any. What is sent
// may be lost, never torn; at most one MTU each. InfiniBand specification, "Unreliable Datagram".
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/control_path.hpp"
#include "millrace/verbs/queue_pair.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::verbs {

/// The way to a peer's port, or to a multicast group: used by any number of requests. Made by
/// ProtectionDomain::create_address_handle; must outlive the requests that name it. Move-only.
class AddressHandle {
  public:
    AddressHandle() noexcept = default;
    AddressHandle(AddressHandle&& other) noexcept;
    AddressHandle& operator=(AddressHandle&& other) noexcept;
    AddressHandle(const AddressHandle&) = delete;
    AddressHandle& operator=(const AddressHandle&) = delete;
    ~AddressHandle();

    [[nodiscard]] ibv_ah* raw() const noexcept { return raw_; }

  private:
    friend class ProtectionDomain;
    AddressHandle(ibv_ah* raw, const ControlPath& path) noexcept : raw_{raw}, path_{&path} {}
    ibv_ah* raw_ = nullptr;
    const ControlPath* path_ = nullptr;
};

/// Queue pair number of a datagram that goes to a multicast group.
inline constexpr std::uint32_t multicast_queue_pair = 0xffffff;

/// To whom a datagram goes.
struct DatagramDestination {
    const AddressHandle* way = nullptr;  ///< required
    std::uint32_t queue_pair = 0;        ///< number; `multicast_queue_pair` for a group
    std::uint32_t key = 0;               ///< the receiver's Q_Key: with another one it is dropped
};

struct SendTo {
    std::uint64_t id = 0;
    Slices from;  ///< together at most the MTU
    DatagramDestination to;
    SendFlags flags = SendFlags::none;
};
struct SendToWithImmediate {
    std::uint64_t id = 0;
    Slices from;
    DatagramDestination to;
    std::uint32_t immediate = 0;  ///< host byte order
    SendFlags flags = SendFlags::none;
};

[[nodiscard]] inline ibv_send_wr to_raw(const SendTo& s) noexcept {
    auto wr = detail::raw_request(s.id, s.from, IBV_WR_SEND, s.flags);
    wr.wr.ud.ah = s.to.way->raw();
    wr.wr.ud.remote_qpn = s.to.queue_pair;
    wr.wr.ud.remote_qkey = s.to.key;
    return wr;
}
[[nodiscard]] inline ibv_send_wr to_raw(const SendToWithImmediate& s) noexcept {
    auto wr = to_raw(SendTo{s.id, s.from, s.to, s.flags});
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    wr.imm_data = __builtin_bswap32(s.immediate);
    return wr;
}

/// Bytes at the beginning of every datagram's receive: room for the global route header, whether or
/// not there is one. A receive needs as many more than the message has.
inline constexpr std::size_t datagram_header_bytes = sizeof(ibv_grh);
static_assert(datagram_header_bytes == 40);

/// What arrived in a receive's memory.
struct Datagram {
    std::span<const std::byte> message;  ///< behind the header
    const ibv_grh* header = nullptr;     ///< null: it came without one
    std::uint32_t from = 0;              ///< the sender's queue pair number
};

/// Reads a completion of a datagram's receive. `memory`: that of the receive, in one piece, at
/// least as long as the completion says.
[[nodiscard]] inline Datagram datagram_in(const Completion& completion,
                                          std::span<const std::byte> memory) noexcept {
    const bool global = (completion.raw.wc_flags & IBV_WC_GRH) != 0;
    const std::size_t bytes =
        completion.bytes() < memory.size() ? completion.bytes() : memory.size();
    const std::size_t header = bytes < datagram_header_bytes ? bytes : datagram_header_bytes;
    return {memory.subspan(header, bytes - header),
            global && header == datagram_header_bytes
                ? reinterpret_cast<const ibv_grh*>(memory.data())
                : nullptr,
            completion.raw.src_qp};
}

/// A queue pair's membership in a multicast group, which ends with it. Move-only; must go before
/// the queue pair, which may be moved meanwhile. Made by DatagramQueuePair::join.
class GroupMembership {
  public:
    GroupMembership() noexcept = default;
    GroupMembership(GroupMembership&& other) noexcept;
    GroupMembership& operator=(GroupMembership&& other) noexcept;
    GroupMembership(const GroupMembership&) = delete;
    GroupMembership& operator=(const GroupMembership&) = delete;
    /// Leaves. Never throws; what the device has against it is in the log.
    ~GroupMembership();

    /// Of one that was not moved from.
    explicit operator bool() const noexcept { return queue_pair_ != nullptr; }
    /// From here on what is sent to the group does not come; what has come stays. Throws Error if
    /// the device refuses.
    void leave();
    [[nodiscard]] const ibv_gid& group() const noexcept { return group_; }

  private:
    friend class DatagramQueuePair;
    GroupMembership(ibv_qp* queue_pair, const ControlPath& path, const ibv_gid& group,
                    std::uint16_t lid) noexcept
        : queue_pair_{queue_pair}, path_{&path}, group_{group}, lid_{lid} {}
    ibv_qp* queue_pair_ = nullptr;  ///< null: it has left, or was moved from
    const ControlPath* path_ = nullptr;
    ibv_gid group_{};
    std::uint16_t lid_ = 0;
};

/// A queue pair for datagrams. Made by ProtectionDomain::create_datagram_queue_pair. Move-only.
/// Posting is thread-safe.
class DatagramQueuePair {
  public:
    DatagramQueuePair() noexcept = default;

    /// RESET -> INIT -> RTR -> RTS: from here it receives what names `key`, and sends. Throws
    /// Error, as QueuePair::initialise.
    void start(std::uint8_t port, std::uint32_t key, std::uint32_t own_packet_sequence = 0);
    /// -> ERROR: everything posted completes as flushed. Never throws.
    void fail() noexcept { queue_pair_.fail(); }
    [[nodiscard]] ibv_qp_state state() const { return queue_pair_.state(); }

    /// Joins a multicast group: as long as the membership lives, also receives what is sent to it
    /// with its own Q_Key. `lid`: the group's on InfiniBand, 0 elsewhere. Throws Error. For a
    /// device who joins twice is a member once: the first membership that ends is the end of both.
    [[nodiscard]] GroupMembership join(const ibv_gid& group, std::uint16_t lid = 0);

    /// As QueuePair::post. A message longer than the MTU is not sent, whatever its completion says.
    [[nodiscard]] int post(const SendTo& request) noexcept { return queue_pair_.post(request); }
    [[nodiscard]] int post(const SendToWithImmediate& request) noexcept {
        return queue_pair_.post(request);
    }
    template <std::size_t Capacity>
    [[nodiscard]] int post(Batch<Capacity>& batch, std::size_t* posted = nullptr) noexcept {
        return queue_pair_.post(batch, posted);
    }
    [[nodiscard]] int post(const Receive& receive) noexcept { return queue_pair_.post(receive); }

    /// For who accounts its slots (end/send_window.hpp): post() of both is the same.
    [[nodiscard]] QueuePair& queue_pair() noexcept { return queue_pair_; }
    [[nodiscard]] const ibv_qp_cap& capacity() const noexcept { return queue_pair_.capacity(); }
    [[nodiscard]] std::uint32_t number() const noexcept { return queue_pair_.number(); }
    [[nodiscard]] ibv_qp* raw() const noexcept { return queue_pair_.raw(); }

  private:
    friend class ProtectionDomain;
    explicit DatagramQueuePair(QueuePair queue_pair, const ControlPath& path) noexcept
        : queue_pair_{std::move(queue_pair)}, path_{&path} {}
    QueuePair queue_pair_;
    const ControlPath* path_ = nullptr;
};

}  // namespace millrace::verbs
