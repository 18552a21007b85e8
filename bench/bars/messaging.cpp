// Bars of one server with many clients: calls, loads, and what clients that are idle cost.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "bench/framework/bars.hpp"
#include "bench/limits/hand_over.hpp"
#include "bench/message/measure_clients.hpp"
#include "bench/message/measure_message.hpp"
#include "bench/message/open_loop.hpp"
#include "bench/rpc/measure_rpc.hpp"

namespace millrace::bench {
namespace {

using message::Polling;

Bar ratio_of(std::string name, double limit, Sense sense, std::function<double()> ours,
             std::function<double()> other) {
    return ratio_bar("messaging", std::move(name), limit, sense, {"ours", std::move(ours)},
                     {"other", std::move(other)});
}

double call(Polling polling) { return call_of_one({.polling = polling}); }
double ideal() { return message_round_trip(64, 20'000); }
double ideal_for_calls() { return message_round_trip(64, 20'000, std::size_t{16} << 10); }
double seconds_of_one(std::size_t connected) {
    return 1 / load_of_many({.polling = Polling::dense, .connected = connected}).per_second;
}

const BarRegistration flag{ratio_of(
    "call of 64 B by flag, one client, to the ideal hand-over", 1.5, Sense::at_most,
    [] { return call(Polling::flag); }, ideal)};
const BarRegistration dense{ratio_of(
    "call of 64 B by dense, one client, to the ideal hand-over", 2.0, Sense::at_most,
    [] { return call(Polling::dense); }, ideal)};
const BarRegistration flag_to_rings{ratio_of(
    "call of 64 B by flag, one client, to the ideal hand-over through rings as large", 1.5,
    Sense::at_most, [] { return call(Polling::flag); }, ideal_for_calls)};
const BarRegistration dense_to_rings{ratio_of(
    "call of 64 B by dense, one client, to the ideal hand-over through rings as large", 2.0,
    Sense::at_most, [] { return call(Polling::dense); }, ideal_for_calls)};
const BarRegistration idle_clients{ratio_of(
    "requests of 16 among 2,048 clients to those of 16 among 16, dense, time", 1.5, Sense::at_most,
    [] { return seconds_of_one(2048); }, [] { return seconds_of_one(16); })};
const BarRegistration scan{ratio_of(
    "scan of 2,048 empty mailboxes by listing A.2 to AVX2", 8, Sense::at_least,
    [] { return scan_of_empty(message::ScanKernel::scalar, 2048); },
    [] { return scan_of_empty(message::ScanKernel::avx2, 2048); })};
/// Sockets carry 16 requests with one system call, and so does a message here.
const BarRegistration sockets_to_batches{ratio_of(
    "requests a second of 16 clients, 16 each in a message, to Unix sockets with epoll", 8,
    Sense::at_least, [] { return load_of_many({.window = 16, .batches = true}).per_second; },
    [] { return load_over_sockets(16, 16, 200'000); })};
/// Beside it: each in a message of its own. Copies of 64 B in messages of their own are less than 8
/// times as fast without a library, too (docs/performance/messaging.md).
const BarRegistration sockets{ratio_of(
    "the same of 16 each, by themselves, to Unix sockets with epoll", 0, Sense::reported,
    [] { return load_of_many({.window = 16}).per_second; },
    [] { return load_over_sockets(16, 16, 200'000); })};
/// … and what is to be had of the machine by batches that no library lays, finds or answers,
/// where they lie one after the other in rings of 16 KiB, and where each begins a page.
const BarRegistration sockets_to_bare{ratio_of(
    "the same of bare batches, one after the other, to Unix sockets with epoll", 0, Sense::reported,
    [] { return bare_batches({.places = 13}); },
    [] { return load_over_sockets(16, 16, 200'000); })};
const BarRegistration sockets_to_bare_pages{ratio_of(
    "the same of bare batches, each in a page, to Unix sockets with epoll", 0, Sense::reported,
    [] { return bare_batches({.places = 4, .stride = 4096}); },
    [] { return load_over_sockets(16, 16, 200'000); })};
const BarRegistration sockets_one_by_one{ratio_of(
    "requests a second of 16 clients, one each, to Unix sockets with epoll", 8, Sense::at_least,
    [] { return load_of_many({}).per_second; }, [] { return load_over_sockets(16, 1, 50'000); })};
double threads_on_a_core(std::size_t per_dispatcher) {
    return measure_rpc(
               {.requesters = 8, .window = 16, .threads = true, .per_dispatcher = per_dispatcher})
        .per_second;
}
const BarRegistration dispatched_clients{ratio_of(
    "dispatcher of 8 threads on one core, 16 requests each, to own connections, requests a second",
    0.7, Sense::at_least, [] { return threads_on_a_core(8); },
    [] { return threads_on_a_core(0); })};
double of_ninety(std::size_t idle_percent) {
    return measure_rpc({.response_bytes = 4096,
                        .requesters = 90,
                        .idle_percent = idle_percent,
                        .polling = Polling::dense})
        .per_second;
}
const BarRegistration empty{ratio_of(
    "90 mailboxes of which 90 % are empty to none, dense, responses of 4 KiB a second", 0.8,
    Sense::at_least, [] { return of_ninety(90); }, [] { return of_ninety(0); })};
/// Of what is measured by itself.
Bar value_of(std::string name, double limit, Sense sense, std::string unit,
             std::function<double()> measure) {
    return {.group = "messaging",
            .name = std::move(name),
            .limit = limit,
            .sense = sense,
            .unit = std::move(unit),
            .measure = [measure = std::move(measure)](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add({"ours", measure});
                return rounds.run().summary("ours");
            }};
}
const BarRegistration fairness{value_of(
    "least served of 64 clients at full load to their mean", 0.8, Sense::at_least, "x", [] {
        return load_of_many({.polling = Polling::dense, .connected = 64, .active = 64, .window = 8})
            .least_to_mean;
    })};
double most_of_fewer_threads() {
    double most = 0;
    for (const std::size_t threads : {1, 2, 4, 8, 16, 32}) {
        most = std::max(most, calls_of_threads(threads));
    }
    return most;
}
const BarRegistration client_threads{ratio_of(
    "calls a second of 64 threads on two cores to the most of fewer", 0.8, Sense::at_least,
    [] { return calls_of_threads(64); }, most_of_fewer_threads)};

const BarRegistration open_loop{value_of(
    "p99.9 of 64 clients at 0.7 of what they get at most, not waiting for answers, to the median",
    5, Sense::at_most, "x", [] {
        const OpenLatency latency = latency_at_rate({});
        return latency.longest_ns / latency.median_ns;
    })};
/// Where the machine takes the cores away, these say what was to be had on them.
const BarRegistration open_loop_ideal{
    value_of("the same of an ideal server with the gaps of two threads that only read the clock", 0,
             Sense::reported, "x", [] {
                 const OpenLatency latency = latency_at_rate({});
                 return latency.ideal_longest_ns / latency.median_ns;
             })};
const BarRegistration open_loop_to_ideal{
    value_of("the p99.9 above to that of the ideal server", 0, Sense::reported, "x", [] {
        const OpenLatency latency = latency_at_rate({});
        return latency.longest_ns / latency.ideal_longest_ns;
    })};
const BarRegistration idle_crowd{value_of("2,048 idle clients, of a core of their server", 1,
                                          Sense::at_most, "%",
                                          [] { return percent_of_idle_clients(2048); })};
const BarRegistration waking{value_of("call of one of 2,048 clients to a server that sleeps", 100,
                                      Sense::at_most, "us",
                                      [] { return call_to_sleeping(2048) / 1000; })};
/// Beside it: what of that is the machine's.
const BarRegistration bare_waking{
    value_of("store of a thread that slept in an epoll, after a write to its eventfd", 0,
             Sense::reported, "us", [] { return wake_of_sleeping() / 1000; })};

}  // namespace
}  // namespace millrace::bench
