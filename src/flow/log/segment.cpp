// Segments of a log's history, see the header.
#include "log/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::flow::detail {
namespace {

constexpr const char* attempt_segment = "keep a log in files";

struct SegmentHead {
    std::array<char, 8> magic{'M', 'R', 'L', 'O', 'G', 'S', 'E', 'G'};
    std::uint32_t format = 1;
    std::uint32_t item_size = 0;
    std::uint64_t item_name = 0;
    std::uint64_t sequence = 0;
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::uint64_t zero = 0;
    std::uint64_t checksum = 0;  ///< of what precedes it

    [[nodiscard]] std::uint64_t own_checksum() const noexcept {
        return XXH3_64bits(this, offsetof(SegmentHead, checksum));
    }
};
static_assert(sizeof(SegmentHead) == 64);

}  // namespace

std::uint32_t log_checksum(std::span<const std::byte> item, std::uint64_t sequence,
                           std::uint64_t position) noexcept {
    // Odd, so that each position has another seed.
    const std::uint64_t seed = sequence ^ position * 0x9e3779b97f4a7c15 ^ item.size() << 48;
    const auto hash =
        static_cast<std::uint32_t>(XXH3_64bits_withSeed(item.data(), item.size(), seed));
    return hash == 0 ? 1 : hash;
}

// ---- mappings

LogMapping::~LogMapping() {
    if (data_ != nullptr) ::munmap(data_, size_);
    if (descriptor_ >= 0) ::close(descriptor_);
}

void LogMapping::swap(LogMapping& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(descriptor_, other.descriptor_);
}

LogMapping LogMapping::anonymous(std::size_t size) {
    void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        base::throw_errno(errno, "keep a log in memory", fmt::format("{} bytes of history", size),
                          "keep fewer bytes (LogRetention::bytes)");
    }
    return {static_cast<std::byte*>(data), size, -1};
}

LogMapping LogMapping::file(const std::string& path, std::size_t size) {
    const int descriptor = base::above_standard_streams(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (descriptor < 0) {
        base::throw_errno(errno, attempt_segment, path,
                          "may this process write in LogOptions::directory?");
    }
    LogMapping made{nullptr, 0, descriptor};
    // Not ftruncate alone: a disk that is full is an Error here, and no SIGBUS later.
    if (const int error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(size)); error != 0) {
        base::throw_errno(error, attempt_segment, fmt::format("{} of {} bytes", path, size),
                          "free room on that disk, or keep fewer bytes (LogRetention::bytes)");
    }
    void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) base::throw_errno(errno, attempt_segment, path);
    made.data_ = static_cast<std::byte*>(data);
    made.size_ = size;
    return made;
}

void LogMapping::sync(const std::string& of) const {
    if (descriptor_ < 0) return;
    // What was written to the mapping is written to the file: no msync of its own.
    if (::fdatasync(descriptor_) != 0) base::throw_errno(errno, "bring a log to its disk", of);
}

// ---- segments

std::uint64_t LogSegment::longest_item(std::uint64_t bytes) noexcept {
    const std::uint64_t most = bytes - sizeof(SegmentHead) - log_record_head;
    return std::min<std::uint64_t>(most & ~std::uint64_t{7}, UINT32_MAX);
}

void LogSegment::lay_out() {
    const std::uint64_t head = path_.empty() ? 0 : sizeof(SegmentHead);
    items_ = mapping_.data() + head;
    capacity_ = mapping_.size() - head;
    if (shape_.is_framed()) {
        capacity_ &= ~std::uint64_t{7};
        return;
    }
    if (path_.empty()) {
        capacity_ -= capacity_ % shape_.item_size;
        return;
    }
    const std::uint64_t each = shape_.item_size + sizeof(std::uint32_t);
    // Up to 3 bytes bring the checksums to a multiple of 4.
    const std::uint64_t slots = (capacity_ - 3) / each;
    capacity_ = slots * shape_.item_size;
    checks_ = reinterpret_cast<std::uint32_t*>(items_ + ((capacity_ + 3) & ~std::uint64_t{3}));
}

LogSegment::LogSegment(const LogShape& shape, std::uint64_t base, std::uint64_t bytes)
    : shape_{shape}, base_{base}, mapping_{LogMapping::anonymous(bytes)} {
    lay_out();
}

LogSegment::LogSegment(const LogShape& shape, std::uint64_t base, std::uint64_t bytes,
                       std::uint64_t sequence, std::string path)
    : shape_{shape}, base_{base}, sequence_{sequence}, path_{std::move(path)} {
    // What bears the name, if anything, is no part of the log.
    ::unlink(path_.c_str());
    mapping_ = LogMapping::file(path_, bytes);
    lay_out();
    SegmentHead head;
    head.item_size = shape.item_size;
    head.item_name = shape.item_name;
    head.sequence = sequence;
    head.base = base;
    head.bytes = bytes;
    head.checksum = head.own_checksum();
    std::memcpy(mapping_.data(), &head, sizeof head);
}

