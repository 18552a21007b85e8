// The active mover's side of Sender (work 000, section 6.4). Part of Sender, included by the files
// that make Senders.
//
//                      calling thread                   the mover's thread
//   produced_,         reads and writes                 -
//   offset_, room_end_
//   published          stores, and notifies the mover   loads, as laid_
//   transferred        loads, for room                  stores, and rings for the calling thread
//   settled            loads, for flush                 stores
//   outcome            loads                            stores, once the queue has ended
//   everything else    -                                reads and writes
//
// All that sends (push_behind, settle, service ...) is the same code as without a mover; it runs in
// the mover's thread then, as if the queue were always behind.
#pragma once

#include "millrace/ring/data_mover.hpp"
#include "millrace/ring/sender.hpp"
#include "millrace/ring/thread_bell.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

namespace millrace::ring {

template <Design D>
    requires(check_design<D>())
class Sender<D>::Moved final : public MovedFlow, public base::Parker {
  public:
    explicit Moved(Sender& sender)
        : sender_{&sender},
          mover_{DataMover::of_this_process()},
          piece_{piece_of(sender.terms_.ring_bytes)},
          published_{sender.produced_},
          transferred_{sender.produced_},
          settled_{sender.produced_} {
        mover_->add(*this);
    }
    ~Moved() { leave(); }
    Moved(const Moved&) = delete;
    Moved& operator=(const Moved&) = delete;

    // ---- the calling thread

    base::Status send(std::uint64_t produced) noexcept {
        if (sender_->batching_ == Batching::fixed &&
            produced - last_published_ < sender_->terms_.batch_bytes) {
            return outcome();
        }
        publish(produced);
        return outcome();
    }
    void publish(std::uint64_t produced) noexcept {
        last_published_ = produced;
        published_.store(produced, std::memory_order_seq_cst);
        if (mover_ != nullptr) mover_->notify();
    }
    /// This thread waits for progress: the mover looks for it too, and rings.
    void watch(std::uint64_t produced) noexcept {
        watched_.store(true, std::memory_order_relaxed);
        publish(produced);
    }
    [[nodiscard]] std::uint64_t transferred() const noexcept {
        return transferred_.load(std::memory_order_seq_cst);
    }
    [[nodiscard]] std::uint64_t settled() const noexcept {
        return settled_.load(std::memory_order_seq_cst);
    }
    [[nodiscard]] base::Status outcome() const noexcept {
        return outcome_.load(std::memory_order_relaxed);
    }
    /// The mover does not touch the Sender any more.
    void leave() noexcept {
        if (mover_ == nullptr) return;
        mover_->remove(*this);
        mover_ = nullptr;
        if (outcome() == base::Status::ok) {
            outcome_.store(base::Status::closed, std::memory_order_relaxed);
        }
    }
    [[nodiscard]] DataMover* mover() const noexcept { return mover_.get(); }
    [[nodiscard]] std::uint64_t sleeps() const noexcept { return sleeps_; }

    void prepare() override { progress_.announce(); }
    void park(std::chrono::nanoseconds limit) override {
        ++sleeps_;
        progress_.sleep(limit);
    }
    void retract() override { progress_.retract(); }

    // ---- the mover's thread

