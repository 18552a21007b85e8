// What a SharedFanIn is made of, see the header.
#include "millrace/flow/shared_fan_in.hpp"

#include <algorithm>
#include <utility>

#include "shared_facts.hpp"

namespace millrace::flow::detail {

FanInOptions sources_of(const SharedFanInOptions& options) {
    FanInOptions made;
    made.queue.wait = options.shared.wait;
    made.max_producers = options.max_producers;
    made.expected = options.expected;
    made.acceptor = options.acceptor;
    check("a shared fan-in", made);
    return made;
}

SharedRing::Plan plan_of(const SharedFanInOptions& options, const ItemFacts& item) {
    return {.item = item,
            .capacity = options.capacity,
            .max_producers = options.max_producers,
            .patience = options.patience,
            .options = options.shared};
}

Listener listen_for_shared(const connect::Address& address, const SharedRing& ring) {
    connect::LinkOptions link = shared_link_options(ring.plan().options);
    std::uint64_t& clients = link.admission.budget.clients;
    clients = std::min<std::uint64_t>(clients, ring.plan().max_producers);
    return Listener::over(connect::Listener::listen(address, std::move(link)), {});
}

}  // namespace millrace::flow::detail
