// The producing half of a flow queue: items go in here and come out of one Consumer, in order, in
// another process or on another machine. Work 000, chapter 5.
//
//     auto producer = flow::Producer<Item>::connect("unix:/run/items", {}, Deadline::after(5s));
//     if (producer.enqueue(item, Deadline::after(1s)) != Status::ok) …
//     (void)producer.close(Deadline::after(5s));
//
// A producer moves data only inside its calls, unless its design has an active mover. Items that
// found the consumer's ring full, or that wait for a batch to be complete, stay in the producer's
// ring until a later call; flush() sends them. One thread at a time. What try_ operations answer:
// `ok`; `full`; `closed` (either end closed); `peer_lost`; `too_large` (Bytes only). Waiting
// operations also `timed_out` and `cancelled`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/sole_use.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/sender.hpp"

namespace millrace::flow {

namespace detail {

/// Everything of a producer that does not depend on what an item is.
template <ring::Design D>
class ProducerEnd {
  public:
    /// Sends what is stranded, and waits until all items are in the consumer's ring.
    base::Status flush(const base::Deadline& deadline) {
        const base::SoleCall call{use_, "flush a flow queue", peer()};
        const base::Status status = sender_->flush(deadline, options_.wait);
        gathered_ = 0;
        show();
        return status;
    }
    /// Takes nothing new, flushes and says goodbye: `ok`, and the consumer takes what is left and
    /// then reads `closed`. `timed_out`, `cancelled`: nothing was given up, and it may be called
    /// again. `closed`: the consumer had closed before it had everything; `peer_lost`. A producer
    /// that is destroyed without closing is lost to its consumer. docs/closing.md.
    base::Status close(const base::Deadline& deadline) {
        const base::SoleCall call{use_, "close a flow queue", peer()};
        const base::Status status = sender_->close(deadline, options_.wait);
        show();
        return status;
    }
    /// Looks after the consumer, by a system call: what other calls do now and then, for programs
    /// that pause between items. `ok`; `full`: ask again, as its setup is not over, or the mover is
    /// at work; `closed`, `peer_lost`.
    base::Status look_around() noexcept { return sender_->look_around(); }
    /// For a program's own loop (poll, epoll, asio …), as a socket's writability: readable means
    /// that there may be room, or that a flush may go on. It stays readable until a try_ call has
    /// answered `full`, or flush(Deadline::now()) `timed_out`: to be watched from then on. Lives as
    /// long as this end. Not for EPOLLET. Throws Error (resource_exhausted). docs/loops.md.
    [[nodiscard]] int descriptor() { return sender_->descriptor(options_.wait.spin); }
    /// The consumer, for messages; the label it was given; why it is lost, else empty.
    [[nodiscard]] const std::string& peer() const noexcept { return sender_->link().peer_name(); }
    [[nodiscard]] std::uint32_t peer_label() const noexcept { return sender_->terms().peer_label; }
    /// Which of its ends are one to the consumer's program (Options::ring.crew).
    [[nodiscard]] const ring::Crew& peer_crew() const noexcept {
        return sender_->terms().peer_crew;
    }
    [[nodiscard]] std::string failure() const { return sender_->failure(); }
    /// Items in each ring; for Bytes, bytes.
    [[nodiscard]] std::uint64_t capacity() const noexcept { return sender_->terms().capacity(); }
    // For a Connector: whether the other end has said the last word of the setup. Throw Error: what
    // has ended that.
    static constexpr ring::Role role = ring::Role::producer;
    [[nodiscard]] bool has_joined() { return sender_->has_joined(); }
    void await_join(const base::Deadline& deadline) {
        sender_->await_join(deadline, options_.wait);
    }
    /// What was counted, which the statistics page tells then, too.
    [[nodiscard]] ProducerStats stats() const {
        const auto pause = sender_->pause();
        const ProducerStats stats = current();
        detail::show(page_, stats);
        return stats;
    }
    /// Design, device and path, and what an item costs.
    [[nodiscard]] std::string explain() const {
        const auto pause = sender_->pause();
        return detail::explain(ring::Role::producer, design_, sender_->terms(), sender_->link(),
                               options_, sender_->peer_memory(), sender_->failure());
    }

