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
    by_index_.hold()->emplace(index_of_key(window.rkey), &window);
}

void Windows::remove(MemoryWindow& window) noexcept {
    by_index_.hold()->erase(index_of_key(window.rkey));
}

bool Windows::any_on(const Registration& region) noexcept {
    const auto windows = by_index_.hold();
    for (const auto& [index, window] : *windows) {
        if (window->binding(windows).region == &region && window->bound(windows)) return true;
    }
    for (const auto& [index, window] : *windows) {
        WindowBinding& binding = window->binding(windows);
        if (binding.region != &region) continue;
        node_.regions().invalidate(std::exchange(binding.key, 0U));
        binding.region = nullptr;
    }
    return false;
}

void Windows::leave(const std::atomic<std::uint64_t>* words) noexcept {
    const auto windows = by_index_.hold();
    for (const auto& [index, window] : *windows) {
        WindowBinding& binding = window->binding(windows);
        if (binding.words != words) continue;
        binding.words[binding.slot].store(0, std::memory_order_release);
        node_.regions().invalidate(binding.key);
        binding = {};
    }
}

MemoryWindow* Windows::find(WindowsHeld held, std::uint32_t index) const noexcept {
    const auto found = by_index_(held).find(index);
    return found == by_index_(held).end() ? nullptr : found->second;
}

int Windows::free_slot(WindowsHeld held, const std::atomic<std::uint64_t>* words) const noexcept {
    std::bitset<windows_per_queue_pair> taken;
    for (const auto& [index, window] : by_index_(held)) {
        const WindowBinding& binding = window->binding(held);
        if (binding.words == words && binding.slot >= 0)
            taken.set(static_cast<std::size_t>(binding.slot));
    }
    for (std::size_t slot = 0; slot < taken.size(); ++slot) {
        if (!taken.test(slot)) return static_cast<int>(slot);
    }
    return -1;
}

}  // namespace millrace::soft
