// The folder of a log that is kept in files: whose it is, which segments there are, and how often
// the log was taken up again. One process at a time has it. Used by LogHistory and LogEnd.
//
//   log              what items are, the sequence's name, where each epoch began; written aside
//   consumers        which name has acknowledged what (book.hpp)
//   00…042.segment   a stretch of history, by its first position (segment.hpp)
//   00…042.lost      a segment that did not follow what was whole, kept to be looked at
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "log/words.hpp"

namespace millrace::flow::detail {

class LogDirectory {
  public:
    /// Makes the folder, if it is not there, and takes it. Throws Error (permission; system: it
    /// cannot be made, or another log has it; invalid_argument: it is that of other items;
    /// protocol: it is damaged).
    LogDirectory(std::string path, const LogShape& shape);
    LogDirectory(const LogDirectory&) = delete;
    LogDirectory& operator=(const LogDirectory&) = delete;
    ~LogDirectory();

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
    /// Where the epochs began, this one last; its number.
    [[nodiscard]] std::span<const std::uint64_t> epochs() const noexcept { return begins_; }
    [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }
    /// Where the sequence goes on if no segment is left.
    [[nodiscard]] std::uint64_t resume_at() const noexcept {
        return begins_.empty() ? 0 : begins_.back();
    }
    /// The next epoch begins, and that is on the disk. Throws Error.
    void begin_epoch(std::uint64_t position);

    [[nodiscard]] std::string path_of(std::uint64_t base) const;
    /// First positions, in their order.
    [[nodiscard]] std::vector<std::uint64_t> segments() const;
    void remove(const std::string& path) const noexcept;
    /// Segments that are no part of the sequence: renamed, and a warning in the log.
    void set_aside(std::span<const std::uint64_t> bases) const;

  private:
    void lock();
    [[nodiscard]] bool read();
    void write() const;

    std::string path_;
    LogShape shape_;
    std::uint64_t sequence_ = 0;
    std::uint32_t epoch_ = 0;
    std::vector<std::uint64_t> begins_;
    int folder_ = -1;  ///< its descriptor, to be locked and brought to the disk
};

}  // namespace millrace::flow::detail
