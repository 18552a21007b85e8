#include "measure_doors.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/program.hpp"
#include "bench/kv/own_server.hpp"
#include "bench/ycsb/measure_ycsb.hpp"
#include "millrace/base/error.hpp"
#include "words_load.hpp"

namespace millrace::bench {
namespace {

using kv::DoorKind;

using Addresses = std::array<connect::Address, kv::door_kinds>;

/// Calls `clients` with where the doors of a server of ours are; it has both.
void with_own_doors(WordsOver over, const std::function<void(const Addresses&)>& clients) {
    const auto address_of = [&](DoorKind kind) {
        if (over == WordsOver::tcp) return connect::Address::tcp("127.0.0.1", free_port());
        return connect::Address::unix_socket(
            fmt::format("/tmp/millrace-bench-{}-{}", kv::name_of(kind), ::getpid()));
    };
    OwnServerCase server{.transport = connect::Transport::tcp, .by_unix_socket = true};
    const Addresses doors{address_of(DoorKind::resp), address_of(DoorKind::memcached)};
    server.doors.resp = doors[0];
    server.doors.memcached = doors[1];
    with_own_server(server, [&](const connect::Address&) { clients(doors); });
}

/// Calls `clients` on the first core with where somebody serves that protocol on the second.
void with_server(DoorKind protocol, DoorOf whose, WordsOver over,
                 const std::function<void(const connect::Address&)>& clients) {
    if (whose == DoorOf::ours) {
        with_own_doors(over, [&](const Addresses& doors) {
            clients(doors[static_cast<std::size_t>(protocol)]);
        });
        return;
    }
    std::unique_ptr<WordsServer> server;
    if (protocol == DoorKind::resp) {
        server = std::make_unique<Redis>(over);
    } else {
        server = std::make_unique<Memcached>(over);
    }
    run_alone([&] {
        clients(server->address());
        return 0.0;
    });
}

/// A request of three bytes' value, as redis-benchmark's, and its answer.
struct Exchange {
    std::string request;
    std::string answer;
};
Exchange exchange_of(DoorKind protocol, bool sets) {
    if (protocol == DoorKind::memcached) {
        return sets ? Exchange{"set key 0 0 3\r\nxxx\r\n", "STORED\r\n"}
                    : Exchange{"get key\r\n", "VALUE key 0 3\r\nxxx\r\nEND\r\n"};
    }
    return sets ? Exchange{"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$3\r\nxxx\r\n", "+OK\r\n"}
                : Exchange{"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", "$3\r\nxxx\r\n"};
}

/// The figure after the name of the test, in lines of words in quotes.
double requests_in(const std::string& lines, std::string_view test) {
    const std::string begin = fmt::format("\"{}\",\"", test);
    const std::size_t at = lines.find(begin);
    double figure = 0;
    if (at != std::string::npos) {
        const char* const from = lines.data() + at + begin.size();
        (void)std::from_chars(from, lines.data() + lines.size(), figure);
    }
    if (figure > 0) return figure;
    throw base::Error{base::ErrorCode::protocol, "measure a key-value server", "redis-benchmark",
                      "its table has no such test: " + lines, ""};
}

YcsbCase gets_of_sixteen() {
    YcsbCase chosen;  // workload C
    chosen.records = 1000;
    chosen.clients = 16;
    chosen.warm_up = std::chrono::milliseconds{100};
    return chosen;
}

YcsbResult run_gets(const YcsbCase& chosen, DoorOf whose) {
    YcsbResult result;
    with_server(DoorKind::resp, whose, WordsOver::unix_socket, [&](const connect::Address& server) {
        result = run_ycsb_clients(chosen, [&] {
            return connect_ycsb(*find_ycsb_way("redis"), server, false, patience());
        });
    });
    require(result.failed() == 0, "GETs that find their values");
    return result;
}

double resident_bytes_of(int process) {
    std::ifstream rollup{fmt::format("/proc/{}/smaps_rollup", process)};
    for (std::string name; rollup >> name && name != "Rss:";) {
    }
    double kibibytes = 0;
    rollup >> kibibytes;
    require(kibibytes > 0, "the size of a server's process");
    return kibibytes * 1024;
}

/// Of all its threads.
double processor_seconds_of(int process) {
    double ns = 0;
    for (const auto& thread :
         std::filesystem::directory_iterator{fmt::format("/proc/{}/task", process)}) {
        double of_one = 0;
        std::ifstream{thread.path() / "schedstat"} >> of_one;
        ns += of_one;
    }
    return ns / 1e9;
}

/// Raises this process's limit on open files, and that of servers which it starts from now on.
std::size_t most_connections(std::size_t wanted) {
    rlimit files{};
    require(::getrlimit(RLIMIT_NOFILE, &files) == 0, "the limit on open files");
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
    return std::min<std::size_t>(wanted, files.rlim_cur - 100);
}

/// So many more of one protocol, each of which is answered once.
void open_more(std::vector<WordsClient>& clients, const connect::Address& server, DoorKind protocol,
               std::size_t count) {
    const bool is_redis = protocol == DoorKind::resp;
    for (std::size_t i = 0; i != count; ++i) {
        clients.emplace_back(connected_to(server));
        clients.back().send(is_redis ? "PING\r\n" : "mn\r\n");
        require_intact(clients.back().line() == (is_redis ? "+PONG" : "MN"), "an answer");
    }
}

}  // namespace

std::string name_of(const DoorCase& chosen) {
    return fmt::format("{} over {}, {} connection{}, P = {}", chosen.sets ? "SET" : "GET",
                       chosen.over == WordsOver::tcp ? "TCP" : "Unix", chosen.connections,
                       chosen.connections == 1 ? "" : "s", chosen.pipeline);
}

double measure_door(const DoorCase& chosen, DoorOf whose) {
    double figure = 0;
    with_server(chosen.protocol, whose, chosen.over, [&](const connect::Address& server) {
        const Exchange setting = exchange_of(chosen.protocol, true);
        WordsClient client{connected_to(server)};
        client.send(setting.request);
        require_intact(setting.answer.starts_with(client.line()), "a set");
        const Exchange measured = exchange_of(chosen.protocol, chosen.sets);
        figure = answers_per_second({.connections = chosen.connections,
                                     .pipeline = chosen.pipeline,
                                     .request = measured.request,
                                     .answer = measured.answer},
                                    server);
    });
    return figure;
}

double measure_door_by_redis_benchmark(const DoorCase& chosen, DoorOf whose) {
    require_program("redis-benchmark", "redis-tools");
    double figure = 0;
    with_server(DoorKind::resp, whose, chosen.over, [&](const connect::Address& server) {
        // Some 0.3 s of them.
        const unsigned requests =
            (chosen.pipeline == 1 ? 1U : 8U) * (chosen.connections == 1 ? 20'000U : 40'000U);
        std::vector<std::string> words{"redis-benchmark",
                                       "--csv",
                                       "-t",
                                       chosen.sets ? "set" : "get",
                                       "-c",
                                       std::to_string(chosen.connections),
                                       "-P",
                                       std::to_string(chosen.pipeline),
                                       "-n",
                                       std::to_string(requests)};
        if (chosen.over == WordsOver::tcp) {
            words.insert(words.end(), {"-p", std::to_string(server.port())});
        } else {
            words.insert(words.end(), {"-s", server.path()});
        }
        Program program{std::move(words), {}, two_cores().first};
        figure = requests_in(program.read_all(patience()), chosen.sets ? "SET" : "GET");
    });
    return figure;
}

double p999_of_redis_protocol(DoorOf whose, double per_second) {
    YcsbCase chosen = gets_of_sixteen();
    chosen.offered_per_second = per_second;
    const YcsbResult result = run_gets(chosen, whose);
    return static_cast<double>(result.times_of(workload::YcsbOperation::read).quantile(0.999)) /
           1000;
}

double capacity_of_redis_protocol(DoorOf whose) {
    return run_gets(gets_of_sixteen(), whose).operations_per_second;
}

double resident_bytes_per_item(DoorOf whose) {
    constexpr std::uint64_t items = 100'000;
    constexpr std::size_t key_bytes = 16;
    const std::string value(100, 'v');
    double each = 0;
    with_server(DoorKind::memcached, whose, WordsOver::unix_socket,
                [&](const connect::Address& server) {
                    WordsClient client{connected_to(server)};
                    fill(client, 1, value);  // what the process has once
                    const double before = resident_bytes_of(client.server_process());
                    fill(client, items, value);
                    const double after = resident_bytes_of(client.server_process());
                    each = (after - before) / static_cast<double>(items) -
                           static_cast<double>(key_bytes + value.size());
                });
    return each;
}

IdleConnections measure_idle_connections(std::size_t count) {
    const std::size_t each = most_connections(count) / 2;
    IdleConnections figures;
    with_own_doors(WordsOver::unix_socket, [&](const Addresses& doors) {
        std::vector<WordsClient> clients;
        clients.reserve(2 * each);
        const auto open = [&](std::size_t more) {
            for (const DoorKind kind : kv::all_doors) {
                open_more(clients, doors[static_cast<std::size_t>(kind)], kind, more);
            }
        };
        open(1);  // what the process has once
        const int server = clients.front().server_process();
        const double before = resident_bytes_of(server);
        open(each - 1);
        figures.kibibytes_each =
            (resident_bytes_of(server) - before) / 1024 / static_cast<double>(clients.size() - 2);
        std::this_thread::sleep_for(std::chrono::milliseconds{500});  // all is quiet
        const double used = processor_seconds_of(server);
        constexpr std::chrono::seconds idle{2};
        std::this_thread::sleep_for(idle);
        figures.processor_percent = 100 * (processor_seconds_of(server) - used) /
                                    std::chrono::duration<double>{idle}.count();
    });
    return figures;
}

}  // namespace millrace::bench
