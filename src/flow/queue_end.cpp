// The parts of flow queues that do not depend on the item type: links, pages, explanations.
#include "millrace/flow/queue_end.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace millrace::flow {
namespace {

connect::LinkOptions link_options(Options& options) {
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::open();
    connect::LinkOptions link = ring::link_options("flow queue");
    link.endpoint = options.endpoint;
    return link;
}

base::StatisticsPage page_of(std::string_view role, std::string_view name,
                             std::initializer_list<std::string_view> names) {
    std::string title = fmt::format("flow {} {}", role, name);
    title.resize(std::min<std::size_t>(title.size(), 47));
    return base::StatisticsPage{title, names};
}

}  // namespace

Listener Listener::listen(const connect::Address& address, Options options) {
    connect::LinkOptions link = link_options(options);
    return Listener{connect::Listener::listen(address, std::move(link)), std::move(options)};
}

namespace detail {

Connection connect_link(const connect::Address& address, Options& options, ring::Design design,
                        std::size_t item_size, std::size_t item_alignment,
                        const base::Deadline& deadline) {
    ring::check(ring_options(options, item_size, item_alignment), design);
    connect::LinkOptions link = link_options(options);
    link.if_nobody_listens =
        "or the queue has its other end already: listen() takes one peer and then no more (a "
        "flow::Listener takes any number, each for a queue of its own)";
    return {options.endpoint, connect::connect(address, std::move(link), deadline)};
}

ring::RingOptions ring_options(const Options& options, std::size_t item_size,
                               std::size_t item_alignment) {
    return {.capacity = options.capacity,
            .item_size = static_cast<std::uint32_t>(item_size),
            .item_alignment = static_cast<std::uint32_t>(item_alignment),
            .refresh_above = options.refresh_above,
            .credit_parts = options.credit_parts,
            .initial_position = options.initial_position};
}

base::StatisticsPage producer_page(std::string_view name) {
    return page_of("producer", name,
                   {"items", "payload_bytes", "ring_bytes", "data_writes", "space_reads",
                    "settling_writes", "events", "work_requests", "full_returns",
                    "lazy_refreshes", "forced_refreshes", "sleeps", "wake_ups"});
}

base::StatisticsPage consumer_page(std::string_view name) {
    return page_of("consumer", name,
                   {"items", "payload_bytes", "ring_bytes", "empty_returns", "credit_writes",
                    "credit_stores", "events", "work_requests", "sleeps", "wake_ups"});
}

void show(base::StatisticsPage& page, const ProducerStats& stats) noexcept {
    const std::uint64_t values[] = {
        stats.items,           stats.payload_bytes,       stats.ring.bytes,
        stats.ring.data_writes, stats.ring.space_reads,   stats.ring.settling_writes,
        stats.ring.events,     stats.ring.work_requests,  stats.ring.full_returns,
        stats.ring.lazy_refreshes, stats.ring.forced_refreshes, stats.ring.sleeps,
        stats.ring.wake_ups};
    std::size_t index = 0;
    for (const std::uint64_t value : values) page.counter(index++).set(value);
}

void show(base::StatisticsPage& page, const ConsumerStats& stats) noexcept {
    const std::uint64_t values[] = {
        stats.items,          stats.payload_bytes, stats.ring.bytes,  stats.empty_returns,
        stats.ring.credit_writes, stats.ring.credit_stores, stats.ring.events,
        stats.ring.work_requests, stats.ring.sleeps, stats.ring.wake_ups};
    std::size_t index = 0;
    for (const std::uint64_t value : values) page.counter(index++).set(value);
}

std::string explain(ring::Role role, ring::Design design, const ring::Terms& terms,
                    const connect::Link& link, const Options& options,
                    std::string_view failure) {
    const bool pull = design.space == ring::SpaceNotification::pull;
    std::string text = fmt::format(
        "{} of a flow queue, design {} ({} + {} + {} space)\n"
        "ring: {} at each end, {} bytes{}\n"
        "per item: {}\n"
        "space: {}\n",
        role == ring::Role::producer ? "producer" : "consumer", pull ? 1 : 2,
        name_of(design.data), name_of(design.transfer), name_of(design.space),
        terms.framed() ? fmt::format("frames of up to {} bytes", terms.max_frame())
                       : fmt::format("{} items", terms.capacity()),
        terms.ring_bytes,
        terms.framed() ? std::string{} : fmt::format(", {} a slot", terms.slot_bytes),
        terms.in_order
            ? "1 WRITE by the producer, or 1 for a batch (2 where it wraps); one copy by the "
              "device; nothing by the consumer"
            : "2 WRITEs by the producer, or 2 for a batch (4 where it wraps): the device does not "
              "promise the order of one WRITE's bytes, so a mark follows in its own",
        pull ? fmt::format("the producer READs 8 bytes when more than {:.0f} % of the ring is in "
                           "use, and when it is full",
                           options.refresh_above * 100)
             : std::string{"the consumer WRITEs 8 bytes, a few times for each length of the ring "
                           "and when it finds it empty"});
    if (!failure.empty()) text += fmt::format("failure: {}\n", failure);
    return text + link.explain();
}

}  // namespace detail
}  // namespace millrace::flow
