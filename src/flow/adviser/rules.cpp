// See rules.hpp. A structure follows from what a program needs (docs/structures.md); a point from
// what was measured, which stands next to it.
#include "rules.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace millrace::flow::detail {
namespace {

using R = Requirements;

/// Of the cells at a reader.
constexpr std::uint64_t useful_latest_bytes = 1U << 20;
constexpr std::uint32_t few_values = 64;

constexpr std::array all_contradictions{
    Contradiction{[](const R& r) { return r.late_readers && r.keep != Keep::every; },
                  "late_readers", "keep",
                  "a reader that comes late and has every item cannot be one that has some of them",
                  "leave one of them out: flow::Log keeps every item, LatestReader the newest"},
    Contradiction{[](const R& r) {
                      return r.late_readers && r.consumers > 1 && r.delivery != Delivery::everyone;
                  },
                  "late_readers", "delivery",
                  "every reader of a log takes every item, at its own pace",
                  "choose Delivery::everyone, or leave late_readers out"},
    Contradiction{[](const R& r) { return r.late_readers && r.levels > 1; }, "late_readers",
                  "levels", "a log has one sequence, which no item overtakes another one in",
                  "make a log of each level, or leave one of them out"},
    Contradiction{[](const R& r) { return r.in_order && r.levels > 1; }, "in_order", "levels",
                  "an urgent item overtakes others, which one order of all does not allow",
                  "leave one of them out"},
    Contradiction{[](const R& r) { return r.in_order && r.keep != Keep::every; }, "in_order",
                  "keep", "what is folded, or passed over, has no place in an order of items",
                  "choose Keep::every and fold what flow::Merge hands out, or leave in_order out"},
    Contradiction{[](const R& r) { return r.in_order && r.consumers_change; }, "in_order",
                  "consumers_change",
                  "a KeyedFanIn, which lets consumers join and leave, merges nothing",
                  "leave one of them out"},
    Contradiction{[](const R& r) { return r.levels > 1 && r.keep != Keep::every; }, "levels",
                  "keep", "what is folded by key is not queued by urgency",
                  "leave one of them out, or give each level a structure of its own"},
    Contradiction{[](const R& r) { return r.levels > 1 && r.consumers > 1; }, "levels", "consumers",
                  "a PriorityProducer sends to one FanIn",
                  "give each consumer a PriorityProducer of its own, each with consumers = 1"},
    Contradiction{[](const R& r) { return r.levels > 1 && r.consumers_change; }, "levels",
                  "consumers_change", "a PriorityProducer sends to one FanIn",
                  "leave one of them out"},
    Contradiction{
        [](const R& r) {
            return r.keep != Keep::every && r.consumers > 1 && r.delivery == Delivery::share;
        },
        "keep", "delivery", "what items of a key come to would be spread over all consumers",
        "choose Delivery::by_key or Delivery::everyone"},
    Contradiction{[](const R& r) {
                      return r.keep == Keep::newest && r.keys == 0 && r.consumers > 1 &&
                             r.delivery == Delivery::by_key;
                  },
                  "delivery", "keys", "without keys there is one newest item, and no key to go by",
                  "say how many keys there are, or choose Delivery::everyone"},
    Contradiction{[](const R& r) { return r.may_share_ring && r.levels > 1; }, "may_share_ring",
                  "levels", "a shared ring has one order, which nothing overtakes another one in",
                  "leave one of them out: a FanIn has levels"},
    Contradiction{[](const R& r) { return r.may_share_ring && r.in_order; }, "may_share_ring",
                  "in_order", "a shared ring has the order in which producers took their places",
                  "leave one of them out: a Merge has a ring for each producer"},
    Contradiction{[](const R& r) { return r.may_share_ring && r.selective; }, "may_share_ring",
                  "selective", "a SharedProducer evaluates no filter",
                  "leave one of them out: a FanIn's producers do"},
    Contradiction{[](const R& r) { return r.selective && r.keep != Keep::every; }, "selective",
                  "keep", "a filter looks at items, not at what they come to",
                  "choose Keep::every, or leave out before folding what nobody wants"},
    Contradiction{[](const R& r) { return r.selective && r.levels > 1; }, "selective", "levels",
                  "a PriorityProducer evaluates no filter", "leave one of them out"},
    Contradiction{[](const R& r) {
                      return r.consumers_change && r.keep != Keep::every &&
                             r.delivery != Delivery::everyone;
                  },
                  "consumers_change", "keep",
                  "a key that moves to another consumer would leave a part of its values behind",
                  "choose Keep::every and fold at the consumers, which hear when a key moves"},
    Contradiction{[](const R& r) {
                      return r.memory_bytes != 0 &&
                             r.memory_bytes / rings_of_an_end(r) < 2 * slot_bytes(r.item_bytes);
                  },
                  "memory_bytes", "item_bytes",
                  "each ring at that end, one for each end that it talks to, holds two items",
                  "allow more memory, have fewer ends, or send smaller items"},
};

constexpr std::array all_structures{
    StructureRule{Structure::log, [](const R& r) { return r.late_readers; },
                  "Readers come late or resume, so what was sent is kept: a Log, which each reader "
                  "reads from where it was, at its own pace."},
    StructureRule{
        Structure::priorities, [](const R& r) { return r.levels > 1; },
        "Items are of different urgency: each level has a queue of its own, and the FanIn "
        "takes nothing from one while a more urgent one has something."},
    StructureRule{
        Structure::windows, [](const R& r) { return r.keep == Keep::windows; },
        "Only what the values of a window come to is wanted: the producer folds them, and "
        "a result travels when its window ends."},
    StructureRule{Structure::aggregation,
                  [](const R& r) { return r.keep == Keep::folded && r.keys != 0; },
                  "Only what the values of each key come to is wanted: the producer folds them "
                  "before anything travels."},
    StructureRule{Structure::reduction,
                  [](const R& r) { return r.keep == Keep::folded && r.keys == 0; },
                  "Only what has come together is wanted, without keys: flow::reduce folds it at "
                  "the consumer, item by item, where it lies."},
    StructureRule{Structure::latest, fits_latest,
                  "There are few values of which only the newest counts: they lie in each "
                  "consumer's memory, a producer overwrites them there, and never waits."},
    StructureRule{Structure::reduction,
                  [](const R& r) { return r.keep == Keep::newest && r.keys == 0; },
                  "Only the newest item is wanted, and the consumer can take all of them: "
                  "flow::take_last passes over the others."},
    StructureRule{
        Structure::conflation, [](const R& r) { return r.keep == Keep::newest; },
        "There are many keys, of which only the newest item counts: the producer keeps it "
        "back, and overwrites it, while the consumer has no room."},
    StructureRule{Structure::replication,
                  [](const R& r) {
                      return r.delivery == Delivery::everyone &&
                             (r.consumers > 1 || r.consumers_change);
                  },
                  "Every consumer has every item: a Replicator sends it when all have room."},
    StructureRule{Structure::keyed_shuffle, [](const R& r) { return r.consumers_change; },
                  "Consumers join and leave while it runs: a KeyedFanOut moves the keys of those "
                  "that change, and no others, and tells both sides at which item."},
    StructureRule{Structure::shuffle, [](const R& r) { return r.consumers > 1 && r.producers > 1; },
                  "Several producers send to several consumers: each producer has a FanOut, each "
                  "consumer a FanIn, and all say the same of a key."},
    StructureRule{Structure::fan_out, [](const R& r) { return r.consumers > 1; },
                  "Consumers share the items of one producer: a FanOut has a queue to each."},
    StructureRule{
        Structure::merge, [](const R& r) { return r.in_order && r.producers > 1; },
        "The items of several producers come in one order: a Merge hands out the smallest "
        "that is in front, once nothing smaller can come."},
    StructureRule{Structure::shared_fan_in, shares_ring,
                  "Very many producers, few of them busy, trust each other: they share one ring, "
                  "and memory goes with the load."},
    StructureRule{Structure::fan_in, [](const R& r) { return r.producers > 1; },
                  "Several producers send to one consumer: a FanIn has a ring for each, so that "
                  "none can hold up, or write into, another one's."},
    StructureRule{Structure::queue, [](const R&) { return true; },
                  "One producer and one consumer, and every item counts: a queue."},
};

using Q = PointQuestion;
// Measured: by `millrace tune` on two cores of an AMD EPYC, soft device in mode fast, where items
// are stored; in minutes in which an item takes 60 ns from one core to the other, and in minutes in
// which it takes 260 (docs/performance/flow.md, "The adviser"). Over a link: `millrace bench flow
// --figure map --mode shaped:10g,latency=1us` (docs/performance/work-000-flow.md).
constexpr std::size_t large = 1024;       // bytes, from which on marks cost more than counters
constexpr std::size_t very_large = 8192;  // from which on a batch gains nothing
bool streams(const Q& q) { return q.load.burst == 0; }
constexpr std::array all_points{
    PointRule{[](const Q& q) { return q.other_hosts && streams(q) && q.spare_core; },
              "push1/watermark/pull+dynamic+mover",
              "Over a link of 10 Gb/s a data mover fills 86 % of it with items of 64 B, and an "
              "enqueue takes 0.03 us (work 000, table 6.1, repeated)."},
    PointRule{[](const Q& q) {
                  return q.other_hosts && streams(q) && q.load.item_bytes < very_large &&
                         !q.load.consumer_is_busy;
              },
              "push1/watermark/pull+dynamic",
              "Over a link of 10 Gb/s batches move 8 times as many small items as single ones, and "
              "the consumer posts nothing (work 000, table 6.1, repeated)."},
    PointRule{
        [](const Q& q) { return q.other_hosts && q.load.consumer_is_busy; }, "push1/watermark/pull",
        "A consumer that has other work posts nothing and asks for nothing (work 000, section "
        "6.3; figure 6.8 repeated)."},
    PointRule{
        [](const Q& q) { return q.other_hosts; }, "push1/watermark/push",
        "One WRITE for an item, nothing to ask, and credit comes by itself: an item takes 1.4 "
        "times a raw WRITE over a link of 10 Gb/s (work 000, figure 6.12, repeated)."},
    PointRule{[](const Q& q) {
                  return streams(q) && !q.load.producer_is_busy && q.load.item_bytes < very_large;
              },
              "push1/push/push+fixed",
              "Items are stored side by side, without marks, and told of by 16: 0.99 of the best "
              "point with 64 B and 0.88 with 4 KiB, and the best of all in minutes in which lines "
              "took long, when the default had 0.54 and 0.75."},
    PointRule{[](const Q& q) { return q.load.item_bytes >= large; }, "push1/push/push",
              "Without marks, items of whole cache lines are stored side by side: 0.92 to 1 of the "
              "best point with 4 and 64 KiB, of which the default had 0.68 to 1."},
    PointRule{[](const Q&) { return true; }, "push1/watermark/push",
              "An item and its mark are one store into the consumer's ring, and nothing is asked: "
              "0.88 to 1 of the best point with items of 8 and 64 B that come alone, in bursts, or "
              "from a busy producer."},
};

}  // namespace

