// Flow queues, and what consists of them.
#include <array>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "ends.hpp"
#include "millrace/flow/aggregating.hpp"
#include "millrace/flow/any.hpp"
#include "millrace/flow/conflating.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/latest.hpp"
#include "millrace/flow/log.hpp"
#include "millrace/flow/log_reader.hpp"
#include "millrace/flow/merge.hpp"
#include "millrace/flow/priority.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/rebalance.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/flow/shared.hpp"
#include "millrace/flow/shared_fan_in.hpp"
#include "millrace/flow/shared_producer.hpp"
#include "millrace/flow/windowed.hpp"

namespace millrace::closing {
namespace {

using namespace std::chrono_literals;

flow::Options small(Carrier carrier) {
    flow::Options options;
    options.ring.capacity = 8;
    options.ring.carrier = carrier;
    return options;
}

/// But for what is sent and received.
template <class Out, class In>
Pair ends_of(const std::shared_ptr<Ends<Out, In>>& ends) {
    return {.send = {},
            .receive = {},
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { ends->in->close(); },
            .drop_other = [ends] { ends->in.reset(); }};
}
template <class Out, class In>
Pair pair_of(std::shared_ptr<Ends<Out, In>> ends) {
    Pair pair = ends_of(ends);
    pair.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(number); };
    pair.receive = [ends](std::uint64_t& number) { return ends->in->try_dequeue(number); };
    return pair;
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

/// Each number is a key of its own, so that none becomes a part of another.
Pair conflating(Carrier carrier) {
    using Out = flow::ConflatingProducer<flow::Producer<Number>, std::identity>;
    Pair pair =
        to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
            return Out{
                flow::Producer<Number>::connect(address, small(carrier), soon()), {}, {.keys = 3}};
        });
    pair.delivers_at_once = false;  // some items wait in the producer
    return pair;
}

/// Of a producer whose results have the number as their key, and come from one value each.
template <class Out>
Pair results(Carrier carrier, const std::function<Out(flow::Producer<typename Out::Item>)>& make) {
    using Item = typename Out::Item;
    auto listener = flow::Listener::listen(fresh_address(), small(carrier));
    auto ends = std::make_shared<Ends<Out, flow::Consumer<Item>>>(
        [&] {
            return make(flow::Producer<Item>::connect(listener.address(), small(carrier), soon()));
        },
        [&] { return flow::Consumer<Item>::accept(listener, soon()); });
    Pair pair = ends_of(ends);
    pair.delivers_at_once = stores(ends->in->explain());
    pair.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(number, number); };
    pair.receive = [ends](std::uint64_t& number) {
        Item item;
        const Status status = ends->in->try_dequeue(item);
        if (status == Status::ok) number = item.key;
        return status;
    };
    return pair;
}

Pair aggregating(Carrier carrier) {
    using Out = flow::AggregatingProducer<
        flow::Producer<flow::Keyed<std::uint64_t, flow::Sum<std::uint64_t>>>>;
    // Some results wait in the producer, where others might join them.
    Pair pair = results<Out>(carrier, [](auto queue) {
        return Out{std::move(queue), {.keys = 3, .items = 1}};
    });
    pair.delivers_at_once = false;
    return pair;
}

