// The producer's end of a ring: the engine of flow::Producer. It moves bytes; what an item is
// (a slot, a frame) its caller lays out with watermark.hpp.
//
// What stands here belongs to the calling thread: where the next item goes, how much room there is,
// a mark that is held back. What sends is detail::Transmitter, which draws the positions. Without
// a mover the calling thread calls it, too; with an active one the queue is *moved*: the calling
// thread only lays items out and publishes how far, and the rest is done by the mover's thread
// (src/ring/sender_mover.hpp says what the two share).
//
// Five ways of sending, chosen when room is made:
//   stored     items lie where the consumer reads them: their marks show them, nothing is sent
//   straight   everything laid can be in transit at once: one comparison guards the fast path
//   weighed    each send() weighs whether what has gathered is due (batches)
//   behind     the peer's ring is full as far as is known: items wait in ours for a later call
//   moved      the data mover sends
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/prefetch.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/ring/counts.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/joining.hpp"
#include "millrace/ring/detail/transmitter.hpp"
#include "millrace/ring/every_design.hpp"
#include "millrace/ring/filter_terms.hpp"
#include "millrace/ring/frames.hpp"
#include "millrace/ring/item_facts.hpp"
#include "millrace/ring/options.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring {

/// One thread at a time. Only the constructor and close/flush/wait may block, within their
/// deadlines; only the constructor throws or allocates.
template <Design D>
    requires(check_design<D>())
class Sender {
  public:
    /// Agrees with the peer over `link`, which it takes. Throws Error.
    /// `design`: D, and how it is run.
    /// `setup`: where the consumer's last word is not waited for, there is no room until it has
    /// said it, which reserve(), wait() and flush() listen for.
    Sender(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link, Design design,
           const RingOptions& options, const ItemFacts& item, const base::Deadline& deadline,
           const Setup& setup = {});
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;
    ~Sender();

    /// The consumer has said its last word. Never blocks. Throws Error: what has ended the setup.
    [[nodiscard]] bool has_joined();
    /// Waits for it. Throws Error as has_joined; timed_out, cancelled.
    void await_join(const base::Deadline& deadline, const base::WaitPolicy& policy);

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
    [[nodiscard]] std::byte* at() const noexcept {
        return reinterpret_cast<std::byte*>(lap_ + produced_);
    }
    /// How many bytes may be laid there, one item after the other, without asking again.
    [[nodiscard]] std::uint64_t room() const noexcept { return room_end_ - produced_; }
    /// Its position in the stream.
    [[nodiscard]] std::uint64_t position() const noexcept { return produced_; }
    /// The item at at() is complete, marks included. At most what was reserved.
    void append(std::uint64_t bytes) noexcept { produced_ += bytes; }
    /// To be called after append(): sends what was appended and is due, as far as the peer is
    /// known to have space. `ok` also when nothing is due or it has none: then items wait in our
    /// ring for a later call, or for flush(). `closed`, `peer_lost`.
    base::Status send() noexcept {
        if constexpr (may_store) {
            if (way_ == Way::stored) [[likely]] {
                // The consumer read the lines to come one lap ago. Asked for now, they travel while
                // the next items are made; a store alone waits for its line when it is its turn.
                base::fetch_to_write(at() + bytes_ahead);
                return out_.show(produced_);
            }
        }
        if (way_ != Way::straight) [[unlikely]]
            return send_weighed();
        const std::uint64_t bytes = produced_ - out_.intransit();
        if (bytes < gather_) return base::Status::ok;
        return push_straight(bytes);
    }
    /// Over pull, and where items are laid in place, the consumer sees an item by its mark: so the
    /// first mark of a batch is laid when the batch is sent. `at`: the word that shows an item, and
    /// lies in the one just reserved.
    void lay_mark(std::byte* at, std::uint64_t word) noexcept {
        if constexpr (may_hold_marks) {
            if (holds_marks_ && produced_ == out_.intransit()) [[unlikely]] {
                held_at_ = at;
                held_ = word;
                return;
            }
        }
        base::telling_peers();
        store_word(at, word);
    }
    /// Items may be laid in the peer's ring.
    static constexpr bool may_store =
        D.data == DataFlow::push1 && D.transfer != TransferNotification::immediate;
    static constexpr bool may_hold_marks = D.data == DataFlow::pull || (may_store && has_marks(D));

    // ---- items that lie elsewhere

    /// Slices that one WRITE may have; more are not used, whatever the queue pair allows.
    static constexpr std::size_t max_slices = 32;

