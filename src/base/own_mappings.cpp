// Implementation of own_mappings.hpp.
#include "millrace/base/detail/own_mappings.hpp"

#include <pthread.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace millrace::base {
namespace {

struct Noted {
    std::size_t size;
    int descriptor;
    std::uint64_t file_offset;
};

struct Registry {
    std::mutex mutex;
    std::map<std::uintptr_t, Noted> by_begin;
};

/// Never destroyed: buffers may end after main. Its mutex is held over fork.
Registry& registry() noexcept {
    static Registry& all = *[] {
        auto* const made = new Registry;
        pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                       [] { registry().mutex.unlock(); });
        return made;
    }();
    return all;
}

}  // namespace

void add_own_mapping(const void* data, std::size_t size, int descriptor,
                     std::uint64_t file_offset) noexcept {
    Registry& all = registry();
    const std::scoped_lock lock{all.mutex};
    try {
        all.by_begin.insert_or_assign(reinterpret_cast<std::uintptr_t>(data),
                                      Noted{size, descriptor, file_offset});
    } catch (const std::bad_alloc&) {
        // Then the kernel is asked.
    }
}

void remove_own_mapping(const void* data) noexcept {
    Registry& all = registry();
    const std::scoped_lock lock{all.mutex};
    all.by_begin.erase(reinterpret_cast<std::uintptr_t>(data));
}

std::optional<OwnMapping> find_own_mapping(const void* data, std::size_t size) noexcept {
    Registry& all = registry();
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const std::scoped_lock lock{all.mutex};
    auto after = all.by_begin.upper_bound(begin);
    if (after == all.by_begin.begin()) return std::nullopt;
    const auto& [start, noted] = *std::prev(after);
    const std::size_t offset = begin - start;
    if (offset > noted.size || size > noted.size - offset) return std::nullopt;
    return OwnMapping{noted.descriptor, noted.file_offset + offset};
}

}  // namespace millrace::base
