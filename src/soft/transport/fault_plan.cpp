#include "transport/fault_plan.hpp"

#include <algorithm>
#include <cstdint>

#include "transport/cable_random.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint32_t for_ever = 7;  ///< ibv_qp_attr::rnr_retry
constexpr std::uint32_t most_not_ready = 16;

}  // namespace

FaultPlan::FaultPlan(const FaultSettings& settings, std::uint64_t seed,
                     std::uint64_t number) noexcept
    // The link's jitter has a sequence of its own.
    : settings_{settings}, state_{~first_random(seed, number)} {}

FaultPlan::Draws FaultPlan::next() noexcept { return Draws{next_random(state_)}; }

std::uint64_t FaultPlan::Draws::below(std::uint64_t end) noexcept {
    return next_random(state_) % end;
}

bool FaultPlan::Draws::happens(std::uint32_t per_million) noexcept {
    return below(1'000'000) < per_million;
}

std::int64_t FaultPlan::late(Draws& draws) const noexcept {
    return 1 + static_cast<std::int64_t>(draws.below(
                   static_cast<std::uint64_t>(std::max<std::int64_t>(1, settings_.delay_ns))));
}

ReliableFate FaultPlan::reliable(const RetryLimits& limits) noexcept {
    Draws draws = next();
    ReliableFate fate;
    const bool patient = limits.rnr_retries >= for_ever;
    if (draws.happens(settings_.exhaust)) {
        if (limits.needs_receive && !patient && draws.coin()) {
            fate.not_ready = limits.rnr_retries + 1;
            fate.exhausted = IBV_WC_RNR_RETRY_EXC_ERR;
            fate.executed = false;
        } else if (limits.gives_up) {
            fate.executed = draws.coin();
            (fate.executed ? fate.lost_answers : fate.lost_requests) = limits.retries + 1;
            fate.exhausted = IBV_WC_RETRY_EXC_ERR;
        }
        if (fate.exhausted != IBV_WC_SUCCESS) return fate;
    }
    bool executed = false;
    while (draws.happens(settings_.loss)) {
        // On its way there, or its answer on the way back: from then on it has been executed.
        executed = executed || draws.coin();
        ++(executed ? fate.lost_answers : fate.lost_requests);
        if (fate.lost_requests + fate.lost_answers <= limits.retries) continue;
        if (limits.gives_up) {
            fate.executed = executed;
            fate.exhausted = IBV_WC_RETRY_EXC_ERR;
        }
        break;
    }
    if (!fate.executed || !limits.needs_receive) return fate;
    while (fate.not_ready < most_not_ready && draws.happens(settings_.not_ready)) {
        if (++fate.not_ready <= limits.rnr_retries || patient) continue;
        fate.lost_answers = 0;
        fate.executed = false;
        fate.exhausted = IBV_WC_RNR_RETRY_EXC_ERR;
        break;
    }
    return fate;
}

UnreliableFate FaultPlan::unreliable(std::uint32_t packets) noexcept {
    Draws draws = next();
    UnreliableFate fate;
    // One of its packets is: a receiver takes nothing of the message from there on.
    fate.lost = draws.happens(settings_.loss);
    if (fate.lost) fate.packets = static_cast<std::uint32_t>(draws.below(std::max(1U, packets)));
    return fate;
}

DatagramFate FaultPlan::datagram() noexcept {
    Draws draws = next();
    DatagramFate fate;
    fate.lost = draws.happens(settings_.loss);
    if (draws.happens(settings_.reorder)) fate.late_ns = late(draws);
    if (draws.happens(settings_.duplicate)) fate.copy_ns = late(draws);
    return fate;
}

}  // namespace millrace::soft
