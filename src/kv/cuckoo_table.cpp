// libcuckoo's table, from hashes to chains. This file alone includes libcuckoo.
//
// Its memory comes through an allocator of ours, for two reasons. It is counted: a doubling is
// taken from the budget beforehand (prepare), and only then allowed (maximum_hashpower), because
// libcuckoo loses its items if the allocation of new buckets fails. And it comes as zeroed pages
// that are not touched: libcuckoo makes new buckets while it holds all locks, which would otherwise
// stop everybody for as long as the pages of the whole table take. It moves the items later, lock
// by lock, once there are 65,536 buckets; below it moves them all at once.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#include "table.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wpedantic"
#include <libcuckoo/cuckoohash_map.hh>

namespace millrace::kv {
namespace {

/// Eight rather than libcuckoo's four: half the locks, which are a line each and never freed, and
/// a table that is fuller before it must grow.
constexpr std::size_t slots_per_bucket = 8;
constexpr std::size_t most_locks = 65536;
constexpr std::size_t lock_bytes = 64;

std::byte* map_zeroed(std::size_t bytes) noexcept {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

/// The memory of one table.
class TableMemory {
  public:
    explicit TableMemory(Budget& budget) noexcept : budget_{budget} {}
    TableMemory(const TableMemory&) = delete;
    TableMemory& operator=(const TableMemory&) = delete;
    ~TableMemory() { discard(); }

    /// Zeroed. Throws std::bad_alloc.
    void* allocate(std::size_t bytes) {
        if (std::byte* spare = std::exchange(spare_of(bytes), nullptr)) return spare;
        if (!budget_.take(bytes)) throw std::bad_alloc{};
        void* at = nullptr;
        if (bytes >= mapped) {
            at = map_zeroed(bytes);
        } else if ((at = ::operator new(bytes, std::align_val_t{64}, std::nothrow))) {
            std::memset(at, 0, bytes);
        }
        if (at == nullptr) {
            budget_.give(bytes);
            throw std::bad_alloc{};
        }
        return at;
    }
    void deallocate(void* at, std::size_t bytes) noexcept {
        if (bytes >= mapped) {
            munmap(at, bytes);
        } else {
            ::operator delete(at, std::align_val_t{64});
        }
        budget_.give(bytes);
    }
    /// Sets memory aside, so that the next allocations of these sizes cannot fail.
    bool prepare(std::size_t buckets, std::size_t locks) {
        try {
            spares_[0] = {};
            spares_[1] = {};
            const auto set_aside = [&](Spare& spare, std::size_t bytes) {
                if (bytes == 0) return;
                spare.at = static_cast<std::byte*>(allocate(bytes));
                spare.bytes = bytes;
            };
            Spare first;
            Spare second;
            set_aside(first, buckets);
            try {
                set_aside(second, locks);
            } catch (...) {
                deallocate(first.at, first.bytes);
                throw;
            }
            spares_[0] = first;
            spares_[1] = second;
            return true;
        } catch (const std::bad_alloc&) {
            return false;
        }
    }
    void discard() noexcept {
        for (Spare& spare : spares_) {
            if (spare.at != nullptr) deallocate(spare.at, spare.bytes);
            spare = {};
        }
    }
    [[nodiscard]] Budget& budget() noexcept { return budget_; }

    /// Where the newest buckets and locks are, for prefetches, which may be wrong.
    struct Place {
        std::atomic<const std::byte*> at{nullptr};
        std::atomic<std::size_t> count{1};
        void set(const void* where, std::size_t how_many) noexcept {
            // Down first: what is asked for is mapped, or has been.
            at.store(static_cast<const std::byte*>(where), std::memory_order_relaxed);
            count.store(how_many, std::memory_order_relaxed);
        }
    };
    Place buckets;
    Place locks;

  private:
    static constexpr std::size_t mapped = std::size_t{64} << 10;
    struct Spare {
        std::byte* at = nullptr;
        std::size_t bytes = 0;
    };
    std::byte*& spare_of(std::size_t bytes) noexcept {
        for (Spare& spare : spares_) {
            if (spare.at != nullptr && spare.bytes == bytes) return spare.at;
        }
        return none_;
    }

    Budget& budget_;
    // Changed by who grows the table: under all its locks, or before that is allowed.
    std::array<Spare, 2> spares_;
    std::byte* none_ = nullptr;
};

template <class Value>
concept Bucket = requires(const Value& value) { value.occupied(0); };
template <class Value>
concept BucketLock = requires(const Value& value) { value.is_migrated(); };

template <class Value>
struct TableAllocator {
    using value_type = Value;

    explicit TableAllocator(TableMemory& of) noexcept : memory{&of} {}
    template <class Other>
    TableAllocator(const TableAllocator<Other>& other) noexcept  // NOLINT: allocators convert
        : memory{other.memory} {}

    [[nodiscard]] Value* allocate(std::size_t count) {
        void* at = memory->allocate(count * sizeof(Value));
        if constexpr (Bucket<Value>) memory->buckets.set(at, count);
        if constexpr (BucketLock<Value>) memory->locks.set(at, count);
        return static_cast<Value*>(at);
    }
    void deallocate(Value* at, std::size_t count) noexcept {
        memory->deallocate(at, count * sizeof(Value));
    }
    template <class Other, class... Arguments>
    void construct(Other* at, Arguments&&... arguments) {
        if constexpr (Bucket<Other> && sizeof...(Arguments) == 0) {
            // Zeroed memory is an empty bucket; and it stays untouched.
        } else {
            ::new (static_cast<void*>(at)) Other(std::forward<Arguments>(arguments)...);
        }
    }
    template <class Other>
    bool operator==(const TableAllocator<Other>& other) const noexcept {
        return memory == other.memory;
    }

    TableMemory* memory;
};

/// What a slot holds. Made under the locks of its place.
struct Chain {
    Item* head = nullptr;
    explicit Chain(Table::Change& change) noexcept { change(head); }
};

struct AsItIs {
    std::size_t operator()(std::uint64_t hash) const noexcept { return hash; }
};

using Map = libcuckoo::cuckoohash_map<std::uint64_t, Chain, AsItIs, std::equal_to<>,
                                      TableAllocator<std::pair<const std::uint64_t, Chain>>,
                                      slots_per_bucket>;
// libcuckoo's bucket: slots, a byte of hash and a flag for each.
constexpr std::size_t bucket_bytes = slots_per_bucket * (16 + 1 + 1);
static_assert(sizeof(libcuckoo::bucket_container<std::uint64_t, Chain, Map::allocator_type,
                                                 std::uint8_t, slots_per_bucket>::bucket) ==
              bucket_bytes);

class CuckooTable final : public Table {
  public:
    explicit CuckooTable(Budget& budget)
        : memory_{budget},
          map_{first_slots(budget.limit()), AsItIs{}, std::equal_to<>{},
               Map::allocator_type{memory_}},
          most_power_{most_power(budget.limit())} {
        map_.minimum_load_factor(0);
        map_.maximum_hashpower(map_.hashpower());
    }

    void look(std::uint64_t hash, Look look) const override {
        map_.find_fn(hash, [&](const Chain& chain) { look(chain.head); });
    }
    void change(std::uint64_t hash, Change change) noexcept override {
        map_.erase_fn(hash, [&](Chain& chain) {
            change(chain.head);
            return chain.head == nullptr;
        });
    }
    bool insert(std::uint64_t hash, Change change) noexcept override {
        while (true) {
            try {
                map_.uprase_fn(
                    hash,
                    [&](Chain& chain) {
                        change(chain.head);
                        return false;
                    },
                    change);
                return true;
            } catch (const libcuckoo::maximum_hashpower_exceeded&) {
                if (!prepare()) return false;
            } catch (const std::bad_alloc&) {
                return false;
            }
        }
    }
    void prefetch(std::uint64_t hash) const noexcept override {
        const auto& buckets = memory_.buckets;
        const auto& locks = memory_.locks;
        const std::byte* bucket =
            buckets.at.load(std::memory_order_relaxed) +
            bucket_bytes * (hash & (buckets.count.load(std::memory_order_relaxed) - 1));
        for (std::size_t line = 0; line < bucket_bytes; line += 64) {
            __builtin_prefetch(bucket + line);
        }
        __builtin_prefetch(
            locks.at.load(std::memory_order_relaxed) +
                lock_bytes * (hash & (locks.count.load(std::memory_order_relaxed) - 1)),
            1);
    }

    Room make_room(std::uint64_t items, bool may_save) noexcept override {
        const std::size_t power = map_.hashpower();
        const std::uint64_t slots = slots_per_bucket << power;
        Budget& budget = memory_.budget();
        if (items < slots / 4 * 3) {
            if (budget.saved() != 0) budget.save(0);
            return Room::there;
        }
        if (map_.maximum_hashpower() > power) return Room::there;
        // libcuckoo doubles by itself at some 97 %.
        if (items >= slots / 8 * 7 && prepare()) return Room::there;
        const bool full = items >= slots / 16 * 15;
        if (may_save && power < most_power_) {
            budget.save(bytes_to_double(power));
            if (!full && budget.taken() + budget.saved() > budget.limit()) return Room::wanted;
        }
        return full ? Room::none : Room::there;
    }

  private:
    /// From the beginning so many as take 1/16 of the memory at most, locks included: lock arrays
    /// that are outgrown are never freed. And no more than 100,000 small items want.
    static std::size_t first_slots(std::uint64_t limit) noexcept {
        constexpr std::uint64_t most = 16384;
        const auto buckets = std::bit_floor(limit / 16 / (bucket_bytes + lock_bytes));
        return slots_per_bucket * std::min(buckets, most);
    }
    /// Half of the memory at most is table: then the mean item takes less than 36 bytes.
    static std::size_t most_power(std::uint64_t limit) noexcept {
        return std::bit_width(limit / 2 / bucket_bytes) - 1;
    }
    static std::uint64_t new_locks(std::size_t power) noexcept {
        const std::uint64_t buckets = std::uint64_t{2} << power;
        return buckets <= most_locks ? buckets * lock_bytes : 0;
    }
    static std::uint64_t bytes_to_double(std::size_t power) noexcept {
        return (std::uint64_t{2} << power) * bucket_bytes + new_locks(power) + 4096;
    }
    /// Takes the memory of a doubling, and allows it.
    bool prepare() noexcept {
        const std::lock_guard lock{growth_};
        const std::size_t power = map_.hashpower();
        if (map_.maximum_hashpower() > power) return true;
        if (power >= most_power_) return false;
        if (!memory_.prepare((std::size_t{2} << power) * bucket_bytes, new_locks(power))) {
            return false;
        }
        memory_.budget().save(0);
        map_.maximum_hashpower(power + 1);
        return true;
    }

    TableMemory memory_;
    Map map_;
    const std::size_t most_power_;
    std::mutex growth_;
};

}  // namespace

std::unique_ptr<Table> make_cuckoo_table(Budget& budget) {
    return std::make_unique<CuckooTable>(budget);
}

}  // namespace millrace::kv
#pragma GCC diagnostic pop
