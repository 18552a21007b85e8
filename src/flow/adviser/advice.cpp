// From requirements to a structure, its point and its options.
#include "millrace/flow/advice.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "millrace/ring/design_name.hpp"
#include "rules.hpp"

namespace millrace::flow {
namespace {

using ring::RingOptions;

bool sends_to_everyone(const Requirements& wanted) {
    return wanted.delivery == Delivery::everyone &&
           (wanted.consumers > 1 || wanted.consumers_change);
}

/// What has the queues at each end.
std::string sender_of(const Requirements& wanted) {
    if (wanted.levels > 1) return "PriorityProducer<Item, D>";
    if (sends_to_everyone(wanted)) return "Replicator<Item, D>";
    if (wanted.consumers_change) return "KeyedFanOut<Item, D>";
    return wanted.consumers > 1 ? "FanOut<Item, D>" : "Producer<Item, D>";
}
std::string receiver_of(const Requirements& wanted) {
    if (wanted.consumers_change && !sends_to_everyone(wanted)) return "KeyedFanIn<Item, D>";
    if (wanted.producers > 1 && wanted.in_order) return "Merge<Item, key, NoHeartbeats{}, D>";
    return wanted.producers > 1 || wanted.levels > 1 ? "FanIn<Item, D>" : "Consumer<Item, D>";
}

void name_ends(const Requirements& wanted, Advice& advice) {
    const std::string sender = sender_of(wanted);
    advice.producer = sender;
    advice.consumer = receiver_of(wanted);
    switch (advice.structure) {
        case Structure::latest:
            advice.producer = "LatestWriter<Item>";
            advice.consumer = "LatestReader<Item>";
            break;
        case Structure::log:
            advice.consumer = "LogReader<Item>";
            if (wanted.producers == 1) {
                advice.producer = "Log<Item>";
            } else {
                advice.producer = "Producer<Item, D>";
                advice.between =
                    fmt::format("{}, Log<Item>", advice.consumer = receiver_of(wanted));
                advice.consumer = "LogReader<Item>";
            }
            break;
        case Structure::shared_fan_in:
            advice.producer = "SharedProducer<Item>";
            advice.consumer = "SharedFanIn<Item>";
            break;
        case Structure::reduction:
            advice.consumer = fmt::format(
                "{}({})", wanted.keep == Keep::newest ? "take_last" : "reduce", advice.consumer);
            break;
        case Structure::aggregation:
            advice.producer = fmt::format("AggregatingProducer<{}>", sender);
            break;
        case Structure::windows:
            advice.producer = fmt::format("WindowedProducer<{}>", sender);
            break;
        case Structure::conflation:
            advice.producer = fmt::format("ConflatingProducer<{}, KeyOf>", sender);
            break;
        default: break;
    }
    if (wanted.selective) {
        // The last one before a log's readers is the log.
        std::string& evaluates = advice.between.empty() ? advice.producer : advice.between;
        evaluates.replace(evaluates.rfind("Item"), 4, "Filtered<Item, Filter>");
    }
}

/// What a program should know besides.
void add_hints(const Requirements& wanted, Advice& advice) {
    const auto say = [&](std::string sentence) { advice.reasons.push_back(std::move(sentence)); };
    const Structure structure = advice.structure;
    if (structure == Structure::latest) {
        if (wanted.producers > 1 || wanted.consumers > 1) {
            say("A LatestWriter and a LatestReader are a pair: make one for each producer and "
                "consumer.");
        }
        say(fmt::format("LatestOptions::cells is {} at the reader.", std::max(wanted.keys, 1U)));
        return;
    }
    if (wanted.selective) {
        say("The consumer names a filter of the program's, as Options::filter, and the producer "
            "sends what passes it.");
    }
    if (structure == Structure::shared_fan_in) {
        say(
            fmt::format("SharedFanInOptions::capacity is {}; a producer that stops within a call "
                        "holds up the others for SharedFanInOptions::patience.",
                        *options_for(wanted, {}).ring.capacity));
    }
    if (structure == Structure::log && wanted.producers > 1) {
        say("A log belongs to one thread: the producers send to its owner, which appends.");
    }
    if (structure == Structure::keyed_shuffle && wanted.delivery == Delivery::share) {
        say("A KeyedFanOut goes by keys: to share items out, number them.");
    }
    if (structure == Structure::shuffle && wanted.in_order) {
        say("Each consumer has a Merge in place of the FanIn: its own part comes in order.");
    }
    if (wanted.in_order && wanted.producers == 1) {
        say("The items of one producer come in its order anyway.");
    }
    if (structure == Structure::merge || (structure == Structure::log && wanted.in_order)) {
        say("A producer that is silent holds up the others: have it send heartbeats, or set "
            "MergeOptions::patience.");
    }
    if (structure == Structure::aggregation || structure == Structure::windows ||
        structure == Structure::conflation) {
        say(fmt::format("The table has room for keys = {}.", std::max(wanted.keys, 1U)));
    }
    if (structure != Structure::log && wanted.consumers > 1 && !sends_to_everyone(wanted) &&
        wanted.keep == Keep::every && !wanted.consumers_change) {
        say(wanted.delivery == Delivery::by_key
                ? "Send by enqueue_keyed: a key's items go to the same consumer."
                : "Send by enqueue: an item goes to the consumer whose turn it is.");
    }
}

Advice choose_with(const Requirements& wanted, const Profile* profile) {
    check(wanted);
    Advice advice;
    for (const detail::StructureRule& rule : detail::structure_rules()) {
        if (!rule.holds(wanted)) continue;
        advice.structure = rule.structure;
        advice.reasons.emplace_back(rule.reason);
        break;
    }
    name_ends(wanted, advice);
    add_hints(wanted, advice);
    advice.source = "Millrace's rules";
    const bool has_queues = advice.structure != Structure::latest &&
                            advice.structure != Structure::shared_fan_in &&
                            (advice.structure != Structure::log || wanted.producers > 1);
    if (!has_queues) return advice;

    const Load load = load_of(wanted);
    const detail::PointQuestion question{load, wanted.other_hosts, wanted.spare_core};
    const auto rules = detail::point_rules();
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const detail::PointRule& one) {
        return one.holds(question);
    });
    ring::NamedDesign named = ring::parse_design(rule->design);
    std::string reason = rule->reason;
    if (profile != nullptr && wanted.other_hosts && profile->origin().is_stored) {
        advice.reasons.push_back(fmt::format(
            "The profile of {} says nothing of other hosts: items were stored on this one.",
            profile->origin().device));
    } else if (profile != nullptr) {
        PointChoice choice = choose_point(*profile, load, wanted.spare_core, named.design);
        if (!choice.reason.empty()) {
            named = choice.design;
            reason = std::move(choice.reason);
            advice.source = fmt::format("the profile of {}, {}", profile->origin().device,
                                        profile->origin().date);
        } else {
            advice.reasons.push_back(fmt::format("The profile of {} knows no load like this one.",
                                                 profile->origin().device));
        }
    }
    advice.options = options_for(wanted, named);
    if (wanted.memory_bytes != 0) {
        const std::uint64_t rings = detail::rings_of_an_end(wanted);
        advice.reasons.push_back(fmt::format(
            "{} B of memory for {} ring{} make room for {} items in each.", wanted.memory_bytes,
            rings, rings == 1 ? "" : "s", *advice.options.ring.capacity));
    }
    advice.design = named.design;
    advice.reasons.push_back(
        fmt::format("{}: {}", ring::to_string(named.design, advice.options.ring.batch), reason));
    if (named.design.batching == ring::Batching::fixed) {
        advice.reasons.emplace_back(
            "The last items of a fixed batch wait for flush: call it before a pause.");
    }
    return advice;
}

}  // namespace

