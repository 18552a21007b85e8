// The extended completion queue: ibv_start_poll, ibv_next_poll, ibv_end_poll and what they read,
// over the same polling as ibv_poll_cq. Made by create_cq_ex.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "thread_lock.hpp"

namespace millrace::soft {

/// What lets an object made here be an ibv_cq_ex: its tail behind the ibv_cq, reached by address.
struct ExtendableCompletionQueue : ibv_cq {
    alignas(ibv_cq_ex) std::byte extension[sizeof(ibv_cq_ex) - sizeof(ibv_cq)];

    [[nodiscard]] ibv_cq_ex* extended() noexcept {
        return reinterpret_cast<ibv_cq_ex*>(static_cast<ibv_cq*>(this));
    }
};
static_assert(sizeof(ExtendableCompletionQueue) == sizeof(ibv_cq_ex));

/// The completion that ibv_cq_ex's functions read.
struct ExtendedPoll {
    ThreadLock turn;  ///< from start_poll to end_poll
    bool single_threaded = false;
    bool with_wallclock = false;
    ibv_wc current{};
    std::uint64_t clock = 0;      ///< nanoseconds of the device's clock, when it was written
    std::uint64_t wallclock = 0;  ///< nanoseconds since 1970, likewise
};

/// The device's clock, which time stamps show: nanoseconds (CLOCK_MONOTONIC).
[[nodiscard]] std::uint64_t device_clock() noexcept;
inline constexpr std::uint64_t device_clock_kilohertz = 1'000'000;

/// As ibv_create_cq_ex.
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) noexcept;
/// As ibv_query_rt_values_ex: the clock in `raw_clock.tv_nsec` alone, so that it compares with the
/// time stamps as it stands.
int query_rt_values(ibv_context* context, ibv_values_ex* values) noexcept;

}  // namespace millrace::soft
