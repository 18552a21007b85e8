// Items per second through a flow queue between two processes, for the bars of flow queues.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "framework/pair.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"
#include "meeting.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"

namespace millrace::bench {

template <std::size_t Size>
struct BarItem {
    using Word = std::conditional_t<Size % 8 == 0, std::uint64_t, std::uint32_t>;
    std::array<Word, Size / sizeof(Word)> words;

    void fill(std::uint64_t number) noexcept { words.fill(static_cast<Word>(number)); }
    [[nodiscard]] bool holds(std::uint64_t number) const noexcept {
        Word differing = 0;
        for (const Word word : words) differing |= word ^ static_cast<Word>(number);
        return differing == 0;
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

}  // namespace millrace::bench
