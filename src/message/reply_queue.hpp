// Answers on their way from any thread to the server's. Belongs to the server and to every Reply
// that is not answered yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "millrace/base/status.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/message/server.hpp"

namespace millrace::message::detail {

struct ReplyQueue {
    struct Given {
        ClientId client;
        std::uint64_t id = 0;
        Outcome outcome = Outcome::ok;
        std::vector<std::byte> payload;
    };

    explicit ReplyQueue(connect::Hub& its_hub) noexcept : hub_{&its_hub} {}

    /// Any thread. `closed`: the server is gone.
    base::Status give(Given given) {
        const std::lock_guard guard{mutex_};
        if (hub_ == nullptr) return base::Status::closed;
        given_.push_back(std::move(given));
        // The server stores that it sleeps, then loads this; one of the two sees the other's.
        has_some_.store(true, std::memory_order_seq_cst);
        if (is_asleep_.exchange(false, std::memory_order_seq_cst)) hub_->post([] {});
        return base::Status::ok;
    }

    // --- the server's thread

    [[nodiscard]] bool has_some() const noexcept {
        return has_some_.load(std::memory_order_seq_cst);
    }
    /// Replaces `into`, whose memory is used for the next ones.
    void take(std::vector<Given>& into) noexcept {
        into.clear();
        const std::lock_guard guard{mutex_};
        into.swap(given_);
        has_some_.store(false, std::memory_order_relaxed);
    }
    /// From now on giving wakes the hub. Behind it has_some() is to be asked once more.
    void fall_asleep() noexcept { is_asleep_.store(true, std::memory_order_seq_cst); }
    void wake() noexcept { is_asleep_.store(false, std::memory_order_relaxed); }
    void end() noexcept {
        const std::lock_guard guard{mutex_};
        hub_ = nullptr;
        given_.clear();
    }

  private:
    std::mutex mutex_;  ///< of given_ and hub_
    std::vector<Given> given_;
    connect::Hub* hub_;
    std::atomic<bool> has_some_{false};
    std::atomic<bool> is_asleep_{false};
};

}  // namespace millrace::message::detail