  protected:
    using Sender = ring::Sender<ring::flows_of(D)>;

    ProducerEnd(Connection connection, ring::Design design, Options options, const ItemFacts& item,
                const base::Deadline& deadline)
        : design_{design},
          options_{of_producer(std::move(options))},
          sender_{std::make_unique<Sender>(std::move(connection.endpoint),
                                           std::move(connection.link), design_, options_.ring, item,
                                           deadline, connection.setup)},
          item_size_{item.size},
          page_{producer_page(options_.name)} {}

    void count() noexcept {
        if (++items_ % items_per_show == 0) [[unlikely]]
            show();
    }
    void count(std::uint64_t items) noexcept {
        const std::uint64_t before = std::exchange(items_, items_ + items);
        if (before / items_per_show != items_ / items_per_show) [[unlikely]]
            show();
    }
    [[nodiscard]] ProducerStats current() const noexcept {
        return {items_, framed_bytes_ + items_ * item_size_, sender_->counts(), filter_};
    }
    /// Later, if a mover is at work just now.
    [[gnu::noinline]] void show() noexcept {
        if (std::unique_lock<std::mutex> pause; sender_->try_pause(pause)) {
            detail::show(page_, current());
        }
    }

    /// Tries until it is not full any more.
    template <class Try>
    base::Status wait_for_space(const Try& try_once, const base::Deadline& deadline) {
        const base::Status status = try_once();
        if (status != base::Status::full) [[likely]]
            return status;
        return wait_while_full(try_once, deadline);
    }
    /// Out of line, and `try_once` by value: the call that need not wait then keeps nothing in
    /// memory for it.
    template <class Try>
    [[gnu::noinline]] base::Status wait_while_full(Try try_once, const base::Deadline& deadline) {
        show();
        base::Status status = base::Status::full;
        const base::SoleCall call{use_, "wait for room in a flow queue", peer()};
        const base::Status waited = sender_->wait(
            [&] {
                status = try_once();
                return status != base::Status::full;
            },
            deadline, options_.wait);
        return waited == base::Status::ok ? status : waited;
    }

    // Of frames:

    using Frames = ring::Frames<ring::flows_of(D)>;
    /// Fixed batches of them are sent together.
    void gather_frames() noexcept {
        if (design_.batching == ring::Batching::fixed) batch_ = sender_->terms().batch;
    }
    [[nodiscard]] std::uint64_t frame_bytes(std::uint64_t length) const noexcept {
        return Frames::bytes(length, sender_->terms().chunk_bytes);
    }
    /// Marks one whose bytes lie at the ring's end and counts it in.
    void lay_frame(std::uint32_t length) noexcept {
        auto& sender = *sender_;
        sender.lay_mark(sender.at(), Frames::lay_end(sender.at(), sender.position(),
                                                     sender.terms().secret, length));
        ++gathered_;
        sender.append(frame_bytes(length));
        framed_bytes_ += length;
        count();
    }
    /// Sends the frames that were laid, if they are enough for a batch.
    base::Status send_frames() noexcept {
        if (gathered_ < batch_) return base::Status::ok;
        gathered_ = 0;
        return sender_->send();
    }

