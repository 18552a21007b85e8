// Flow queues, and what consists of them.
#include <array>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "ends.hpp"
#include "millrace/flow/aggregate.hpp"
#include "millrace/flow/any.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/latest.hpp"
#include "millrace/flow/priority.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/flow/shared.hpp"

namespace millrace::closing {
namespace {

using namespace std::chrono_literals;

flow::Options small(Carrier carrier) {
    flow::Options options;
    options.ring.capacity = 8;
    options.ring.carrier = carrier;
    return options;
}

template <class Out, class In>
Pair pair_of(std::shared_ptr<Ends<Out, In>> ends) {
    return {.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(number); },
            .receive = [ends](std::uint64_t& number) { return ends->in->try_dequeue(number); },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { ends->in->close(); },
            .drop_other = [ends] { ends->in.reset(); }};
}
bool stores(const std::string& explained) {
    return explained.find("carrier: store") != std::string::npos;
}

template <class Out, class In, class Connect>
Pair to_consumer(Carrier carrier, Connect&& connect) {
    auto listener = flow::Listener::listen(fresh_address(), small(carrier));
    auto ends = std::make_shared<Ends<Out, In>>([&] { return connect(listener.address()); },
                                                [&] { return In::accept(listener, soon()); });
    const bool at_once = stores(ends->in->explain());
    Pair pair = pair_of(std::move(ends));
    pair.delivers_at_once = at_once;
    return pair;
}

template <ring::Design D>
Pair queue(Carrier carrier) {
    Pair pair = to_consumer<flow::Producer<Number, D>, flow::Consumer<Number, D>>(
        carrier, [&](const connect::Address& address) {
            return flow::Producer<Number, D>::connect(address, small(carrier), soon());
        });
    pair.is_fetched = D.data == ring::DataFlow::pull;
    return pair;
}

Pair any_queue(Carrier carrier) {
    using Out = flow::AnyProducer<Number>;
    return to_consumer<Out, flow::Consumer<Number, ring::design_1>>(
        carrier, [&](const connect::Address& address) {
            return Out::connect(ring::design_1, address, small(carrier), soon());
        });
}

Pair shared(Carrier carrier) {
    using Out = flow::Shared<flow::Producer<Number>>;
    return to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
        return Out{flow::Producer<Number>::connect(address, small(carrier), soon())};
    });
}

struct NeverOne {
    bool operator()(Number&, const Number&) const { return false; }
};
Pair combining(Carrier carrier) {
    using Out = flow::CombiningProducer<Number, NeverOne>;
    Pair pair =
        to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
            return Out{flow::Producer<Number>::connect(address, small(carrier), soon())};
        });
    pair.delivers_at_once = false;  // one item waits in the producer
    return pair;
}

Pair fan_out(Carrier carrier) {
    using Out = flow::FanOut<Number>;
    return to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
        const std::array<connect::Address, 1> addresses{address};
        return Out::connect(addresses, {.queue = small(carrier)}, soon());
    });
}

Pair replicator(Carrier carrier) {
    using Out = flow::Replicator<Number>;
    Pair pair =
        to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
            const std::array<connect::Address, 1> addresses{address};
            return Out::connect(addresses, {.queue = small(carrier)}, soon());
        });
    pair.if_left = Status::peer_lost;  // fewer than its quorum remain
    return pair;
}

using In = flow::FanIn<Number>;

/// `connect(address)`: the producer that the fan expects.
template <class Out, class Connect>
std::shared_ptr<Ends<Out, In>> to_fan(const flow::FanInOptions& options, Connect&& connect) {
    auto fan = In::listen(fresh_address(), options);
    const connect::Address address = fan.address();
    std::promise<Out> connected;
    std::thread other{[&] { connected.set_value(connect(address)); }};
    auto made = connected.get_future();
    Number none = 0;
    while (made.wait_for(0s) != std::future_status::ready) (void)fan.try_dequeue(none);
    other.join();
    return std::make_shared<Ends<Out, In>>([&] { return made.get(); },
                                           [&] { return std::move(fan); });
}
/// Its flow is closed when all have left; how each has, it says by on_change.
template <class Out>
Pair pair_of_fan(const std::shared_ptr<Ends<Out, In>>& ends) {
    auto how = std::make_shared<Status>(Status::ok);
    ends->in->on_change([how](const flow::FanInSource&, Status status) { *how = status; });
    return {.send = {},
            .receive =
                [ends, how](std::uint64_t& number) {
                    const Status status = ends->in->try_dequeue(number);
                    return status == Status::closed ? *how : status;
                },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { ends->in->close(); },
            .drop_other = [ends] { ends->in.reset(); }};
}

Pair fan_in(Carrier carrier) {
    using Out = flow::Producer<Number>;
    const auto ends =
        to_fan<Out>({.queue = small(carrier), .expected = 1}, [&](const connect::Address& address) {
            return Out::connect(address, small(carrier), soon());
        });
    Pair pair = pair_of_fan(ends);
    pair.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(number); };
    pair.delivers_at_once = stores(ends->out->explain());
    return pair;
}

Pair priorities(Carrier carrier) {
    using Out = flow::PriorityProducer<Number>;
    const auto ends = to_fan<Out>({.queue = small(carrier), .levels = 2, .expected = 1},
                                  [&](const connect::Address& address) {
                                      return Out::connect(address, 2, small(carrier), soon());
                                  });
    Pair pair = pair_of_fan(ends);
    pair.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(1, number); };
    pair.delivers_at_once = stores(ends->out->level(1).explain());
    return pair;
}

Pair latest(Carrier carrier) {
    using Out = flow::LatestWriter<Number>;
    using Reader = flow::LatestReader<Number>;
    const std::string address = fresh_address();
    auto ends = std::make_shared<Ends<Out, Reader>>(
        [&] { return Out::connect(address, {.carrier = carrier}, soon()); },
        [&] { return Reader::listen(address, {.cells = 1, .carrier = carrier}, soon()); });
    return {.send = [ends](std::uint64_t number) { return ends->out->put(0, number); },
            .receive = [ends](std::uint64_t& number) { return ends->in->try_get(number); },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { ends->in->close(); },
            .drop_other = [ends] { ends->in.reset(); },
            .delivers_at_once = true,
            .keeps_last = true};
}

constexpr ring::Design pulled{.data = ring::DataFlow::pull,
                              .transfer = ring::TransferNotification::push,
                              .space = ring::SpaceNotification::push};
constexpr ring::Design sent{.data = ring::DataFlow::push2,
                            .transfer = ring::TransferNotification::event,
                            .space = ring::SpaceNotification::push};

}  // namespace

std::vector<Made> flows() {
    return {{"queue_design_1", queue<ring::design_1>},
            {"queue_design_2", queue<ring::design_2>},
            {"queue_pulled", queue<pulled>},
            {"queue_sent", queue<sent>},
            {"queue_of_any_design", any_queue},
            {"shared", shared},
            {"combining", combining},
            {"fan_out", fan_out},
            {"replicator", replicator},
            {"fan_in", fan_in},
            {"priorities", priorities},
            {"latest", latest}};
}

}  // namespace millrace::closing
