// The extended completion queue: ibv_start_poll, ibv_next_poll, ibv_end_poll and what they read,
// over the same polling as ibv_poll_cq. Made by create_cq_ex.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

/// The device's clock, which time stamps show: nanoseconds (CLOCK_MONOTONIC).
[[nodiscard]] std::uint64_t device_clock() noexcept;
inline constexpr std::uint64_t device_clock_kilohertz = 1'000'000;

/// As ibv_create_cq_ex.
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) noexcept;
/// As ibv_query_rt_values_ex: the clock in `raw_clock.tv_nsec` alone, so that it compares with the
/// time stamps as it stands.
int query_rt_values(ibv_context* context, ibv_values_ex* values) noexcept;

}  // namespace millrace::soft
