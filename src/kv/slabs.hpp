// Memory for items, and the clock that tells which of them has not been used for long. Called by
// the engine alone; knows nothing of the table.
//
// Each size class (size_classes.hpp) has a range of addresses as long as the whole memory, of which
// it uses extents. So an address tells its class and extent, a large item needs no neighbours to
// go, and memory passes from one class to another through the system: the pages of an extent that
// is given back are dropped (MADV_DONTNEED), and its addresses wait until the class wants them
// again. Addresses are plentiful: 110 classes times 1 TiB fit into what a process has.
//
//     class 0  [ extent | extent | dropped | extent |  not yet opened ...                        ]
//     class 1  [ extent |  not yet opened ...                                                    ]
//
// An item costs its header and what its class rounds up; an extent 24 bytes. New extents are cut
// into chunks as these are wanted, so nothing stops for a page that nobody uses.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "budget.hpp"
#include "item.hpp"
#include "millrace/kv/detail/function_ref.hpp"
#include "size_classes.hpp"

namespace millrace::kv {

inline constexpr std::uint64_t most_memory = std::uint64_t{1} << 40;

class Slabs {
  public:
    /// Throws Error (resource_exhausted).
    explicit Slabs(Budget& budget);
    Slabs(const Slabs&) = delete;
    Slabs& operator=(const Slabs&) = delete;
    ~Slabs();

    /// A busy chunk, from what is free or can be taken from the system; or null.
    [[nodiscard]] Item* allocate(std::size_t size_class) noexcept;
    /// Of a busy item, which nobody knows any more.
    void free(Item* item) noexcept;

    [[nodiscard]] std::size_t class_of_item(const Item* item) const noexcept {
        return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(item) - base_) /
               range_bytes_;
    }

    /// A live item, as the hand found it: by now it may be gone, or another. The hash of its key.
    struct Found {
        Item* item = nullptr;
        std::uint64_t hash = 0;
    };
    using Hash = FunctionRef<std::uint64_t(std::span<const std::byte>)>;
    /// Removes an item from the table and, if it was there, frees it.
    using Evict = FunctionRef<void(const Found&)>;

    /// What goes next in a class: an item that was not used since the hand passed it, or, if there
    /// are many in use, one of these. Null: the class has none.
    [[nodiscard]] Found next_victim(std::size_t size_class, Hash hash) noexcept;

    /// Moves a second hand, over the extents of all classes, by as many bytes as an extent of
    /// `wanting` has (if it is none: until it has given one back), and gives back those of other
    /// classes whose items were not used since it last came by. So classes give in proportion to
    /// what they have and no longer use. With `must`: until it has given one back, of any class,
    /// used or not. `evict` is called with what is in them. False: there was none such.
    bool reclaim(std::optional<std::size_t> wanting, bool must, Hash hash, Evict evict) noexcept;
    /// Gives back what is empty. False: nothing was.
    bool trim() noexcept;
    /// True: as many items of the class have gone as lie in an extent; time to look whether another
    /// class has older ones.
    [[nodiscard]] bool count_victim(std::size_t size_class) noexcept;

    /// Where a walk through all items is. New ones begin at the beginning.
    struct Position {
        std::size_t size_class = 0;
        std::uint32_t extent = 0;
        std::uint32_t chunk = 0;

        /// As a number that grows as the walk goes on. Of any other number: somewhere, or behind
        /// all, as Cursor::end is.
        [[nodiscard]] Cursor cursor() const noexcept {
            // A chunk behind the last one of an extent carries to the next extent.
            return static_cast<Cursor>((std::uint64_t{size_class} << extent_bits << chunk_bits) +
                                       (std::uint64_t{extent} << chunk_bits) + chunk);
        }
        [[nodiscard]] static Position of(Cursor cursor) noexcept {
            const auto number = static_cast<std::uint64_t>(cursor);
            const std::uint64_t extents = number >> chunk_bits;
            return {extents >> extent_bits,
                    static_cast<std::uint32_t>(extents & ((std::uint64_t{1} << extent_bits) - 1)),
                    static_cast<std::uint32_t>(number & ((std::uint64_t{1} << chunk_bits) - 1))};
        }
    };
    static constexpr int chunk_bits = 11;
    static constexpr int extent_bits = 25;
    static constexpr int class_bits = 7;
    /// Every cursor but Cursor::end is less than 2 to the power of this.
    static constexpr int cursor_bits = class_bits + extent_bits + chunk_bits;
    static_assert(size_classes < 1 << class_bits && extent_of(0) / chunk_of(0) <= 1 << chunk_bits &&
                  most_memory / extent_of(0) < 1 << extent_bits);
    /// In an extent that 64 random bits choose among all that have items.
    [[nodiscard]] Position position_by(std::uint64_t random) noexcept;
    /// Where an item lies.
    [[nodiscard]] Position position_of(const Item* item) const noexcept;
    static constexpr std::size_t most_found = 32;
    /// The next items that are live, and moves on; 0: that was the end.
    [[nodiscard]] std::size_t walk(Position& position, std::size_t most, Hash hash,
                                   std::array<Found, most_found>& found) noexcept;