    ring::Design design_;  ///< D; or its flows, run as was chosen at run time
    Options options_;
    std::unique_ptr<Sender> sender_;
    base::SoleUse use_;  ///< by a wait, flush() or close() that is under way
    std::uint64_t items_ = 0;
    std::uint64_t framed_bytes_ = 0;  ///< payload of frames; that of items is counted by them
    std::uint64_t item_size_;         ///< 0: frames
    std::uint32_t gathered_ = 0;      ///< frames since the last that were sent
    std::uint32_t batch_ = 1;         ///< frames that are sent together
    FilterCounts filter_{};           ///< where the consumer has asked for one
    mutable base::StatisticsPage page_;
};

}  // namespace detail

/// Items of one trivially copyable type. Both ends must have the same design, size and alignment.
template <class T, ring::Design D = ring::design_2>
class Producer : public detail::ProducerEnd<D>, public detail::Factories<Producer<T, D>, D, T> {
    static_assert(PlainItem<T>,
                  "an item must be trivially copyable, aligned to at most 4096, and no address: "
                  "that means nothing in another process");
    using Base = detail::ProducerEnd<D>;
    static constexpr std::uint64_t slot =
        ring::slot_bytes_of(sizeof(T), alignof(T), ring::has_marks(D));

  public:
    base::Status try_enqueue(const T& item) noexcept {
        auto& sender = *this->sender_;
        const base::Status status = sender.reserve(slot);
        if (status != base::Status::ok) [[unlikely]]
            return status;
        // Read first: for all the compiler knows, the item is stored over them.
        std::byte* const at = sender.at();
        const std::uint64_t position = sender.position();
        std::memcpy(at, &item, sizeof(T));
        lay(sender, at, position);
        return sender.send();
    }
    base::Status enqueue(const T& item, const base::Deadline& deadline) {
        return this->wait_for_space([&] { return try_enqueue(item); }, deadline);
    }

    /// Items from the front of `items`, as many as fit, sent together.
    [[nodiscard]] BatchResult try_enqueue_batch(std::span<const T> items) noexcept {
        BatchResult result;
        while (result.count != items.size()) {
            result.status = this->sender_->reserve(slot);
            if (result.status != base::Status::ok) break;
            result.count += lay(items.subspan(result.count));
        }
        if (result.count != 0) {
            const base::Status status = this->sender_->send();
            if (status != base::Status::ok) result.status = status;
        }
        return result;
    }

    /// Memory of the program's own, to gather items from. It must outlive the region, which may go
    /// after a flush() and must go before this producer. Throws Error.
    [[nodiscard]] verbs::MemoryRegion register_memory(std::span<std::byte> memory)
        requires(D.data == ring::DataFlow::push1)
    {
        return this->sender_->register_memory(memory);
    }
    /// Scatter/gather (work 000, chapter 4): items from the front of `items`, as many as fit, sent
    /// from where they lie in `memory`; Options::gather of them in one WRITE, one more where the
    /// ring wraps. An item must not change until released() says so. What cannot go like that (it
    /// lies elsewhere, items wait before it, a mover sends, the device may reorder the bytes of a
    /// WRITE) is copied as by try_enqueue_batch, and may be changed all the same only then.
    [[nodiscard]] BatchResult try_enqueue_gather(const verbs::MemoryRegion& memory,
                                                 std::span<const T* const> items) noexcept
        requires(D.data == ring::DataFlow::push1)
    {
        auto& sender = *this->sender_;
        BatchResult result;
        while (result.count != items.size()) {
            result.status = sender.reserve(slot);
            if (result.status != base::Status::ok) break;
            const auto rest = items.subspan(result.count);
            const std::uint64_t went = sender.gather(
                rest.size(), sizeof(T), memory, [&](std::uint64_t i) { return rest[i]; },
                result.status);
            if (result.status != base::Status::ok) break;
            if (went != 0) {
                this->count(went);
                result.count += went;
                continue;
            }
            std::memcpy(sender.at(), rest.front(), sizeof(T));
            lay();
            ++result.count;
            result.status = sender.send();
            if (result.status != base::Status::ok) break;
        }
        return result;
    }
    /// Of all items that were enqueued, how many have left their memory, as far as completions
    /// tell. After flush(), all have.
    [[nodiscard]] std::uint64_t released() noexcept
        requires(D.data == ring::DataFlow::push1)
    {
        return (this->sender_->transferred() - this->sender_->terms().initial) / slot;
    }

