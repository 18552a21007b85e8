// The producer's end of a ring: the engine behind flow::Producer. It moves bytes; what an item is
// (a slot, a frame) its caller lays out with watermark.hpp.
//
//                 transferred   intransit    produced
//   own ring      ----+-------------+------------+--------   room for items
//                     |  in flight  |  stranded  |
//   peer's ring   --+-----------------+-----------------     same offsets, same size S
//                consumed
//
//   consumed <= intransit <= produced      transferred <= intransit
//   produced - transferred <= S            (own ring)
//   intransit - consumed  <= S             (peer's ring)
//
// All four are positions in bytes and grow modulo 2^64. Two states: *straight*, where everything
// produced can be in transit at once and one comparison guards the fast path; and behind, where the
// peer's ring is full as far as is known and items wait in ours for the next call. With dynamic
// batching, straight is called *weighed*: each send() weighs whether what has gathered is due.
//
// With an active mover the queue is *moved*: the calling thread only lays items out and publishes
// `produced`, and everything from there on is done by the mover's thread (src/ring/sender_mover.hpp
// says who writes what).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/completion_sleeper.hpp"
#include "millrace/ring/counter.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/every_design.hpp"
#include "millrace/ring/frames.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/push1.hpp"
#include "millrace/ring/push2.hpp"
#include "millrace/ring/send_window.hpp"
#include "millrace/ring/space.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/ring/transfer.hpp"
#include "millrace/ring/wake_up.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring {

/// Counts of what a Sender did since it was made.
struct SenderCounts {
    std::uint64_t bytes = 0;            ///< of ring: payload, marks, padding, skips
    std::uint64_t intransit = 0;        ///< of these, sent; over pull data, told of
    std::uint64_t transferred = 0;      ///< and known to have arrived; over pull, to be pulled
    std::uint64_t credited = 0;         ///< and known to have left the consumer's ring; over pull,
                                        ///< as transferred
    std::uint64_t data_writes = 0;      ///< work requests (WRITEs, SENDs) with items or marks
    std::uint64_t transfer_writes = 0;  ///< work requests that told how far items have arrived
    std::uint64_t space_reads = 0;      ///< work requests that asked for space
    std::uint64_t settling_writes = 0;  ///< empty ones, for a completion that was missing
    std::uint64_t events = 0;           ///< wake-ups sent to the consumer
    std::uint64_t work_requests = 0;    ///< all of them, announcements of sleep included
    std::uint64_t receives = 0;         ///< receives posted for credit
    std::uint64_t full_returns = 0;
    std::uint64_t lazy_refreshes = 0;
    std::uint64_t forced_refreshes = 0;
    std::uint64_t sleeps = 0;
    std::uint64_t wake_ups = 0;  ///< events received
};

/// One thread at a time. Only the constructor and close/flush/wait may block, within their
/// deadlines; only the constructor throws or allocates.
template <Design D>
    requires(check_design<D>())
class Sender {
  public:
    /// Agrees with the peer over `link`, which it takes. Throws Error.
    /// `design`: D, and how it is run.
    Sender(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link, Design design,
           const RingOptions& options, const base::Deadline& deadline);
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;
    ~Sender();

    // ---- the polled path

