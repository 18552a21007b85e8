// The ideal single-producer single-consumer ring in shared memory: the yardstick of every queue.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// Item sizes that the ideal ring is built for.
inline constexpr std::size_t ideal_ring_sizes[] = {8, 16, 64, 256, 1024, 4096, 65536};

/// A prompt consumer looks for new items again at once. A patient one that finds few leaves the
/// producer's index alone for about a microsecond: more items per second, and more latency.
enum class RingConsumer { prompt, patient };
/// For so long: some 0.8 µs.
inline constexpr int pauses_of_patience = 16;

/// Items per second of `item_size` bytes (one of `ideal_ring_sizes`) through a ring of
/// `ring_bytes`, written in place, published after every `batch` items (1 or 16), each item
/// different and read in full. Measured at the producer, in windows: let a window (a twentieth of
/// `items`) be several times the ring, or it measures the ring's filling.
[[nodiscard]] double ideal_ring_rate(std::size_t item_size, std::size_t ring_bytes, int batch,
                                     std::uint64_t items,
                                     RingConsumer consumer = RingConsumer::prompt);

}  // namespace millrace::bench
