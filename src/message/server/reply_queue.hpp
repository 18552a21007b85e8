// Answers on their way from any thread to the server's. Belongs to the server and to every Reply
// that is not answered yet. The node of the list that carries an answer is made with its Reply: so
// the server hears of each Reply, also when there is no memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "millrace/base/status.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/message/server.hpp"

namespace millrace::message {

struct Reply::Given {
    ClientId client;
    std::uint64_t id = 0;
    Outcome outcome = Outcome::dropped;
    std::vector<std::byte> payload{};
};

namespace detail {

struct ReplyQueue {
    using List = std::list<Reply::Given>;

    explicit ReplyQueue(connect::Hub& its_hub) noexcept : hub_{&its_hub} {}

    /// Any thread. `closed`: the server is gone.
    base::Status give(List given) noexcept {
        const std::lock_guard guard{mutex_};
        if (hub_ == nullptr) return base::Status::closed;
        given_.splice(given_.end(), given);
        // The server stores that it sleeps, then loads this; one of the two sees the other's.
        has_some_.store(true, std::memory_order_seq_cst);
        if (!is_asleep_.exchange(false, std::memory_order_seq_cst)) return base::Status::ok;
        try {
            hub_->post([] {});
        } catch (const std::bad_alloc&) {
            // The next one wakes it, or its house-keeping does.
            is_asleep_.store(true, std::memory_order_seq_cst);
        }
        return base::Status::ok;
    }

    // --- the server's thread

    [[nodiscard]] bool has_some() const noexcept {
        return has_some_.load(std::memory_order_seq_cst);
    }
    [[nodiscard]] List take() noexcept {
        const std::lock_guard guard{mutex_};
        has_some_.store(false, std::memory_order_relaxed);
        return std::exchange(given_, {});
    }
    /// From now on giving wakes the hub. After it the server asks has_some() once more.
    void fall_asleep() noexcept { is_asleep_.store(true, std::memory_order_seq_cst); }
    void wake() noexcept { is_asleep_.store(false, std::memory_order_relaxed); }
    void end() noexcept {
        const std::lock_guard guard{mutex_};
        hub_ = nullptr;
        given_.clear();
    }

  private:
    std::mutex mutex_;  ///< of given_ and hub_
    List given_;
    connect::Hub* hub_;
    std::atomic<bool> has_some_{false};
    std::atomic<bool> is_asleep_{false};
};

}  // namespace detail
}  // namespace millrace::message
