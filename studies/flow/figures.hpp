// What the figures and tables of work 000, chapter 6, show: which contestants, over which sizes,
// which quantity. Data for run_flow.cpp, findings.cpp and the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/flow/measure_flow.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::bench {

enum class ContestantKind : std::uint8_t {
    queue,
    socket,
    raw_write,
    uncredited,  ///< SENDs that do not know of a receive, over RC
    datagrams,   ///< the same over UD
};

/// One of those that are compared, under the key by which measurements are kept.
struct Contestant {
    std::string key;
    ContestantKind kind = ContestantKind::queue;
    ring::Design design = ring::design_1;
    std::uint32_t receive_pool = 64;
    std::uint32_t credit_parts = 8;
    /// Of the producer. The work's Basic and Batching asked the kernel (section 6.4).
    end::Completions completions = end::Completions::polled;
};
/// Throws base::Error for an unknown key. "point/<design>" is a point of the design space.
[[nodiscard]] Contestant contestant_of(std::string_view key);
/// "push1/watermark/pull".
[[nodiscard]] std::string point_name(ring::Design design);
/// All 33, in the order of docs/design/flow-points.md.
[[nodiscard]] std::vector<ring::Design> every_point();

enum class Quantity : std::uint8_t {
    megabits,         ///< of items, per second
    items,            ///< per second
    enqueue_us,       ///< of an enqueue that answers ok
    dequeue_us,       ///< of a dequeue that answers ok
    full_us,          ///< of an enqueue that answers full; the work's FULL
    empty_us,         ///< of a dequeue that answers empty; the work's EMPTY
    transfer_ratio,   ///< transfer notifications per item
    space_ratio,      ///< space notifications per item
    requests,         ///< work requests and receives of both sides, per item
    retried_percent,  ///< of sends, those that found no receive and were sent again
    dropped_percent,  ///< ... and were lost
    transfer_us,      ///< from enqueue to dequeue
};
[[nodiscard]] std::string_view unit_of(Quantity quantity) noexcept;
/// Its name in JSON.
[[nodiscard]] std::string_view key_of(Quantity quantity) noexcept;

struct Series {
    std::string_view label;  ///< what the work calls it
    std::string_view contestant;
};

struct Figure {
    std::string_view id;  ///< "6.1"; tables: "table 6.1"
    std::string_view title;
    Quantity quantity;
    std::vector<Series> series;
    std::size_t least = 4;
    std::size_t most = 65536;
    bool forty = false;   ///< the work measured it on its 40 Gb/s network
    bool spread = false;  ///< the least and the most of the runs are printed, too: its error bars
};
/// In the order of the work.
[[nodiscard]] const std::vector<Figure>& all_figures();
/// Throws base::Error for an unknown one. "6.9" or "figure 6.9", "table 6.1", "6.4 drops".
[[nodiscard]] const Figure& figure_of(std::string_view id);
/// The sizes it shows, ascending.
[[nodiscard]] std::vector<std::size_t> sizes_of(const Figure& figure);

}  // namespace millrace::bench
