#include "beyond_figures.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "bench/kv/measure_crowd.hpp"
#include "measure_resources.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/transfer.hpp"
#include "studies/framework/study_runs.hpp"

namespace millrace::bench {
namespace {

using message::Transfer;

StudyFigure table_of(std::string id, std::string title, std::string quantity, std::string unit,
                     std::string over, std::vector<std::size_t> xs) {
    StudyFigure made{std::move(id),   std::move(title), std::move(quantity),
                     std::move(unit), std::move(over),  std::move(xs)};
    made.modes = {"fast"};
    made.shape = StudyShape::table;
    return made;
}

/// 8 clients with 16 requests each on their way: enough that messages meet.
CrowdCase eight_clients(unsigned get_percent) {
    CrowdCase made;
    made.clients = 8;
    made.outstanding = 16;
    made.get_percent = get_percent;
    made.value_bytes = 100;
    return made;
}

/// Throughput of the case, once `at_x(case, x)` has been told the figure's x.
template <class AtX>
StudySeries throughput_of(std::string label, const CrowdCase& chosen, AtX at_x) {
    return {std::move(label), [=](const std::string& mode, std::size_t x) {
                CrowdCase one = chosen;
                one.mode = mode;
                at_x(one, x);
                return measure_crowd(one).operations_per_second;
            }};
}
void set_keys(CrowdCase& chosen, std::size_t keys) { chosen.keys = keys; }

/// What inlining brings, which the work leaves open (its section 6.2), over mailboxes whose
/// messages are posted, as over a NIC.
StudyFigure inlining(unsigned get_percent) {
    CrowdCase plain = eight_clients(get_percent);
    plain.carrier = "post";
    plain.posting.inlines = false;
    CrowdCase inlined = plain;
    inlined.posting.inlines = true;
    CrowdCase stored = inlined;
    stored.carrier = "automatic";
    StudyFigure made =
        table_of("inlining", "Throughput of 8 clients, 16 outstanding each, by what is switched on",
                 "operations_per_second", "operations per second", "keys", {10'000, 1'000'000});
    made.series = {throughput_of("posted, none", plain, set_keys),
                   throughput_of("inlined", inlined, set_keys),
                   throughput_of("stored", stored, set_keys)};
    return made;
}

/// The work's table (section 3.1.3) and ours.
StudyFigure both_tables(unsigned get_percent) {
    const CrowdCase cuckoo = eight_clients(get_percent);
    CrowdCase thesis = cuckoo;
    thesis.table = kv::TableKind::thesis;
    StudyFigure made = table_of(
        "tables", "Throughput of 8 clients, 16 outstanding each, over mailboxes, by the table",
        "operations_per_second", "operations per second", "keys", {1'000, 10'000, 100'000});
    made.series = {throughput_of("cuckoo", cuckoo, set_keys),
                   throughput_of("thesis", thesis, set_keys)};
    return made;
}

/// What a lost packet costs, by what notices: the device (RC), or the session (UC, UD).
std::vector<StudyFigure> costs_of_loss(unsigned get_percent) {
    StudyFigure throughput =
        table_of("loss", "Throughput of 8 clients, one outstanding each, of whose packets are lost",
                 "operations_per_second", "operations per second", "% lost", {0, 1, 5});
    StudyFigure latency = table_of("loss p99", "99th percentile of their latency", "p99_us", "us",
                                   "% lost", {0, 1, 5});
    for (const auto& [label, transport] :
         {std::pair{"RC", connect::Transport::rc}, std::pair{"UC", connect::Transport::uc},
          std::pair{"UD", connect::Transport::ud}}) {
        const bool is_rc = transport == connect::Transport::rc;
        const auto runs = std::make_shared<StudyRuns<CrowdResult>>(
            [=, transport = transport](const std::string&, std::size_t percent) {
                CrowdCase chosen;
                chosen.clients = 8;
                chosen.get_percent = get_percent;
                chosen.value_bytes = 100;
                chosen.transport = transport;
                chosen.requests = chosen.answers = is_rc ? Transfer::send : Transfer::write;
                chosen.duration = std::chrono::milliseconds{500};
                chosen.mode =
                    fmt::format("faulty:seed=1,loss={}%,duplicate=0%,reorder=0%", percent);
                return measure_crowd(chosen);
            });
        throughput.series.push_back(curve_of(label, runs, &CrowdResult::operations_per_second));
        latency.series.push_back(curve_of(label, runs, &CrowdResult::p99_us));
    }
    return {std::move(throughput), std::move(latency)};
}

/// Measured once: none of it is a matter of time.
class ResourceRuns {
  public:
    const ResourcesOfBoth& of(const ResourceCase& chosen) {
        const auto key =
            std::tuple{chosen.clients, chosen.transport, chosen.requests, chosen.answers};
        const auto found = all_.find(key);
        if (found != all_.end()) return found->second;
        return all_.emplace(key, measure_resources(chosen)).first->second;
    }

  private:
    std::map<std::tuple<std::size_t, connect::Transport, Transfer, Transfer>, ResourcesOfBoth> all_;
};

/// What a server has for so many clients, and these clients for each of them.
std::vector<StudyFigure> resources_of_clients() {
    const auto runs = std::make_shared<ResourceRuns>();
    const auto one = [&](const std::string& id, const std::string& title,
                         const std::string& quantity, const std::string& unit, auto value) {
        StudyFigure made = table_of(id, title, quantity, unit, "clients", {1, 70, 200});
        for (const auto& [label, chosen] :
             {std::pair{"RC", ResourceCase{.requests = Transfer::send, .answers = Transfer::send}},
              std::pair{"UC", ResourceCase{.transport = connect::Transport::uc}},
              std::pair{"UD", ResourceCase{.transport = connect::Transport::ud}},
              std::pair{"TCP", ResourceCase{.transport = connect::Transport::tcp}},
              std::pair{"HERD", ResourceCase{.answers = Transfer::send}},
              std::pair{"mailboxes", ResourceCase{}}}) {
            made.series.push_back(
                {label, [=, chosen = chosen](const std::string&, std::size_t clients) {
                     ResourceCase asked = chosen;
                     asked.clients = clients;
                     return value(runs->of(asked), static_cast<double>(clients));
                 }});
        }
        return made;
    };
    return {
        one("queue pairs", "Queue pairs of a server", "queue_pairs", "queue pairs",
            [](const ResourcesOfBoth& both, double) { return both.server.queue_pairs; }),
        one("registered", "Memory that a server has registered", "registered_kib", "KiB",
            [](const ResourcesOfBoth& both, double) {
                return both.server.registered_bytes / 1024;
            }),
        one("descriptors", "Descriptors of a server", "descriptors", "descriptors",
            [](const ResourcesOfBoth& both, double) { return both.server.descriptors; }),
        one("client queue pairs", "Queue pairs of a client", "queue_pairs", "queue pairs",
            [](const ResourcesOfBoth& both, double clients) {
                return both.clients.queue_pairs / clients;
            }),
        one("client registered", "Memory that a client has registered", "registered_kib", "KiB",
            [](const ResourcesOfBoth& both, double clients) {
                return both.clients.registered_bytes / 1024 / clients;
            }),
        one("client descriptors", "Descriptors of a client", "descriptors", "descriptors",
            [](const ResourcesOfBoth& both, double clients) {
                return both.clients.descriptors / clients;
            }),
    };
}

}  // namespace

std::vector<StudyFigure> figures_beyond_the_work(unsigned get_percent) {
    std::vector<StudyFigure> all;
    all.push_back(inlining(get_percent));
    all.push_back(both_tables(get_percent));
    for (StudyFigure& one : costs_of_loss(get_percent)) all.push_back(std::move(one));
    for (StudyFigure& one : resources_of_clients()) all.push_back(std::move(one));
    return all;
}

std::vector<StudyFinding> findings_beyond_the_work() {
    return {
        {"6.3", "tables", "A table by cuckoo hashing lets the store scale better than its buckets",
         "at least 1.5 times the throughput with 100,000 keys",
         ratio_between("tables", "cuckoo", "thesis", {1.5}, 100'000, 100'000)},
        {"2.3.3", "queue pairs", "A server needs one queue pair for all clients by UD",
         "1 with 200 clients",
         [](const StudyView& view) -> std::optional<StudyVerdict> {
             const auto count = view.summary("queue pairs", "UD", 200);
             return count ? std::optional{judge_value(*count, {1, 1})} : std::nullopt;
         }},
    };
}

}  // namespace millrace::bench