  private:
    static constexpr std::uint32_t none = 0xffffffff;
    static constexpr std::uint32_t fewest_opened = 16;

    enum class Use : std::uint8_t {
        dropped,  ///< takes no memory
        kept,
        leaving,  ///< its items are being removed; chunks that come free stay here
    };
    /// Of the extents of a class that have free chunks, and of those that are dropped, there is a
    /// list each. Zeroed memory is a dropped one in no list.
    struct Extent {
        std::uint32_t next;
        std::uint32_t previous;
        std::uint32_t taken;  ///< chunks
        std::uint32_t cut;    ///< chunks that were ever handed out; behind them nothing was touched
        std::uint32_t free;   ///< index + 1 of the first free one below `cut`
        Use use;
        bool listed;
    };
    static_assert(sizeof(Extent) == 24);

    struct alignas(64) Class {
        std::mutex mutex;
        // All below: with the mutex.
        std::size_t chunk = 0;
        std::size_t extent_bytes = 0;
        std::uint32_t chunks = 0;  ///< of an extent
        std::uint32_t most = 0;    ///< extents
        std::byte* begin = nullptr;
        Extent* extents = nullptr;
        std::uint32_t cut = 0;     ///< extents that were ever used
        std::uint32_t opened = 0;  ///< extents that may be touched
        std::uint32_t kept = 0;
        std::uint32_t empty = 0;  ///< kept, without an item
        std::uint32_t with_room = none;
        std::uint32_t dropped = none;
        std::uint32_t hand_extent = 0;
        std::uint32_t hand_chunk = 0;
        std::uint32_t reclaim_hand = 0;
        std::uint32_t victims = 0;
        // Without: whether a look is worth it.
        std::atomic<std::uint32_t> kept_hint{0};
    };

    [[nodiscard]] static Item* chunk_at(const Class& of, std::uint32_t extent,
                                        std::uint32_t chunk) noexcept;
    static void list(Class& of, std::uint32_t extent) noexcept;
    static void unlist(Class& of, std::uint32_t extent) noexcept;
    [[nodiscard]] bool add_extent(Class& of) noexcept;
    void drop(Class& of, std::uint32_t extent) noexcept;
    void put_back(Class& of, std::uint32_t extent, Item* item) noexcept;
    void count_empty(Class& of, int more) noexcept;
    [[nodiscard]] std::uint64_t cost(const Class& of) const noexcept {
        return of.extent_bytes + sizeof(Extent);
    }
    [[nodiscard]] static bool is_idle(Class& of, std::uint32_t extent) noexcept;
    [[nodiscard]] std::optional<std::uint32_t> step(Class& of, bool may, bool must) noexcept;
    void vacate(Class& of, std::uint32_t extent, Hash hash, Evict evict) noexcept;

    Budget& budget_;
    std::size_t range_bytes_ = 0;  ///< of addresses, a class
    std::byte* base_ = nullptr;
    std::byte* notes_ = nullptr;  ///< the Extents of all classes
    std::size_t notes_bytes_ = 0;
    std::array<Class, size_classes> classes_;
    std::atomic<std::uint32_t> empty_{0};  ///< extents, of all classes
    std::mutex reclaiming_;
    std::size_t donor_ = 0;  ///< with `reclaiming_`
};

}  // namespace millrace::kv
