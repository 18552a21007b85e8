#include "kv/serve.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "cat/interruption.hpp"
#include "command_line/output.hpp"
#include "kv/metrics.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"

namespace millrace::tools {
namespace {

/// How long clients have to take their last answers.
constexpr std::chrono::seconds drain_patience{5};

/// What a user may want to know at once; the rest is for those who look into it.
void print_greeting(const kv::Server& server, const kv::ServerOptions& options) {
    const std::string all = server.explain();
    base::log(base::LogLevel::info, "kv", "{}", all);
    fmt::print("{}\n", all.substr(0, all.find('\n')));
    fmt::print("at most {} bytes, table {}; when full, {}\n", options.store.memory_bytes,
               options.store.table == kv::TableKind::cuckoo ? "libcuckoo" : "of work 002",
               options.store.when_full == kv::WhenFull::evict ? "items long unused go"
                                                              : "new items are refused");
}

/// Each connection of a door is a descriptor, and a shell gives 1,024 of them where the system
/// allows many more.
void allow_connections(const kv::DoorOptions& doors) {
    constexpr rlim_t others = 256;  // besides those of doors
    const rlim_t wanted = doors.max_connections + others;
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted) return;
    files.rlim_cur = std::min(wanted, files.rlim_max);
    (void)::setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur >= wanted) return;
    base::log(base::LogLevel::warn, "kv",
              "the system allows {} open files, and so fewer than {} connections (ulimit -Hn)",
              files.rlim_cur, doors.max_connections);
}

void print_loaded(const kv::SnapshotRead& loaded, const std::string& file) {
    fmt::print("{} items from {}", loaded.items, file);
    if (loaded.over != 0) fmt::print(", {} are over", loaded.over);
    if (loaded.refused != 0) fmt::print(", for {} there is no memory", loaded.refused);
    fmt::print("\n");
}

}  // namespace

int run_kv_serve(const KvServeOptions& options) {
    kv::ServerOptions chosen = options.server;
    if (!options.device.empty()) {
        chosen.messages.endpoint = connect::Endpoint::open(options.device);
    }
    if (!options.secret_file.empty()) {
        chosen.messages.admission.secret = connect::read_secret_file(options.secret_file);
    }
    if (!options.resp.empty()) chosen.doors.resp = connect::Address::parse(options.resp);
    if (!options.memcached.empty()) {
        chosen.doors.memcached = connect::Address::parse(options.memcached);
    }
    chosen.snapshot_file = options.snapshot;
    chosen.snapshot_period =
        std::chrono::nanoseconds{static_cast<std::int64_t>(options.snapshot_every * 1e9)};
    if (!options.password_file.empty()) {
        chosen.doors.password = connect::read_secret_file(options.password_file);
    }
    if (!options.tls_cert.empty()) {
        chosen.doors.tls = kv::DoorTls{options.tls_cert, options.tls_key};
    }
    if (chosen.doors.resp || chosen.doors.memcached) allow_connections(chosen.doors);
    auto server = kv::Server::listen(connect::Address::parse(options.address), chosen);
    std::optional<MetricsPage> metrics;
    if (!options.metrics.empty()) {
        metrics.emplace(connect::Address::parse(options.metrics), server);
    }
    const Interruption interruptible;
    fmt::print("listening on {}\n", server.address().to_string());
    for (const kv::DoorKind kind : kv::all_doors) {
        if (const connect::Address* const where = server.door_address(kind)) {
            fmt::print("{} protocol at {}{}\n", protocol_of(kind), where->to_string(),
                       chosen.doors.tls ? ", by TLS" : "");
        }
    }
    if (metrics.has_value()) {
        fmt::print("metrics at http://{}/metrics\n", metrics->address().to_string());
    }
    if (!options.snapshot.empty()) print_loaded(server.loaded(), options.snapshot);
    print_greeting(server, chosen);
    (void)output_arrived();
    (void)server.serve(base::Deadline::never().cancelled_by(interruption()));
    const base::Status closed = server.close(base::Deadline::after(drain_patience));
    const kv::StoreStats store = server.store().stats();
    const message::ServerStats served = server.stats();
    fmt::print("served {} requests of {} clients; {} items, {} bytes of memory\n", served.requests,
               served.joined, store.items, store.memory_bytes);
    for (const kv::DoorKind kind : kv::all_doors) {
        if (server.door_address(kind) == nullptr) continue;
        const kv::DoorStats door = server.door_stats(kind);
        fmt::print("answered {} commands of {} connections of {} clients\n", door.commands,
                   door.accepted, protocol_of(kind));
    }
    if (!options.snapshot.empty()) {
        fmt::print("{} items into {}\n", server.save(), options.snapshot);
    }
    if (closed != base::Status::ok) {
        fmt::print(stderr, "millrace kv serve: some clients did not take their last answers\n");
    }
    return 0;
}

}  // namespace millrace::tools
