// A pulled counter that the data mover's thread pulls, on a queue pair of its own: so that the
// thread that wants to know it never waits for a round trip (work 000, section 6.1: the active
// consumer that obtains transfer notifications off the critical path of dequeues). Used by
// TransferView.
//
//                calling thread                  the mover's thread
//   wanted       sets, and notifies the mover    takes
//   word         loads                           stores, when a READ has brought another one
//   broken       loads                           stores, when a READ has failed
//   all else     -                               reads and writes
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "millrace/base/detail/forks.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/detail/data_mover.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring::detail {

class MovedPull final : public MovedFlow {
  public:
    /// Over the link's second queue pair, which nobody else may use; the link's state must outlive
    /// this. `source`, `landing`: see CounterPull. `word`: what is known. Starts the mover, if this
    /// is its first flow; throws as that.
    MovedPull(connect::Link& link, verbs::RemoteAddress source, ibv_sge landing,
              std::uint64_t word);
    ~MovedPull();
    MovedPull(const MovedPull&) = delete;
    MovedPull& operator=(const MovedPull&) = delete;

    // ---- the calling thread

    /// The newest word that a READ has brought.
    [[nodiscard]] std::uint64_t word() const noexcept {
        return word_.load(std::memory_order_acquire);
    }
    /// Asks for a newer one: the mover READs it once.
    void want() noexcept {
        wanted_.store(true, std::memory_order_seq_cst);
        if (mover_ != nullptr) mover_->notify();
    }
    /// True once a READ has failed: the counter will not go on.
    [[nodiscard]] bool broken() const noexcept { return broken_.load(std::memory_order_relaxed); }
    /// READs that were posted. From any thread.
    [[nodiscard]] std::uint64_t posted() const noexcept {
        return posted_.load(std::memory_order_relaxed);
    }

    // ---- the mover's thread

    [[nodiscard]] Next move() noexcept override;

  private:
    friend base::ForkWatch;
    void become_copy() noexcept {
        DataMover::forget(mover_);
        broken_.store(true, std::memory_order_relaxed);
    }
    /// True: the READ has brought another word.
    [[nodiscard]] bool take() noexcept;

    SendWindow window_;
    CounterPull pull_;
    std::shared_ptr<DataMover> mover_;
    std::atomic<std::uint64_t> posted_{0};
    std::atomic<bool> broken_{false};
    alignas(cache_line) std::atomic<bool> wanted_{false};
    alignas(cache_line) std::atomic<std::uint64_t> word_;
    base::ForkWatch fork_watch_{*this};
};

}  // namespace millrace::ring::detail
