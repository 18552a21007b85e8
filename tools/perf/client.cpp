// The side that asks: `millrace perf -c`.
#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cat/interruption.hpp"
#include "command_line/output.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/stream/socket.hpp"
#include "perf/perf.hpp"
#include "perf/report.hpp"
#include "perf/run.hpp"

namespace millrace::tools {
namespace perf {
namespace {

/// Until the lanes have ended, with a line now and then. Throws Error: interrupted.
void watch(Run& run, Report& report, std::chrono::milliseconds interval) {
    const auto bytes = [&run] {
        std::vector<std::uint64_t> all;
        for (std::uint32_t lane = 0; lane < run.plan().lanes(); ++lane) {
            all.push_back(run.bytes(lane));
        }
        return all;
    };
    const auto start = base::Clock::now();
    auto next = start + interval;
    const auto never = base::Clock::time_point::max();
    if (interval.count() == 0) next = never;
    while (!run.wait(std::min(next, base::Clock::now() + look_interval))) {
        if (interruption().requested()) {
            run.stop();
            throw base::Error{base::ErrorCode::cancelled, "measure", "streams",
                              "interrupted by a signal", ""};
        }
        run.require_progress();
        if (base::Clock::now() < next) continue;
        report.interval(bytes(), run.seconds());
        next += interval;
    }
    // The last one is shorter; one of next to nothing says nothing.
    const double told = interval.count() == 0 || next == start + interval
                            ? 0.0
                            : seconds_since(start) - seconds_since(next - interval);
    if (interval.count() != 0 && run.seconds() - told > 0.05) {
        report.interval(bytes(), run.seconds());
    }
}

/// Throws Error: what was received is not what was sent.
void compare(const Plan& plan, const Counts& mine, const Counts& theirs) {
    for (std::uint32_t lane = 0; lane < plan.lanes(); ++lane) {
        if (mine.lanes[lane].bytes == theirs.lanes[lane].bytes) continue;
        throw base::Error{base::ErrorCode::protocol, "compare what both ends counted",
                          "stream " + std::to_string(lane),
                          std::to_string(mine.lanes[lane].bytes) + " bytes here, and " +
                              std::to_string(theirs.lanes[lane].bytes) + " there",
                          ""};
    }
}

/// Where the server says that it awaits the lanes. Throws Error.
connect::Address elsewhere(const connect::Address& server, const nlohmann::json& answer) {
    const auto place = answer.find("lanes_at");
    if (server.kind() == connect::Address::Kind::tcp && place != answer.end() &&
        place->is_number_unsigned()) {
        return connect::Address::tcp(server.host(), place->get<std::uint16_t>());
    }
    // As this end names the server, whatever folder that one was started in.
    if (server.kind() == connect::Address::Kind::unix_socket && place != answer.end() &&
        place->is_string()) {
        return connect::Address::unix_socket(server.path() + "-lanes");
    }
    throw base::Error{base::ErrorCode::protocol, "hear where streams are to come to",
                      server.to_string(), "it does not say so",
                      "use the same version of millrace on both sides"};
}

void measure(const PerfClientOptions& options, Report& report) {
    const Plan& plan = options.plan;
    const auto address = connect::Address::parse(options.address);
    const auto soon = [] { return base::Deadline::after(patience).cancelled_by(interruption()); };
    stream::SocketOptions chosen;
    chosen.endpoint = connect::Endpoint::open(options.device);
    if (!options.secret_file.empty()) {
        chosen.admission.secret = connect::read_secret_file(options.secret_file);
    }
    auto control = stream::connect(address, chosen, soon());
    const auto greet = [&soon](stream::Socket& socket, const Hello& hello) {
        if (socket.write_all(hello.bytes(), soon()) == base::Status::ok) return;
        throw base::Error{base::ErrorCode::peer_lost, "greet the other end", socket.peer_name(),
                          socket.failure().empty() ? "it is silent" : socket.failure(),
                          "look at what its process reported"};
    };
    greet(control, {});
    say(control, plan.to_json(), soon());
    const auto answer = hear(control, soon());
    const auto cookie = answer.value("cookie", std::uint64_t{0});
    const auto lanes_at = plan.lanes_come_elsewhere() ? elsewhere(address, answer) : address;

    Run run{plan, true};
    chosen.mode = plan.mode;
    chosen.type = plan.type;
    for (std::uint32_t lane = 0; lane < plan.lanes(); ++lane) {
        const Hello hello{.cookie = cookie, .lane = lane};
        if (plan.tcp) {
            run.add(lane,
                    tcp_lane(tcp_connect(lanes_at.host(), lanes_at.port(), hello), run.stopping()));
            continue;
        }
        auto socket = stream::connect(lanes_at, chosen, soon());
        greet(socket, hello);
        run.add(lane, stream_lane(std::move(socket), chosen.endpoint, run.stopping()));
    }
    (void)hear(control, soon());
    report.begin(plan.tcp ? "" : control.link().carrier());
    run.start();
    watch(run, report, options.interval);
    const Counts& mine = run.counts();
    say(control, mine.to_json(), soon());
    const Counts theirs = Counts::parse(hear(control, soon()), plan.lanes());
    (void)control.close(soon());
    report.end(mine, theirs);
    compare(plan, mine, theirs);
}

}  // namespace
}  // namespace perf

int run_perf_client(const PerfClientOptions& options) {
    const Interruption interruptible;
    options.json.check();
    perf::Report report{options.address, options.plan, !options.json.in_place_of_lines()};
    try {
        perf::measure(options, report);
    } catch (const std::exception& error) {
        if (options.json.wanted()) {
            nlohmann::json document = report.document();
            document["error"] = error.what();
            options.json.write(document.dump(2));
        }
        if (interrupting_signal() == 0) throw;
        return 128 + interrupting_signal();
    }
    if (options.json.wanted()) options.json.write(report.document().dump(2));
    return 0;
}

}  // namespace millrace::tools
