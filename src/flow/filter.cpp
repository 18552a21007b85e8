// Which filter a consumer asks for, and whether its producer has it.
#include "millrace/flow/filter.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/detail/name_hash.hpp"
#include "millrace/ring/item_facts.hpp"

namespace millrace::flow {

ring::FilterAsked Filter::asked() const noexcept {
    return {.name = name_,
            .name_hash = base::name_hash(name_),
            .alignment = static_cast<std::uint32_t>(alignment_),
            .stops = when_thrown_ == WhenThrown::stop,
            .object = std::span{object_}.first(size_)};
}

namespace detail {
namespace {

std::string shown(std::string_view name) {
    std::string text{name};
    std::ranges::replace_if(
        text, [](char letter) { return letter < ' ' || letter > '~'; }, '?');
    return text;
}

}  // namespace

std::size_t find_filter(std::span<const FilterFacts> filters, const ring::FilterAsked& asked,
                        ring::FilterOffer::Refusal& refusal) {
    for (std::size_t i = 0; i != filters.size(); ++i) {
        const ItemFacts& object = filters[i].object;
        if (base::name_hash(object.name) != asked.name_hash) continue;
        if (object.size == asked.object.size() && object.alignment == asked.alignment) return i + 1;
        refusal = {fmt::format("the other end's filter '{}' has {} bytes aligned to {}, this end's "
                               "{} bytes aligned to {}",
                               object.name, asked.object.size(), asked.alignment, object.size,
                               object.alignment),
                   "compile both ends with the same definition of the filter"};
        return 0;
    }
    std::string names;
    for (const FilterFacts& filter : filters) {
        names += fmt::format("{}'{}'", names.empty() ? "" : ", ", filter.object.name);
    }
    refusal = {fmt::format("the other end asks for the filter '{}', and this end has {}",
                           shown(asked.name), names),
               "ask for one of these, or add that one to the producer's flow::Filtered"};
    return 0;
}

ItemFacts ChosenFilter::offered(ItemFacts item, std::vector<FilterFacts> filters) {
    filters_ = std::move(filters);
    item.offer = this;
    return item;
}

std::optional<ring::FilterOffer::Refusal> ChosenFilter::take(const ring::FilterAsked& asked,
                                                             ItemFacts& made) {
    Refusal refusal;
    index_ = find_filter(filters_, asked, refusal);
    if (index_ == 0) return refusal;
    const FilterFacts& chosen = filters_[index_ - 1];
    name_ = chosen.object.name;
    stops_ = asked.stops;
    std::ranges::copy(asked.object, object_.begin());
    made = chosen.made;
    return std::nullopt;
}

}  // namespace detail
}  // namespace millrace::flow
