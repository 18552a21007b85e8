#include "kv_findings.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "studies/works/quotations.hpp"

namespace millrace::bench {
namespace {

using Crowds = std::vector<std::size_t>;

/// Where a curve is best.
std::optional<StudyView::Key> best_of(const StudyView& view, const Crowds& crowds,
                                      const std::string& figure, const std::string& label) {
    std::optional<StudyView::Key> found;
    double most = 0;
    for (const std::size_t clients : crowds) {
        const auto value = view.get(figure, label, clients);
        if (!value || (found && *value <= most)) continue;
        found = {figure, label, clients};
        most = *value;
    }
    return found;
}

/// The runs of one point by those of another. Nothing, unless both are there.
std::optional<StudyVerdict> judge_points(const StudyView& view,
                                         const std::optional<StudyView::Key>& above,
                                         const std::optional<StudyView::Key>& below,
                                         Range allowed) {
    return above && below ? point_to_point(*above, *below, allowed)(view) : std::nullopt;
}

/// What is left of a curve's best with the largest crowd.
Judge left_of_best(const Crowds& crowds, std::string figure, std::string label, Range allowed) {
    return [=](const StudyView& view) {
        return judge_points(view, StudyView::Key{figure, label, crowds.back()},
                            best_of(view, crowds, figure, label), allowed);
    };
}

/// The best of one curve to the best of another.
Judge best_to_best(const Crowds& crowds, std::pair<std::string, std::string> above,
                   std::pair<std::string, std::string> below, Range allowed) {
    return [=](const StudyView& view) {
        return judge_points(view, best_of(view, crowds, above.first, above.second),
                            best_of(view, crowds, below.first, below.second), allowed);
    };
}

/// The work could not measure a way with the largest crowd. `seen`: what says that this was tried.
Judge cannot_be_measured(StudyView::Key point, StudyView::Key seen) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto has = [&view](const StudyView::Key& key) {
            return std::apply([&view](const auto&... of) { return view.get(of...); }, key)
                .has_value();
        };
        if (!has(seen)) return std::nullopt;
        return StudyVerdict{.agrees = !has(point),
                            .measured = has(point) ? "they are served" : "they are not"};
    };
}

Judge not_judged() {
    return [](const StudyView&) -> std::optional<StudyVerdict> { return std::nullopt; };
}

/// Of a way's `default wait` to the better of the others, where it is worst.
Judge default_to_better(const Crowds& crowds, std::string label) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        std::optional<Summary> least;
        for (const std::size_t clients : crowds) {
            const auto polling = view.get("4.1", label, clients);
            const auto blocking = view.get("4.2", label, clients);
            if (!polling || !blocking) continue;
            const auto part = view.ratios({"default wait", label, clients},
                                          {*polling > *blocking ? "4.1" : "4.2", label, clients});
            if (part && (!least || part->median < least->median)) least = part;
        }
        return least ? std::optional{judge_value(*least, {0.9})} : std::nullopt;
    };
}

/// Context switches of an operation in one of the two processes, with the fewest clients shown.
StudyFinding switches_of(const KvStudyOptions& chosen, const std::string& figure,
                         const std::string& process) {
    const std::size_t clients = chosen.shown.front();
    return {"4.3", figure,
            fmt::format("Blocking takes about two context switches of the {} for each operation",
                        process),
            fmt::format("UC with {} clients within a quarter of two", clients),
            [=](const StudyView& view) -> std::optional<StudyVerdict> {
                const auto switches = view.summary(figure, "UC", clients);
                const double of_work = quoted("002.switches_of_operation");
                return switches
                           ? std::optional{judge_value(*switches, {0.75 * of_work, 1.25 * of_work})}
                           : std::nullopt;
            }};
}

}  // namespace

