#include "regions/region_table.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "system/memory_areas.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint32_t needs_local_write = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr std::uint32_t needs_write_rights = IBV_ACCESS_LOCAL_WRITE | needs_local_write;
// IBV_ACCESS_HUGETLB is advice, IBV_ACCESS_RELAXED_ORDERING is leave (Executor::copy_way);
// IBV_ACCESS_ZERO_BASED is in the iova already.
constexpr std::uint32_t understood_rights = needs_write_rights | IBV_ACCESS_REMOTE_READ |
                                            IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                                            IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;

constexpr std::uint64_t largest_offset = (std::uint64_t{1} << 62) - 1;

int check_access(std::uint32_t access) noexcept {
    if ((access & IBV_ACCESS_ON_DEMAND) != 0) return EOPNOTSUPP;
    if ((access & ~understood_rights) != 0) return EINVAL;
    if ((access & needs_local_write) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
    return 0;
}

/// Peers may map it: it cannot shrink under them and holds the whole range.
bool can_be_mapped(int descriptor, std::uint64_t offset, std::size_t length) noexcept {
    const int seals = ::fcntl(descriptor, F_GET_SEALS);
    struct stat status {};
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(descriptor, &status) == 0 &&
           offset <= largest_offset && static_cast<std::uint64_t>(status.st_size) >= offset &&
           static_cast<std::uint64_t>(status.st_size) - offset >= length;
}

}  // namespace

RegionTable::RegionTable(RegionEntry* shown, std::shared_ptr<const std::atomic<bool>> usable)
    : usable_{std::move(usable)},
      own_{Mapping::of_own_memory(regions_per_node * sizeof(RegionEntry))},
      shown_{shown},
      salts_(regions_per_node, 0) {
    if (!own_) base::throw_errno(errno, "make the table of registered memory", "this process");
}

std::uint64_t RegionTable::publish(std::uint32_t key, const RegionFacts& facts) noexcept {
    const std::uint64_t key_word = make_key_word(key, ++published_);
    for (RegionEntry* const table : {entries(), shown_}) {
        RegionEntry& entry = table[index_of_key(key)];
        // seq_cst: what is written to the entry after it must not be seen before it.
        entry.key_word.store(0);
        std::memcpy(reinterpret_cast<std::byte*>(&entry) + sizeof key_word,
                    reinterpret_cast<const std::byte*>(&facts) + sizeof key_word,
                    sizeof facts - sizeof key_word);
        entry.key_word.store(key_word, std::memory_order_release);
    }
    return key_word;
}

int RegionTable::add(void* address, std::size_t length, std::uint64_t iova, std::uint32_t access,
                     std::uint32_t pd, LocalRegion& region) {
    if (!usable()) return ENODEV;
    access &= ~static_cast<std::uint32_t>(IBV_ACCESS_OPTIONAL_RANGE) | IBV_ACCESS_RELAXED_ORDERING;
    if (const int error = check_access(access); error != 0) return error;
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    if (begin + length < begin || iova + length < iova) return EINVAL;
    int own_descriptor = -1;
    std::optional<MappedRange> range;
    // A region of no length is one, and holds nothing: what is behind it does not matter.
    if (length != 0) {
        range = look_behind_own(begin, length, own_descriptor);
        if (!range) range = look_behind(begin, length);
        if (!range) return errno != 0 ? errno : EFAULT;
        if (!range->readable || ((access & needs_write_rights) != 0 && !range->writable))
            return EFAULT;
    }

    const std::scoped_lock lock{mutex_};
    int descriptor = -1;
    if (range && range->one_shared_file) {
        descriptor = own_descriptor >= 0
                         ? own_descriptor
                         : find_descriptor(range->device, range->inode, last_descriptor_);
        if (descriptor >= 0) last_descriptor_ = descriptor;
        if (descriptor >= 0 && !can_be_mapped(descriptor, range->file_offset, length)) {
            descriptor = -1;
        }
    }

    const std::uint32_t key = new_key();
    if (key == 0) return ENOMEM;
    RegionFacts facts{};
    facts.iova = iova;
    facts.length = length;
    facts.address = begin;
    facts.access = access;
    facts.pd = pd;
    auto kind = range ? RegionKind::private_memory : RegionKind::nothing;
    if (descriptor >= 0) {
        kind = RegionKind::shared_file;
        facts.descriptor = descriptor;
        facts.device = static_cast<std::uint32_t>(range->device);
        facts.inode = range->inode;
        facts.file_offset = range->file_offset & largest_offset;
    }
    facts.kind = static_cast<std::uint64_t>(kind) & 3;
    publish(key, facts);
    region = {key, static_cast<std::byte*>(address), iova, length, access, pd};
    return 0;
}

