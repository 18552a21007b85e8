// A producer of a SharedFanIn: items go into one ring that all of its producers share.
//
//     auto producer = flow::SharedProducer<Item>::connect("host:7000", {}, deadline);
//     if (producer.enqueue(item, Deadline::after(1s)) != Status::ok) …
//     (void)producer.close(Deadline::after(5s));
//
// A call that lays items takes places for all of them by one compare-and-swap on the ring's tail
// (shared_ring.hpp), and lays them before it returns: nothing waits for a later call. Where
// requests are posted, it waits for the device's answer to that, a round trip, whatever its
// deadline is; nobody else's program is waited for. try_enqueue_batch spreads that over its items.
//
// One thread at a time. What try_ operations answer: `ok`; `full`; `closed` (either end closed);
// `peer_lost`. Waiting operations also `timed_out` and `cancelled`. A producer that waits for room
// looks again by the clock, each millisecond.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/connector.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/connector.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/flow/shared_ring.hpp"
#include "millrace/flow/stats.hpp"

namespace millrace::flow {

struct SharedProducerStats {
    std::uint64_t items = 0;
    std::uint64_t payload_bytes = 0;
    std::uint64_t claims = 0;       ///< of places that succeeded
    std::uint64_t lost_claims = 0;  ///< somebody else was first, or the tail was not known
    std::uint64_t full_returns = 0;
    std::uint64_t requests = 0;  ///< that were posted
    std::uint64_t space_reads = 0;
    std::uint64_t events = 0;  ///< that woke the consumer
    std::uint64_t moves = 0;   ///< of the ring, that it has followed
};

namespace detail {

/// Of items of any size. One thread at a time.
class SharedProducerEnd {
  public:
    [[nodiscard]] static SharedProducerEnd connect(const ItemFacts& item,
                                                   const connect::Address& address,
                                                   SharedOptions options,
                                                   const base::Deadline& deadline);
    SharedProducerEnd(SharedProducerEnd&&) noexcept;
    SharedProducerEnd& operator=(SharedProducerEnd&&) noexcept;
    ~SharedProducerEnd();

    /// Items that lie side by side.
    BatchResult try_enqueue(const std::byte* items, std::size_t count) noexcept;
    base::Status enqueue(const std::byte* item, const base::Deadline& deadline);
    base::Status flush(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);
    base::Status look_around() noexcept;
    [[nodiscard]] int descriptor();
    [[nodiscard]] const std::string& peer() const noexcept;
    [[nodiscard]] std::uint64_t capacity() const noexcept;
    [[nodiscard]] SharedProducerStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;
    [[nodiscard]] std::string failure() const;

    struct State;

  private:
    friend class SharedConnector;
    explicit SharedProducerEnd(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

/// One on its way. Move-only; one thread at a time.
class SharedConnector {
  public:
    SharedConnector(const ItemFacts& item, const connect::Address& address, SharedOptions options);
    SharedConnector(SharedConnector&&) noexcept;
    SharedConnector& operator=(SharedConnector&&) noexcept;
    ~SharedConnector();
    [[nodiscard]] std::optional<SharedProducerEnd> try_connect();
    [[nodiscard]] SharedProducerEnd wait(const base::Deadline& deadline);
    [[nodiscard]] int descriptor() { return connector_.descriptor(); }

  private:
    void begin(connect::Link link);
    [[nodiscard]] SharedProducerEnd finish(std::span<const std::byte> theirs);
    ItemFacts item_;
    SharedOptions options_;
    connect::Connector connector_;
    std::unique_ptr<SharedProducerEnd::State> state_;  ///< once there is a link
};

}  // namespace detail

/// Move-only.
template <class T>
class SharedProducer {
    static_assert(PlainItem<T>,
                  "an item must be trivially copyable, aligned to at most 4096, and no address: "
                  "that means nothing in another process");

  public:
    /// Connects to a SharedFanIn. Throws Error.
    [[nodiscard]] static SharedProducer connect(const connect::Address& address,
                                                SharedOptions options,
                                                const base::Deadline& deadline) {
        return SharedProducer{detail::SharedProducerEnd::connect(detail::item_facts<T>(), address,
                                                                 std::move(options), deadline)};
    }

    base::Status try_enqueue(const T& item) noexcept {
        return end_.try_enqueue(bytes_of(item), 1).status;
    }
    base::Status enqueue(const T& item, const base::Deadline& deadline) {
        return end_.enqueue(bytes_of(item), deadline);
    }
    /// Items from the front of `items`, as many as fit. Those of one claim (up to 1,024, and by
    /// post 64 KiB) come out without those of others in between.
    [[nodiscard]] BatchResult try_enqueue_batch(std::span<const T> items) noexcept {
        return end_.try_enqueue(reinterpret_cast<const std::byte*>(items.data()), items.size());
    }
    /// Until all items are in the consumer's memory.
    base::Status flush(const base::Deadline& deadline) { return end_.flush(deadline); }
    /// Takes nothing new, flushes and says goodbye, as docs/closing.md says.
    base::Status close(const base::Deadline& deadline) { return end_.close(deadline); }
    /// Looks after the consumer, by a system call, for a producer that pauses. `ok`, `closed`,
    /// `peer_lost`. Never blocks.
    base::Status look_around() noexcept { return end_.look_around(); }
    /// For a program's own loop, as a socket's writability: to be watched once a try_ call has
    /// answered `full`. Readable each millisecond, as room is looked for by the clock. Lives as
    /// long as this end. Throws Error (resource_exhausted). docs/loops.md.
    [[nodiscard]] int descriptor() { return end_.descriptor(); }

    /// The consumer, for messages; why it is lost, or has given this end up, else empty.
    [[nodiscard]] const std::string& peer() const noexcept { return end_.peer(); }
    [[nodiscard]] std::string failure() const { return end_.failure(); }
    /// Items in the ring that all share.
    [[nodiscard]] std::uint64_t capacity() const noexcept { return end_.capacity(); }
    [[nodiscard]] SharedProducerStats stats() const noexcept { return end_.stats(); }
    [[nodiscard]] std::string explain() const { return end_.explain(); }

  private:
    friend Connector<SharedProducer>;
    explicit SharedProducer(detail::SharedProducerEnd end) noexcept : end_{std::move(end)} {}
    [[nodiscard]] static const std::byte* bytes_of(const T& item) noexcept {
        return reinterpret_cast<const std::byte*>(&item);
    }
    detail::SharedProducerEnd end_;
};

/// A producer on its way, for programs that do not wait: as that of a queue (connector.hpp).
template <class T>
class Connector<SharedProducer<T>> {
  public:
    explicit Connector(const connect::Address& address, SharedOptions options = {})
        : way_{detail::item_facts<T>(), address, std::move(options)} {}
    [[nodiscard]] std::optional<SharedProducer<T>> try_connect() {
        std::optional<detail::SharedProducerEnd> end = way_.try_connect();
        if (!end.has_value()) return std::nullopt;
        return SharedProducer<T>{std::move(*end)};
    }
    [[nodiscard]] SharedProducer<T> wait(const base::Deadline& deadline) {
        return SharedProducer<T>{way_.wait(deadline)};
    }
    [[nodiscard]] int descriptor() { return way_.descriptor(); }

  private:
    detail::SharedConnector way_;
};

}  // namespace millrace::flow