    /// The place of the next item in the ring, to be written in place. Its bytes are those of an
    /// older item. Claiming again gives the same place. The place is gone after the next call but
    /// claim and commit.
    base::Status claim(T*& place) noexcept {
        const base::Status status = this->sender_->reserve(slot);
        claimed_ = none;
        if (status == base::Status::ok) {
            place = reinterpret_cast<T*>(this->sender_->at());
            claimed_ = this->sender_->position();
        }
        return status;
    }
    base::Status claim(T*& place, const base::Deadline& deadline) {
        return this->wait_for_space([&] { return claim(place); }, deadline);
    }
    /// After a claim that was answered `ok`: so many items have room together with the claimed one.
    [[nodiscard]] std::uint64_t room() const noexcept { return this->sender_->room() / slot; }
    /// Sends the claimed item. `empty`: there is none, as another call came since the claim and
    /// the place is gone, or nothing was claimed; nothing is sent.
    base::Status commit() noexcept {
        auto& sender = *this->sender_;
        if (claimed_ != sender.position()) [[unlikely]]
            return base::Status::empty;
        const base::Status status = sender.reserve(slot);
        if (status != base::Status::ok) [[unlikely]]
            return status;
        lay();
        return sender.send();
    }

  private:
    friend detail::Factories<Producer, D, T>;
    Producer(detail::Connection connection, ring::Design design, Options options,
             const base::Deadline& deadline)
        : Base{std::move(connection), design, std::move(options), detail::item_facts<T>(),
               deadline} {}

