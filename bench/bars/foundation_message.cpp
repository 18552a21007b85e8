// Bars of the message channel: a round trip of 64 bytes, sent and received by copy as most users
// do, beside the ideal hand-over (which copies as often) and a blocking Unix stream socket.
#include <array>
#include <cstdint>
#include <span>

#include "framework/bars.hpp"
#include "framework/meeting.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"
#include "limits/hand_over.hpp"
#include "limits/sockets.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t size = 64;
using Message = std::array<std::byte, size>;

void send(message::Channel& channel, Message& out, std::uint64_t number,
          const base::Deadline& deadline) {
    stamp(out.data(), size, number);
    require(channel.send(std::span<const std::byte>{out}, deadline), "a message that was sent");
}

void receive(message::Channel& channel, Message& in, std::uint64_t number,
             const base::Deadline& deadline) {
    std::size_t received = 0;
    const auto status = channel.receive(std::span<std::byte>{in}, received, deadline);
    require(status == base::Status::ok && received == size && stamped(in.data(), size, number),
            "a message over the channel");
    keep(read_all(in.data(), size));
}

double channel_round_trip(std::uint64_t round_trips) {
    const Windows windows{round_trips};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto channel = accept_second(
                pair, [](const auto& address) { return message::Listener::listen(address); });
            const auto deadline = patience();
            Message out{};
            Message in{};
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                send(channel, out, number, deadline);
                receive(channel, in, number, deadline);
            });
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            auto channel = message::connect(address_of_first(pair), {}, patience());
            const auto deadline = patience();
            Message out{};
            Message in{};
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                receive(channel, in, number, deadline);
                send(channel, out, number, deadline);
            }
            pair.meet();  // nobody leaves while the other still waits
        });
}

const Contender ours{"channel", [] { return channel_round_trip(20'000); }, "ns"};

const BarRegistration to_ideal{
    {.group = "foundation",
     .name = "message round trip of 64 B to the ideal hand-over",
     .limit = 1.8,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add(ours);
         rounds.add({"ideal", [] { return message_round_trip(size, 20'000); }, "ns"});
         return rounds.run().ratio("channel", "ideal");
     }}};

const BarRegistration to_socket{
    {.group = "foundation",
     .name = "blocking Unix stream socket round trip of 64 B to a message's",
     .limit = 20,
     .sense = Sense::at_least,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add(ours);
         rounds.add({"socket",
                     [] {
                         return socket_round_trip(SocketKind::unix_stream, SocketWait::blocking,
                                                  size, 2'000);
                     },
                     "ns"});
         return rounds.run().ratio("socket", "channel");
     }}};

}  // namespace
}  // namespace millrace::bench
