// What a program may ask for, and how that is said.
#include "millrace/flow/requirements.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/flow/profile.hpp"
#include "rules.hpp"

namespace millrace::flow {
namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t most_ends = 65'536;
constexpr std::uint64_t most_keys = 4'194'304;
constexpr std::uint64_t most_levels = 256;
constexpr std::uint64_t most_together = 65'536;

void check_range(const char* field, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
    if (value >= least && value <= most) return;
    throw base::Error{base::ErrorCode::invalid_argument, "choose a flow structure",
                      fmt::format("{} = {}", field, value), "it is out of range",
                      fmt::format("choose {} to {}", least, most)};
}

}  // namespace

void check(const Requirements& wanted) {
    check_range("item_bytes", wanted.item_bytes, 1, most_bytes);
    check_range("producers", wanted.producers, 1, most_ends);
    check_range("consumers", wanted.consumers, 1, most_ends);
    check_range("keys", wanted.keys, 0, most_keys);
    check_range("levels", wanted.levels, 1, most_levels);
    check_range("burst", wanted.burst, 0, most_together);
    for (const detail::Contradiction& rule : detail::contradictions()) {
        if (!rule.holds(wanted)) continue;
        throw base::Error{base::ErrorCode::invalid_argument, "choose a flow structure",
                          fmt::format("{} and {}", rule.one, rule.other),
                          fmt::format("they contradict each other: {}", rule.why), rule.remedy};
    }
}

std::string to_string(const Requirements& wanted) {
    const Requirements usual;
    std::string text = fmt::format("items of {} B", wanted.item_bytes);
    const auto add = [&](bool differs, const std::string& words) {
        if (differs) text += ", " + words;
    };
    add(wanted.producers != 1, fmt::format("{} producers", wanted.producers));
    add(wanted.consumers != 1, fmt::format("{} consumers", wanted.consumers));
    add(wanted.delivery != usual.delivery, fmt::format("delivery {}", name_of(wanted.delivery)));
    add(wanted.keep != usual.keep, fmt::format("keep {}", name_of(wanted.keep)));
    add(wanted.keys != 0, fmt::format("{} keys", wanted.keys));
    add(wanted.in_order, "in order");
    add(wanted.levels != 1, fmt::format("{} levels", wanted.levels));
    add(wanted.late_readers, "late readers");
    add(wanted.consumers_change, "consumers change");
    add(wanted.may_share_ring, "a shared ring");
    add(wanted.selective, "few wanted");
    add(true, wanted.burst == 0   ? "never stopping"
              : wanted.burst == 1 ? "one at a time"
                                  : fmt::format("{} together", wanted.burst));
    add(wanted.aim != usual.aim, fmt::format("for {}", name_of(wanted.aim)));
    add(wanted.producer_is_busy, "producer busy");
    add(wanted.consumer_is_busy, "consumer busy");
    add(wanted.other_hosts, "other hosts");
    add(wanted.spare_core, "a core to spare");
    add(wanted.memory_bytes != 0, fmt::format("at most {} B of memory", wanted.memory_bytes));
    return text;
}

Load load_of(const Requirements& wanted) noexcept {
    // No ring that fits a cache holds more of them.
    constexpr std::uint32_t endless = 4096;
    std::uint32_t burst = wanted.burst > endless ? 0 : wanted.burst;
    if (burst == 0 && wanted.aim == Aim::latency) burst = 1;
    return {wanted.item_bytes, burst, wanted.producer_is_busy, wanted.consumer_is_busy};
}

}  // namespace millrace::flow
