// The findings of work 000, sections 6.1 to 6.4, with the rules by which we agree. See thesis.hpp.
#include <algorithm>

#include <fmt/format.h>

#include "studies/works/quotations.hpp"
#include "thesis.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t small = 2048;  ///< the largest size of the work's latency figures
using Judgement = std::optional<StudyVerdict>;

/// The ratio of two contestants, median over sizes.
FlowJudge ratio_within(std::string_view above, std::string_view below, Quantity quantity,
                       Range allowed, std::size_t least = 4, std::size_t most = 65536) {
    return [=](const View& view) -> Judgement {
        const auto ratio = view.ratio(above, below, quantity, least, most);
        return ratio ? std::optional{judge_ratio(*ratio, allowed)} : std::nullopt;
    };
}

/// Throughput up to `most` bytes, as a factor, to that of table 6.1.
FlowJudge factor_of_table(std::string_view above, std::string_view below, std::string_view column,
                          std::string_view below_column, std::size_t most) {
    return [=](const View& view) -> Judgement {
        const auto ratio = view.ratio(above, below, Quantity::megabits, 4, most);
        if (!ratio) return std::nullopt;
        return judge_factor(*ratio, printed_ratio(column, below_column, most));
    };
}

/// A contestant's quantity, median over sizes.
FlowJudge typical_within(std::string_view contestant, Quantity quantity, Range allowed,
                         std::size_t least = 4, std::size_t most = 65536) {
    return [=](const View& view) -> Judgement {
        const auto value = view.typical(contestant, quantity, least, most);
        return value ? std::optional{judge_value(*value, allowed)} : std::nullopt;
    };
}

/// Of two verdicts that a claim needs both.
StudyVerdict both(const StudyVerdict& one, std::string_view of_one, const StudyVerdict& other,
                  std::string_view of_other) {
    return {.agrees = one.agrees && other.agrees,
            .measured = fmt::format("{} {}, {} {}", of_one, one.measured, of_other, other.measured),
            .stronger = !(one.agrees && other.agrees) && (one.agrees || one.stronger) &&
                        (other.agrees || other.stronger)};
}

Judgement throughputs_alike(const View& view) {
    const auto push = view.ratio("transfer push", "basic", Quantity::megabits);
    const auto pull = view.ratio("transfer pull", "basic", Quantity::megabits);
    if (!push || !pull) return std::nullopt;
    constexpr Range alike{0.9, 1.1};
    return both(judge_ratio(*push, alike), "TN-Push", judge_ratio(*pull, alike), "TN-Pull");
}

/// A part of the link, of each run.
Summary part_of(const View& view, const Summary& megabits) {
    Summary part = megabits;
    for (double* const one : {&part.median, &part.median_low, &part.median_high}) {
        *one /= view.link_megabits;
    }
    return part;
}

Judgement large_items_fill_the_link(const View& view) {
    if (view.link_megabits == 0) return std::nullopt;
    const auto large = view.typical("basic", Quantity::megabits, 16384);
    const auto little = view.typical("basic", Quantity::megabits, 64, 64);
    if (!large || !little) return std::nullopt;
    return both(judge_value(part_of(view, *large), {0.85}), "from 16 KiB up",
                judge_value(part_of(view, *little), {0, 0.85}), "at 64 B");
}

Judgement push_ratio_falls(const View& view) {
    const auto small_items = view.typical("transfer push", Quantity::transfer_ratio, 4, small);
    const auto large_items = view.typical("transfer push", Quantity::transfer_ratio, 16384);
    if (!small_items || !large_items) return std::nullopt;
    StudyVerdict verdict = judge_value(*large_items, {0, 0.8 * small_items->median});
    verdict.measured += fmt::format(" from 16 KiB up, {} up to 2 KiB", told(*small_items));
    return verdict;
}

Judgement small_pool_limits(const View& view) {
    std::optional<Summary> small_pool;
    std::optional<Summary> large_pool;
    for (const std::size_t size : sizes_of(figure_of("6.4"))) {
        const auto keep_best = [&](std::optional<Summary>& best, std::string_view contestant) {
            const auto value = view.typical(contestant, Quantity::megabits, size, size);
            if (value && (!best || value->median > best->median)) best = value;
        };
        keep_best(small_pool, "push2, pool 16");
        keep_best(large_pool, "push2, pool 64");
    }
    if (!small_pool || !large_pool) return std::nullopt;
    StudyVerdict verdict = judge_value(*small_pool, {0, 0.95 * large_pool->median});
    verdict.measured += fmt::format(" Mb/s with 16, {} with 64 receives", told(*large_pool));
    return verdict;
}

