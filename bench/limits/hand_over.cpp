// One slot per direction, or several in turn: the payload, and right after it the number of the
// message, which is written last. Up to 56 bytes the two share a cache line, so that a message is
// one transfer; up to 120 bytes the receiver asks for both lines while it polls, so that they
// travel together.
#include "hand_over.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t line = 64;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) noexcept {
    return (bytes + unit - 1) / unit * unit;
}

/// The slots of one direction in shared memory, seen from one side.
class Slots {
  public:
    Slots(std::byte* memory, std::size_t size, std::size_t ring_bytes) noexcept
        : begin_{memory},
          end_{memory + bytes(size, ring_bytes)},
          payload_{memory},
          size_{size},
          mark_offset_{round_up(size, 8)} {}

    static constexpr std::size_t bytes(std::size_t size, std::size_t ring_bytes) noexcept {
        return std::max<std::size_t>(ring_bytes / slot_bytes(size), 1) * slot_bytes(size);
    }

    void send(const std::byte* from, std::uint64_t number) noexcept {
        std::memcpy(payload_, from, size_);
        mark().store(number, std::memory_order_release);
        go_on();
    }
    void receive(Pair& pair, std::byte* to, std::uint64_t number) {
        const bool two_lines = mark_offset_ >= line && mark_offset_ < 2 * line;
        pair.spin_until([&] {
            if (two_lines) __builtin_prefetch(payload_);
            return mark().load(std::memory_order_acquire) == number;
        });
        std::memcpy(to, payload_, size_);
        require_intact(stamped(to, size_, number), "a message");
        go_on();
    }

  private:
    static constexpr std::size_t slot_bytes(std::size_t size) noexcept {
        return round_up(round_up(size, 8) + 8, 2 * line);
    }
    [[nodiscard]] std::atomic_ref<std::uint64_t> mark() const noexcept {
        return std::atomic_ref{*reinterpret_cast<std::uint64_t*>(payload_ + mark_offset_)};
    }
    void go_on() noexcept {
        payload_ += slot_bytes(size_);
        if (payload_ == end_) payload_ = begin_;
    }
    std::byte* begin_;
    std::byte* end_;
    std::byte* payload_;  ///< of the next message
    std::size_t size_;
    std::size_t mark_offset_;
};

}  // namespace

double message_round_trip(std::size_t size, std::uint64_t round_trips, std::size_t ring_bytes) {
    const Windows windows{round_trips};
    const std::size_t bytes = Slots::bytes(size, ring_bytes);
    return run_pair(
        {.shared_bytes = 2 * bytes},
        [&](Pair& pair) {
            Slots there{pair.shared(), size, ring_bytes};
            Slots back{pair.shared() + bytes, size, ring_bytes};
            std::vector<std::byte> out(size);
            std::vector<std::byte> in(size);
            pair.meet();
            return median_step(windows, [&](std::uint64_t number) {
                stamp(out.data(), size, number);
                there.send(out.data(), number);
                back.receive(pair, in.data(), number);
            });
        },
        [&](Pair& pair) {
            Slots there{pair.shared(), size, ring_bytes};
            Slots back{pair.shared() + bytes, size, ring_bytes};
            std::vector<std::byte> out(size);
            std::vector<std::byte> in(size);
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                there.receive(pair, in.data(), number);
                stamp(out.data(), size, number);
                back.send(out.data(), number);
            }
        });
}

double one_copy_bandwidth(std::size_t size, std::size_t ring_bytes, std::uint64_t messages) {
    struct Indexes {
        alignas(128) std::atomic<std::uint64_t> written;
        alignas(128) std::atomic<std::uint64_t> read;
    };
    const std::uint64_t slots = ring_bytes / size;
    require(slots >= 2, "a ring of at least two messages");
    const Windows windows{messages};
    const std::uint64_t last = windows.total();
    return run_pair(
        {.shared_bytes = sizeof(Indexes) + slots * size},
        [&](Pair& pair) {
            auto* indexes = pair.shared_at<Indexes>(0);
            std::byte* ring = pair.shared() + sizeof(Indexes);
            std::vector<std::byte> out(size);
            pair.meet();
            std::uint64_t seen_read = 0;
            std::uint64_t slot = 0;
            const double message_ns = median_step(windows, [&](std::uint64_t number) {
                stamp(out.data(), size, number - 1);
                if (number - seen_read > slots) {
                    pair.spin_until([&] {
                        seen_read = indexes->read.load(std::memory_order_acquire);
                        return number - seen_read <= slots;
                    });
                }
                std::memcpy(ring + slot * size, out.data(), size);
                indexes->written.store(number, std::memory_order_release);
                if (++slot == slots) slot = 0;
            });
            pair.spin_until([&] { return indexes->read.load(std::memory_order_acquire) == last; });
            return static_cast<double>(size) / message_ns;
        },
        [&](Pair& pair) {
            auto* indexes = pair.shared_at<Indexes>(0);
            const std::byte* ring = pair.shared() + sizeof(Indexes);
            pair.meet();
            std::uint64_t seen_written = 0;
            std::uint64_t slot = 0;
            std::uint64_t returned = 0;
            for (std::uint64_t number = 0; number < last; ++number) {
                if (number == seen_written) {
                    pair.spin_until([&] {
                        seen_written = indexes->written.load(std::memory_order_acquire);
                        return number != seen_written;
                    });
                }
                const std::byte* payload = ring + slot * size;
                keep(read_all(payload, size));
                require_intact(stamped(payload, size, number), "a message");
                if (++slot == slots) slot = 0;
                // Small messages give room back in quarters, to write that line seldom.
                if (number + 1 - returned >= (slots + 3) / 4 || number + 1 == last) {
                    returned = number + 1;
                    indexes->read.store(returned, std::memory_order_release);
                }
            }
        });
}

}  // namespace millrace::bench
