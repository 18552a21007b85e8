// What lies in a queue pair's block: the memory that the two ends of one connection share.
// Included by the queue pair (owner), the executor (either end) and their tests.
//
//   offset 0     ControlLine       state, destination, arming, geometry      owner
//          64    HazardLine        "my process executes now", and where      owner
//          128   FaultLine         what the peer's executor objects to       peer's executor
//          192   SendLine          tail of the send sub-ring                 our sends' executor
//          256   PendingLine       run lock, head, tail of the pending ring  see below
//          320   ConsumedLine      receives consumed                         peer's sends' executor
//          384   ReceiveLine       receives posted                           owner
//          448   NewsLine          where completions are announced           owner
//          512   ModeLine          fast, or the link's settings              owner
//          576   PathLine          address, PSNs, MTU                        owner
//          640   receive sub-ring  16 B x receive_entries                    peer's sends' executor
//          …     receive queue     stride x receive_entries: idle ends, too  owner
//          …     send sub-ring     16 B x send_entries                       our sends' executor
//          …     pending ring      stride x send_entries                     owner
//          …     windows           key word per slot, 0: not bound           owner; peer clears
//          …     stamps            16 B x entries, if (completion_stamp.hpp) executors
//
// Positions are 32-bit counters that never restart and are masked for use; the two sub-rings and
// the receive queue have one position per entry. A receive's completion lies at the position of
// the receive, so that one counter serves for both.
//
// The peer may write all of it: the owner never reads back what it wrote itself (it keeps private
// copies), and what it does read it masks, bounds or refuses.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "layout/completion_stamp.hpp"
#include "layout/hazard.hpp"
#include "layout/layout.hpp"

