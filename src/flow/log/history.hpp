// What is kept of a log's sequence: segments that follow each other, the oldest of which go. In
// memory, or in files that a process that begins anew takes up again (directory.hpp). Used by
// LogEnd.
//
//   first()                                             end()
//   │ segment │ segment │ segment │ … │ segment that grows│
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "log/directory.hpp"
#include "log/segment.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/log_options.hpp"

namespace millrace::flow::detail {

/// Throws Error (invalid_argument).
void check(const LogRetention& retention, const LogShape& shape);

class LogHistory {
  public:
    /// A place in it, which may be left behind by what goes.
    struct Cursor {
        std::uint64_t position = 0;
        std::uint64_t base = ~std::uint64_t{0};  ///< of the segment that `offset` is one of
        std::uint64_t offset = 0;
    };

    /// `longest_item`: of Bytes, as far as others than the history have a say. `directory`: null:
    /// in memory. Throws Error.
    LogHistory(const LogShape& shape, const LogRetention& retention, std::uint64_t longest_item,
               LogDirectory* directory);

    [[nodiscard]] std::uint64_t first() const noexcept { return segments_.front()->base(); }
    [[nodiscard]] std::uint64_t end() const noexcept { return segments_.back()->end(); }
    /// Of Bytes.
    [[nodiscard]] std::uint64_t longest_item() const noexcept { return longest_item_; }

    /// `ok`; `full`: there is no room, and nothing may go; `too_large`. Throws Error: no new file
    /// can be made, and nothing was appended.
    base::Status append(std::span<const std::byte> item) {
        if (shape_.is_framed() && item.size() > longest_item_) [[unlikely]]
            return base::Status::too_large;
        if (segments_.back()->append(item)) [[likely]]
            return base::Status::ok;
        return append_to_new(item);
    }

    /// Whole items from `at` on, which is from first() to end(), `most` bytes at most; moves `at`
    /// past them. None: at the end, or the next item is longer.
    [[nodiscard]] std::span<const std::byte> next(Cursor& at, std::uint64_t most) const noexcept;
    /// The item at a position from first() to before end().
    [[nodiscard]] std::span<const std::byte> item(std::uint64_t position) const noexcept;

    /// Nothing from `position` on may go.
    void hold_from(std::uint64_t position) noexcept { held_from_ = position; }
    /// Drops what is too old.
    void drop_aged();
    /// Until all of it is on the disk. Throws Error.
    void sync();

  private:
    [[nodiscard]] base::Status append_to_new(std::span<const std::byte> item);
    [[nodiscard]] bool may_drop() const noexcept {
        return segments_.size() > 1 && segments_.front()->end() <= held_from_;
    }
    void drop_first();
    void take_up();
    [[nodiscard]] std::unique_ptr<LogSegment> make(std::uint64_t base);
    [[nodiscard]] const LogSegment& segment_of(std::uint64_t position) const noexcept;

    LogShape shape_;
    LogRetention retention_;
    LogDirectory* directory_;
    std::uint64_t segment_bytes_;
    std::uint64_t longest_item_;
    std::uint64_t held_from_ = ~std::uint64_t{0};
    std::uint64_t synced_to_ = 0;                        ///< positions that are on the disk
    std::vector<std::unique_ptr<LogSegment>> segments_;  ///< one at least
    std::unique_ptr<LogSegment> spare_;                  ///< memory that has gone, to be used again
};

}  // namespace millrace::flow::detail
