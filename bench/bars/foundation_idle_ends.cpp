// Bars of what an idle end takes of the process that has accepted it: a consumer of a flow queue,
// a byte stream; and of its processor. (A channel's are in foundation_many.cpp.)
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "bench/framework/bars.hpp"
#include "bench/framework/one_figure.hpp"
#include "bench/framework/payload.hpp"
#include "idle_streams.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/stream/socket.hpp"
#include "use_of_ends.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t idle_ring = 4096;

struct FlowQueue {
    using Accepted = flow::Consumer<std::uint64_t>;
    using Connected = flow::Producer<std::uint64_t>;
    static flow::Options options() {
        flow::Options chosen;
        constexpr std::size_t slot = 2 * sizeof(std::uint64_t);  // an item and its mark
        chosen.ring.capacity = idle_ring / slot;
        return chosen;
    }
    static flow::Listener listen(const connect::Address& address) {
        return flow::Listener::listen(address, options());
    }
    static Accepted accept(flow::Listener& listener) {
        return Accepted::accept(listener, patience());
    }
    static Connected connect(const connect::Address& address) {
        return Connected::connect(address, options(), patience());
    }
};

struct ByteStream {
    using Accepted = stream::Socket;
    using Connected = stream::Socket;
    static stream::SocketOptions options() {
        stream::SocketOptions chosen;
        chosen.ring_bytes = idle_ring;
        return chosen;
    }
    static stream::Listener listen(const connect::Address& address) {
        return stream::Listener::listen(address, options());
    }
    static Accepted accept(stream::Listener& listener) { return listener.accept(patience()); }
    static Connected connect(const connect::Address& address) {
        return stream::connect(address, options(), patience());
    }
};

/// Of a core, for a hub of idle streams that nobody writes to, in percent.
double processor_share_of_idle_streams() {
    return with_idle_streams(allowed(1000), std::chrono::seconds{3},
                             [](connect::Hub& hub) { return processor_share_of(hub); });
}

const BarRegistration consumers_descriptors{
    one_figure("descriptors of one more idle consumer in a loop", 3, "",
               [] { return use_of_one<FlowQueue>(&Use::descriptors); })};
const BarRegistration consumers_memory{
    one_figure("memory of one more idle consumer, its ring of 4 KiB included", 20, "KiB",
               [] { return use_of_one<FlowQueue>(&Use::kibibytes); })};
const BarRegistration streams_descriptors{
    one_figure("descriptors of one more idle byte stream in a loop", 3, "",
               [] { return use_of_one<ByteStream>(&Use::descriptors); })};
const BarRegistration streams_memory{
    one_figure("memory of one more idle byte stream, its ring of 4 KiB included", 20, "KiB",
               [] { return use_of_one<ByteStream>(&Use::kibibytes); })};
const BarRegistration streams_processor{
    one_figure("processor's share for 1,000 idle byte streams in a hub", 1, "%",
               processor_share_of_idle_streams)};

}  // namespace
}  // namespace millrace::bench
