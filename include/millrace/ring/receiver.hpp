// The consumer's end of a ring: the engine of flow::Consumer. It learns of items as the design
// says, hands them out where they lie, and gives space back.
//
//                 consumed      arrived        told
//   own ring      ----+------------+-------------+------
//                     |   items    |  pull: there to be READ
//
// With push1 or push2 data and watermarks there is no `arrived`: it looks at marks. With pull data,
// the space that is given back is that of the producer's ring, up to `arrived`.
//
// What stands here is how items are looked at and taken, and what else a consumer does: sleep,
// look after the peer, end. Where it is in its ring stands in detail::Front. How items come there
// is detail::Intake's, one class for each data flow; how space goes back is detail::SpaceGiver's.
//
// While it is awake and finds items, a consumer of design 1 posts nothing and makes no system
// call: it reads marks, and stores its progress for the producer to READ.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/ring/counts.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/detail/front.hpp"
#include "millrace/ring/detail/intake.hpp"
#include "millrace/ring/detail/joining.hpp"
#include "millrace/ring/detail/space_giver.hpp"
#include "millrace/ring/detail/stand_back.hpp"
#include "millrace/ring/every_design.hpp"
#include "millrace/ring/filter_terms.hpp"
#include "millrace/ring/frames.hpp"
#include "millrace/ring/item_facts.hpp"
#include "millrace/ring/options.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring {

/// One thread at a time. Only the constructor and wait may block; only the constructor throws or
/// allocates.
template <Design D>
    requires(check_design<D>())
class Receiver {
  public:
    /// Agrees with the peer over `link`, which it takes. Throws Error.
    /// `design`: D, and how it is run.
    /// `setup`: where the producer's last word is not waited for, nothing arrives until it has
    /// said it, which idle() and wait() listen for.
    Receiver(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link, Design design,
             const RingOptions& options, const ItemFacts& item, const base::Deadline& deadline,
             const Setup& setup = {});
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;
    ~Receiver();

    /// The producer has said its last word. Never blocks. Throws Error: what has ended the setup.
    [[nodiscard]] bool has_joined();
    /// Waits for it. Throws Error as has_joined; timed_out, cancelled.
    void await_join(const base::Deadline& deadline, const base::WaitPolicy& policy);

    // ---- the polled path

    /// True if the next slot has arrived. Slots only; `slot_bytes` is what the terms say.
    [[nodiscard]] bool has_slot([[maybe_unused]] std::uint64_t slot_bytes) noexcept {
        if constexpr (looks_at_marks) {
            return is_marked(slot_bytes) ||
                   (intake_.in_batches() && intake_.pass_rest(front_) && is_marked(slot_bytes));
        } else {
            return front_.consumed != front_.arrived || advance();
        }
    }
    /// Its payload.
    [[nodiscard]] const std::byte* slot() const noexcept { return front_.ring + front_.offset; }
    /// Gives it back.
    void release_slot(std::uint64_t slot_bytes) noexcept {
        // Before the space returns: the place of its mark is still this end's.
        if (looks_at_marks && takes_lines_) store_word(place_of_mark(slot_bytes), 0);
        front_.pass(slot_bytes);
        // Makes sure that the space of a batch that is not full returns without another look.
        if (intake_.in_batches() &&
            (looks_at_marks ? !is_marked(slot_bytes) : front_.consumed == front_.arrived)) {
            (void)intake_.pass_rest(front_);
        }
        if (intake_.is_low(front_)) [[unlikely]]
            ask_ahead();
        if (returns_what_is_consumed && front_.consumed - front_.returned >= front_.step)
            [[unlikely]]
            return_credit();
    }
    /// Hands the payloads of slots that have arrived to `take`, at most `most`, and gives them
    /// back; where nothing but looking tells what has arrived, until the end of the ring or until
    /// space is due. How many they were; 0 if none has arrived.
    template <class Take>
    std::uint64_t take_slots(std::uint64_t slot_bytes, std::uint64_t most, Take&& take) noexcept {
        if (!has_slot(slot_bytes)) return 0;
        const std::byte* at = slot();
        std::uint64_t count = 1;
        if constexpr (D.data == DataFlow::push2) {
            take(at);  // what lies after it may be of the next chunk
        } else {
            most = std::min(most, (front_.ring_bytes - front_.offset) / slot_bytes);
            if (returns_what_is_consumed) {
                const std::uint64_t due = front_.returned + front_.step - front_.consumed;
                most = std::min(most, (due + slot_bytes - 1) / slot_bytes);
            }
            if (!looks_at_marks) {
                most = std::min(most, (front_.arrived - front_.consumed) / slot_bytes);
            }
            std::uint64_t mark = slot_mark(front_.consumed, front_.initial);
            for (take(at); count < most; ++count) {
                at += slot_bytes;
                mark += slot_bytes;
                if (looks_at_marks && load_word(at + slot_bytes - mark_bytes) != mark) break;
                take(at);
            }
        }
        release_slot(count * slot_bytes);
        return count;
    }
    /// The next frame's payload; `found` false if there is none. Frames only. Passes over skips.
    [[nodiscard]] std::span<const std::byte> front_frame(bool& found) noexcept {
        if constexpr (!looks_at_marks) return next_frame(found);
        const std::byte* frame = slot();
        std::uint64_t word = load_word(frame);
        if (word == skip_word(tag_)) [[unlikely]] {
            release_frame(front_.ring_bytes - front_.offset);
            frame = slot();
            word = load_word(frame);
        }
        found = false;
        if (!is_frame_header(word, tag_)) return {};
        const std::uint32_t length = frame_length(word);
        const std::uint64_t bytes = frame_bytes(length);
        // A stale word may look like a header: then its length may be anything.
        if (bytes > front_.ring_bytes - front_.offset) return {};
        if (load_word(frame + bytes - mark_bytes) != frame_trailer(tag_, length)) return {};
        found = true;
        return {frame + mark_bytes, length};
    }
    /// Gives a frame of Frames<D>::bytes(length) `bytes` back.
    void release_frame(std::uint64_t bytes) noexcept {
        release_slot(bytes);
        if constexpr (has_marks(D)) tag_ = frame_tag(front_.consumed, terms_.secret);
    }

