// Any lane, or none, and its owner: what a client has, and a server for each of its clients.
#pragma once

#include <memory>
#include <utility>

#include "lane/network_lane.hpp"
#include "lane/ring_lane.hpp"

namespace millrace::message {

/// As std::optional<Lane> would be. A caller that has found ring() calls by it what only rings
/// have. What each message asks for is here, too, where it costs a ring no virtual call.
class AnyLane {
  public:
    AnyLane() noexcept = default;
    explicit AnyLane(std::unique_ptr<RingLane> ring) noexcept
        : ring_{ring.get()}, lane_{std::move(ring)} {}
    explicit AnyLane(std::unique_ptr<NetworkLane> network) noexcept
        : network_{network.get()}, lane_{std::move(network)} {}
    AnyLane(AnyLane&& other) noexcept { swap(other); }
    AnyLane& operator=(AnyLane&& other) noexcept {
        AnyLane former;
        swap(former);
        swap(other);
        return *this;
    }

    [[nodiscard]] bool has_value() const noexcept { return lane_ != nullptr; }
    [[nodiscard]] Lane* operator->() const noexcept { return lane_.get(); }
    [[nodiscard]] Lane& operator*() const noexcept { return *lane_; }
    /// Null: it is none of rings.
    [[nodiscard]] RingLane* ring() const noexcept { return ring_; }
    /// Null: it is none over packets, or a socket.
    [[nodiscard]] NetworkLane* network() const noexcept { return network_; }
    void reset() noexcept { *this = AnyLane{}; }

    // --- as Lane's

    [[gnu::always_inline]] base::Status look(std::span<const std::byte>& message) const {
        return ring_ != nullptr ? ring_->look(message) : lane_->look(message);
    }
    [[gnu::always_inline]] void pass() const noexcept {
        ring_ != nullptr ? ring_->pass() : lane_->pass();
    }
    [[gnu::always_inline]] void pass_at_leisure() const noexcept {
        ring_ != nullptr ? ring_->pass_at_leisure() : lane_->pass();
    }
    [[gnu::always_inline]] base::Status claim(std::size_t size, std::span<std::byte>& place) const {
        return ring_ != nullptr ? ring_->claim(size, place) : lane_->claim(size, place);
    }
    [[gnu::always_inline]] base::Status commit(std::size_t size) const noexcept {
        return ring_ != nullptr ? ring_->commit(size) : lane_->commit(size);
    }
    [[nodiscard]] bool is_clear() const noexcept {
        return ring_ != nullptr ? ring_->is_clear() : lane_->is_clear();
    }

  private:
    void swap(AnyLane& other) noexcept {
        std::swap(ring_, other.ring_);
        std::swap(network_, other.network_);
        std::swap(lane_, other.lane_);
    }

    RingLane* ring_ = nullptr;
    NetworkLane* network_ = nullptr;
    std::unique_ptr<Lane> lane_;
};

}  // namespace millrace::message
