// RegistrationCache, see the header.
#include "millrace/stream/registration_cache.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace millrace::stream {
namespace {

/// Mappings come and go by whole pages.
std::span<const std::byte> pages_of(std::span<const std::byte> memory) noexcept {
    static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::size_t before = reinterpret_cast<std::uintptr_t>(memory.data()) % page;
    return {memory.data() - before, (before + memory.size() + page - 1) / page * page};
}

/// A region ends behind the operations that use it, which may be behind the cache; its domain must
/// still be there.
RegistrationCache::Held held(verbs::MemoryRegion region,
                             std::shared_ptr<connect::Endpoint> endpoint) {
    struct Kept {
        std::shared_ptr<connect::Endpoint> endpoint;
        verbs::MemoryRegion region;
    };
    auto kept = std::make_shared<Kept>(Kept{std::move(endpoint), std::move(region)});
    const verbs::MemoryRegion* const in_it = &kept->region;
    return {std::move(kept), in_it};
}

}  // namespace

RegistrationCache::RegistrationCache(const RegistrationCacheOptions& options,
                                     std::shared_ptr<connect::Endpoint> endpoint)
    : options_{options},
      endpoint_{endpoint != nullptr ? std::move(endpoint) : connect::Endpoint::shared()} {}

RegistrationCache::Held RegistrationCache::find(std::span<std::byte> memory, verbs::Access access,
                                                bool& is_new) {
    const std::lock_guard lock{mutex_};
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.begin <= memory.data() && memory.data() + memory.size() <= entry.end &&
               (entry.access & access) == access;
    });
    is_new = found == entries_.end();
    if (is_new) return enter(memory, access);
    ++counts_.hits;
    std::rotate(entries_.begin(), found, found + 1);
    return entries_.front().region;
}

RegistrationCache::Held RegistrationCache::enter(std::span<std::byte> memory,
                                                 verbs::Access access) {
    ++counts_.misses;
    const std::size_t size = memory.size();
    Held region;
    while (region == nullptr) {
        try {
            region =
                held(endpoint_->protection_domain().register_memory(memory, access), endpoint_);
        } catch (const base::Error& error) {
            // What is kept for later is not worth an operation that fails now.
            if (entries_.empty() || error.code() != base::ErrorCode::resource_exhausted) throw;
            drop_oldest();
        }
    }
    if (size > options_.most_bytes || options_.most_regions == 0) return region;
    while (entries_.size() == options_.most_regions || bytes_ > options_.most_bytes - size) {
        drop_oldest();
    }
    entries_.insert(entries_.begin(), {memory.data(), memory.data() + size, access, region});
    bytes_ += size;
    return region;
}

void RegistrationCache::drop_oldest() {
    bytes_ -= entries_.back().region->size();
    entries_.pop_back();
    ++counts_.evictions;
}

std::size_t RegistrationCache::forget(std::span<const std::byte> memory) {
    if (memory.empty()) return 0;
    const std::span<const std::byte> pages = pages_of(memory);
    const std::lock_guard lock{mutex_};
    return std::erase_if(entries_, [&](const Entry& entry) {
        const bool is_apart =
            entry.end <= pages.data() || pages.data() + pages.size() <= entry.begin;
        if (is_apart) return false;
        bytes_ -= entry.region->size();
        return true;
    });
}

std::size_t RegistrationCache::clear() {
    const std::lock_guard lock{mutex_};
    bytes_ = 0;
    const std::size_t count = entries_.size();
    entries_.clear();
    return count;
}

RegistrationCache::Stats RegistrationCache::stats() const {
    const std::lock_guard lock{mutex_};
    Stats stats = counts_;
    stats.regions = entries_.size();
    stats.bytes = bytes_;
    return stats;
}

}  // namespace millrace::stream
