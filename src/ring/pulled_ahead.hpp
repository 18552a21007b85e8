// The active consumer of pulled data (work 000, section 4.1): the data mover's thread asks for
// items, READs them into the consumer's ring and gives the producer its space back, on a queue pair
// of its own, whether the program takes items or not. Part of PullIntake, included by the files
// that make Receivers.
//
//                calling thread                    the mover's thread
//   consumed     stores, and notifies the mover    loads: what it may READ into
//   asleep       stores, and notifies the mover    loads: the producer rings, it need not ask
//   arrived      loads                             stores, after the bytes of a run
//   believable,  load                              stores
//   broken, counts
//   all else     -                                 reads and writes
//
// Space by push2 is not given by a mover: its SENDs go into receives of the first queue pair. With
// nothing to READ the mover asks again after naps that grow to 1 ms (data_mover.hpp). While the
// program sleeps for items, the producer rings: to ask then would wake the program, whose sleeper
// hears of this queue pair's completions, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "millrace/base/detail/forks.hpp"
#include "millrace/ring/detail/data_mover.hpp"
#include "millrace/ring/detail/intake.hpp"

namespace millrace::ring::detail {

template <Design D>
class PulledAhead final : public MovedFlow {
  public:
    /// Over the link's second queue pair, which nobody else may use; what it is given outlives it.
    /// Starts the mover, if this is its first flow; throws as that.
    PulledAhead(connect::Link& link, const Terms& terms, const verbs::RegisteredBuffer& ring,
                const Meeting& met)
        : window_{link.second_queue_pair(), link.second_send_queue()},
          intake_{link, terms, ring},
          mover_{DataMover::of_this_process()},
          consumed_{terms.initial},
          arrived_{terms.initial} {
        front_.ring = ring.data();
        front_.ring_bytes = terms.ring_bytes;
        front_.initial = front_.consumed = front_.arrived = front_.returned = terms.initial;
        Design passive = met.design;
        passive.mover = Mover::passive;
        const Meeting own{.link = met.link,
                          .window = window_,
                          .peer = met.peer,
                          .theirs = met.theirs,
                          .memory = met.memory,
                          .terms = met.terms,
                          .design = passive};
        intake_.begin(own);
        giver_.meet(own);
        mover_->add(*this);
    }
    ~PulledAhead() {
        if (mover_ != nullptr) mover_->remove(*this);
    }
    PulledAhead(const PulledAhead&) = delete;
    PulledAhead& operator=(const PulledAhead&) = delete;

    // ---- the calling thread

    /// What has arrived, of a consumer that is so far.
    [[nodiscard]] std::uint64_t take(std::uint64_t consumed, bool asleep) noexcept {
        asleep_.store(asleep, std::memory_order_relaxed);
        consumed_.store(consumed, std::memory_order_seq_cst);
        if (mover_ != nullptr) mover_->notify();
        return arrived_.load(std::memory_order_acquire);
    }
    void awake() noexcept {
        if (!asleep_.load(std::memory_order_relaxed)) return;
        asleep_.store(false, std::memory_order_seq_cst);
        if (mover_ != nullptr) mover_->notify();
    }
    /// False once the producer has said what cannot be.
    [[nodiscard]] bool believable() const noexcept {
        return believable_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] bool broken() const noexcept { return broken_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t transfer_reads() const noexcept { return get(transfer_reads_); }
    [[nodiscard]] std::uint64_t data_reads() const noexcept { return get(data_reads_); }
    [[nodiscard]] std::uint64_t posted() const noexcept { return get(posted_); }
    [[nodiscard]] GivenByMover given() const noexcept {
        return {get(writes_), get(stores_), get(events_)};
    }

    // ---- the mover's thread

    [[nodiscard]] Next move() noexcept override {
        if (broken_.load(std::memory_order_relaxed)) return Next::idle;
        front_.consumed = consumed_.load(std::memory_order_acquire);
        const bool asleep = asleep_.load(std::memory_order_relaxed);
        (void)window_.reap();  // of credit, too: a completion that is left would wake the program
        const std::uint64_t before = front_.arrived;
        if (!intake_.pull(front_, giver_, asleep)) set(believable_, false);
        giver_.settle(front_);
        if (window_.broken()) set(broken_, true);
        set(transfer_reads_, intake_.transfer_reads());
        set(data_reads_, intake_.data_reads());
        set(posted_, window_.posted());
        set(writes_, giver_.writes());
        set(stores_, giver_.stores());
        set(events_, giver_.events());
        if (front_.arrived == before) {
            const bool awaits_completion =
                window_.last_is_signaled() && !window_.done(window_.posted());
            const bool rests =
                asleep && !awaits_completion && !intake_.puller_.busy() && !giver_.owes(front_);
            return rests ? Next::idle : Next::waiting;
        }
        arrived_.store(front_.arrived, std::memory_order_release);
        return Next::moved;
    }

  private:
    friend base::ForkWatch;
    void become_copy() noexcept {
        DataMover::forget(mover_);
        broken_.store(true, std::memory_order_relaxed);
    }
    using Count = std::atomic<std::uint64_t>;
    [[nodiscard]] static std::uint64_t get(const Count& count) noexcept {
        return count.load(std::memory_order_relaxed);
    }
    template <class T>
    static void set(std::atomic<T>& word, T value) noexcept {
        word.store(value, std::memory_order_relaxed);
    }

    SendWindow window_;
    PullIntake<D> intake_;  ///< passive: it pulls within pull()
    SpaceGiver<D.space> giver_;
    Front front_;
    std::shared_ptr<DataMover> mover_;
    std::atomic<bool> believable_{true};
    std::atomic<bool> broken_{false};
    Count transfer_reads_{0};
    Count data_reads_{0};
    Count posted_{0};
    Count writes_{0};
    Count stores_{0};
    Count events_{0};
    alignas(cache_line) std::atomic<std::uint64_t> consumed_;
    std::atomic<bool> asleep_{false};
    alignas(cache_line) std::atomic<std::uint64_t> arrived_;
    base::ForkWatch fork_watch_{*this};
};

}  // namespace millrace::ring::detail
