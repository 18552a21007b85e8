// The findings of work 000, sections 6.1 to 6.4, with the rules by which we agree. See thesis.hpp.
#include <algorithm>

#include <fmt/format.h>

#include "thesis.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t small = 2048;  ///< the largest size of the work's latency figures
using Judgement = std::optional<Verdict>;

/// The ratio of two contestants, median over sizes, lies between `low` and `high`.
auto ratio_within(std::string_view above, std::string_view below, Quantity quantity, double low,
                  double high, std::size_t least = 4, std::size_t most = 65536) {
    return [=](const View& view) -> Judgement {
        const auto ratio = view.ratio(above, below, quantity, least, most);
        if (!ratio) return std::nullopt;
        return Verdict{*ratio >= low && *ratio <= high, fmt::format("{:.3g}", *ratio)};
    };
}

constexpr double any = 1e300;

Judgement throughputs_alike(const View& view) {
    const auto push = view.ratio("transfer push", "basic", Quantity::megabits);
    const auto pull = view.ratio("transfer pull", "basic", Quantity::megabits);
    if (!push || !pull) return std::nullopt;
    return Verdict{std::min(*push, *pull) >= 0.9 && std::max(*push, *pull) <= 1.1,
                   fmt::format("TN-Push {:.2f}, TN-Pull {:.2f} of TN-WM", *push, *pull)};
}

Judgement large_items_fill_the_link(const View& view) {
    if (view.link_megabits == 0) return std::nullopt;
    const auto large = view.typical("basic", Quantity::megabits, 16384);
    const auto little = view.get("basic", 64, Quantity::megabits);
    if (!large || !little) return std::nullopt;
    return Verdict{
        *large >= 0.85 * view.link_megabits && *little < 0.85 * view.link_megabits,
        fmt::format("{:.0f} % of the link from 16 KiB up, {:.0f} % at 64 B",
                    *large / view.link_megabits * 100, *little / view.link_megabits * 100)};
}

Judgement push_ratio_is_a_half(const View& view) {
    const auto ratio = view.typical("transfer push", Quantity::transfer_ratio, 4, small);
    if (!ratio) return std::nullopt;
    return Verdict{*ratio >= 0.35 && *ratio <= 0.65, fmt::format("{:.2f}", *ratio)};
}

Judgement push_ratio_falls(const View& view) {
    const auto small_items = view.typical("transfer push", Quantity::transfer_ratio, 4, small);
    const auto large_items = view.typical("transfer push", Quantity::transfer_ratio, 16384);
    if (!small_items || !large_items) return std::nullopt;
    return Verdict{
        *large_items <= 0.8 * *small_items,
        fmt::format("{:.2f} up to 2 KiB, {:.2f} from 16 KiB up", *small_items, *large_items)};
}

Judgement pull_ratio_beyond_one(const View& view) {
    const auto ratio = view.get("transfer pull", 65536, Quantity::transfer_ratio);
    if (!ratio) return std::nullopt;
    return Verdict{*ratio > 1, fmt::format("{:.2f} at 64 KiB", *ratio)};
}

Judgement small_pool_limits(const View& view) {
    double small_pool = 0;
    double large_pool = 0;
    for (const std::size_t size : sizes_of(figure_of("6.4"))) {
        small_pool =
            std::max(small_pool, view.get("push2, pool 16", size, Quantity::megabits).value_or(0));
        large_pool =
            std::max(large_pool, view.get("push2, pool 64", size, Quantity::megabits).value_or(0));
    }
    if (small_pool == 0 || large_pool == 0) return std::nullopt;
    return Verdict{small_pool <= 0.95 * large_pool,
                   fmt::format("peak {:.0f} Mb/s with 16, {:.0f} Mb/s with 64 receives", small_pool,
                               large_pool)};
}

Judgement pushes_of_space_are_many(const View& view) {
    const auto push = view.ratio("space push", "basic", Quantity::space_ratio);
    const auto push2 = view.ratio("space push2", "basic", Quantity::space_ratio);
    const auto pull = view.typical("basic", Quantity::space_ratio);
    if (!pull) return std::nullopt;
    if (!push || !push2) {
        const auto pushed = view.typical("space push", Quantity::space_ratio);
        if (!pushed) return std::nullopt;
        return Verdict{*pushed > 0, fmt::format("{:.4f} against {:.4f} per item", *pushed, *pull)};
    }
    return Verdict{std::min(*push, *push2) >= 5,
                   fmt::format("Push {:.1f}, Push-2 {:.1f} times Pull's {:.5f} per item", *push,
                               *push2, *pull)};
}

