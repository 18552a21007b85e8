// Bars of kv/: GETs of 100-byte values among 100,000 keys, to memcached and redis over Unix
// sockets; crowds of clients; memory.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/framework/bars.hpp"
#include "bench/kv/measure_crowd.hpp"
#include "bench/kv/measure_kv.hpp"
#include "bench/message/measure_message.hpp"

namespace millrace::bench {
namespace {

const KvCase one_at_a_time{};
const KvCase many{.outstanding = 32, .operations = 200'000};

/// How many times as long the other takes.
Bar faster_than(std::string name, double limit, const KvCase& chosen,
                double (*other)(const KvCase&)) {
    return ratio_bar("kv", std::move(name), limit, Sense::at_least,
                     {"other", [chosen, other] { return other(chosen); }, "ns"},
                     {"ours", [chosen] { return measure_kv(chosen); }, "ns"});
}

const BarRegistration to_memcached{
    faster_than("memcached's GET over a Unix socket to ours, one at a time", 25, one_at_a_time,
                measure_memcached)};
const BarRegistration to_memcached_of_many{faster_than(
    "memcached's GET over a Unix socket to ours, 32 outstanding", 6, many, measure_memcached)};
const BarRegistration to_redis_of_many{
    faster_than("redis' GET over a Unix socket to ours, 32 outstanding", 6, many, measure_redis)};

const BarRegistration to_messages{ratio_bar(
    "kv", "GET less the store's own time to a call of as many bytes", 1.5, Sense::at_most,
    {"ours", [] { return measure_kv(one_at_a_time) - measure_store(one_at_a_time); }, "ns"},
    {"call", [] { return call_of_one({.polling = message::Polling::automatic, .bytes = 108}); },
     "ns"})};

// Large values, of one client: a GET is to be about as fast as a SET.

Bar gets_to_sets(std::string how, connect::Transport transport, message::Transfer by) {
    std::vector<BarPoint> points;
    for (const std::size_t bytes : {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}) {
        for (const std::uint32_t outstanding : {1U, 32U}) {
            CrowdCase chosen{.transport = transport,
                             .requests = by,
                             .answers = by,
                             .value_bytes = bytes,
                             .keys = 64,
                             .duration = std::chrono::milliseconds{100},
                             .outstanding = outstanding};
            const auto contender = [&](unsigned get_percent) {
                chosen.get_percent = get_percent;
                return Contender{
                    fmt::format("{} of {} KiB, {} outstanding", get_percent == 0 ? "SETs" : "GETs",
                                bytes >> 10, outstanding),
                    [chosen] { return measure_crowd(chosen).operations_per_second; }, "1/s"};
            };
            points.push_back({{contender(100)}, {contender(0)}});
        }
    }
    return worst_ratio_bar("kv", fmt::format("GETs of 4 KiB to 1 MiB a second to SETs, by {}", how),
                           0.7, Sense::at_least, std::move(points));
}
const BarRegistration large_gets[] = {
    BarRegistration{gets_to_sets("rc", connect::Transport::rc, message::Transfer::write)},
    BarRegistration{gets_to_sets("rc and SEND", connect::Transport::rc, message::Transfer::send)},
    BarRegistration{gets_to_sets("uc", connect::Transport::uc, message::Transfer::write)},
    BarRegistration{gets_to_sets("ud", connect::Transport::ud, message::Transfer::write)},
    BarRegistration{gets_to_sets("tcp", connect::Transport::tcp, message::Transfer::write)}};

const BarRegistration memory{
    ratio_bar("kv", "memory per item of 116 B beyond these to memcached's", 1, Sense::at_most,
              {"ours", [] { return memory_per_item(one_at_a_time); }, "B"},
              {"memcached", [] { return memory_per_item_of_memcached(one_at_a_time); }, "B"})};

// Crowds, each client in a thread of its own; all of these share one core.

CrowdCase crowd_of(unsigned clients, base::WaitPolicy wait) {
    return {.clients = clients,
            .wait = wait,
            .value_bytes = 100,
            .duration = std::chrono::milliseconds{150}};
}
double per_second_of(unsigned clients, base::WaitPolicy wait) {
    return measure_crowd(crowd_of(clients, wait)).operations_per_second;
}
Bar default_wait_with(unsigned clients) {
    return ratio_bar(
        "kv",
        fmt::format("requests a second of {} clients by the default wait to the better of polling "
                    "and blocking",
                    clients),
        0.9, Sense::at_least,
        {"default", [clients] { return per_second_of(clients, {.moves = true}); }, "1/s"},
        {"better",
         [clients] {
             return std::max(per_second_of(clients, base::WaitPolicy::polling()),
                             per_second_of(clients, base::WaitPolicy::blocking()));
         },
         "1/s"});
}
const BarRegistration default_wait[] = {
    BarRegistration{default_wait_with(1)},  BarRegistration{default_wait_with(2)},
    BarRegistration{default_wait_with(4)},  BarRegistration{default_wait_with(8)},
    BarRegistration{default_wait_with(16)}, BarRegistration{default_wait_with(32)},
    BarRegistration{default_wait_with(48)}, BarRegistration{default_wait_with(60)},
    BarRegistration{default_wait_with(70)}};

CrowdCase seventy() {
    CrowdCase chosen = crowd_of(70, {});
    chosen.keys = 100'000;
    chosen.duration = std::chrono::seconds{1};
    return chosen;
}
const BarRegistration seventy_to_memcached{ratio_bar(
    "kv", "requests a second of 70 clients to memcached's", 4, Sense::at_least,
    {"ours", [] { return measure_crowd(seventy()).operations_per_second; }, "1/s"},
    {"memcached", [] { return measure_memcached_crowd(seventy()).operations_per_second; }, "1/s"})};
const BarRegistration least_of_seventy{ratio_bar(
    "kv", "requests of the client of 70 served least within a second, to the mean", 0.5,
    Sense::at_least, {"least", [] { return measure_crowd(seventy()).least_to_mean; }, "x"},
    {"mean", [] { return 1.0; }, "x"})};
const BarRegistration slowest_of_seventy{
    ratio_bar("kv", "99.9 % of the latencies of 70 clients to memcached's", 1, Sense::at_most,
              {"ours", [] { return measure_crowd(seventy()).p999_us; }, "us"},
              {"memcached", [] { return measure_memcached_crowd(seventy()).p999_us; }, "us"})};

/// As many requests as both can serve: half of what memcached's clients make if they ask as fast as
/// they can.
CrowdCase seventy_at_one_rate() {
    static const double rate = measure_memcached_crowd(seventy()).operations_per_second / 2;
    CrowdCase chosen = seventy();
    chosen.offered_per_second = rate;
    return chosen;
}
const BarRegistration slowest_of_seventy_at_one_rate{ratio_bar(
    "kv", "99.9 % of the latencies of 70 clients at one rate to memcached's", 1, Sense::at_most,
    {"ours", [] { return measure_crowd(seventy_at_one_rate()).p999_us; }, "us"},
    {"memcached", [] { return measure_memcached_crowd(seventy_at_one_rate()).p999_us; }, "us"})};

}  // namespace
}  // namespace millrace::bench
