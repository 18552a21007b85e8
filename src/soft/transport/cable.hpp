// The modelled link of mode `shaped`, a Cable here, because a connect::Link is something else: when
// a request that is posted now leaves, arrives and is acknowledged. One port per process and
// setting; all its queue pairs send through it, one packet after the other. Called by CableQueue.
// docs/soft/links.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "system/spin_lock.hpp"
#include "transport/cable_engine.hpp"
#include "transport/cable_random.hpp"
#include "transport/mode.hpp"

namespace millrace::soft {

/// When something happens to one request, in `cable_now`'s time.
struct Flight {
    std::int64_t departure = 0;   ///< its last byte has left
    std::int64_t arrival = 0;     ///< its last byte is there, and it is executed
    std::int64_t completion = 0;  ///< what the sender knows of it
};

enum class FlightKind : std::uint8_t {
    acknowledged,  ///< completes when the acknowledgement is back
    unreliable,    ///< completes when it has left
    fetching,      ///< completes when the answer, which carries the bytes, is there
};

/// The uplink and downlink of one process. Thread-safe; a lock is held for a few steps per packet.
class CablePort {
  public:
    explicit CablePort(const CableSettings& settings);

    /// A request with `bytes` of payload is posted at `now`, and `extra_ns` slower than others.
    [[nodiscard]] Flight send(std::int64_t now, std::uint64_t bytes, FlightKind kind,
                              std::int64_t extra_ns) noexcept;

  private:
    /// One direction: free again at `free_at` plus `part` / 2^24 ns.
    struct Wire {
        std::int64_t free_at = 0;
        std::uint64_t part = 0;
        /// The packet begins not before `ready`; when has it passed?
        std::int64_t pass(std::int64_t ready, std::uint64_t parts) noexcept;
    };
    [[nodiscard]] std::uint64_t parts_of(std::uint64_t bytes) const noexcept {
        return bytes * parts_per_byte_;
    }

    const CableSettings settings_;
    const std::uint64_t parts_per_byte_;
    SpinLock lock_;
    Wire out_;
    Wire in_;
    /// When the packets that were sent last are acknowledged: the oldest makes room for the next.
    std::vector<std::int64_t> acknowledged_;
    std::size_t oldest_ = 0;
};

/// What the shaped queue pairs of one process and setting share.
class Cable {
  public:
    /// The one of these settings; made if there is none.
    [[nodiscard]] static std::shared_ptr<Cable> open(const Mode& mode);

    explicit Cable(const Mode& mode);

    const Mode mode;
    CablePort port;
    CableEngine engine;

    /// For one request of a queue pair, which has its own `random`.
    [[nodiscard]] std::int64_t jitter(std::uint64_t& random) const noexcept {
        const auto most = static_cast<std::uint64_t>(mode.cable.jitter_ns);
        return most == 0 ? 0 : static_cast<std::int64_t>(next_random(random) % (most + 1));
    }

    /// One more operation is posted: mode `faulty` ends the process at one of them.
    void count_operation() noexcept {
        if (mode.faults.die != 0) [[unlikely]]
            approach_death();
    }

    /// A different number for each queue pair, in the order of their creation.
    [[nodiscard]] std::uint64_t next_queue() noexcept {
        return queues_.fetch_add(1, std::memory_order_relaxed);
    }

  private:
    void approach_death() noexcept;

    const int process_;
    std::atomic<std::uint64_t> queues_{0};
    std::atomic<std::uint64_t> operations_{0};
};

}  // namespace millrace::soft
