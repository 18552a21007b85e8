#include "queue_pair/connection.hpp"

#include <utility>

#include "fabric/node.hpp"

namespace millrace::soft {

bool Connection::open(Node& node, std::uint32_t qpn) {
    auto found = node.peer(node_of_qpn(qpn));
    if (found == nullptr) return false;
    const auto mapped = found->map_block(index_of_qpn(qpn), 0);
    if (!mapped) return false;
    const auto view = BlockView::of_peer(mapped->memory, mapped->size);
    if (!view) {
        found->unmap_block(*mapped);
        return false;
    }
    peer_ = std::move(found);
    block_ = mapped;
    view_ = *view;
    return true;
}

PoolView Connection::open_pool() {
    const std::uint32_t generation = load_once(view_.receive->pool_generation);
    if (generation == 0) return {};
    pool_ = peer_->map_block(load_once(view_.receive->pool_index), generation);
    if (!pool_) return {};
    return PoolView::of_peer(pool_->memory, pool_->size).value_or(PoolView{});
}

void Connection::close() noexcept {
    if (block_) peer_->unmap_block(*block_);
    if (pool_) peer_->unmap_block(*pool_);
    block_.reset();
    pool_.reset();
    view_ = BlockView{};
    peer_.reset();
    ++closed_;
}

}  // namespace millrace::soft
