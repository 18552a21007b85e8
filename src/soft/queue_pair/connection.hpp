// The peer that a queue pair is connected to: its node, its block and, of its shared receive queue,
// the pool's, mapped here. Part of the queue pair, behind its locks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "fabric/fabric.hpp"
#include "layout/block_layout.hpp"
#include "layout/receive_pool_layout.hpp"

namespace millrace::soft {

class Node;

class Connection {
  public:
    /// To queue pair `qpn`. False: it is not there now. May throw.
    [[nodiscard]] bool open(Node& node, std::uint32_t qpn);
    /// The pool that its block names; empty: it names none, or one that is not there. May throw.
    [[nodiscard]] PoolView open_pool();
    void close() noexcept;

    explicit operator bool() const noexcept { return peer_ != nullptr; }
    /// Null: there is none.
    [[nodiscard]] const std::shared_ptr<PeerNode>& peer() const noexcept { return peer_; }
    [[nodiscard]] bool lost() const noexcept { return peer_ != nullptr && !peer_->alive(); }
    [[nodiscard]] bool to_self() const noexcept { return peer_ != nullptr && peer_->is_self(); }
    /// All null where there is none. Stays where it is.
    [[nodiscard]] const BlockView& view() const noexcept { return view_; }
    [[nodiscard]] std::uint32_t generation() const noexcept { return block_->generation; }
    /// Tells one connection from the next.
    [[nodiscard]] std::uint32_t closed() const noexcept { return closed_; }

  private:
    std::shared_ptr<PeerNode> peer_;
    std::optional<Block> block_;
    std::optional<Block> pool_;
    BlockView view_;
    std::uint32_t closed_ = 0;  ///< times
};

}  // namespace millrace::soft
