// millrace-instructions: one operation after the other, both ends in this process, for callgrind to
// count. Called by scripts/count-instructions, which collects in the functions named `counted_…`
// alone: each makes `operations` calls of one operation and nothing else that a user would not.
//
// Usage: millrace-instructions OPERATION        (one of those listed below)
// Prints: how many operations were counted.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/framework/payload.hpp"
#include "frames.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/dispatcher.hpp"
#include "millrace/message/server.hpp"
#include "millrace/rpc/client.hpp"
#include "millrace/rpc/server.hpp"
#include "requests.hpp"
#include "streams.hpp"

namespace millrace::bench {
namespace {

using base::Status;
using Item = std::array<std::uint64_t, 8>;

base::Deadline patience() { return base::Deadline::after(std::chrono::seconds{60}); }

/// Both ends of something whose first end waits for the second.
template <class First, class Second>
auto both(First&& first, Second&& second) {
    std::optional<decltype(second())> other;
    std::jthread thread{[&] { other.emplace(second()); }};
    auto one = first();
    thread.join();
    return std::pair{std::move(one), std::move(*other)};
}

// The functions that callgrind collects in. Never inlined, and each with a name of its own.

template <class Producer>
[[gnu::noinline]] void counted_enqueue(Producer& producer) {
    Item item{};
    for (int i = 0; i < operations; ++i) {
        item[0] = static_cast<std::uint64_t>(i);
        require(producer.try_enqueue(item), "an item");
    }
}
template <class Consumer>
[[gnu::noinline]] void counted_dequeue(Consumer& consumer) {
    Item item;
    for (int i = 0; i < operations; ++i) {
        require(consumer.try_dequeue(item), "an item");
        keep(item);
    }
}
/// As many items in batches of 16, of 8 bytes each.
template <class Producer>
[[gnu::noinline]] void counted_batches(Producer& producer) {
    std::array<std::uint64_t, 16> batch{};
    for (int i = 0; i < operations; i += 16) {
        batch[0] = static_cast<std::uint64_t>(i);
        require(producer.try_enqueue_batch(batch).status, "a batch");
    }
}
template <class Consumer>
[[gnu::noinline]] void counted_takes(Consumer& consumer) {
    std::array<std::uint64_t, 16> batch;
    for (int i = 0; i < operations; i += 16) {
        require(consumer.try_dequeue_batch(batch).status, "a batch");
        keep(batch);
    }
}
[[gnu::noinline]] void counted_send(message::Channel& channel) {
    Item item{};
    for (int i = 0; i < operations; ++i) {
        item[0] = static_cast<std::uint64_t>(i);
        require(channel.try_send(std::as_bytes(std::span{item})), "a message");
    }
}
[[gnu::noinline]] void counted_receive(message::Channel& channel) {
    Item item;
    std::size_t size = 0;
    for (int i = 0; i < operations; ++i) {
        require(channel.try_receive(std::as_writable_bytes(std::span{item}), size), "a message");
        keep(item);
    }
}
// Not within a counted function, whose name callgrind would find in theirs.
void echo(message::Request& request) { (void)request.answer(request.payload()); }
struct TakeItem {
    Item* item;
    void operator()(const message::Answer& answer) const {
        std::memcpy(item, answer.payload.data(), sizeof *item);
    }
};
[[gnu::noinline]] void counted_submit(message::Client& client, int count) {
    Item item{};
    std::uint64_t id = 0;
    for (int i = 0; i < count; ++i) {
        item[0] = static_cast<std::uint64_t>(i);
        require(client.submit(std::as_bytes(std::span{item}), id), "a request");
    }
}
[[gnu::noinline]] void counted_turns(message::Server& server, std::size_t requests) {
    for (std::size_t answered = 0; answered < requests;) answered += server.turn(echo);
}
[[gnu::noinline]] void counted_answers(message::Client& client, int count) {
    Item item;
    for (int i = 0; i < count; ++i) {
        require(client.poll(TakeItem{&item}), "an answer");
        keep(item);
    }
}
[[gnu::noinline]] void counted_several(message::Client& client, int count) {
    Item item{};
    std::uint64_t first = 0;
    const auto fill = [&item](std::size_t index, std::span<std::byte> room) {
        item[0] = index;
        std::memcpy(room.data(), &item, sizeof item);
    };
    require(client.submit_several(static_cast<std::size_t>(count), sizeof item, fill, first).status,
            "requests");
}
[[gnu::noinline]] void counted_all_answers(message::Client& client, int count) {
    Item item;
    const std::size_t taken = client.poll_all(TakeItem{&item}).count;
    keep(item);
    require(taken == static_cast<std::size_t>(count), "answers");
}
/// Until it has given a server so many requests since it was made, or its ports so many answers.
[[gnu::noinline]] void counted_dispatched_requests(message::Dispatcher& dispatcher,
                                                   std::uint64_t all) {
    while (dispatcher.stats().requests != all) (void)dispatcher.turn();
}
[[gnu::noinline]] void counted_dispatched_answers(message::Dispatcher& dispatcher,
                                                  std::uint64_t all) {
    while (dispatcher.stats().answers != all) (void)dispatcher.turn();
}
struct EchoItem {
    static constexpr std::string_view name = "echo";
    using Request = Item;
    using Response = Item;
};
// As echo(): not within a counted function.
struct CountAnswer {
    std::uint64_t* answered;
    void operator()(const rpc::Result<Item>& answer) const { *answered += answer.ok(); }
};
[[gnu::noinline]] void counted_typed_submit(rpc::Client& client, int count,
                                            std::uint64_t& answered) {
    Item item{};
    for (int i = 0; i < count; ++i) {
        item[0] = static_cast<std::uint64_t>(i);
        require(client.submit<EchoItem>(item, CountAnswer{&answered}, base::Deadline::never()),
                "a call");
    }
}
[[gnu::noinline]] void counted_typed_turns(rpc::Server& server) {
    for (std::size_t answered = 0; answered < operations;) answered += server.turn();
}
[[gnu::noinline]] void counted_typed_answers(rpc::Client& client, int count) {
    for (int i = 0; i < count; ++i) require(client.poll(), "an answer");
}
[[gnu::noinline]] void counted_write(verbs::QueuePair& queue_pair, verbs::RemoteAddress to,
                                     int count) {
    for (int i = 0; i < count; ++i) {
        std::uint64_t word = static_cast<std::uint64_t>(i);
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&word), sizeof(word), 0};
        require(queue_pair.post(verbs::Write{
                    .from = {&slice, 1}, .to = to, .flags = verbs::SendFlags::inlined}) == 0,
                "a WRITE");
    }
}
[[gnu::noinline]] void counted_post_send(verbs::QueuePair& queue_pair, int count) {
    for (int i = 0; i < count; ++i) {
        std::uint64_t word = static_cast<std::uint64_t>(i);
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&word), sizeof(word), 0};
        require(queue_pair.post(
                    verbs::Send{.from = {&slice, 1}, .flags = verbs::SendFlags::inlined}) == 0,
                "a SEND");
    }
}
[[gnu::noinline]] void counted_post_receive(verbs::QueuePair& queue_pair, const ibv_sge& slice,
                                            int count) {
    for (int i = 0; i < count; ++i) {
        require(queue_pair.post(verbs::Receive{.into = {&slice, 1}}) == 0, "a receive");
    }
}
[[gnu::noinline]] void counted_take(verbs::CompletionQueue& queue, int count) {
    verbs::Completion completion;
    for (int i = 0; i < count; ++i) {
        require(queue.poll({&completion, 1}) == 1 && completion.ok(), "a completion");
    }
}
[[gnu::noinline]] void counted_poll(verbs::CompletionQueue& queue) {
    verbs::Completion completion;
    for (int i = 0; i < operations; ++i) {
        require(queue.poll({&completion, 1}) == 0, "an empty queue");
    }
}

