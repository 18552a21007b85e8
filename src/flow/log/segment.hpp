// A stretch of a log's history: items that follow each other from a position on, in memory of its
// own or in a file. Used by LogHistory.
//
//   of one type   item 0 | item 1 | …                    checksums apart: u32 | u32 | …
//   of Bytes      record 0 | record 1 | …                as words.hpp has them
//
//   file          SegmentHead | items, or records | checksums, of items of one type
//
// An item is written before its checksum, and its checksum is never 0, which is what stands where
// nothing was written. It depends on sequence, position and length, so that no other item's can be
// taken for it. So the items of a file are those up to the first whose checksum does not fit,
// wherever the process that wrote it was cut short, and wherever the file was.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "log/words.hpp"
#include "millrace/base/clock.hpp"

namespace millrace::flow::detail {

/// Checksum of an item in a file; never 0.
[[nodiscard]] std::uint32_t log_checksum(std::span<const std::byte> item, std::uint64_t sequence,
                                         std::uint64_t position) noexcept;

/// Memory that a file may be behind. Move-only.
class LogMapping {
  public:
    LogMapping() = default;
    LogMapping(std::byte* data, std::size_t size, int descriptor) noexcept
        : data_{data}, size_{size}, descriptor_{descriptor} {}
    LogMapping(LogMapping&& other) noexcept { swap(other); }
    LogMapping& operator=(LogMapping&& other) noexcept {
        swap(other);
        return *this;
    }
    ~LogMapping();

    /// Memory of nobody else. Throws Error (resource_exhausted).
    [[nodiscard]] static LogMapping anonymous(std::size_t size);
    /// The file at `path`, made if it is not there, with `size` bytes that have a place on the
    /// disk; those that it lacks are 0. Throws Error.
    [[nodiscard]] static LogMapping file(const std::string& path, std::size_t size);

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// Until it is on the disk. `of`: whose file it is, for errors. Throws Error.
    void sync(const std::string& of) const;

  private:
    void swap(LogMapping& other) noexcept;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    int descriptor_ = -1;  ///< of the file
};

class LogSegment {
  public:
    /// In memory. `bytes`: of all that it takes.
    LogSegment(const LogShape& shape, std::uint64_t base, std::uint64_t bytes);
    /// A new one in a file. Throws Error.
    LogSegment(const LogShape& shape, std::uint64_t base, std::uint64_t bytes,
               std::uint64_t sequence, std::string path);
    /// One that is there: its items up to the first that is not whole, and to `most` of them. What
    /// follows is made 0. None: it is no segment of that log at that position. Throws Error.
    [[nodiscard]] static std::optional<LogSegment> reopen(const LogShape& shape, std::uint64_t base,
                                                          std::uint64_t sequence, std::string path,
                                                          std::uint64_t most);

    [[nodiscard]] std::uint64_t base() const noexcept { return base_; }
    [[nodiscard]] std::uint64_t end() const noexcept { return base_ + count_; }
    /// Of all that it takes.
    [[nodiscard]] std::uint64_t bytes() const noexcept { return mapping_.size(); }
    [[nodiscard]] std::uint64_t used() const noexcept { return used_; }
    /// The longest item of Bytes that an empty segment of `bytes` takes.
    [[nodiscard]] static std::uint64_t longest_item(std::uint64_t bytes) noexcept;

    /// False: no room.
    [[nodiscard]] bool append(std::span<const std::byte> item) noexcept {
        std::byte* const at = items_ + used_;
        if (shape_.is_framed()) {
            const std::uint64_t bytes = log_record_bytes(item.size());
            if (bytes > capacity_ - used_) return false;
            if (!item.empty()) std::memcpy(at + log_record_head, item.data(), item.size());
            seal_record(at, item);
            used_ += bytes;
        } else {
            if (used_ == capacity_) return false;
            std::memcpy(at, item.data(), shape_.item_size);
            if (checks_ != nullptr) seal(checks_[count_], item);
            used_ += shape_.item_size;
        }
        ++count_;
        return true;
    }

    /// In memory: everything goes, and what comes next is at `base`.
    void begin_anew(std::uint64_t base) noexcept {
        base_ = base;
        used_ = count_ = 0;
    }

    /// How far `position` is from the beginning, in bytes; base() ≤ position ≤ end().
    [[nodiscard]] std::uint64_t offset_of(std::uint64_t position) const noexcept;
    /// Whole items from `offset` on, `most` bytes at most; how many they are.
    [[nodiscard]] std::span<const std::byte> run(std::uint64_t offset, std::uint64_t most,
                                                 std::uint64_t& items) const noexcept;
    /// The item at a position before end().
    [[nodiscard]] std::span<const std::byte> item(std::uint64_t position) const noexcept;

    /// When the last item had come, once it is full.
    base::Clock::time_point sealed_at{};
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    void sync() const { mapping_.sync(path_); }

  private:
    LogSegment() = default;
    void lay_out();
    void take_whole_items(std::uint64_t most) noexcept;
    void seal(std::uint32_t& check, std::span<const std::byte> item) noexcept {
        std::atomic_ref<std::uint32_t>{check}.store(log_checksum(item, sequence_, base_ + count_),
                                                    std::memory_order_release);
    }
    void seal_record(std::byte* at, std::span<const std::byte> item) noexcept;

    LogShape shape_;
    std::uint64_t base_ = 0;
    std::uint64_t sequence_ = 0;  ///< 0: in memory, without checksums
    std::uint64_t capacity_ = 0;  ///< bytes of items
    std::uint64_t used_ = 0;      ///< of these
    std::uint64_t count_ = 0;
    LogMapping mapping_;
    std::byte* items_ = nullptr;
    std::uint32_t* checks_ = nullptr;
    std::string path_;
};

}  // namespace millrace::flow::detail
