#include "study.hpp"

#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "bench/framework/report.hpp"
#include "kept_points.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "plots.hpp"
#include "progress.hpp"

namespace millrace::bench {
namespace {

/// One point that is to be measured.
struct Job {
    std::string mode;
    const StudyFigure* figure;
    const StudySeries* series;
    std::size_t x;
};

const std::vector<std::string>& modes_of(const Study& study, const StudyOptions& options) {
    return options.modes.empty() ? study.modes : options.modes;
}

bool contains(const std::vector<std::string>& modes, const std::string& mode) {
    return modes.empty() || std::find(modes.begin(), modes.end(), mode) != modes.end();
}

bool wants(const StudyOptions& options, const StudyFigure& figure, const std::string& mode) {
    if (options.modes.empty() && !contains(figure.modes, mode)) return false;
    return options.figures.empty() || std::find(options.figures.begin(), options.figures.end(),
                                                figure.id) != options.figures.end();
}

const std::vector<std::size_t>& xs_of(const StudyFigure& figure, const StudySeries& series) {
    return series.xs.empty() ? figure.xs : series.xs;
}

bool is_measured_at(const StudyFigure& figure, const StudySeries& series, std::size_t x) {
    const auto& xs = xs_of(figure, series);
    return std::find(xs.begin(), xs.end(), x) != xs.end();
}

void check(const Study& study, const StudyOptions& options) {
    const auto refuse = [&](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument,
                          fmt::format("repeat the measurements of {}", study.work), std::move(what),
                          std::move(why), std::move(remedy)};
    };
    std::vector<std::string> ids;
    for (const StudyFigure& figure : study.figures) ids.push_back(figure.id);
    for (const std::string& asked : options.figures) {
        if (std::find(ids.begin(), ids.end(), asked) == ids.end()) {
            refuse(fmt::format("figure {}", asked), "it is not one of these measurements",
                   fmt::format("choose of {}", fmt::join(ids, ", ")));
        }
    }
    for (const std::string& mode : options.modes) static_cast<void>(soft::cable_facts(mode));
    if (options.repeats < 1 || options.repeats > 100) {
        refuse(fmt::format("{} repeats", options.repeats), "it is out of range", "choose 1 to 100");
    }
}

/// Curves of one x stand together, so that what the machine does meanwhile hits all of them alike.
std::vector<Job> plan(const Study& study, const StudyOptions& options) {
    std::vector<Job> jobs;
    for (const std::string& mode : modes_of(study, options)) {
        for (const StudyFigure& figure : study.figures) {
            if (!wants(options, figure, mode)) continue;
            for (std::size_t i = 0; i < figure.xs.size(); ++i) {
                // The ends and the middle.
                const std::size_t last = figure.xs.size() - 1;
                if (options.quick && figure.shape == StudyShape::curves && i != 0 &&
                    i != last / 2 && i != last) {
                    continue;
                }
                for (const StudySeries& series : figure.series) {
                    if (contains(series.modes, mode) &&
                        is_measured_at(figure, series, figure.xs[i])) {
                        jobs.push_back({mode, &figure, &series, figure.xs[i]});
                    }
                }
            }
        }
    }
    return jobs;
}

StudyView view_of(const StudyResults& results, const std::string& mode) {
    static const StudyView::Values nothing;
    const auto found = results.values.find(mode);
    return StudyView{found == results.values.end() ? nothing : found->second};
}

std::string name_of(const Job& job) {
    return fmt::format("figure {}, {}, {}, {}", job.figure->id, job.series->label, job.x, job.mode);
}
StudyView::Key key_of(const Job& job) { return {job.figure->id, job.series->label, job.x}; }

/// Fills in what an interrupted run has measured of them; the others are left to do.
std::vector<Job> left_to_do(std::vector<Job> jobs, const KeptPoints& kept, StudyResults& results) {
    std::erase_if(jobs, [&](const Job& job) {
        const nlohmann::json* const values = kept.find(name_of(job));
        if (values == nullptr) return false;
        results.values[job.mode][key_of(job)] = values->get<std::vector<double>>();
        return true;
    });
    return jobs;
}

/// If it has all of its runs.
void keep(KeptPoints& kept, const Job& job, const StudyView::Values& values, std::size_t runs) {
    const auto found = values.find(key_of(job));
    if (found != values.end() && found->second.size() == runs) {
        kept.add(name_of(job), found->second);
    }
}

KeptPoints points_of(const Study& study, const StudyOptions& options) {
    return KeptPoints{{.study = study.name,
                       .path = options.points,
                       .settings = {{"study", study.name},
                                    {"repeats", options.quick ? 1 : options.repeats},
                                    {"quick", options.quick},
                                    {"setting", study.setting},
                                    {"where", study.where},
                                    {"compiler", describe_machine()["compiler"]},
                                    {"machine", machine_of_points()}},
                       .resumes = options.resume}};
}

StudyResults measure(const Study& study, const StudyOptions& options) {
    KeptPoints kept = points_of(study, options);
    StudyResults results;
    const std::vector<Job> jobs = left_to_do(plan(study, options), kept, results);
    const int repeats = options.quick ? 1 : options.repeats;
    Progress progress{std::vector<double>(jobs.size(), study.seconds_per_point * repeats)};
    const auto start = base::Clock::now();
    for (std::size_t first = 0; first < jobs.size();) {
        std::size_t next = first;
        while (next < jobs.size() && jobs[next].mode == jobs[first].mode &&
               jobs[next].figure == jobs[first].figure && jobs[next].x == jobs[first].x) {
            ++next;
        }
        for (int repeat = 0; repeat < repeats; ++repeat) {
            for (std::size_t i = first; i < next; ++i) {
                const Job& job = jobs[i];
                const std::string name = name_of(job);
                if (repeat == 0) progress.before(i, name);
                try {
                    const double value = job.series->measure(job.mode, job.x);
                    results.values[job.mode][key_of(job)].push_back(value);
                } catch (const base::Error& error) {
                    const std::string told = fmt::format("{}: {}", name, error.what());
                    if (error.code() != base::ErrorCode::unsupported) {
                        results.failures.push_back(told);
                    } else if (repeat == 0) {
                        results.not_offered.push_back(told);
                    }
                } catch (const std::exception& error) {
                    results.failures.push_back(fmt::format("{}: {}", name, error.what()));
                }
            }
        }
        for (std::size_t i = first; i < next; ++i) {
            const Job& job = jobs[i];
            keep(kept, job, results.values[job.mode], static_cast<std::size_t>(repeats));
            const auto value =
                view_of(results, job.mode).get(job.figure->id, job.series->label, job.x);
            progress.told(fmt::format("{} {}, {}, {}: {} {}", job.mode, job.figure->id, job.x,
                                      job.series->label, value ? humane(*value) : "-",
                                      job.figure->unit));
        }
        first = next;
    }
    progress.over();
    kept.over();
    results.seconds = static_cast<double>((base::Clock::now() - start).count()) / 1e9;
    return results;
}

struct Judged {
    const StudyFinding* finding;
    StudyVerdict verdict;
};
std::vector<Judged> judged(const Study& study, const StudyView& view) {
    std::vector<Judged> list;
    for (const StudyFinding& finding : study.findings) {
        if (auto verdict = finding.judge(view)) list.push_back({&finding, std::move(*verdict)});
    }
    return list;
}

void print_figure(const StudyFigure& figure, const StudyView& view, const std::string& mode) {
    std::size_t width = 12;
    for (const StudySeries& series : figure.series) width = std::max(width, series.label.size());
    fmt::print("\n{}{}. {}, {}; {}\n{:>10}", figure.shape == StudyShape::table ? "" : "Figure ",
               figure.id, figure.title, figure.unit, mode, "");
    for (const StudySeries& series : figure.series) fmt::print("  {:>{}}", series.label, width);
    fmt::print("\n");
    for (const std::size_t x : figure.xs) {
        std::string cells;
        bool any = false;
        for (const StudySeries& series : figure.series) {
            const auto value = view.get(figure.id, series.label, x);
            any = any || value;
            cells += fmt::format("  {:>{}}", value ? humane(*value) : "-", width);
        }
        if (any) fmt::print("{:>10}{}\n", x, cells);
    }
}

void print(const Study& study, const StudyOptions& options, const StudyResults& results) {
    fmt::print("{}\n{}; load {}; {} run{} of each point\n", study.where, base::describe_placement(),
               load_average(), options.quick ? 1 : options.repeats,
               options.quick || options.repeats == 1 ? "" : "s");
    if (!study.setting.empty()) fmt::print("{}\n", study.setting);
    for (const std::string& mode : modes_of(study, options)) {
        const StudyView view = view_of(results, mode);
        for (const StudyFigure& figure : study.figures) {
            if (figure.shape != StudyShape::distribution && wants(options, figure, mode)) {
                print_figure(figure, view, mode);
            }
        }
        auto list = judged(study, view);
        put_disagreements_first(list);
        if (!list.empty()) fmt::print("\nWhat {} found, and we; {}\n", study.work, mode);
        for (const Judged& each : list) {
            fmt::print("  {:<8} {:<6} {}\n           {}; measured {}\n", name_of(each.verdict),
                       each.finding->section, each.finding->claim, each.finding->rule,
                       each.verdict.measured);
            const std::string explanation = explanation_of(each.verdict);
            if (!explanation.empty()) fmt::print("           {}\n", explanation);
        }
    }
    fmt::print("\n");
    for (const std::string& failure : results.failures) fmt::print("not measured: {}\n", failure);
    for (const std::string& lack : results.not_offered) fmt::print("not offered: {}\n", lack);
    fmt::print("measured in {:.0f} s\n", results.seconds);
}

}  // namespace

