// The news pages of a peer, mapped once for all connections to it.
#include "fabric/fabric.hpp"

#include "layout/news_page.hpp"

namespace millrace::soft {

std::shared_ptr<NewsPage> PeerNode::news_page(std::uint32_t index, std::uint32_t generation) {
    if (generation == 0) return nullptr;
    const std::uint64_t name = std::uint64_t{generation} << 32 | index;
    const std::scoped_lock lock{news_mutex_};
    if (const auto known = news_.find(name); known != news_.end()) {
        if (auto page = known->second.lock()) return page;
    }
    std::erase_if(news_, [](const auto& known) { return known.second.expired(); });
    const auto block = map_block(index, generation);
    if (!block) return nullptr;
    std::shared_ptr<NewsPage> page{reinterpret_cast<NewsPage*>(block->memory),
                                   [this, mapped = *block](NewsPage*) { unmap_block(mapped); }};
    news_[name] = page;
    return page;
}

}  // namespace millrace::soft