    /// Marks the item at the ring's end and counts it in.
    void lay() noexcept { lay(*this->sender_, this->sender_->at(), this->sender_->position()); }
    /// As the one before, of a Sender whose place and position are known.
    void lay(typename Base::Sender& sender, std::byte* at,
             [[maybe_unused]] std::uint64_t position) noexcept {
        if constexpr (ring::has_marks(D)) {
            sender.lay_mark(at + slot - ring::mark_bytes,
                            ring::slot_mark(position, sender.terms().initial));
        }
        sender.append(slot);
        this->count();
    }
    /// As many of `items` as there is room for; one at least, whose place is reserved.
    std::uint64_t lay(std::span<const T> items) noexcept {
        auto& sender = *this->sender_;
        const std::uint64_t count = std::min<std::uint64_t>(items.size(), sender.room() / slot);
        std::byte* const first = sender.at();
        const std::uint64_t mark = ring::slot_mark(sender.position(), sender.terms().initial);
        std::memcpy(first, items.data(), sizeof(T));
        lay_behind(first + slot, items.data() + 1, count - 1, mark + slot);
        // A call that looks on comes here first.
        if constexpr (ring::has_marks(D)) sender.lay_mark(first + slot - ring::mark_bytes, mark);
        sender.append(count * slot);
        this->count(count);
        return count;
    }
    /// Items that nobody looks for yet: neither they nor their marks need be in order.
    static void lay_behind(std::byte* __restrict at, const T* __restrict items, std::uint64_t count,
                           [[maybe_unused]] std::uint64_t mark) noexcept {
#pragma GCC unroll 4
        for (std::uint64_t i = 0; i < count; ++i) {
            std::memcpy(at + i * slot, items + i, sizeof(T));
            if constexpr (D.data == ring::DataFlow::pull && ring::has_marks(D)) {
                // A consumer READs ahead of what it was told.
                ring::store_word(at + i * slot + slot - ring::mark_bytes, mark + i * slot);
            } else if constexpr (ring::has_marks(D)) {
                const std::uint64_t own = mark + i * slot;
                std::memcpy(at + i * slot + slot - ring::mark_bytes, &own, sizeof own);
            }
        }
    }
    static constexpr std::uint64_t none = ~std::uint64_t{0};
    std::uint64_t claimed_ = none;  ///< the position of the place
};

/// Items of which the consumer chooses: flow/filtered_producer.hpp.
template <class T, class... Filters, ring::Design D>
class Producer<Filtered<T, Filters...>, D>;

/// Items of any number of bytes, up to max_size().
template <ring::Design D>
class Producer<Bytes, D> : public detail::ProducerEnd<D>,
                           public detail::Factories<Producer<Bytes, D>, D, Bytes> {
    using Base = detail::ProducerEnd<D>;

  public:
    using Item = std::span<const std::byte>;

    /// The longest item.
    [[nodiscard]] std::uint64_t max_size() const noexcept {
        return this->sender_->terms().max_frame();
    }

    base::Status try_enqueue(Item item) noexcept {
        const base::Status status = put(item);
        return status == base::Status::ok ? this->send_frames() : status;
    }
    base::Status enqueue(Item item, const base::Deadline& deadline) {
        return this->wait_for_space([&] { return try_enqueue(item); }, deadline);
    }
    /// Items from the front of `items`, as many as fit, sent together.
    [[nodiscard]] BatchResult try_enqueue_batch(std::span<const Item> items) noexcept {
        BatchResult result;
        for (const Item& item : items) {
            result.status = put(item);
            if (result.status != base::Status::ok) break;
            ++result.count;
        }
        if (result.count != 0) {
            const base::Status status = this->send_frames();
            if (status != base::Status::ok) result.status = status;
        }
        return result;
    }

    /// `size` bytes in the ring, to be written in place. Their content is that of older items. The
    /// place is gone after the next call but claim and commit.
    base::Status claim(std::size_t size, std::span<std::byte>& place) noexcept {
        claimed_at_ = none;
        if (size > max_size()) return base::Status::too_large;
        const base::Status status = this->sender_->reserve(this->frame_bytes(size));
        if (status == base::Status::ok) {
            place = {this->sender_->at() + ring::mark_bytes, size};
            claimed_at_ = this->sender_->position();
            claimed_ = size;
        }
        return status;
    }
    base::Status claim(std::size_t size, std::span<std::byte>& place,
                       const base::Deadline& deadline) {
        return this->wait_for_space([&] { return claim(size, place); }, deadline);
    }
    /// Sends the claimed item. `empty`: there is none, as another call came since the claim and
    /// the place is gone, or nothing was claimed; nothing is sent.
    base::Status commit() noexcept { return commit(claimed_); }
    /// Sends the first `size` bytes of what was claimed. `too_large`: there are fewer.
    base::Status commit(std::size_t size) noexcept {
        auto& sender = *this->sender_;
        if (claimed_at_ != sender.position()) [[unlikely]]
            return base::Status::empty;
        if (size > claimed_) [[unlikely]]
            return base::Status::too_large;
        const base::Status status = sender.reserve(this->frame_bytes(size));
        if (status != base::Status::ok) [[unlikely]]
            return status;
        this->lay_frame(static_cast<std::uint32_t>(size));
        return this->send_frames();
    }

  private:
    static constexpr std::uint64_t none = ~std::uint64_t{0};

    friend detail::Factories<Producer, D, Bytes>;
    Producer(detail::Connection connection, ring::Design design, Options options,
             const base::Deadline& deadline)
        : Base{std::move(connection), design, std::move(options), detail::item_facts<Bytes>(),
               deadline} {
        this->gather_frames();
    }

    base::Status put(Item item) noexcept {
        if (item.size() > max_size()) [[unlikely]]
            return base::Status::too_large;
        const base::Status status = this->sender_->reserve(this->frame_bytes(item.size()));
        if (status != base::Status::ok) [[unlikely]]
            return status;
        if (!item.empty()) {
            std::memcpy(this->sender_->at() + ring::mark_bytes, item.data(), item.size());
        }
        this->lay_frame(static_cast<std::uint32_t>(item.size()));
        return base::Status::ok;
    }
    std::uint64_t claimed_at_ = none;  ///< the position of the place
    std::size_t claimed_ = 0;          ///< its bytes
};

}  // namespace millrace::flow