int RegionTable::add_nothing(std::uint32_t pd, LocalRegion& region) {
    if (!usable()) return ENODEV;
    const std::scoped_lock lock{mutex_};
    const std::uint32_t key = new_key();
    if (key == 0) return ENOMEM;
    RegionFacts facts{};
    facts.length = ~std::uint64_t{0};
    facts.access = IBV_ACCESS_LOCAL_WRITE;
    facts.pd = pd;
    facts.kind = static_cast<std::uint64_t>(RegionKind::nothing) & 3;
    publish(key, facts);
    region = {key, nullptr, 0, facts.length, facts.access, pd};
    return 0;
}

std::uint32_t RegionTable::add_window() {
    if (!usable()) return 0;
    const std::scoped_lock lock{mutex_};
    return new_key();
}

std::uint64_t RegionTable::bind_window(std::uint32_t key, const RegionEntry& parent,
                                       const WindowFacts& window) noexcept {
    if (!usable()) return 0;
    const std::scoped_lock lock{mutex_};
    const std::uint64_t offset = window.address - parent.iova;
    RegionFacts facts{};
    facts.iova = window.iova;
    facts.length = window.length;
    facts.address = parent.address + offset;
    facts.access = window.access | access_window;
    facts.pd = window.pd;
    facts.descriptor = parent.descriptor;
    facts.device = parent.device;
    facts.inode = parent.inode;
    facts.file_offset = (parent.file_offset + offset) & largest_offset;
    facts.kind = parent.kind;
    salts_[index_of_key(key)] = salt_of_key(key);
    return publish(key, facts);
}

void RegionTable::give_back(std::uint32_t index) noexcept {
    try {
        freed_.push_back(index);
    } catch (const std::bad_alloc&) {
        base::log_line(base::LogLevel::warn, "soft", "no memory to free a key: lost for reuse");
    }
}

void RegionTable::release_window(std::uint32_t key) noexcept {
    if (!usable()) return;
    const std::scoped_lock lock{mutex_};
    give_back(index_of_key(key));
}

std::uint32_t RegionTable::new_key() {
    if (never_used_ == regions_per_node && freed_.empty()) return 0;
    const std::uint64_t random = base::random_bits();
    std::uint32_t index = never_used_;
    if (never_used_ < regions_per_node) {
        ++never_used_;
    } else {
        index = freed_.front();
        freed_.pop_front();
    }
    std::uint16_t& salt = salts_[index];
    const std::uint64_t low = salt == 0 ? random >> 32 : salt + 1U;
    salt = static_cast<std::uint16_t>((1 + random % 127) << 8 | (low & 0xff));
    return make_key(index, salt);
}

void RegionTable::invalidate(std::uint32_t key) noexcept {
    if (!usable()) return;
    std::uint64_t word = entry(key)->key_word.load(std::memory_order_acquire);
    if (!is_word_of(word, key)) return;
    for (RegionEntry* const table : {entries(), shown_}) {
        std::uint64_t expected = word;
        // seq_cst: what is written to the entry after it must not be seen before it.
        table[index_of_key(key)].key_word.compare_exchange_strong(expected, 0);
    }
}

bool RegionTable::is_window(std::uint32_t key) const noexcept {
    // Whoever asks about a key that is not in use gets any answer.
    const std::atomic_ref access{const_cast<RegionEntry*>(entry(key))->access};
    return (access.load(std::memory_order_relaxed) & access_window) != 0;
}

void RegionTable::release(std::uint32_t key) noexcept {
    if (!usable()) return;
    const std::uint32_t index = index_of_key(key);
    const std::scoped_lock lock{mutex_};
    if (index >= never_used_ || make_key(index, salts_[index]) != key) return;
    if (entries()[index].key_word.load(std::memory_order_relaxed) == 0) give_back(index);
}

}  // namespace millrace::soft
