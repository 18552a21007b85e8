// Bars of programs that connect by librdmacm, unmodified and on their own private memory: how fast
// they connect; rsockets to perftest; iperf3 and valkey to themselves over TCP.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/framework/bars.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/program.hpp"
#include "bench/peers/perftest.hpp"
#include "millrace/base/error.hpp"
#include "millrace/cm/survey.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::bench {
namespace {

using base::Error;
using base::ErrorCode;
using Command = std::vector<std::string>;

constexpr const char* attempt = "measure a program that connects by librdmacm";

/// Somebody listens, as the drop-in does, or the system.
bool listens_by_rdma_cm(std::uint16_t port) {
    const auto ports = cm::taken_ports();
    const std::string fabric = fmt::format("bench-{}", ::getpid());
    return std::any_of(ports.begin(), ports.end(), [&](const cm::TakenPort& one) {
        return one.fabric == fabric && one.port == port && one.listening;
    });
}

struct Programs {
    Command server{};  ///< PORT is replaced
    Command client{};
    Environment environment{};
    bool by_rdma_cm = true;
};

Command with_port(Command command, std::uint16_t port) {
    std::replace(command.begin(), command.end(), std::string{"PORT"}, std::to_string(port));
    return command;
}

/// What the client says, each on a processor of its own. The server is ended then.
std::string said_by_client(const Programs& programs) {
    const auto cores = two_cores();
    const auto port = free_port();
    const auto deadline = base::Deadline::after(std::chrono::seconds{60});
    Program server{with_port(programs.server, port), programs.environment, cores.second};
    while (!(programs.by_rdma_cm ? listens_by_rdma_cm(port) : listens(port))) {
        if (deadline.expired() || !server.running()) {
            throw Error{ErrorCode::timed_out, attempt, programs.server.front(),
                        "its server does not listen",
                        "see whether millrace soft run -- rping -s works"};
        }
        ::usleep(5'000);
    }
    Program client{with_port(programs.client, port), programs.environment, cores.first};
    return client.read_all(deadline);
}

/// The number that the pattern's first group finds in what the client says.
double number_said(const Programs& programs, const std::string& pattern) {
    const std::string said = said_by_client(programs);
    std::smatch found;
    if (!std::regex_search(said, found, std::regex{pattern})) {
        throw Error{ErrorCode::protocol, attempt, programs.client.front(),
                    "its result is not in what it says: " + said, ""};
    }
    return std::stod(found[1]);
}

// --- connecting ---------------------------------------------------------------------------------

constexpr std::uint64_t connections = 1'000;

/// Microseconds of all steps up to a connection, of a thousand at once.
double cmtime() {
    require_program("cmtime", "rdmacm-utils");
    const std::string said = said_by_client(
        {{"cmtime", "-p", "PORT"},
         {"cmtime", "-p", "PORT", "-c", std::to_string(connections), "-s", "127.0.0.1"},
         drop_in_environment()});
    double sum = 0;
    for (const char* const step : {"resolve addr", "resolve route", "create qp", "connect"}) {
        const std::regex line{std::string{step} + R"(\s*:\s+\S+\s+\S+\s+\S+\s+(\S+))"};
        std::smatch found;
        if (!std::regex_search(said, found, line)) {
            throw Error{ErrorCode::protocol, attempt, "cmtime",
                        fmt::format("it tells nothing of '{}': {}", step, said), ""};
        }
        sum += std::stod(found[1]);
    }
    return sum;
}

/// Microseconds of one of our own connections, made one after the other.
double handshake() {
    const connect::LinkOptions options{
        .service = "bench cm", .max_send_requests = 1, .max_receive_requests = 1};
    const auto all = [](auto&& next) {
        std::vector<connect::Link> links;
        links.reserve(connections);
        const auto start = base::Clock::now();
        while (links.size() != connections) links.push_back(next());
        const std::chrono::duration<double, std::micro> took = base::Clock::now() - start;
        return std::pair{std::move(links), took.count() / connections};
    };
    return run_pair(
        {},
        [&](Pair& pair) {
            auto listener =
                connect::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            const auto [links, microseconds] = all([&] { return listener.accept(patience()); });
            pair.meet();
            return microseconds;
        },
        [&](Pair& pair) {
            const auto address = address_of_first(pair);
            const auto [links, microseconds] =
                all([&] { return connect::connect(address, options, patience()); });
            pair.meet();
        });
}

const BarRegistration connecting{
    ratio_bar("cm", "cmtime -c 1000, all steps of a connection, to a Millrace handshake", 3,
              Sense::at_most, {"cmtime", cmtime, "us"}, {"handshake", handshake, "us"})};

// --- rsockets -----------------------------------------------------------------------------------

/// `pattern`: the last two columns are Gb/sec and usec/xfer.
double rstream(const Command& words, const std::string& pattern) {
    require_program("rstream", "rdmacm-utils");
    Command server{"rstream", "-p", "PORT"};
    server.insert(server.end(), words.begin(), words.end());
    Command client = server;
    client.insert(client.end(), {"-s", "127.0.0.1"});
    return number_said({server, client, drop_in_environment()}, pattern);
}

const BarRegistration small_transfers{ratio_bar(
    "cm", "rstream -S 64, one way, to ib_send_lat -s 64", 2, Sense::at_most,
    {"rstream",
     [] {
         return rstream({"-S", "64", "-C", "1", "-I", "20000"}, R"(custom.*\s(\S+)\s*\n)");
     },
     "us"},
    {"ib_send_lat",
     [] { return run_perftest({.program = "ib_send_lat", .bytes = 64})[typical_microseconds]; },
     "us"})};

const BarRegistration bandwidth_of_rsockets{ratio_bar(
    "cm", "rstream -S 1048576 to ib_write_bw -s 1048576, private memory", 0.8, Sense::at_least,
    {"rstream",
     [] {
         return rstream({"-S", "1048576", "-C", "1000"}, R"(custom.*\s(\S+)\s+\S+\s*\n)");
     },
     "Gb/s"},
    {"ib_write_bw",
     [] {
         return run_perftest({.program = "ib_write_bw",
                              .bytes = 1U << 20,
                              .iterations = 2'000,
                              .arguments = {"--report_gbits"}})[average_bandwidth];
     },
     "Gb/s"})};

/// Of rdma-core 65 or newer: of older ones select() names a wrong descriptor after accept().
std::string librspreload() {
    std::vector<std::filesystem::path> folders;
    if (const char* told = std::getenv("LD_LIBRARY_PATH")) {
        std::istringstream list{told};
        for (std::string folder; std::getline(list, folder, ':');) folders.emplace_back(folder);
    }
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator{"/usr/lib", ignored}) {
        folders.push_back(entry.path() / "rsocket");
    }
    for (const auto& folder : folders) {
        const auto library = folder / "librspreload.so.1";
        std::ifstream file{library, std::ios::binary};
        if (!file) continue;
        std::ostringstream content;
        content << file.rdbuf();
        if (content.str().find("accept4") != std::string::npos) return library;
    }
    throw Error{ErrorCode::not_found, attempt, "librspreload.so.1",
                "the one that is here answers select() with a wrong descriptor",
                "name a folder with rdma-core 65's in LD_LIBRARY_PATH"};
}

double iperf3(bool by_rsockets) {
    require_program("iperf3", "iperf3");
    Environment environment;
    if (by_rsockets) {
        environment = drop_in_environment();
        environment.emplace_back("LD_PRELOAD", librspreload());
    }
    return number_said({{"iperf3", "-s", "-1", "-p", "PORT"},
                        {"iperf3", "-c", "127.0.0.1", "-p", "PORT", "-t", "2", "-f", "m"},
                        environment,
                        by_rsockets},
                       R"(\s(\S+) Mbits/sec[^\n]*receiver)");
}

const BarRegistration sockets{ratio_bar("cm", "iperf3 by librspreload to iperf3 over TCP", 1,
                                        Sense::at_least,
                                        {"rsockets", [] { return iperf3(true); }, "Mb/s"},
                                        {"TCP", [] { return iperf3(false); }, "Mb/s"})};

// --- valkey -------------------------------------------------------------------------------------

/// GETs of 100 bytes of 50 clients, a second.
double valkey(bool by_rdma) {
    const std::string from_source = "build it from source, see docs/drop-in.md";
    for (const char* const program : {"valkey-server", "valkey-benchmark"}) {
        require_program(program, "valkey; " + from_source);
    }
    Command server{"valkey-server", "--save", ""};
    Command client{"valkey-benchmark", "-h", "127.0.0.1", "-p", "PORT", "-c", "50", "-n",
                   "100000",           "-d", "100",       "-t", "get",  "-q"};
    if (by_rdma) {
        server.insert(server.end(),
                      {"--port", "0", "--rdma-port", "PORT", "--rdma-bind", "127.0.0.1"});
        client.emplace_back("--rdma");
    } else {
        server.insert(server.end(), {"--port", "PORT"});
    }
    return number_said({server, client, drop_in_environment(), by_rdma},
                       R"(GET: (\S+) requests per second)");
}

const BarRegistration values{ratio_bar(
    "cm", "valkey, GET of 100 B, 50 clients, RDMA to TCP", 1.3, Sense::at_least,
    {"RDMA", [] { return valkey(true); }, "1/s"}, {"TCP", [] { return valkey(false); }, "1/s"})};

}  // namespace
}  // namespace millrace::bench
