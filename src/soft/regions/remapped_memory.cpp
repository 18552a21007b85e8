#include "regions/remapped_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "system/mapping.hpp"
#include "system/memory_areas.hpp"

namespace millrace::soft {
namespace {

/// Everything that is moved now, or is on its way back.
struct Moved {
    std::mutex mutex;
    std::condition_variable changed;
    struct Piece {
        std::uintptr_t begin;
        std::size_t size;
        std::weak_ptr<RemappedMemory> memory;  ///< expired: on its way back
    };
    std::vector<Piece> pieces;
};
/// Not destroyed: memory may be deregistered after main.
Moved& moved() {
    static Moved& all = *new Moved;
    return all;
}

void* pointer_at(std::uintptr_t address) noexcept { return reinterpret_cast<void*>(address); }

/// Puts fresh memory there in one step. False, with errno: nothing has changed.
bool put(std::uintptr_t address, Mapping& fresh) noexcept {
    if (::mremap(fresh.memory(), fresh.size(), fresh.size(), MREMAP_MAYMOVE | MREMAP_FIXED,
                 pointer_at(address)) == MAP_FAILED)
        return false;
    fresh.release();
    return true;
}

/// Writes to the file what lies at `address`, but for pages that nobody has touched: they read as
/// zero, as its holes do. A lack of memory is an error here, and not a signal later.
bool save(std::uintptr_t address, std::size_t size, int file) noexcept {
    constexpr std::uint64_t present_or_swapped = std::uint64_t{3} << 62;
    const auto page = static_cast<std::size_t>(::getpagesize());
    const Descriptor pagemap{::open("/proc/thread-self/pagemap", O_RDONLY | O_CLOEXEC)};
    std::array<std::uint64_t, 512> words;
    for (std::size_t at = 0; at < size; at += page) {
        const auto place = static_cast<off_t>((address + at) / page * sizeof words[0]);
        const std::size_t next = at / page % words.size();
        if (next == 0 && ::pread(pagemap.get(), words.data(), sizeof words, place) <= 0)
            words.fill(present_or_swapped);  // where it cannot be told
        if ((words[next] & present_or_swapped) != 0 &&
            ::pwrite(file, pointer_at(address + at), page, static_cast<off_t>(at)) < 0)
            return false;
    }
    return true;
}

}  // namespace

std::shared_ptr<RemappedMemory> RemappedMemory::of(void* address, std::size_t length) noexcept try {
    static const bool asked = [] {
        const char* const value = std::getenv("MILLRACE_REMAP");
        return value != nullptr && std::string_view{value} == "1";
    }();
    if (!asked) return nullptr;
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    std::vector<std::shared_ptr<RemappedMemory>> held;  // ends after the guard: they lock as well
    std::unique_lock guard{moved().mutex};
    for (bool look = true; look;) {
        look = false;
        for (const Moved::Piece& known : moved().pieces) {
            if (begin >= known.begin + known.size || known.begin >= begin + length) continue;
            auto memory = known.memory.lock();
            if (memory == nullptr) {  // another thread is about to move it back: a moment
                moved().changed.wait(guard);
                look = true;
                break;
            }
            if (begin >= known.begin && begin + length <= known.begin + known.size) return memory;
            held.push_back(std::move(memory));
        }
    }
    // On a page that others use as well, their data would be moved under their hands.
    const auto page = static_cast<std::size_t>(::getpagesize());
    if (length == 0 || begin % page != 0 || length % page != 0) return nullptr;
    const auto range = look_behind(begin, length);
    if (!range || !range->private_anonymous || !range->readable || !range->writable) return nullptr;
    std::shared_ptr<RemappedMemory> made{new RemappedMemory};
    moved().pieces.push_back({begin, length, made});
    made->begin_ = begin;  // its end takes it out again
    made->size_ = length;
    made->file_ = Descriptor{::memfd_create("millrace-remapped", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    const int file = made->file_.get();
    Mapping fresh;
    // A child must not write into its parent's memory.
    if (made->file_ && ::ftruncate(file, static_cast<off_t>(length)) == 0 &&
        ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
        (fresh = Mapping{file, 0, length, PROT_READ | PROT_WRITE}) &&
        ::madvise(fresh.memory(), length, MADV_DONTFORK) == 0 && save(begin, length, file) &&
        put(begin, fresh))
        return made;
    const int error = errno;
    guard.unlock();  // out it goes at the end, which takes it
    static std::atomic<bool> said{false};
    if (!said.exchange(true, std::memory_order_relaxed))
        base::log(base::LogLevel::warn, "soft",
                  "MILLRACE_REMAP cannot share {} bytes at {}, they stay as they were: {}. Allow "
                  "more memory, descriptors or mappings, or register less (said once)",
                  length, address, base::describe_errno(error));
    return nullptr;
} catch (const std::exception&) {
    return nullptr;
}

RemappedMemory::~RemappedMemory() {
    if (size_ == 0) return;
    move_back();
    const std::lock_guard guard{moved().mutex};
    std::erase_if(moved().pieces, [this](const Moved::Piece& piece) {
        return piece.begin == begin_ && piece.memory.expired();
    });
    moved().changed.notify_all();
}

void RemappedMemory::move_back() const noexcept {
    // Unless the program has put something else there.
    const auto range = look_behind(begin_, size_);
    struct stat status {};
    if (!range || !range->one_shared_file || ::fstat(file_.get(), &status) != 0 ||
        range->device != status.st_dev || range->inode != status.st_ino || range->file_offset != 0)
        return;
    Mapping fresh = Mapping::of_own_memory(size_);
    off_t end = 0;  // what has no data stays untouched
    for (off_t at; fresh && (at = ::lseek(file_.get(), end, SEEK_DATA)) >= 0;) {
        end = ::lseek(file_.get(), at, SEEK_HOLE);
        std::memcpy(fresh.memory() + at, pointer_at(begin_ + static_cast<std::size_t>(at)),
                    static_cast<std::size_t>(end - at));
    }
    if (!fresh || errno != ENXIO || !put(begin_, fresh))
        base::log_line(base::LogLevel::warn, "soft",
                       "memory that MILLRACE_REMAP moved stays shared, and children made by fork "
                       "do not have it: no memory to move it back");
}

}  // namespace millrace::soft