    [[nodiscard]] Next move() noexcept override {
        Sender& sender = *sender_;
        if (sender.ended_ != base::Status::ok) return Next::idle;
        const std::uint64_t intransit = sender.intransit_;
        const std::uint64_t transferred = sender.transferred_;
        sender.laid_ = published_.load(std::memory_order_seq_cst);
        base::Status status = sender.service();
        if (status == base::Status::ok && sender.laid_ != sender.intransit_) status = push();
        if (status == base::Status::ok && !done()) status = sender.settle();
        if constexpr (D.data == DataFlow::pull) {
            if (status == base::Status::ok && !done() && watched_.load(std::memory_order_relaxed)) {
                ask();
            }
            sender.reap_transferred();
        }

        const bool moved = sender.intransit_ != intransit || sender.transferred_ != transferred;
        if (sender.transferred_ != transferred) {
            transferred_.store(sender.transferred_, std::memory_order_seq_cst);
        }
        const bool is_done = done();
        if (is_done) settled_.store(sender.laid_, std::memory_order_seq_cst);
        if (sender.ended_ != base::Status::ok) {
            outcome_.store(sender.ended_, std::memory_order_seq_cst);
        }
        if (moved || is_done || sender.ended_ != base::Status::ok) {
            progress_.ring();
        }
        if (moved) {
            watched_.store(false, std::memory_order_relaxed);  // whom it is not enough asks again
            return Next::moved;
        }
        if (is_done && !sender.bell_.owes()) return Next::idle;
        // What the consumer pulls needs nobody here, unless somebody waits for it.
        if (D.data == DataFlow::pull && !watched_.load(std::memory_order_relaxed) &&
            sender.laid_ == sender.intransit_ && !sender.notice_.owes(sender.intransit_) &&
            !sender.bell_.owes()) {
            return Next::idle;
        }
        return Next::waiting;
    }

  private:
    /// While something is on its way, so much gathers before more follows it; and it is the most
    /// that goes at once, so that the consumer works on one transfer while the next is on its way.
    [[nodiscard]] static std::uint64_t piece_of(std::uint64_t ring_bytes) noexcept {
        constexpr std::uint64_t least = 4096;
        constexpr std::uint64_t most = 128 << 10;
        return std::clamp(ring_bytes / 8, std::min(ring_bytes / 2, least), most);
    }
    /// How far the consumer of pulled data is; what it pushes it may owe, and is asked now and
    /// then.
    void ask() noexcept {
        Sender& sender = *sender_;
        if constexpr (asks_to_flush) {
            const std::uint64_t now = base::ticks();
            if (now - sender.asked_ < sender.asking_pause_ / 16) return;
            sender.asked_ = now;
        }
        (void)sender.ask_consumer();
    }
    [[nodiscard]] bool in_flight() const noexcept {
        return sender_->transferred_ != sender_->intransit_;
    }
    /// Sends what is due of what is laid.
    [[nodiscard]] base::Status push() noexcept {
        Sender& sender = *sender_;
        if (sender.batching_ != Batching::dynamic || D.data == DataFlow::pull) {
            return sender.push_behind();
        }
        const std::uint64_t laid = sender.laid_;
        const std::uint64_t before = sender.intransit_;
        base::Status status = base::Status::ok;
        while (status == base::Status::ok && sender.intransit_ != laid) {
            if (in_flight() && laid - sender.intransit_ < piece_) break;
            const std::uint64_t run = next_run(laid - sender.intransit_);
            // What has room for less than that waits for the answer about more.
            const std::uint64_t used = sender.intransit_ - sender.space_.consumed();
            if (in_flight() && run > sender.terms_.window_bytes - used) {
                status = sender.refresh();
                break;
            }
            const std::uint64_t end = sender.intransit_ + run;
            sender.laid_ = end;
            status = sender.push_behind();
            sender.laid_ = laid;
            if (sender.intransit_ != end) break;
        }
        if (status == base::Status::ok && sender.intransit_ != before) status = look_ahead();
        return status;
    }
    /// Of so many bytes that wait, the whole units that go next.
    [[nodiscard]] std::uint64_t next_run(std::uint64_t waiting) const noexcept {
        if constexpr (D.data != DataFlow::push1) return waiting;
        const Sender& sender = *sender_;
        const std::uint64_t size = sender.terms_.ring_bytes;
        const std::uint64_t offset = sender.behind_offset_ == size ? 0 : sender.behind_offset_;
        const std::uint64_t limit = std::min({waiting, piece_, size - offset});
        if (!sender.terms_.framed()) {
            const std::uint64_t slot = sender.terms_.slot_bytes;
            return std::max(limit / slot * slot, slot);
        }
        std::uint64_t run = 0;
        do {
            const std::uint64_t unit = sender.unit_at(offset + run, sender.intransit_ + run);
            if (run != 0 && run + unit > limit) break;
            run += unit;
        } while (run < limit);
        return run;
    }
    /// Asks for space behind what was just sent, long before it runs out: the answer comes when
    /// that has arrived.
    [[nodiscard]] base::Status look_ahead() noexcept {
        Sender& sender = *sender_;
        if (!sender.space_.wants_refresh(sender.intransit_ - sender.space_.consumed()) ||
            sender.intransit_ - asked_at_ < sender.terms_.ring_bytes / 8) {
            return base::Status::ok;
        }
        asked_at_ = sender.intransit_;
        ++sender.lazy_refreshes_;
        return sender.refresh();
    }
    [[nodiscard]] bool done() const noexcept {
        return sender_->transferred_ == sender_->laid_ &&
               !sender_->notice_.owes(sender_->intransit_);
    }

