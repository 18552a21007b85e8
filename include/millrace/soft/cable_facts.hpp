// What a mode of the soft device says about its link: for programs that compare what they measure
// with what was set (`millrace bench link`, figures by rate). docs/modes.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/error.hpp"

namespace millrace::soft {

struct CableFacts {
    bool shaped = false;                ///< false: another mode, and the rest says nothing
    std::uint64_t bits_per_second = 0;  ///< 0: unlimited
    std::int64_t latency_ns = 0;        ///< one way
};

/// Of a mode as MILLRACE_SOFT_MODE names it. Throws base::Error (invalid_argument). Any thread.
[[nodiscard]] CableFacts cable_facts(std::string_view mode);

/// The mode that MILLRACE_SOFT_MODE names now, as far as both ends of a connection have to be in
/// the same, in words: "fast", "shaped, 10 Gb/s, 1 us one way", "strict". What it says instead, if
/// that is no mode.
[[nodiscard]] std::string mode_in_words();

}  // namespace millrace::soft
