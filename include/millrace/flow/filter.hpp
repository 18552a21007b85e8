// Filters and projections: what a consumer asks its producer to make of each item before it is
// laid, so that what nobody wants does not travel. Work 000 names the nearest thing, a flow between
// operators (chapter 1, section 3.4); computation near the data it leaves open (chapter 8).
//
//     struct Above {                                     // compiled into both programs
//         double limit;
//         bool operator()(const Row& row) const { return row.price > limit; }
//     };
//
//     using Rows = flow::Filtered<Row, Above>;            // the producer has it
//     auto source = flow::Producer<Rows>::connect(address, {}, deadline);
//
//     // The consumer asks for it:
//     auto dear = flow::Consumer<Row>::connect(address, {.filter = Above{100}}, deadline);
//
// A filter is a function object of a class, of at most 64 bytes, trivially copyable. The consumer's
// is copied to the producer when they are connected: its members are its parameters. By what it
// returns of an item of T,
//
//   bool               it keeps the item or leaves it out
//   U                  it makes a U of it: the consumer's items are U
//   std::optional<U>   both
//
// and a span of const bytes stands for an item of Bytes: a part of the item, or of what lives as
// long. It is called through a const object, in the producer's thread, within calls that enqueue;
// where such a call answers `full`, once more for the same item.
//
// Name, size and alignment of its class are compared, as are those of items (flow/item_name.hpp).
// Its bytes come from the other program: a filter must not trust them more than an item's.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/detail/holds_address.hpp"
#include "millrace/flow/item_name.hpp"
#include "millrace/ring/filter_terms.hpp"

namespace millrace::flow {

struct Bytes;

/// What can be a filter, as far as its own type tells.
template <class F>
concept FilterObject =
    std::is_class_v<F> && std::is_trivially_copyable_v<F> && std::is_trivially_destructible_v<F> &&
    sizeof(F) <= ring::most_filter_bytes && alignof(F) <= alignof(std::max_align_t) &&
    !base::holds_address<F>;

/// What becomes of an item for which the filter throws. Both ends are told of the first one.
enum class WhenThrown : std::uint8_t {
    stop,  ///< nothing comes after what was laid before: `peer_lost` at both ends
    skip   ///< it is left out, and counted
};

/// A consumer's choice: Options::filter. By default none, and every item comes as it is.
class Filter {
  public:
    Filter() noexcept = default;
    template <class F>
        requires(!std::same_as<F, Filter> && FilterObject<F>)
    Filter(const F& object, WhenThrown when_thrown = WhenThrown::stop)
        : name_{item_name<F>()},
          size_{sizeof(F)},
          alignment_{alignof(F)},
          when_thrown_{when_thrown} {
        if constexpr (!std::is_empty_v<F>) std::memcpy(object_.data(), &object, sizeof object);
    }

    [[nodiscard]] bool is_none() const noexcept { return name_.empty(); }
    [[nodiscard]] std::string_view name() const noexcept { return name_; }
    /// As the ends' agreement has it. Lives as long as this.
    [[nodiscard]] ring::FilterAsked asked() const noexcept;

