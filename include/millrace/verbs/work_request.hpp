// Typed work requests: each offers what is legal for it and nothing else (a READ has no
// immediate). They are what work 001, section 3.1.2 did with class hierarchies, as plain structs
// with designated initialisers, turned into the C structure in registers.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/verbs/memory.hpp"

namespace millrace::verbs {

/// Bits of ibv_send_flags, typed.
enum class SendFlags : unsigned {
    none = 0,
    signaled = IBV_SEND_SIGNALED,    ///< leaves a completion
    inlined = IBV_SEND_INLINE,       ///< data is taken during the call; at most max_inline bytes
    fence = IBV_SEND_FENCE,          ///< waits for earlier READs
    solicited = IBV_SEND_SOLICITED,  ///< wakes a peer that armed for solicited events
};
[[nodiscard]] constexpr SendFlags operator|(SendFlags a, SendFlags b) noexcept {
    return static_cast<SendFlags>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

/// One or several scatter/gather elements, borrowed until the post returns.
using Slices = std::span<const ibv_sge>;

struct Write {
    std::uint64_t id = 0;
    Slices from;
    RemoteAddress to;
    SendFlags flags = SendFlags::none;
};
struct WriteWithImmediate {
    std::uint64_t id = 0;
    Slices from;
    RemoteAddress to;
    std::uint32_t immediate = 0;  ///< host byte order
    SendFlags flags = SendFlags::none;
};
struct Read {
    std::uint64_t id = 0;
    Slices into;
    RemoteAddress from;
    SendFlags flags = SendFlags::none;
};
/// The 8 bytes at `at` become `desired` if they are `expected`; what they were goes to `into`, of 8
/// bytes. `at` is aligned to 8, its region and queue pair grant Access::remote_atomic. Atomic to
/// other work requests on the same device; to the processor's only where the device says so. RC
/// only. InfiniBand specification, "Atomic operations".
struct CompareAndSwap {
    std::uint64_t id = 0;
    Slices into;
    RemoteAddress at;
    std::uint64_t expected = 0;
    std::uint64_t desired = 0;
    SendFlags flags = SendFlags::none;
};
/// `add` is added to the 8 bytes at `at`, and wraps; otherwise as CompareAndSwap.
struct FetchAndAdd {
    std::uint64_t id = 0;
    Slices into;
    RemoteAddress at;
    std::uint64_t add = 0;
    SendFlags flags = SendFlags::none;
};
struct Send {
    std::uint64_t id = 0;
    Slices from;
    SendFlags flags = SendFlags::none;
};
struct SendWithImmediate {
    std::uint64_t id = 0;
    Slices from;
    std::uint32_t immediate = 0;  ///< host byte order
    SendFlags flags = SendFlags::none;
};
struct Receive {
    std::uint64_t id = 0;
    Slices into;
};

struct RoutedWrite;
/// Many WRITEs of one slice each, from one region to one of the peer's: what they have in common is
/// laid once. Must stay where it is; one RoutedWrite at a time.
class WriteRoute {
  public:
    WriteRoute() noexcept = default;
    WriteRoute(const WriteRoute&) = delete;
    WriteRoute& operator=(const WriteRoute&) = delete;
    /// Before the first.
    void set(std::uint32_t local_key, std::uint32_t remote_key) noexcept {
        slice_.lkey = local_key;
        request_.sg_list = &slice_;
        request_.num_sge = 1;
        request_.opcode = IBV_WR_RDMA_WRITE;
        request_.wr.rdma.rkey = remote_key;
    }

  private:
    friend ibv_send_wr& to_raw(const RoutedWrite& w) noexcept;
    ibv_sge slice_{};
    ibv_send_wr request_{};
};
/// One of them.
struct RoutedWrite {
    std::uint64_t id = 0;
    WriteRoute* route = nullptr;
    std::uint64_t from = 0;  ///< address
    std::uint32_t bytes = 0;
    std::uint64_t to = 0;  ///< the peer's address
    SendFlags flags = SendFlags::none;
};

namespace detail {
inline ibv_send_wr raw_request(std::uint64_t id, Slices slices, ibv_wr_opcode opcode,
                               SendFlags flags) noexcept {
    ibv_send_wr wr;  // only what the opcode reads is set: zeroing 128 bytes would cost more
    wr.wr_id = id;
    wr.next = nullptr;
    wr.sg_list = const_cast<ibv_sge*>(slices.data());
    wr.num_sge = static_cast<int>(slices.size());
    wr.opcode = opcode;
    wr.send_flags = static_cast<unsigned>(flags);
    return wr;
}
}  // namespace detail

[[nodiscard]] inline ibv_recv_wr to_raw(const Receive& r) noexcept {
    ibv_recv_wr wr;
    wr.wr_id = r.id;
    wr.next = nullptr;
    wr.sg_list = const_cast<ibv_sge*>(r.into.data());
    wr.num_sge = static_cast<int>(r.into.size());
    return wr;
}

[[nodiscard]] inline ibv_send_wr to_raw(const Write& w) noexcept {
    auto wr = detail::raw_request(w.id, w.from, IBV_WR_RDMA_WRITE, w.flags);
    wr.wr.rdma.remote_addr = w.to.address;
    wr.wr.rdma.rkey = w.to.rkey;
    return wr;
}
/// In the route, until the next one.
[[nodiscard]] inline ibv_send_wr& to_raw(const RoutedWrite& w) noexcept {
    ibv_send_wr& wr = w.route->request_;
    wr.wr_id = w.id;
    wr.send_flags = static_cast<unsigned>(w.flags);
    wr.wr.rdma.remote_addr = w.to;
    w.route->slice_.addr = w.from;
    w.route->slice_.length = w.bytes;
    return wr;
}
[[nodiscard]] inline ibv_send_wr to_raw(const WriteWithImmediate& w) noexcept {
    auto wr = detail::raw_request(w.id, w.from, IBV_WR_RDMA_WRITE_WITH_IMM, w.flags);
    wr.wr.rdma.remote_addr = w.to.address;
    wr.wr.rdma.rkey = w.to.rkey;
    wr.imm_data = __builtin_bswap32(w.immediate);
    return wr;
}
[[nodiscard]] inline ibv_send_wr to_raw(const Read& r) noexcept {
    auto wr = detail::raw_request(r.id, r.into, IBV_WR_RDMA_READ, r.flags);
    wr.wr.rdma.remote_addr = r.from.address;
    wr.wr.rdma.rkey = r.from.rkey;
    return wr;
}
[[nodiscard]] inline ibv_send_wr to_raw(const CompareAndSwap& c) noexcept {
    auto wr = detail::raw_request(c.id, c.into, IBV_WR_ATOMIC_CMP_AND_SWP, c.flags);
    wr.wr.atomic.remote_addr = c.at.address;
    wr.wr.atomic.rkey = c.at.rkey;
    wr.wr.atomic.compare_add = c.expected;
    wr.wr.atomic.swap = c.desired;
    return wr;
}
[[nodiscard]] inline ibv_send_wr to_raw(const FetchAndAdd& f) noexcept {
    auto wr = detail::raw_request(f.id, f.into, IBV_WR_ATOMIC_FETCH_AND_ADD, f.flags);
    wr.wr.atomic.remote_addr = f.at.address;
    wr.wr.atomic.rkey = f.at.rkey;
    wr.wr.atomic.compare_add = f.add;
    wr.wr.atomic.swap = 0;
    return wr;
}
[[nodiscard]] inline ibv_send_wr to_raw(const Send& s) noexcept {
    return detail::raw_request(s.id, s.from, IBV_WR_SEND, s.flags);
}
[[nodiscard]] inline ibv_send_wr to_raw(const SendWithImmediate& s) noexcept {
    auto wr = detail::raw_request(s.id, s.from, IBV_WR_SEND_WITH_IMM, s.flags);
    wr.imm_data = __builtin_bswap32(s.immediate);
    return wr;
}

/// Up to `Capacity` work requests posted with one doorbell. Slices are borrowed until then.
template <std::size_t Capacity>
class Batch {
  public:
    /// False when the batch is full.
    template <class Request>
    [[nodiscard]] bool add(const Request& request) noexcept {
        if (count_ == Capacity) return false;
        requests_[count_] = to_raw(request);
        if (count_ != 0) requests_[count_ - 1].next = &requests_[count_];
        ++count_;
        return true;
    }
    [[nodiscard]] std::size_t size() const noexcept { return count_; }
    [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
    void clear() noexcept { count_ = 0; }
    [[nodiscard]] ibv_send_wr* first() noexcept { return requests_.data(); }

    Batch() noexcept = default;
    Batch(const Batch&) = delete;  // the chain points into itself
    Batch& operator=(const Batch&) = delete;

  private:
    std::array<ibv_send_wr, Capacity> requests_;
    std::size_t count_ = 0;
};

}  // namespace millrace::verbs
