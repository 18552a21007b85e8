#include "process/windows.hpp"

#include <bitset>
#include <cstdint>
#include <utility>

#include "fabric/node.hpp"
#include "layout/block_layout.hpp"
#include "layout/layout.hpp"
#include "process/memory_window.hpp"

namespace millrace::soft {

void Windows::add(MemoryWindow& window) {
    const std::lock_guard guard{mutex_};
    by_index_.emplace(index_of_key(window.rkey), &window);
}

void Windows::remove(MemoryWindow& window) noexcept {
    const std::lock_guard guard{mutex_};
    by_index_.erase(index_of_key(window.rkey));
}

bool Windows::any_on(const Registration& region) noexcept {
    const std::lock_guard guard{mutex_};
    for (const auto& [index, window] : by_index_) {
        if (window->region == &region && window->bound()) return true;
    }
    for (const auto& [index, window] : by_index_) {
        if (window->region != &region) continue;
        node_.regions().invalidate(std::exchange(window->bound_key, 0U));
        window->region = nullptr;
    }
    return false;
}

void Windows::leave(const std::atomic<std::uint64_t>* words) noexcept {
    const std::lock_guard guard{mutex_};
    for (const auto& [index, window] : by_index_) {
        if (window->words != words) continue;
        window->words[window->slot].store(0, std::memory_order_release);
        node_.regions().invalidate(window->bound_key);
        window->words = nullptr;
        window->slot = -1;
        window->bound_key = 0;
        window->region = nullptr;
    }
}

MemoryWindow* Windows::find(std::uint32_t index) const noexcept {
    const auto found = by_index_.find(index);
    return found == by_index_.end() ? nullptr : found->second;
}

int Windows::free_slot(const std::atomic<std::uint64_t>* words) const noexcept {
    std::bitset<windows_per_queue_pair> taken;
    for (const auto& [index, window] : by_index_) {
        if (window->words == words && window->slot >= 0)
            taken.set(static_cast<std::size_t>(window->slot));
    }
    for (std::size_t slot = 0; slot < taken.size(); ++slot) {
        if (!taken.test(slot)) return static_cast<int>(slot);
    }
    return -1;
}

}  // namespace millrace::soft
