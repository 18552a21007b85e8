// A reader's filter at its log: what of a run goes to it, and how far that is looked at. No I/O.
// Used by LogSession; include/millrace/flow/filter.hpp says what a filter is.
//
// What is made of a run is a frame of its own, `chosen` (words.hpp): where it ends, and the items
// that passed, each with how far after the frame's beginning it was.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "log/words.hpp"
#include "millrace/flow/filter.hpp"
#include "millrace/flow/log_filter.hpp"

namespace millrace::flow::detail {

/// What a reader has asked for, as it was heard.
struct LogFilterAsked {
    std::uint64_t name_hash = 0;
    std::uint32_t alignment = 1;
    bool stops = true;
    std::size_t size = 0;
    alignas(std::max_align_t) std::array<std::byte, ring::most_filter_bytes> object{};
};

class LogChoice {
  public:
    /// The filter is one of `filters`, which outlive this. Else refusal() says why it is none.
    LogChoice(const LogFilterAsked& asked, std::span<const LogFilter> filters);

    [[nodiscard]] bool is_made() const noexcept { return filter_ != nullptr; }
    [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }
    /// Of what it makes.
    [[nodiscard]] LogShape shape() const noexcept { return log_shape_of(filter_->facts.made); }

    /// So many bytes suffice for what it makes of `items` items of `shape` that take `bytes`.
    [[nodiscard]] std::uint64_t room_for(std::uint64_t items, std::uint64_t bytes,
                                         const LogShape& shape) const noexcept;

    struct Filled {
        std::uint64_t next = 0;      ///< the position of the first item that was not looked at
        std::size_t bytes = 0;       ///< of `into`, with the head
        std::uint64_t passed = 0;    ///< items
        std::uint64_t last_end = 0;  ///< the position after the last of these
        bool has_thrown = false;     ///< for the item before `next`; by `stops`, for that at `next`
    };
    /// Makes what it can of the run of items from `position` on, whose shape is `shape`: until
    /// `into` is full, the filter has thrown, or the run is over. `told`: where the frame begins,
    /// as items before it were left out and the reader was not told.
    [[nodiscard]] Filled fill(std::span<const std::byte> run, std::uint64_t position,
                              std::uint64_t told, const LogShape& shape, std::span<std::byte> into);

    [[nodiscard]] bool stops() const noexcept { return asked_.stops; }
    /// Of what has_thrown tells.
    [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
    [[nodiscard]] const FilterCounts& counts() const noexcept { return counts_; }

  private:
    /// What becomes of one item, `item_size`: 0 of Bytes. False: it threw.
    [[nodiscard]] bool ask(std::span<const std::byte> item, std::size_t item_size,
                           std::span<const std::byte>& made, bool& passes) noexcept;

    LogFilterAsked asked_;
    const LogFilter* filter_ = nullptr;
    std::string refusal_;
    std::vector<std::byte> scratch_;  ///< of one item, and of what is made of it
    std::string reason_;
    FilterCounts counts_;
};

}  // namespace millrace::flow::detail
