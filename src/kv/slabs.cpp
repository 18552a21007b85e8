#include "slabs.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "millrace/base/error.hpp"

namespace millrace::kv {
namespace {

constexpr std::size_t page = 4096;
/// Of the second hand, in one go.
constexpr std::size_t most_steps = 4096;

std::byte* reserve(std::size_t bytes, int protection, const char* what) {
    void* at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        throw base::Error{
            base::ErrorCode::resource_exhausted, "reserve addresses of a store",
            std::to_string(bytes >> 20) + " MiB for " + what, base::describe_errno(errno),
            "give the store less memory, or lift the limit of the process's addresses "
            "(ulimit -v)"};
    }
    // A huge page would take 2 MiB where an extent of 64 KiB is counted.
    madvise(at, bytes, MADV_NOHUGEPAGE);
    return static_cast<std::byte*>(at);
}

}  // namespace

Slabs::Slabs(Budget& budget) : budget_{budget} {
    const std::uint64_t limit = budget.limit();
    std::size_t extents = 0;
    for (std::size_t c = 0; c < size_classes; ++c) {
        Class& of = classes_[c];
        of.chunk = chunk_of(c);
        of.extent_bytes = extent_of(c);
        of.chunks = static_cast<std::uint32_t>(of.extent_bytes / of.chunk);
        of.most = static_cast<std::uint32_t>(limit / of.extent_bytes);
        extents += of.most;
    }
    range_bytes_ = (limit + page - 1) / page * page;
    notes_bytes_ = extents * sizeof(Extent);
    base_ = reserve(range_bytes_ * size_classes, PROT_NONE, "items");
    try {
        notes_ = reserve(notes_bytes_, PROT_READ | PROT_WRITE, "notes on items");
    } catch (...) {
        munmap(base_, range_bytes_ * size_classes);
        throw;
    }
    auto* notes = reinterpret_cast<Extent*>(notes_);
    for (std::size_t c = 0; c < size_classes; ++c) {
        classes_[c].begin = base_ + c * range_bytes_;
        classes_[c].extents = notes;
        notes += classes_[c].most;
    }
}

Slabs::~Slabs() {
    munmap(notes_, notes_bytes_);
    munmap(base_, range_bytes_ * size_classes);
}

Item* Slabs::chunk_at(const Class& of, std::uint32_t extent, std::uint32_t chunk) noexcept {
    return reinterpret_cast<Item*>(of.begin + extent * of.extent_bytes + chunk * of.chunk);
}

void Slabs::list(Class& of, std::uint32_t extent) noexcept {
    Extent& note = of.extents[extent];
    note.previous = none;
    note.next = of.with_room;
    if (note.next != none) of.extents[note.next].previous = extent;
    of.with_room = extent;
    note.listed = true;
}

void Slabs::unlist(Class& of, std::uint32_t extent) noexcept {
    Extent& note = of.extents[extent];
    (note.previous == none ? of.with_room : of.extents[note.previous].next) = note.next;
    if (note.next != none) of.extents[note.next].previous = note.previous;
    note.listed = false;
}

void Slabs::count_empty(Class& of, int more) noexcept {
    of.empty += static_cast<std::uint32_t>(more);
    empty_.fetch_add(static_cast<std::uint32_t>(more), std::memory_order_relaxed);
}

bool Slabs::add_extent(Class& of) noexcept {
    const bool again = of.dropped != none;
    if (!again && of.cut == of.most) return false;
    if (!budget_.take(cost(of), budget_.saved())) return false;
    std::uint32_t extent = of.dropped;
    if (again) {
        of.dropped = of.extents[extent].next;
    } else {
        if (of.cut == of.opened) {
            const auto more = std::min(of.most - of.opened, std::max(fewest_opened, of.opened));
            if (mprotect(of.begin + of.opened * of.extent_bytes, more * of.extent_bytes,
                         PROT_READ | PROT_WRITE) != 0) {
                budget_.give(cost(of));
                return false;
            }
            of.opened += more;
        }
        extent = of.cut++;
    }
    Extent& note = of.extents[extent];
    note = {};
    note.use = Use::kept;
    of.kept_hint.store(++of.kept, std::memory_order_relaxed);
    count_empty(of, 1);
    list(of, extent);
    return true;
}

