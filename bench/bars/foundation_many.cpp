// Bars of one thread with many connections: what an idle channel takes of the process that accepted
// it, how fast many join, what a hub of idle ones costs, and a message among them.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <sys/prctl.h>

#include "bench/framework/bars.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/one_figure.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/message/channel.hpp"
#include "use_of_ends.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t ring = 4096;

message::ChannelOptions channel_options() {
    message::ChannelOptions chosen;
    chosen.ring_bytes = ring;
    return chosen;
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
        hub.add_end(channel.descriptor(), [&hub, &channel] {
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

struct Channels {
    using Accepted = message::Channel;
    using Connected = message::Channel;
    static message::Listener listen(const connect::Address& address) {
        return message::Listener::listen(address, channel_options());
    }
    static Accepted accept(message::Listener& listener) { return listener.accept(patience()); }
    static Connected connect(const connect::Address& address) {
        return message::connect(address, channel_options(), patience());
    }
};

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
            const double share = processor_share_of(hub);
            pair.meet();
            return share;
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

/// Nanoseconds of an echo that one of so many clients asks of a hub that is asleep.
double wake_up_of_hub(std::size_t wanted) {
    const std::size_t count = allowed(wanted);
    return run_pair(
        {.deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            auto channels = connect_all(address_of_first(pair), count);
            pair.meet();
            std::vector<double> times;
            for (std::uint64_t number = 0; number != 300; ++number) {
                // Longer than it spins and yields. Any of them, as any may come.
                std::this_thread::sleep_for(std::chrono::milliseconds{2});
                message::Channel& channel = channels[number * 997 % count];
                std::array<std::byte, 64> bytes{};
                std::size_t size = 0;
                stamp(bytes.data(), bytes.size(), number);
                const auto start = base::Clock::now();
                require(channel.try_send(std::span<const std::byte>{bytes}), "a message");
                require(channel.receive(std::span<std::byte>{bytes}, size, patience()),
                        "an answer");
                times.push_back(nanoseconds_since(start));
                require(stamped(bytes.data(), bytes.size(), number), "an answer that is right");
            }
            for (message::Channel& each : channels) (void)each.close(patience());
            pair.meet();
            return quantile(std::move(times), 0.5);
        },
        [&](Pair& pair) {
            auto channels = accept_all(pair, count);
            connect::Hub hub;
            serve(hub, channels);
            pair.meet();
            (void)hub.run(patience());
            pair.meet();
        });
}

/// Clients that join one after the other, 1 ms after the last, and stay: by one step each time.
class Joining {
  public:
    explicit Joining(const connect::Address& address) : address_{address} {}
    void step() {
        if (!next_.has_value()) {
            if (base::Clock::now() < due_) return;
            next_.emplace(address_, channel_options());
        }
        if (auto channel = next_->try_connect()) {
            joined_.push_back(std::move(*channel));
            next_.reset();
            due_ = base::Clock::now() + std::chrono::milliseconds{1};
        }
    }
    [[nodiscard]] std::size_t joined() const noexcept { return joined_.size(); }

  private:
    connect::Address address_;
    std::optional<message::Connector> next_;
    std::vector<message::Channel> joined_;
    base::Clock::time_point due_{};
};

/// Where a server accepts newcomers.
enum class Accepting : std::uint8_t {
    apart,     ///< in a thread of its own
    in_turns,  ///< in the hub that serves
};

/// Sleeps of this thread end in time: the kernel adds 50 us otherwise.
class PreciseSleeps {
  public:
    PreciseSleeps() noexcept : before_{prctl(PR_GET_TIMERSLACK)} { set(1); }
    PreciseSleeps(const PreciseSleeps&) = delete;
    PreciseSleeps& operator=(const PreciseSleeps&) = delete;
    ~PreciseSleeps() { set(before_ > 0 ? static_cast<unsigned long>(before_) : 0); }

    /// And looks at the clock for the last of it.
    static void until(base::Clock::time_point time) {
        constexpr auto looks_for = std::chrono::microseconds{40};
        if (time - base::Clock::now() > looks_for) std::this_thread::sleep_until(time - looks_for);
        while (base::Clock::now() < time) base::pause();
    }

  private:
    static void set(unsigned long ns) noexcept { (void)prctl(PR_SET_TIMERSLACK, ns); }
    int before_;
};

/// The 99th percentile, in ns, of echoes that a client asks of a hub, one each 100 us: of windows
/// of a hundred, the median one, so that it is not what takes a processor away for a moment. With
/// `joins`, so many others join the same hub meanwhile, some three to a window. They do so in the
/// client's thread, as the machine may have no third processor, by a step at a random moment
/// between two echoes. An echo that is due before their step has ended waits for that end, and is
/// counted from there: it was another program's, which would have had a processor of its own. So
/// would have had the server's thread that accepts: it has the client's, while that sleeps between
/// two echoes.
double p99_of_echoes(std::size_t joins, Accepting how) {
    constexpr std::size_t fewest = 20'000;
    constexpr std::size_t window = 100;
    constexpr auto period = std::chrono::microseconds{100};
    const Cores cores = two_cores();
    return run_pair(
        {.deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            const std::size_t wanted = allowed(joins);
            const connect::Address address = address_of_first(pair);
            const PreciseSleeps precise;
            // It does not offer its processor while it waits for an answer.
            message::ChannelOptions options = channel_options();
            options.wait.spin = std::chrono::seconds{1};
            message::Channel channel = message::connect(address, options, patience());
            Joining others{address};
            std::minstd_rand random;
            std::vector<double> times;  // of this window
            std::size_t before = 0;     // had joined when it began
            std::vector<double> percentiles;
            pair.meet();
            const auto goes_on = [&] {
                return joins == 0 ? percentiles.size() * window < fewest
                                  : others.joined() != wanted;
            };
            for (std::uint64_t number = 0; goes_on(); ++number) {
                auto due = base::Clock::now();
                if (joins != 0) {
                    PreciseSleeps::until(due + period * (random() % 1024) / 1024);
                    others.step();
                }
                due = std::max(due + period, base::Clock::now());
                PreciseSleeps::until(due);
                due = std::max(due, base::Clock::now());
                std::array<std::byte, 64> bytes{};
                std::size_t size = 0;
                stamp(bytes.data(), bytes.size(), number);
                require(channel.try_send(std::span<const std::byte>{bytes}), "a message");
                require(channel.receive(std::span<std::byte>{bytes}, size, patience()),
                        "an answer");
                require(stamped(bytes.data(), bytes.size(), number), "an answer that is right");
                times.push_back(nanoseconds_since(due));
                if (times.size() != window) continue;
                // The hundredth is one of those that met a join, if there were two of these.
                if (joins == 0 || others.joined() - before >= 2) {
                    percentiles.push_back(quantile(std::move(times), 0.99));
                }
                times.clear();
                before = others.joined();
            }
            pair.set_value(1, 1);
            pair.meet();
            require(!percentiles.empty(), "two joins within a hundred echoes");
            return quantile(std::move(percentiles), 0.5);
        },
        [&](Pair& pair) {
            (void)allowed(joins);
            auto listener =
                message::Listener::listen(connect::Address::tcp("127.0.0.1", 0), channel_options());
            pair.set_value(0, listener.address().port());
            pair.meet();
            std::vector<message::Channel> first;
            first.push_back(listener.accept(patience()));
            pair.meet();
            connect::Hub hub;
            serve(hub, first);
            std::list<std::vector<message::Channel>> joined;
            const auto take = [&](message::Channel channel) {
                joined.emplace_back().push_back(std::move(channel));
                serve(hub, joined.back());
            };
            std::optional<connect::Acceptor> acceptor;
            if (how == Accepting::apart) {
                acceptor.emplace(listener, hub, take,
                                 connect::AcceptorOptions{
                                     .priority = connect::AcceptorOptions::Priority::background,
                                     .cores = {cores.first}});
            } else {
                hub.add(listener.descriptor(), [&] {
                    while (auto channel = listener.try_accept()) take(std::move(*channel));
                });
            }
            while (pair.value(1) == 0) {
                if (hub.turn(64) == 0) (void)hub.rest(base::Deadline::after(period));
            }
            pair.meet();
        });
}

const BarRegistration descriptors{
    one_figure("descriptors of one more idle channel in a loop", 3, "",
               [] { return use_of_one<Channels>(&Use::descriptors); })};
const BarRegistration memory_of_many{
    one_figure("memory of one more idle channel, its ring of 4 KiB included", 20, "KiB",
               [] { return use_of_one<Channels>(&Use::kibibytes); })};
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

const BarRegistration wake_up{
    {.group = "foundation",
     .name = "wake a hub of 2,048 channels by any of them, to a hub of one",
     .limit = 2,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"of many", [] { return wake_up_of_hub(2048); }, "ns"});
         rounds.add({"of one", [] { return wake_up_of_hub(1); }, "ns"});
         return rounds.run().ratio("of many", "of one");
     }}};
const BarRegistration echoes_during_joins{
    {.group = "foundation",
     .name = "99th percentile of a channel's echoes while 2,048 join its hub, to alone",
     .limit = 2,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"joining", [] { return p99_of_echoes(2048, Accepting::apart); }, "ns"});
         rounds.add({"alone", [] { return p99_of_echoes(0, Accepting::apart); }, "ns"});
         return rounds.run().ratio("joining", "alone");
     }}};
const BarRegistration echoes_during_joins_in_turns{
    {.group = "foundation",
     .name = "the same where the hub that serves accepts them in its own turns",
     .limit = 0,
     .sense = Sense::reported,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"joining", [] { return p99_of_echoes(2048, Accepting::in_turns); }, "ns"});
         rounds.add({"alone", [] { return p99_of_echoes(0, Accepting::in_turns); }, "ns"});
         return rounds.run().ratio("joining", "alone");
     }}};

}  // namespace
}  // namespace millrace::bench
