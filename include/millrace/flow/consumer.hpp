// The consuming half of a flow queue: what one Producer put in, in order. Work 000, chapter 5.
//
//     auto consumer = flow::Consumer<Item>::listen("unix:/run/items", {}, Deadline::after(5s));
//     Item item;
//     while (consumer.dequeue(item, Deadline::after(1s)) == Status::ok) use(item);
//
// One thread at a time. What try_ operations answer: `ok`; `empty`; `closed` (the producer closed
// and everything was taken, or this end closed); `peer_lost` (everything that arrived was taken).
// Waiting operations also `timed_out` and `cancelled`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/sole_use.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/receiver.hpp"

namespace millrace::flow {

namespace detail {

/// Everything of a consumer that does not depend on what an item is.
template <ring::Design D>
class ConsumerEnd {
  public:
    /// Takes no more. What is left is lost, and the producer reads `closed`.
    void close() noexcept {
        receiver_->close();
        show();
    }
    /// For a program's own loop (poll, epoll, asio …): readable means that a try_ call may find an
    /// item, or the end. It stays readable until one has answered `empty`, and for
    /// Options::wait.spin after the last item: then an `empty` asks the producer for a wake-up.
    /// Lives as long as this end. Not for EPOLLET. Throws Error (resource_exhausted).
    /// docs/loops.md.
    [[nodiscard]] int descriptor() { return receiver_->descriptor(options_.wait.spin); }
    /// What an empty try_ call does apart from looking for an item: returns credit, looks after the
    /// producer. `empty`, `closed`, `peer_lost`. It never falls asleep, even with a
    /// descriptor: for programs that look at many ends, and sleep by other means.
    base::Status look_around() noexcept { return receiver_->look_around(); }
    /// The producer, for messages; the label it was given; why it is lost, else empty.
    [[nodiscard]] const std::string& peer() const noexcept { return receiver_->link().peer_name(); }
    [[nodiscard]] std::uint32_t peer_label() const noexcept {
        return receiver_->terms().peer_label;
    }
    /// Which of its ends are one to the producer's program (Options::ring.crew).
    [[nodiscard]] const ring::Crew& peer_crew() const noexcept {
        return receiver_->terms().peer_crew;
    }
    [[nodiscard]] std::string failure() const { return receiver_->failure(); }
    /// Items in each ring; for Bytes, bytes.
    [[nodiscard]] std::uint64_t capacity() const noexcept { return receiver_->terms().capacity(); }
    // For a Connector: whether the other end has said the last word of the setup. Throw Error: what
    // has ended that.
    static constexpr ring::Role role = ring::Role::consumer;
    [[nodiscard]] bool has_joined() { return receiver_->has_joined(); }
    void await_join(const base::Deadline& deadline) {
        receiver_->await_join(deadline, options_.wait);
    }
    /// What was counted, which the statistics page tells then, too.
    [[nodiscard]] ConsumerStats stats() const {
        show();
        return current();
    }
    /// Design, device and path, and what an item costs.
    [[nodiscard]] std::string explain() const {
        return detail::explain(ring::Role::consumer, design_, receiver_->terms(), receiver_->link(),
                               options_, receiver_->peer_memory(), receiver_->failure());
    }

  protected:
    using Receiver = ring::Receiver<ring::flows_of(D)>;

    ConsumerEnd(Connection connection, ring::Design design, Options options, const ItemFacts& item,
                const base::Deadline& deadline)
        : design_{design},
          options_{std::move(options)},
          receiver_{std::make_unique<Receiver>(
              std::move(connection.endpoint), std::move(connection.link), design_, options_.ring,
              Asking{item, options_}.facts, deadline, connection.setup)},
          item_size_{item.size},
          page_{consumer_page(options_.name)} {}

    void count() noexcept {
        if (++items_ % items_per_show == 0) [[unlikely]]
            show();
    }
    void count(std::uint64_t items) noexcept {
        const std::uint64_t before = std::exchange(items_, items_ + items);
        if (before / items_per_show != items_ / items_per_show) [[unlikely]]
            show();
    }
    [[nodiscard]] ConsumerStats current() const noexcept {
        return {items_, framed_bytes_ + items_ * item_size_, empty_returns_, receiver_->counts(),
                receiver_->filter_told()};
    }
    [[gnu::noinline]] void show() const noexcept {
        detail::show(page_, current());
        shown_ = items_;
    }
    [[gnu::noinline]] base::Status nothing() noexcept {
        ++empty_returns_;
        if (shown_ != items_) show();
        return receiver_->idle();
    }

