#include "simulated_figures.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "bench/rpc/measure_rpc.hpp"
#include "combinations.hpp"
#include "millrace/base/clock.hpp"
#include "simulate.hpp"

namespace millrace::bench {
namespace {

/// Section 7: 9 hosts of 10 requesters, and 3 of responders with two links of 100 Gb/s each.
constexpr std::size_t requesters_of_work = 90;
constexpr std::size_t links_of_work = 6;
constexpr double bits_of_link = 100e9;
constexpr double way_of_link = 1000;  // ns, as in the other figures
const std::vector<std::size_t> responders_of_work{6, 12, 18};

/// What one to one takes, and a look at a mailbox of 90; measured once.
class MeasuredCosts {
  public:
    const SimulatedCosts& of(const Combination& combination, std::size_t bytes) {
        const auto key = std::pair{combination.name, bytes};
        const auto found = all_.find(key);
        if (found != all_.end()) return found->second;
        return all_.emplace(key, measured(combination, bytes)).first->second;
    }

  private:
    static SimulatedCosts measured(const Combination& combination, std::size_t bytes) {
        const double ns_per_cycle =
            1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}));
        RpcCase chosen{.requests = combination.requests,
                       .answers = combination.answers,
                       .response_bytes = bytes};
        const RpcResult one = measure_rpc(chosen);
        SimulatedCosts costs;
        costs.ask = one.requester_cycles_per_byte * static_cast<double>(bytes) * ns_per_cycle;
        costs.serve = one.responder_cycles_per_message * ns_per_cycle;
        costs.look = one.responder_cycles_per_vain_look * ns_per_cycle;
        if (combination.requests == message::Transfer::write) {
            // One of 90 asks at a time.
            chosen.requesters = requesters_of_work;
            chosen.idle_percent = 99;
            const RpcResult idle = measure_rpc(chosen);
            costs.look = idle.responder_cycles_per_vain_look * ns_per_cycle /
                         static_cast<double>(requesters_of_work);
        }
        costs.look = std::max(costs.look, 1.0);
        costs.way = std::max((one.median_us * 1e3 - costs.ask - costs.serve) / 2, 0.0);
        return costs;
    }

    std::map<std::pair<std::string, std::size_t>, SimulatedCosts> all_;
};

using Measured = std::shared_ptr<MeasuredCosts>;

Simulated to_many(const Measured& costs, const Combination& combination, std::size_t bytes,
                  std::size_t responders) {
    SimulatedCase chosen{.costs = costs->of(combination, bytes),
                         .requesters = requesters_of_work,
                         .responders = responders,
                         .by_send = combination.requests == message::Transfer::send,
                         .response_bytes = bytes,
                         .links = links_of_work,
                         .link_bits_per_second = bits_of_link};
    chosen.costs.way += way_of_link;
    return simulate(chosen);
}

StudyFigure figure(std::string id, std::string title, std::string quantity, std::string unit,
                   std::string over, std::vector<std::size_t> xs) {
    StudyFigure made{std::move(id),   std::move(title), std::move(quantity),
                     std::move(unit), std::move(over),  std::move(xs)};
    made.modes = {"fast"};
    return made;
}

/// The median over some crowds.
Judge simulated_to_measured(std::string label, std::vector<std::size_t> xs) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        std::vector<double> ratios;
        for (const std::size_t x : xs) {
            const auto one = view.get("5, simulated", label, x);
            const auto other = view.get("5", label, x);
            if (one && other) ratios.push_back(*one / *other);
        }
        if (ratios.empty()) return std::nullopt;
        return judge_value(summarize(ratios), {0.67, 1.5});
    };
}

double megabytes(const Simulated& run, std::size_t bytes) {
    return run.per_second * static_cast<double>(bytes) / 1e6;
}

}  // namespace

std::vector<StudyFigure> simulated_figures() {
    const auto costs = std::make_shared<MeasuredCosts>();
    StudyFigure to_one =
        figure("5, simulated", "N to one, simulated as measured: all requesters on one core",
               "megabytes_per_second", "MB/s", "requesters", {1, 8, 16, 24, 32, 40});
    StudyFigure many = figure(
        "8, simulated", "90 to M, a core each, responders on six links of 100 Gb/s: simulated",
        "megabytes_per_second", "MB/s", "responders", responders_of_work);
    StudyFigure empty =
        figure("table 2, simulated", "90 to M: mailboxes that are empty when looked at, simulated",
               "empty_percent", "percent", "responders", responders_of_work);
    for (const Combination& each : combinations) {
        for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, std::size_t{16384}}) {
            const std::string label = fmt::format("{}, {} B", each.name, bytes);
            many.series.push_back({label, [=](const std::string&, std::size_t responders) {
                                       return megabytes(to_many(costs, each, bytes, responders),
                                                        bytes);
                                   }});
            if (bytes == 4096 && each.requests == message::Transfer::write) {
                empty.series.push_back(
                    {label, [=](const std::string&, std::size_t responders) {
                         return to_many(costs, each, bytes, responders).empty_percent;
                     }});
            }
            if (bytes == 16384) continue;
            to_one.series.push_back({label, [=](const std::string&, std::size_t requesters) {
                                         const SimulatedCase chosen{
                                             .costs = costs->of(each, bytes),
                                             .requesters = requesters,
                                             .requester_cores = 1,
                                             .by_send = each.requests == message::Transfer::send,
                                             .response_bytes = bytes};
                                         return megabytes(simulate(chosen), bytes);
                                     }});
        }
    }
    std::vector<StudyFigure> all;
    all.push_back(std::move(to_one));
    all.push_back(std::move(many));
    all.push_back(std::move(empty));
    return all;
}

std::vector<StudyFinding> simulated_findings() {
    const auto along = [](std::string figure, std::string label, std::size_t x, std::size_t to,
                          Range allowed) {
        return point_to_point({figure, label, x}, {figure, label, to}, allowed);
    };
    const std::string page = "WriteWrite, 4096 B";
    return {
        {"7", "8, simulated", "Small responses gain by more responders: 64 B",
         "18 to 6 responders at least 1.2",
         along("8, simulated", "WriteWrite, 64 B", 18, 6, {1.2})},
        {"7", "8, simulated", "The whole bandwidth of all responders' links is not reached: 4 KiB",
         "18 responders, below 66 GB/s",
         [page](const StudyView& view) -> std::optional<StudyVerdict> {
             const auto value = view.summary("8, simulated", page, 18);
             return value ? std::optional{judge_value(*value, {0, 66'000})} : std::nullopt;
         }},
        {"7", "8, simulated",
         "With 5 requesters for each responder SendWrite outperforms WriteSend: 4 KiB",
         "18 responders, above 1.05",
         ratio_between("8, simulated", "SendWrite, 4096 B", "WriteSend, 4096 B", {1.05}, 18, 18)},
        {"7", "table 2, simulated", "Of 90 mailboxes 83 % are empty with 6 responders",
         "between 75 and 91 %",
         [page](const StudyView& view) -> std::optional<StudyVerdict> {
             const auto value = view.summary("table 2, simulated", page, 6);
             return value ? std::optional{judge_value(*value, {75, 91})} : std::nullopt;
         }},
        {"7", "5, simulated",
         "(beyond the work) The simulation has what this machine measured: 64 B",
         "16 requesters and more of WriteWrite, simulated to measured, between 0.67 and 1.5",
         simulated_to_measured("WriteWrite, 64 B", {16, 24, 32, 40})},
    };
}

}  // namespace millrace::bench