template <ring::Design D>
void flow_queue(ring::Carrier carrier) {
    flow::Options options{.ring = {.capacity = 4096, .carrier = carrier},
                          .endpoint = connect::Endpoint::open()};
    auto listener = flow::Listener::listen("127.0.0.1:0", options);
    const auto address = listener.address();
    auto [producer, consumer] =
        both([&] { return flow::Producer<Item, D>::accept(listener, patience()); },
             [&] { return flow::Consumer<Item, D>::connect(address, options, patience()); });
    for (int round = 0; round < rounds; ++round) {
        counted_enqueue(producer);
        counted_dequeue(consumer);
    }
}

void flow_batches(ring::Carrier carrier) {
    constexpr auto fixed = ring::with(ring::design_1, ring::Batching::fixed);
    flow::Options options{.ring = {.capacity = 16384, .batch = 16, .carrier = carrier},
                          .endpoint = connect::Endpoint::open()};
    auto listener = flow::Listener::listen("127.0.0.1:0", options);
    const auto address = listener.address();
    auto [producer, consumer] =
        both([&] { return flow::Producer<std::uint64_t, fixed>::accept(listener, patience()); },
             [&] {
                 return flow::Consumer<std::uint64_t, fixed>::connect(address, options, patience());
             });
    for (int round = 0; round < rounds; ++round) {
        counted_batches(producer);
        counted_takes(consumer);
    }
}

