// Buffers in sealed shared mappings, and their registration.
#include "millrace/verbs/memory.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "available_memory.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/own_mappings.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::verbs {
namespace {

constexpr std::size_t huge_page_size = std::size_t{2} << 20;

struct Mapping {
    std::byte* data = nullptr;
    std::size_t size = 0;
    int descriptor = -1;
    int error = 0;
};

// Every page is allocated here (fallocate), because a page that cannot be had later is a SIGBUS in
// whoever touches it first. The seals let a peer that maps the file rely on its size, and
// F_SEAL_SEAL keeps a peer from sealing it against writing.
Mapping map_sealed(std::size_t size, std::size_t page_size, unsigned flags) noexcept {
    Mapping mapping;
    if (size > SIZE_MAX - page_size) {
        mapping.error = ENOMEM;
        return mapping;
    }
    mapping.size = (size + page_size - 1) / page_size * page_size;
    const int descriptor = base::above_standard_streams(
        memfd_create("millrace-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (descriptor < 0) {
        mapping.error = errno;
        return mapping;
    }
    const auto length = static_cast<off_t>(mapping.size);
    int result;
    do {
        result = length < 0 ? (errno = EFBIG, -1) : ftruncate(descriptor, length);
        if (result == 0) result = fallocate(descriptor, 0, 0, length);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        result = fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    void* data = MAP_FAILED;
    if (result == 0) {
        // Populated now, so that the first lap of a ring does not fault page by page. A child of
        // fork() shares the pages with its parent (they are never copied on write), so the parent
        // and its peers go on undisturbed.
        data = mmap(nullptr, mapping.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                    descriptor, 0);
    }
    if (data == MAP_FAILED) {
        mapping.error = errno;
        close(descriptor);
        return mapping;
    }
    mapping.data = static_cast<std::byte*>(data);
    mapping.descriptor = descriptor;
    return mapping;
}

}  // namespace

Buffer::Buffer(std::size_t size, bool huge_pages) {
    if (size == 0) {
        throw base::Error(base::ErrorCode::invalid_argument, "allocate a buffer", "0 bytes",
                          "a buffer has at least one byte", "ask for the size that is needed");
    }
    // Small buffers are not worth the look: it reads some files.
    constexpr std::size_t worth_asking = std::size_t{1} << 20;
    if (size >= worth_asking) {
        if (const std::uint64_t available = available_memory(); size > available) {
            throw base::Error(base::ErrorCode::resource_exhausted, "allocate a buffer",
                              fmt::format("{} bytes", size),
                              fmt::format("the machine (or this process's control group) has only "
                                          "{} bytes left",
                                          available),
                              "ask for less, or give it more memory");
        }
    }
    Mapping mapping;
    if (huge_pages) {
        mapping = map_sealed(size, huge_page_size, MFD_HUGETLB | MFD_HUGE_2MB);
        if (mapping.data == nullptr) {
            base::log(base::LogLevel::info, "verbs", "no huge pages for {} bytes ({}): plain ones",
                      size, base::describe_errno(mapping.error));
        }
    }
    if (mapping.data == nullptr) {
        mapping = map_sealed(size, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), 0);
    }
    if (mapping.data == nullptr) {
        base::throw_errno(mapping.error, "allocate a buffer", fmt::format("{} bytes", size),
                          "ask for less, or give the machine (or its control group) more memory");
    }
    data_ = mapping.data;
    size_ = mapping.size;
    descriptor_ = mapping.descriptor;
    base::add_own_mapping(data_, size_, descriptor_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_{std::exchange(other.data_, nullptr)},
      size_{std::exchange(other.size_, 0)},
      descriptor_{std::exchange(other.descriptor_, -1)},
      quarantined_{std::exchange(other.quarantined_, false)} {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(quarantined_, other.quarantined_);
    return *this;
}

Buffer::~Buffer() {
    if (data_ == nullptr || quarantined_) return;
    base::remove_own_mapping(data_);
    munmap(data_, size_);
    close(descriptor_);
}

MemoryRegion::MemoryRegion(MemoryRegion&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, path_{other.path_} {}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    return *this;
}

MemoryRegion::~MemoryRegion() { (void)deregister(); }

namespace {
/// Regions that somebody may still copy to: no leak, but kept on purpose.
void keep_for_ever(ibv_mr* region) noexcept {
    static std::mutex mutex;
    static auto* const kept = new std::vector<ibv_mr*>;
    const std::scoped_lock lock{mutex};
    try {
        kept->push_back(region);
    } catch (const std::bad_alloc&) {
        // Then it is only kept.
    }
}
}  // namespace

bool MemoryRegion::deregister() noexcept {
    ibv_mr* raw = std::exchange(raw_, nullptr);
    if (raw == nullptr) return true;
    const std::size_t length = raw->length;
    const int error = path_->dereg_mr(raw);
    if (error == 0) return true;
    base::log(base::LogLevel::warn, "verbs",
              "deregister {} bytes: {}; the memory is never used again", length,
              base::describe_errno(error));
    keep_for_ever(raw);
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
    if (!region_.deregister()) buffer_.quarantine();
}

}  // namespace millrace::verbs