/// An extent without items.
void Slabs::drop(Class& of, std::uint32_t extent) noexcept {
    Extent& note = of.extents[extent];
    if (note.listed) unlist(of, extent);
    madvise(of.begin + extent * of.extent_bytes, of.extent_bytes, MADV_DONTNEED);
    note = {};
    note.next = of.dropped;
    of.dropped = extent;
    of.kept_hint.store(--of.kept, std::memory_order_relaxed);
    budget_.give(cost(of));
}

Item* Slabs::allocate(std::size_t size_class) noexcept {
    Class& of = classes_[size_class];
    const std::lock_guard lock{of.mutex};
    if (of.with_room == none && !add_extent(of)) return nullptr;
    const std::uint32_t extent = of.with_room;
    Extent& note = of.extents[extent];
    Item* item = nullptr;
    if (note.free != 0) {
        item = chunk_at(of, extent, note.free - 1);
        note.free = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(item->next));
    } else {
        item = ::new (static_cast<void*>(chunk_at(of, extent, note.cut++))) Item;
    }
    if (note.taken++ == 0) count_empty(of, -1);
    if (note.taken == of.chunks) unlist(of, extent);
    item->phase.store(Phase::busy, std::memory_order_relaxed);
    item->marks.clear();
    return item;
}

void Slabs::put_back(Class& of, std::uint32_t extent, Item* item) noexcept {
    Extent& note = of.extents[extent];
    const auto offset = reinterpret_cast<std::byte*>(item) - of.begin;
    const auto index = static_cast<std::size_t>(offset) % of.extent_bytes / of.chunk;
    item->phase.store(Phase::free, std::memory_order_relaxed);
    item->next = reinterpret_cast<Item*>(std::uintptr_t{note.free});
    note.free = static_cast<std::uint32_t>(index) + 1;
    --note.taken;
}

void Slabs::free(Item* item) noexcept {
    Class& of = classes_[class_of_item(item)];
    const auto offset = static_cast<std::size_t>(reinterpret_cast<std::byte*>(item) - of.begin);
    const auto extent = static_cast<std::uint32_t>(offset / of.extent_bytes);
    const std::lock_guard lock{of.mutex};
    put_back(of, extent, item);
    Extent& note = of.extents[extent];
    if (note.use == Use::leaving) return;
    if (!note.listed) list(of, extent);
    if (note.taken != 0) return;
    count_empty(of, 1);
    // One stays, for what comes next.
    if (of.empty > 1) {
        count_empty(of, -1);
        drop(of, extent);
    }
}

bool Slabs::trim() noexcept {
    if (empty_.load(std::memory_order_relaxed) == 0) return false;
    bool dropped = false;
    for (Class& of : classes_) {
        if (of.kept_hint.load(std::memory_order_relaxed) == 0) continue;
        const std::lock_guard lock{of.mutex};
        for (std::uint32_t extent = of.with_room; of.empty != 0 && extent != none;) {
            const std::uint32_t next = of.extents[extent].next;
            if (of.extents[extent].taken == 0) {
                count_empty(of, -1);
                drop(of, extent);
                dropped = true;
            }
            extent = next;
        }
    }
    return dropped;
}

