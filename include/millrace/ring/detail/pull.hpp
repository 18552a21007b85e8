// DataFlow::pull: the consumer READs runs of the producer's ring into its own, at the same offsets
// (work 000, section 4.1). Used by PullIntake. The producer's half of this flow does nothing.
//
// At most one run is on its way. It holds all that was there to be pulled when it began, so the
// slower the network is, the longer the runs become.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/base/status.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::ring::detail {

/// One thread; never blocks, throws or allocates.
class Puller {
  public:
    Puller() noexcept = default;
    /// `ring`: own memory (local write). `source`: the producer's ring, of the same size.
    Puller(SendWindow& window, const verbs::RegisteredBuffer& ring, verbs::RemoteAddress source,
           ibv_sge landing) noexcept
        : window_{&window}, ring_{&ring}, source_{source}, landing_{landing} {}

    [[nodiscard]] bool busy() const noexcept { return ticket_ != 0; }
    /// Starts a READ of `bytes` at `offset`, which do not wrap.
    base::Status start(std::uint64_t offset, std::uint64_t bytes) noexcept {
        const ibv_sge slice = ring_->slice(offset, bytes);
        return post(slice, offset, runs_);
    }
    /// Starts a READ of the word at `offset` of the producer's ring, to be looked at in landing.
    base::Status start_probe(std::uint64_t offset) noexcept {
        return post(landing_, offset, probes_);
    }
    /// True once, when what was started has arrived. Takes completions.
    bool finish() noexcept {
        if (ticket_ == 0) return false;
        (void)window_->reap();
        if (!window_->done(ticket_)) return false;
        ticket_ = 0;
        return true;
    }
    [[nodiscard]] std::uint64_t runs() const noexcept { return runs_; }
    [[nodiscard]] std::uint64_t probes() const noexcept { return probes_; }

  private:
    base::Status post(const ibv_sge& slice, std::uint64_t offset, std::uint64_t& count) noexcept {
        const base::Status status =
            window_->post(verbs::Read{.into = {&slice, 1}, .from = source_ + offset}, Signal::now);
        if (status == base::Status::ok) {
            ticket_ = window_->posted();
            ++count;
        }
        return status;
    }

    SendWindow* window_ = nullptr;
    const verbs::RegisteredBuffer* ring_ = nullptr;
    verbs::RemoteAddress source_{};
    ibv_sge landing_{};
    std::uint64_t ticket_ = 0;
    std::uint64_t runs_ = 0;
    std::uint64_t probes_ = 0;
};

}  // namespace millrace::ring::detail
