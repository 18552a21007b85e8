// A log's history, see the header.
#include "log/history.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::flow::detail {
namespace {

constexpr std::uint64_t parts = 8;
constexpr std::uint64_t fewest_bytes = 4096;
constexpr std::uint64_t most_history = std::uint64_t{1} << 40;

std::uint64_t segment_bytes_of(const LogRetention& retention) noexcept {
    return retention.bytes / parts & ~std::uint64_t{63};
}

}  // namespace

void check(const LogRetention& retention, const LogShape& shape) {
    const auto refuse = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a log", std::move(what),
                          std::move(why), std::move(remedy)};
    };
    if (retention.bytes < fewest_bytes || retention.bytes > most_history) {
        refuse(fmt::format("a history of {} bytes", retention.bytes),
               fmt::format("it is from {} to {}", fewest_bytes, most_history),
               "use the default of 64 MiB");
    }
    // The head of a file, and an item with its checksum.
    const std::uint64_t least = 64 + 8 + std::uint64_t{shape.item_size} + sizeof(std::uint32_t);
    if (segment_bytes_of(retention) < least) {
        refuse(
            fmt::format("a history of {} bytes, of items of {}", retention.bytes, shape.item_size),
            "it goes by eighths, and one of them must hold an item",
            fmt::format("keep {} bytes at least", (least + 64) * parts));
    }
    if (retention.age.count() < 0) {
        refuse("a history of a negative age", "nothing is that old", "use 0 for any age");
    }
    for (const std::string& name : retention.until_acknowledged) {
        if (!name.empty() && name.size() <= longest_log_name) continue;
        refuse(fmt::format("a consumer called '{}'", name),
               fmt::format("a name has 1 to {} bytes", longest_log_name), "choose another name");
    }
}

LogHistory::LogHistory(const LogShape& shape, const LogRetention& retention,
                       std::uint64_t longest_item, LogDirectory* directory)
    : shape_{shape},
      retention_{retention},
      directory_{directory},
      segment_bytes_{segment_bytes_of(retention)},
      longest_item_{std::min(longest_item, LogSegment::longest_item(segment_bytes_))} {
    segments_.reserve(2 * parts);
    if (directory_ != nullptr) take_up();
    if (segments_.empty()) segments_.push_back(make(directory_ ? directory_->resume_at() : 0));
}

void LogHistory::take_up() {
    const std::vector<std::uint64_t> bases = directory_->segments();
    for (std::size_t i = 0; i != bases.size(); ++i) {
        const bool is_last = i + 1 == bases.size();
        const std::uint64_t most = is_last ? ~std::uint64_t{0} : bases[i + 1] - bases[i];
        std::optional<LogSegment> segment = LogSegment::reopen(
            shape_, bases[i], directory_->sequence(), directory_->path_of(bases[i]), most);
        if (!segment.has_value()) {
            directory_->set_aside(std::span{bases}.subspan(i));
            break;
        }
        segment->sealed_at = base::Clock::now();
        segments_.push_back(std::make_unique<LogSegment>(std::move(*segment)));
        if (!is_last && segments_.back()->end() != bases[i + 1]) {
            directory_->set_aside(std::span{bases}.subspan(i + 1));
            break;
        }
    }
}

std::unique_ptr<LogSegment> LogHistory::make(std::uint64_t base) {
    if (directory_ == nullptr) {
        if (spare_ != nullptr) {
            spare_->begin_anew(base);
            return std::exchange(spare_, nullptr);
        }
        return std::make_unique<LogSegment>(shape_, base, segment_bytes_);
    }
    return std::make_unique<LogSegment>(shape_, base, segment_bytes_, directory_->sequence(),
                                        directory_->path_of(base));
}

base::Status LogHistory::append_to_new(std::span<const std::byte> item) {
    std::uint64_t kept = segment_bytes_;
    for (const auto& segment : segments_) kept += segment->bytes();
    while (kept > retention_.bytes && may_drop()) {
        kept -= segments_.front()->bytes();
        drop_first();
    }
    if (kept > retention_.bytes) return base::Status::full;
    std::unique_ptr<LogSegment> segment = make(end());
    segments_.back()->sealed_at = base::Clock::now();
    segments_.push_back(std::move(segment));
    (void)segments_.back()->append(item);
    return base::Status::ok;
}

void LogHistory::drop_first() {
    std::unique_ptr<LogSegment> gone = std::move(segments_.front());
    segments_.erase(segments_.begin());
    if (directory_ != nullptr) {
        directory_->remove(gone->path());
    } else {
        spare_ = std::move(gone);
    }
}

void LogHistory::drop_aged() {
    if (retention_.age.count() == 0) return;
    const auto oldest = base::Clock::now() - retention_.age;
    while (may_drop() && segments_.front()->sealed_at < oldest) drop_first();
}

const LogSegment& LogHistory::segment_of(std::uint64_t position) const noexcept {
    // Readers are at the live end mostly, and there are few segments.
    std::size_t at = segments_.size() - 1;
    while (segments_[at]->base() > position) --at;
    return *segments_[at];
}

std::span<const std::byte> LogHistory::next(Cursor& at, std::uint64_t most) const noexcept {
    const LogSegment& segment = segment_of(at.position);
    if (at.base != segment.base()) {
        at.base = segment.base();
        at.offset = segment.offset_of(at.position);
    }
    std::uint64_t items = 0;
    const std::span<const std::byte> run = segment.run(at.offset, most, items);
    at.position += items;
    at.offset += run.size();
    return run;
}

std::span<const std::byte> LogHistory::item(std::uint64_t position) const noexcept {
    return segment_of(position).item(position);
}

void LogHistory::sync() {
    for (const auto& segment : segments_) {
        if (segment->end() > synced_to_) segment->sync();
    }
    synced_to_ = end();
}

}  // namespace millrace::flow::detail
