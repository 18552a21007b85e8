// Answers on their way from any thread to the server's. Belongs to the server and to every Reply
// that is not answered yet. The node that carries an answer is made with its Reply: so the server
// hears of each Reply, also when there is no memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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
    std::unique_ptr<Given> next{};
};

namespace detail {

struct ReplyQueue {
    using Given = Reply::Given;
    /// Some of them, in their order. Gone one by one, as there may be many.
    class List {
      public:
        List() noexcept = default;
        List(List&& other) noexcept
            : first_{std::move(other.first_)}, last_{std::exchange(other.last_, nullptr)} {}
        List& operator=(List&&) = delete;
        ~List() {
            while (pop() != nullptr) {
            }
        }
        void push(std::unique_ptr<Given> given) noexcept {
            Given* const added = given.get();
            (last_ == nullptr ? first_ : last_->next) = std::move(given);
            last_ = added;
        }
        /// Null: there are no more.
        std::unique_ptr<Given> pop() noexcept {
            std::unique_ptr<Given> given = std::move(first_);
            if (given == nullptr) return given;
            first_ = std::move(given->next);
            if (first_ == nullptr) last_ = nullptr;
            return given;
        }

      private:
        std::unique_ptr<Given> first_;
        Given* last_ = nullptr;
    };

    explicit ReplyQueue(connect::Hub& its_hub) noexcept : hub_{&its_hub} {}

    /// Any thread. `closed`: the server is gone.
    base::Status give(std::unique_ptr<Given> given) noexcept {
        const std::lock_guard guard{mutex_};
        if (hub_ == nullptr) return base::Status::closed;
        given_.push(std::move(given));
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
        return std::move(given_);
    }
    /// From now on giving wakes the hub. After it the server asks has_some() once more.
    void fall_asleep() noexcept { is_asleep_.store(true, std::memory_order_seq_cst); }
    void wake() noexcept { is_asleep_.store(false, std::memory_order_relaxed); }
    void end() noexcept {
        const std::lock_guard guard{mutex_};
        hub_ = nullptr;
        const List gone = std::move(given_);
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
