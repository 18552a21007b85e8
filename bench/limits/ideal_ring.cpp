// Two indexes, each on its own cache lines, each cached by the other side; items in place; room is
// given back a quarter of the ring at a time. Size and batch are constants of the compiler.
#include "ideal_ring.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include <fmt/format.h>

#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"

namespace millrace::bench {
namespace {

struct Indexes {
    alignas(128) std::atomic<std::uint64_t> written;
    alignas(128) std::atomic<std::uint64_t> read;
};

template <std::size_t Size>
struct Item {
    std::array<std::uint64_t, Size / 8> words;
};

template <std::size_t Size, std::uint64_t Batch>
double rate(std::size_t ring_bytes, std::uint64_t items, RingConsumer consumer) {
    const std::uint64_t slots = std::bit_floor(ring_bytes / Size);
    if (slots < 2 * Batch) {
        throw base::Error{base::ErrorCode::invalid_argument, "measure the ideal ring",
                          fmt::format("{} bytes of {}-byte items", ring_bytes, Size),
                          "it holds fewer than two batches", "use a larger ring"};
    }
    const std::uint64_t mask = slots - 1;
    const std::uint64_t quarter = std::max<std::uint64_t>(slots / 4, 1);
    const Windows windows{items / Batch};
    const std::uint64_t last = windows.total() * Batch;
    return run_pair(
        {.shared_bytes = sizeof(Indexes) + slots * Size},
        [&](Pair& pair) {
            auto* indexes = pair.shared_at<Indexes>(0);
            auto* ring = pair.shared_at<Item<Size>>(sizeof(Indexes));
            pair.meet();
            std::uint64_t seen_read = 0;
            std::uint64_t number = 0;
            const double batch_ns = median_step(windows, [&](std::uint64_t /*step*/) {
                if (number + Batch - seen_read > slots) {
                    pair.spin_until([&] {
                        seen_read = indexes->read.load(std::memory_order_acquire);
                        return number + Batch - seen_read <= slots;
                    });
                }
                for (std::uint64_t i = 0; i < Batch; ++i) {
                    ring[(number + i) & mask].words.fill(number + i);
                }
                number += Batch;
                indexes->written.store(number, std::memory_order_release);
            });
            pair.spin_until([&] { return indexes->read.load(std::memory_order_acquire) == last; });
            return static_cast<double>(Batch) * 1e9 / batch_ns;
        },
        [&](Pair& pair) {
            auto* indexes = pair.shared_at<Indexes>(0);
            const auto* ring = pair.shared_at<Item<Size>>(sizeof(Indexes));
            pair.meet();
            const bool patient = consumer == RingConsumer::patient;
            std::uint64_t sum = 0;
            std::uint64_t number = 0;
            std::uint64_t returned = 0;
            while (number < last) {
                std::uint64_t seen_written = number;
                pair.spin_until([&] {
                    seen_written = indexes->written.load(std::memory_order_acquire);
                    if (patient && seen_written - number < slots / 16) {
                        for (int i = 0; i < pauses_of_patience; ++i) base::pause();
                        seen_written = indexes->written.load(std::memory_order_acquire);
                    }
                    return seen_written != number;
                });
                while (number < seen_written) {
                    // Up to the end of the ring or of the quarter that is given back at once.
                    const std::uint64_t first = number & mask;
                    const std::uint64_t count =
                        std::min({seen_written - number, slots - first, quarter});
                    for (std::uint64_t i = 0; i < count; ++i) {
                        for (const std::uint64_t word : ring[first + i].words) sum += word;
                    }
                    number += count;
                    if (number - returned >= quarter) {
                        returned = number;
                        indexes->read.store(number, std::memory_order_release);
                    }
                }
            }
            indexes->read.store(number, std::memory_order_release);
            require_intact(sum == (Size / 8) * (last * (last - 1) / 2),
                           "the items of the ideal ring");
        });
}

template <std::size_t Size>
double rate_of(std::size_t ring_bytes, int batch, std::uint64_t items, RingConsumer consumer) {
    return batch == 16 ? rate<Size, 16>(ring_bytes, items, consumer)
                       : rate<Size, 1>(ring_bytes, items, consumer);
}

}  // namespace

double ideal_ring_rate(std::size_t item_size, std::size_t ring_bytes, int batch,
                       std::uint64_t items, RingConsumer consumer) {
    if (batch == 1 || batch == 16) {
        switch (item_size) {
            case 8: return rate_of<8>(ring_bytes, batch, items, consumer);
            case 16: return rate_of<16>(ring_bytes, batch, items, consumer);
            case 64: return rate_of<64>(ring_bytes, batch, items, consumer);
            case 256: return rate_of<256>(ring_bytes, batch, items, consumer);
            case 1024: return rate_of<1024>(ring_bytes, batch, items, consumer);
            case 4096: return rate_of<4096>(ring_bytes, batch, items, consumer);
            case 65536: return rate_of<65536>(ring_bytes, batch, items, consumer);
            default: break;
        }
    }
    throw base::Error{base::ErrorCode::invalid_argument, "measure the ideal ring",
                      fmt::format("items of {} bytes, published every {}", item_size, batch),
                      "it is not built for that", "see ideal_ring_sizes; batches of 1 and 16"};
}

}  // namespace millrace::bench
