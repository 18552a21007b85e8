// What goes wrong in mode `faulty`: one queue pair's sequence of decisions, made by seed. Asked
// once for each request that is posted, by CableQueue and DatagramFlights. docs/modes.md, "faulty".
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "transport/mode.hpp"

namespace millrace::soft {

/// What happens to a request of a reliable connection: how often it, or its answer, is sent in
/// vain. Nothing else of it can be seen.
struct ReliableFate {
    std::uint32_t lost_requests = 0;  ///< before it was executed
    std::uint32_t not_ready = 0;      ///< then the receiver was not, so often
    std::uint32_t lost_answers = 0;   ///< after it was
    /// What the sender is told when it has given up, else IBV_WC_SUCCESS.
    ibv_wc_status exhausted = IBV_WC_SUCCESS;
    bool executed = true;  ///< also if it was given up: then only its answers were lost
};

/// How often a sender tries before it gives up.
struct RetryLimits {
    std::uint32_t retries = 7;      ///< ibv_qp_attr::retry_cnt
    std::uint32_t rnr_retries = 7;  ///< ibv_qp_attr::rnr_retry: 7 is for ever
    bool gives_up = true;           ///< false: `timeout` is 0, it waits for ever
    bool needs_receive = false;     ///< of this request
};

/// What happens to a message of an unreliable connection, which nobody is told of.
struct UnreliableFate {
    bool lost = false;
    std::uint32_t packets = 0;  ///< of a lost one, so many have landed: fewer than it has
};

/// What happens to a datagram.
struct DatagramFate {
    bool lost = false;
    std::int64_t late_ns = 0;  ///< 0: it keeps its place among the others
    std::int64_t copy_ns = 0;  ///< not 0: it comes once more, so much later
};

class FaultPlan {
  public:
    /// Of queue pair `number` of its process.
    FaultPlan(const FaultSettings& settings, std::uint64_t seed, std::uint64_t number) noexcept;

    [[nodiscard]] ReliableFate reliable(const RetryLimits& limits) noexcept;
    /// `packets`: of the message; at least 1.
    [[nodiscard]] UnreliableFate unreliable(std::uint32_t packets) noexcept;
    [[nodiscard]] DatagramFate datagram() noexcept;

    /// How much later something comes that is `late`, at most; also what finding a loss takes where
    /// no timer does it.
    [[nodiscard]] std::int64_t delay_ns() const noexcept { return settings_.delay_ns; }

  private:
    /// One request's own numbers, so that the next one's do not depend on how many it needs.
    class Draws {
      public:
        explicit Draws(std::uint64_t state) noexcept : state_{state} {}
        [[nodiscard]] bool happens(std::uint32_t per_million) noexcept;
        [[nodiscard]] bool coin() noexcept { return happens(500'000); }
        [[nodiscard]] std::uint64_t below(std::uint64_t end) noexcept;

      private:
        std::uint64_t state_;
    };
    [[nodiscard]] Draws next() noexcept;
    [[nodiscard]] std::int64_t late(Draws& draws) const noexcept;

    const FaultSettings settings_;
    std::uint64_t state_;
};

}  // namespace millrace::soft
