// Implementation of memory_file.hpp.
#include "memory_file.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

#include "millrace/base/detail/own_mappings.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::verbs {
namespace {

constexpr std::size_t huge_page_size = std::size_t{2} << 20;
/// Of which nothing is there but what was taken. Large, so that pieces of 64 MiB find room, too.
constexpr std::uint64_t slab_size = std::uint64_t{256} << 20;

[[nodiscard]] std::size_t plain_page_size() noexcept {
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// ftruncate beyond it is a signal (SIGXFSZ) that ends programs.
[[nodiscard]] bool may_have_slabs() noexcept {
    rlimit limit{};
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= slab_size;
}

[[nodiscard]] int allocate(int descriptor, int mode, std::uint64_t offset,
                           std::uint64_t size) noexcept {
    int result;
    do {
        result = fallocate(descriptor, mode, static_cast<off_t>(offset), static_cast<off_t>(size));
    } while (result != 0 && errno == EINTR);
    return result;
}

/// Files that are never closed; the list makes them known, and takes no memory.
struct Kept {
    std::mutex mutex;
    MemoryFile* first = nullptr;
};
Kept& kept() noexcept {
    static Kept& all = *new Kept;
    return all;
}

}  // namespace

// The seals let a peer that maps the file rely on its size, and F_SEAL_SEAL keeps a peer from
// sealing it against writing, which would forbid giving pages back, too.
std::shared_ptr<MemoryFile> MemoryFile::create(std::uint64_t size, std::size_t page,
                                               unsigned flags) noexcept {
    std::shared_ptr<MemoryFile> file;
    try {
        file.reset(new MemoryFile);
    } catch (const std::bad_alloc&) {
        errno = ENOMEM;
        return nullptr;
    }
    file->descriptor_ = base::above_standard_streams(
        memfd_create("millrace-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (file->descriptor_ < 0) return nullptr;
    if (size > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
        errno = EFBIG;
        return nullptr;
    }
    int result;
    do {
        result = ftruncate(file->descriptor_, static_cast<off_t>(size));
    } while (result != 0 && errno == EINTR);
    struct stat status {};
    if (result != 0 ||
        fcntl(file->descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        fstat(file->descriptor_, &status) != 0) {
        return nullptr;
    }
    file->device_ = status.st_dev;
    file->inode_ = status.st_ino;
    file->size_ = file->next_ = size;
    file->page_ = page;
    file->process_ = getpid();
    return file;
}

std::shared_ptr<MemoryFile> MemoryFile::for_one(std::size_t size, bool huge_pages) noexcept {
    const std::size_t page = huge_pages ? huge_page_size : plain_page_size();
    if (size > SIZE_MAX - page) {
        errno = ENOMEM;
        return nullptr;
    }
    return create((size + page - 1) / page * page, page,
                  huge_pages ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
}

std::shared_ptr<MemoryFile> MemoryFile::slab() noexcept {
    if (!may_have_slabs()) {
        errno = EFBIG;
        return nullptr;
    }
    auto file = create(slab_size, plain_page_size(), 0);
    if (file != nullptr) file->for_many_ = true;
    return file;
}

MemoryFile::~MemoryFile() {
    const int error = errno;
    if (descriptor_ >= 0) close(descriptor_);
    errno = error;
}

// Every page is allocated here (fallocate), because a page that cannot be had later is a SIGBUS in
// whoever touches it first; and populated, so that the first lap of a ring does not fault page by
// page. A child of fork() shares the pages with its parent (they are never copied on write), so the
// parent and its peers go on undisturbed.
int MemoryFile::take(std::size_t size, Piece& piece, Unit unit) noexcept {
    if (!is_ours()) return ENOSPC;
    if (size > SIZE_MAX - page_) return ENOMEM;
    const std::size_t whole = unit == Unit::pages ? page_ : line_bytes;
    piece.size = (size + whole - 1) / whole * whole;
    {
        const std::lock_guard guard{mutex_};
        const std::optional<std::uint64_t> begin = place(piece.size, unit);
        if (!begin.has_value()) return ENOSPC;
        piece.offset = *begin;
    }
    if (allocate(descriptor_, 0, piece.offset, piece.size) != 0) return errno;
    void* const data =
        mmap(nullptr, before(piece) + piece.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
             descriptor_, static_cast<off_t>(piece.offset - before(piece)));
    if (data == MAP_FAILED) {
        const int error = errno;
        if (for_many_) punch(piece);
        return error;
    }
    piece.data = static_cast<std::byte*>(data) + before(piece);
    base::add_own_mapping(piece.data, piece.size, descriptor_, piece.offset);
    return 0;
}

std::optional<std::uint64_t> MemoryFile::place(std::size_t size, Unit unit) noexcept {
    if (unit == Unit::pages) {
        if (size > next_) return std::nullopt;
        return next_ -= size;
    }
    // Where nobody has taken pages meanwhile, those that are added adjoin what is left of the last.
    const std::size_t left =
        packed_begin_ == next_ ? static_cast<std::size_t>(packed_next_ - packed_begin_) : 0;
    if (packed_next_ - packed_begin_ < size) {
        const std::size_t more = (size - left + page_ - 1) / page_ * page_;
        if (more > next_) return std::nullopt;
        if (left == 0) packed_next_ = next_;
        packed_begin_ = next_ -= more;
    }
    return packed_next_ -= size;
}

void MemoryFile::give_back(const Piece& piece) noexcept {
    base::remove_own_mapping(piece.data);
    munmap(piece.data - before(piece), before(piece) + piece.size);
    // The pages of a file for one go with it, when its last peer has unmapped them.
    if (for_many_ && is_ours()) punch(piece);
}

// With its neighbours that were given back before: what late stores put there goes as well. Of a
// page that others still have a part of, the system only zeroes this part.
void MemoryFile::punch(const Piece& piece) noexcept {
    const std::lock_guard guard{mutex_};
    std::uint64_t begin = piece.offset;
    std::uint64_t end = begin + piece.size;
    auto after = given_back_.upper_bound(begin);
    if (after != given_back_.end() && after->first == end) {
        end = after->second;
        after = given_back_.erase(after);
    }
    if (after != given_back_.begin() && std::prev(after)->second == begin) {
        begin = std::prev(after)->first;
        std::prev(after)->second = end;
    } else {
        try {
            given_back_.emplace_hint(after, begin, end);
        } catch (const std::bad_alloc&) {
            // Then neighbours do not know of it.
        }
    }
    if (allocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin) !=
        0) {
        base::log(base::LogLevel::warn, "verbs",
                  "give {} bytes of a file in memory back: {}; they are kept until the file is "
                  "closed",
                  piece.size, base::describe_errno(errno));
    }
}

void MemoryFile::keep() noexcept {
    Kept& all = kept();
    const std::lock_guard guard{all.mutex};
    if (kept_ != nullptr) return;
    kept_ = shared_from_this();
    next_kept_ = std::exchange(all.first, this);
}

// Neither in a child made by fork, nor where the program has closed what it does not know and the
// number is another file's.
bool MemoryFile::is_ours() const noexcept {
    struct stat status {};
    return process_ == getpid() && fstat(descriptor_, &status) == 0 && status.st_dev == device_ &&
           status.st_ino == inode_;
}

pid_t Slabs::own_process() noexcept { return getpid(); }

std::shared_ptr<MemoryFile> Slabs::take(std::size_t size, MemoryFile::Piece& piece,
                                        MemoryFile::Unit unit) noexcept {
    if (size > MemoryFile::largest_of_slab) {
        errno = EFBIG;
        return nullptr;
    }
    // Asked before the lock, which a child may find locked for ever.
    if (process_ != getpid()) {
        errno = EPERM;
        return nullptr;
    }
    std::shared_ptr<MemoryFile> used_up;
    for (;;) {
        std::shared_ptr<MemoryFile> file;
        {
            const std::lock_guard guard{mutex_};
            file = in_use_.lock();
            if (file == nullptr || file == used_up) {
                file = MemoryFile::slab();
                if (file == nullptr) return nullptr;
                in_use_ = file;
            }
        }
        const int error = file->take(size, piece, unit);
        if (error == 0) return file;
        errno = error;
        if (error != ENOSPC || used_up != nullptr) return nullptr;
        used_up = std::move(file);
    }
}

}  // namespace millrace::verbs