std::vector<StudyFinding> findings_of_chapter(const KvStudyOptions& chosen) {
    const Crowds& crowds = chosen.crowds;
    const std::size_t most = crowds.back();
    std::vector<StudyFinding> all{
        {"4.1.1", "4.1", "UC serves 79 % more than TCP",
         "best of UC to best of TCP between 1.3 and 2.5",
         best_to_best(crowds, {"4.1", "UC"}, {"4.1", "TCP"}, {1.3, 2.5})},
        {"4.1.1", "4.1", "UD serves nearly as much as UC: 73 % more than TCP",
         "best of UD to best of UC between 0.8 and 1.1",
         best_to_best(crowds, {"4.1", "UD"}, {"4.1", "UC"}, {0.8, 1.1})},
        {"4.1.1", "4.1", "RC serves 20 % more than TCP, and UC half as much again as RC",
         "best of UC to best of RC between 1.2 and 1.8",
         best_to_best(crowds, {"4.1", "UC"}, {"4.1", "RC"}, {1.2, 1.8})},
        {"4.1.1", "4.1", "Polling loses throughput where clients are more than processors",
         fmt::format("UC with {} clients at most 0.8 of its best", most),
         left_of_best(crowds, "4.1", "UC", {0, 0.8})},
        {"4.1.1", "4.1", "RC does not connect properly above 60 clients",
         fmt::format("{} clients cannot be measured", most),
         most > 60 ? cannot_be_measured({"4.1", "RC", most}, {"4.1", "RC", crowds.front()})
                   : not_judged()},
        {"4.1.2", "4.2", "Blocking does not lose throughput where clients are many",
         fmt::format("UC with {} clients at least 0.8 of its best", most),
         left_of_best(crowds, "4.2", "UC", {0.8})},
        {"4.1.2", "4.2", "At its best, blocking reaches 23 % less than polling",
         "best of UC blocking to best of UC polling between 0.6 and 0.9",
         best_to_best(crowds, {"4.2", "UC"}, {"4.1", "UC"}, {0.6, 0.9})},
        {"4.1.2", "4.2", "UD cannot be measured when it blocks",
         fmt::format("no value with {} clients", most),
         cannot_be_measured({"4.2", "UD", most}, {"4.2", "UC", most})},
        switches_of(chosen, "table 4.3, server", "server"),
        switches_of(chosen, "table 4.3, clients", "clients' process"),
        {"4.2.1", "table 4.1 UC",
         "Polling, the outliers grow where clients are more than processors: 99 % of UC takes "
         "1,296 us with 60 clients, 122 with 32",
         "99 % of UC with 60 clients to that with 32 within a factor of 1.5",
         point_near_point({"table 4.1 UC", "99 %", 60}, {"table 4.1 UC", "99 %", 32},
                          quoted("002.uc.p99", 60) / quoted("002.uc.p99", 32))},
        {"4.2.2", "table 4.2 UC",
         "With 60 clients blocking has fewer outliers than polling: 99 % of UC takes a quarter",
         "99 % of UC polling to blocking, 60 clients, within a factor of 1.5",
         point_near_point({"table 4.1 UC", "99 %", 60}, {"table 4.2 UC", "99 %", 60},
                          quoted("002.polling_to_blocking"))},
        {"4.2.2", "table 4.2 UC",
         "With 5 clients blocking takes longer: the median of UC 1.4 times",
         "median of UC blocking to polling, 5 clients, between 1.1 and 2.1",
         point_to_point({"table 4.2 UC", "median", 5}, {"table 4.1 UC", "median", 5}, {1.1, 2.1})},
    };
    if (chosen.threads) {
        all.push_back({"4.1.1", "4.1, spinning",
                       "Threads that spin lose throughput where they are more than processors",
                       "UC with the most of its clients at most 0.8 of its best",
                       left_of_best(crowds_that_spin(crowds), "4.1, spinning", "UC", {0, 0.8})});
    } else {
        all.push_back({"5.1", "4.1",
                       "SEND/SEND does as well as HERD's WRITE/SEND, if messages are inlined",
                       "best of RC to best of HERD between 0.8 and 1.25",
                       best_to_best(crowds, {"4.1", "RC"}, {"4.1", "HERD"}, {0.8, 1.25})});
    }
    return all;
}

std::vector<std::size_t> crowds_that_spin(std::vector<std::size_t> crowds) {
    constexpr std::size_t most = 16;
    std::erase_if(crowds, [](std::size_t clients) { return clients > most; });
    if (crowds.empty()) crowds.push_back(most);
    return crowds;
}

std::vector<StudyFinding> findings_of_default_wait(const KvStudyOptions& chosen,
                                                   const std::vector<std::string>& ways) {
    std::vector<StudyFinding> all;
    for (const std::string& way : ways) {
        all.push_back({"6", "default wait",
                       fmt::format("(beyond the work) over {}, the default wait is as good as the "
                                   "better of both",
                                   way),
                       "at least 0.9 of it with every crowd",
                       default_to_better(chosen.crowds, way)});
    }
    return all;
}

}  // namespace millrace::bench
