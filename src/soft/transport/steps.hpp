// A request that an executor has located, and how much of it is moved in one go: all, or in mode
// `strict` what the plan of the pending request says. Made by executors for one request.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "layout/block_layout.hpp"
#include "system/cable_time.hpp"
#include "transport/pieces.hpp"
#include "transport/receiver.hpp"
#include "transport/request.hpp"
#include "transport/strict_plan.hpp"

namespace millrace::soft {

/// Where a request's bytes are at either end, all checked.
struct Located {
    Pieces local;
    Pieces remote;
    std::uint32_t local_count = 0;
    std::uint32_t remote_count = 0;
    std::uint64_t total = 0;
    Consumed receive;
    std::atomic<std::uint64_t>* window = nullptr;  ///< the one that it invalidates
};

/// Of a pending request in mode `strict`: how it is to land, and how far that has come.
struct PlanInUse {
    std::uint32_t seed;  ///< 0: there is none
    const StrictSettings* settings;
    PendingLine* line;
};

class AtOnce {
  public:
    AtOnce(const PlanInUse&, const Request&, Located& it) noexcept : bytes_{it.total} {}

    /// So many are to be moved now.
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    /// They were: when the rest is due, as `cable_now`. 0: there is none.
    [[nodiscard]] static constexpr std::int64_t rest_due() noexcept { return 0; }

    /// Atomics on memory that everybody maps are the processor's own.
    static constexpr bool by_processor = true;
    /// ns between the two halves of another one.
    [[nodiscard]] static constexpr std::int64_t pause_within(const PlanInUse&) noexcept {
        return 0;
    }

  private:
    const std::uint64_t bytes_;
};

/// Cuts the pieces to the part whose turn it is.
class InPieces {
  public:
    InPieces(const PlanInUse& plan, const Request& request, Located& it) noexcept
        : line_{*plan.line},
          bytes_{it.total},
          tells_late_{sends_to_receive(request.opcode) && !it.receive.pooled &&
                      it.window == nullptr && (plan.seed & plan_tells_late) != 0} {
        // A pool's receive is claimed for good or not at all: it is filled at once.
        if (it.receive.pooled || it.remote_count == 0) return;
        const Reach& to = it.remote[0].at;
        const std::uint64_t address =
            to.direct != nullptr ? reinterpret_cast<std::uint64_t>(to.direct) : to.remote;
        const StrictPlan parts{plan.seed, it.total, address, *plan.settings};
        step_ = line_.step.load(std::memory_order_relaxed);
        steps_ = parts.steps();
        pause_ = parts.pause_after(step_);
        const StrictPlan::Range range = parts.range(step_);
        cut(it.local.data(), it.local_count, range.offset, range.bytes);
        cut(it.remote.data(), it.remote_count, range.offset, range.bytes);
        bytes_ = range.bytes;
    }

    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::int64_t rest_due() const noexcept {
        const std::uint32_t next = step_ + 1 < steps_ ? step_ + 1 : step_landed;
        if (next == step_landed && !tells_late_) return 0;
        const std::int64_t due = cable_now() + pause_;
        line_.step_due.store(due, std::memory_order_relaxed);
        line_.step.store(next, std::memory_order_release);
        return due;
    }

    /// Read and written: atomic to other requests, and not to the processor.
    static constexpr bool by_processor = false;
    [[nodiscard]] static std::int64_t pause_within(const PlanInUse& plan) noexcept {
        constexpr std::int64_t longest = 20'000;  // others wait for its lock meanwhile
        return draw_delay(scatter_bits(plan.seed), std::min(plan.settings->delay_ns, longest));
    }

  private:
    PendingLine& line_;
    std::uint64_t bytes_;
    const bool tells_late_;
    std::uint32_t step_ = 0;
    std::uint32_t steps_ = 1;
    std::int64_t pause_ = 0;  ///< behind this step, ns
};

}  // namespace millrace::soft
