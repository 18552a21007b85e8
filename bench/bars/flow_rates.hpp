// Items per second through a flow queue between two processes, for the bars of flow queues.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "bench/limits/ideal_ring.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"

namespace millrace::bench {

template <std::size_t Size>
struct BarItem {
    using Word = std::conditional_t<Size % 8 == 0, std::uint64_t, std::uint32_t>;
    std::array<Word, Size / sizeof(Word)> words;

    void fill(std::uint64_t number) noexcept { words.fill(static_cast<Word>(number)); }
    /// Summed up, as the ideal ring's items are: so both consumers do as much.
    [[nodiscard]] bool holds(std::uint64_t number) const noexcept {
        Word sum = 0;
        for (const Word word : words) sum += word;
        return sum == static_cast<Word>(number * words.size());
    }
};

/// Windows of at least this many laps of the ring, so that filling it is not what is measured.
/// Every item is written and read in full, in place, by one call each. Both ends wait as
/// `options.wait` says.
template <std::size_t Size, ring::Design D>
double flow_item_rate(const flow::Options& options, std::uint64_t items) {
    using Producer = flow::Producer<BarItem<Size>, D>;
    using Consumer = flow::Consumer<BarItem<Size>, D>;
    const Windows windows{items};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto listener = flow::Listener::listen("127.0.0.1:0", options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            auto producer = Producer::accept(listener, patience());
            const auto deadline = patience();
            pair.meet();
            const double item_ns = median_step(windows, [&](std::uint64_t number) {
                BarItem<Size>* item = nullptr;
                base::Status status = producer.claim(item);
                if (status != base::Status::ok) [[unlikely]]
                    status = producer.claim(item, deadline);
                require(status, "an item's place");
                item->fill(number);
                require(producer.commit(), "an item");
            });
            require(producer.flush(deadline), "the last items");
            pair.meet();
            return 1e9 / item_ns;
        },
        [&](Pair& pair) {
            auto consumer = Consumer::connect(address_of_first(pair), options, patience());
            const auto deadline = patience();
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                const BarItem<Size>* item = nullptr;
                base::Status status = consumer.peek(item);
                if (status != base::Status::ok) [[unlikely]]
                    status = consumer.peek(item, deadline);
                require(status, "an item that comes in time");
                require_intact(item->holds(number), "an item of a flow queue");
                consumer.release();
            }
            pair.meet();
        });
}

/// The same by one `enqueue` and one `dequeue` each, which copy. A patient consumer that finds
/// nothing leaves the producer alone as long as that of the ideal ring does.
template <std::size_t Size, ring::Design D>
double flow_call_rate(const flow::Options& options, std::uint64_t items,
                      RingConsumer kind = RingConsumer::prompt) {
    using Producer = flow::Producer<BarItem<Size>, D>;
    using Consumer = flow::Consumer<BarItem<Size>, D>;
    const Windows windows{items};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto listener = flow::Listener::listen("127.0.0.1:0", options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            auto producer = Producer::accept(listener, patience());
            const auto deadline = patience();
            BarItem<Size> item{};
            pair.meet();
            const double item_ns = median_step(windows, [&](std::uint64_t number) {
                item.fill(number);
                require(producer.enqueue(item, deadline), "an item");
            });
            // Items that found no space at the consumer wait in the producer's ring for this.
            require(producer.flush(deadline), "the last items");
            pair.meet();
            return 1e9 / item_ns;
        },
        [&](Pair& pair) {
            auto consumer = Consumer::connect(address_of_first(pair), options, patience());
            const auto deadline = patience();
            BarItem<Size> item{};
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                base::Status status = consumer.try_dequeue(item);
                if (status != base::Status::ok) [[unlikely]] {
                    const int pauses = kind == RingConsumer::patient ? pauses_of_patience : 0;
                    for (int i = 0; i < pauses; ++i) base::pause();
                    status = consumer.dequeue(item, deadline);
                }
                require(status, "an item");
                require_intact(item.holds(number), "an item of a flow queue");
            }
            pair.meet();
        });
}

/// The same by calls for `Batch` items at once: they are written into an array and enqueued, and
/// dequeued into one and read, up to 64 at once.
template <std::size_t Size, ring::Design D, std::uint64_t Batch>
double flow_batch_rate(const flow::Options& options, std::uint64_t items) {
    using Item = BarItem<Size>;
    using Producer = flow::Producer<Item, D>;
    using Consumer = flow::Consumer<Item, D>;
    const Windows windows{items / Batch};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto listener = flow::Listener::listen("127.0.0.1:0", options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            auto producer = Producer::accept(listener, patience());
            const auto deadline = patience();
            pair.meet();
            std::uint64_t number = 0;
            const double batch_ns = median_step(windows, [&](std::uint64_t /*step*/) {
                std::array<Item, Batch> batch;
                for (Item& item : batch) item.fill(++number);
                std::span<const Item> left{batch};
                while (true) {
                    const flow::BatchResult result = producer.try_enqueue_batch(left);
                    left = left.subspan(result.count);
                    if (left.empty()) break;
                    Item* place = nullptr;
                    require(result.status == base::Status::full &&
                                producer.claim(place, deadline) == base::Status::ok,
                            "an item's place");
                }
            });
            require(producer.flush(deadline) == base::Status::ok, "the last items");
            pair.meet();
            return static_cast<double>(Batch) * 1e9 / batch_ns;
        },
        [&](Pair& pair) {
            auto consumer = Consumer::connect(address_of_first(pair), options, patience());
            const auto deadline = patience();
            pair.meet();
            const std::uint64_t last = windows.total() * Batch;
            std::array<Item, 64> taken;
            for (std::uint64_t number = 0; number < last;) {
                const flow::BatchResult result = consumer.try_dequeue_batch(taken);
                if (result.count == 0) {
                    const Item* item = nullptr;
                    require(consumer.peek(item, deadline) == base::Status::ok,
                            "an item that comes in time");
                }
                bool all = true;
                for (const Item& item : std::span{taken}.first(result.count)) {
                    all &= item.holds(++number);
                }
                require(all, "the items of a flow queue");
            }
            pair.meet();
        });
}

}  // namespace millrace::bench
