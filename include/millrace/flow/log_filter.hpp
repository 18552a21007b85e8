// The filters of a log (flow/filter.hpp), as functions of bytes: a log knows its items as nothing
// else. Used by Log and its end.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>

#include "millrace/flow/filter.hpp"
#include "millrace/flow/item_name.hpp"
#include "millrace/flow/queue_end.hpp"

namespace millrace::flow::detail {

/// One of them.
struct LogFilter {
    FilterFacts facts;
    /// Asks the filter that lies at `object` of `item`, which is aligned as its type demands. True:
    /// `made` is what it makes, in `scratch` (of facts.made.size bytes, likewise aligned) or
    /// elsewhere. Throws what the filter throws.
    bool (*ask)(const std::byte* object, std::span<const std::byte> item,
                std::span<std::byte> scratch, std::span<const std::byte>& made);
};

template <class F, class T>
bool ask_log_filter(const std::byte* object, std::span<const std::byte> item,
                    [[maybe_unused]] std::span<std::byte> scratch,
                    std::span<const std::byte>& made) {
    const F& filter = *std::launder(reinterpret_cast<const F*>(object));
    const auto put = [&](const auto& one) noexcept {
        if constexpr (std::is_same_v<Made<F, T>, Bytes>) {
            made = one;
        } else {
            std::memcpy(scratch.data(), &one, sizeof one);
            made = scratch.first(sizeof one);
        }
    };
    if constexpr (std::is_same_v<T, Bytes>) {
        return put_made<F, T>(filter, item, put);
    } else {
        return put_made<F, T>(filter, *std::launder(reinterpret_cast<const T*>(item.data())), put);
    }
}

template <class F, class T>
[[nodiscard]] LogFilter log_filter() {
    static_assert(PlainItem<Made<F, T>> || std::is_same_v<Made<F, T>, Bytes>,
                  "what a filter makes must be an item");
    return {filter_facts<F, T>(), &ask_log_filter<F, T>};
}

}  // namespace millrace::flow::detail
