// The demo's data: real files from a folder, read into memory and cut into records before the
// clock starts, so that what is timed is the transport and not the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace millrace::tools::demo {

/// What travels in front of every record's bytes. Little-endian hosts on one machine.
struct RecordHeader {
    std::uint64_t sequence;  ///< counts from 0; the consumer refuses gaps and repeats
    std::uint64_t hash;      ///< XXH3 64 of the content
    std::int64_t sent_at;    ///< base::Clock, nanoseconds; 0 where latency is not measured
    std::uint32_t length;    ///< of the content, bytes
    std::uint32_t file;      ///< which file it came from
};
static_assert(sizeof(RecordHeader) == 32);

struct Record {
    std::size_t offset;  ///< into `RecordSet::content`
    std::uint32_t length;
    std::uint32_t file;
    std::uint64_t hash;
};

struct RecordSet {
    std::vector<std::byte> content;
    std::vector<Record> records;
    std::size_t files = 0;
    std::size_t unreadable_files = 0;
    std::size_t files_beyond_limit = 0;  ///< would not have fitted in the limit of bytes
    std::uint64_t bytes = 0;

    /// "3 files are left out and not part of any figure: 1 unreadable, …"; empty if none is.
    [[nodiscard]] std::string left_out(std::uint64_t limit) const;
    [[nodiscard]] std::span<const std::byte> bytes_of(const Record& record) const noexcept {
        return std::span{content}.subspan(record.offset, record.length);
    }
};

/// XXH3, 64 bit.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> content) noexcept;

/// Reads regular files below `root` (or `root` itself, if it is one) in name order, at most
/// `limit` bytes in all, and cuts each into records of at most `record_size` bytes; an empty file
/// is one empty record. A file that does not fit in the rest of the limit is left out, and a later,
/// smaller one may still fit. `progress(bytes)` is called now and then. Symbolic links are not
/// followed; what is left out is counted. Throws Error (not_found) if nothing could be read.
[[nodiscard]] RecordSet load_records(const std::filesystem::path& root, std::uint64_t limit,
                                     std::uint32_t record_size,
                                     const std::function<void(std::uint64_t)>& progress);

}  // namespace millrace::tools::demo