std::string_view name_of(StudyShape shape) noexcept {
    switch (shape) {
        case StudyShape::curves: return "curves";
        case StudyShape::distribution: return "distribution";
        case StudyShape::boxes: return "boxes";
        case StudyShape::table: return "table";
    }
    return "unknown";
}

std::optional<Summary> StudyView::summary(const std::string& figure, const std::string& label,
                                          std::size_t x) const {
    const auto found = values_->find(Key{figure, label, x});
    if (found == values_->end()) return std::nullopt;
    return summarize(found->second);
}

std::optional<double> StudyView::get(const std::string& figure, const std::string& label,
                                     std::size_t x) const {
    const auto all = summary(figure, label, x);
    return all ? std::optional{all->median} : std::nullopt;
}

std::optional<Summary> StudyView::ratios(const Key& above, const Key& below) const {
    const auto one = values_->find(above);
    const auto other = values_->find(below);
    if (one == values_->end() || other == values_->end()) return std::nullopt;
    const std::vector<double> ratios = divided(one->second, other->second);
    return ratios.empty() ? std::nullopt : std::optional{summarize(ratios)};
}

std::optional<Summary> StudyView::ratio(const std::string& figure, const std::string& above,
                                        const std::string& below, std::size_t least,
                                        std::size_t most) const {
    std::vector<std::vector<double>> points;
    for (const auto& [key, values] : *values_) {
        const auto& [id, label, x] = key;
        if (id != figure || label != above || x < least || x > most) continue;
        const auto other = values_->find({figure, below, x});
        if (other != values_->end()) points.push_back(divided(values, other->second));
    }
    const Summary summary = summarize_by_run(points);
    return summary.rounds == 0 ? std::nullopt : std::optional{summary};
}

