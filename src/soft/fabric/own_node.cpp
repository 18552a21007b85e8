// This process's own node as a peer: two queue pairs of one process connected to each other.
#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fabric/peer_node.hpp"
#include "regions/region_facts.hpp"
#include "system/bells.hpp"

namespace millrace::soft {
namespace {

class OwnNode final : public PeerNode {
  public:
    OwnNode(std::uint32_t number, std::shared_ptr<NodeMemory> memory,
            std::shared_ptr<RegionTable> regions, std::shared_ptr<const std::atomic<bool>> usable)
        : PeerNode{number, memory->pid(), true},
          memory_{std::move(memory)},
          regions_{std::move(regions)},
          usable_{std::move(usable)} {
        identity_ = memory_->identity();
        asymmetric_fences_ = memory_->membarrier();
    }

    bool alive() const noexcept override { return usable_->load(std::memory_order_acquire); }
    bool same_process() noexcept override { return alive(); }

    std::optional<Block> map_block(std::uint32_t index, std::uint32_t generation) override {
        return alive() ? memory_->share(index, generation) : std::nullopt;
    }
    void unmap_block(const Block& block) noexcept override { memory_->unshare(block); }
    AtomicLocks& atomic_locks() noexcept override { return memory_->atomic_locks(); }

    const RegionEntry* region(std::uint32_t key) const noexcept override {
        return regions_->entry(key);
    }
    std::optional<Reach> reach(const RegionFacts& facts, std::uint32_t key,
                               bool writable) override {
        const std::scoped_lock lock{regions_->mutex()};
        const MappedKey name{key, facts.key_word};
        if (!valid(name) || (writable && (facts.access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
            return std::nullopt;
        }
        const auto mapped = mapped_.find(name);
        return Reach{mapped != mapped_.end() ? mapped->second.get()
                                             : reinterpret_cast<std::byte*>(facts.address),
                     0, 0};
    }
    /// Not where it lies already: whoever registered it may unmap that. From then on, executors
    /// reach it at the new place, too.
    std::shared_ptr<std::byte> map(const RegionFacts& facts, std::uint32_t key) override {
#if defined(__SANITIZE_THREAD__)
        return nullptr;  // a second address would hide who synchronises with whom
#endif
        const std::scoped_lock lock{regions_->mutex()};
        const MappedKey name{key, facts.key_word};
        if (!valid(name) || !is_shared_and_writable(facts)) return nullptr;
        if (const auto known = mapped_.find(name); known != mapped_.end()) return known->second;
        std::size_t skip = 0;
        Mapping mapping = map_region(pid(), facts, true, skip);
        if (!mapping) return nullptr;
        const auto shared = std::make_shared<Mapping>(std::move(mapping));
        return mapped_[name] = std::shared_ptr<std::byte>{shared, shared->memory() + skip};
    }
    void retire_stale(std::vector<std::shared_ptr<void>>& retired) override {
        const std::scoped_lock lock{regions_->mutex()};
        retired.reserve(retired.size() + mapped_.size());
        std::erase_if(mapped_, [&](auto& mapped) {
            if (valid(mapped.first)) return false;
            retired.push_back(std::move(mapped.second));
            return true;
        });
    }

    std::shared_ptr<const Descriptor> bell(int descriptor_in_peer) noexcept override {
        const std::scoped_lock lock{mutex_};
        return alive() ? bells_.open(pid(), descriptor_in_peer) : nullptr;
    }

    void members(const std::array<std::uint8_t, 16>& group,
                 std::vector<std::uint32_t>& found) const override {
        find_members(memory_->groups(), number(), group, found);
    }
    void announce_membership() noexcept override {
        if (alive()) memory_->membership().epoch.fetch_add(1, std::memory_order_release);
    }

  private:
    using MappedKey = std::pair<std::uint32_t, std::uint64_t>;  ///< and its word
    [[nodiscard]] bool valid(const MappedKey& name) const noexcept {
        return region(name.first)->key_word.load(std::memory_order_acquire) == name.second;
    }

    const std::shared_ptr<NodeMemory> memory_;
    const std::shared_ptr<RegionTable> regions_;
    const std::shared_ptr<const std::atomic<bool>> usable_;
    std::map<MappedKey, std::shared_ptr<std::byte>> mapped_;  ///< guarded by the regions' mutex
    std::mutex mutex_;
    Bells bells_;
};

}  // namespace

std::shared_ptr<PeerNode> own_node_as_peer(std::uint32_t number, std::shared_ptr<NodeMemory> memory,
                                           std::shared_ptr<RegionTable> regions,
                                           std::shared_ptr<const std::atomic<bool>> usable) {
    return std::make_shared<OwnNode>(number, std::move(memory), std::move(regions),
                                     std::move(usable));
}

}  // namespace millrace::soft
