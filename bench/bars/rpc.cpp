// Bars of typed calls: to the same calls without types, to the ideal hand-over, to gRPC's; what a
// coroutine takes more than a callback.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/framework/bars.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "bench/framework/windows.hpp"
#include "bench/limits/hand_over.hpp"
#include "bench/message/measure_message.hpp"
#include "bench/peers/grpc_calls.hpp"
#include "bench/rpc/measure_rpc.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/rpc/coroutine.hpp"
#include "millrace/rpc/server.hpp"
#include "workload/crowd.hpp"

namespace millrace::bench {
namespace {

using base::Status;

struct Block {
    std::byte bytes[64]{};
};
struct Echo {
    static constexpr std::string_view name = "echo";
    using Request = Block;
    using Response = Block;
};

constexpr std::uint64_t calls = 20'000;
constexpr std::chrono::milliseconds longest{90'000};

[[nodiscard]] Block block_of(std::uint64_t number) {
    Block block;
    stamp(block.bytes, sizeof block.bytes, number);
    return block;
}
void check(const rpc::Result<Block>& answer, std::uint64_t number) {
    require(answer.ok(), "a call");
    keep(read_all(answer->bytes, sizeof answer->bytes));
    require_intact(stamped(answer->bytes, sizeof answer->bytes, number), "a call");
}

/// What `measure` finds of a server that echoes blocks.
double with_server(const std::function<double(const connect::Address&)>& measure) {
    return run_pair(
        {.deadline = longest}, [&](Pair& pair) { return measure(address_of_first(pair)); },
        [&](Pair& pair) {
            // As the server of messages that calls are compared to: by its default, which reckons
            // with 1,024 clients, each of its requests would be one more line to hand over.
            rpc::ServerOptions options;
            options.messages.polling = message::Polling::flag;
            auto server = rpc::Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
            server.handle<Echo>([](const Block& block) { return block; });
            pair.set_value(0, server.address().port());
            pair.meet();
            const auto deadline = base::Deadline::after(longest);
            while (server.stats().messages.joined == 0 || server.stats().messages.clients != 0) {
                require(server.serve(base::Deadline::after(std::chrono::milliseconds{20})) ==
                                Status::timed_out &&
                            !deadline.expired(),
                        "serving");
            }
        });
}

rpc::Client connected(const connect::Address& address, rpc::ClientOptions options = {}) {
    return rpc::Client::connect<Echo>(address, std::move(options),
                                      base::Deadline::after(std::chrono::seconds{20}));
}
/// What `measure` finds of one client of such a server.
double with_client(const std::function<double(rpc::Client)>& measure) {
    return with_server(
        [&](const connect::Address& address) { return measure(connected(address)); });
}

/// Ends a dispatcher's run before the thread that runs it is joined.
class StopsAtEnd {
  public:
    explicit StopsAtEnd(rpc::Dispatcher& dispatcher) : dispatcher_{&dispatcher} {}
    StopsAtEnd(const StopsAtEnd&) = delete;
    StopsAtEnd& operator=(const StopsAtEnd&) = delete;
    ~StopsAtEnd() { dispatcher_->stop(); }

  private:
    rpc::Dispatcher* dispatcher_;
};

/// Calls a second of 8 threads on one core, 16 outstanding of each: by connections of their own, or
/// by one that a dispatcher on the same core has.
double calls_of_threads(rpc::Connection connection) {
    constexpr std::size_t threads = 8;
    constexpr std::uint64_t outstanding = 16;
    constexpr std::uint64_t rounds = 1'000;
    // Polls, and lets the others of its core run at once.
    constexpr base::WaitPolicy shared_core{std::chrono::nanoseconds{0},
                                           std::chrono::nanoseconds::max(), false};
    return with_server([&](const connect::Address& address) {
        rpc::ClientOptions options;
        options.design = rpc::Design{.connection = connection};
        options.messages.window = outstanding;
        options.messages.wait = shared_core;
        std::jthread dispatching;
        std::optional<StopsAtEnd> stops;
        if (connection == rpc::Connection::dispatcher) {
            options.dispatcher =
                std::make_shared<rpc::Dispatcher>(rpc::DispatcherOptions{.wait = shared_core});
            dispatching = std::jthread{[&its = *options.dispatcher] {
                its.adopt();
                (void)its.run(base::Deadline::after(longest));
            }};
            stops.emplace(*options.dispatcher);
        }
        std::vector<std::optional<rpc::Client>> clients(threads);  // to end them takes time, too
        const auto figures =
            workload::run_crowd({.members = threads}, [&](workload::CrowdMember& me) {
                rpc::Client& client = clients[me.number()].emplace(connected(address, options));
                (void)me.begin();
                for (std::uint64_t round = 1; round <= rounds; ++round) {
                    for (std::uint64_t i = 0; i < outstanding; ++i) {
                        const std::uint64_t number = round * outstanding + i;
                        require(client.submit_or_wait<Echo>(
                                    block_of(number),
                                    [number](const rpc::Result<Block>& answer) {
                                        check(answer, number);
                                    },
                                    base::Deadline::never()),
                                "a call");
                    }
                    while (client.outstanding() != 0) {
                        require(client.wait(base::Deadline::never()), "an answer");
                    }
                }
            });
        return static_cast<double>(threads * outstanding * rounds) / figures.seconds;
    });
}

double typed_call() {
    return with_client([](rpc::Client client) {
        return median_step(Windows{calls}, [&](std::uint64_t number) {
            check(client.call<Echo>(block_of(number), base::Deadline::never()), number);
        });
    });
}

/// Nanoseconds of each of many calls, of which 64 are outstanding.
double call_of_many() {
    constexpr std::uint64_t outstanding = 64;
    return with_client([](rpc::Client client) {
        std::uint64_t sent = 0;
        std::uint64_t answered = 0;
        const auto submit = [&] {
            const std::uint64_t number = sent + 1;
            const Status status = client.submit<Echo>(
                block_of(number),
                [&answered, number](const rpc::Result<Block>& answer) {
                    check(answer, number);
                    ++answered;
                },
                base::Deadline::never());
            if (status == Status::full) return false;
            require(status, "a call");
            ++sent;
            return true;
        };
        const double time = median_step(Windows{10 * calls / outstanding}, [&](std::uint64_t step) {
            while (answered < step * outstanding) {
                while (sent < answered + outstanding && submit()) {
                }
                Status status = Status::ok;
                while (status == Status::ok) status = client.poll();
                require(status == Status::empty ? Status::ok : status, "an answer");
            }
        });
        return time / outstanding;
    });
}

double by_callback() {
    return with_client([](rpc::Client client) {
        return median_step(Windows{calls}, [&](std::uint64_t number) {
            bool is_done = false;
            require(client.submit<Echo>(
                        block_of(number),
                        [&](const rpc::Result<Block>& answer) {
                            check(answer, number);
                            is_done = true;
                        },
                        base::Deadline::never()),
                    "a call");
            while (!is_done) {
                const Status status = client.poll();
                require(status == Status::ok || status == Status::empty, "an answer");
            }
        });
    });
}

double by_coroutine() {
    return with_client([](rpc::Client connected) {
        connect::Hub hub;
        rpc::AsyncClient client{hub, std::move(connected)};
        double time = 0;
        const auto measure = [&]() -> base::Task<> {
            // The windows of median_step, which awaits nothing.
            const Windows windows{calls};
            std::uint64_t number = 0;
            std::vector<double> times(Windows::count);
            while (number < windows.warm_up) {
                ++number;
                check(co_await client.call<Echo>(block_of(number), base::Deadline::never()),
                      number);
            }
            for (double& one : times) {
                const auto start = base::Clock::now();
                for (std::uint64_t i = 0; i < windows.window; ++i) {
                    ++number;
                    check(co_await client.call<Echo>(block_of(number), base::Deadline::never()),
                          number);
                }
                one = nanoseconds_since(start) / static_cast<double>(windows.window);
            }
            time = quantile(std::move(times), 0.5);
        };
        base::spawn(hub, measure());
        (void)hub.turn();
        while (time == 0) {
            const Status status = client.poll();
            require(status == Status::ok || status == Status::empty, "an answer");
        }
        return time;
    });
}

const BarRegistration to_raw{ratio_bar("rpc", "typed call of 64 B to the call of a message", 1.1,
                                       Sense::at_most, {"typed", typed_call, "ns"},
                                       {"message", [] { return call_of_one({}); }, "ns"})};
const BarRegistration to_ideal{ratio_bar(
    "rpc", "typed call of 64 B to the ideal hand-over", 1.6, Sense::at_most,
    {"typed", typed_call, "ns"}, {"ideal", [] { return message_round_trip(64, 20'000); }, "ns"})};
const BarRegistration to_rings{
    ratio_bar("rpc", "typed call of 64 B to the ideal hand-over through rings as large", 1.6,
              Sense::at_most, {"typed", typed_call, "ns"},
              {"ideal through rings",
               [] { return message_round_trip(64, 20'000, std::size_t{16} << 10); }, "ns"})};
const BarRegistration dispatcher{ratio_bar(
    "rpc",
    "typed calls a second of 8 threads on one core, 16 each, by a dispatcher to own connections",
    0.7, Sense::at_least,
    {"dispatcher", [] { return calls_of_threads(rpc::Connection::dispatcher); }, "calls/s"},
    {"own", [] { return calls_of_threads(rpc::Connection::own); }, "calls/s"})};
/// Responses of 4 KiB a second to 90 requesters, of whom so many percent do not ask.
double with_empty_mailboxes(std::size_t percent) {
    return measure_rpc({.response_bytes = 4096, .requesters = 90, .idle_percent = percent})
        .per_second;
}
const BarRegistration empty_mailboxes{
    ratio_bar("rpc", "responses of 4 KiB a second with 90 % of 90 mailboxes empty to none", 0.8,
              Sense::at_least, {"90 % empty", [] { return with_empty_mailboxes(90); }, "1/s"},
              {"none", [] { return with_empty_mailboxes(0); }, "1/s"})};
const BarRegistration to_grpc{
    ratio_bar("rpc", "gRPC's unary call of 64 B over a Unix socket to ours", 60, Sense::at_least,
              {"gRPC", [] { return grpc_call(1, calls); }, "ns"}, {"ours", typed_call, "ns"})};
const BarRegistration to_grpc_of_many{ratio_bar(
    "rpc", "the same of one thread with 64 outstanding", 50, Sense::at_least,
    {"gRPC", [] { return grpc_call(64, 5 * calls); }, "ns"}, {"ours", call_of_many, "ns"})};
const BarRegistration coroutine{
    {.group = "rpc",
     .name = "coroutine call of 64 B above the callback form",
     .limit = 100,
     .sense = Sense::at_most,
     .unit = "ns",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"difference", [] { return by_coroutine() - by_callback(); }, "ns"});
         return rounds.run().summary("difference");
     }}};

}  // namespace
}  // namespace millrace::bench
