#include "streams.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "bench/framework/payload.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/stream/buffer.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::bench {
namespace {

using base::Status;
using Item = std::array<std::uint64_t, 8>;

/// At a time: fewer messages than an end has slots for.
constexpr int batch = 50;

base::Deadline patience() { return base::Deadline::after(std::chrono::seconds{60}); }

struct Ends {
    std::optional<stream::Socket> one;
    std::optional<stream::Socket> other;

    explicit Ends(const stream::SocketOptions& options) {
        auto listener = stream::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
        const auto address = listener.address();
        std::jthread thread{[&] { other.emplace(stream::connect(address, options, patience())); }};
        one.emplace(listener.accept(patience()));
        thread.join();
    }
};

// The functions that callgrind collects in (main.cpp).

[[gnu::noinline]] void counted_stream_write(stream::Socket& socket) {
    Item item{};
    std::size_t size = 0;
    for (int i = 0; i < batch; ++i) {
        item[0] = static_cast<std::uint64_t>(i);
        require(socket.try_write_some(std::as_bytes(std::span{item}), size), "bytes to be written");
    }
}
[[gnu::noinline]] void counted_stream_read(stream::Socket& socket) {
    Item item;
    std::size_t size = 0;
    for (int i = 0; i < batch; ++i) {
        require(socket.try_read_some(std::as_writable_bytes(std::span{item}), size),
                "bytes to be read");
        keep(item);
    }
}
[[gnu::noinline]] void counted_stream_receive(stream::Socket& socket, stream::Buffer& into) {
    for (std::size_t i = 0; i < batch; ++i) {
        require(socket.receive(into.slice(i * sizeof(Item), sizeof(Item)), i), "a receive");
    }
}
[[gnu::noinline]] void counted_stream_send(stream::Socket& socket, stream::Buffer& from) {
    for (std::size_t i = 0; i < batch; ++i) {
        require(socket.send(from.slice(i * sizeof(Item), sizeof(Item)), i), "a send");
    }
}
[[gnu::noinline]] void counted_stream_completion(stream::Socket& socket) {
    stream::Completion done;
    for (int i = 0; i < batch; ++i) {
        require(socket.poll(done), "a completion");
        require(done.status, "an operation");
    }
}

void through_the_ring(ring::Carrier carrier) {
    Ends ends{{.carrier = carrier}};
    for (int round = 0; round < rounds * operations / batch; ++round) {
        counted_stream_write(*ends.one);
        counted_stream_read(*ends.other);
    }
}

void into_receives() {
    stream::Buffer from{batch * sizeof(Item)};
    stream::Buffer into{batch * sizeof(Item)};
    Ends ends{{.mode = stream::Mode::direct}};
    for (int round = 0; round < rounds * operations / batch; ++round) {
        counted_stream_receive(*ends.other, into);
        counted_stream_send(*ends.one, from);
        counted_stream_completion(*ends.other);
        stream::Completion done;
        for (int i = 0; i < batch; ++i) require(ends.one->wait(done, patience()), "a send");
    }
}

}  // namespace

bool count_streams(std::string_view operation) {
    if (operation == "stream-store") {
        through_the_ring(ring::Carrier::store);
    } else if (operation == "stream-post") {
        through_the_ring(ring::Carrier::post);
    } else if (operation == "stream-direct") {
        into_receives();
    } else {
        return false;
    }
    return true;
}

}  // namespace millrace::bench