Judge ratio_between(std::string figure, std::string above, std::string below, Range allowed,
                    std::size_t least, std::size_t most) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto ratio = view.ratio(figure, above, below, least, most);
        return ratio ? std::optional{judge_ratio(*ratio, allowed)} : std::nullopt;
    };
}

Judge ratio_near(std::string figure, std::string above, std::string below, double of_work,
                 std::size_t least, std::size_t most) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto ratio = view.ratio(figure, above, below, least, most);
        return ratio ? std::optional{judge_factor(*ratio, of_work)} : std::nullopt;
    };
}

Judge point_to_point(StudyView::Key above, StudyView::Key below, Range allowed) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto ratio = view.ratios(above, below);
        return ratio ? std::optional{judge_ratio(*ratio, allowed)} : std::nullopt;
    };
}

Judge point_near_point(StudyView::Key above, StudyView::Key below, double of_work) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto ratio = view.ratios(above, below);
        return ratio ? std::optional{judge_factor(*ratio, of_work)} : std::nullopt;
    };
}

nlohmann::json document_of(const Study& study, const StudyOptions& options,
                           const StudyResults& results) {
    nlohmann::json document{{"study", study.name},
                            {"work", study.work},
                            {"setting", study.setting},
                            {"machine", describe_machine()},
                            {"load", load_average()},
                            {"seconds", results.seconds},
                            {"repeats", options.quick ? 1 : options.repeats},
                            {"quick", options.quick},
                            {"figures", nlohmann::json::array()},
                            {"findings", nlohmann::json::array()},
                            {"failures", results.failures},
                            {"not_offered", results.not_offered}};
    document["machine"]["measured"] = study.where;
    for (const std::string& mode : modes_of(study, options)) {
        const StudyView view = view_of(results, mode);
        for (const StudyFigure& figure : study.figures) {
            nlohmann::json lines = nlohmann::json::array();
            for (const StudySeries& series : figure.series) {
                nlohmann::json points = nlohmann::json::array();
                for (const std::size_t x : xs_of(figure, series)) {
                    if (const auto found = view.summary(figure.id, series.label, x)) {
                        points.push_back({{"x", x},
                                          {"median", found->median},
                                          {"least", found->least},
                                          {"most", found->most}});
                    }
                }
                if (!points.empty()) lines.push_back({{"label", series.label}, {"points", points}});
            }
            if (lines.empty()) continue;
            document["figures"].push_back({{"id", figure.id},
                                           {"title", figure.title},
                                           {"mode", mode},
                                           {"quantity", figure.quantity},
                                           {"unit", figure.unit},
                                           {"over", figure.over},
                                           {"shape", name_of(figure.shape)},
                                           {"series", std::move(lines)}});
        }
        for (const Judged& each : judged(study, view)) {
            nlohmann::json entry{{"mode", mode},
                                 {"section", each.finding->section},
                                 {"figure", each.finding->figure},
                                 {"claim", each.finding->claim},
                                 {"rule", each.finding->rule},
                                 {"measured", each.verdict.measured},
                                 {"verdict", name_of(each.verdict)}};
            if (!each.verdict.agrees && !each.verdict.counted.empty()) {
                entry["counted"] = each.verdict.counted;
            }
            document["findings"].push_back(std::move(entry));
        }
    }
    return document;
}

int run_study(const Study& study, const StudyOptions& options) {
    options.json.check();
    check(study, options);
    check_plots(study.name, options.plots);
    const StudyResults results = measure(study, options);
    if (!options.json.in_place_of_lines()) print(study, options, results);
    const nlohmann::json document = document_of(study, options, results);
    write_document(document, options.json, options.plots, lines_of(document));
    return results.failures.empty() ? 0 : 1;
}

}  // namespace millrace::bench