Judgement basic_below_socket(const View& view) {
    const auto ratio = view.ratio("basic, events", "socket", Quantity::enqueue_us, 4, 512);
    if (!ratio) return std::nullopt;
    return Verdict{*ratio > 1, fmt::format("an enqueue takes {:.2f} of a send", *ratio)};
}

Judgement mover_fills_the_link(const View& view) {
    if (view.link_megabits == 0) return std::nullopt;
    const auto little = view.get("data mover", 64, Quantity::megabits);
    const auto large = view.get("data mover", 65536, Quantity::megabits);
    if (!little || !large) return std::nullopt;
    return Verdict{*little >= 0.7 * *large,
                   fmt::format("{:.0f} Mb/s at 64 B, {:.0f} at 64 KiB", *little, *large)};
}

Judgement mover_fills_the_faster_link(const View& view) {
    if (view.link_megabits < 20'000) return std::nullopt;
    const auto at_4_kib = view.get("data mover", 4096, Quantity::megabits);
    if (!at_4_kib) return std::nullopt;
    return Verdict{*at_4_kib >= 0.9 * view.link_megabits, fmt::format("{:.0f} Mb/s", *at_4_kib)};
}

Judgement mover_enqueues_are_cheap(const View& view) {
    const auto mover = view.typical("data mover", Quantity::enqueue_us, 4, small);
    if (!mover) return std::nullopt;
    return Verdict{*mover < 0.5, fmt::format("{:.3f} us", *mover)};
}

Judgement queue_dequeues_are_cheap(const View& view) {
    const auto queue = view.typical("basic", Quantity::dequeue_us, 4, small);
    const auto socket = view.typical("socket", Quantity::dequeue_us, 4, small);
    if (!queue || !socket) return std::nullopt;
    return Verdict{*queue < 0.5 && *queue < *socket,
                   fmt::format("{:.3f} us, a recv {:.2f} us", *queue, *socket)};
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
    return Verdict{
        requests < 0.001 && calls < 0.001,
        fmt::format("at most {:.4f} requests and {:.4f} system calls per item", requests, calls)};
}

Judgement twice_a_raw_write(const View& view) {
    const auto ratio = view.ratio("basic", "raw write", Quantity::transfer_us, 4, 64);
    if (!ratio) return std::nullopt;
    return Verdict{*ratio >= 1.8 && *ratio <= 2.5, fmt::format("{:.2f} times", *ratio)};
}

}  // namespace

