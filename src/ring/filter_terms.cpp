// What a producer tells of its filter, see the header.
#include "millrace/ring/filter_terms.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include <fmt/format.h>

namespace millrace::ring {

FilterNews FilterNews::of(std::uint64_t position, std::uint64_t looked, bool stops,
                          std::string_view reason) noexcept {
    FilterNews news{.position = position, .looked = looked, .stops = stops ? 1U : 0U};
    news.length = static_cast<std::uint32_t>(std::min(reason.size(), longest_reason));
    std::transform(reason.begin(), reason.begin() + news.length, news.reason,
                   [](char letter) { return letter < ' ' || letter > '~' ? '?' : letter; });
    return news;
}

std::optional<FilterNews> FilterNews::from(std::span<const std::byte> bytes) noexcept {
    FilterNews news;
    if (bytes.size() != sizeof news) return std::nullopt;
    std::memcpy(&news, bytes.data(), sizeof news);
    if (news.stops > 1 || news.length > longest_reason) return std::nullopt;
    // Another end's: whatever it likes to say.
    return of(news.position, news.looked, news.stops != 0, {news.reason, news.length});
}

std::string FilterNews::sentence() const {
    return fmt::format("the producer's filter threw at item {} of those that it looked at: {}",
                       looked + 1, std::string_view{reason, length});
}

namespace detail {

void FilterHearing::hear(std::span<const std::byte> bytes) noexcept {
    const std::optional<FilterNews> heard = FilterNews::from(bytes);
    is_liar = is_liar || !heard.has_value() || news.has_value();
    if (!is_liar) news = heard;
}

}  // namespace detail
}  // namespace millrace::ring
