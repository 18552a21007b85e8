#include "kv/bench.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>

#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "command_line/output.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/signals.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/kv/server.hpp"
#include "workload/kv_operations.hpp"

namespace millrace::tools {
namespace {

/// A server in a thread of its own.
class OwnServer {
  public:
    explicit OwnServer(const KvBenchOptions& options)
        : server_{kv::Server::listen(connect::Address::tcp("127.0.0.1", 0), chosen(options))} {
        const base::SignalsBlocked blocked;
        thread_ = std::jthread{[this] {
            server_.adopt();
            (void)server_.serve(base::Deadline::never());
        }};
    }
    OwnServer(const OwnServer&) = delete;
    OwnServer& operator=(const OwnServer&) = delete;
    ~OwnServer() { server_.stop(); }
    [[nodiscard]] const connect::Address& address() const { return server_.address(); }

  private:
    static kv::ServerOptions chosen(const KvBenchOptions& options) {
        kv::ServerOptions made;
        made.messages.endpoint = options.load.client.endpoint;
        made.messages.admission.secret = options.load.client.admission.secret;
        made.messages.transports = options.load.client.transport;
        // The clients are its own.
        if (options.load.client.transport == connect::Transport::ud) {
            made.messages.protection = message::Protection::trusted;
        }
        made.messages.wait = options.load.client.wait;
        made.messages.max_clients = std::max(options.load.clients, 1U);
        made.messages.tuning.posting = options.posting;
        return made;
    }
    kv::Server server_;
    std::jthread thread_;
};

nlohmann::json json_of(const base::Histogram& times) {
    return {{"count", times.count()},           {"mean_ns", times.mean()},
            {"least_ns", times.least()},        {"p50_ns", times.quantile(0.5)},
            {"p90_ns", times.quantile(0.9)},    {"p99_ns", times.quantile(0.99)},
            {"p999_ns", times.quantile(0.999)}, {"most_ns", times.most()}};
}

/// "uc"; "rc, requests by write and answers by send".
std::string way_of(const message::ClientOptions& client) {
    if (client.transport != connect::Transport::rc) return std::string{name_of(client.transport)};
    return fmt::format("rc, requests by {} and answers by {}", name_of(client.requests),
                       name_of(client.answers));
}

std::vector<std::string> row_of(const char* name, const base::Histogram& times) {
    const auto us = [](double ns) { return fmt::format("{:.1f}", ns / 1e3); };
    std::vector<std::string> cells{name, fmt::format("{}", times.count()), us(times.mean())};
    for (const double part : {0.5, 0.9, 0.99, 0.999, 1.0}) {
        cells.push_back(us(static_cast<double>(times.quantile(part))));
    }
    return cells;
}

}  // namespace

int run_kv_bench(const KvBenchOptions& options) {
    options.json.check();
    if (!options.save.empty()) check_writable(options.save, "write every operation");
    KvBenchOptions chosen = options;
    chosen.load.keeps_each = !options.save.empty();
    if (!options.device.empty()) {
        chosen.load.client.endpoint = connect::Endpoint::open(options.device);
    }
    if (!options.secret_file.empty()) {
        chosen.load.client.admission.secret = connect::read_secret_file(options.secret_file);
    }
    // Over sockets it saves system calls in any case.
    chosen.load.client.gathers_requests =
        chosen.load.outstanding > 1 && chosen.load.client.transport == connect::Transport::tcp;
    chosen.load.client.tuning.posting = chosen.posting;
    std::optional<OwnServer> own;
    if (options.server.empty()) {
        own.emplace(chosen);
        chosen.load.server = own->address();
    } else {
        chosen.load.server = connect::Address::parse(options.server);
    }
    const bool terminal = isatty(STDERR_FILENO) != 0;
    if (terminal) {
        chosen.load.filled = [](double part) {
            fmt::print(stderr, "\rfilling: {:.0f} %", part * 100);
        };
    }
    const workload::KvLoadResult result = workload::run_load(chosen.load);
    if (!options.save.empty()) workload::write_operations(result, options.save);
    const std::string& device = result.carrier;
    if (terminal) fmt::print(stderr, "\r\033[K");
    const auto [least, most] =
        std::minmax_element(result.per_client.begin(), result.per_client.end());
    if (options.json.wanted()) {
        const nlohmann::json document{
            {"server", chosen.load.server.to_string()},
            {"own_server", own.has_value()},
            {"device", device},
            {"transport", name_of(chosen.load.client.transport)},
            {"requests", name_of(chosen.load.client.requests)},
            {"answers", name_of(chosen.load.client.answers)},
            {"clients", chosen.load.clients},
            {"threads", chosen.load.threads == 0 ? chosen.load.clients : chosen.load.threads},
            {"outstanding", chosen.load.outstanding},
            {"keys", chosen.load.keys},
            {"key_bytes", chosen.load.key_bytes},
            {"value_bytes", chosen.load.value_bytes},
            {"get_percent", chosen.load.get_percent},
            {"offered_per_second", chosen.load.offered_per_second},
            {"seconds", result.seconds},
            {"operations", result.operations()},
            {"operations_per_second", result.per_second()},
            {"hits", result.hits},
            {"per_client", result.per_client},
            {"get", json_of(*result.get_ns)},
            {"set", json_of(*result.set_ns)}};
        options.json.write(document.dump(2));
    }
    if (options.json.in_place_of_lines()) return 0;
    fmt::print(
        "{}{}, by {}: {} clients, {} outstanding each; {} keys of {} B, values of {} B; {} % "
        "GETs\n",
        chosen.load.server.to_string(), own ? " (started for this)" : "",
        way_of(chosen.load.client), chosen.load.clients, chosen.load.outstanding, chosen.load.keys,
        chosen.load.key_bytes, chosen.load.value_bytes, chosen.load.get_percent);
    if (!device.empty()) print_wrapped(fmt::format("device {}\n", device), 7);
    if (chosen.load.offered_per_second != 0) {
        fmt::print("{:.0f} per second offered; latencies count from when each was due\n",
                   chosen.load.offered_per_second);
    }
    fmt::print("{:.0f} operations per second: {} in {:.2f} s, {:.1f} % of the GETs found a value\n",
               result.per_second(), result.operations(), result.seconds,
               result.gets == 0
                   ? 0
                   : 100 * static_cast<double>(result.hits) / static_cast<double>(result.gets));
    Table table{"us"};
    for (const char* heading : {"count", "mean", "p50", "p90", "p99", "p99.9", "most"}) {
        table.add_column(heading);
    }
    if (result.gets != 0) table.add_row(row_of("GET", *result.get_ns));
    if (result.sets != 0) table.add_row(row_of("SET", *result.set_ns));
    fmt::print("{}", table.text());
    if (chosen.load.clients > 1) {
        fmt::print(
            "the client that was served least had {} operations, the one that was served "
            "most {}\n",
            *least, *most);
    }
    return 0;
}

}  // namespace millrace::tools