const std::vector<Finding>& all_findings() {
    static const std::vector<Finding> list{
        {"6.1", "6.1", "How transfers are told has a negligible effect on throughput",
         "median over all sizes of TN-Push and of TN-Pull to TN-WM between 0.9 and 1.1",
         throughputs_alike,
         "a request is executed by its poster: a notification costs the poster as much as "
         "an item",
         "posting and moving requests is software of the two ends here: a notification costs the "
         "poster's core what a NIC would do meanwhile"},
        {"6.1", "6.1", "Large items saturate the network, small ones are limited by the producer",
         "from 16 KiB up at least 85 % of the link, at 64 B less", large_items_fill_the_link},
        {"6.1", "6.2", "An enqueue takes slightly longer with TN-Push than with TN-WM",
         "median ratio up to 2 KiB between 1 and 1.5",
         ratio_within("transfer push", "basic", Quantity::enqueue_us, 1, 1.5, 4, small),
         "the notification is executed within the enqueue",
         "posting a request is most of an enqueue here, so a second one weighs more"},
        {"6.1", "6.2", "An enqueue takes as long with TN-Pull as with TN-WM",
         "median ratio up to 2 KiB between 0.8 and 1.25",
         ratio_within("transfer pull", "basic", Quantity::enqueue_us, 0.8, 1.25, 4, small),
         "TN-Pull signals every WRITE and polls its completion, TN-WM a few in each ring",
         "TN-Pull signals every WRITE and polls its completion, TN-WM a few in each ring"},
        {"6.1", "6.3", "TN-Push sends about one notification for two small items",
         "median ratio up to 2 KiB between 0.35 and 0.65", push_ratio_is_a_half},
        {"6.1", "6.3", "TN-Push sends fewer notifications per item where items are large",
         "from 16 KiB up at most 0.8 of that up to 2 KiB", push_ratio_falls},
        {"6.1", "6.3", "TN-Pull takes more notifications than TN-Push",
         "median ratio of the two above 1",
         ratio_within("transfer pull", "transfer push", Quantity::transfer_ratio, 1, any)},
        {"6.1", "6.3", "TN-Pull takes more than one notification per item where items are largest",
         "above 1 at 64 KiB", pull_ratio_beyond_one},
        {"6.1", "6.1", "A dequeue takes longer with TN-Pull than with TN-WM",
         "median ratio up to 2 KiB at least 2",
         ratio_within("transfer pull", "basic", Quantity::dequeue_us, 2, any, 4, small)},
        {"6.2", "6.4", "Push-1 and Push-2 with enough receives have similar throughput",
         "median ratio over all sizes between 0.8 and 1.25",
         ratio_within("push2, pool 64", "basic", Quantity::megabits, 0.8, 1.25),
         "a SEND must find its receive and leave a completion: the producer's core does that too"},
        {"6.2", "6.4", "Too few receives limit the peak throughput",
         "the best of all sizes with 16 receives at most 0.95 of that with 64", small_pool_limits,
         "a request is done before the next is posted, and the consumer posts receives meanwhile",
         "the producer never sends what has no receive (docs/design/flow-points.md), so nothing is "
         "sent twice, "
         "and 16 large items are more than the link holds in flight"},
        {"6.2", "6.4", "A dequeue takes longer with Push-2 than with Push-1",
         "median ratio up to 2 KiB above 1",
         ratio_within("push2, pool 64", "basic", Quantity::dequeue_us, 1, any, 4, small)},
        {"6.3", "6.6", "An enqueue takes longer where space comes by Push-2 than by Pull",
         "median ratio up to 2 KiB above 1",
         ratio_within("space push2", "basic", Quantity::enqueue_us, 1, any, 4, small)},
        {"6.3", "6.5", "Throughput is about the same with Push and Pull space notifications",
         "median ratio over all sizes between 0.9 and 1.1",
         ratio_within("space push", "basic", Quantity::megabits, 0.9, 1.1)},
        {"6.3", "6.7", "Pushed space takes many more notifications than pulled",
         "median over all sizes of either push to pull at least 5", pushes_of_space_are_many},
        {"6.3", "6.8", "A dequeue takes longer with Push than with Pull space notifications",
         "median ratio up to 2 KiB above 1",
         ratio_within("space push", "basic", Quantity::dequeue_us, 1, any, 4, small)},
        {"6.3", "6.8", "A dequeue takes longer with Push-2 than with Pull space notifications",
         "median ratio up to 2 KiB above 1",
         ratio_within("space push2", "basic", Quantity::dequeue_us, 1, any, 4, small)},
        {"6.4", "6.10", "An enqueue of the basic queue takes longer than a socket's send",
         "with completions by events, median ratio up to 512 B above 1", basic_below_socket},
        {"6.4", "6.10", "An enqueue of the batching queue takes longer than a socket's send",
         "with completions by events, median ratio up to 512 B above 1",
         ratio_within("batching, events", "socket", Quantity::enqueue_us, 1, any, 4, 512)},
        {"6.4", "6.10",
         "Polling the completion queue would save the enqueue what the kernel costs it",
         "median ratio up to 512 B of events to polling at least 1.5",
         ratio_within("basic, events", "basic", Quantity::enqueue_us, 1.5, any, 4, 512)},
        {"6.4", "6.10", "An enqueue takes less than 0.5 us with the data mover",
         "median up to 2 KiB below that", mover_enqueues_are_cheap},
        {"6.4", "table 6.1", "Batching moves 2.2 to 4.7 times as many small items as Basic",
         "median ratio up to 1 KiB at least 2",
         ratio_within("batching", "basic", Quantity::megabits, 2, any, 4, 1024)},
        {"6.4", "table 6.1", "The data mover moves more small items than Batching, by far",
         "median ratio up to 512 B at least 3",
         ratio_within("data mover", "batching", Quantity::megabits, 3, any, 4, 512)},
        {"6.4", "table 6.1", "The data mover moves more small items than a socket, by far",
         "median ratio up to 512 B at least 3",
         ratio_within("data mover", "socket", Quantity::megabits, 3, any, 4, 512)},
        {"6.4", "table 6.1", "A socket moves more small items than Batching",
         "with completions by events, median ratio up to 512 B above 1",
         ratio_within("socket", "batching, events", Quantity::megabits, 1, any, 4, 512)},
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
         "median ratio up to 64 B between 1.8 and 2.5", twice_a_raw_write,
         "an item is one WRITE, mark included, and enqueue and dequeue add less to it than the way "
         "between two cores takes",
         "an item is one WRITE, mark included, and the link's latency outweighs what enqueue and "
         "dequeue add"},
        {"6.4.1", "6.12", "An item takes about half as long through the queue as over a socket",
         "median ratio up to 64 B of socket to queue at least 1.5",
         ratio_within("socket", "basic", Quantity::transfer_us, 1.5, any, 4, 64)},
    };
    return list;
}

}  // namespace millrace::bench