    /// To be called when nothing is in front. Every few microseconds of idleness it returns credit
    /// and looks after the peer; so a consumer that is only just faster than its producer does
    /// not return credit for every single item. `empty`; or, when a look after it found nothing
    /// either, `closed` or `peer_lost`.
    base::Status idle() noexcept {
        if (end_.has_descriptor()) [[unlikely]]
            return rest();
        const std::uint64_t now = base::ticks();
        if (now - looked_ < look_ticks_ && end_.ended() == base::Status::ok) {
            return base::Status::empty;
        }
        looked_ = now;
        return look();
    }

    /// Whether an item is in front. Nothing else is done.
    [[nodiscard]] bool has_front() noexcept;
    /// As idle(), but never falls asleep: for code that looks at many, and sleeps elsewhere.
    base::Status look_around() noexcept {
        if (has_front()) return base::Status::empty;
        looked_ = base::ticks();
        return look();
    }

    // ---- what else it does

    /// Sleeps between looks while `ready` says false.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
        if (const base::Status waited = wait_to_join(deadline, policy); waited != base::Status::ok)
            [[unlikely]] {
            return waited;
        }
        if (may_stand_back) stand_back(deadline, policy);
        return end_.wait(ready, deadline, policy);
    }
    /// For a program's own loop: see connect/readiness.hpp. From the first call on, idle() falls
    /// asleep `spin` after the last item. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor(std::chrono::nanoseconds spin) { return end_.descriptor(spin); }
    /// Takes no more: the producer is told, whatever is left in the ring is lost.
    void close() noexcept;

    [[nodiscard]] const Terms& terms() const noexcept { return terms_; }
    /// What carries its words to the peer, and why.
    [[nodiscard]] const PeerMemory& peer_memory() const noexcept { return peer_memory_; }
    [[nodiscard]] std::uint64_t position() const noexcept { return front_.consumed; }
    [[nodiscard]] ReceiverCounts counts() const noexcept;
    [[nodiscard]] const connect::Link& link() const noexcept { return end_.link(); }
    [[nodiscard]] base::Status ended() const noexcept { return end_.ended(); }
    /// Why it is lost. Else empty.
    [[nodiscard]] std::string failure() const;
    /// What the producer has told of its filter. Nothing, where there is none.
    [[nodiscard]] FilterTold filter_told() const;

  private:
    friend base::ForkWatch;
    /// In a child made by fork: it looks for items where no item ever lies.
    void become_copy() noexcept;

    /// Marks in our ring tell what has arrived.
    static constexpr bool looks_at_marks = has_marks(D) && D.data != DataFlow::pull;
    /// The space of pulled runs goes back as they arrive.
    static constexpr bool returns_what_is_consumed = D.data != DataFlow::pull;
    /// Each slot has its mark, which can be looked at ahead of the front.
    static constexpr bool may_stand_back = has_marks(D) && D.data == DataFlow::push1;
    class FlagSleeper;
    class ArrivalSleeper;
    using DataSleeper = std::conditional_t<has_arrivals(D), ArrivalSleeper, FlagSleeper>;
    using Parker = std::conditional_t<has_arrivals(D), CompletionSleeper, Sleeper>;

    /// Takes what has arrived, and does what the design demands to get more. True: there is some.
    [[gnu::noinline]] bool advance() noexcept;
    [[gnu::noinline]] void ask_ahead() noexcept;
    [[nodiscard]] bool is_marked(std::uint64_t slot_bytes) const noexcept {
        return load_word(slot() + slot_bytes - mark_bytes) ==
               slot_mark(front_.consumed, front_.initial);
    }
    [[nodiscard]] std::byte* place_of_mark(std::uint64_t slot_bytes) const noexcept {
        return const_cast<std::byte*>(slot()) + slot_bytes - mark_bytes;
    }
    [[gnu::cold]] void distrust() noexcept;
    std::span<const std::byte> next_frame(bool& found) noexcept;

    [[gnu::cold]] base::Status look() noexcept;
    /// Of a filter. Not `ok`: it has stopped the queue, and everything before was taken.
    [[gnu::cold]] base::Status hear_of_filter() noexcept;
    /// Takes the producer's last word. `ok`; `empty` as long as it is not here; what ends it.
    base::Status try_join() noexcept {
        return join_ == nullptr ? base::Status::ok : look_for_last_word();
    }
    [[gnu::cold]] base::Status look_for_last_word() noexcept;
    void join(const Places& theirs);
    /// Waits until it is here, or something ends it: `ok`, `timed_out`, `cancelled`.
    base::Status wait_to_join(const base::Deadline& deadline, const base::WaitPolicy& policy) {
        return join_ == nullptr ? base::Status::ok : wait_for_last_word(deadline, policy);
    }
    [[gnu::cold]] base::Status wait_for_last_word(const base::Deadline& deadline,
                                                  const base::WaitPolicy& policy);
    [[gnu::cold]] base::Status rest() noexcept;
    /// After a long run of slots, leaves the front alone until some are there, or for a moment.
    [[gnu::noinline]] void stand_back(const base::Deadline& deadline,
                                      const base::WaitPolicy& policy) noexcept;
    [[gnu::noinline]] void return_credit() noexcept;
    /// Of what may be returned, nothing is kept. True: there was some.
    bool return_all() noexcept {
        if (intake_.free(front_) == front_.returned) return false;
        return_credit();
        return true;
    }

    // Hot.
    detail::Front front_;
    std::uint64_t tag_ = 0;     ///< of the frame in front
    std::uint64_t looked_ = 0;  ///< ticks of the last look()
    std::uint64_t look_ticks_ = 0;
    bool takes_lines_ = false;  ///< base::readers_take_lines(), where the producer may store
    Terms terms_;

    // Declared in the order in which they may go: the queue pair before the memory it reaches.
    std::shared_ptr<connect::Endpoint> endpoint_;
    verbs::RegisteredBuffer ring_memory_;
    verbs::RegisteredBuffer page_memory_;
    End end_;
    PeerMemory peer_memory_;
    detail::SpaceGiver<D.space> giver_;
    detail::StandBack stand_back_;
    detail::Intake<D> intake_;
    std::unique_ptr<Parker> sleeper_;
    std::unique_ptr<detail::Join> join_;  ///< until the producer's last word

    bool waiting_ = false;    ///< between a sleeper's prepare() and retract()
    bool last_look_ = false;  ///< the peer's end was seen; one more look at the marks decides
    base::Deadline missing_until_ = base::Deadline::never();
    std::unique_ptr<detail::FilterHearing> filter_;  ///< where the producer has one
    base::ForkWatch fork_watch_{*this};
};

#define MILLRACE_EXTERN_RECEIVER(D) extern template class Receiver<D>;
MILLRACE_EVERY_DESIGN(MILLRACE_EXTERN_RECEIVER)
#undef MILLRACE_EXTERN_RECEIVER

}  // namespace millrace::ring