  private:
    std::string_view name_{};
    std::size_t size_ = 0;
    std::size_t alignment_ = 1;
    WhenThrown when_thrown_ = WhenThrown::stop;
    std::array<std::byte, ring::most_filter_bytes> object_{};
};

namespace detail {

/// How an item of T is passed to filters.
template <class T>
using FilterArgument =
    std::conditional_t<std::is_same_v<T, Bytes>, std::span<const std::byte>, const T&>;

}  // namespace detail

/// As the item type of a Producer, FanOut, KeyedFanOut, Replicator or Log: items of T (or Bytes),
/// of which each consumer may ask for one of these filters, or for none.
template <class T, class... Filters>
struct Filtered {
    static_assert(sizeof...(Filters) != 0, "name the filters that consumers may ask for");
    static_assert((FilterObject<Filters> && ...),
                  "a filter is an object of a class, trivially copyable, of at most 64 bytes, and "
                  "no address: that means nothing in another process");
    static_assert(
        (std::is_invocable_v<const Filters&, detail::FilterArgument<T>> && ...),
        "a filter has a const operator() that takes an item; of Bytes, a span of const bytes");
};

/// What a filter has done.
struct FilterCounts {
    std::uint64_t looked = 0;      ///< items that it was asked about
    std::uint64_t passed = 0;      ///< of these, that were laid
    std::uint64_t threw = 0;       ///< of these, for which it threw
    std::uint64_t bytes_kept = 0;  ///< payload of all of these that was not laid
};

namespace detail {

// ---- what an item type stands for

template <class T>
struct FilteredItem {
    static constexpr bool is = false;
    using Item = T;
};
template <class T, class... Filters>
struct FilteredItem<Filtered<T, Filters...>> {
    static constexpr bool is = true;
    using Item = T;
};
/// Its consumers may ask for filters.
template <class T>
inline constexpr bool is_filtered = FilteredItem<T>::is;
/// What is enqueued.
template <class T>
using ItemIn = typename FilteredItem<T>::Item;

// ---- what a filter makes

template <class Result, class T>
struct MadeOf {
    using type = Result;
};
template <class T>
struct MadeOf<bool, T> {
    using type = T;
};
template <class T>
struct MadeOf<std::span<const std::byte>, T> {
    using type = Bytes;
};
template <class Result>
inline constexpr bool is_optional = false;
template <class U>
inline constexpr bool is_optional<std::optional<U>> = true;
template <class U, class T>
struct MadeOf<std::optional<U>, T> : MadeOf<U, T> {
    static_assert(!std::is_same_v<U, bool>, "a filter of bool items returns what it makes");
};
/// What the filter F makes of items of T. void stands for no filter.
template <class F, class T>
struct MadeBy : MadeOf<std::remove_cvref_t<std::invoke_result_t<const F&, FilterArgument<T>>>, T> {
};
template <class T>
struct MadeBy<void, T> {
    using type = T;
};
template <class F, class T>
using Made = typename MadeBy<F, T>::type;

/// `put(made)` of what F makes of the item; false: it is left out. Throws what F throws.
template <class F, class T, class Put>
bool put_made(const F& filter, FilterArgument<T> item, const Put& put) {
    using Result = std::remove_cvref_t<std::invoke_result_t<const F&, FilterArgument<T>>>;
    if constexpr (std::is_same_v<Result, bool>) {
        if (!filter(item)) return false;
        put(item);
        return true;
    } else if constexpr (is_optional<Result>) {
        const Result made = filter(item);
        if (!made.has_value()) return false;
        put(*made);
        return true;
    } else {
        put(filter(item));
        return true;
    }
}

// ---- the producer's choice

/// One of a producer's filters, as far as it can be compared.
struct FilterFacts {
    ItemFacts object;  ///< size, alignment and name of its class
    ItemFacts made;    ///< of what it makes
};
/// The filter that a consumer names, where a structure's queues have one that is made of it.
template <class F>
struct NamedFilter {
    using type = F;
};
template <class F, class T>
[[nodiscard]] FilterFacts filter_facts() {
    using Named = typename NamedFilter<F>::type;
    static_assert(sizeof(F) == sizeof(Named) && alignof(F) == alignof(Named));
    return {item_facts<Named>(), item_facts<Made<F, T>>()};
}

/// Which of a producer's filters its consumer has asked for, and the object that it sent.
class ChosenFilter : private ring::FilterOffer {
  public:
    /// 0: none; else one more than its place in the list.
    [[nodiscard]] std::size_t index() const noexcept { return index_; }
    [[nodiscard]] bool stops() const noexcept { return stops_; }
    [[nodiscard]] std::string_view name() const noexcept { return name_; }
    template <class F>
    [[nodiscard]] const F& object() const noexcept {
        return *std::launder(reinterpret_cast<const F*>(object_.data()));
    }
    /// The same filter with the same parameters.
    [[nodiscard]] bool is_as(const ChosenFilter& other) const noexcept {
        return index_ == other.index_ && object_ == other.object_;
    }
    /// Facts with this as the answer to what the consumer asks.
    [[nodiscard]] ItemFacts offered(ItemFacts item, std::vector<FilterFacts> filters);

  private:
    [[nodiscard]] std::optional<Refusal> take(const ring::FilterAsked& asked,
                                              ItemFacts& made) override;

    std::vector<FilterFacts> filters_;  ///< until it was chosen
    std::size_t index_ = 0;
    bool stops_ = true;
    std::string_view name_{};
    alignas(std::max_align_t) std::array<std::byte, ring::most_filter_bytes> object_{};
};

/// Of `filters`, the one that is asked for, as ChosenFilter::index; or why there is none.
[[nodiscard]] std::size_t find_filter(std::span<const FilterFacts> filters,
                                      const ring::FilterAsked& asked,
                                      ring::FilterOffer::Refusal& refusal);

}  // namespace detail
}  // namespace millrace::flow
