// Bars of the message channel: round trips, sent and received by copy as most users do, to the
// ideal hand-over (which copies as often), what others offer on one host, and Unix stream sockets.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "bench/framework/bars.hpp"
#include "bench/limits/boost_queue.hpp"
#include "bench/limits/hand_over.hpp"
#include "bench/limits/sockets.hpp"
#include "bench/peers/ucx.hpp"
#include "message_round_trip.hpp"

namespace millrace::bench {
namespace {

const Contender ours{"channel", [] { return channel_round_trip<64>(20'000); }, "ns"};

/// How many times as long as the other's a message's round trip takes.
Bar message_bar(std::string name, double limit, Contender channel, Contender other) {
    return ratio_bar("foundation", std::move(name), limit, Sense::at_most, std::move(channel),
                     std::move(other));
}

const BarRegistration message_to_ideal{
    message_bar("message round trip of 64 B to the ideal hand-over", 1.3, ours,
                {"ideal", [] { return message_round_trip(64, 20'000); }, "ns"})};
const BarRegistration to_ideal_of_4_kib{
    message_bar("message round trip of 4 KiB to the ideal hand-over", 1.25,
                {"channel", [] { return channel_round_trip<4096>(8'000); }, "ns"},
                {"ideal", [] { return message_round_trip(4096, 8'000); }, "ns"})};
/// Through rings as large as the channel's: a single slot's lines are few enough for some
/// processors to bring them in half the time.
Contender ideal_through_rings(std::size_t size, std::uint64_t round_trips) {
    return {"ideal through rings",
            [=] { return message_round_trip(size, round_trips, std::size_t{256} << 10); }, "ns"};
}
const BarRegistration message_to_rings{
    message_bar("message round trip of 64 B to the ideal hand-over through rings as large", 1.3,
                ours, ideal_through_rings(64, 20'000))};
const BarRegistration to_rings_of_4_kib{
    message_bar("message round trip of 4 KiB to the ideal hand-over through rings as large", 1.25,
                {"channel", [] { return channel_round_trip<4096>(8'000); }, "ns"},
                ideal_through_rings(4096, 8'000))};
const BarRegistration message_to_boost{
    message_bar("message round trip of 64 B to boost's spsc_queue, threads", 1.0, ours,
                {"boost", [] { return boost_round_trip(20'000); }, "ns"})};
const BarRegistration to_ucx{
    message_bar("message round trip of 64 B to UCX tag_lat over posix, means", 1.0,
                {"channel", [] { return channel_round_trip<64>(200'000, Figure::mean); }, "ns"},
                {"ucx", [] { return ucx_round_trip(64, 200'000); }, "ns"})};

/// How many times as long as a message's a socket's round trip takes.
Bar socket_bar(std::string name, double limit, SocketWait wait, std::uint64_t round_trips) {
    return {.group = "foundation",
            .name = std::move(name),
            .limit = limit,
            .sense = Sense::at_least,
            .unit = "x",
            .measure = [wait, round_trips](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add(ours);
                rounds.add({"socket",
                            [wait, round_trips] {
                                return socket_round_trip(SocketKind::unix_stream, wait, 64,
                                                         round_trips);
                            },
                            "ns"});
                return rounds.run().ratio("socket", "channel");
            }};
}

const BarRegistration to_blocking_socket{
    socket_bar("blocking Unix stream socket round trip of 64 B to a message's", 20,
               SocketWait::blocking, 2'000)};
const BarRegistration to_spinning_socket{
    socket_bar("spinning Unix stream socket round trip of 64 B to a message's", 7,
               SocketWait::spinning, 4'000)};

}  // namespace
}  // namespace millrace::bench
