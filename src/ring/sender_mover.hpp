// The active mover's side of Sender (work 000, section 6.4). Part of Sender, included by the files
// that make Senders.
//
//                      calling thread                   the mover's thread
//   Sender             reads and writes                 -
//   published          stores, and notifies the mover   loads, as what is laid
//   transferred        loads, for room                  stores, and rings for the calling thread
//   settled            loads, for flush                 stores
//   outcome            loads                            stores, once the queue has ended
//   Transmitter        -                                reads and writes
//
// What sends is the same Transmitter as without a mover.
#pragma once

#include "millrace/base/detail/thread_bell.hpp"
#include "millrace/ring/detail/data_mover.hpp"
#include "millrace/ring/sender.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

namespace millrace::ring {

template <Design D>
    requires(check_design<D>())
class Sender<D>::Moved final : public detail::MovedFlow, public base::StandingParker {
  public:
    explicit Moved(Sender& sender)
        : out_{&sender.out_},
          terms_{&sender.terms_},
          batching_{sender.batching_},
          mover_{detail::DataMover::of_this_process()},
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
        if (batching_ == Batching::fixed && produced - last_published_ < terms_->batch_bytes) {
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
    /// The queue has ended: this thread has seen it, while the mover pauses.
    void end(base::Status how) noexcept { outcome_.store(how, std::memory_order_relaxed); }
    /// The mover does not touch the Sender any more.
    void leave() noexcept {
        if (mover_ == nullptr) return;
        mover_->remove(*this);
        mover_ = nullptr;
        if (outcome() == base::Status::ok) {
            outcome_.store(base::Status::closed, std::memory_order_relaxed);
        }
    }
    /// In a child made by fork: the thread is the parent's.
    void become_copy() noexcept {
        detail::DataMover::forget(mover_);
        if (outcome() == base::Status::ok) {
            outcome_.store(base::Status::peer_lost, std::memory_order_relaxed);
        }
    }
    [[nodiscard]] detail::DataMover* mover() const noexcept { return mover_.get(); }
    [[nodiscard]] std::uint64_t sleeps() const noexcept { return sleeps_; }

    void prepare() override { progress_.announce(); }
    void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
        ++sleeps_;
        progress_.sleep(limit, cancellation);
    }
    Rest settle() override {
        ++sleeps_;
        return Rest::sleep;
    }
    void woken(Rest /*from*/) override {}
    void retract() override { progress_.retract(); }
    /// Readable when the mover rings. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor() { return progress_.descriptor(); }

    // ---- the mover's thread

