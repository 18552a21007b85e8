// What the wire counts, for `millrace soft status` and for tests. Used by the port, its routes and
// the adapters of queue pairs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "millrace/base/statistics.hpp"

namespace millrace::soft {

enum class WireCount : std::uint8_t {
    packets_sent,
    bytes_sent,
    sends,  ///< system calls
    packets_received,
    bytes_received,
    receives,           ///< system calls that brought something
    bad_checks,         ///< packets whose ICRC was wrong
    strays,             ///< for no queue pair here, or from another address than its peer's
    malformed,          ///< too short to be one
    losses,             ///< packets that the system did not take
    retransmissions,    ///< packets sent once more; adapters tell
    retries_exhausted,  ///< connections that ended so; adapters tell
    engine_rounds,      ///< the engine woke and had something to do
    count
};
inline constexpr std::size_t wire_count_kinds = static_cast<std::size_t>(WireCount::count);
/// Of the statistics page: the counts, and after them the slot and how many processes share the
/// port (0: it is private).
inline constexpr std::array<base::Figure, wire_count_kinds + 2> wire_figures{
    {{"packets sent"},
     {"bytes sent"},
     {"send calls"},
     {"packets received"},
     {"bytes received"},
     {"receive calls"},
     {"packets with a wrong check"},
     {"packets for nobody"},
     {"packets too short"},
     {"packets not taken by the system"},
     {"packets sent again"},
     {"connections out of retries"},
     {"rounds of the engine"},
     {"slot of the port", base::FigureKind::gauge},
     {"processes at the port", base::FigureKind::gauge}}};

class WireCounts {
  public:
    void add(WireCount what, std::uint64_t n = 1) noexcept {
        cells_[static_cast<std::size_t>(what)].fetch_add(n, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t value(WireCount what) const noexcept {
        return cells_[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
    }

  private:
    std::array<std::atomic<std::uint64_t>, wire_count_kinds> cells_{};
};

}  // namespace millrace::soft