Pair windowed(Carrier carrier) {
    using Out = flow::WindowedProducer<
        flow::Producer<flow::Windowed<std::uint64_t, flow::Sum<std::uint64_t>>>>;
    // Each value is a window.
    return results<Out>(carrier, [](auto queue) {
        return Out{std::move(queue), flow::Window::tumbling_items(1), {.keys = 64}};
    });
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

/// `fan` takes from many. `connect(address)`: the producer that it expects.
template <class Out, class In, class Connect>
std::shared_ptr<Ends<Out, In>> to_one_of_many(In fan, Connect&& connect) {
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
template <class Out, class In>
Pair pair_of_many(const std::shared_ptr<Ends<Out, In>>& ends) {
    auto how = std::make_shared<Status>(Status::ok);
    ends->in->on_change([how](const flow::FanInSource&, Status status) { *how = status; });
    Pair pair = ends_of(ends);
    pair.receive = [ends, how](std::uint64_t& number) {
        const Status status = ends->in->try_dequeue(number);
        return status == Status::closed ? *how : status;
    };
    return pair;
}

template <class In>
Pair many_to_one(Carrier carrier) {
    using Out = flow::Producer<Number>;
    const auto ends =
        to_one_of_many<Out>(In::listen(fresh_address(), {.queue = small(carrier), .expected = 1}),
                            [&](const connect::Address& address) {
                                return Out::connect(address, small(carrier), soon());
                            });
    Pair pair = pair_of_many(ends);
    pair.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(number); };
    pair.delivers_at_once = stores(ends->out->explain());
    return pair;
}

Pair shared_ring(Carrier carrier) {
    using Out = flow::SharedProducer<Number>;
    const auto ends = to_one_of_many<Out>(
        flow::SharedFanIn<Number>::listen(
            fresh_address(), {.capacity = small(carrier).ring.capacity, .expected = 1}),
        [&](const connect::Address& address) {
            return Out::connect(address, {.carrier = carrier}, soon());
        });
    Pair pair = pair_of_many(ends);
    pair.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(number); };
    pair.delivers_at_once = true;  // no call leaves anything to a later one
    return pair;
}

Pair priorities(Carrier carrier) {
    using Out = flow::PriorityProducer<Number>;
    const auto ends = to_one_of_many<Out>(
        flow::FanIn<Number>::listen(fresh_address(),
                                    {.queue = small(carrier), .levels = 2, .expected = 1}),
        [&](const connect::Address& address) {
            return Out::connect(address, 2, small(carrier), soon());
        });
    Pair pair = pair_of_many(ends);
    pair.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(1, number); };
    pair.delivers_at_once = stores(ends->out->level(1).explain());
    return pair;
}

Pair keyed_fan_out(Carrier carrier) {
    using Out = flow::KeyedFanOut<Number>;
    const auto ends =
        to_one_of_many<Out>(flow::KeyedFanIn<Number>::listen(
                                fresh_address(), 1, {.queue = small(carrier), .expected = 1}),
                            [&](const connect::Address& address) {
                                return Out::connect({{1, address}}, small(carrier), soon());
                            });
    Pair pair = pair_of_many(ends);
    pair.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(number, number); };
    pair.delivers_at_once = stores(ends->out->explain());
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

Pair log(Carrier carrier) {
    using Out = flow::Log<Number>;
    using Reader = flow::LogReader<Number>;
    flow::Options queue = small(carrier);
    queue.ring.capacity = 1024;  // bytes
    // Full where it keeps 512, as nobody acknowledges any.
    auto out = Out::listen(
        fresh_address(),
        {.queue = queue, .retention = {.bytes = 4096, .until_acknowledged = {"nobody"}}});
    const connect::Address address = out.address();
    auto connecting = std::async(
        std::launch::async, [&] { return Reader::connect(address, {.queue = queue}, soon()); });
    while (connecting.wait_for(0s) != std::future_status::ready) (void)out.look_around();
    auto ends = std::make_shared<Ends<Out, Reader>>([&] { return std::move(out); },
                                                    [&] { return connecting.get(); });
    return {.send = [ends](std::uint64_t number) { return ends->out->try_append(number); },
            .receive = [ends](std::uint64_t& number) { return ends->in->try_read(number); },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { EXPECT_EQ(ends->in->close(soon()), Status::ok); },
            .drop_other = [ends] { ends->in.reset(); }};
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
            {"conflating", conflating},
            {"aggregating", aggregating},
            {"windowed", windowed},
            {"fan_out", fan_out},
            {"replicator", replicator},
            {"fan_in", many_to_one<flow::FanIn<Number>>},
            {"shared_ring", shared_ring},
            {"merge", many_to_one<flow::Merge<Number, std::identity{}>>},
            {"priorities", priorities},
            {"log", log},
            {"keyed_fan_out", keyed_fan_out},
            {"latest", latest}};
}

}  // namespace millrace::closing
