// Memory of coroutines' frames: those that are free, by size, for the thread that freed them.
#include <array>
#include <cstddef>
#include <new>

#include "millrace/base/coroutine.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace millrace::base::detail {
namespace {

struct Free {
    Free* next;
};

class FramePool {
  public:
    FramePool() = default;
    FramePool(const FramePool&) = delete;
    FramePool& operator=(const FramePool&) = delete;
    ~FramePool() {
        has_ended = true;
        for (List& list : lists_) {
            while (list.first != nullptr) {
                Free* const one = list.first;
                ASAN_UNPOISON_MEMORY_REGION(one, sizeof(Free));
                list.first = one->next;
                ::operator delete(one);
            }
        }
    }

    /// Null: there is none.
    [[nodiscard]] void* take(std::size_t size) noexcept {
        List& list = lists_[size / step];
        Free* const one = list.first;
        if (one == nullptr) return nullptr;
        ASAN_UNPOISON_MEMORY_REGION(one, size);
        list.first = one->next;
        --list.count;
        return one;
    }
    /// False: there are enough.
    [[nodiscard]] bool give(void* frame, std::size_t size) noexcept {
        List& list = lists_[size / step];
        if (list.count == most) return false;
        list.first = new (frame) Free{list.first};
        ++list.count;
        ASAN_POISON_MEMORY_REGION(frame, size);
        return true;
    }

    static constexpr std::size_t step = 64;
    static constexpr std::size_t largest = 4096;
    /// Frames of other threads' tasks may be freed behind the end of this one's pool.
    static thread_local bool has_ended;

  private:
    static constexpr std::size_t most = 256;  // of each size
    struct List {
        Free* first = nullptr;
        std::size_t count = 0;
    };
    std::array<List, largest / step + 1> lists_;
};

thread_local bool FramePool::has_ended = false;

[[nodiscard]] constexpr std::size_t rounded(std::size_t size) noexcept {
    return (size + FramePool::step - 1) / FramePool::step * FramePool::step;
}
[[nodiscard]] FramePool& pool() noexcept {
    static thread_local FramePool own;
    return own;
}

}  // namespace

void* Promise::operator new(std::size_t size) {
    const std::size_t room = rounded(size);
    if (room > FramePool::largest || FramePool::has_ended) return ::operator new(room);
    void* const frame = pool().take(room);
    return frame != nullptr ? frame : ::operator new(room);
}

void Promise::operator delete(void* frame, std::size_t size) noexcept {
    const std::size_t room = rounded(size);
    if (room > FramePool::largest || FramePool::has_ended || !pool().give(frame, room)) {
        ::operator delete(frame);
    }
}

}  // namespace millrace::base::detail
