// Which name has acknowledged what of a log, kept in memory or in a file that outlives its
// process. Used by LogEnd.
//
//   file     BookHead | 1,024 consumers of two Places each
//   a Place  position | version | name | checksum of these
//
// An acknowledgement goes to the older of a consumer's two places, its checksum last: wherever it
// is cut short, the one before it is whole. A consumer is where one of its places is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "log/segment.hpp"

namespace millrace::flow::detail {

class LogBook {
  public:
    static constexpr std::size_t most_consumers = 1024;

    /// In memory.
    LogBook() = default;
    /// In a file, of that sequence; positions beyond `end` are taken for `end`, as what those
    /// consumers had is lost, and a warning says so. Throws Error.
    LogBook(const std::string& path, std::uint64_t sequence, std::uint64_t end);

    [[nodiscard]] std::optional<std::uint64_t> acknowledged(std::string_view name) const noexcept;
    /// False: there is no room for one more name.
    [[nodiscard]] bool note(std::string_view name, std::uint64_t position);
    void forget(std::string_view name) noexcept;
    /// What all of them have acknowledged; one that never has, nothing.
    [[nodiscard]] std::uint64_t least_of(const std::vector<std::string>& names) const noexcept;

    struct Entry {
        std::string name;  ///< empty: a place that is free
        std::uint64_t position = 0;
        std::uint64_t version = 0;
    };
    [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
    /// Until it is on the disk. Throws Error.
    void sync() const { file_.sync(path_); }

  private:
    void read(std::uint64_t sequence, std::uint64_t end);
    void write(std::size_t at) noexcept;
    [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept;

    std::vector<Entry> entries_;
    std::string path_;
    LogMapping file_;
};

}  // namespace millrace::flow::detail
