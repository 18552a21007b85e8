#include "layout/hazard.hpp"

#include <algorithm>
#include <utility>

namespace millrace::soft {

void Hazard::forget(NamedBy mine) noexcept {
    if (named[0].load(std::memory_order_relaxed) == names_any) return;
    for (std::atomic<std::uint64_t>& pair : named) {
        const std::uint64_t names = pair.load(std::memory_order_relaxed);
        std::uint64_t others = names & names_more;
        if ((mine & named_by_sender) == 0) others |= names >> 32 << 32;
        if ((mine & named_by_receiver) == 0) others |= static_cast<std::uint32_t>(names);
        pair.store(others, std::memory_order_release);
    }
}

void RegionNames::add(Keys& keys, std::uint32_t key) noexcept {
    if (key == 0) return;
    const auto* const end = keys.keys.data() + keys.count;
    if (std::find(std::as_const(keys.keys).data(), end, key) != end) return;
    if (keys.count == keys.keys.size()) {
        too_many_ = true;
    } else {
        keys.keys[keys.count++] = key;
    }
}

void RegionNames::publish(Hazard& hazard) const noexcept {
    if (too_many_) return;
    const std::size_t count = std::max(senders_.count, receivers_.count);
    for (std::size_t i = 1; i < count; ++i) {
        hazard.named[i].store(name_pair(senders_.keys[i], receivers_.keys[i]),
                              std::memory_order_release);
    }
    for (std::size_t i = std::max<std::size_t>(count, 1); count > 1 && i < named_pairs; ++i) {
        hazard.named[i].store(0, std::memory_order_release);
    }
    hazard.named[0].store(
        name_pair(senders_.keys[0], receivers_.keys[0]) | (count > 1 ? names_more : 0),
        std::memory_order_release);
}

}  // namespace millrace::soft
