// Buffers, and their registration.
#include "millrace/verbs/memory.hpp"

#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "available_memory.hpp"
#include "kept.hpp"
#include "memory_file.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "parents_objects.hpp"

namespace millrace::verbs {
namespace {

/// Throws where it is none, or more than there is.
void check_size(std::size_t size) {
    if (size == 0) {
        throw base::Error(base::ErrorCode::invalid_argument, "allocate a buffer", "0 bytes",
                          "a buffer has at least one byte", "ask for the size that is needed");
    }
    // Small buffers are not worth the look: it reads some files.
    constexpr std::size_t worth_asking = std::size_t{1} << 20;
    if (size < worth_asking) return;
    if (const std::uint64_t available = available_memory(); size > available) {
        throw base::Error(base::ErrorCode::resource_exhausted, "allocate a buffer",
                          fmt::format("{} bytes", size),
                          fmt::format("the machine (or this process's control group) has only "
                                      "{} bytes left",
                                      available),
                          "ask for less, or give it more memory");
    }
}

/// A file of its own, and all of it.
[[nodiscard]] std::shared_ptr<MemoryFile> take_whole(std::size_t size, bool huge_pages,
                                                     MemoryFile::Piece& piece) noexcept {
    auto file = MemoryFile::for_one(size, huge_pages);
    if (file == nullptr) return nullptr;
    const int error = file->take(size, piece);
    if (error == 0) return file;
    errno = error;
    return nullptr;
}

}  // namespace

Buffer::Buffer(std::size_t size, bool huge_pages) {
    check_size(size);
    MemoryFile::Piece piece;
    if (huge_pages) {
        file_ = take_whole(size, true, piece);
        if (file_ == nullptr) {
            base::log(base::LogLevel::info, "verbs", "no huge pages for {} bytes ({}): plain ones",
                      size, base::describe_errno(errno));
        }
    }
    if (file_ == nullptr) file_ = take_whole(size, false, piece);
    if (file_ == nullptr) {
        base::throw_errno(errno, "allocate a buffer", fmt::format("{} bytes", size),
                          "ask for less, or give the machine (or its control group) more memory");
    }
    data_ = piece.data;
    size_ = piece.size;
    offset_ = piece.offset;
}

Buffer Buffer::of_slab(Slabs& slabs, std::size_t size, bool packed) {
    check_size(size);
    MemoryFile::Piece piece;
    Buffer made;
    made.file_ =
        slabs.take(size, piece, packed ? MemoryFile::Unit::lines : MemoryFile::Unit::pages);
    if (made.file_ == nullptr) return Buffer{size};
    made.data_ = piece.data;
    made.size_ = piece.size;
    made.offset_ = piece.offset;
    return made;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_{std::exchange(other.data_, nullptr)},
      size_{std::exchange(other.size_, 0)},
      offset_{std::exchange(other.offset_, 0)},
      file_{std::move(other.file_)},
      quarantined_{std::exchange(other.quarantined_, false)} {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(offset_, other.offset_);
    std::swap(file_, other.file_);
    std::swap(quarantined_, other.quarantined_);
    return *this;
}

Buffer::~Buffer() {
    if (data_ == nullptr) return;
    if (quarantined_) {
        file_->keep();
    } else {
        file_->give_back({data_, size_, offset_});
    }
}

MemoryRegion::MemoryRegion(MemoryRegion&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, path_{other.path_} {}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    return *this;
}

MemoryRegion::~MemoryRegion() { (void)deregister(); }

ibv_mr* MemoryRegion::try_to_deregister() noexcept {
    try_kept();
    ibv_mr* raw = std::exchange(raw_, nullptr);
    if (raw == nullptr || is_parents(raw->context)) return nullptr;
    const std::size_t length = raw->length;
    const int error = path_->dereg_mr(raw);
    if (error == 0) return nullptr;
    base::log(
        base::LogLevel::warn, "verbs",
        "deregister {} bytes: {}; the memory is not used again before the device gives it back",
        length, base::describe_errno(error));
    return raw;
}

bool MemoryRegion::deregister() noexcept {
    ibv_mr* const raw = try_to_deregister();
    if (raw == nullptr) return true;
    keep(raw->context, [raw, path = path_] { return path->dereg_mr(raw) == 0; });
    return false;
}

RegisteredBuffer::RegisteredBuffer(Buffer buffer, MemoryRegion region) noexcept
    : buffer_{std::move(buffer)}, region_{std::move(region)} {}

RegisteredBuffer& RegisteredBuffer::operator=(RegisteredBuffer&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    std::swap(region_, other.region_);
    return *this;
}

RegisteredBuffer::~RegisteredBuffer() {
    ibv_mr* const raw = region_.try_to_deregister();
    if (raw == nullptr) return;
    buffer_.quarantine();
    try {
        const auto buffer = std::make_shared<Buffer>(std::move(buffer_));
        keep(raw->context, [raw, path = region_.path_, buffer] {
            buffer->quarantined_ = path->dereg_mr(raw) != 0;
            return !buffer->quarantined_;
        });
    } catch (const std::bad_alloc&) {
        // Then it is only kept.
    }
}

}  // namespace millrace::verbs
