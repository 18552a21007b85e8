// See figures.hpp. Work 000, sections 6.1 to 6.4.
#include "figures.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "bench/flow/named_designs.hpp"
#include "bench/flow/queue_ends.hpp"
#include "millrace/base/error.hpp"
#include "millrace/ring/every_design.hpp"

namespace millrace::bench {
namespace {

constexpr std::string_view point_prefix = "point/";
/// Of rings of 8192 items: the work's "each time it consumes another item, unless a previous space
/// notification push is already in-flight" (section 6.3).
constexpr std::uint32_t each_item = 8192;

const std::vector<Contestant>& named_contestants() {
    static const std::vector<Contestant> list{
        {"basic", ContestantKind::queue, ring::design_1},
        {"transfer push", ContestantKind::queue, transfer_push},
        {"transfer pull", ContestantKind::queue, transfer_pull},
        {"push2, pool 64", ContestantKind::queue, data_push2, 64},
        {"push2, pool 48", ContestantKind::queue, data_push2, 48},
        {"push2, pool 32", ContestantKind::queue, data_push2, 32},
        {"push2, pool 16", ContestantKind::queue, data_push2, 16},
        {"space push", ContestantKind::queue, ring::design_2, 64, each_item},
        {"space push2", ContestantKind::queue, space_push2, 64, each_item},
        {"batching", ContestantKind::queue, batching},
        {"data mover", ContestantKind::queue, data_mover},
        {"basic, events", ContestantKind::queue, ring::design_1, 64, 8, end::Completions::events},
        {"batching, events", ContestantKind::queue, batching, 64, 8, end::Completions::events},
        {"socket", ContestantKind::socket},
        {"raw write", ContestantKind::raw_write},
        {"no credit, pool 64", ContestantKind::uncredited, data_push2, 64},
        {"no credit, pool 48", ContestantKind::uncredited, data_push2, 48},
        {"no credit, pool 32", ContestantKind::uncredited, data_push2, 32},
        {"no credit, pool 16", ContestantKind::uncredited, data_push2, 16},
        {"datagrams, pool 64", ContestantKind::datagrams, data_push2, 64},
        {"datagrams, pool 48", ContestantKind::datagrams, data_push2, 48},
        {"datagrams, pool 32", ContestantKind::datagrams, data_push2, 32},
        {"datagrams, pool 16", ContestantKind::datagrams, data_push2, 16},
    };
    return list;
}

}  // namespace

std::string point_name(ring::Design design) {
    return fmt::format("{}/{}/{}", name_of(design.data), name_of(design.transfer),
                       name_of(design.space));
}

std::vector<ring::Design> every_point() {
    std::vector<ring::Design> list;
#define MILLRACE_ADD(D) list.push_back(D);
    MILLRACE_EVERY_DESIGN(MILLRACE_ADD)
#undef MILLRACE_ADD
    return list;
}

Contestant contestant_of(std::string_view key) {
    for (const Contestant& contestant : named_contestants()) {
        if (contestant.key == key) return contestant;
    }
    if (key.starts_with(point_prefix)) {
        for (const ring::Design design : every_point()) {
            if (point_name(design) == key.substr(point_prefix.size())) {
                return {std::string{key}, ContestantKind::queue, design};
            }
        }
    }
    throw base::Error{base::ErrorCode::not_found, "look up what is compared", std::string{key},
                      "no contestant has that key", "see studies/flow/figures.cpp"};
}

std::string_view unit_of(Quantity quantity) noexcept {
    switch (quantity) {
        case Quantity::megabits: return "Mb/s";
        case Quantity::items: return "items/s";
        case Quantity::enqueue_us:
        case Quantity::dequeue_us:
        case Quantity::full_us:
        case Quantity::empty_us:
        case Quantity::transfer_us: return "us";
        case Quantity::retried_percent:
        case Quantity::dropped_percent: return "percent of the sends";
        case Quantity::transfer_ratio:
        case Quantity::space_ratio:
        case Quantity::requests: return "per item";
    }
    return "";
}

std::string_view key_of(Quantity quantity) noexcept {
    switch (quantity) {
        case Quantity::megabits: return "megabits_per_second";
        case Quantity::items: return "items_per_second";
        case Quantity::enqueue_us: return "enqueue_us";
        case Quantity::dequeue_us: return "dequeue_us";
        case Quantity::full_us: return "full_us";
        case Quantity::empty_us: return "empty_us";
        case Quantity::retried_percent: return "retried_percent";
        case Quantity::dropped_percent: return "dropped_percent";
        case Quantity::transfer_us: return "transfer_us";
        case Quantity::transfer_ratio: return "transfer_notifications_per_item";
        case Quantity::space_ratio: return "space_notifications_per_item";
        case Quantity::requests: return "requests_per_item";
    }
    return "";
}

const std::vector<Figure>& all_figures() {
    static const std::vector<Series> transfers{
        {"TN-WM", "basic"}, {"TN-Push", "transfer push"}, {"TN-Pull", "transfer pull"}};
    static const std::vector<Series> spaces{
        {"Pull", "basic"}, {"Push", "space push"}, {"Push-2", "space push2"}};
    static const std::vector<Series> queues{{"Socket", "socket"},
                                            {"Basic", "basic"},
                                            {"Batching", "batching"},
                                            {"Data Mover", "data mover"},
                                            {"Basic, events", "basic, events"},
                                            {"Batching, events", "batching, events"}};
    static const std::vector<Series> pools{{"Push-1", "basic"},
                                           {"Push-2(64)", "push2, pool 64"},
                                           {"Push-2(48)", "push2, pool 48"},
                                           {"Push-2(32)", "push2, pool 32"},
                                           {"Push-2(16)", "push2, pool 16"}};
    static const std::vector<Series> uncredited{{"SEND(64)", "no credit, pool 64"},
                                                {"SEND(48)", "no credit, pool 48"},
                                                {"SEND(32)", "no credit, pool 32"},
                                                {"SEND(16)", "no credit, pool 16"}};
    static const std::vector<Figure> list{
        {"6.1", "Throughput with different types of transfer notifications", Quantity::megabits,
         transfers},
        {"6.2", "Enqueue latency", Quantity::enqueue_us, transfers, 4, 2048},
        {"6.3",
         "Transfer notification ratio",
         Quantity::transfer_ratio,
         {transfers[1], transfers[2]}},
        {"6.1 empty", "Dequeues that answer EMPTY (section 6.1)", Quantity::empty_us, transfers, 4,
         2048},
        {"6.4", "Throughput of Push-1 and Push-2 data flow queues", Quantity::megabits, pools, 4,
         65536, false, true},
        {"6.4 no credit", "The same by SENDs that do not know of a receive", Quantity::megabits,
         uncredited, 4, 65536, false, true},
        {"6.4 retransmissions", "Of these, SENDs that found no receive, and were sent again",
         Quantity::retried_percent, uncredited},
        {"6.4 drops",
         "Datagrams that found no receive, and were lost",
         Quantity::dropped_percent,
         {{"UD(64)", "datagrams, pool 64"},
          {"UD(48)", "datagrams, pool 48"},
          {"UD(32)", "datagrams, pool 32"},
          {"UD(16)", "datagrams, pool 16"}},
         4,
         1024},
        {"6.2 dequeue",
         "Dequeues of Push-1 and Push-2 (section 6.2)",
         Quantity::dequeue_us,
         {pools[0], pools[1]},
         4,
         2048},
        {"6.2 empty",
         "The same that answer EMPTY",
         Quantity::empty_us,
         {pools[0], pools[1]},
         4,
         2048},
        {"6.5", "Throughput with different types of space notifications", Quantity::megabits,
         spaces},
        {"6.6", "Enqueue latency with different space notifications", Quantity::enqueue_us, spaces,
         4, 2048},
        {"6.7", "Space notification ratio", Quantity::space_ratio, spaces},
        {"6.8", "Dequeue latency with different space notifications", Quantity::dequeue_us, spaces,
         4, 2048},
        {"6.8 empty", "The same that answer EMPTY", Quantity::empty_us, spaces, 4, 2048},
        {"6.9", "Throughput of flow queues and socket baseline", Quantity::megabits, queues},
        {"table 6.1", "Throughput of flow queues and socket baseline (10 Gb/s)", Quantity::megabits,
         queues},
        {"6.10", "Enqueue latency of flow queues and socket baseline", Quantity::enqueue_us, queues,
         4, 2048},
        {"6.10 full", "Enqueues that answer FULL (section 6.1)", Quantity::full_us,
         std::vector<Series>(queues.begin() + 1, queues.end()), 4, 2048},
        {"6.11", "Throughput of flow queues and socket baseline (40 Gb/s)", Quantity::megabits,
         queues, 2048, 65536, true},
        {"table 6.2", "Throughput of flow queues and socket baseline (40 Gb/s)", Quantity::megabits,
         queues, 2048, 65536, true},
        {"6.12",
         "Transfer time of RDMA queues and socket baseline",
         Quantity::transfer_us,
         {{"Basic", "basic"}, {"Socket", "socket"}, {"RDMA write", "raw write"}}},
    };
    return list;
}

const Figure& figure_of(std::string_view id) {
    if (id.starts_with("figure ")) id.remove_prefix(7);
    for (const Figure& figure : all_figures()) {
        if (figure.id == id) return figure;
    }
    throw base::Error{base::ErrorCode::invalid_argument, "choose a figure", std::string{id},
                      "work 000 has no such figure or table in chapter 6",
                      "choose 6.1 to 6.12, table 6.1 or table 6.2"};
}

std::vector<std::size_t> sizes_of(const Figure& figure) {
    std::vector<std::size_t> sizes;
    std::copy_if(std::begin(figure_sizes), std::end(figure_sizes), std::back_inserter(sizes),
                 [&](std::size_t size) { return size >= figure.least && size <= figure.most; });
    return sizes;
}

}  // namespace millrace::bench
