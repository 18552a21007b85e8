// What a queue pair whose requests are in flight (modes `shaped` and `strict`) knows of them: when
// each arrives and completes. Called by the queue pair and its posting. docs/soft/links.md.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "layout/block_layout.hpp"
#include "transport/cable_end.hpp"
#include "transport/executor.hpp"
#include "transport/pending_sends.hpp"
#include "transport/request.hpp"
#include "transport/send_slots.hpp"

namespace millrace::soft {

/// What it looks at of its queue pair.
struct CableView {
    const ibv_qp& qp;
    const ibv_qp_attr& attributes;
    const BlockView& block;
    const BlockView& peer;
    Executor& own;
    const SendSlots& slots;
    const PendingSends& pending;
};

class CableQueue final : public CableEnd {
  public:
    /// `entries`: of the pending ring; `slots`: of the send queue.
    CableQueue(std::function<void()> serve, std::shared_ptr<Cable> cable, const CableView& view,
               std::uint32_t entries, std::uint32_t slots, bool reliable);

    /// null, unless the mode is `strict`.
    [[nodiscard]] const StrictSettings* strict() const noexcept {
        return strict_ ? &cable_->mode.strict : nullptr;
    }

    /// Does a peer with this mode line send and receive over the same link?
    [[nodiscard]] bool agrees_with(const ModeLine& peer) const noexcept;

    // --- by who holds the send side ---

    /// The request goes to the pending ring at `position`: when is it due there? Also takes what
    /// executors must not do (the completion) out of the entry's flags.
    void schedule(PendingEntry& entry, std::uint32_t position, std::uint64_t bytes) noexcept;
    /// Writes the completions that are due at `now`. What the next one fails with, if it does now.
    [[nodiscard]] ibv_wc_status release(std::int64_t now) noexcept;
    /// The same for all that was executed, because the queue pair is in ERROR.
    void release_executed() noexcept;
    /// The request at `position` was due and could not be executed.
    void stalled(std::uint32_t position) noexcept;
    /// Publishes when something is due next, and sees to it that the engine knows.
    void expect() noexcept;
    /// After a reset, or when what was in flight is gone.
    void restart() noexcept;
    /// So many requests are posted and not completed, the unsignaled ones included.
    [[nodiscard]] std::uint32_t uncompleted() const noexcept;
    /// Everything before `position` is complete.
    [[nodiscard]] bool released_all_before(std::uint32_t position) const noexcept {
        return static_cast<std::int32_t>(position - released_) <= 0;
    }
    [[nodiscard]] bool completed_has_landed() const noexcept override;

    // --- without ---

    [[nodiscard]] bool waits_for(std::int64_t now) const noexcept override;

  private:
    struct Request {
        std::int64_t arrival;
        std::int64_t completion;
        std::uint32_t bytes;
        std::uint32_t slot;
        bool signaled;
        bool carried = false;  ///< nothing is taken from the program's memory when it is executed
        ibv_wc_status doom = IBV_WC_SUCCESS;  ///< faulty: what it fails with in its turn
        bool watched = false;                 ///< strict: `checksum` is that of its bytes as posted
        std::uint64_t checksum = 0;
        std::int64_t late = 0;  ///< strict: how long after it was executed it completes, at least
    };
    [[nodiscard]] Request& request(std::uint32_t position) const noexcept {
        return requests_[position & mask_];
    }
    void schedule_on_link(PendingEntry& entry, Request& request, std::uint64_t bytes) noexcept;
    void schedule_strictly(PendingEntry& entry, Request& request) noexcept;
    void notice_executed(std::uint32_t end) noexcept;
    void check_source(std::uint32_t position) noexcept;
    [[nodiscard]] std::uint32_t executed() const noexcept;
    /// May the next one be completed once its time has come? `head`: what was executed.
    [[nodiscard]] bool may_release(std::uint32_t head) const noexcept;
    /// What was executed, but for telling the receiver of it.
    [[nodiscard]] std::uint32_t completable(std::uint32_t head) const noexcept;
    void release_one() noexcept;
    /// Is the next one to be completed one that fails instead?
    [[nodiscard]] bool doomed() const noexcept;
    /// Mode `faulty`: what happens to the request that would fly like this.
    [[nodiscard]] ibv_wc_status fate_of(PendingEntry& entry, Flight& flight,
                                        std::uint64_t bytes) noexcept;
    [[nodiscard]] ibv_wc_status fate_of_reliable(const PendingEntry& entry,
                                                 Flight& flight) noexcept;

    const CableView view_;
    const std::uint32_t mask_;
    const std::uint32_t ahead_;  ///< so many may be complete and still in flight (unreliable)
    const bool reliable_;
    const bool strict_;
    const std::unique_ptr<Request[]> requests_;
    std::uint32_t released_ = first_position;  ///< next to be completed
    std::int64_t last_arrival_ = 0;
    std::int64_t last_completion_ = 0;        ///< scheduled
    std::int64_t last_fetch_ = 0;             ///< completion of the last READ
    std::int64_t released_at_ = 0;            ///< no later one may complete before
    std::uint32_t noticed_ = first_position;  ///< strict: next to be seen executed
    bool stalled_ = false;
    std::uint32_t stalled_position_ = 0;
    std::int64_t nap_ = 0;  ///< how long the engine leaves a stalled request alone
};

/// Writes what peers compare.
void publish_mode(ModeLine& line, const Mode& mode) noexcept;
/// For an end without a link: is the peer's mode `fast`?
[[nodiscard]] bool is_fast(const ModeLine& line) noexcept;
/// In words, for the log.
[[nodiscard]] std::string describe(const ModeLine& line);

}  // namespace millrace::soft
