// A log's door, see the header.
#include "log/door.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/ring/device_limits.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::flow::detail {
namespace {

/// Requests that wait for the log's owner. Acknowledgements that find no room become one.
constexpr std::uint64_t waiting_requests = 16;
constexpr std::uint32_t most_readers = 32'768;

template <class End>
std::optional<End> try_accept_from(connect::Listener& listener, const Options& options) {
    return connect::try_accept_set_up(listener, [&](connect::Link link) {
        auto endpoint = link.shared_endpoint();
        return End::over({std::move(endpoint), std::move(link), {.joining = ring::Joining::later}},
                         options, base::Deadline::after(connect::setup_patience));
    });
}

}  // namespace

Options log_queue_options(const Options& options, LogQueue queue) {
    Options made = options;
    made.gather = 1;
    made.filter = {};  // the log's own, between history and the queue
    if (made.endpoint == nullptr) made.endpoint = connect::Endpoint::shared();
    if (queue == LogQueue::requests) {
        made.ring.capacity = waiting_requests;
        ring::check(made.ring, item_facts<LogRequest>(), ring::design_2);
    } else {
        ring::check(made.ring, item_facts<Bytes>(), ring::design_2);
    }
    return made;
}

connect::LinkOptions log_link_options(const Options& options, LogQueue queue) {
    const verbs::Context& device = options.endpoint->context();
    ring::check_pool(options.ring.receive_pool,
                     static_cast<std::uint32_t>(device.attributes().max_qp_wr), device.name());
    connect::LinkOptions link = ring::link_options("log", options.ring.receive_pool);
    link.endpoint = options.endpoint;
    link.admission = options.admission;
    link.listener = static_cast<std::uint32_t>(queue);
    return link;
}

LogDoor::LogDoor(const connect::Address& address, const LogOptions& options)
    : requests_{log_queue_options(without_spin(of_producer(options.queue)), LogQueue::requests)},
      items_{log_queue_options(without_spin(options.queue), LogQueue::items)} {
    if (options.max_readers == 0 || options.max_readers > most_readers) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a log",
                          fmt::format("a budget of {} readers", options.max_readers),
                          fmt::format("it is from 1 to {}", most_readers),
                          "use the default of 1024"};
    }
    std::vector<connect::LinkOptions> links{log_link_options(requests_, LogQueue::requests),
                                            log_link_options(items_, LogQueue::items)};
    for (connect::LinkOptions& link : links) {
        std::uint64_t& clients = link.admission.budget.clients;
        clients = std::min(clients, std::uint64_t{2} * options.max_readers);
    }
    listeners_ = connect::Listener::listen_together(address, std::move(links));
    for (connect::Listener& listener : listeners_) {
        watch(listener.descriptor(), fmt::format("a log at {}", this->address().to_string()));
    }
}

std::optional<LogRequests> LogDoor::try_accept_requests() {
    return try_accept_from<LogRequests>(listeners_.front(), requests_);
}
std::optional<LogItems> LogDoor::try_accept_items() {
    return try_accept_from<LogItems>(listeners_.back(), items_);
}

}  // namespace millrace::flow::detail