std::span<const Contradiction> contradictions() noexcept { return all_contradictions; }
std::span<const StructureRule> structure_rules() noexcept { return all_structures; }
std::span<const PointRule> point_rules() noexcept { return all_points; }

std::uint64_t rings_of_an_end(const Requirements& wanted) noexcept {
    if (shares_ring(wanted)) return 1;
    return std::uint64_t{std::max(wanted.producers, wanted.consumers)} * wanted.levels;
}

bool shares_ring(const Requirements& wanted) noexcept {
    return wanted.may_share_ring && wanted.producers > 1 && wanted.consumers == 1 &&
           wanted.keep == Keep::every && !wanted.late_readers && !wanted.consumers_change &&
           wanted.levels == 1 && !wanted.in_order;
}

bool fits_latest(const Requirements& wanted) noexcept {
    if (wanted.keep != Keep::newest) return false;
    // Without keys, a consumer that has the time takes all, and is woken by each.
    if (wanted.keys == 0) return wanted.consumer_is_busy;
    if (wanted.keys > few_values) return false;
    constexpr std::uint64_t places = 4;
    const std::uint64_t bytes = places * wanted.item_bytes * wanted.keys * wanted.producers;
    const std::uint64_t most = wanted.memory_bytes != 0 ? wanted.memory_bytes : useful_latest_bytes;
    return bytes <= most && wanted.delivery != Delivery::by_key;
}

}  // namespace millrace::flow::detail
