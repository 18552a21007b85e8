// The parts of flow queues that do not depend on the item type: links, pages, explanations.
#include "millrace/flow/queue_end.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/ring/device_limits.hpp"

namespace millrace::flow {
namespace {

/// Items of two slices each.
constexpr std::uint32_t max_gather = ring::Sender<ring::design_2>::max_slices / 2;

connect::LinkOptions link_options(Options& options) {
    if (options.gather < 1 || options.gather > max_gather) {
        throw base::Error{base::ErrorCode::invalid_argument, "set up a flow queue",
                          fmt::format("gather = {}", options.gather),
                          fmt::format("one WRITE gathers 1 to {} items", max_gather),
                          "choose a number in that range"};
    }
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    const verbs::Context& device = options.endpoint->context();
    ring::check_pool(options.ring.receive_pool,
                     static_cast<std::uint32_t>(device.attributes().max_qp_wr), device.name());
    connect::LinkOptions link = ring::link_options("flow queue", options.ring.receive_pool);
    link.endpoint = options.endpoint;
    link.admission = options.admission;
    link.max_send_slices = std::max(link.max_send_slices, 2 * options.gather);
    return link;
}

base::StatisticsPage page_of(std::string_view role, std::string_view name,
                             std::initializer_list<std::string_view> names) {
    std::string title = fmt::format("flow {} {}", role, name);
    title.resize(std::min(title.size(), base::StatisticsPage::longest_title));
    return base::StatisticsPage{title, names};
}

}  // namespace

Listener Listener::listen(const connect::Address& address, Options options) {
    connect::LinkOptions link = link_options(options);
    return Listener{connect::Listener::listen(address, std::move(link)), std::move(options)};
}

namespace detail {

Listener listen_for_one(const connect::Address& address, Options options) {
    Listener listener = Listener::listen(address, std::move(options));
    tell_chosen_port(address, listener.address());
    return listener;
}

void tell_chosen_port(const connect::Address& asked, const connect::Address& address) {
    if (asked.kind() != connect::Address::Kind::tcp || asked.port() != 0) return;
    base::log(base::LogLevel::warn, "flow", "listening on {}, a port that the system has chosen",
              address.to_string());
}

connect::LinkOptions connecting_options(Options& options, ring::Design design,
                                        const ItemFacts& item) {
    ring::check(options.ring, item, design);
    connect::LinkOptions link = link_options(options);
    link.if_nobody_listens =
        "or the queue has its other end already: listen() takes one peer and then no more (a "
        "flow::Listener takes any number, each for a queue of its own)";
    return link;
}

Connection connect_link(const connect::Address& address, Options& options, ring::Design design,
                        const ItemFacts& item, const base::Deadline& deadline) {
    connect::LinkOptions link = connecting_options(options, design, item);
    return {options.endpoint, connect::connect(address, std::move(link), deadline)};
}

Options of_producer(Options options) {
    if (options.filter.is_none()) return options;
    throw base::Error{
        base::ErrorCode::invalid_argument, "set up a flow queue",
        fmt::format("a producer that asks for the filter '{}'", options.filter.name()),
        "the consumer is who asks for a filter",
        "set Options::filter at the consumer, and give the producer items of "
        "flow::Filtered with that filter"};
}

base::StatisticsPage producer_page(std::string_view name) {
    return page_of("producer", name,
                   {"items",
                    "payload_bytes",
                    "ring_bytes",
                    "data_writes",
                    "space_reads",
                    "settling_writes",
                    "events",
                    "work_requests",
                    "full_returns",
                    "lazy_refreshes",
                    "forced_refreshes",
                    "sleeps",
                    "wake_ups",
                    "transfer_writes",
                    "receives",
                    "intransit_bytes",
                    "transferred_bytes",
                    "credited_bytes",
                    "filter_looked",
                    "filter_passed",
                    "filter_threw",
                    "filter_bytes_kept"});
}

base::StatisticsPage consumer_page(std::string_view name) {
    return page_of("consumer", name,
                   {"items", "payload_bytes", "ring_bytes", "empty_returns", "credit_writes",
                    "credit_stores", "events", "work_requests", "sleeps", "wake_ups",
                    "transfer_reads", "data_reads", "receives"});
}

void warn_of_stray_release(const std::string& peer) noexcept {
    base::log(base::LogLevel::warn, "flow",
              "release() without an item that was peeked, or behind a call that has taken it, does "
              "nothing (queue of {})",
              peer);
}

void warn_of_forgotten_release(const std::string& peer, std::uint32_t times) noexcept {
    base::log(base::LogLevel::warn, "flow",
              "the same item was peeked {} times: it stays in front until release() (queue of {})",
              times, peer);
}

void show(base::StatisticsPage& page, const ProducerStats& stats) noexcept {
    const std::uint64_t values[] = {stats.items,
                                    stats.payload_bytes,
                                    stats.ring.bytes,
                                    stats.ring.data_writes,
                                    stats.ring.space_reads,
                                    stats.ring.settling_writes,
                                    stats.ring.events,
                                    stats.ring.work_requests,
                                    stats.ring.full_returns,
                                    stats.ring.lazy_refreshes,
                                    stats.ring.forced_refreshes,
                                    stats.ring.sleeps,
                                    stats.ring.wake_ups,
                                    stats.ring.transfer_writes,
                                    stats.ring.receives,
                                    stats.ring.intransit,
                                    stats.ring.transferred,
                                    stats.ring.credited,
                                    stats.filter.looked,
                                    stats.filter.passed,
                                    stats.filter.threw,
                                    stats.filter.bytes_kept};
    page.set(values);
}

void show(base::StatisticsPage& page, const ConsumerStats& stats) noexcept {
    const std::uint64_t values[] = {
        stats.items,         stats.payload_bytes,       stats.ring.bytes,
        stats.empty_returns, stats.ring.credit_writes,  stats.ring.credit_stores,
        stats.ring.events,   stats.ring.work_requests,  stats.ring.sleeps,
        stats.ring.wake_ups, stats.ring.transfer_reads, stats.ring.data_reads,
        stats.ring.receives};
    page.set(values);
}

namespace {

/// What carries the items and words of one end.
struct Carried {
    bool in_place = false;  ///< items are laid at the consumer
    bool stores = false;    ///< this end stores to its peer's memory, and loads from it
};

std::string data_cost(ring::Design design, const ring::Terms& terms, const Carried& carried) {
    using ring::DataFlow;
    if (carried.in_place) {
        return "no request: the producer lays it where the consumer reads it";
    }
    if (carried.stores) {
        return "no request: the mover copies what was laid to where the consumer reads it";
    }
    if (design.data == DataFlow::push2) {
        return fmt::format(
            "1 SEND by the producer for each {} bytes of ring, and 1 receive by the "
            "consumer, which keeps {} posted",
            terms.chunk_bytes, terms.receive_pool);
    }
    if (design.data == DataFlow::pull) {
        const bool is_moved =
            design.mover == ring::Mover::active && design.space != ring::SpaceNotification::push2;
        return fmt::format(
            "1 READ by {} for all items that are there to be pulled (2 where they wrap); the "
            "producer's memory is read, it posts nothing",
            is_moved ? "the mover of the consumer's process, whether items are taken or not,"
                     : "the consumer");
    }
    if (design.transfer == ring::TransferNotification::immediate) {
        return fmt::format(
            "1 WRITE with immediate by the producer, or 1 for a batch (2 where it "
            "wraps), and 1 receive by the consumer, which keeps {} posted",
            terms.receive_pool);
    }
    if (terms.in_order) {
        return "1 WRITE by the producer, or 1 for a batch (2 where it wraps); one copy by the "
               "device; nothing by the consumer";
    }
    return "2 WRITEs by the producer, or 2 for a batch (4 where it wraps): the device does not "
           "promise the order of one WRITE's bytes, so a mark follows in its own";
}

std::string transfer_cost(ring::Design design, const ring::Terms& terms, const Carried& carried) {
    using ring::TransferNotification;
    switch (design.transfer) {
        case TransferNotification::watermark:
            return design.data == ring::DataFlow::pull
                       ? "the consumer READs 8 bytes of the next item, until its mark is there"
                       : "marks beside the items, no request";
        case TransferNotification::push:
            if (carried.stores) return "the producer stores 8 bytes behind each batch";
            return terms.own_transfer_queue
                       ? "the producer WRITEs 8 bytes on a queue pair of its own when a batch is "
                         "known to have arrived, at most one such WRITE in flight"
                       : "the producer WRITEs 8 bytes behind each batch, at most one such WRITE "
                         "in flight";
        case TransferNotification::pull:
            if (carried.stores) {
                return "the consumer loads 8 bytes when less than a tenth of the ring is left to "
                       "take";
            }
            return design.mover == ring::Mover::active
                       ? "the mover of the consumer's process READs 8 bytes when less than a tenth "
                         "of the ring is left to take: no dequeue waits for it"
                       : "the consumer READs 8 bytes when less than a tenth of the ring is left to "
                         "take";
        case TransferNotification::event: return "completions of the receives, no request";
        case TransferNotification::immediate: return "travels with the data, no request";
    }
    return {};
}

std::string space_cost(ring::Design design, const Options& options, const Carried& carried) {
    using ring::SpaceNotification;
    const char* by = carried.stores ? "stores" : "WRITEs";
    switch (design.space) {
        case SpaceNotification::pull:
            return fmt::format(
                "the producer {} 8 bytes when more than {:.0f} % of the ring is "
                "in use, and when it is full",
                carried.stores ? "loads" : "READs", options.ring.refresh_above * 100);
        case SpaceNotification::push: break;
        case SpaceNotification::push2: by = "SENDs"; break;
    }
    return fmt::format("the consumer {} 8 bytes, {}", by,
                       design.data == ring::DataFlow::pull
                           ? "once for each run that it has pulled"
                           : "a few times for each length of the ring and when it finds it empty");
}

/// How either end wakes the other, and what that takes.
std::string wake_up_cost(ring::Design design) {
    const char* const rung =
        "1 event (a WRITE with immediate) for each sleep that was announced by "
        "a WRITE and a READ";
    const char* const completed = "none of its own, a completion of the receives wakes it";
    return fmt::format("0 while both ends are awake; a consumer asleep: {}; a producer asleep: {}",
                       has_arrivals(design) ? completed : rung,
                       design.space == ring::SpaceNotification::push2 ? completed : rung);
}

/// Of one item, from the program's memory to the program's memory.
std::string copies_cost(ring::Design design, const Carried& carried) {
    if (carried.in_place) {
        return "1 into the consumer's ring (0 by claim), 1 out of it (0 by peek)";
    }
    return fmt::format(
        "1 into the producer's ring (0 by claim{}), 1 by {}, 1 out of the "
        "consumer's ring (0 by peek)",
        design.data == ring::DataFlow::push1 ? " or gather" : "",
        carried.stores ? "the mover" : "the device");
}

std::string batching_cost(ring::Design design, const ring::Terms& terms) {
    switch (design.batching) {
        case ring::Batching::none: return "none: what was enqueued goes at once";
        case ring::Batching::fixed:
            return fmt::format("fixed: items go when {} are there; flush() sends fewer",
                               terms.batch);
        case ring::Batching::dynamic:
            return fmt::format(
                "dynamic: items go when the transfer before is done and the consumer has taken all "
                "that it was sent, or {} are there; flush() sends them at once",
                terms.framed() ? fmt::format("{} bytes of them", terms.batch_bytes)
                               : fmt::format("{}", terms.batch));
    }
    return {};
}

}  // namespace

std::string explain(ring::Role role, ring::Design design, const ring::Terms& terms,
                    const connect::Link& link, const Options& options,
                    const ring::PeerMemory& memory, std::string_view failure) {
    // Where its items are laid only the producer knows; a consumer goes by what it can itself.
    const bool in_place = role == ring::Role::producer
                              ? terms.in_place
                              : memory.stores() && design.mover == ring::Mover::passive;
    const Carried carried{.in_place = in_place, .stores = memory.stores()};
    const ring::Design flows = ring::flows_of(design);
    const std::string_view number = flows == ring::design_1   ? ", design 1"
                                    : flows == ring::design_2 ? ", design 2"
                                                              : "";
    std::string text = fmt::format(
        "{} of a flow queue{} ({})\n"
        "ring: {} at each end, {} bytes{}\n"
        "per item: {}\n"
        "transfer: {}\n"
        "space: {}\n"
        "copies: {}\n"
        "wake-ups: {}\n"
        "batching: {}\n"
        "mover: {}\n"
        "carrier: {}, because {}\n",
        role == ring::Role::producer ? "producer" : "consumer", number, to_string(design),
        terms.framed() ? fmt::format("frames of up to {} bytes", terms.max_frame())
                       : fmt::format("{} items", terms.capacity()),
        terms.ring_bytes,
        terms.framed() ? std::string{} : fmt::format(", {} a slot", terms.slot_bytes),
        data_cost(design, terms, carried), transfer_cost(design, terms, carried),
        space_cost(design, options, carried), copies_cost(design, carried), wake_up_cost(flows),
        batching_cost(design, terms),
        design.mover == ring::Mover::active
            ? "active: the producer's items are moved by a thread that all such queues of the "
              "process share, asleep when there is nothing to move"
            : "passive: the producer's items are moved within its calls",
        carried.stores ? "store" : "post", memory.reason());
    if (!options.filter.is_none()) {
        text += fmt::format("filter: '{}', which the producer asks before it lays an item\n",
                            options.filter.name());
    }
    if (role == ring::Role::producer && options.ring.completions == end::Completions::events) {
        text += "completions: by events, each request signaled: a system call for each look\n";
    }
    if (!failure.empty()) text += fmt::format("failure: {}\n", failure);
    return text + link.explain();
}

}  // namespace detail
}  // namespace millrace::flow