std::string_view name_of(Structure structure) noexcept {
    switch (structure) {
        case Structure::queue: return "queue";
        case Structure::fan_in: return "fan-in";
        case Structure::shared_fan_in: return "shared fan-in";
        case Structure::merge: return "merge";
        case Structure::fan_out: return "fan-out";
        case Structure::shuffle: return "shuffle";
        case Structure::keyed_shuffle: return "keyed shuffle";
        case Structure::replication: return "replication";
        case Structure::priorities: return "priorities";
        case Structure::reduction: return "reduction";
        case Structure::aggregation: return "aggregation";
        case Structure::windows: return "windows";
        case Structure::conflation: return "conflation";
        case Structure::latest: return "latest values";
        case Structure::log: return "log";
    }
    return "unknown";
}

Options options_for(const Requirements& wanted, const ring::NamedDesign& named) {
    const std::uint64_t slot = detail::slot_bytes(wanted.item_bytes);
    constexpr std::uint64_t least_items = 16;
    std::uint64_t bytes = std::max(RingOptions::default_bytes, least_items * slot);
    bytes = std::max(bytes, load_of(wanted).burst * slot);
    if (wanted.memory_bytes != 0) {
        bytes = std::min(bytes, wanted.memory_bytes / detail::rings_of_an_end(wanted));
    }
    const std::uint64_t capacity = std::max<std::uint64_t>(bytes / slot, 2);
    Options options;
    options.ring.capacity = capacity;
    std::uint64_t batch = 1;
    if (named.design.batching != ring::Batching::none) {
        const std::uint32_t usual = named.design.batching == ring::Batching::fixed
                                        ? RingOptions::default_fixed_batch
                                        : RingOptions::default_dynamic_batch;
        // Half of the ring is filled while the other half is taken.
        batch = std::min<std::uint64_t>(named.batch.value_or(usual), capacity / 2);
        options.ring.batch = static_cast<std::uint32_t>(batch);
    }
    // Two-sided data: no more than the chunks of the ring, of a batch each.
    options.ring.receive_pool = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(RingOptions::default_pool, capacity / batch));
    return options;
}

Advice choose(const Requirements& wanted) { return choose_with(wanted, nullptr); }
Advice choose(const Requirements& wanted, const Profile& profile) {
    return choose_with(wanted, &profile);
}

std::string Advice::text() const {
    std::string text =
        fmt::format("structure  {}\nproducer   flow::{}\n", name_of(structure), producer);
    if (!between.empty()) text += fmt::format("between    flow::{}\n", between);
    text += fmt::format("consumer   flow::{}\n", consumer);
    if (design.has_value()) {
        text += fmt::format("D          {}\noptions    capacity {}, receive_pool {}",
                            ring::to_string(*design), options.ring.capacity.value_or(0),
                            options.ring.receive_pool);
        if (options.ring.batch) text += fmt::format(", batch {}", *options.ring.batch);
        text += "\n";
    }
    text += fmt::format("by         {}\n", source);
    for (const std::string& reason : reasons) text += fmt::format("  - {}\n", reason);
    return text;
}

std::string Advice::json() const {
    nlohmann::ordered_json document{
        {"structure", name_of(structure)}, {"producer", producer}, {"consumer", consumer}};
    if (!between.empty()) document["between"] = between;
    if (design.has_value()) {
        document["design"] = ring::to_string(*design);
        document["options"] = {{"capacity", options.ring.capacity.value_or(0)},
                               {"receive_pool", options.ring.receive_pool}};
        if (options.ring.batch) document["options"]["batch"] = *options.ring.batch;
    }
    document["by"] = source;
    document["reasons"] = reasons;
    return document.dump();
}

}  // namespace millrace::flow
