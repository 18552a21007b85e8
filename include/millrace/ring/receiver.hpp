// The consumer's end of a ring: the engine behind flow::Consumer. It looks for marks, hands out
// items where they lie, and gives space back.
//
// While it is awake and finds items, a consumer of design 1 posts nothing and makes no system
// call: it reads marks, and stores its progress for the producer to READ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/send_window.hpp"
#include "millrace/ring/space.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/ring/wake_up.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring {

/// Counts of what a Receiver did since it was made.
struct ReceiverCounts {
    std::uint64_t bytes = 0;          ///< of ring: payload, marks, padding, skips
    std::uint64_t credit_writes = 0;  ///< work requests that returned space
    std::uint64_t credit_stores = 0;  ///< progress published in own memory
    std::uint64_t events = 0;         ///< wake-ups sent to the producer
    std::uint64_t work_requests = 0;  ///< all of them, announcements of sleep included
    std::uint64_t sleeps = 0;
    std::uint64_t wake_ups = 0;       ///< events received
};

/// One thread at a time. Only the constructor and wait may block; only the constructor throws or
/// allocates.
template <Design D>
    requires(check_design<D>())
class Receiver {
  public:
    /// Agrees with the peer over `link`, which it takes. Throws Error.
    Receiver(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link,
             const RingOptions& options, const base::Deadline& deadline);
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;
    ~Receiver();

    // ---- the polled path

    /// True if the next slot has arrived. Slots only; `slot_bytes` is what the terms say.
    [[nodiscard]] bool has_slot(std::uint64_t slot_bytes) const noexcept {
        return load_word(ring_ + offset_ + slot_bytes - mark_bytes) ==
               slot_mark(consumed_, initial_);
    }
    /// Its payload.
    [[nodiscard]] const std::byte* slot() const noexcept { return ring_ + offset_; }
    /// Gives it back.
    void release_slot(std::uint64_t slot_bytes) noexcept {
        consumed_ += slot_bytes;
        offset_ += slot_bytes;
        if (offset_ == ring_bytes_) [[unlikely]] offset_ = 0;
        if (consumed_ - returned_ >= credit_step_) [[unlikely]] return_credit();
    }
    /// The next frame's payload; `found` false if there is none. Frames only. Passes over skips.
    [[nodiscard]] std::span<const std::byte> front_frame(bool& found) noexcept {
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
    /// Gives a frame of frame_bytes(length) `bytes` back.
    void release_frame(std::uint64_t bytes) noexcept {
        release_slot(bytes);
        tag_ = frame_tag(consumed_, terms_.secret);
    }

    /// To be called when nothing is in front. Every few microseconds of idleness it returns credit
    /// and looks after the peer; so a consumer that is only just faster than its producer does
    /// not return credit for every single item. `empty`; or, when a look behind it found nothing
    /// either, `closed` or `peer_lost`.
    base::Status idle() noexcept {
        const std::uint64_t now = base::ticks();
        if (now - looked_ < look_ticks_ && ended_ == base::Status::ok) return base::Status::empty;
        looked_ = now;
        return look();
    }

    // ---- beside it

    /// Sleeps between looks while `ready` says false.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
        return base::wait_until(ready, deadline, policy, *sleeper_);
    }
    /// Takes no more: the producer is told, whatever is left in the ring is lost.
    void close() noexcept;

    [[nodiscard]] const Terms& terms() const noexcept { return terms_; }
    [[nodiscard]] std::uint64_t position() const noexcept { return consumed_; }
    [[nodiscard]] ReceiverCounts counts() const noexcept;
    [[nodiscard]] const connect::Link& link() const noexcept { return link_; }
    [[nodiscard]] base::Status ended() const noexcept { return ended_; }

  private:
    class DataSleeper;

    [[gnu::cold]] base::Status look() noexcept;
    [[gnu::noinline]] void return_credit() noexcept;

    // Hot.
    const std::byte* ring_ = nullptr;
    std::uint64_t offset_ = 0;  ///< of consumed_ in the ring
    std::uint64_t consumed_ = 0;
    std::uint64_t initial_ = 0;
    std::uint64_t ring_bytes_ = 0;
    std::uint64_t tag_ = 0;       ///< of the frame at consumed_
    std::uint64_t returned_ = 0;  ///< what the producer was last told
    std::uint64_t credit_step_ = 0;
    std::uint64_t looked_ = 0;      ///< ticks of the last look()
    std::uint64_t look_ticks_ = 0;
    Terms terms_;

    // Declared in the order in which they may go: the queue pair before the memory it reaches.
    std::shared_ptr<connect::Endpoint> endpoint_;
    verbs::RegisteredBuffer ring_memory_;
    verbs::RegisteredBuffer page_memory_;
    connect::Link link_;
    SendWindow window_;
    Bell bell_;
    SpaceReturn<D.space> space_;
    std::unique_ptr<Sleeper> sleeper_;

    base::Status ended_ = base::Status::ok;
    bool last_look_ = false;  ///< the peer's end was seen; one more look at the marks decides
    base::Deadline missing_until_ = base::Deadline::never();
    std::uint64_t credit_stores_ = 0;
};

extern template class Receiver<design_1>;
extern template class Receiver<design_2>;

}  // namespace millrace::ring