    /// The item that was peeked last is still in front.
    [[nodiscard]] bool is_peeked() const noexcept { return peeked_at_ == receiver_->position(); }
    [[gnu::cold]] void warn_of_stray_release() noexcept {
        if (std::exchange(was_warned_, true)) return;
        detail::warn_of_stray_release(peer());
    }
    /// Of a call that waits for an item: one that is called for the same item again and again has a
    /// caller that never releases it.
    void look_for_forgotten() noexcept {
        if (!is_peeked()) [[likely]] {
            peeked_again_ = 0;
        } else if (++peeked_again_ == forgotten) {
            detail::warn_of_forgotten_release(peer(), forgotten);
        }
    }
    static constexpr std::uint32_t forgotten = 1000;

    template <class Try>
    base::Status wait_for_item(const Try& try_once, const base::Deadline& deadline) {
        const base::Status status = try_once();
        if (status != base::Status::empty) [[likely]]
            return status;
        return wait_while_empty(try_once, deadline);
    }
    /// Out of line, and `try_once` by value: the call that need not wait then keeps nothing in
    /// memory for it.
    template <class Try>
    [[gnu::noinline]] base::Status wait_while_empty(Try try_once, const base::Deadline& deadline) {
        base::Status status = base::Status::empty;
        const base::SoleCall call{use_, "wait for an item of a flow queue", peer()};
        const base::Status waited = receiver_->wait(
            [&] {
                status = try_once();
                return status != base::Status::empty;
            },
            deadline, options_.wait);
        return waited == base::Status::ok ? status : waited;
    }

    ring::Design design_;  ///< D; or its flows, run as was chosen at run time
    Options options_;
    std::unique_ptr<Receiver> receiver_;
    base::SoleUse use_;  ///< by a wait that is under way
    std::uint64_t items_ = 0;
    std::uint64_t framed_bytes_ = 0;  ///< payload of frames; that of items is counted by them
    std::uint64_t item_size_;         ///< 0: frames
    std::uint64_t empty_returns_ = 0;
    std::uint64_t peeked_at_ = ~std::uint64_t{0};  ///< the position of what was peeked
    std::uint32_t peeked_again_ = 0;               ///< how often by a call that waits
    bool was_warned_ = false;
    mutable std::uint64_t shown_ = 0;  ///< of items_, on the page
    mutable base::StatisticsPage page_;
};

}  // namespace detail

/// Items of one trivially copyable type. Both ends must have the same design
/// and the same type, as far as its name (item_name.hpp), size and alignment tell.
template <class T, ring::Design D = ring::design_2>
class Consumer : public detail::ConsumerEnd<D>, public detail::Factories<Consumer<T, D>, D, T> {
    static_assert(PlainItem<T>,
                  "an item must be trivially copyable, aligned to at most 4096, and no address: "
                  "that means nothing in another process");
    using Base = detail::ConsumerEnd<D>;
    static constexpr std::uint64_t slot =
        ring::slot_bytes_of(sizeof(T), alignof(T), ring::has_marks(D));

  public:
    /// What peek() gives.
    using Seen = const T*;

    /// A try_ call would find one. Nothing else is done, for programs that look at many ends.
    [[nodiscard]] bool has_item() noexcept { return this->receiver_->has_slot(slot); }

    base::Status try_dequeue(T& item) noexcept {
        auto& receiver = *this->receiver_;
        if (!receiver.has_slot(slot)) return this->nothing();
        std::memcpy(&item, receiver.slot(), sizeof(T));
        receiver.release_slot(slot);
        this->count();
        return base::Status::ok;
    }
    base::Status dequeue(T& item, const base::Deadline& deadline) {
        return this->wait_for_item([&] { return try_dequeue(item); }, deadline);
    }
    /// As many items as are there, at most `items.size()`.
    [[nodiscard]] BatchResult try_dequeue_batch(std::span<T> items) noexcept {
        BatchResult result;
        while (result.count != items.size()) {
            T* into = items.data() + result.count;
            const std::uint64_t taken = this->receiver_->take_slots(
                slot, items.size() - result.count, [&into](const std::byte* payload) noexcept {
                    std::memcpy(into++, payload, sizeof(T));
                });
            if (taken == 0) {
                result.status = this->nothing();
                break;
            }
            result.count += taken;
            this->count(taken);
        }
        return result;
    }