namespace millrace::soft {

inline constexpr std::uint32_t max_queue_entries = 32768;
inline constexpr std::uint32_t max_sges = 30;
inline constexpr std::uint32_t max_inline_bytes = 1024;
inline constexpr int max_reads = 128;  ///< READs and atomics outstanding, either way
inline constexpr std::uint32_t max_message_bytes = std::uint32_t{1} << 31;

/// Where all positions start: just before they wrap, so that every queue pair exercises it.
inline constexpr std::uint32_t first_position = 0U - 256U;

/// What a valid sub-ring entry at `position` says in `sequence`. Never 0 (fresh memory) within
/// the first lap, and different in each lap.
[[nodiscard]] constexpr std::uint32_t sequence_of(std::uint32_t position) noexcept {
    return position + 0x80000000U;
}

/// One load of a word that the other side may be writing, so that what was checked is what is used.
template <class T>
[[nodiscard]] inline T load_once(const T& word) noexcept {
    return std::atomic_ref<T>{const_cast<T&>(word)}.load(std::memory_order_relaxed);
}

/// State word: which queue pair (generation, index), which of its connections, which ibv state.
/// Unequal words that differ only in the lowest byte belong to the same connection.
[[nodiscard]] constexpr std::uint64_t make_state_word(std::uint32_t generation, std::uint32_t index,
                                                      std::uint32_t connection,
                                                      ibv_qp_state state) noexcept {
    return std::uint64_t{generation & 0xfffff} << 44 | std::uint64_t{index & 0xfff} << 32 |
           std::uint64_t{connection & 0xffffff} << 8 | static_cast<std::uint64_t>(state);
}
inline constexpr std::uint64_t state_mask = 0xff;

/// Destination word: block generation (0: its block is not mapped yet) << 32 | queue pair number.
[[nodiscard]] constexpr std::uint64_t make_destination(std::uint32_t generation,
                                                       std::uint32_t qpn) noexcept {
    return std::uint64_t{generation} << 32 | qpn;
}

/// Armed words: epoch << 5 | "make a full fence behind each completion" | "say when each completion
/// was written" | "announce completions in the news page" | mode.
enum : std::uint32_t {
    armed_not = 0,
    armed_any = 1,
    armed_solicited = 2,
    armed_mode_mask = 3,
    armed_news = 4,
    armed_stamps = 8,
    armed_fenced = 16,          ///< who arms leaves the fence to whoever completes (polling.hpp)
    armed_attention_mask = 31,  ///< whoever completes has something to do
    armed_epoch = 32,
};

struct alignas(cache_line) ControlLine {
    std::atomic<std::uint64_t> state_word;
    std::atomic<std::uint64_t> destination;
    std::atomic<std::uint32_t> armed_send;
    std::atomic<std::uint32_t> armed_receive;
    std::atomic<std::int32_t> bell_send;  ///< descriptor in the owner's process, -1: no channel
    std::atomic<std::int32_t> bell_receive;
    std::atomic<std::uint32_t> pd;
    std::atomic<std::uint32_t> access;  ///< ibv_access_flags of the queue pair
    std::uint32_t send_entries;         ///< geometry: written once
    std::uint32_t receive_entries;
    std::uint8_t send_sges;
    std::uint8_t receive_sges;
    std::uint16_t type;  ///< ibv_qp_type: written once
    std::uint32_t inline_bytes;
    std::atomic<std::uint32_t> min_rnr_timer;  ///< as in ibv_qp_attr
    std::atomic<std::int32_t> bell_async;      ///< of the owner's context, for what no poll may see
};
static_assert(sizeof(ControlLine) == 64);

/// Of the owner's process: its own sends (`send`), the peer's pending ones (`run`). Each has one
/// writer at a time.
struct alignas(cache_line) HazardLine {
    Hazard send;
    Hazard run;
};
static_assert(sizeof(HazardLine) == cache_line);

/// 0, or 1 + the ibv_wc_status of the first outstanding request; WR_FLUSH_ERR: none is to blame.
struct alignas(cache_line) FaultLine {
    std::atomic<std::uint32_t> receive;  ///< the peer, executing its sends to us
    std::atomic<std::uint32_t> send;     ///< the peer, executing our pending sends
    std::atomic<std::uint32_t> wishes;   ///< PeerWish, set by the peer, taken by the owner
    /// Of a shared receive queue: 1 + the receive that `receive` is about, 0: none.
    std::atomic<std::uint32_t> receive_slot;
    /// Mode `strict`: the reasons (reasons.hpp), written before what they are about.
    std::atomic<std::uint64_t> receive_reason;
    std::atomic<std::uint64_t> receive_amount;
    std::atomic<std::uint64_t> send_reason;
    std::atomic<std::uint64_t> send_amount;
};
/// The two lines that posting looks at, as they lie in the block.
struct ExecutionLines {
    HazardLine hazard;
    FaultLine fault;
};
/// What the owner has to do for the peer, bits.
enum PeerWish : std::uint32_t {
    wish_established = 1,  ///< tell its program: the peer's first request came while it was in RTR
    wish_copies = 2,       ///< serve the peer copies (copy_service.hpp)
};

struct alignas(cache_line) SendLine {
    std::atomic<std::uint32_t> completions;  ///< position of the next send sub-ring entry
};

/// `head` is advanced by whoever holds `lock`, `tail` by the owner. `step` and `step_due` are about
/// the request at `head`, and the lock holder's as well.
struct alignas(cache_line) PendingLine {
    std::atomic<std::uint32_t> lock;  ///< 0, or a `RunSide`
    std::atomic<std::uint32_t> head;
    std::atomic<std::uint32_t> tail;
    std::atomic<std::uint32_t> step;     ///< how much of its plan is done; 0: nothing
    std::atomic<std::int64_t> step_due;  ///< if it is not 0: when it goes on
};
/// In `step`: all bytes are there, and the sender may know; the receiver does not yet.
inline constexpr std::uint32_t step_landed = 1U << 31;
enum RunSide : std::uint32_t { run_free = 0, run_owner = 1, run_peer = 2 };

struct alignas(cache_line) ConsumedLine {
    std::atomic<std::uint32_t> position;
};

struct alignas(cache_line) ReceiveLine {
    /// Receives posted; of a shared receive queue's queue pair, polled plus what its sub-ring
    /// holds.
    std::atomic<std::uint32_t> tail;
    std::uint32_t type;        ///< ibv_qp_type: written once
    std::uint32_t pool_index;  ///< the block of its receive pool, if generation is not 0: once
    std::uint32_t pool_generation;
    std::atomic<std::uint32_t> qkey;
    std::uint32_t stamped;  ///< 1: the block has stamps; written once
    std::uint32_t pd;       ///< whose regions receives lie in, also those of a pool: written once
};

/// Words of news_page.hpp, for the two sub-rings; read while the armed words say so.
struct alignas(cache_line) NewsLine {
    std::atomic<std::uint64_t> send;
    std::atomic<std::uint64_t> receive;
    std::atomic<std::uint64_t> copy_box;  ///< copy_box_layout.hpp: where the peer may ask
};

/// How the owner's device behaves (mode.hpp): both ends have to agree. Written once.
struct alignas(cache_line) ModeLine {
    std::uint32_t kind;
    std::uint32_t mtu;
    std::uint32_t header;
    std::uint32_t packets_in_flight;
    std::uint64_t bits_per_second;
    std::int64_t latency_ns;
    std::int64_t jitter_ns;
    std::int64_t delay_ns;
    std::uint32_t in_order;
};

/// What ibv_modify_qp was told of the way to the peer: both ends' have to agree (path.hpp). Written
/// before the state that needs it.
struct alignas(cache_line) PathLine {
    std::atomic<std::uint32_t> receive_psn;    ///< rq_psn, from RTR on
    std::atomic<std::uint32_t> send_psn;       ///< sq_psn, from RTS on
    std::atomic<std::uint32_t> mtu;            ///< in bytes
    std::atomic<std::uint32_t> leads_to_port;  ///< 1: the address vector does
};

/// One completion; `sequence` is stored last, so an entry is there as a whole or not at all.
struct alignas(16) CompletionEntry {
    std::uint32_t byte_len;
    std::uint32_t immediate;
    std::uint32_t slot_and_flags;  ///< send queue slot, and below
    std::atomic<std::uint32_t> sequence;
};
static_assert(sizeof(CompletionEntry) == 16);
enum : std::uint32_t {
    completion_slot_mask = 0xffff,
    completion_solicited = 1U << 16,
    completion_immediate = 1U << 17,
    completion_write = 1U << 18,          ///< of a WRITE with immediate, not a SEND
    completion_invalidated = 1U << 19,    ///< `immediate` is the key that the SEND has invalidated
    completion_service_level_shift = 24,  ///< of a datagram: 4 bits
    completion_grh = 1U << 28,            ///< of a datagram: the receive begins with a GRH
    completion_protection = 1U << 29,     ///< of a datagram: the receive's memory is not there
};

/// Followed by its sges.
struct alignas(16) ReceiveEntry {
    std::uint32_t sges;
    std::uint32_t unused;
    std::uint64_t wr_id;  ///< in its owner's copy alone
};
static_assert(sizeof(ReceiveEntry) == 16 && sizeof(ibv_sge) == 16);

/// A send request that waits. Followed by its sges, or its inline bytes.
struct alignas(16) PendingEntry {
    std::uint64_t remote_address;
    std::uint64_t compare_or_add;  ///< of an atomic
    std::uint64_t swap;            ///< the same; of one that is lost on the way: so many bytes land
    std::uint32_t remote_key;
    std::uint32_t immediate;
    std::uint32_t opcode;
    std::uint32_t flags;  ///< ibv_send_flags; IBV_SEND_SIGNALED as resolved with sq_sig_all
    std::uint32_t sges;
    std::uint32_t inline_length;
    std::uint32_t slot;
    std::uint32_t plan;  ///< the seed of its StrictPlan; 0: to be executed as a whole
    std::int64_t due;    ///< not to be executed before, in `cable_now`'s time; 0: at once
};
static_assert(sizeof(PendingEntry) == 64);
/// In its flags, besides what ibv_send_flags has: it is lost on the way (mode `faulty`).
inline constexpr std::uint32_t pending_lost = 1U << 31;

/// The owner's engine may look at it while the entry is used again.
inline void store_due(PendingEntry& entry, std::int64_t due) noexcept {
    std::atomic_ref{entry.due}.store(due, std::memory_order_relaxed);
}

/// The numbers that a block's layout follows from.
struct Geometry {
    std::uint32_t send_entries = 1;  ///< powers of two
    std::uint32_t receive_entries = 1;
    std::uint32_t send_sges = 1;
    std::uint32_t receive_sges = 1;
    std::uint32_t inline_bytes = 0;
    bool stamped = false;