Slabs::Found Slabs::next_victim(std::size_t size_class, Hash hash) noexcept {
    // So that nobody waits long for the mutex: then some item that was used goes.
    constexpr int most_looked_at = 256;
    Class& of = classes_[size_class];
    const std::lock_guard lock{of.mutex};
    Item* second = nullptr;
    int looked_at = 0;
    for (std::uint32_t passed = 0; passed <= of.cut && looked_at < most_looked_at;) {
        if (of.hand_extent >= of.cut) {
            of.hand_extent = 0;
            of.hand_chunk = 0;
            if (of.cut == 0) break;
        }
        const Extent& note = of.extents[of.hand_extent];
        if (note.use != Use::kept || of.hand_chunk >= note.cut) {
            ++of.hand_extent;
            of.hand_chunk = 0;
            ++passed;
            continue;
        }
        Item* item = chunk_at(of, of.hand_extent, of.hand_chunk++);
        ++looked_at;
        if (item->phase.load(std::memory_order_acquire) != Phase::live) continue;
        if (!item->marks.used()) return {item, hash(item->key())};
        item->marks.forget_use();
        if (second == nullptr) second = item;
    }
    if (second == nullptr || second->phase.load(std::memory_order_acquire) != Phase::live) {
        return {};
    }
    return {second, hash(second->key())};
}

bool Slabs::count_victim(std::size_t size_class) noexcept {
    Class& of = classes_[size_class];
    const std::lock_guard lock{of.mutex};
    if (++of.victims < of.chunks) return false;
    of.victims = 0;
    return true;
}

/// Whether few of its items were used since the last look. If more were: they get another chance.
bool Slabs::is_idle(Class& of, std::uint32_t extent) noexcept {
    const Extent& note = of.extents[extent];
    std::uint32_t used = 0;
    std::uint32_t live = 0;
    for (std::uint32_t chunk = 0; chunk < note.cut; ++chunk) {
        const Item* item = chunk_at(of, extent, chunk);
        if (item->phase.load(std::memory_order_acquire) != Phase::live) continue;
        ++live;
        used += item->marks.used() ? 1 : 0;
    }
    // Without live ones, those that are taken are in other hands.
    if (live == 0) return note.taken == 0;
    if (used * 8 <= live) return true;
    for (std::uint32_t chunk = 0; chunk < note.cut; ++chunk) {
        chunk_at(of, extent, chunk)->marks.forget_use();
    }
    return false;
}

/// Moves the second hand by one kept extent. Gives it if it is to go.
std::optional<std::uint32_t> Slabs::step(Class& of, bool may, bool must) noexcept {
    if (of.reclaim_hand >= of.cut) of.reclaim_hand = 0;
    for (std::uint32_t passed = 0; passed < of.cut; ++passed) {
        const std::uint32_t extent = of.reclaim_hand++;
        if (of.reclaim_hand == of.cut) of.reclaim_hand = 0;
        if (of.extents[extent].use != Use::kept) {
            if (of.reclaim_hand == 0) break;
            continue;
        }
        if (may && (is_idle(of, extent) || must)) return extent;
        break;
    }
    return std::nullopt;
}

/// Removes the items of an extent that is leaving, and drops it if none was in other hands.
void Slabs::vacate(Class& of, std::uint32_t extent, Hash hash, Evict evict) noexcept {
    std::array<Found, most_found> found;
    std::uint32_t chunk = 0;
    for (bool more = true; more;) {
        std::size_t count = 0;
        {
            const std::lock_guard lock{of.mutex};
            const Extent& note = of.extents[extent];
            while (chunk < note.cut && count < found.size()) {
                Item* item = chunk_at(of, extent, chunk++);
                if (item->phase.load(std::memory_order_acquire) != Phase::live) continue;
                found[count++] = {item, hash(item->key())};
            }
            more = chunk < note.cut;
        }
        for (std::size_t i = 0; i < count; ++i) evict(found[i]);
    }
    const std::lock_guard lock{of.mutex};
    Extent& note = of.extents[extent];
    if (note.taken == 0) {
        drop(of, extent);
        return;
    }
    note.use = Use::kept;
    if (note.taken < of.chunks) list(of, extent);
}