void message_channel(ring::Carrier carrier) {
    message::ChannelOptions options;
    options.carrier = carrier;
    options.ring_bytes = std::size_t{1} << 20;
    auto listener = message::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
    const auto address = listener.address();
    auto [one, other] = both([&] { return listener.accept(patience()); },
                             [&] { return message::connect(address, options, patience()); });
    for (int round = 0; round < rounds; ++round) {
        counted_send(one);
        counted_receive(other);
    }
}

/// Requests of `active` of so many clients, one server. By `tcp` over a Unix socket, and gathered.
void message_server(message::Polling polling, ring::Carrier carrier, int connected,
                    connect::Transport transport = connect::Transport::rc, bool in_batches = false,
                    bool several = false) {
    constexpr int active = 16;
    message::ServerOptions options;
    options.polling = polling;
    options.tuning.carrier = carrier;
    options.max_clients = static_cast<std::uint32_t>(connected);
    options.ring_bytes = std::size_t{32} << 10;
    options.transports = transport;
    const bool by_socket = transport == connect::Transport::tcp;
    message::Server server = message::Server::listen(
        by_socket
            ? connect::Address::parse("unix:@millrace-instructions-" + std::to_string(::getpid()))
            : connect::Address::tcp("127.0.0.1", 0),
        options);
    std::vector<message::Client> clients;
    std::jthread joining{[&] {
        message::ClientOptions chosen;
        chosen.tuning.carrier = carrier;
        chosen.ring_bytes = std::size_t{32} << 10;
        chosen.window = 128;
        chosen.transport = transport;
        chosen.gathers_requests = by_socket;
        for (int i = 0; i < connected; ++i) {
            clients.push_back(message::Client::connect(server.address(), chosen, patience()));
        }
        server.stop();
    }};
    const auto nobody = [](message::Request&) {};
    require(server.serve(nobody, patience()) == Status::closed, "clients");
    joining.join();
    // Of each client, at a time: all of its share, or one batch of it.
    const int asking = in_batches ? 15 : active;
    const int share = in_batches ? 16 : operations / active;
    if (in_batches && !several) {
        for (message::Client& client : clients) client.begin_batch();
    }
    for (int asked = 0; asked < rounds * operations; asked += asking * share) {
        const auto each = [&](auto&& call) {
            for (int i = 0; i < asking; ++i) {
                call(clients[static_cast<std::size_t>(i * (connected / active))]);
            }
        };
        if (several) {
            each([share](message::Client& client) { counted_several(client, share); });
            counted_turns(server, static_cast<std::size_t>(asking * share));
            each([share](message::Client& client) { counted_all_answers(client, share); });
            continue;
        }
        each([share](message::Client& client) {
            counted_submit(client, share);
            // What was gathered goes now.
            require(client.poll([](const message::Answer&) {}) == Status::empty, "no answer yet");
        });
        counted_turns(server, static_cast<std::size_t>(asking * share));
        each([share](message::Client& client) { counted_answers(client, share); });
    }
}