    /// Makes sure that `bytes` (a multiple of 8) fit at at(). `ok`, `full`, `closed` (by either
    /// end), `peer_lost`, `too_large`. Asking again without append() is allowed.
    base::Status reserve(std::uint64_t bytes) noexcept {
        if (static_cast<std::int64_t>(room_end_ - produced_) >= static_cast<std::int64_t>(bytes))
            [[likely]]
            return base::Status::ok;
        return make_room(bytes);
    }
    /// Where the next item goes, after a reserve() that said ok.
    [[nodiscard]] std::byte* at() const noexcept { return ring_ + offset_; }
    /// How many bytes may be laid there, one item behind the other, without asking again.
    [[nodiscard]] std::uint64_t room() const noexcept { return room_end_ - produced_; }
    /// Its position in the stream.
    [[nodiscard]] std::uint64_t position() const noexcept { return produced_; }
    /// The item at at() is complete, marks included. At most what was reserved.
    void append(std::uint64_t bytes) noexcept {
        produced_ += bytes;
        offset_ += bytes;
    }
    /// To be called after append(): sends what was appended and is due, as far as the peer is
    /// known to have space. `ok` also when nothing is due or it has none: then items wait in our
    /// ring for a later call, or for flush(). `closed`, `peer_lost`.
    base::Status send() noexcept {
        if (way_ != Way::straight) [[unlikely]]
            return send_weighed();
        const std::uint64_t bytes = produced_ - intransit_;
        if (bytes < gather_) return base::Status::ok;
        return push_straight(bytes);
    }
    /// Over pull, and where items are laid in place, the consumer sees an item by its mark: so the
    /// first mark of a batch is laid when the batch is sent. `at`: the word that shows an item, and
    /// lies in the one just reserved.
    void lay_mark(std::byte* at, std::uint64_t word) noexcept {
        if constexpr (may_hold_marks) {
            if (holds_marks_ && produced_ == intransit_) [[unlikely]] {
                held_at_ = at;
                held_ = word;
                return;
            }
        }
        store_word(at, word);
    }
    static constexpr bool may_hold_marks =
        D.data == DataFlow::pull || (D.data == DataFlow::push1 && has_marks(D));

    // ---- items that lie elsewhere

    /// Slices that one WRITE may have; more are not used, whatever the queue pair allows.
    static constexpr std::size_t max_slices = 32;

    /// After a reserve() of a slot that said ok: sends items of `bytes`, which are slots but for
    /// padding and marks, from where they lie in `memory`, in one WRITE that gathers them. Item i
    /// is at `place_of(i)`. How many went, from the first of `count` on. 0: the first cannot go
    /// from where it is (it lies elsewhere; items wait before it; the device may reorder bytes; a
    /// mover sends), and is to be laid as usual. `status`: `ok`, `closed`, `peer_lost`.
    template <class PlaceOf>
        requires(D.data == DataFlow::push1)
    std::uint64_t gather(std::uint64_t count, std::uint64_t bytes,
                         const verbs::MemoryRegion& memory, PlaceOf&& place_of,
                         base::Status& status) noexcept {
        status = base::Status::ok;
        if (!may_gather(status)) return 0;
        const std::uint64_t slot = terms_.slot_bytes;
        const std::size_t slices_of_one = slot == bytes ? 1 : 2;
        count = std::min({count, room() / slot, std::uint64_t{slices_ / slices_of_one}});
        std::array<ibv_sge, max_slices> slices;
        std::size_t used = 0;
        std::uint64_t taken = 0;
        for (; taken < count; ++taken) {
            const auto place = reinterpret_cast<std::uintptr_t>(place_of(taken));
            const std::uint64_t inside = place - reinterpret_cast<std::uintptr_t>(memory.data());
            if (inside > memory.size() || memory.size() - inside < bytes) break;
            std::byte* const end = at() + (taken + 1) * slot;
            slices[used++] = {place, static_cast<std::uint32_t>(bytes), memory.lkey()};
            if (slices_of_one == 1) continue;
            if constexpr (has_marks(D)) {
                store_word(end - mark_bytes, slot_mark(produced_ + taken * slot, terms_.initial));
            }
            slices[used++] = ring_memory_.slice(offset_ + taken * slot + bytes, slot - bytes);
        }
        if (taken == 0) return 0;
        status = push_gathered({slices.data(), used}, taken * slot);
        if (status == base::Status::ok) return taken;
        if (status == base::Status::full) status = base::Status::ok;
        return 0;
    }
    /// Up to where the memory of items is not read any more, as far as completions tell.
    [[nodiscard]] std::uint64_t transferred() noexcept;
    /// Memory to gather from. It must outlive the region, which goes before this.
    [[nodiscard]] verbs::MemoryRegion register_memory(std::span<std::byte> memory) {
        return link_.protection_domain().register_memory(memory, verbs::Access::none);
    }

