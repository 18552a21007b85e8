// What a consumer asks its producer to make of each item before it is laid, as far as the two ends
// of a ring agree on it and tell each other of it. What a filter does to items is the business of
// the floor above (flow/filter.hpp).
//
//   consumer → producer   with what it proposes: the filter's name, size, alignment, its bytes, and
//                         what is to be done where it throws
//   producer → consumer   a refusal, with the reason; or the setup goes on
//                         FilterNews, once, when the filter throws for the first time
//                         with the goodbye: how many items were looked at, and for how many it
//                         threw
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/language.hpp"

namespace millrace::ring {

struct ItemFacts;

/// Of the object that a filter is.
inline constexpr std::size_t most_filter_bytes = 64;

struct FilterAsked {
    std::string_view name{};      ///< as ItemFacts::name, of the object's type
    std::uint64_t name_hash = 0;  ///< of all of it; what is heard of it may be cut
    std::uint32_t alignment = 1;  ///< of the object
    bool stops = true;            ///< where it throws, the queue ends; else the item is left
                                  ///< out
    std::span<const std::byte> object{};  ///< at most most_filter_bytes
};

/// Of a producer: which filters it has. Asked while it agrees with its consumer.
class FilterOffer {
  public:
    virtual ~FilterOffer() = default;
    struct Refusal {
        std::string cause{};
        std::string remedy{};
    };
    /// What the filter makes of the producer's items goes to `made`; or why there is no such
    /// filter. `asked` is what the peer has said, and lives for as long as the call.
    [[nodiscard]] virtual std::optional<Refusal> take(const FilterAsked& asked,
                                                      ItemFacts& made) = 0;
};

/// That a filter has thrown.
struct FilterNews {
    static constexpr std::size_t longest_reason = 160;

    std::uint64_t position = 0;  ///< in the ring, of the item that would have come next
    std::uint64_t looked = 0;    ///< items that were looked at before
    std::uint32_t stops = 0;     ///< 1: nothing comes from that position on
    std::uint32_t length = 0;
    char reason[longest_reason] = {};  ///< what the exception said, printable

    [[nodiscard]] static FilterNews of(std::uint64_t position, std::uint64_t looked, bool stops,
                                       std::string_view reason) noexcept;
    /// None: these bytes tell nothing.
    [[nodiscard]] static std::optional<FilterNews> from(std::span<const std::byte> bytes) noexcept;
    /// "the producer's filter threw at item 17 of those that it looked at: …".
    [[nodiscard]] std::string sentence() const;
};
static_assert(sizeof(FilterNews) == 184);

/// What a producer has told its consumer of the filter.
struct FilterTold {
    std::uint64_t looked = 0;  ///< items that it looked at, by its goodbye or else its news
    std::uint64_t threw = 0;   ///< likewise; 1 from the first on
    std::string reason{};      ///< of the first; empty: none
};

namespace detail {

/// A consumer's: hears what the producer tells of its filter.
struct FilterHearing {
    std::optional<FilterNews> news;
    bool is_liar = false;  ///< what was heard was none

    void hear(std::span<const std::byte> bytes) noexcept;
};

}  // namespace detail
}  // namespace millrace::ring
