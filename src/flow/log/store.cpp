// What a log keeps, see the header.
#include "log/store.hpp"

#include <utility>

#include <fmt/format.h>

#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::flow::detail {
namespace {

/// Of Bytes, so that a ring of as many bytes as this log's takes it in a frame, with `head` bytes
/// besides its word.
std::uint64_t longest_in_ring(const LogShape& shape, const LogOptions& options, std::size_t head) {
    ring::Terms terms;
    terms.ring_bytes = options.queue.ring.capacity.value_or(ring::RingOptions::default_bytes);
    const std::uint64_t room = terms.max_frame() - log_word_bytes - head;
    if (terms.ring_bytes < 256 || shape.item_size > room) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a log",
                          fmt::format("items of {} bytes by way of rings of {}", shape.item_size,
                                      terms.ring_bytes),
                          "half of a ring holds an item and 32 bytes besides",
                          "ask for more bytes (LogOptions::queue.ring.capacity), 256 at least"};
    }
    return (room - log_record_head) & ~std::uint64_t{7};
}

std::unique_ptr<LogDirectory> open_directory(const LogShape& shape, const LogOptions& options) {
    check(options.retention, shape);
    if (options.directory.empty()) return nullptr;
    return std::make_unique<LogDirectory>(options.directory, shape);
}

}  // namespace

LogStore::LogStore(const LogShape& shape, const LogOptions& options, std::size_t head)
    : shape_{shape},
      retention_{options.retention},
      directory_{open_directory(shape, options)},
      history_{shape, retention_, longest_in_ring(shape, options, head), directory_.get()} {
    if (directory_ == nullptr) {
        sequence_ = base::random_bits() | 1;
    } else {
        directory_->begin_epoch(history_.end());
        sequence_ = directory_->sequence();
        epoch_ = directory_->epoch();
        book_ = LogBook{directory_->path() + "/consumers", sequence_, history_.end()};
    }
    hold();
}

LogView LogStore::view() const noexcept {
    return {.shape = shape_,
            .sequence = sequence_,
            .epochs = directory_ != nullptr ? directory_->epochs() : std::span{only_epoch_},
            .epoch = epoch_,
            .first = history_.first(),
            .end = history_.end()};
}

void LogStore::acknowledge(const std::string& name, std::uint64_t position) {
    // There was room for its name when it joined, and a name that found none since is nobody's.
    (void)book_.note(name, position);
    hold();
}

void LogStore::forget(const std::string& name) noexcept {
    book_.forget(name);
    std::erase(retention_.until_acknowledged, name);
    hold();
}

void LogStore::hold() noexcept {
    history_.hold_from(book_.least_of(retention_.until_acknowledged));
}

void LogStore::sync() {
    history_.sync();
    if (directory_ != nullptr) book_.sync();
}

}  // namespace millrace::flow::detail