    // ---- beside it

    /// Sleeps between looks while `ready` says false.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
        const base::Status status = base::wait_until(ready, deadline, policy, parker());
        if (moved_ == nullptr) waiting_ = false;
        return status;
    }
    /// Sends what is stranded, and waits until everything is in the peer's ring. `ok`,
    /// `timed_out`, `cancelled`, `closed`, `peer_lost`.
    base::Status flush(const base::Deadline& deadline, const base::WaitPolicy& policy);
    /// Flushes, and says goodbye with the final position. If flush does not end well, nothing is
    /// said, the ring stays open and its status is returned.
    base::Status close(const base::Deadline& deadline, const base::WaitPolicy& policy);

    [[nodiscard]] const Terms& terms() const noexcept { return terms_; }
    /// counts(), failure() and link() look at what an active mover writes: only while this lock
    /// lives. Without a mover it is no lock.
    [[nodiscard]] std::unique_lock<std::mutex> pause() const noexcept;
    /// As pause; false if that needs waiting.
    [[nodiscard]] bool try_pause(std::unique_lock<std::mutex>& lock) const noexcept;
    [[nodiscard]] SenderCounts counts() const noexcept;
    [[nodiscard]] const connect::Link& link() const noexcept { return link_; }
    /// Why it is lost, where a work request told it, or what the consumer claims. Else empty.
    [[nodiscard]] std::string failure() const;

  private:
    struct Page {
        WakeUpPage wake;
        CounterLine credit;    ///< pushed by the consumer
        CounterLine landing;   ///< of our READs of its progress
        CounterLine transfer;  ///< transfer pull: how far it may go, for the consumer to READ
        CounterLine taken;     ///< space push2: how many SENDs were taken
        CounterLine credits[SpaceView<SpaceNotification::push2>::receives];  ///< their receives
    };
    using DataPush = std::conditional_t<D.data == DataFlow::push2, Push2, Push1>;
    enum class Way : std::uint8_t { behind, straight, weighed, moved };
    class Moved;
    /// Credit that comes by SEND wakes by itself.
    static constexpr bool completions_wake = D.space == SpaceNotification::push2;
    /// The consumer that pulls may owe credit and make no more calls, so a flush asks it.
    static constexpr bool asks_to_flush =
        D.data == DataFlow::pull && D.space != SpaceNotification::pull;
    using Parker = std::conditional_t<completions_wake, CompletionSleeper, Sleeper>;
    class SpaceSleeper;
    struct Cover {
        std::uint64_t ticket;
        std::uint64_t position;
    };

    [[gnu::noinline]] base::Status make_room(std::uint64_t bytes) noexcept;
    base::Status push_straight(std::uint64_t bytes) noexcept {
        if constexpr (D.data != DataFlow::push1) return push_unit_runs();
        // Published before it is sent: a sleeping peer that finds it published waits for it.
        const bool wake = bell_.publish(produced_);
        const base::Status status = run(offset_ - bytes, bytes, produced_, signal_for(produced_));
        if (status != base::Status::ok) [[unlikely]]
            return push_failed(status);
        intransit_ = produced_;
        if (window_.last_is_signaled()) cover();
        const base::Status told = tell();
        if (wake) [[unlikely]]
            (void)bell_.ring();
        return told;
    }
    [[nodiscard]] bool may_gather(base::Status& status) noexcept;
    base::Status push_gathered(verbs::Slices slices, std::uint64_t bytes) noexcept;
    /// Sends all that was appended, due or not.
    base::Status push() noexcept;
    [[gnu::noinline]] base::Status send_weighed() noexcept;
    [[nodiscard]] bool is_due(std::uint64_t bytes) noexcept;
    /// Leaves the rest of a chunk free.
    void pass_rest(std::uint64_t bytes) noexcept {
        produced_ += bytes;
        offset_ += bytes;
        set_room(0);
    }
    void start_mover();
    base::Status make_moved_room(std::uint64_t bytes) noexcept;
    base::Status flush_moved(const base::Deadline& deadline, const base::WaitPolicy& policy);
    [[nodiscard]] base::Parker& parker() noexcept;
    /// What there is to send, as the thread knows that sends.
    [[nodiscard]] std::uint64_t laid() const noexcept {
        return way_ == Way::moved ? laid_ : produced_;
    }
    void set_room(std::uint64_t bytes) noexcept { room_end_ = produced_ + bytes; }
    void stop_fast_path() noexcept {
        if (way_ != Way::moved) set_room(0);
    }
    void show_held_mark() noexcept {
        if (held_at_ != nullptr) [[unlikely]]
            store_word(std::exchange(held_at_, nullptr), held_);
    }
    /// Lays items where the consumer reads them, if it can.
    void go_in_place(verbs::RemoteAddress ring);
    [[gnu::noinline]] base::Status push_behind() noexcept;
    [[gnu::noinline]] base::Status push_failed(base::Status status) noexcept;
    base::Status service() noexcept;
    base::Status settle() noexcept;
    base::Status refresh() noexcept;
    [[nodiscard]] bool hushed() noexcept;
    base::Status end() noexcept;
    base::Status look_at_peer() noexcept;
    base::Status look_for_space() noexcept;
    base::Status ask_consumer() noexcept;
    [[gnu::cold]] base::Status disbelieve() noexcept;
    void fall_behind() noexcept;
    void reap_transferred() noexcept;
    void cover() noexcept {
        covers_[cover_tail_++ & cover_mask_] = {window_.posted(), intransit_};
        covered_ = intransit_;
    }
    /// Whether the run up to `position` must leave a completion.
    [[nodiscard]] Signal signal_for(std::uint64_t position) const noexcept {
        if constexpr (D.transfer == TransferNotification::pull) return Signal::now;
        return position - covered_ >= quarter_ ? Signal::now : Signal::when_due;
    }
    base::Status run(std::uint64_t offset, std::uint64_t bytes,
                     [[maybe_unused]] std::uint64_t position, Signal signal) noexcept {
        if constexpr (D.data != DataFlow::push1) {
            return base::Status::full;  // push_unit_runs() is their way
        } else if constexpr (D.transfer == TransferNotification::immediate) {
            if (!notice_.has_receive(space_.consumed())) return base::Status::full;
            const base::Status status =
                mover_.run_with_immediate(offset, bytes, immediate_of(position), signal);
            if (status == base::Status::ok) notice_.sent(position);
            return status;
        } else {
            return mover_.run(offset, bytes, signal);
        }
    }
    /// How far the consumer can be: over pull, and in place, it may find an item by its mark before
    /// push().
    [[nodiscard]] std::uint64_t reachable() const noexcept {
        if constexpr (D.data == DataFlow::pull) {
            // And before the mover sees it: at most a ring beyond what is known to be pulled.
            return way_ == Way::moved ? transferred_ + terms_.ring_bytes : produced_;
        }
        return terms_.in_place ? produced_ : intransit_;
    }
    /// Tells the consumer how far it may go, where that is not in the data.
    base::Status tell() noexcept {
        if constexpr (D.transfer == TransferNotification::push ||
                      D.transfer == TransferNotification::pull) {
            return tell_counter();
        } else {
            return base::Status::ok;
        }
    }
    base::Status tell_counter() noexcept;
    base::Status push_unit_runs() noexcept;
    [[nodiscard]] std::uint64_t units_within(std::uint64_t limit,
                                             std::uint64_t& last) const noexcept;
    [[nodiscard]] bool is_skip(std::uint64_t offset, std::uint64_t position) const noexcept {
        return load_word(ring_ + offset) == Frames<D>::skip(position, terms_.secret);
    }
    [[nodiscard]] std::uint64_t unit_at(std::uint64_t offset,
                                        std::uint64_t position) const noexcept;
    [[nodiscard]] std::uint64_t in_use() const noexcept { return produced_ - space_.consumed(); }
    [[nodiscard]] std::uint64_t peer_room() const noexcept {
        const std::uint64_t used = in_use();
        return used >= terms_.window_bytes ? 0 : terms_.window_bytes - used;
    }
    [[nodiscard]] std::uint64_t own_room() const noexcept {
        if (D.data == DataFlow::pull || terms_.in_place) return peer_room();
        return terms_.ring_bytes - (produced_ - transferred_);
    }

    // Hot.
    std::uint64_t room_end_ = 0;  ///< position from which on make_room must be asked
    std::uint64_t produced_ = 0;
    std::uint64_t offset_ = 0;  ///< of produced_ in the ring; ring_bytes where it must wrap
    std::uint64_t intransit_ = 0;
    std::uint64_t covered_ = 0;  ///< position behind the last signaled request
    std::uint64_t quarter_ = 0;
    std::uint64_t gather_ = 0;  ///< fewer bytes are not sent, or not weighed yet
    std::byte* ring_ = nullptr;
    Way way_ = Way::behind;
    Batching batching_ = Batching::none;
    base::Status ended_ = base::Status::ok;
    bool holds_marks_ = false;
    bool lied_to_ = false;  ///< ended_, because the consumer claims what cannot be
    bool waiting_ = false;  ///< in a wait that has come to its sleeper

    // Declared in the order in which they may go: the queue pair before the memory it reaches.
    std::shared_ptr<connect::Endpoint> endpoint_;
    Terms terms_;
    verbs::RegisteredBuffer ring_memory_;
    std::shared_ptr<std::byte> peer_ring_;  ///< in place: mapped here
    verbs::MemoryRegion peer_ring_region_;
    verbs::RegisteredBuffer page_memory_;
    connect::Link link_;
    SendWindow window_;
    DataPush mover_;
    TransferNotice<D.transfer> notice_;
    Bell bell_;
    SpaceView<D.space> space_;
    std::unique_ptr<Parker> sleeper_;

    std::unique_ptr<Moved> moved_;  ///< active mover: what this thread and the mover's share

    std::uint64_t transferred_ = 0;
    std::size_t slices_ = 1;           ///< that a WRITE may have
    std::uint64_t laid_ = 0;           ///< active mover: produced_, as the mover last saw it
    std::uint64_t behind_offset_ = 0;  ///< of intransit_, while behind
    bool only_whole_ = false;          ///< push2: what does not fill a batch waits
    std::byte* held_at_ = nullptr;     ///< where held_ belongs
    std::uint64_t held_ = 0;           ///< the mark of a batch that is not sent yet
    std::vector<Cover> covers_;        ///< signaled requests and how far they reach
    std::uint64_t cover_head_ = 0;
    std::uint64_t cover_tail_ = 0;
    std::uint64_t cover_mask_ = 0;
    std::uint64_t asked_ = 0;  ///< ticks of the last question within a sleep
    std::uint64_t asking_pause_ = base::ticks_in(std::chrono::milliseconds{20});
    std::uint64_t settling_writes_ = 0;
    std::uint64_t full_returns_ = 0;
    std::uint64_t lazy_refreshes_ = 0;
    std::uint64_t forced_refreshes_ = 0;
    verbs::RemoteAddress peer_page_{};
    std::optional<SendWindow> notice_window_;  ///< transfer push on a queue pair of its own
    CounterPull progress_;                     ///< where a flush asks the consumer that owes credit
};

#define MILLRACE_EXTERN_SENDER(D) extern template class Sender<D>;
MILLRACE_EVERY_DESIGN(MILLRACE_EXTERN_SENDER)
#undef MILLRACE_EXTERN_SENDER

}  // namespace millrace::ring