/// Requests of so many bytes of eight ports, which one connection brings to a server.
void dispatched(ring::Carrier carrier, std::size_t bytes) {
    constexpr std::uint32_t count = 8;
    constexpr std::uint32_t share = operations / count;
    message::ServerOptions options;
    options.polling = message::Polling::flag;
    options.tuning.carrier = carrier;
    options.ring_bytes = std::size_t{8} << 20;
    options.tuning.max_window = message::largest_window;
    auto server = message::Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
    message::DispatcherOptions chosen;
    chosen.client.tuning.carrier = carrier;
    chosen.client.ring_bytes = std::size_t{1} << 20;
    chosen.client.window = message::largest_window;
    std::optional<message::Dispatcher> dispatcher;
    std::jthread joining{[&] {
        dispatcher = message::Dispatcher::connect(std::array{server.address()}, chosen, patience());
        server.stop();
    }};
    const auto acknowledge = [](message::Request& request) { (void)request.answer({}); };
    require(server.serve(acknowledge, patience()) == Status::closed, "a dispatcher");
    joining.join();
    dispatcher->adopt();
    std::vector<message::Port> ports;
    for (std::uint32_t i = 0; i < count; ++i) {
        ports.push_back(dispatcher->port({.window = share, .request_bytes = bytes}));
    }
    const std::vector<std::byte> request(bytes);
    for (std::uint64_t round = 1; round <= rounds; ++round) {
        const std::uint64_t all = round * share * count;
        for (std::uint32_t i = 0; i < share; ++i) {
            std::uint64_t id = 0;
            for (message::Port& port : ports) require(port.submit(request, id), "a request");
        }
        counted_dispatched_requests(*dispatcher, all);
        for (std::size_t answered = 0; answered < share * count;) {
            answered += server.turn(acknowledge);
        }
        counted_dispatched_answers(*dispatcher, all);
        for (message::Port& port : ports) {
            while (port.poll([](const message::Answer&) {}) == Status::ok) {
            }
        }
    }
}

/// Requests as calls of a procedure.
void typed_server() {
    constexpr int clients_of_it = 16;
    rpc::ServerOptions options;
    options.messages.polling = message::Polling::flag;
    options.messages.tuning.carrier = ring::Carrier::store;
    options.messages.ring_bytes = std::size_t{32} << 10;
    auto server = rpc::Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
    server.handle<EchoItem>([](const Item& item) { return item; });
    std::vector<rpc::Client> clients;
    std::jthread joining{[&] {
        rpc::ClientOptions chosen;
        chosen.messages.tuning.carrier = ring::Carrier::store;
        chosen.messages.ring_bytes = std::size_t{32} << 10;
        chosen.messages.window = 128;
        for (int i = 0; i < clients_of_it; ++i) {
            clients.push_back(rpc::Client::connect<EchoItem>(server.address(), chosen, patience()));
        }
        server.stop();
    }};
    require(server.serve(patience()) == Status::closed, "clients");
    joining.join();
    constexpr int share = operations / clients_of_it;
    std::uint64_t answered = 0;
    for (rpc::Client& client : clients) client.adopt();
    for (int round = 0; round < rounds; ++round) {
        for (rpc::Client& client : clients) counted_typed_submit(client, share, answered);
        counted_typed_turns(server);
        for (rpc::Client& client : clients) counted_typed_answers(client, share);
    }
    require(answered == rounds * share * clients_of_it, "every answer");
}

/// A signaled WRITE of no bytes, and its completion: frees the slots of what was posted before.
void free_slots(connect::Link& link, verbs::RemoteAddress to) {
    require(link.queue_pair().post(
                verbs::Write{.from = {}, .to = to, .flags = verbs::SendFlags::signaled}) == 0,
            "the last WRITE");
    verbs::Completion completion;
    while (link.send_queue().poll({&completion, 1}) == 0) {
    }
    require(completion.ok(), "the requests' completion");
}

void raw_verbs() {
    constexpr int batch = 50;
    const connect::LinkOptions options{.service = "instructions"};
    auto listener = connect::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
    const auto address = listener.address();
    auto [one, other] = both([&] { return listener.accept(patience()); },
                             [&] { return connect::connect(address, options, patience()); });
    auto memory = other.protection_domain().allocate(64, verbs::Access::remote_write);
    for (int round = 0; round < rounds * operations / batch; ++round) {
        counted_write(one.queue_pair(), memory.remote(), batch);
        free_slots(one, memory.remote());
    }
    for (int round = 0; round < rounds; ++round) counted_poll(one.send_queue());
}