Judgement throughput_varies(const View& view) {
    std::optional<Summary> most;
    std::size_t where = 0;
    for (const std::size_t size : sizes_of(figure_of("6.4 no credit"))) {
        const auto runs = view.typical("no credit, pool 16", Quantity::megabits, size, size);
        if (!runs || runs->rounds < 2 || runs->least == 0) continue;
        if (most && runs->most / runs->least <= most->most / most->least) continue;
        most = runs;
        where = size;
    }
    if (!most) return std::nullopt;  // one run does not vary
    const double spread = most->most / most->least;
    return StudyVerdict{
        .agrees = spread >= 1.02,
        .measured = fmt::format("{:.3g} at {} B, in {} runs", spread, where, most->rounds)};
}

Judgement pushes_of_space_are_many(const View& view) {
    const auto push = view.ratio("space push", "basic", Quantity::space_ratio);
    const auto push2 = view.ratio("space push2", "basic", Quantity::space_ratio);
    const auto pull = view.typical("basic", Quantity::space_ratio);
    if (!pull) return std::nullopt;
    if (!push || !push2) {  // a pull that asks for no space at all
        const auto pushed = view.typical("space push", Quantity::space_ratio);
        if (!pushed) return std::nullopt;
        StudyVerdict verdict = judge_value(*pushed, {pull->median_high});
        verdict.measured += fmt::format(" against {} per item", told(*pull));
        return verdict;
    }
    return both(judge_ratio(*push, {5}), "Push", judge_ratio(*push2, {5}), "Push-2");
}

Judgement mover_fills_the_link(const View& view) {
    if (view.link_megabits == 0) return std::nullopt;
    const auto little = view.typical("data mover", Quantity::megabits, 64, 64);
    const auto large = view.typical("data mover", Quantity::megabits, 65536);
    if (!little || !large) return std::nullopt;
    StudyVerdict verdict = judge_value(*little, {0.7 * large->median});
    verdict.measured += fmt::format(" Mb/s at 64 B, {} at 64 KiB", told(*large));
    return verdict;
}

Judgement mover_fills_the_faster_link(const View& view) {
    if (view.link_megabits < 20'000) return std::nullopt;
    const auto at_4_kib = view.typical("data mover", Quantity::megabits, 4096, 4096);
    if (!at_4_kib) return std::nullopt;
    return judge_value(part_of(view, *at_4_kib), {0.9});
}

Judgement queue_dequeues_are_cheap(const View& view) {
    const auto queue = view.typical("basic", Quantity::dequeue_us, 4, small);
    const auto socket = view.typical("socket", Quantity::dequeue_us, 4, small);
    if (!queue || !socket) return std::nullopt;
    StudyVerdict verdict =
        judge_value(*queue, {0, std::min(quoted("000.dequeue_of_queues"), socket->median)});
    verdict.measured += fmt::format(" us, a recv {} us", told(*socket));
    return verdict;
}

Judgement consumer_is_oblivious(const View& view) {
    double requests = 0;
    double calls = 0;
    bool found = false;
    for (const std::size_t size : sizes_of(figure_of("6.9"))) {
        const Point* point = view.measurements.find(view.mode, "basic", size);
        if (point == nullptr) continue;
        for (const StreamResult& run : point->streams) {
            found = true;
            requests = std::max(requests, run.consumer_requests);
            calls = std::max(calls, run.consumer_calls);
        }
    }
    if (!found) return std::nullopt;
    return StudyVerdict{
        .agrees = requests < 0.001 && calls < 0.001,
        .measured = fmt::format("at most {:.4f} requests and {:.4f} system calls per item",
                                requests, calls)};
}

}  // namespace

