// Bars of a busy machine: a program computes on each of the two processors all the while, and what
// waits by its default is held against what sleeps at once, what never does, and the kernel's
// sockets.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "bench/busy/hogs.hpp"
#include "bench/busy/measure_busy.hpp"
#include "bench/framework/bars.hpp"
#include "bench/kv/measure_crowd.hpp"

namespace millrace::bench {
namespace {

using namespace std::chrono_literals;
using base::WaitPolicy;
using connect::Transport;

constexpr auto duration = 300ms;

template <class Measure>
auto beside_hogs(Measure&& measure) {
    return [measure] {
        const Hogs hogs;
        return measure();
    };
}

// --- the store

CrowdCase store_of(Transport transport, unsigned clients, const WaitPolicy& wait) {
    CrowdCase chosen;
    chosen.clients = clients;
    chosen.transport = transport;
    chosen.wait = wait;
    chosen.value_bytes = 100;
    chosen.get_percent = 100;
    chosen.duration = duration;
    return chosen;
}
double gets(Transport transport, unsigned clients, const WaitPolicy& wait) {
    return measure_crowd(store_of(transport, clients, wait)).operations_per_second;
}
std::string carried_by(Transport transport) {
    return transport == Transport::tcp ? "over TCP" : "over memory";
}

Bar store_to_better(Transport transport, unsigned clients) {
    return ratio_bar(
        "busy",
        fmt::format("GETs of {} {} {}, by default to the better of polling and blocking", clients,
                    clients == 1 ? "client" : "clients", carried_by(transport)),
        0.9, Sense::at_least,
        {"default", beside_hogs([=] { return gets(transport, clients, {}); }), "1/s"},
        {"better", beside_hogs([=] {
             return std::max(gets(transport, clients, WaitPolicy::polling()),
                             gets(transport, clients, WaitPolicy::blocking()));
         }),
         "1/s"});
}
Bar store_to_memcached(Transport transport, unsigned clients) {
    return ratio_bar(
        "busy",
        fmt::format("GETs of {} {} {} to memcached's over a Unix socket", clients,
                    clients == 1 ? "client" : "clients", carried_by(transport)),
        transport == Transport::tcp ? 1.0 : 1.5, Sense::at_least,
        {"ours", beside_hogs([=] { return gets(transport, clients, {}); }), "1/s"},
        {"memcached", beside_hogs([=] {
             return measure_memcached_crowd(store_of(transport, clients, {})).operations_per_second;
         }),
         "1/s"});
}

const BarRegistration stores[] = {
    BarRegistration{store_to_better(Transport::rc, 1)},
    BarRegistration{store_to_better(Transport::rc, 16)},
    BarRegistration{store_to_better(Transport::tcp, 1)},
    BarRegistration{store_to_better(Transport::tcp, 16)},
    BarRegistration{store_to_memcached(Transport::rc, 1)},
    BarRegistration{store_to_memcached(Transport::rc, 16)},
    BarRegistration{store_to_memcached(Transport::tcp, 1)},
    BarRegistration{store_to_memcached(Transport::tcp, 16)},
};

// --- round trips and items

Bar to_socket(Contact contact, const char* what, const char* figure, double RoundTrips::*value) {
    const auto of = [value](Contact which) {
        return beside_hogs([=] {
            return round_trips({.by = which, .a_second = 2000, .duration = 1000ms}).*value;
        });
    };
    return ratio_bar(
        "busy", fmt::format("{} of 64 bytes there and back to a Unix socket's: {}", what, figure),
        1.0, Sense::at_most, {"ours", of(contact), "us"},
        {"socket", of(Contact::unix_socket), "us"});
}
Bar items_to_socket(Contact contact, const char* what) {
    return ratio_bar(
        "busy", fmt::format("64-byte items a second of {} to a Unix socket's", what), 2.0,
        Sense::at_least,
        {"ours", beside_hogs([=] { return items_per_second(contact, {}, duration); }), "1/s"},
        {"socket", beside_hogs([] { return items_per_second(Contact::unix_socket, {}, duration); }),
         "1/s"});
}

const BarRegistration exchanges[] = {
    BarRegistration{
        to_socket(Contact::channel, "a channel's message", "median", &RoundTrips::median_us)},
    BarRegistration{
        to_socket(Contact::channel, "a channel's message", "99 %", &RoundTrips::p99_us)},
    BarRegistration{to_socket(Contact::call, "a call", "median", &RoundTrips::median_us)},
    BarRegistration{to_socket(Contact::call, "a call", "99 %", &RoundTrips::p99_us)},
    BarRegistration{to_socket(Contact::queues, "a queue's item", "median", &RoundTrips::median_us)},
    BarRegistration{to_socket(Contact::queues, "a queue's item", "99 %", &RoundTrips::p99_us)},
    BarRegistration{
        to_socket(Contact::stream, "a stream's bytes", "median", &RoundTrips::median_us)},
    BarRegistration{to_socket(Contact::stream, "a stream's bytes", "99 %", &RoundTrips::p99_us)},
    BarRegistration{items_to_socket(Contact::queues, "a flow queue")},
    BarRegistration{items_to_socket(Contact::stream, "a stream")},
};

// --- a machine that is busy half of the time

Bar on_and_off(Contact contact, const char* what) {
    const auto rate = [contact] { return round_trips({.by = contact}).per_second; };
    return ratio_bar("busy",
                     fmt::format("round trips of {} while programs compute every other "
                                 "100 ms, to the mean of with and without them",
                                 what),
                     0.8, Sense::at_least,
                     {"by turns",
                      [contact] {
                          const Hogs hogs{100ms};
                          return round_trips({.by = contact, .duration = 1000ms}).per_second;
                      },
                      "1/s"},
                     {"mean", [rate] { return (beside_hogs(rate)() + rate()) / 2; }, "1/s"});
}
const BarRegistration turns[] = {BarRegistration{on_and_off(Contact::channel, "a channel")},
                                 BarRegistration{on_and_off(Contact::call, "calls")}};

}  // namespace
}  // namespace millrace::bench