bool Slabs::reclaim(std::optional<std::size_t> wanting, bool must, Hash hash,
                    Evict evict) noexcept {
    constexpr std::size_t patience = 8;  // extents, before those that are in use go
    std::size_t passed = 0;
    std::size_t steps = 0;
    std::size_t without = 0;  // classes in a row
    bool gave = false;
    while (without <= size_classes && !(must && gave)) {
        if (!must && (wanting ? passed >= extent_of(*wanting) : gave || steps > 4 * patience))
            break;
        Class* of = nullptr;
        std::optional<std::uint32_t> extent;
        {
            const std::lock_guard reclaiming{reclaiming_};
            of = &classes_[donor_];
            const bool may = must || donor_ != wanting;
            if (of->kept_hint.load(std::memory_order_relaxed) == 0) {
                ++without;
                donor_ = (donor_ + 1) % size_classes;
                continue;
            }
            const std::lock_guard lock{of->mutex};
            extent = step(*of, may, must && steps >= patience);
            if (extent) {
                Extent& note = of->extents[*extent];
                note.use = Use::leaving;
                if (note.listed) unlist(*of, *extent);
                if (note.taken == 0) count_empty(*of, -1);
            }
            // All of a class, then the next one.
            if (of->reclaim_hand == 0) donor_ = (donor_ + 1) % size_classes;
        }
        without = 0;
        passed += of->extent_bytes;
        ++steps;
        if (!extent) {
            if (steps > most_steps) break;
            continue;
        }
        vacate(*of, *extent, hash, evict);
        gave = true;
    }
    return gave;
}

Slabs::Position Slabs::position_of(const Item* item) const noexcept {
    const std::size_t size_class = class_of_item(item);
    const Class& of = classes_[size_class];
    const auto offset =
        static_cast<std::size_t>(reinterpret_cast<const std::byte*>(item) - of.begin);
    return {size_class, static_cast<std::uint32_t>(offset / of.extent_bytes),
            static_cast<std::uint32_t>(offset % of.extent_bytes / of.chunk)};
}

Slabs::Position Slabs::position_by(std::uint64_t random) noexcept {
    // Chunks in place of items: all of an extent but the newest ones are taken, mostly.
    std::uint64_t chunks = 0;
    for (const Class& of : classes_) {
        chunks += std::uint64_t{of.kept_hint.load(std::memory_order_relaxed)} * of.chunks;
    }
    if (chunks == 0) return {};
    std::uint64_t at = random % chunks;
    for (std::size_t size_class = 0; size_class < size_classes; ++size_class) {
        Class& of = classes_[size_class];
        const std::uint32_t kept = of.kept_hint.load(std::memory_order_relaxed);
        if (at >= std::uint64_t{kept} * of.chunks) {
            at -= std::uint64_t{kept} * of.chunks;
            continue;
        }
        const std::lock_guard lock{of.mutex};
        // Dropped extents are passed, as they count for nothing.
        auto left = static_cast<std::uint32_t>(at / of.chunks);
        for (std::uint32_t extent = 0; extent < of.cut; ++extent) {
            if (of.extents[extent].taken == 0) continue;
            const std::uint32_t cut = of.extents[extent].cut;
            if (left-- == 0) {
                return {size_class, extent,
                        static_cast<std::uint32_t>(at % of.chunks) % std::max(cut, 1U)};
            }
        }
        return {size_class, 0, 0};
    }
    return {};
}

std::size_t Slabs::walk(Position& position, std::size_t most, Hash hash,
                        std::array<Found, most_found>& found) noexcept {
    most = std::min(most, most_found);
    for (; position.size_class < size_classes; position = {position.size_class + 1, 0, 0}) {
        Class& of = classes_[position.size_class];
        if (of.kept_hint.load(std::memory_order_relaxed) == 0) continue;
        const std::lock_guard lock{of.mutex};
        std::size_t count = 0;
        for (; position.extent < of.cut; ++position.extent, position.chunk = 0) {
            const Extent& note = of.extents[position.extent];
            if (note.taken == 0) continue;
            while (position.chunk < note.cut && count < most) {
                Item* item = chunk_at(of, position.extent, position.chunk++);
                if (item->phase.load(std::memory_order_acquire) != Phase::live) continue;
                found[count++] = {item, hash(item->key())};
            }
            if (count == most) return count;
        }
        if (count != 0) return count;
    }
    return 0;
}

}  // namespace millrace::kv
