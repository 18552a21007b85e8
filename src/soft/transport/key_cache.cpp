#include "transport/key_cache.hpp"

#include <new>

#include "millrace/base/detail/uncancelled.hpp"
#include "regions/region_facts.hpp"

namespace millrace::soft {

const std::atomic<std::uint64_t> KeyCache::never{0};
const End KeyCache::none{};
constinit const KeyCache::Places KeyCache::no_region{};

void KeyCache::open(const End& end, Node* node, PeerNode* peer) noexcept {
    forget();
    end_ = &end;
    node_ = node;
    peer_ = peer;
}

void KeyCache::forget() noexcept {
    if (places_ != nullptr) *places_ = Places{};
}

bool KeyCache::make_places() noexcept {
    if (places_ != nullptr) return true;
    places_.reset(new (std::nothrow) Places{});
    if (places_ == nullptr) return false;
    regions_ = places_->regions.data();
    return true;
}

const KeyCache::Region* KeyCache::look_up_slowly(Use use, std::uint32_t key, bool write,
                                                 std::uint32_t domain) noexcept {
    const base::Uncancelled held;
    if (!make_places()) return nullptr;
    Region& slot = use == Use::any ? place_of(key) : places_->receiving;
    slot.key = 0;
    slot.live = &never;
    const RegionEntry* const entry = entry_of(key);
    // Read once: what is checked must be what is mapped, whatever the owner does meanwhile.
    const auto facts = read_region(*entry, key);
    if (!facts) return nullptr;
    Region found{.key = key,
                 .access = facts->access,
                 .live = &entry->key_word,
                 .word = facts->key_word,
                 .iova = facts->iova,
                 .length = facts->length,
                 .pd = facts->pd,
                 .writable = write,
                 .kind = static_cast<RegionKind>(facts->kind)};
    if (found.kind == RegionKind::nothing) {
        found.base.pid = nowhere;
        found.writable = true;
    } else if (end_->mine) {
        found.base.direct = reinterpret_cast<std::byte*>(facts->address);
        found.writable = true;
    } else {
        // A failing map is not fatal to anybody but this request: it never throws through here.
        try {
            const auto reach = peer_->reach(*facts, key, write);
            if (!reach) return nullptr;
            found.base = *reach;
        } catch (...) {
            return nullptr;
        }
    }
    if (entry->key_word.load(std::memory_order_acquire) != found.word) return nullptr;
    if ((found.pd & pd_is_queue_pair) != 0) {
        // A window of one queue pair. Valid is what its block says: there the peer can end it.
        if ((found.pd & 0xfff) != index_of_qpn(end_->qpn)) return nullptr;
        found.live = &end_->block.windows[slot_of_window_pd(found.pd)];
        if (found.live->load(std::memory_order_acquire) != found.word) return nullptr;
    } else if (found.pd != domain) {
        return nullptr;  // a key of another protection domain is no key
    }
    if ((found.access & access_window) == 0) {
        found.access |= access_local;
        found.read_from = found.base.direct;
        if (found.read_from != nullptr) found.readable_length = found.length;
        if (found.writable && (found.access & IBV_ACCESS_LOCAL_WRITE) != 0) {
            found.receive_to = found.base.direct;
            found.receivable_length = found.readable_length;
        }
    }
    if (found.writable && (found.access & IBV_ACCESS_REMOTE_WRITE) != 0) {
        found.write_to = found.base.direct;
        if (found.write_to != nullptr) found.writable_length = found.length;
    }
    slot = found;
    return &slot;
}

const KeyCache::Region* KeyCache::find_region(std::uint32_t key, std::uint64_t address,
                                              std::uint64_t length, std::uint32_t access,
                                              Reach& reach) noexcept {
    constexpr std::uint32_t writing =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const Region* region = look_up(key, (access & writing) != 0);
    if (reach_within(region, address, length, access, reach)) [[likely]]
        return region;
    miss({key, access, address, length, domain()});
    return nullptr;
}

bool KeyCache::reach_within(const Region* region, std::uint64_t address, std::uint64_t length,
                            std::uint32_t access, Reach& reach) noexcept {
    if (region == nullptr || (region->access & access) != access) return false;
    const std::uint64_t offset = address - region->iova;
    if (offset > region->length || length > region->length - offset) return false;
    reach = advance(region->base, offset);
    return true;
}

bool KeyCache::find_room(const ibv_sge& sge, Reach& reach) noexcept {
    constexpr std::uint32_t needed = IBV_ACCESS_LOCAL_WRITE | access_local;
    const std::uint32_t wanted = domain_of_receives();
    if (wanted == domain()) [[likely]]
        return find(sge.lkey, sge.addr, sge.length, needed, reach);
    const Region* region = places_ != nullptr ? &places_->receiving : &no_region.receiving;
    if (!region->is_valid_as(sge.lkey) || region->pd != wanted || !region->writable) {
        region = look_up_slowly(Use::receive_of_other_domain, sge.lkey, true, wanted);
    }
    return reach_within(region, sge.addr, sge.length, needed, reach) ||
           miss({sge.lkey, needed, sge.addr, sge.length, wanted});
}

bool KeyCache::gather(const ibv_sge* sges, int most, bool in_line, std::uint32_t access,
                      Piece* pieces, std::uint32_t& count, std::uint64_t& total) noexcept {
    count = 0;
    total = 0;
    for (int i = 0; i < most; ++i) {
        const ibv_sge& sge = sges[i];
        if (sge.length == 0) continue;
        Piece& piece = pieces[count];
        piece.length = sge.length;
        piece.key = in_line ? 0 : sge.lkey;
        if (in_line) {
            piece.at = Reach{reinterpret_cast<std::byte*>(sge.addr), 0, 0};
        } else if (!find(sge.lkey, sge.addr, sge.length, access | access_local, piece.at)) {
            return false;
        }
        total += sge.length;
        ++count;
    }
    return true;
}

bool KeyCache::scatter(const std::uint32_t& written, std::uint32_t most, const void* list,
                       Piece* pieces, std::uint32_t& count, std::uint64_t& total) noexcept {
    const std::uint32_t posted = load_once(written);
    if (posted > most) {
        missed_.reset();
        return false;
    }
    count = 0;
    total = 0;
    for (std::uint32_t i = 0; i < posted; ++i) {
        const ibv_sge sge = load_sge(list, i);
        if (sge.length == 0) continue;
        Piece& piece = pieces[count];
        piece.length = sge.length;
        piece.key = sge.lkey;
        if (!find_room(sge, piece.at)) return false;
        total += sge.length;
        ++count;
    }
    return true;
}

Reason KeyCache::reason() const noexcept {
    if (!missed_) return {ReasonKind::malformed};
    const auto& [key, access, address, length, wanted] = *missed_;
    const RegionEntry* const entry = entry_of(key);
    if (!is_word_of(entry->key_word.load(std::memory_order_acquire), key)) {
        const bool ended = !end_->mine && load_once(entry->length) != 0;
        return {ended ? ReasonKind::ended_key : ReasonKind::no_key, key};
    }
    const std::uint32_t pd = load_once(entry->pd);
    const std::uint32_t rights = load_once(entry->access);
    const std::uint64_t begin = load_once(entry->iova);
    const std::uint64_t end = begin + load_once(entry->length);
    const std::uint32_t missing = access & ~access_local & ~rights;
    if ((access & access_local) != 0 && (rights & access_window) != 0) {
        return {ReasonKind::window_key, key};
    }
    if ((pd & pd_is_queue_pair) == 0 && pd != wanted) return {ReasonKind::other_domain, key};
    if (missing != 0) return {ReasonKind::region_access, key, missing};
    if (address < begin) return {ReasonKind::before, key, begin - address};
    if (address > end || length > end - address) {
        return {ReasonKind::beyond, key, address - end + length};
    }
    return {(pd & pd_is_queue_pair) != 0 ? ReasonKind::no_window : ReasonKind::cannot_map, key};
}

std::uint64_t KeyCache::address_at_owner(std::uint32_t key, std::uint64_t address) const noexcept {
    const RegionEntry* const entry = entry_of(key);
    return load_once(entry->address) + (address - load_once(entry->iova));
}

}  // namespace millrace::soft
