// The regions and windows of one end of a connection that requests have named lately: looked up in
// its owner's region table, checked, and mapped here where that is possible. Called by executors;
// one thread at a time. docs/soft/execution.md.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "fabric/fabric.hpp"
#include "fabric/node.hpp"
#include "transport/connection_end.hpp"
#include "transport/pieces.hpp"
#include "transport/reasons.hpp"

namespace millrace::soft {

class KeyCache {
  public:
    /// In a region's access: its key is a local one, too (that of a region, not of a window).
    static constexpr std::uint32_t access_local = 1U << 30;

    struct alignas(128) Region {  // found by a shift
        std::uint32_t key = 0;
        std::uint32_t access = 0;
        const std::atomic<std::uint64_t>* live = &never;  ///< holds `word` while the key is valid
        std::uint64_t word = no_word;
        std::uint64_t iova = 0;
        std::byte* write_to = nullptr;         ///< the first byte, if peers may write and it is
        std::uint64_t writable_length = 0;     ///< mapped: else 0
        const std::byte* read_from = nullptr;  ///< the first byte, if it is mapped:
        std::uint64_t readable_length = 0;     ///< else 0
        std::byte* receive_to = nullptr;       ///< the first byte, if receives may lie in it and it
        std::uint64_t receivable_length = 0;   ///< is mapped: else 0
        std::uint64_t length = 0;
        std::uint32_t pd = 0;
        bool writable = false;
        RegionKind kind = RegionKind::private_memory;
        Reach base{};

        [[nodiscard]] bool is_valid_as(std::uint32_t wanted) const noexcept {
            return key == wanted && live->load(std::memory_order_acquire) == word;
        }
    };

    /// Of `end`, which like the others must outlive the cache's use; `node` is this process's own,
    /// `peer` the other one, where the end is not ours.
    void open(const End& end, Node* node, PeerNode* peer) noexcept;
    void close() noexcept { open(none, nullptr, nullptr); }
    /// Forgets where the memory is mapped here: it may then be unmapped.
    void forget() noexcept;
    /// Has memory for regions from now on, so that the first look-up need not make it. False: there
    /// is none.
    bool make_places() noexcept;

    /// The only place where `key` may be; of any key.
    [[nodiscard]] const Region& at(std::uint32_t key) const noexcept {
        // regions_[index_of_key(key) % places], by one shift.
        static_assert(sizeof(Region) == 128 && index_of_key(1U << 8) == 1);
        const std::size_t offset = (std::size_t{key} >> 1) & ((places - 1) * 128);
        return *reinterpret_cast<const Region*>(reinterpret_cast<const std::byte*>(regions_) +
                                                offset);
    }
    [[nodiscard]] static bool lies_within(std::uint64_t offset, std::uint64_t bytes,
                                          std::uint64_t length) noexcept {
        return bytes <= length && offset <= length - bytes;
    }

    /// Null: no such key, or not of this end's protection domain.
    [[nodiscard]] const Region* look_up(std::uint32_t key, bool write) noexcept {
        const Region& region = at(key);
        if (region.is_valid_as(key) && (region.writable || !write)) [[likely]]
            return &region;
        return look_up_slowly(Use::any, key, write, domain());
    }
    /// Null: not all of the range may be used like that.
    [[nodiscard]] const Region* find_region(std::uint32_t key, std::uint64_t address,
                                            std::uint64_t length, std::uint32_t access,
                                            Reach& reach) noexcept;
    [[nodiscard]] bool find(std::uint32_t key, std::uint64_t address, std::uint64_t length,
                            std::uint32_t access, Reach& reach) noexcept {
        return find_region(key, address, length, access, reach) != nullptr;
    }
    /// The same for the memory of a receive.
    [[nodiscard]] bool find_room(const ibv_sge& sge, Reach& reach) noexcept;

    /// What a message is made of. `in_line`: the sges hold pointers of this process, and no keys.
    /// False: not all of it may be used like that.
    [[nodiscard]] bool gather(const ibv_sge* sges, int most, bool in_line, std::uint32_t access,
                              Piece* pieces, std::uint32_t& count, std::uint64_t& total) noexcept;
    /// Where a receive goes to, with `written` sges in `list` that a peer may be changing. False:
    /// as above, or they are more than `most`.
    [[nodiscard]] bool scatter(const std::uint32_t& written, std::uint32_t most, const void* list,
                               Piece* pieces, std::uint32_t& count, std::uint64_t& total) noexcept;

    /// What was wrong with the range that was last not found, or with the list that it was not in.
    [[nodiscard]] Reason reason() const noexcept;
    /// The address in the region's own process, which is the same for whoever executes.
    [[nodiscard]] std::uint64_t address_at_owner(std::uint32_t key,
                                                 std::uint64_t address) const noexcept;

  private:
    static constexpr std::uint64_t no_word = ~std::uint64_t{0} - 4;  ///< matches nothing
    static const std::atomic<std::uint64_t> never;  ///< what a place without a region points to
    static const End none;

    [[nodiscard]] Region& place_of(std::uint32_t key) noexcept {
        return const_cast<Region&>(std::as_const(*this).at(key));
    }
    [[nodiscard]] const RegionEntry* entry_of(std::uint32_t key) const noexcept {
        return end_->mine ? node_->regions().entry(key) : peer_->region(key);
    }
    [[nodiscard]] std::uint32_t domain() const noexcept {
        return end_->mine ? end_->pd : end_->block.control->pd.load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint32_t domain_of_receives() const noexcept {
        return end_->mine ? end_->receive_pd : load_once(end_->block.receive->pd);
    }
    enum class Use : std::uint8_t { any, receive_of_other_domain };
    [[nodiscard]] const Region* look_up_slowly(Use use, std::uint32_t key, bool write,
                                               std::uint32_t domain) noexcept;
    [[nodiscard]] static bool reach_within(const Region* region, std::uint64_t address,
                                           std::uint64_t length, std::uint32_t access,
                                           Reach& reach) noexcept;

    struct Range {
        std::uint32_t key;
        std::uint32_t access;
        std::uint64_t address;
        std::uint64_t length;
        std::uint32_t domain;
    };
    /// False, always: the range is not there.
    [[gnu::cold]] bool miss(const Range& range) noexcept {
        missed_ = range;
        return false;
    }

    static constexpr std::size_t places = 8;
    struct Places {
        std::array<Region, places> regions;
        /// Of a shared receive queue in another protection domain than its queue pair: the last of
        /// its receives' regions. It is no key of the queue pair's, and so never in `regions`.
        Region receiving;
    };
    static const Places no_region;

    /// Made by the first look-up, as most ends of idle connections never look any up. Until then
    /// `regions_` leads to places where nothing is.
    std::unique_ptr<Places> places_;
    const Region* regions_ = no_region.regions.data();
    std::optional<Range> missed_;  ///< none: there were more pieces than there can be
    const End* end_ = &none;
    Node* node_ = nullptr;
    PeerNode* peer_ = nullptr;
};

}  // namespace millrace::soft
