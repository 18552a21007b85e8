#include "kv/metrics.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <chrono>
#include <csignal>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/kv/protocol.hpp"
#include "workload/tcp_socket.hpp"

namespace millrace::tools {
namespace {

/// How long the thread sleeps before it looks whether it is to end.
constexpr std::chrono::milliseconds look_every{100};
/// All that one who asks may take: others wait meanwhile.
constexpr std::chrono::seconds request_patience{2};
constexpr std::size_t longest_request = 8192;

class Text {
  public:
    void metric(std::string_view name, std::string_view type, std::string_view help) {
        text_ += fmt::format("# HELP millrace_kv_{0} {2}\n# TYPE millrace_kv_{0} {1}\n", name, type,
                             help);
        name_ = name;
    }
    void value(std::uint64_t value, std::string_view labels = {}, std::string_view part = {}) {
        text_ += fmt::format("millrace_kv_{}{}{} {}\n", name_, part, labels, value);
    }
    void seconds(double ns, std::string_view labels, std::string_view part = {}) {
        text_ += fmt::format("millrace_kv_{}{}{} {:.9f}\n", name_, part, labels, ns / 1e9);
    }
    void one(std::string_view name, std::string_view type, std::string_view help,
             std::uint64_t number) {
        metric(name, type, help);
        value(number);
    }
    /// A summary; `label` is what all its lines have.
    void times(const kv::ServiceTimes& times, std::string_view label) {
        const auto of = [&](std::string_view quantile, std::uint64_t ns) {
            seconds(static_cast<double>(ns),
                    fmt::format("{{{},quantile=\"{}\"}}", label, quantile));
        };
        of("0.5", times.p50_ns);
        of("0.9", times.p90_ns);
        of("0.99", times.p99_ns);
        of("0.999", times.p999_ns);
        of("1", times.longest_ns);
        seconds(times.mean_ns * static_cast<double>(times.timed), fmt::format("{{{}}}", label),
                "_sum");
        value(times.timed, fmt::format("{{{}}}", label), "_count");
    }
    [[nodiscard]] std::string take() { return std::move(text_); }

  private:
    std::string text_;
    std::string_view name_;
};

/// Each count of all doors that are open.
void add_doors(Text& text, const kv::Server& server) {
    struct Open {
        std::string label;
        kv::DoorStats stats;
        kv::ServiceTimes times;
    };
    std::vector<Open> open;
    for (const kv::DoorKind kind : kv::all_doors) {
        if (server.door_address(kind) == nullptr) continue;
        open.push_back({fmt::format("door=\"{}\"", name_of(kind)), server.door_stats(kind),
                        server.door_times(kind)});
    }
    if (open.empty()) return;
    const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                          std::uint64_t kv::DoorStats::*count) {
        text.metric(name, type, help);
        for (const Open& door : open) {
            text.value(door.stats.*count, fmt::format("{{{}}}", door.label));
        }
    };
    each("door_connections", "gauge", "Connections of clients of another protocol.",
         &kv::DoorStats::connections);
    each("door_accepted_total", "counter", "Connections that came.", &kv::DoorStats::accepted);
    each("door_commands_total", "counter", "Commands that were answered.",
         &kv::DoorStats::commands);
    each("door_errors_total", "counter", "Answers that were errors.", &kv::DoorStats::errors);
    each("door_denied_total", "counter", "Wrong passwords.", &kv::DoorStats::denied);
    each("door_tls_accepted_total", "counter", "TLS handshakes that were done.",
         &kv::DoorStats::tls_accepted);
    each("door_received_bytes_total", "counter", "Bytes of what came.", &kv::DoorStats::bytes_in);
    each("door_sent_bytes_total", "counter", "Bytes of answers.", &kv::DoorStats::bytes_out);
    text.metric("door_closed_total", "counter", "Connections that were closed, by why.");
    constexpr std::pair<std::string_view, std::uint64_t kv::DoorStats::*> reasons[] = {
        {"refused", &kv::DoorStats::refused}, {"malformed", &kv::DoorStats::malformed},
        {"slow", &kv::DoorStats::slow},       {"idle", &kv::DoorStats::idle},
        {"greedy", &kv::DoorStats::greedy},   {"tls", &kv::DoorStats::tls_failed}};
    for (const Open& door : open) {
        for (const auto& [why, count] : reasons) {
            text.value(door.stats.*count, fmt::format("{{{},why=\"{}\"}}", door.label, why));
        }
    }
    text.metric("door_seconds", "summary",
                fmt::format("Time of commands within the server, of one in {}.", kv::timed_one_of));
    for (const Open& door : open) text.times(door.times, door.label);
}

}  // namespace