    Sender* sender_;
    std::shared_ptr<DataMover> mover_;
    std::uint64_t last_published_ = 0;
    std::uint64_t sleeps_ = 0;
    const std::uint64_t piece_;
    std::uint64_t asked_at_ = 0;  ///< of the mover's thread, as all that is not said to be shared
    alignas(cache_line) std::atomic<std::uint64_t> published_;
    std::atomic<bool> watched_{false};
    alignas(cache_line) std::atomic<std::uint64_t> transferred_;
    std::atomic<std::uint64_t> settled_;
    std::atomic<base::Status> outcome_{base::Status::ok};
    alignas(cache_line) ThreadBell progress_;
};

template <Design D>
    requires(check_design<D>())
void Sender<D>::start_mover() {
    laid_ = produced_;
    quarter_ = 1;  // the end of each transfer is waited for
    way_ = Way::moved;
    moved_ = std::make_unique<Moved>(*this);
}

template <Design D>
    requires(check_design<D>())
base::Parker& Sender<D>::parker() noexcept {
    if (moved_ != nullptr) return *moved_;
    return *sleeper_;
}

template <Design D>
    requires(check_design<D>())
std::unique_lock<std::mutex> Sender<D>::pause() const noexcept {
    if (moved_ == nullptr || moved_->mover() == nullptr) return {};
    return moved_->mover()->pause();
}

template <Design D>
    requires(check_design<D>())
bool Sender<D>::try_pause(std::unique_lock<std::mutex>& lock) const noexcept {
    if (moved_ == nullptr || moved_->mover() == nullptr) return true;
    lock = moved_->mover()->try_pause();
    return lock.owns_lock();
}

template <Design D>
    requires(check_design<D>())
base::Status Sender<D>::make_moved_room(std::uint64_t bytes) noexcept {
    set_room(0);
    if (const base::Status status = moved_->outcome(); status != base::Status::ok) return status;
    const std::uint64_t size = terms_.ring_bytes;
    if (bytes >
        (terms_.framed() ? Frames<D>::bytes(terms_.max_frame(), terms_.chunk_bytes) : size)) {
        return base::Status::too_large;
    }
    if (offset_ == size) offset_ = 0;
    const std::uint64_t skip = size - offset_ < bytes ? size - offset_ : 0;
    const std::uint64_t own = size - (produced_ - moved_->transferred());
    if (bytes + skip > own) {
        moved_->watch(produced_);
        ++full_returns_;
        return base::Status::full;
    }
    if (skip != 0) {
        store_word(ring_ + offset_, Frames<D>::skip(produced_, terms_.secret));
        produced_ += skip;
        offset_ = 0;
    }
    set_room(std::max(bytes, std::min(own - skip, size - offset_)));
    return base::Status::ok;
}

template <Design D>
    requires(check_design<D>())
base::Status Sender<D>::flush_moved(const base::Deadline& deadline,
                                    const base::WaitPolicy& policy) {
    base::Status outcome = base::Status::ok;
    const base::Status waited = wait(
        [&] {
            outcome = moved_->outcome();
            if (outcome != base::Status::ok || moved_->settled() == produced_) return true;
            moved_->watch(produced_);
            return false;
        },
        deadline, policy);
    return waited != base::Status::ok ? waited : outcome;
}

}  // namespace millrace::ring
