// The copy box: where a process that may not copy from and to a peer's memory asks the peer's
// service thread to do it. Included by both: CopyService (owner of the memory) and CopyAsker.
// docs/soft/copy-service.md.
//
// One per peer node, in a block of the owner's node memory that only this peer maps:
//
//   offset 0     state     free -> posted -> taken -> done -> free
//                          asker: posts, takes back what is posted, frees what is done
//                          owner: takes, and says that it is done
//                waiting   1: the asker sleeps on `state`                     asker
//          64    what is asked for                                            asker
//          128   how it ended                                                 owner
//          4096  the bytes, on their way in or out                            both
//
// The owner believes nothing of it: it reads what is asked for once, and checks it against its own
// tables. The bytes go between here and the owner's memory by preadv and pwritev on the node's
// file, so that memory that is not there is an error and no signal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "layout/layout.hpp"

namespace millrace::soft {

enum CopyState : std::uint32_t { copy_free = 0, copy_posted = 1, copy_taken = 2, copy_done = 3 };

/// By which right: decides what the owner checks, and the direction.
enum class CopyPurpose : std::uint32_t {
    write,        ///< into a region, as a WRITE
    read,         ///< out of a region, as a READ
    atomic_read,  ///< the two halves of an atomic, whose lock the asker holds
    atomic_write,
    receive,  ///< into a posted receive
};
[[nodiscard]] constexpr bool copies_in(CopyPurpose purpose) noexcept {
    return purpose != CopyPurpose::read && purpose != CopyPurpose::atomic_read;
}

enum class CopyOutcome : std::uint32_t {
    nothing,
    ok,
    unmapped,       ///< registered, and not there
    refused,        ///< no such key (any more), out of its bounds, no right, no such receive
    not_connected,  ///< the queue pair does not hear this peer (now)
};

struct alignas(cache_line) CopyQuestion {
    std::uint32_t queue_pair;  ///< the owner's, by index
    std::uint32_t purpose;     ///< CopyPurpose
    std::uint32_t key;         ///< of a region or a window
    std::uint32_t receive;     ///< its position, or its number in the shared receive queue
    std::uint64_t address;     ///< in the owner's process
    std::uint32_t bytes;
};

struct CopyBox {
    alignas(cache_line) std::atomic<std::uint32_t> state;
    std::atomic<std::uint32_t> waiting;
    CopyQuestion question;
    alignas(cache_line) std::atomic<std::uint32_t> outcome;
};
static_assert(sizeof(CopyBox) == 192);

inline constexpr std::size_t copy_bytes_offset = page_size;
inline constexpr std::size_t largest_copy = std::size_t{128} << 10;  ///< of one question
inline constexpr std::size_t copy_box_size = copy_bytes_offset + largest_copy;

/// What NewsLine::copy_box says: the box's block. 0: there is none.
[[nodiscard]] constexpr std::uint64_t make_copy_box_word(std::uint32_t generation,
                                                         std::uint32_t index) noexcept {
    return std::uint64_t{generation} << 32 | index;
}

}  // namespace millrace::soft