std::string metrics_of(const kv::Server& server) {
    const kv::StoreStats store = server.store().stats();
    const message::ServerStats messages = server.stats();
    const auto requests = server.requests();
    Text text;
    text.metric("requests_total", "counter", "Requests that were taken, by command.");
    for (std::size_t command = 0; command < requests.size(); ++command) {
        text.value(requests[command],
                   fmt::format("{{command=\"{}\"}}", name_of(static_cast<kv::Command>(command))));
    }
    text.one("hits_total", "counter", "GETs that found a value.", store.hits);
    text.one("misses_total", "counter", "GETs that found none.", store.gets - store.hits);
    text.one("evicted_total", "counter", "Items that went to make room.", store.evicted);
    text.one("expired_total", "counter", "Items that went when their time was over.",
             store.expired);
    text.one("refused_total", "counter", "Items that found no memory.", store.refused);
    text.one("items", "gauge", "Items in the store.", store.items);
    text.one("item_bytes", "gauge", "Bytes of keys and values in the store.", store.item_bytes);
    text.one("memory_bytes", "gauge", "Bytes taken for items and their table.", store.memory_bytes);
    text.one("memory_limit_bytes", "gauge", "Bytes that may be taken for them.",
             server.store().options().memory_bytes);
    text.one("clients", "gauge", "Clients with a connection.", messages.clients - messages.away);
    text.one("sessions", "gauge", "Clients, and those who may come back to their session.",
             messages.clients);
    text.one("clients_joined_total", "counter", "Clients that came.", messages.joined);
    text.one("clients_refused_total", "counter", "Clients that were not let in.", messages.refused);
    text.one("clients_misbehaved_total", "counter",
             "Clients that were dropped for what they sent or did not read.", messages.misbehaved);
    text.metric("service_seconds", "summary",
                fmt::format("Time of requests within the server, of one in {}.", kv::timed_one_of));
    for (const kv::Command command : kv::timed_commands) {
        text.times(server.service_times(command), fmt::format("command=\"{}\"", name_of(command)));
    }
    const kv::SaveStats saves = server.save_stats();
    text.one("snapshots_total", "counter", "Snapshots that were written.", saves.written);
    text.one("snapshots_failed_total", "counter", "Snapshots that could not be written.",
             saves.failed);
    text.one("snapshot_timestamp_seconds", "gauge",
             "When the last one was written; before the first, when the server began.",
             static_cast<std::uint64_t>(saves.last_at));
    add_doors(text, server);
    return text.take();
}

MetricsPage::MetricsPage(const connect::Address& address, const kv::Server& server)
    : server_{&server} {
    if (address.kind() != connect::Address::Kind::tcp) {
        throw base::Error{base::ErrorCode::invalid_argument, "show metrics", address.to_string(),
                          "they are asked for by HTTP over TCP", "use host:port"};
    }
    listening_ = workload::tcp_listen(address.host(), address.port());
    address_ = connect::Address::tcp(address.host(), workload::tcp_port(listening_));
    // Signals are for the thread that serves.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    thread_ = std::thread{[this] { serve(); }};
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MetricsPage::~MetricsPage() {
    ends_ = true;
    thread_.join();
}

namespace {

/// Reads up to the end of a request's head. Empty: it did not come, or is too long.
[[nodiscard]] std::string read_head(const workload::Descriptor& socket) {
    const base::Deadline deadline = base::Deadline::after(request_patience);
    std::string head;
    while (head.find("\r\n\r\n") == std::string::npos) {
        char bytes[1024];
        const ssize_t got = ::recv(socket.get(), bytes, sizeof bytes, 0);
        if (got <= 0 || deadline.expired()) return {};
        head.append(bytes, static_cast<std::size_t>(got));
        if (head.size() > longest_request) return {};
    }
    return head;
}

void send_all(const workload::Descriptor& socket, std::string_view text) {
    const base::Deadline deadline = base::Deadline::after(request_patience);
    while (!text.empty() && !deadline.expired()) {
        const ssize_t sent = ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
        if (sent <= 0) return;
        text.remove_prefix(static_cast<std::size_t>(sent));
    }
    // What it had sent beyond its request must not reset the connection.
    ::shutdown(socket.get(), SHUT_WR);
    char rest[1024];
    while (!deadline.expired() && ::recv(socket.get(), rest, sizeof rest, 0) > 0) {
    }
}

void answer(const workload::Descriptor& socket, const kv::Server& server) {
    const timeval limit{request_patience.count(), 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const std::string head = read_head(socket);
    const std::string_view line = std::string_view{head}.substr(0, head.find("\r\n"));
    std::string_view status = "200 OK";
    std::string body;
    if (!line.ends_with(" HTTP/1.1") && !line.ends_with(" HTTP/1.0")) {
        status = "400 Bad Request";
    } else if (!line.starts_with("GET ")) {
        status = "405 Method Not Allowed";
    } else if (!line.starts_with("GET /metrics ") && !line.starts_with("GET /metrics?")) {
        status = "404 Not Found";
        body = "The metrics are at /metrics.\n";
    } else {
        body = metrics_of(server);
    }
    send_all(socket, fmt::format("HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                                 "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
                                 status, body.size(), body));
}

}  // namespace

void MetricsPage::serve() const {
    while (!ends_) {
        pollfd newcomer{.fd = listening_.get(), .events = POLLIN, .revents = 0};
        if (::poll(&newcomer, 1, static_cast<int>(look_every.count())) != 1) continue;
        const workload::Descriptor socket{
            ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
        if (socket.get() < 0) {
            // No descriptor is left, for one: it may be there later.
            std::this_thread::sleep_for(look_every);
            continue;
        }
        answer(socket, *server_);
    }
}

}  // namespace millrace::tools
