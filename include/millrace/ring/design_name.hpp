// How a design is written: "push1/watermark/pull", "push1/watermark/pull+fixed16",
// "push2/event/push+dynamic+mover". Used by messages and by tools that take a design as argument.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/error.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::ring {

/// A design, and the size of its batches where the name gives one.
struct NamedDesign {
    Design design{};
    std::optional<std::uint32_t> batch{};

    friend bool operator==(const NamedDesign&, const NamedDesign&) = default;
};

/// data/transfer/space, and after it, each with a plus, what is not the default. `batch`: written
/// after the name of the batching.
[[nodiscard]] std::string to_string(Design design, std::optional<std::uint32_t> batch = {});

/// Reads what to_string writes; also "design1" and "design2" for the three flows. Throws Error
/// (invalid_argument) that names the part which is wrong and what could stand there, also for
/// combinations that do not exist as a point.
[[nodiscard]] NamedDesign parse_design(std::string_view name);

/// Throws Error (invalid_argument) for a combination that does not exist as a point, saying why.
void require_valid(Design design);

}  // namespace millrace::ring
