// Ends that send and receive: channels, byte streams.
#include <array>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <span>

#include <gtest/gtest.h>

#include "ends.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::closing {
namespace {

template <class End>
Status try_send(std::optional<End>& end, std::uint64_t number) {
    return end->try_send(std::as_bytes(std::span<const std::uint64_t>{&number, 1}));
}
template <class End>
Status try_receive(std::optional<End>& end, std::uint64_t& number) {
    std::size_t size = 0;
    return end->try_receive(std::as_writable_bytes(std::span<std::uint64_t>{&number, 1}), size);
}
// Long enough to fill a ring by a few.
using Long = std::array<std::uint64_t, 1024>;
template <>
Status try_send(std::optional<stream::Socket>& end, std::uint64_t number) {
    static std::deque<Long> sent;  // a send refers to its memory until it has completed
    sent.emplace_back().front() = number;
    return end->send(std::as_bytes(std::span{sent.back()}), number);
}
template <>
Status try_receive(std::optional<stream::Socket>& end, std::uint64_t& number) {
    std::size_t size = 0;
    Long words{};
    const Status status = end->try_read_some(std::as_writable_bytes(std::span{words}), size);
    number = words.front();
    return status;
}

template <class End>
Pair both_ways(std::shared_ptr<Ends<End, End>> ends) {
    return {.send = [ends](std::uint64_t number) { return try_send(ends->out, number); },
            .receive = [ends](std::uint64_t& number) { return try_receive(ends->in, number); },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { EXPECT_EQ(ends->in->close(soon()), Status::ok); },
            .drop_other = [ends] { ends->in.reset(); },
            .answer = [ends](std::uint64_t number) { return try_send(ends->in, number); },
            .hear = [ends](std::uint64_t& number) { return try_receive(ends->out, number); }};
}

Pair channel(Carrier carrier) {
    message::ChannelOptions options;
    options.ring_bytes = 4096;
    options.carrier = carrier;
    auto listener = message::Listener::listen(connect::Address::parse(fresh_address()), options);
    return both_ways(std::make_shared<Ends<message::Channel, message::Channel>>(
        [&] { return message::connect(listener.address(), options, soon()); },
        [&] { return listener.accept(soon()); }));
}

template <stream::Mode mode>
Pair byte_stream(Carrier carrier) {
    stream::SocketOptions options;
    options.mode = mode;
    options.type = stream::Type::seqpacket;
    options.ring_bytes = 64 << 10;
    options.sends = 16;
    options.carrier = carrier;
    auto listener = stream::Listener::listen(connect::Address::parse(fresh_address()), options);
    return both_ways(std::make_shared<Ends<stream::Socket, stream::Socket>>(
        [&] { return stream::connect(listener.address(), options, soon()); },
        [&] { return listener.accept(soon()); }));
}

}  // namespace

std::vector<Made> two_ways() {
    return {{"channel", channel},
            {"stream_dynamic", byte_stream<stream::Mode::dynamic>},
            {"stream_indirect", byte_stream<stream::Mode::indirect>}};
}

}  // namespace millrace::closing