std::optional<LogSegment> LogSegment::reopen(const LogShape& shape, std::uint64_t base,
                                             std::uint64_t sequence, std::string path,
                                             std::uint64_t most) {
    SegmentHead head;
    {
        const int descriptor =
            base::above_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (descriptor < 0) base::throw_errno(errno, "take up a log again", path);
        const ssize_t got = ::pread(descriptor, &head, sizeof head, 0);
        ::close(descriptor);
        if (got != sizeof head) return std::nullopt;
    }
    const bool fits = head.magic == SegmentHead{}.magic && head.format == SegmentHead{}.format &&
                      head.checksum == head.own_checksum() && head.item_size == shape.item_size &&
                      head.item_name == shape.item_name && head.sequence == sequence &&
                      head.base == base;
    if (!fits) return std::nullopt;
    LogSegment segment;
    segment.shape_ = shape;
    segment.base_ = base;
    segment.sequence_ = sequence;
    segment.path_ = std::move(path);
    segment.mapping_ = LogMapping::file(segment.path_, head.bytes);
    segment.lay_out();
    segment.take_whole_items(most);
    return segment;
}

void LogSegment::take_whole_items(std::uint64_t most) noexcept {
    while (count_ < most && used_ < capacity_) {
        const std::span<const std::byte> rest{items_ + used_, capacity_ - used_};
        std::span<const std::byte> item = rest;
        std::uint32_t check = 0;
        std::uint64_t bytes = shape_.item_size;
        if (shape_.is_framed()) {
            if (!log_record_at(rest, item)) break;
            std::memcpy(&check, rest.data() + sizeof(std::uint32_t), sizeof check);
            bytes = log_record_bytes(item.size());
        } else {
            item = rest.first(bytes);
            check = checks_[count_];
        }
        if (check != log_checksum(item, sequence_, base_ + count_)) break;
        used_ += bytes;
        ++count_;
    }
    // What follows may be whole, and is not the sequence's: it must not come to light once the item
    // before it is.
    std::memset(items_ + used_, 0, capacity_ - used_);
    if (checks_ != nullptr) {
        const std::uint64_t slots = capacity_ / shape_.item_size;
        std::memset(checks_ + count_, 0, (slots - count_) * sizeof *checks_);
    }
}

void LogSegment::seal_record(std::byte* at, std::span<const std::byte> item) noexcept {
    const auto length = static_cast<std::uint32_t>(item.size());
    const std::uint64_t check = sequence_ == 0 ? 0 : log_checksum(item, sequence_, base_ + count_);
    std::uint32_t words[2] = {length, static_cast<std::uint32_t>(check)};
    std::uint64_t head = 0;
    std::memcpy(&head, words, sizeof head);
    std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(at)}.store(
        head, std::memory_order_release);
}

std::uint64_t LogSegment::offset_of(std::uint64_t position) const noexcept {
    if (!shape_.is_framed()) return (position - base_) * shape_.item_size;
    std::uint64_t offset = 0;
    for (std::uint64_t i = base_; i != position; ++i) {
        std::span<const std::byte> item;
        (void)log_record_at({items_ + offset, used_ - offset}, item);
        offset += log_record_bytes(item.size());
    }
    return offset;
}

std::span<const std::byte> LogSegment::item(std::uint64_t position) const noexcept {
    const std::uint64_t offset = offset_of(position);
    std::span<const std::byte> item{items_ + offset, used_ - offset};
    if (!shape_.is_framed()) return item.first(shape_.item_size);
    (void)log_record_at(item, item);
    return item;
}

std::span<const std::byte> LogSegment::run(std::uint64_t offset, std::uint64_t most,
                                           std::uint64_t& items) const noexcept {
    const std::span<const std::byte> rest{items_ + offset, used_ - offset};
    if (!shape_.is_framed()) {
        items = std::min<std::uint64_t>(most, rest.size()) / shape_.item_size;
        return rest.first(items * shape_.item_size);
    }
    items = 0;
    std::uint64_t bytes = 0;
    while (bytes < rest.size()) {
        std::span<const std::byte> item;
        (void)log_record_at(rest.subspan(bytes), item);
        const std::uint64_t more = bytes + log_record_bytes(item.size());
        if (more > most) break;
        bytes = more;
        ++items;
    }
    return rest.first(bytes);
}

}  // namespace millrace::flow::detail