    [[nodiscard]] constexpr bool valid() const noexcept {
        return std::has_single_bit(send_entries) && send_entries <= max_queue_entries &&
               std::has_single_bit(receive_entries) && receive_entries <= max_queue_entries &&
               send_sges <= max_sges && receive_sges <= max_sges &&
               inline_bytes <= max_inline_bytes;
    }
    [[nodiscard]] constexpr std::size_t receive_stride() const noexcept {
        return sizeof(ReceiveEntry) + std::size_t{receive_sges} * sizeof(ibv_sge);
    }
    [[nodiscard]] constexpr std::size_t pending_stride() const noexcept {
        const std::size_t sges = std::size_t{send_sges} * sizeof(ibv_sge);
        const std::size_t bytes = (std::size_t{inline_bytes} + 15) & ~std::size_t{15};
        return sizeof(PendingEntry) + (sges > bytes ? sges : bytes);
    }
    static constexpr std::size_t rings_offset = 640;
    [[nodiscard]] constexpr std::size_t receive_queue_offset() const noexcept {
        return rings_offset + std::size_t{receive_entries} * sizeof(CompletionEntry);
    }
    [[nodiscard]] constexpr std::size_t send_ring_offset() const noexcept {
        return receive_queue_offset() + receive_entries * receive_stride();
    }
    [[nodiscard]] constexpr std::size_t pending_offset() const noexcept {
        return send_ring_offset() + std::size_t{send_entries} * sizeof(CompletionEntry);
    }
    [[nodiscard]] constexpr std::size_t windows_offset() const noexcept {
        return (pending_offset() + send_entries * pending_stride() + 63) & ~std::size_t{63};
    }
    [[nodiscard]] constexpr std::size_t stamps_offset() const noexcept {
        return windows_offset() + windows_per_queue_pair * sizeof(std::uint64_t);
    }
    [[nodiscard]] constexpr std::size_t block_size() const noexcept {
        const std::size_t stamps = std::size_t{receive_entries} + send_entries;
        const std::size_t end = stamps_offset() + (stamped ? stamps * sizeof(CompletionStamp) : 0);
        return (end + page_size - 1) & ~(page_size - 1);
    }
};

/// Typed pointers into a mapped block, by a geometry that was checked against its size.
struct BlockView {
    ControlLine* control = nullptr;
    HazardLine* hazard = nullptr;
    FaultLine* fault = nullptr;
    SendLine* send = nullptr;
    PendingLine* pending = nullptr;
    ConsumedLine* consumed = nullptr;
    ReceiveLine* receive = nullptr;
    NewsLine* news = nullptr;
    ModeLine* mode = nullptr;
    PathLine* path = nullptr;
    CompletionEntry* receive_ring = nullptr;
    CompletionEntry* send_ring = nullptr;
    std::byte* receive_queue = nullptr;
    std::byte* pending_ring = nullptr;
    std::atomic<std::uint64_t>* windows = nullptr;
    CompletionStamp* receive_stamps = nullptr;  ///< of the sub-rings; null: there are none
    CompletionStamp* send_stamps = nullptr;
    std::uint32_t send_mask = 0;
    std::uint32_t receive_mask = 0;
    std::uint32_t receive_stride = 0;
    std::uint32_t pending_stride = 0;
    std::uint32_t send_sges = 0;
    std::uint32_t receive_sges = 0;
    std::uint32_t inline_bytes = 0;

