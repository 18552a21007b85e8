// A send work request as an executor runs it, and what its opcode says of it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>

#include "layout/block_layout.hpp"
#include "system/counters.hpp"

namespace millrace::soft {

/// In the executor's own memory. With IBV_SEND_INLINE the sges hold pointers of this process and no
/// keys.
struct Request {
    ibv_wr_opcode opcode;
    std::uint32_t flags;
    std::uint32_t immediate;
    std::uint32_t remote_key;
    std::uint64_t remote_address;
    std::uint64_t compare_or_add;  ///< of an atomic; else not set
    std::uint64_t swap;
    const ibv_sge* sges;
    int sge_count;
    std::uint32_t slot;
};

/// As the program wrote it: it may be no ibv_wr_opcode at all, and then may not be loaded as one.
[[nodiscard]] inline unsigned raw_opcode(const ibv_send_wr& wr) noexcept {
    unsigned opcode = 0;
    static_assert(sizeof opcode == sizeof wr.opcode);
    std::memcpy(&opcode, &wr.opcode, sizeof opcode);
    return opcode;
}

[[nodiscard]] constexpr bool sends_to_receive(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
           opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}

/// The request says where its bytes lie at the receiver, and not a receive.
[[nodiscard]] constexpr bool is_placed(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_READ ||
           opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

[[nodiscard]] constexpr bool is_atomic(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

[[nodiscard]] constexpr Count count_of(ibv_wr_opcode opcode) noexcept {
    switch (opcode) {
        case IBV_WR_RDMA_WRITE: return Count::write;
        case IBV_WR_RDMA_WRITE_WITH_IMM: return Count::write_immediate;
        case IBV_WR_RDMA_READ: return Count::read;
        default: return Count::send;
    }
}

/// Of the completion of the receive that it consumes.
[[nodiscard]] constexpr std::uint32_t completion_flags(const Request& request) noexcept {
    std::uint32_t flags = 0;
    if ((request.flags & IBV_SEND_SOLICITED) != 0) flags |= completion_solicited;
    if (request.opcode != IBV_WR_SEND) flags |= completion_immediate;
    if (request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) flags |= completion_write;
    return flags;
}

/// What the owner remembers of a posted send.
struct SentSlot {
    std::uint64_t wr_id;
    ibv_wc_opcode opcode;
};

}  // namespace millrace::soft