    /// After a reserve() of a slot that said ok: sends items of `bytes`, which are slots but for
    /// padding and marks, from where they lie in `memory`, in one WRITE that gathers them. Item i
    /// is at `place_of(i)`. How many went, from the first of `count` on. 0: the first cannot go
    /// from where it is (it lies elsewhere; items wait before it; the device may reorder bytes; a
    /// mover sends; items are stored), and is to be laid as usual. `status`: `ok`, `closed`,
    /// `peer_lost`.
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
            slices[used++] = ring_memory_.slice(offset() + taken * slot + bytes, slot - bytes);
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
        return out_.end().link().protection_domain().register_memory(memory, verbs::Access::none);
    }

    // ---- what else it does

    /// Sleeps for space between calls of `ready`, while that says false.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
        if (const base::Status joined = wait_to_join(deadline, policy); joined != base::Status::ok)
            [[unlikely]] {
            return joined;
        }
        const base::Status status = out_.end().wait(ready, deadline, policy);
        if (moved_ == nullptr) out_.awake();
        return status;
    }
    /// For a program's own loop: see connect/readiness.hpp. From the first call on, a reserve()
    /// that says full, `spin` after the last item, and a flush that was not given the time it
    /// takes, fall asleep. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor(std::chrono::nanoseconds spin);
    /// Looks after the consumer, by a system call. `ok`; `full`: it has not said its last word yet,
    /// or the mover is at work; `closed`, `peer_lost`.
    [[nodiscard]] base::Status look_around() noexcept;
    /// Sends what is stranded, and waits until everything is in the peer's ring. `ok`,
    /// `timed_out`, `cancelled`, `closed`, `peer_lost`.
    base::Status flush(const base::Deadline& deadline, const base::WaitPolicy& policy);
    /// Flushes, and says goodbye with the final position (docs/closing.md).
    base::Status close(const base::Deadline& deadline, const base::WaitPolicy& policy);

    /// Tells the consumer, which has asked for a filter: at most once. And what goes with the
    /// goodbye: how many items were looked at, and for how many it threw.
    void tell(const FilterNews& news) noexcept;
    void add_to_goodbye(std::uint64_t looked, std::uint64_t threw) noexcept {
        out_.end().add_to_goodbye({looked, threw});
    }

    [[nodiscard]] const Terms& terms() const noexcept { return terms_; }
    /// What carries items to the peer, and why.
    [[nodiscard]] const PeerMemory& peer_memory() const noexcept { return peer_memory_; }
    /// counts(), failure() and link() look at what an active mover writes: only while this lock
    /// lives. Without a mover it locks nothing.
    [[nodiscard]] std::unique_lock<std::mutex> pause() const noexcept;
    /// As pause; false if that needs waiting.
    [[nodiscard]] bool try_pause(std::unique_lock<std::mutex>& lock) const noexcept;
    [[nodiscard]] SenderCounts counts() const noexcept;
    [[nodiscard]] const connect::Link& link() const noexcept { return out_.end().link(); }
    /// Why it is lost. Else empty.
    [[nodiscard]] std::string failure() const;

  private:
    /// Beyond what a consumer that has caught up looks at.
    static constexpr std::uint64_t bytes_ahead = 512;

    friend base::ForkWatch;
    /// In a child made by fork: a producer without room asks for it, and hears how it has ended.
    void become_copy() noexcept;

    using Transmitter = detail::Transmitter<flows_of(D)>;
    enum class Way : std::uint8_t { stored, straight, weighed, behind, moved };
    class Moved;

    /// Takes the consumer's last word. `ok`; `empty` as long as it is not here; what ends it.
    base::Status try_join() noexcept {
        return join_ == nullptr ? base::Status::ok : look_for_last_word();
    }
    [[gnu::cold]] base::Status look_for_last_word() noexcept;
    void join(const Places& theirs);
    /// Waits for it. Also `timed_out`, `cancelled`.
    base::Status wait_to_join(const base::Deadline& deadline, const base::WaitPolicy& policy) {
        return join_ == nullptr ? base::Status::ok : wait_for_last_word(deadline, policy);
    }
    [[gnu::cold]] base::Status wait_for_last_word(const base::Deadline& deadline,
                                                  const base::WaitPolicy& policy);
    /// Whether `bytes` are more than the ring can ever hold.
    [[nodiscard]] bool is_too_large(std::uint64_t bytes) const noexcept;
    /// So much of the ring's end is passed over, so that `bytes` lie together.
    [[nodiscard]] std::uint64_t skip_before(std::uint64_t bytes) noexcept;
    void lay_skip(std::uint64_t skip) noexcept;
    [[gnu::noinline]] base::Status make_room(std::uint64_t bytes) noexcept;
    base::Status find_room(std::uint64_t bytes) noexcept;
    base::Status make_moved_room(std::uint64_t bytes) noexcept;
    /// Takes the way that the Transmitter's news allow, with room for `bytes` at least.
    void choose_way(std::uint64_t bytes) noexcept;

    base::Status push_straight(std::uint64_t bytes) noexcept {
        if constexpr (D.data == DataFlow::push2) {
            return push();  // its items always wait for their chunk
        } else {
            const base::Status status = out_.push_straight(offset() - bytes, bytes, produced_);
            if (status == base::Status::ok) [[likely]]
                return status;
            return push_failed(status);
        }
    }
    [[gnu::noinline]] base::Status push_failed(base::Status status) noexcept;
    /// Sends all that was appended, due or not.
    base::Status push(bool only_whole = false) noexcept;
    base::Status push_waiting(bool only_whole = false) noexcept;
    [[gnu::noinline]] base::Status send_weighed() noexcept;
    [[nodiscard]] bool is_due(std::uint64_t bytes) noexcept;
    [[nodiscard]] bool may_gather(base::Status& status) noexcept;
    base::Status push_gathered(verbs::Slices slices, std::uint64_t bytes) noexcept;
    base::Status flush_moved(const base::Deadline& deadline, const base::WaitPolicy& policy);
    void end_rest() noexcept {
        if (!out_.end().has_descriptor()) [[likely]]
            return;
        out_.end().end_rest();
        if (moved_ == nullptr) out_.awake();
    }
    /// Falls asleep, unless `ready`.
    template <class Ready>
    void rest(Ready&& ready) noexcept;

    void set_room(std::uint64_t bytes) noexcept { room_end_ = produced_ + bytes; }
    /// Of produced_ in the ring; ring_bytes where it must wrap.
    [[nodiscard]] std::uint64_t offset() const noexcept {
        return static_cast<std::uint64_t>(at() - ring_);
    }
    void set_offset(std::uint64_t offset) noexcept {
        lap_ = reinterpret_cast<std::uintptr_t>(ring_) + offset - produced_;
    }
    /// The Transmitter hears how far items are laid.
    void tell_laid() noexcept {
        if constexpr (may_store) {
            if (way_ == Way::stored) return out_.shown(produced_);
        }
        out_.laid(produced_);
    }
    /// What is laid waits from now on.
    void fall_behind() noexcept {
        if (way_ == Way::moved) return;
        if constexpr (may_store) {
            if (way_ == Way::stored) out_.shown(produced_);
        }
        way_ = Way::behind;
        set_room(0);
    }
    /// `status`; unless that is ok, nothing goes any more.
    base::Status unless_ended(base::Status status) noexcept {
        if (status != base::Status::ok) [[unlikely]]
            fall_behind();
        return status;
    }
    void show_held_mark() noexcept {
        if (held_at_ != nullptr) [[unlikely]] {
            base::telling_peers();
            store_word(std::exchange(held_at_, nullptr), held_);
        }
    }

    // Hot. What changes together does not lie side by side: the compiler would make vectors of it,
    // and spend more on that than on the additions.
    std::uint64_t room_end_ = 0;  ///< position from which on make_room must be asked
    std::uint64_t produced_ = 0;
    std::uint64_t gather_ = 0;  ///< fewer bytes are not sent, or not weighed yet
    std::uintptr_t lap_ = 0;    ///< where position 0 would lie if this lap had begun there
    std::byte* ring_ = nullptr;
    Way way_ = Way::behind;
    Batching batching_ = Batching::none;
    bool holds_marks_ = false;
    std::byte* held_at_ = nullptr;  ///< where held_ belongs
    std::uint64_t held_ = 0;        ///< the mark of a batch that is not sent yet

    // Declared in the order in which they may go: the queue pair before the memory it reaches.
    std::shared_ptr<connect::Endpoint> endpoint_;
    Terms terms_;
    verbs::RegisteredBuffer page_memory_;
    verbs::RegisteredBuffer ring_memory_;   ///< none in place
    std::shared_ptr<std::byte> peer_ring_;  ///< in place: mapped here
    Transmitter out_;
    PeerMemory peer_memory_;
    std::unique_ptr<Moved> moved_;  ///< active mover: what this thread and the mover's share

    std::unique_ptr<detail::Join> join_;  ///< until the consumer's last word
    std::size_t slices_ = 1;              ///< that a WRITE may have
    std::uint64_t full_returns_ = 0;
    base::ForkWatch fork_watch_{*this};
};

#define MILLRACE_EXTERN_SENDER(D) extern template class Sender<D>;
MILLRACE_EVERY_DESIGN(MILLRACE_EXTERN_SENDER)
#undef MILLRACE_EXTERN_SENDER

}  // namespace millrace::ring