    BlockView() = default;
    BlockView(std::byte* memory, const Geometry& geometry) noexcept
        : control{at<ControlLine>(memory, 0)},
          hazard{at<HazardLine>(memory, 64)},
          fault{at<FaultLine>(memory, 128)},
          send{at<SendLine>(memory, 192)},
          pending{at<PendingLine>(memory, 256)},
          consumed{at<ConsumedLine>(memory, 320)},
          receive{at<ReceiveLine>(memory, 384)},
          news{at<NewsLine>(memory, 448)},
          mode{at<ModeLine>(memory, 512)},
          path{at<PathLine>(memory, 576)},
          receive_ring{at<CompletionEntry>(memory, Geometry::rings_offset)},
          send_ring{at<CompletionEntry>(memory, geometry.send_ring_offset())},
          receive_queue{memory + geometry.receive_queue_offset()},
          pending_ring{memory + geometry.pending_offset()},
          windows{at<std::atomic<std::uint64_t>>(memory, geometry.windows_offset())},
          send_mask{geometry.send_entries - 1},
          receive_mask{geometry.receive_entries - 1},
          receive_stride{static_cast<std::uint32_t>(geometry.receive_stride())},
          pending_stride{static_cast<std::uint32_t>(geometry.pending_stride())},
          send_sges{geometry.send_sges},
          receive_sges{geometry.receive_sges},
          inline_bytes{geometry.inline_bytes} {
        if (!geometry.stamped) return;
        receive_stamps = at<CompletionStamp>(memory, geometry.stamps_offset());
        send_stamps = receive_stamps + geometry.receive_entries;
    }

