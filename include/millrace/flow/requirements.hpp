// What a program knows of what it wants to send. flow::choose (advice.hpp) answers with a
// structure.
//
//     const flow::Requirements wanted{.item_bytes = sizeof(Order), .producers = 8, .burst = 1};
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"

namespace millrace::flow {

/// Which of several consumers gets an item.
enum class Delivery : std::uint8_t {
    share,     ///< any one
    by_key,    ///< the one that its key belongs to
    everyone,  ///< all of them
};

/// What of the items a consumer must have.
enum class Keep : std::uint8_t {
    every,    ///< each of them
    newest,   ///< the newest of each key; without keys, the newest
    folded,   ///< what those of each key, or all, come to: sums, counts, extremes
    windows,  ///< the same for each window of time, or of so many items
};

/// What matters more.
enum class Aim : std::uint8_t {
    throughput,  ///< that many items a second get through
    latency,     ///< that an item is there soon
};

/// Every field has a default that means: nothing special. All may be combined but those that
/// contradict each other, for which choose() throws an Error that names the two.
struct Requirements {
    /// Of one item; of items of different lengths, a usual one. 1 byte to 64 MiB.
    std::size_t item_bytes = 64;
    /// Ends that send, 1 to 65,536, each a thread or a process.
    std::uint32_t producers = 1;
    /// Ends that take, 1 to 65,536.
    std::uint32_t consumers = 1;
    Delivery delivery = Delivery::share;
    Keep keep = Keep::every;
    /// Different keys that items have, to 4,194,304; for `keep`. 0: there are none.
    std::uint32_t keys = 0;
    /// The items of all producers come in one order, by time or another key.
    bool in_order = false;
    /// Degrees of urgency, 1 to 256: an item waits for none that is less urgent.
    std::uint32_t levels = 1;
    /// A consumer may come late, or crash and resume, and has every item nevertheless.
    bool late_readers = false;
    /// Consumers join and leave while it runs.
    bool consumers_change = false;

    /// Producers are very many, few of them busy at a time, and trust each other: they may share a
    /// ring.
    bool may_share_ring = false;
    /// The consumer wants few of the items, or little of each.
    bool selective = false;

    Aim aim = Aim::throughput;
    /// Items that come together, to 65,536, after which nothing comes for a while. 1: each comes
    /// alone. 0: they never stop.
    std::uint32_t burst = 0;
    /// The thread that sends, or takes, has other work to do for each item. Else it has time to
    /// spare: it may poll, and make requests for the other end.
    bool producer_is_busy = false;
    bool consumer_is_busy = false;
    /// Producers and consumers are on different hosts. Else all are on this one.
    bool other_hosts = false;
    /// There is a core to spare for a thread of the library's own at each producer.
    bool spare_core = false;
    /// What the rings, or the cells, of one end may take. 0: as much as is useful.
    std::uint64_t memory_bytes = 0;
};

/// Throws Error (invalid_argument): a number is out of range, or two fields contradict each other;
/// both are named, and why.
void check(const Requirements& wanted);

/// "items of 64 B, 8 producers, …": what differs from the default, in words.
[[nodiscard]] std::string to_string(const Requirements& wanted);

[[nodiscard]] constexpr const char* name_of(Delivery delivery) noexcept {
    switch (delivery) {
        case Delivery::share: return "share";
        case Delivery::by_key: return "by_key";
        case Delivery::everyone: return "everyone";
    }
    return "unknown";
}
[[nodiscard]] constexpr const char* name_of(Keep keep) noexcept {
    switch (keep) {
        case Keep::every: return "every";
        case Keep::newest: return "newest";
        case Keep::folded: return "folded";
        case Keep::windows: return "windows";
    }
    return "unknown";
}
[[nodiscard]] constexpr const char* name_of(Aim aim) noexcept {
    return aim == Aim::latency ? "latency" : "throughput";
}

}  // namespace millrace::flow
