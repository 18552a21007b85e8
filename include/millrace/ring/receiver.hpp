// The consumer's end of a ring: the engine behind flow::Consumer. It learns of items as the design
// says, hands them out where they lie, and gives space back.
//
//                 consumed      arrived        told
//   own ring      ----+------------+-------------+------
//                     |   items    |  pull: there to be READ
//
// With push1 or push2 data and watermarks there is no `arrived`: it looks at marks. With pull data,
// the space that is given back is that of the producer's ring, up to `arrived`.
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
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/readiness.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/ring/counts.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/completion_sleeper.hpp"
#include "millrace/ring/detail/joining.hpp"
#include "millrace/ring/detail/pull.hpp"
#include "millrace/ring/detail/push2.hpp"
#include "millrace/ring/detail/receive_pool.hpp"
#include "millrace/ring/detail/space.hpp"
#include "millrace/ring/detail/transfer.hpp"
#include "millrace/ring/every_design.hpp"
#include "millrace/ring/frames.hpp"
#include "millrace/ring/item_facts.hpp"
#include "millrace/ring/options.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/send_window.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/ring/wake_up.hpp"
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
    /// `joining`: later, and nothing arrives until the producer has said its last word, which
    /// idle() and wait() listen for.
    Receiver(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link, Design design,
             const RingOptions& options, const ItemFacts& item, const base::Deadline& deadline,
             Joining joining = Joining::at_once);
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;
    ~Receiver();

    // ---- the polled path

    /// True if the next slot has arrived. Slots only; `slot_bytes` is what the terms say.
    [[nodiscard]] bool has_slot([[maybe_unused]] std::uint64_t slot_bytes) noexcept {
        if constexpr (looks_at_marks) {
            if (is_marked(slot_bytes)) return true;
            if constexpr (D.data == DataFlow::push2) {
                if (in_batches_) return pass_rest() && is_marked(slot_bytes);
            }
            return false;
        } else {
            return consumed_ != arrived_ || advance();
        }
    }
    /// Its payload.
    [[nodiscard]] const std::byte* slot() const noexcept { return ring_ + offset_; }
    /// Gives it back.
    void release_slot(std::uint64_t slot_bytes) noexcept {
        consumed_ += slot_bytes;
        offset_ += slot_bytes;
        if (offset_ == ring_bytes_) [[unlikely]]
            offset_ = 0;
        if constexpr (D.data == DataFlow::push2) {
            // So that the space of a batch that is not full returns without another look.
            if (in_batches_ && (looks_at_marks ? !is_marked(slot_bytes) : consumed_ == arrived_)) {
                (void)pass_rest();
            }
        }
        if constexpr (asks_ahead) {
            if (arrived_ - consumed_ < low_water_) [[unlikely]]
                ask_ahead();
        }
        if constexpr (D.data != DataFlow::pull) {
            if (consumed_ - returned_ >= credit_step_) [[unlikely]]
                return_credit();
        }
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
            take(at);  // what lies behind it may be of the next chunk
        } else {
            most = std::min(most, (ring_bytes_ - offset_) / slot_bytes);
            if constexpr (D.data != DataFlow::pull) {
                const std::uint64_t due = returned_ + credit_step_ - consumed_;
                most = std::min(most, (due + slot_bytes - 1) / slot_bytes);
            }
            if constexpr (!looks_at_marks) {
                most = std::min(most, (arrived_ - consumed_) / slot_bytes);
            }
            std::uint64_t mark = slot_mark(consumed_, initial_);
            for (take(at); count < most; ++count) {
                at += slot_bytes;
                mark += slot_bytes;
                if constexpr (looks_at_marks) {
                    if (load_word(at + slot_bytes - mark_bytes) != mark) break;
                }
                take(at);
            }
        }
        release_slot(count * slot_bytes);
        return count;
    }
    /// The next frame's payload; `found` false if there is none. Frames only. Passes over skips.
    [[nodiscard]] std::span<const std::byte> front_frame(bool& found) noexcept {
        if constexpr (!looks_at_marks) return next_frame(found);
        const std::byte* frame = ring_ + offset_;
        std::uint64_t word = load_word(frame);
        if (word == skip_word(tag_)) [[unlikely]] {
            release_frame(ring_bytes_ - offset_);
            frame = ring_ + offset_;
            word = load_word(frame);
        }
        found = false;
        if (!is_frame_header(word, tag_)) return {};
        const std::uint32_t length = frame_length(word);
        const std::uint64_t bytes = frame_bytes(length);
        // A stale word may look like a header: then its length may be anything.
        if (bytes > ring_bytes_ - offset_) return {};
        if (load_word(frame + bytes - mark_bytes) != frame_trailer(tag_, length)) return {};
        found = true;
        return {frame + mark_bytes, length};
    }
    /// Gives a frame of Frames<D>::bytes(length) `bytes` back.
    void release_frame(std::uint64_t bytes) noexcept {
        release_slot(bytes);
        if constexpr (has_marks(D)) tag_ = frame_tag(consumed_, terms_.secret);
    }

    /// To be called when nothing is in front. Every few microseconds of idleness it returns credit
    /// and looks after the peer; so a consumer that is only just faster than its producer does
    /// not return credit for every single item. `empty`; or, when a look behind it found nothing
    /// either, `closed` or `peer_lost`.
    base::Status idle() noexcept {
        if (readiness_ != nullptr) [[unlikely]]
            return rest();
        const std::uint64_t now = base::ticks();
        if (now - looked_ < look_ticks_ && ended_ == base::Status::ok) return base::Status::empty;
        looked_ = now;
        return look();
    }

    /// Whether an item is in front. Nothing else is done.
    [[nodiscard]] bool has_front() noexcept;
    /// As idle(), but never falls asleep: for who looks at many, and sleeps elsewhere.
    base::Status look_around() noexcept {
        if (has_front()) return base::Status::empty;
        looked_ = base::ticks();
        return look();
    }

    // ---- beside it

    /// Sleeps between looks while `ready` says false.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
        if (readiness_ != nullptr) readiness_->end(parker());
        const connect::HeldReadiness held{readiness_};
        base::Status status = base::Status::ok;
        if (join_ != nullptr) {
            connect::LinkParker parker_of_word{link_};
            const auto joined = [&] { return try_join() != base::Status::empty; };
            status = base::wait_until(joined, deadline, policy, parker_of_word);
        }
        if (status == base::Status::ok) {
            status = base::wait_until(ready, deadline, policy, parker());
        }
        return status;
    }
    /// For a program's own loop: see connect/readiness.hpp. From the first call on, idle() falls
    /// asleep `spin` behind the last item. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor(std::chrono::nanoseconds spin);
    /// Takes no more: the producer is told, whatever is left in the ring is lost.
    void close() noexcept;

    [[nodiscard]] const Terms& terms() const noexcept { return terms_; }
    /// What carries its words to the peer, and why.
    [[nodiscard]] const PeerMemory& peer_memory() const noexcept { return peer_memory_; }
    [[nodiscard]] std::uint64_t position() const noexcept { return consumed_; }
    [[nodiscard]] ReceiverCounts counts() const noexcept;
    [[nodiscard]] const connect::Link& link() const noexcept { return link_; }
    [[nodiscard]] base::Status ended() const noexcept { return ended_; }
    /// Why it is lost, where a work request told it, or what the producer claims. Else empty.
    [[nodiscard]] std::string failure() const;

  private:
    struct Page {
        WakeUpPage wake;
        CounterLine transfer;  ///< pushed by the producer
        CounterLine transfer_landing;
        CounterLine taken_landing;
        CounterLine probe_landing;
    };
    /// Marks in our ring tell what has arrived.
    static constexpr bool looks_at_marks = has_marks(D) && D.data != DataFlow::pull;
    /// Asking the producer takes a round trip, so it is begun before nothing is left.
    static constexpr bool asks_ahead =
        D.data == DataFlow::pull || D.transfer == TransferNotification::pull;
    class FlagSleeper;
    class ArrivalSleeper;
    using DataSleeper = std::conditional_t<has_arrivals(D), ArrivalSleeper, FlagSleeper>;
    using Parker = std::conditional_t<has_arrivals(D), detail::CompletionSleeper, Sleeper>;

    /// Takes what has arrived, and does what the design demands to get more. True: there is some.
    [[gnu::noinline]] bool advance() noexcept;
    [[gnu::noinline]] void ask_ahead() noexcept;
    [[nodiscard]] bool is_marked(std::uint64_t slot_bytes) const noexcept {
        return load_word(ring_ + offset_ + slot_bytes - mark_bytes) ==
               slot_mark(consumed_, initial_);
    }
    /// Push2 in batches: where all of a batch is consumed, passes over what was left free of its
    /// chunk. True: there was such a rest.
    [[gnu::noinline]] bool pass_rest() noexcept;
    void enter_chunk(std::uint64_t told) noexcept;
    void pull() noexcept;
    bool ask() noexcept;
    bool look_at_probe() noexcept;
    bool take_run() noexcept;
    [[gnu::cold]] void disbelieve() noexcept;
    [[nodiscard]] bool hushed() noexcept;
    std::span<const std::byte> next_frame(bool& found) noexcept;
    /// Up to where the producer may have space back.
    [[nodiscard]] std::uint64_t free_position() const noexcept {
        return D.data == DataFlow::pull ? arrived_ : consumed_;
    }
    /// Takes note that items have arrived up to `position`; never goes back.
    void arrived(std::uint64_t position) noexcept {
        if (static_cast<std::int64_t>(position - arrived_) > 0) arrived_ = position;
    }

    [[gnu::cold]] base::Status look() noexcept;
    /// Takes the producer's last word. `ok`; `empty` as long as it is not here; what ends it.
    base::Status try_join() noexcept {
        return join_ == nullptr ? base::Status::ok : look_for_last_word();
    }
    [[gnu::cold]] base::Status look_for_last_word() noexcept;
    void join(const Places& theirs);
    [[nodiscard]] base::StandingParker& parker() noexcept {
        return join_ != nullptr ? join_->parker() : *sleeper_;
    }
    [[gnu::cold]] base::Status rest() noexcept;
    [[gnu::noinline]] void return_credit() noexcept;

    // Hot.
    const std::byte* ring_ = nullptr;
    std::uint64_t offset_ = 0;  ///< of consumed_ in the ring
    std::uint64_t consumed_ = 0;
    std::uint64_t arrived_ = 0;    ///< unless it looks at marks
    std::uint64_t low_water_ = 0;  ///< fewer bytes than that arrived: asks for more
    std::uint64_t initial_ = 0;
    std::uint64_t ring_bytes_ = 0;
    std::uint64_t tag_ = 0;       ///< of the frame at consumed_
    std::uint64_t returned_ = 0;  ///< what the producer was last told
    std::uint64_t credit_step_ = 0;
    std::uint64_t looked_ = 0;  ///< ticks of the last look()
    std::uint64_t look_ticks_ = 0;
    Terms terms_;

    // Declared in the order in which they may go: the queue pair before the memory it reaches.
    std::shared_ptr<connect::Endpoint> endpoint_;
    verbs::RegisteredBuffer ring_memory_;
    verbs::RegisteredBuffer page_memory_;
    connect::Link link_;
    PeerMemory peer_memory_;
    SendWindow window_;
    Bell bell_;
    detail::SpaceReturn<D.space> space_;
    detail::ReceivePool pool_;
    detail::ChunkReceiver chunks_;
    detail::Puller puller_;
    detail::TransferView<D.transfer> transfer_;
    std::unique_ptr<Parker> sleeper_;
    std::unique_ptr<detail::Join> join_;             ///< until the producer's last word
    std::unique_ptr<connect::Readiness> readiness_;  ///< if a descriptor was asked for

    // Pull data.
    std::uint64_t told_ = 0;         ///< up to where there is something to pull
    std::uint64_t run_ = 0;          ///< bytes of the run on its way
    std::uint64_t pull_offset_ = 0;  ///< of arrived_ in the ring
    std::uint64_t ahead_ = 1;        ///< slots that the next probe looks ahead
    bool probing_ = false;           ///< what is on its way is a probe
    bool in_batches_ = false;        ///< push2: a chunk is several slots
    bool waiting_ = false;           ///< between a sleeper's prepare() and retract()
    bool lied_to_ = false;

    base::Status ended_ = base::Status::ok;
    bool last_look_ = false;  ///< the peer's end was seen; one more look at the marks decides
    base::Deadline missing_until_ = base::Deadline::never();
    std::uint64_t credit_stores_ = 0;
};

#define MILLRACE_EXTERN_RECEIVER(D) extern template class Receiver<D>;
MILLRACE_EVERY_DESIGN(MILLRACE_EXTERN_RECEIVER)
#undef MILLRACE_EXTERN_RECEIVER

}  // namespace millrace::ring
