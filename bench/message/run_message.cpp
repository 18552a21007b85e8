#include "run_message.hpp"

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "framework/report.hpp"
#include "limits/hand_over.hpp"
#include "measure_message.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::bench {
namespace {

using message::Polling;

struct Line {
    std::string figure;  ///< of work 001; or the number of another work
    std::string what;
    std::string unit;
    Summary measured;
};
/// What the work found, and whether it is so here.
struct Finding {
    std::string figure;
    std::string found;
    bool agrees;
    std::string because;
};

class Report {
  public:
    Report(const MessageOptions& options, bool prints) : options_{options}, prints_{prints} {}

    /// Contenders alternate, round by round.
    Results compare(const std::string& figure, const std::string& unit,
                    std::vector<std::pair<std::string, std::function<double()>>> contenders) {
        Rounds rounds{RoundOptions{.rounds = options_.rounds}};
        for (auto& [name, run] : contenders) rounds.add({name, std::move(run), unit});
        const Results results = rounds.run();
        for (const Contender& contender : results.contenders()) {
            const Summary measured = results.summary(contender.name);
            lines.push_back({figure, contender.name, unit, measured});
            if (!prints_) continue;
            fmt::print("{:<6} {:<58} {:>8} {:<5} ({} to {})\n", figure, contender.name,
                       humane(measured.median), unit, humane(measured.low), humane(measured.high));
            std::fflush(stdout);
        }
        return results;
    }
    void find(Finding finding) {
        if (prints_) {
            fmt::print("       work 001: {}\n       {}: {}\n\n", finding.found,
                       finding.agrees ? "agrees" : "differs, because", finding.because);
            std::fflush(stdout);
        }
        findings.push_back(std::move(finding));
    }

    std::vector<Line> lines;
    std::vector<Finding> findings;

  private:
    const MessageOptions& options_;
    bool prints_;
};

Ways over_socket(bool unix_domain) {
    return {.transport = connect::Transport::tcp, .unix_domain = unix_domain};
}

void latency_by_size(Report& report, bool quick) {
    const std::uint64_t calls = quick ? 4'000 : 20'000;
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{1024}, std::size_t{8192}}) {
        const Results results = report.compare(
            "4.2", "ns",
            {{fmt::format("call of {} B, one client, flag", bytes),
              [=] { return call_of_one({.bytes = bytes, .calls = calls}); }},
             {fmt::format("echo of {} B over a Unix socket", bytes),
              [=] { return call_over_socket(true, bytes, calls); }},
             {fmt::format("echo of {} B over TCP on the loopback", bytes),
              [=] { return call_over_socket(false, bytes, calls); }},
             {fmt::format("call of {} B, one client, over a Unix socket", bytes),
              [=] {
                  return call_of_one({.polling = Polling::automatic,
                                      .ways = over_socket(true),
                                      .bytes = bytes,
                                      .calls = calls / 4});
              }},
             {fmt::format("call of {} B, one client, over TCP on the loopback", bytes),
              [=] {
                  return call_of_one({.polling = Polling::automatic,
                                      .ways = over_socket(false),
                                      .bytes = bytes,
                                      .calls = calls / 4});
              }},
             {fmt::format("ideal hand-over of {} B", bytes),
              [=] { return message_round_trip(bytes, calls); }}});
        if (bytes != 64) continue;
        const double to_unix =
            results.ratio(results.contenders()[1].name, results.contenders()[0].name).median;
        report.find(
            {"4.2", "shared memory is 30 times as fast as Unix sockets", to_unix >= 20,
             fmt::format(
                 "{:.1f} times; the ideal hand-over takes {:.2f} of a call", to_unix,
                 results.ratio(results.contenders().back().name, results.contenders()[0].name)
                     .median)});
    }
}