    [[nodiscard]] Next move() noexcept override {
        if (out_->ended() != base::Status::ok) return Next::idle;
        const std::uint64_t intransit = out_->intransit();
        const std::uint64_t before = out_->transferred();
        out_->laid(published_.load(std::memory_order_seq_cst));
        base::Status status = out_->service();
        if (status == base::Status::ok && out_->laid() != out_->intransit()) status = push();
        if (status == base::Status::ok && !out_->is_done()) status = out_->settle();
        if constexpr (D.data == DataFlow::pull) {
            if (status == base::Status::ok && !out_->is_done() &&
                watched_.load(std::memory_order_relaxed)) {
                ask();
            }
            (void)out_->reap();
        }

        const std::uint64_t transferred = out_->transferred();
        const bool moved = out_->intransit() != intransit || transferred != before;
        if (transferred != before) transferred_.store(transferred, std::memory_order_seq_cst);
        const bool is_done = out_->is_done();
        if (is_done) settled_.store(out_->laid(), std::memory_order_seq_cst);
        const bool has_ended = out_->ended() != base::Status::ok;
        if (has_ended) outcome_.store(out_->ended(), std::memory_order_seq_cst);
        if (moved || is_done || has_ended) progress_.ring();
        if (moved) {
            watched_.store(false, std::memory_order_relaxed);  // whom it is not enough asks again
            return Next::moved;
        }
        if (is_done && !out_->owes()) return Next::idle;
        // What the consumer pulls needs nobody here, unless somebody waits for it.
        if (D.data == DataFlow::pull && !watched_.load(std::memory_order_relaxed) &&
            out_->laid() == out_->intransit() && !out_->owes()) {
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
        if constexpr (Transmitter::asks_to_flush) {
            const std::uint64_t now = base::ticks();
            if (now - asked_ < out_->asking_pause() / 16) return;
            asked_ = now;
        }
        (void)out_->ask_consumer();
    }
    [[nodiscard]] bool in_flight() const noexcept {
        return out_->transferred() != out_->intransit();
    }
    /// Sends what is due of what is laid.
    [[nodiscard]] base::Status push() noexcept {
        if (batching_ != Batching::dynamic || D.data == DataFlow::pull) return out_->push(false);
        const std::uint64_t laid = out_->laid();
        const std::uint64_t before = out_->intransit();
        base::Status status = base::Status::ok;
        while (status == base::Status::ok && out_->intransit() != laid) {
            if (in_flight() && laid - out_->intransit() < piece_) break;
            const std::uint64_t run = out_->next_run(laid - out_->intransit(), piece_);
            // What has room for less than that waits for the answer about more.
            const std::uint64_t used = out_->intransit() - out_->consumed();
            if (in_flight() && run > terms_->window_bytes - used) {
                status = out_->refresh();
                break;
            }
            const std::uint64_t end = out_->intransit() + run;
            out_->laid(end);
            status = out_->push(false);
            out_->laid(laid);
            if (out_->intransit() != end) break;
        }
        if (status == base::Status::ok && out_->intransit() != before) status = look_ahead();
        return status;
    }
    /// Asks for space behind what was just sent, long before it runs out: the answer comes when
    /// that has arrived.
    [[nodiscard]] base::Status look_ahead() noexcept {
        if (out_->intransit() - asked_at_ < terms_->ring_bytes / 8) return base::Status::ok;
        bool asked = false;
        const base::Status status = out_->refresh_if_due(out_->intransit(), &asked);
        if (asked) asked_at_ = out_->intransit();
        return status;
    }

    Transmitter* out_;
    const Terms* terms_;
    const Batching batching_;
    std::shared_ptr<detail::DataMover> mover_;
    std::uint64_t last_published_ = 0;
    std::uint64_t sleeps_ = 0;
    const std::uint64_t piece_;
    std::uint64_t asked_at_ = 0;  ///< of the mover's thread, as all that is not said to be shared
    std::uint64_t asked_ = 0;     ///< likewise: ticks of the last question
    alignas(cache_line) std::atomic<std::uint64_t> published_;
    std::atomic<bool> watched_{false};
    alignas(cache_line) std::atomic<std::uint64_t> transferred_;
    std::atomic<std::uint64_t> settled_;
    std::atomic<base::Status> outcome_{base::Status::ok};
    alignas(cache_line) base::ThreadBell progress_;
};

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
    if (is_too_large(bytes)) return base::Status::too_large;
    const std::uint64_t skip = skip_before(bytes);
    const std::uint64_t own = terms_.ring_bytes - (produced_ - moved_->transferred());
    if (bytes + skip > own) {
        moved_->watch(produced_);
        return base::Status::full;
    }
    if (skip != 0) lay_skip(skip);
    set_room(std::max(bytes, std::min(own - skip, terms_.ring_bytes - offset())));
    return base::Status::ok;
}

template <Design D>
    requires(check_design<D>())
base::Status Sender<D>::flush_moved(const base::Deadline& deadline,
                                    const base::WaitPolicy& policy) {
    base::Status outcome = base::Status::ok;
    const auto attempt = [&] {
        outcome = moved_->outcome();
        if (outcome != base::Status::ok || moved_->settled() == produced_) return true;
        moved_->watch(produced_);
        return false;
    };
    const base::Status waited = wait(attempt, deadline, policy);
    if (waited == base::Status::timed_out) rest(attempt);
    return waited != base::Status::ok ? waited : outcome;
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::tell(const FilterNews& news) noexcept {
    const auto lock = pause();  // the link is a mover's, too
    try {
        out_.end().link().say(std::as_bytes(std::span{&news, 1}));
    } catch (const std::exception&) {
        // It is over, and the consumer hears that; or out of memory, and it hears the totals.
    }
}

}  // namespace millrace::ring