    /// The geometry that a block's owner wrote: nullopt if it does not fit `size`.
    [[nodiscard]] static std::optional<Geometry> geometry_of_peer(std::byte* memory,
                                                                  std::size_t size) noexcept {
        if (size < page_size) return std::nullopt;
        const auto* control = at<ControlLine>(memory, 0);
        Geometry geometry;
        geometry.send_entries = load_once(control->send_entries);
        geometry.receive_entries = load_once(control->receive_entries);
        geometry.send_sges = load_once(control->send_sges);
        geometry.receive_sges = load_once(control->receive_sges);
        geometry.inline_bytes = load_once(control->inline_bytes);
        geometry.stamped = load_once(at<ReceiveLine>(memory, 384)->stamped) != 0;
        if (!geometry.valid() || geometry.block_size() > size) return std::nullopt;
        return geometry;
    }
    /// The view of such a block.
    [[nodiscard]] static std::optional<BlockView> of_peer(std::byte* memory,
                                                          std::size_t size) noexcept {
        const auto geometry = geometry_of_peer(memory, size);
        if (!geometry) return std::nullopt;
        return BlockView{memory, *geometry};
    }

    [[nodiscard]] ReceiveEntry* receive_entry(std::uint32_t position) const noexcept {
        return at<ReceiveEntry>(receive_queue,
                                std::size_t{position & receive_mask} * receive_stride);
    }
    [[nodiscard]] PendingEntry* pending_entry(std::uint32_t position) const noexcept {
        return at<PendingEntry>(pending_ring, std::size_t{position & send_mask} * pending_stride);
    }
    /// When something is to be done for the request at the head of the pending ring.
    [[nodiscard]] std::int64_t pending_due(std::uint32_t head) const noexcept {
        if (pending->step.load(std::memory_order_acquire) != 0) {
            return pending->step_due.load(std::memory_order_relaxed);
        }
        return load_once(pending_entry(head)->due);
    }

  private:
    template <class T>
    [[nodiscard]] static T* at(std::byte* memory, std::size_t offset) noexcept {
        return reinterpret_cast<T*>(memory + offset);
    }
};

}  // namespace millrace::soft