void polling_by_clients(Report& report, bool quick) {
    const std::uint64_t calls = quick ? 4'000 : 20'000;
    for (const std::size_t clients : quick ? std::vector<std::size_t>{1, 64, 512}
                                           : std::vector<std::size_t>{1, 16, 64, 256, 1024}) {
        const Results results = report.compare(
            "4.6", "ns",
            {{fmt::format("call of one among {} clients, flag", clients),
              [=] { return call_of_one({.connected = clients, .calls = calls}); }},
             {fmt::format("call of one among {} clients, dense", clients), [=] {
                  return call_of_one(
                      {.polling = Polling::dense, .connected = clients, .calls = calls});
              }}});
        const double ratio =
            results.ratio(results.contenders()[1].name, results.contenders()[0].name).median;
        report.find({"4.6", "polling one byte of each client is some 5 % faster than offsets",
                     ratio < 1,
                     fmt::format("with {} clients bytes take {:.2f} times what flags take", clients,
                                 ratio)});
    }
    std::vector<std::pair<std::string, std::function<double()>>> scans;
    for (const message::ScanKernel kernel : message::every_scan_kernel) {
        if (!message::is_available(kernel)) continue;
        scans.emplace_back(fmt::format("scan of 2,048 empty mailboxes, {}", name_of(kernel)),
                           [kernel] { return scan_of_empty(kernel, 2048); });
    }
    const Results results = report.compare("4.6", "ns", std::move(scans));
    report.find({"4.6", "vectors give a small but consistent gain over scalar polling of bytes",
                 true,
                 fmt::format("for a whole scan the best kernel ({}) is {:.0f} times as fast; of a "
                             "call with few clients that is little",
                             name_of(message::best_scan_kernel()),
                             results
                                 .ratio("scan of 2,048 empty mailboxes, scalar",
                                        fmt::format("scan of 2,048 empty mailboxes, {}",
                                                    name_of(message::best_scan_kernel())))
                                 .median)});
}

void load_by_clients(Report& report, bool quick) {
    const std::uint64_t requests = quick ? 60'000 : 400'000;
    double best = 0;
    std::size_t best_at = 0;
    for (const std::size_t clients : {std::size_t{1}, std::size_t{2}, std::size_t{4},
                                      std::size_t{8}, std::size_t{16}, std::size_t{64}}) {
        const auto load = [=](Polling polling) {
            return load_of_many({.polling = polling,
                                 .connected = clients,
                                 .active = clients,
                                 .requests = requests})
                .per_second;
        };
        const Results results = report.compare(
            "4.8", "1/s",
            {{fmt::format("{} clients, one request each, flag", clients),
              [=] { return load(Polling::flag); }},
             {fmt::format("{} clients, one request each, dense", clients),
              [=] { return load(Polling::dense); }},
             {fmt::format("{} clients, one request each, Unix sockets and epoll", clients),
              [=] { return load_over_sockets(clients, 1, requests / 4); }},
             {fmt::format("{} clients, one request each, messages over Unix sockets", clients),
              [=] {
                  return load_of_many({.polling = Polling::automatic,
                                       .ways = over_socket(true),
                                       .connected = clients,
                                       .active = clients,
                                       .requests = requests / 4})
                      .per_second;
              }}});
        const double rate = results.summary(results.contenders()[0].name).median;
        if (rate > best) {
            best = rate;
            best_at = clients;
        }
    }
    report.find(
        {"4.8",
         "one thread answers up to 4 million requests in a second; saturated from 10 "
         "clients on",
         best >= 4e6,
         fmt::format("{} at {} clients; this is memory of one host, and its clients are one "
                     "thread",
                     humane(best), best_at)});
}

void load_by_window(Report& report, bool quick) {
    const std::uint64_t requests = quick ? 60'000 : 400'000;
    const Results results = report.compare(
        "-", "1/s",
        {{"16 clients, 16 requests each, flag",
          [=] { return load_of_many({.window = 16, .requests = requests}).per_second; }},
         {"16 clients, 16 requests each, dense",
          [=] {
              return load_of_many({.polling = Polling::dense, .window = 16, .requests = requests})
                  .per_second;
          }},
         {"16 of 512 clients, 16 requests each, flag",
          [=] {
              return load_of_many({.connected = 512, .window = 16, .requests = requests})
                  .per_second;
          }},
         {"16 of 512 clients, 16 requests each, dense",
          [=] {
              return load_of_many({.polling = Polling::dense,
                                   .connected = 512,
                                   .window = 16,
                                   .requests = requests})
                  .per_second;
          }},
         {"16 clients, 16 requests each, Unix sockets and epoll",
          [=] { return load_over_sockets(16, 16, requests / 2); }},
         {"16 clients, 16 requests each, messages over Unix sockets",
          [=] {
              return load_of_many({.polling = Polling::automatic,
                                   .ways = over_socket(true),
                                   .window = 16,
                                   .requests = requests / 2})
                  .per_second;
          }},
         {"16 clients, 16 requests each, messages over TCP on the loopback", [=] {
              return load_of_many({.polling = Polling::automatic,
                                   .ways = over_socket(false),
                                   .window = 16,
                                   .requests = requests / 2})
                  .per_second;
          }}});
    report.find(
        {"-", "one outstanding message for each client (section 4.2.3)", false,
         fmt::format("windows are allowed here; to Unix sockets with the same: {:.1f} times",
                     results
                         .ratio("16 clients, 16 requests each, flag",
                                "16 clients, 16 requests each, Unix sockets and epoll")
                         .median)});
}

