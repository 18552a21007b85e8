#include "regions/remapped_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

#include "layout/layout.hpp"
#include "millrace/base/log.hpp"
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

/// Fills fresh memory with what lies at `address` and puts it there in one step. False: nothing
/// has changed.
bool replace(std::uintptr_t address, std::size_t size, void* fresh) noexcept {
    if (fresh == MAP_FAILED) return false;
    std::memcpy(fresh, pointer_at(address), size);
    if (::mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, pointer_at(address)) !=
        MAP_FAILED) {
        return true;
    }
    ::munmap(fresh, size);
    return false;
}

}  // namespace

bool RemappedMemory::wanted() noexcept {
    static const bool asked = [] {
        const char* const value = std::getenv("MILLRACE_REMAP");
        return value != nullptr && std::string_view{value} == "1";
    }();
    return asked;
}

std::shared_ptr<RemappedMemory> RemappedMemory::of(void* address, std::size_t length) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    std::vector<std::shared_ptr<RemappedMemory>>
        held;  // let go after the mutex: their end takes it
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
    if (length == 0 || begin % page_size != 0 || length % page_size != 0) return nullptr;
    const auto range = look_behind(begin, length);
    if (!range || !range->private_anonymous || !range->readable || !range->writable) return nullptr;
    std::shared_ptr<RemappedMemory> made{new RemappedMemory};
    made->file_ = Descriptor{::memfd_create("millrace-remapped", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    // Allocated here, where a lack of memory is an error and not a signal later.
    if (!made->file_ || ::ftruncate(made->file_.get(), static_cast<off_t>(length)) != 0 ||
        ::fallocate(made->file_.get(), 0, 0, static_cast<off_t>(length)) != 0 ||
        ::fcntl(made->file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return nullptr;
    }
    moved().pieces.push_back({begin, length, made});
    made->begin_ = begin;  // its end takes it out again
    made->size_ = length;
    void* const fresh =
        ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, made->file_.get(), 0);
    // A child must not write into its parent's memory.
    if (replace(begin, length, fresh) && ::madvise(address, length, MADV_DONTFORK) == 0)
        return made;
    guard.unlock();
    return nullptr;  // and back it goes
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
        range->device != status.st_dev || range->inode != status.st_ino) {
        return;
    }
    if (!replace(
            begin_, size_,
            ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        base::log_line(base::LogLevel::warn, "soft",
                       "memory that MILLRACE_REMAP moved stays shared: no memory to move it back");
    }
}

}  // namespace millrace::soft
