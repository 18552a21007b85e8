// Which structure to take, at which point of the design space, with which options, and why. The
// table of docs/structures.md as a function.
//
//     const flow::Advice advice =
//         flow::choose({.item_bytes = sizeof(Order), .consumers = 3, .burst = 16});
//     std::puts(advice.text().c_str());
//
//     // a queue, at run time
//     auto producer = flow::AnyProducer<Order>::connect(*advice.design, address, advice.options,
//                                                       deadline);
//     // any structure, typed
//     flow::with_design(advice, [&]<ring::Design D>() {
//         serve(flow::FanIn<Order, D>::listen(address, {.queue = advice.options}));
//     });
//
// The point comes from a profile of this machine (profile.hpp), or from rules that Millrace's
// measurements gave (src/flow/adviser/rules.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/profile.hpp"
#include "millrace/flow/requirements.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/design_name.hpp"

namespace millrace::flow {

/// A row of the table of docs/structures.md. What a consumer selects has none: its items are
/// Filtered.
enum class Structure : std::uint8_t {
    queue,          ///< Producer, Consumer
    fan_in,         ///< N-1: FanIn
    shared_fan_in,  ///< N-1, one ring for all: SharedFanIn
    merge,          ///< N-1 in one order: Merge
    fan_out,        ///< 1-N, shared: FanOut
    shuffle,        ///< M-N by key: FanOut at each producer, FanIn at each consumer
    keyed_shuffle,  ///< the same, while consumers join and leave: KeyedFanOut, KeyedFanIn
    replication,    ///< everything to everyone: Replicator
    priorities,     ///< PriorityProducer, FanIn with levels
    reduction,      ///< flow::reduce, flow::take_last at the consumer
    aggregation,    ///< AggregatingProducer
    windows,        ///< WindowedProducer
    conflation,     ///< ConflatingProducer
    latest,         ///< LatestWriter, LatestReader
    log,            ///< Log, LogReader
};
[[nodiscard]] std::string_view name_of(Structure structure) noexcept;

struct Advice {
    Structure structure = Structure::queue;
    /// What each producer, and each consumer, makes: "ConflatingProducer<FanOut<Item, D>>". What a
    /// program has between producers and readers of a log stands in `between`.
    std::string producer{};
    std::string consumer{};
    std::string between{};
    /// Of every queue of the structure. None: latest values, logs and shared rings have no such
    /// choice.
    std::optional<ring::Design> design{};
    /// Of each queue: capacity, batch, receives. For both ends.
    Options options{};
    /// Sentences: why this structure, why this point, what to heed.
    std::vector<std::string> reasons{};
    /// "the profile of soft0 …", "Millrace's rules".
    std::string source{};

    /// To read: some lines.
    [[nodiscard]] std::string text() const;
    /// The same for programs: an object.
    [[nodiscard]] std::string json() const;
};

/// Throws Error (invalid_argument) as check(Requirements) does.
[[nodiscard]] Advice choose(const Requirements& wanted);
/// By a profile, if it says anything of such a load: one that was stored on one host says nothing
/// of other hosts.
[[nodiscard]] Advice choose(const Requirements& wanted, const Profile& profile);

/// What a queue of that point is given for such requirements: as choose() does it, for programs
/// that choose the point themselves. At least two items, and what `memory_bytes` allows.
[[nodiscard]] Options options_for(const Requirements& wanted, const ring::NamedDesign& named);

/// `make.operator()<D>()` of the advised design. Throws Error (unsupported) where it has none.
template <class Make>
auto with_design(const Advice& advice, Make&& make) {
    if (!advice.design.has_value()) {
        throw base::Error{base::ErrorCode::unsupported, "make a structure of the advised design",
                          std::string{name_of(advice.structure)}, "it has no point to choose",
                          "make it as docs/structures.md says"};
    }
    return detail::with_design(*advice.design, std::forward<Make>(make));
}

}  // namespace millrace::flow