/// Work 004, figures 3 to 6: which verbs carry requests and answers; and work 002's transports.
void ways_of_messages(Report& report, bool quick) {
    using message::Receives;
    using message::Transfer;
    struct Named {
        std::string name;
        Polling polling;
        Ways ways;
    };
    const std::vector<Named> every_way{
        {"write/write", Polling::flag, {}},
        {"write/send", Polling::flag, {Transfer::write, Transfer::send}},
        {"send/write", Polling::flag, {Transfer::send, Transfer::write}},
        {"send/send", Polling::flag, {Transfer::send, Transfer::send}},
        {"send/write, shared receives",
         Polling::dense,
         {Transfer::send, Transfer::write, Receives::shared}},
        {"send/send, shared receives",
         Polling::dense,
         {Transfer::send, Transfer::send, Receives::shared}},
        {"by UC", Polling::automatic, {.transport = connect::Transport::uc}},
        {"by UD", Polling::automatic, {.transport = connect::Transport::ud}}};
    std::vector<std::pair<std::string, std::function<double()>>> calls;
    std::vector<std::pair<std::string, std::function<double()>>> loads;
    for (const Named& way : every_way) {
        calls.emplace_back(
            fmt::format("call of 64 B, one client, {}", way.name),
            [polling = way.polling, ways = way.ways, count = quick ? 4'000U : 20'000U] {
                return call_of_one({.polling = polling, .ways = ways, .calls = count});
            });
        loads.emplace_back(
            fmt::format("16 clients, 16 requests each, {}", way.name),
            [polling = way.polling, ways = way.ways, count = quick ? 60'000U : 400'000U] {
                return load_of_many(
                           {.polling = polling, .ways = ways, .window = 16, .requests = count})
                    .per_second;
            });
    }
    (void)report.compare("004", "ns", std::move(calls));
    (void)report.compare("004", "1/s", std::move(loads));
}

void zero_copy(Report& report, bool quick) {
    const std::uint64_t calls = quick ? 4'000 : 20'000;
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}}) {
        const Results results = report.compare(
            "4.9", "ns",
            {{fmt::format("call of {} B, copied", bytes),
              [=] { return call_of_one({.bytes = bytes, .zero_copy = false, .calls = calls}); }},
             {fmt::format("call of {} B, in place", bytes),
              [=] { return call_of_one({.bytes = bytes, .calls = calls}); }}});
        const double ratio =
            results.ratio(results.contenders()[1].name, results.contenders()[0].name).median;
        report.find({"4.9", "zero copy is some 5 % faster", ratio < 1,
                     fmt::format("of {} B it takes {:.2f} of the time", bytes, ratio)});
    }
}

}  // namespace

int run_message(const MessageOptions& options) {
    options.json.check();
    const bool prints = !options.json.in_place_of_lines();
    if (prints) fmt::print("{}\n\n", base::describe_placement());
    Report report{options, prints};
    latency_by_size(report, options.quick);
    polling_by_clients(report, options.quick);
    load_by_clients(report, options.quick);
    load_by_window(report, options.quick);
    ways_of_messages(report, options.quick);
    zero_copy(report, options.quick);
    if (options.json.wanted()) {
        nlohmann::json lines = nlohmann::json::array();
        for (const Line& line : report.lines) {
            lines.push_back({{"figure", line.figure},
                             {"what", line.what},
                             {"unit", line.unit},
                             {"measured", json_of(line.measured)}});
        }
        nlohmann::json findings = nlohmann::json::array();
        for (const Finding& finding : report.findings) {
            findings.push_back({{"figure", finding.figure},
                                {"work_001", finding.found},
                                {"agrees", finding.agrees},
                                {"here", finding.because}});
        }
        const nlohmann::json document{
            {"measurements", lines}, {"findings", findings}, {"machine", describe_machine()}};
        options.json.write(document.dump(2));
    }
    return 0;
}

}  // namespace millrace::bench
