// A send work request as an executor runs it, and what its opcode says of it.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <bit>
#include <cstdint>

#include "block_layout.hpp"
#include "counters.hpp"

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

/// Of an entry that its owner may be changing.
inline void load_sges(const std::uint64_t* words, std::uint32_t count, ibv_sge* sges) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
        sges[i] = std::bit_cast<ibv_sge>(
            std::array<std::uint64_t, 2>{load_once(words[2 * i]), load_once(words[2 * i + 1])});
    }
}

/// What the owner remembers of a posted send.
struct SentSlot {
    std::uint64_t wr_id;
    ibv_wc_opcode opcode;
};

}  // namespace millrace::soft