void raw_sends() {
    constexpr int batch = 50;
    const connect::LinkOptions options{.service = "instructions", .max_receive_requests = batch};
    auto listener = connect::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
    const auto address = listener.address();
    auto [one, other] = both([&] { return listener.accept(patience()); },
                             [&] { return connect::connect(address, options, patience()); });
    auto memory = other.protection_domain().allocate(64, verbs::Access::remote_write);
    const ibv_sge room = memory.slice(0, 8);
    for (int round = 0; round < rounds * operations / batch; ++round) {
        counted_post_receive(other.queue_pair(), room, batch);
        counted_post_send(one.queue_pair(), batch);
        counted_take(other.receive_queue(), batch);
        free_slots(one, memory.remote());
    }
}

int run(std::string_view operation) {
    using ring::Carrier;
    if (operation == "flow-design-1-store") {
        flow_queue<ring::design_1>(Carrier::store);
    } else if (operation == "flow-design-1-post") {
        flow_queue<ring::design_1>(Carrier::post);
    } else if (operation == "flow-design-2-store") {
        flow_queue<ring::design_2>(Carrier::store);
    } else if (operation == "flow-design-2-post") {
        flow_queue<ring::design_2>(Carrier::post);
    } else if (operation == "flow-batches-store") {
        flow_batches(Carrier::store);
    } else if (operation == "flow-batches-post") {
        flow_batches(Carrier::post);
    } else if (operation == "message-store") {
        message_channel(Carrier::store);
    } else if (operation == "message-post") {
        message_channel(Carrier::post);
    } else if (operation == "server-flag") {
        message_server(message::Polling::flag, Carrier::store, 16);
    } else if (operation == "server-dense") {
        message_server(message::Polling::dense, Carrier::store, 16);
    } else if (operation == "server-dense-post") {
        message_server(message::Polling::dense, Carrier::post, 16);
    } else if (operation == "server-typed") {
        typed_server();
    } else if (operation == "dispatched-store") {
        dispatched(Carrier::store, sizeof(Item));
    } else if (operation == "dispatched-post") {
        dispatched(Carrier::post, sizeof(Item));
    } else if (operation == "dispatched-post-4k") {
        dispatched(Carrier::post, 4096);
    } else if (operation == "server-batches") {
        message_server(message::Polling::flag, Carrier::store, 16, connect::Transport::rc, true);
    } else if (operation == "server-several") {
        message_server(message::Polling::flag, Carrier::store, 16, connect::Transport::rc, true,
                       true);
    } else if (operation == "server-tcp") {
        message_server(message::Polling::automatic, Carrier::automatic, 16,
                       connect::Transport::tcp);
    } else if (operation == "server-flag-many") {
        message_server(message::Polling::flag, Carrier::store, 256);
    } else if (operation == "server-dense-many") {
        message_server(message::Polling::dense, Carrier::store, 256);
    } else if (operation == "verbs") {
        raw_verbs();
    } else if (operation == "sends") {
        raw_sends();
    } else if (count_requests(operation) || count_frames(operation)) {
        std::printf("%d\n", operations);
        return 0;
    } else if (!count_streams(operation)) {
        std::fprintf(
            stderr,
            "usage: millrace-instructions "
            "flow-design-1-store|flow-design-1-post|flow-design-2-store|"
            "flow-design-2-post|flow-batches-store|flow-batches-post|message-store|"
            "message-post|server-batches|server-several|server-flag|server-dense|server-dense-post|"
            "server-typed|server-tcp|"
            "dispatched-store|dispatched-post|dispatched-post-4k|"
            "server-flag-many|server-dense-many|verbs|sends|stream-store|stream-post|"
            "stream-direct|rpc-{Write|Send}{Write|Send}-BYTES|"
            "frames-{copied|gathered}-BYTES\n");
        return 2;
    }
    std::printf("%d\n", rounds * operations);
    return 0;
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
    try {
        return millrace::bench::run(argc == 2 ? argv[1] : "");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "millrace-instructions: %s\n", error.what());
        return 1;
    }
}
