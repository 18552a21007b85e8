// What the adviser knows: which requirements contradict each other, which structure fits which, and
// which point of the design space suits which load. Data, for requirements.cpp and advice.cpp; the
// first rule of a list that holds counts.
#pragma once

#include <cstdint>
#include <span>

#include "millrace/flow/advice.hpp"
#include "millrace/flow/profile.hpp"
#include "millrace/flow/requirements.hpp"

namespace millrace::flow::detail {

struct Contradiction {
    bool (*holds)(const Requirements&);
    const char* one;  ///< the two fields, as a program writes them
    const char* other;
    const char* why;
    const char* remedy;
};
[[nodiscard]] std::span<const Contradiction> contradictions() noexcept;

struct StructureRule {
    Structure structure;
    bool (*holds)(const Requirements&);
    const char* reason;
};
/// The last one holds always.
[[nodiscard]] std::span<const StructureRule> structure_rules() noexcept;

/// What a rule of points asks about.
struct PointQuestion {
    Load load{};
    bool other_hosts = false;
    bool spare_core = false;
};
struct PointRule {
    bool (*holds)(const PointQuestion&);
    const char* design;
    const char* reason;  ///< with what was measured, and where that stands
};
/// The last one holds always.
[[nodiscard]] std::span<const PointRule> point_rules() noexcept;

/// Rings that an end has at most, one for each end that it talks to and each level.
[[nodiscard]] std::uint64_t rings_of_an_end(const Requirements& wanted) noexcept;
/// What an item takes in a ring at most: with its mark, and what slots are rounded to.
[[nodiscard]] constexpr std::uint64_t slot_bytes(std::uint64_t item_bytes) noexcept {
    return (item_bytes + 15) / 8 * 8;
}

/// One ring for all producers.
[[nodiscard]] bool shares_ring(const Requirements& wanted) noexcept;
/// So few values that a reader looks at all of them: they lie in the reader's memory.
[[nodiscard]] bool fits_latest(const Requirements& wanted) noexcept;

}  // namespace millrace::flow::detail
