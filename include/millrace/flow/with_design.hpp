// From a design chosen at run time to the types that are compiled for it. Used by AnyProducer and
// AnyConsumer.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/ring/every_design.hpp"

namespace millrace::flow::detail {

/// Calls `make` with the flows of the design as template argument. Throws Error (invalid_argument)
/// for combinations that do not exist as a point.
template <class Make>
auto with_design(ring::Design design, Make&& make) {
    const ring::Design flows = ring::flows_of(design);
#define MILLRACE_CASE(D) \
    if (flows == D) return make.template operator()<D>();
    MILLRACE_EVERY_DESIGN(MILLRACE_CASE)
#undef MILLRACE_CASE
    ring::require_valid(design);
    throw base::Error{base::ErrorCode::unsupported, "make a flow queue", ring::to_string(design),
                      "this library does not build that point", "choose another of docs/flow.md"};
}

/// What an item is where it is passed in.
template <class T>
using Given = FilterArgument<ItemIn<T>>;
/// And where it is copied out.
template <class T>
using Taken = std::conditional_t<std::is_same_v<T, Bytes>, std::vector<std::byte>, T>;
/// And where it lies.
template <class T>
using Seen = std::conditional_t<std::is_same_v<T, Bytes>, std::span<const std::byte>, const T*>;

}  // namespace millrace::flow::detail
