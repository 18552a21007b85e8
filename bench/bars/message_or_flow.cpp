// Why a message channel has a ring of its own (docs/decisions/0003): its round trip of 64 bytes
// to the same over two flow queues of bytes, one each way, between the same two processes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "bench/framework/bars.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "message_round_trip.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::bench {
namespace {

/// Two flow queues, as an end of a channel.
struct TwoQueues {
    flow::Producer<flow::Bytes> out;
    flow::Consumer<flow::Bytes> in;

    base::Status send(std::span<const std::byte> message, const base::Deadline& deadline) {
        return out.enqueue(message, deadline);
    }
    base::Status receive(std::span<std::byte> into, std::size_t& size,
                         const base::Deadline& deadline) {
        return in.dequeue(into, size, deadline);
    }
};

/// Rings as large as a channel's, which waits in the same way.
double two_queues_round_trip(std::uint64_t round_trips) {
    const message::ChannelOptions of_channel;
    const flow::Options options{.ring = {.capacity = of_channel.ring_bytes},
                                .wait = of_channel.wait};
    using Out = flow::Producer<flow::Bytes>;
    using In = flow::Consumer<flow::Bytes>;
    return round_trip_of<64>(
        round_trips, Figure::median,
        [&](Pair& pair) {
            auto listener = flow::Listener::listen("127.0.0.1:0", options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            auto out = Out::accept(listener, patience());
            return TwoQueues{std::move(out), In::accept(listener, patience())};
        },
        [&](Pair& pair) {
            const connect::Address first = address_of_first(pair);
            auto in = In::connect(first, options, patience());
            return TwoQueues{Out::connect(first, options, patience()), std::move(in)};
        });
}

const BarRegistration channel_to_two_queues{
    ratio_bar("foundation", "message round trip of 64 B to one over two flow queues of bytes", 1.0,
              Sense::at_most, {"channel", [] { return channel_round_trip<64>(20'000); }, "ns"},
              {"two queues", [] { return two_queues_round_trip(20'000); }, "ns"})};

}  // namespace
}  // namespace millrace::bench
