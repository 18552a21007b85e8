#include "measure_crowd.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/peers/memcached.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"
#include "own_server.hpp"
#include "workload/crowd.hpp"
#include "workload/kv_load.hpp"
#include "workload/kv_operations.hpp"

namespace millrace::bench {
namespace {

double in_us(double ns) { return ns / 1e3; }

void set_times(std::shared_ptr<const base::Histogram> times, CrowdResult& result) {
    result.mean_us = in_us(times->mean());
    result.latencies = std::move(times);
    result.p50_us = result.quantile_us(500);
    result.p99_us = result.quantile_us(990);
    result.p999_us = result.quantile_us(999);
}

}  // namespace

double CrowdResult::quantile_us(std::size_t thousandths) const {
    return latencies == nullptr ? 0
                                : in_us(static_cast<double>(latencies->quantile(
                                      static_cast<double>(thousandths) / 1000)));
}
double CrowdResult::interquartile_us() const { return quantile_us(750) - quantile_us(250); }
double CrowdResult::deviation_us() const {
    if (latencies == nullptr) return 0;
    constexpr int parts = 2000;
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < parts; ++i) {
        const double us = in_us(static_cast<double>(latencies->quantile((i + 0.5) / parts)));
        sum += us;
        squares += us * us;
    }
    const double mean = sum / parts;
    return std::sqrt(std::max(squares / parts - mean * mean, 0.0));
}

namespace {

/// What the clients do. Every key is set before they come.
workload::KvLoad load_of(const CrowdCase& chosen) {
    workload::KvLoad load;
    load.clients = chosen.clients;
    load.duration = chosen.duration;
    load.operations = chosen.operations;
    load.keeps_each = !chosen.save.empty();
    load.keys = chosen.keys;
    load.value_bytes = chosen.value_bytes;
    load.get_percent = chosen.get_percent;
    load.offered_per_second = chosen.offered_per_second;
    load.outstanding = chosen.outstanding;
    load.fill = false;
    load.client.tuning.posting = chosen.posting;
    load.client.wait = chosen.wait;
    load.client.transport = chosen.transport;
    load.client.requests = chosen.requests;
    load.client.answers = chosen.answers;
    return load;
}

/// For so many operations as slow as one a millisecond, or for the case's time.
std::chrono::seconds patience_for(const CrowdCase& chosen) {
    return std::chrono::seconds{60} + std::chrono::seconds{chosen.operations / 1000};
}

}  // namespace

CrowdResult measure_crowd(const CrowdCase& chosen) {
    const std::vector<int> of_clients = cores_of_side(false);
    const std::vector<int> of_server = cores_of_side(true);
    const bool has_several = chosen.server_threads > 1;
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", "soft0"};
    const EnvironmentScope carrier{"MILLRACE_CARRIER", chosen.carrier};
    CrowdResult result;
    run_pair(
        {.deadline = patience_for(chosen)},
        [&](Pair& pair) {
            if (has_several) base::bind_this_thread(of_clients);
            workload::KvLoad load = load_of(chosen);
            load.server = address_of_first(pair);
            const std::uint64_t before = context_switches();
            const workload::KvLoadResult done = workload::run_load(load);
            const std::uint64_t switches = context_switches() - before;
            result.operations_per_second = done.per_second();
            const auto times = std::make_shared<base::Histogram>(*done.get_ns);
            times->add(*done.set_ns);
            set_times(times, result);
            result.least_to_mean = workload::least_to_mean(done.per_client);
            require(done.hits == done.gets, "every key");
            auto ending = kv::Client::connect(load.server, load.client, patience());
            require(ending.exit(patience()).ok(), "the end");
            (void)ending.close(patience());
            pair.meet();
            const auto operations = static_cast<double>(done.operations());
            result.client_switches = static_cast<double>(switches) / operations;
            result.server_switches = static_cast<double>(pair.value(1)) / operations;
            if (!chosen.save.empty()) workload::write_operations(done, chosen.save);
            return 0.0;
        },
        [&](Pair& pair) {
            if (has_several) base::bind_this_thread(of_server);
            kv::ServerOptions options;
            options.threads.count = chosen.server_threads;
            options.store.table = chosen.table;
            options.messages.wait = chosen.wait;
            options.messages.transports = chosen.transport;
            if (chosen.transport == connect::Transport::ud) {
                options.messages.protection = message::Protection::trusted;
            }
            options.messages.max_clients = chosen.clients + 1;
            options.messages.tuning.posting = chosen.posting;
            options.permitted.exit = true;
            auto server = kv::Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
            workload::fill_store(load_of(chosen), server.store());
            pair.set_value(0, server.address().port());
            pair.meet();
            const std::uint64_t before = context_switches();
            (void)server.serve(
                base::Deadline::after(patience_for(chosen) - std::chrono::seconds{10}));
            (void)server.close(patience());
            pair.set_value(1, context_switches() - before);
            pair.meet();
        });
    return result;
}

CrowdResult measure_memcached_crowd(const CrowdCase& chosen) {
    Memcached server;
    CrowdResult result;
    run_alone([&] {
        const std::string value(chosen.value_bytes, 'v');
        WordsClient filling = server.client();
        fill(filling, chosen.keys, value);
        workload::CrowdFigures figures =
            workload::run_crowd({.members = chosen.clients}, [&](workload::CrowdMember& me) {
                WordsClient client = server.client();
                std::minstd_rand random{static_cast<unsigned>(me.number() + 1)};
                workload::call_in_turn(
                    me,
                    {.duration = chosen.duration,
                     .offered_per_second = chosen.offered_per_second / chosen.clients},
                    [&] {
                        const bool gets = random() % 100 < chosen.get_percent;
                        const std::uint64_t key = random() % chosen.keys;
                        if (gets) {
                            require_intact(get(client, key) == value, "a get");
                        } else {
                            set(client, key, value);
                        }
                    });
            });
        result.operations_per_second = static_cast<double>(figures.calls()) / figures.seconds;
        result.least_to_mean = figures.least_to_mean();
        set_times(std::move(figures.ns), result);
        return 0.0;
    });
    return result;
}

}  // namespace millrace::bench
