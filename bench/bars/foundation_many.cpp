// Bars of one thread with many connections: what an idle channel takes of the process that accepted
// it, how fast many join, what a hub of idle ones costs, and a message among them.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/bars.hpp"
#include "framework/meeting.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t ring = 4096;

message::ChannelOptions channel_options() {
    message::ChannelOptions chosen;
    chosen.ring_bytes = ring;
    return chosen;
}

/// As many of `wanted` clients as the limit on open files allows, which is raised.
std::size_t allowed(std::size_t wanted) {
    rlimit files{};
    require(getrlimit(RLIMIT_NOFILE, &files) == 0, "the limit on open files");
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    return std::min<std::size_t>(wanted, (files.rlim_cur - 100) / 10);
}

struct Use {
    double descriptors = 0;
    double kibibytes = 0;
};
Use use_of_this_process() {
    Use use;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
        (void)entry;
        ++use.descriptors;
    }
    std::ifstream statm{"/proc/self/statm"};
    double pages = 0, resident = 0;
    statm >> pages >> resident;
    use.kibibytes = resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1024;
    return use;
}

/// Listens, tells the other side where, and accepts so many.
std::vector<message::Channel> accept_all(Pair& pair, std::size_t count) {
    auto listener =
        message::Listener::listen(connect::Address::tcp("127.0.0.1", 0), channel_options());
    pair.set_value(0, listener.address().port());
    pair.meet();
    std::vector<message::Channel> channels;
    channels.reserve(count);
    while (channels.size() != count) channels.push_back(listener.accept(patience()));
    return channels;
}
std::vector<message::Channel> connect_all(const connect::Address& address, std::size_t count) {
    std::vector<message::Channel> channels;
    channels.reserve(count);
    while (channels.size() != count) {
        channels.push_back(message::connect(address, channel_options(), patience()));
    }
    return channels;
}

/// What `channels` cost the hub that they are in: an echo.
void serve(connect::Hub& hub, std::vector<message::Channel>& channels) {
    for (message::Channel& channel : channels) {
        hub.add(channel.descriptor(), [&hub, &channel] {
            std::array<std::byte, 64> bytes;
            std::size_t size = 0;
            base::Status status;
            while ((status = channel.try_receive(std::span<std::byte>{bytes}, size)) ==
                   base::Status::ok) {
                require(channel.try_send(std::span<const std::byte>{bytes}), "an answer");
            }
            if (status != base::Status::empty) hub.stop();
        });
    }
}

/// What one more idle channel takes of the process that has accepted it.
double use_of_one(double Use::*what) {
    const std::size_t count = allowed(500);
    return run_pair(
        {},
        [&](Pair& pair) {
            std::vector<message::Channel> some = accept_all(pair, 1);
            pair.meet();
            (void)some.front().descriptor();
            const Use before = use_of_this_process();
            auto channels = accept_all(pair, count);
            for (message::Channel& channel : channels) (void)channel.descriptor();
            const Use after = use_of_this_process();
            pair.meet();
            return (after.*what - before.*what) / static_cast<double>(count);
        },
        [&](Pair& pair) {
            const auto one = connect_all(address_of_first(pair), 1);
            pair.meet();
            const auto channels = connect_all(address_of_first(pair), count);
            pair.meet();
        });
}

double seconds_of_joins() {
    const std::size_t count = allowed(2048);
    const double ns = run_pair(
        {},
        [&](Pair& pair) {
            pair.meet();  // the other side listens
            const auto start = base::Clock::now();
            const auto channels = connect_all(
                connect::Address::tcp("127.0.0.1", static_cast<std::uint16_t>(pair.value(0))),
                count);
            const double took = nanoseconds_since(start);
            pair.meet();
            return took;
        },
        [&](Pair& pair) {
            const auto channels = accept_all(pair, count);
            pair.meet();
        });
    return ns / 1e9 * 2048 / static_cast<double>(count);
}

double processor_share_of_idle() {
    const std::size_t count = allowed(2048);
    return run_pair(
        {.deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            auto channels = accept_all(pair, count);
            connect::Hub hub;
            serve(hub, channels);
            (void)hub.run(base::Deadline::after(std::chrono::milliseconds{500}));  // all are quiet
            timespec before{}, after{};
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
            (void)hub.run(base::Deadline::after(std::chrono::seconds{2}));
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
            pair.meet();
            return 100.0 *
                   (static_cast<double>(after.tv_sec - before.tv_sec) +
                    static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9) /
                   2.0;
        },
        [&](Pair& pair) {
            const auto channels = connect_all(address_of_first(pair), count);
            // Asleep meanwhile: meet() spins, on a core of its own.
            std::this_thread::sleep_for(std::chrono::seconds{3});
            pair.meet();
        });
}

/// Nanoseconds of an echo over one of so many channels; the server is a hub, or waits on the one.
double echo_round_trip(std::size_t wanted, bool hub_serves) {
    const std::size_t count = allowed(wanted);
    const Windows windows{4'000};
    return run_pair(
        {.deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            auto channels = connect_all(address_of_first(pair), count);
            message::Channel& channel = channels[count / 2];
            std::array<std::byte, 64> bytes{};
            std::size_t size = 0;
            const auto deadline = patience();
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                stamp(bytes.data(), bytes.size(), number);
                require(channel.send(std::span<const std::byte>{bytes}, deadline), "a message");
                require(channel.receive(std::span<std::byte>{bytes}, size, deadline), "an answer");
                require(stamped(bytes.data(), bytes.size(), number), "an answer that is right");
            });
            for (message::Channel& each : channels) (void)each.close(patience());
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            auto channels = accept_all(pair, count);
            if (hub_serves) {
                connect::Hub hub;
                serve(hub, channels);
                pair.meet();
                (void)hub.run(patience());
            } else {
                pair.meet();
                std::array<std::byte, 64> bytes{};
                std::size_t size = 0;
                const auto deadline = patience();
                while (channels[count / 2].receive(std::span<std::byte>{bytes}, size, deadline) ==
                       base::Status::ok) {
                    require(channels[count / 2].send(std::span<const std::byte>{bytes}, deadline),
                            "an answer");
                }
            }
            pair.meet();
        });
}

Bar one_figure(std::string name, double limit, std::string unit, std::function<double()> run) {
    return {.group = "foundation",
            .name = std::move(name),
            .limit = limit,
            .sense = Sense::at_most,
            .unit = std::move(unit),
            .measure = [run](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add({"ours", run});
                return rounds.run().summary("ours");
            }};
}

const BarRegistration descriptors{one_figure("descriptors of one more idle channel in a loop", 3,
                                             "", [] { return use_of_one(&Use::descriptors); })};
const BarRegistration memory_of_many{
    one_figure("memory of one more idle channel, its ring of 4 KiB included", 20, "KiB",
               [] { return use_of_one(&Use::kibibytes); })};
const BarRegistration joins{
    one_figure("2,048 channels joining one after the other", 5, "s", seconds_of_joins)};
const BarRegistration idle{one_figure("processor's share for 2,048 idle channels in a hub", 1, "%",
                                      processor_share_of_idle)};
const BarRegistration echo{
    {.group = "foundation",
     .name = "echo of 64 B among 1,000 channels in a hub to one alone that is waited for",
     .limit = 1.3,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"among", [] { return echo_round_trip(1000, true); }, "ns"});
         rounds.add({"alone", [] { return echo_round_trip(1, false); }, "ns"});
         return rounds.run().ratio("among", "alone");
     }}};

}  // namespace
}  // namespace millrace::bench
