// Bars of one server with many clients: calls, loads, and what clients that are idle cost.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "framework/bars.hpp"
#include "limits/hand_over.hpp"
#include "message/measure_message.hpp"
#include "rpc/measure_rpc.hpp"

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
double seconds_of_one(std::size_t connected) {
    return 1 / load_of_many({.polling = Polling::dense, .connected = connected}).per_second;
}

const BarRegistration flag{ratio_of(
    "call of 64 B by flag, one client, to the ideal hand-over", 1.5, Sense::at_most,
    [] { return call(Polling::flag); }, ideal)};
const BarRegistration dense{ratio_of(
    "call of 64 B by dense, one client, to the ideal hand-over", 2.0, Sense::at_most,
    [] { return call(Polling::dense); }, ideal)};
const BarRegistration idle_clients{ratio_of(
    "requests of 16 among 2,048 clients to those of 16 among 16, dense, time", 1.5, Sense::at_most,
    [] { return seconds_of_one(2048); }, [] { return seconds_of_one(16); })};
const BarRegistration scan{ratio_of(
    "scan of 2,048 empty mailboxes by listing A.2 to AVX2", 8, Sense::at_least,
    [] { return scan_of_empty(message::ScanKernel::scalar, 2048); },
    [] { return scan_of_empty(message::ScanKernel::avx2, 2048); })};
const BarRegistration sockets{ratio_of(
    "requests a second of 16 clients, 16 each, to Unix sockets with epoll", 8, Sense::at_least,
    [] { return load_of_many({.window = 16}).per_second; },
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
const BarRegistration fairness{{.group = "messaging",
                                .name = "least served of 64 clients at full load to their mean",
                                .limit = 0.8,
                                .sense = Sense::at_least,
                                .measure = [](const RoundOptions& options) {
                                    Rounds rounds{options};
                                    rounds.add({"ours", [] {
                                                    return load_of_many({.polling = Polling::dense,
                                                                         .connected = 64,
                                                                         .active = 64,
                                                                         .window = 8})
                                                        .least_to_mean;
                                                }});
                                    return rounds.run().summary("ours");
                                }}};

}  // namespace
}  // namespace millrace::bench