const std::vector<Finding>& all_findings() {
    static const std::vector<Finding> list{
        {"6.1", "6.1", "How transfers are told has a negligible effect on throughput",
         "median over all sizes of TN-Push and of TN-Pull to TN-WM between 0.9 and 1.1",
         throughputs_alike},
        {"6.1", "6.1", "Large items saturate the network, small ones are limited by the producer",
         "from 16 KiB up at least 85 % of the link, at 64 B less", large_items_fill_the_link},
        {"6.1", "6.2", "An enqueue takes slightly longer with TN-Push than with TN-WM",
         "median ratio up to 2 KiB between 1 and 1.5",
         ratio_within("transfer push", "basic", Quantity::enqueue_us, {1, 1.5}, 4, small)},
        {"6.1", "6.2", "An enqueue takes as long with TN-Pull as with TN-WM",
         "median ratio up to 2 KiB between 0.8 and 1.25",
         ratio_within("transfer pull", "basic", Quantity::enqueue_us, {0.8, 1.25}, 4, small)},
        {"6.1", "6.3", "TN-Push sends about one notification for two small items",
         "median up to 2 KiB within a factor of 1.5 of 0.5",
         typical_within("transfer push", Quantity::transfer_ratio,
                        {quoted("000.push_transfer_ratio") / judged_tolerance,
                         quoted("000.push_transfer_ratio") * judged_tolerance},
                        4, small)},
        {"6.1", "6.3", "TN-Push sends fewer notifications per item where items are large",
         "from 16 KiB up at most 0.8 of that up to 2 KiB", push_ratio_falls},
        {"6.1", "6.3", "TN-Pull takes more notifications than TN-Push",
         "median ratio of the two above 1",
         ratio_within("transfer pull", "transfer push", Quantity::transfer_ratio, {1})},
        {"6.1", "6.3", "TN-Pull takes more than one notification per item where items are largest",
         "above 1 at 64 KiB",
         typical_within("transfer pull", Quantity::transfer_ratio,
                        {quoted("000.pull_transfer_ratio")}, 65536)},
        {"6.1", "6.1", "A dequeue takes longer with TN-Pull than with TN-WM",
         "median ratio up to 2 KiB at least 2",
         ratio_within("transfer pull", "basic", Quantity::dequeue_us, {2}, 4, small)},
        {"6.1", "6.1 empty",
         "A dequeue that answers EMPTY takes longer with TN-Pull than with TN-WM",
         "median ratio up to 2 KiB at least 2",
         ratio_within("transfer pull", "basic", Quantity::empty_us, {2}, 4, small)},
        {"6.1", "6.1 empty", "... and than with TN-Push", "median ratio up to 2 KiB at least 2",
         ratio_within("transfer pull", "transfer push", Quantity::empty_us, {2}, 4, small)},
        {"6.2", "6.4", "Push-1 and Push-2 with enough receives have similar throughput",
         "median ratio over all sizes between 0.8 and 1.25",
         ratio_within("push2, pool 64", "basic", Quantity::megabits, {0.8, 1.25})},
        {"6.2", "6.4", "Too few receives limit the peak throughput",
         "the best of all sizes with 16 receives at most 0.95 of that with 64", small_pool_limits},
        {"6.2", "6.4", "A dequeue takes longer with Push-2 than with Push-1",
         "median ratio up to 2 KiB above 1",
         ratio_within("push2, pool 64", "basic", Quantity::dequeue_us, {1}, 4, small)},
        {"6.2", "6.2 empty", "A dequeue that answers EMPTY takes longer with Push-2, too",
         "median ratio up to 2 KiB above 1",
         ratio_within("push2, pool 64", "basic", Quantity::empty_us, {1}, 4, small)},
        {"6.2", "6.4 retransmissions",
         "Sends that find no receive are dropped and sent again: over RC, with 16 receives",
         "median over all sizes above 0.1 % of the sends",
         typical_within("no credit, pool 16", Quantity::retried_percent, {0.1})},
        {"6.2", "6.4 drops", "... of datagrams, which nobody sends again",
         "median over all sizes above 0.1 % of the sends",
         typical_within("datagrams, pool 16", Quantity::dropped_percent, {0.1}, 4, 1024)},
        {"6.2", "6.4 no credit", "... and throughput varies, where 16 receives are too few",
         "the most of the runs at least 1.02 times the least, at the size where it is most",
         throughput_varies},
        {"6.3", "6.6", "An enqueue takes longer where space comes by Push-2 than by Pull",
         "median ratio up to 2 KiB above 1",
         ratio_within("space push2", "basic", Quantity::enqueue_us, {1}, 4, small)},
        {"6.3", "6.5", "Throughput is about the same with Push and Pull space notifications",
         "median ratio over all sizes between 0.9 and 1.1",
         ratio_within("space push", "basic", Quantity::megabits, {0.9, 1.1})},
        {"6.3", "6.7", "Pushed space takes many more notifications than pulled",
         "median over all sizes of either push to pull at least 5", pushes_of_space_are_many},
        {"6.3", "6.8", "A dequeue takes longer with Push than with Pull space notifications",
         "median ratio up to 2 KiB above 1",
         ratio_within("space push", "basic", Quantity::dequeue_us, {1}, 4, small)},
        {"6.3", "6.8", "A dequeue takes longer with Push-2 than with Pull space notifications",
         "median ratio up to 2 KiB above 1",
         ratio_within("space push2", "basic", Quantity::dequeue_us, {1}, 4, small)},
        {"6.4", "6.10", "An enqueue of the basic queue takes longer than a socket's send",
         "with completions by events, median ratio up to 512 B above 1",
         ratio_within("basic, events", "socket", Quantity::enqueue_us, {1}, 4, 512)},
        {"6.4", "6.10", "An enqueue of the batching queue takes longer than a socket's send",
         "with completions by events, median ratio up to 512 B above 1",
         ratio_within("batching, events", "socket", Quantity::enqueue_us, {1}, 4, 512)},
        {"6.4", "6.10",
         "Polling the completion queue would save the enqueue what the kernel costs it",
         "median ratio up to 512 B of events to polling at least 1.5",
         ratio_within("basic, events", "basic", Quantity::enqueue_us, {1.5}, 4, 512)},
        {"6.4", "6.10", "An enqueue takes less than 0.5 us with the data mover",
         "median up to 2 KiB below that",
         typical_within("data mover", Quantity::enqueue_us, {0, quoted("000.enqueue_of_mover")}, 4,
                        small)},
        {"6.4", "table 6.1", "Batching moves 2.75 to 4.67 times as many small items as Basic",
         "median ratio up to 1 KiB within a factor of 1.5 of the table's",
         factor_of_table("batching", "basic", "Batching", "Basic", 1024)},
        {"6.4", "table 6.1", "The data mover moves more small items than Batching, by far",
         "median ratio up to 512 B within a factor of 1.5 of the table's",
         factor_of_table("data mover", "batching", "Data Mover", "Batching", 512)},
        {"6.4", "table 6.1", "The data mover moves more small items than a socket, by far",
         "median ratio up to 512 B within a factor of 1.5 of the table's",
         factor_of_table("data mover", "socket", "Data Mover", "Socket", 512)},
        {"6.4", "table 6.1", "A socket moves more small items than Batching",
         "with completions by events, median ratio up to 512 B within a factor of 1.5 of the "
         "table's",
         factor_of_table("socket", "batching, events", "Socket", "Batching", 512)},
        {"6.4", "6.9", "The data mover comes near the network's rate with items of 32 to 64 bytes",
         "at 64 B at least 0.7 of what it reaches at 64 KiB", mover_fills_the_link},
        {"6.4", "table 6.2", "The data mover saturates 40 Gb/s from 4 KiB up",
         "at 4 KiB at least 0.9 of the link", mover_fills_the_faster_link},
        {"6.4", "6.9", "A dequeue of the queues takes less than 0.5 us, and less than a recv",
         "median up to 2 KiB below both", queue_dequeues_are_cheap},
        {"6.4", "6.9", "The consumer makes no RDMA operation and no system call",
         "less than 1 request (it wakes a producer that sleeps) and 1 system call per 1000 items",
         consumer_is_oblivious},
        {"6.4.1", "6.12", "An item takes a little more than twice as long as a raw RDMA write",
         "median ratio up to 64 B between 1.8 and 2.5",
         ratio_within("basic", "raw write", Quantity::transfer_us, {1.8, 2.5}, 4, 64)},
        {"6.4.1", "6.12", "An item takes about half as long through the queue as over a socket",
         "median ratio up to 64 B of socket to queue between 1.5 and 3",
         ratio_within("socket", "basic", Quantity::transfer_us, {1.5, 3}, 4, 64)},
    };
    return list;
}

}  // namespace millrace::bench