    /// The next item where it lies. It stays there, and in front, until release(). A program
    /// that waits for an item by peek() a thousand times, and has always the same one, is told so
    /// in the log.
    base::Status peek(const T*& item) noexcept {
        if (!this->receiver_->has_slot(slot)) return this->nothing();
        item = reinterpret_cast<const T*>(this->receiver_->slot());
        this->peeked_at_ = this->receiver_->position();
        return base::Status::ok;
    }
    base::Status peek(const T*& item, const base::Deadline& deadline) {
        this->look_for_forgotten();
        return this->wait_for_item([&] { return peek(item); }, deadline);
    }
    /// Gives the peeked item's place back to the producer. Where nothing is peeked, or another call
    /// has taken the item, it does nothing but to log a warning, once.
    void release() noexcept {
        if (!this->is_peeked()) [[unlikely]]
            return this->warn_of_stray_release();
        this->receiver_->release_slot(slot);
        this->count();
    }

  private:
    friend detail::Factories<Consumer, D, T>;
    Consumer(detail::Connection connection, ring::Design design, Options options,
             const base::Deadline& deadline)
        : Base{std::move(connection), design, std::move(options), detail::item_facts<T>(),
               deadline} {}
};

/// Items of any number of bytes.
template <ring::Design D>
class Consumer<Bytes, D> : public detail::ConsumerEnd<D>,
                           public detail::Factories<Consumer<Bytes, D>, D, Bytes> {
    using Base = detail::ConsumerEnd<D>;

  public:
    /// What peek() gives.
    using Seen = std::span<const std::byte>;

    /// The longest item.
    [[nodiscard]] std::uint64_t max_size() const noexcept {
        return this->receiver_->terms().max_frame();
    }

    /// A try_ call would find one. Nothing else is done, for programs that look at many ends.
    [[nodiscard]] bool has_item() noexcept {
        bool found;
        (void)this->receiver_->front_frame(found);
        return found;
    }

    /// Copies the next item into `into` and tells its size. `too_large`: `size` bytes would be
    /// needed; the item stays in front.
    base::Status try_dequeue(std::span<std::byte> into, std::size_t& size) noexcept {
        std::span<const std::byte> item;
        const base::Status status = peek(item);
        if (status != base::Status::ok) return status;
        size = item.size();
        if (size > into.size()) return base::Status::too_large;
        if (size != 0) std::memcpy(into.data(), item.data(), size);
        release();
        return base::Status::ok;
    }
    base::Status dequeue(std::span<std::byte> into, std::size_t& size,
                         const base::Deadline& deadline) {
        return this->wait_for_item([&] { return try_dequeue(into, size); }, deadline);
    }
    /// Makes `into` a copy of the next item. Allocates where its capacity does not suffice.
    base::Status try_dequeue(std::vector<std::byte>& into) {
        std::span<const std::byte> item;
        const base::Status status = peek(item);
        if (status != base::Status::ok) return status;
        into.assign(item.begin(), item.end());
        release();
        return base::Status::ok;
    }
    base::Status dequeue(std::vector<std::byte>& into, const base::Deadline& deadline) {
        return this->wait_for_item([&] { return try_dequeue(into); }, deadline);
    }
    /// Copies as many items as are there, at most `items.size()`. Allocates as try_dequeue.
    [[nodiscard]] BatchResult try_dequeue_batch(std::span<std::vector<std::byte>> items) {
        return detail::one_by_one(items, [this](auto& item) { return try_dequeue(item); });
    }

    /// The next item where it lies, aligned to 8. It stays there, and in front, until release().
    base::Status peek(std::span<const std::byte>& item) noexcept {
        bool found;
        const std::span<const std::byte> frame = this->receiver_->front_frame(found);
        if (!found) return this->nothing();
        item = frame;
        this->peeked_at_ = this->receiver_->position();
        peeked_ = frame.size();
        return base::Status::ok;
    }
    base::Status peek(std::span<const std::byte>& item, const base::Deadline& deadline) {
        this->look_for_forgotten();
        return this->wait_for_item([&] { return peek(item); }, deadline);
    }
    /// Gives the peeked item's place back to the producer. Where nothing is peeked, or another call
    /// has taken the item, it does nothing but to log a warning, once.
    void release() noexcept {
        if (!this->is_peeked()) [[unlikely]]
            return this->warn_of_stray_release();
        this->receiver_->release_frame(
            ring::Frames<ring::flows_of(D)>::bytes(peeked_, this->receiver_->terms().chunk_bytes));
        this->framed_bytes_ += peeked_;
        this->count();
    }

  private:
    friend detail::Factories<Consumer, D, Bytes>;
    Consumer(detail::Connection connection, ring::Design design, Options options,
             const base::Deadline& deadline)
        : Base{std::move(connection), design, std::move(options), detail::item_facts<Bytes>(),
               deadline} {}
    std::size_t peeked_ = 0;  ///< its bytes
};

}  // namespace millrace::flow
