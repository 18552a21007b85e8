// How far a queue pair is on its way out of an error. Part of its send side. docs/soft/fences.md.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "layout/block_layout.hpp"
#include "millrace/base/clock.hpp"

namespace millrace::soft {

struct Ending {
    enum class Phase : std::uint8_t {
        none,
        sends_leave,  ///< in SQE: executors are not yet known to have stopped
        sends_flush,  ///< in SQE: what was to be sent is flushed
        leave,        ///< the same in ERROR, and
        flush,        ///< of all that was posted
    };
    Phase phase = Phase::none;
    base::Clock::time_point since{};
    std::uint32_t failed_tail = 0;  ///< of the slots, when ERROR or SQE began
    std::uint32_t first_unexecuted = first_position;
    ibv_wc_status send_status = IBV_WC_WR_FLUSH_ERR;  ///< of the first flushed send

    [[nodiscard]] bool begun() const noexcept { return phase != Phase::none; }
    [[nodiscard]] bool leaving() const noexcept {
        return phase == Phase::sends_leave || phase == Phase::leave;
    }
    [[nodiscard]] bool flushing() const noexcept {
        return phase == Phase::sends_flush || phase == Phase::flush;
    }
    /// Receiving goes on.
    [[nodiscard]] bool of_sends() const noexcept {
        return phase == Phase::sends_leave || phase == Phase::sends_flush;
    }
    void begin(Phase how) noexcept {
        phase = how;
        since = base::Clock::now();
    }
    void flush() noexcept { phase = of_sends() ? Phase::sends_flush : Phase::flush; }
};

}  // namespace millrace::soft
