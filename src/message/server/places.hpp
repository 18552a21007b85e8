// The places of a server's clients. A place outlives the clients that have it one after the other,
// each of which is another ClientId. The lowest vacant one is taken first, so that a scan ends
// early.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/peer.hpp"

namespace millrace::message {

/// One thread: the server's.
class Places {
  public:
    Places(std::size_t most, std::uint32_t server) : most_{most}, server_{server} {
        peers_.reserve(most);
        free_.reserve(most);
    }

    [[nodiscard]] Peer& operator[](std::size_t place) noexcept { return *peers_[place]; }
    /// Null: it has left.
    [[nodiscard]] Peer* find(ClientId id) noexcept {
        Peer* const peer = id.place < peers_.size() ? peers_[id.place].get() : nullptr;
        return peer != nullptr && peer->id == id ? peer : nullptr;
    }
    /// Places from there on are vacant.
    [[nodiscard]] std::size_t in_use() const noexcept { return in_use_; }
    /// Of all places, also of vacant ones.
    template <class Each>
    void each(Each&& each) {
        for (const auto& peer : peers_) each(*peer);
    }

    /// Null: there are as many as there may be. Throws bad_alloc.
    [[nodiscard]] Peer* take_vacant() {
        std::uint32_t place = 0;
        if (!free_.empty()) {
            std::pop_heap(free_.begin(), free_.end(), std::greater<>{});
            place = free_.back();
            free_.pop_back();
        } else if (peers_.size() < most_) {
            place = static_cast<std::uint32_t>(peers_.size());
            peers_.push_back(std::make_unique<Peer>(place, server_));
        } else {
            return nullptr;
        }
        in_use_ = std::max<std::size_t>(in_use_, place + 1);
        return peers_[place].get();
    }
    /// Replies of the former client find nobody from here on.
    void give_back(Peer& peer) noexcept {
        peer.phase = Peer::Phase::vacant;
        ++peer.id.generation;
        free_.push_back(peer.id.place);
        std::push_heap(free_.begin(), free_.end(), std::greater<>{});
        while (in_use_ != 0 && peers_[in_use_ - 1]->phase == Peer::Phase::vacant) --in_use_;
    }

  private:
    const std::size_t most_;
    const std::uint32_t server_;
    std::vector<std::unique_ptr<Peer>> peers_;
    std::vector<std::uint32_t> free_;  ///< a heap, the lowest first
    std::size_t in_use_ = 0;
};

}  // namespace millrace::message
