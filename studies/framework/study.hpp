// A study: figures that a work shows, measured again, with what the work says about them and the
// rule by which we agree. Each study is data (which curves, what they say) and functions that
// measure one point; this measures, prints, judges and writes.
//
//     Study study{.name = "verbs", .work = "work 001, chapter 3", .figures = {...},
//                 .findings = {...}};
//     return run_study(study, options);
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "bench/framework/report.hpp"
#include "bench/framework/statistics.hpp"
#include "command_line/json_output.hpp"
#include "verdict.hpp"

namespace millrace::bench {

/// One curve of a figure. `measure(mode, x)` sets up, warms up, and gives one value; what it throws
/// is told, and leaves the point out.
struct StudySeries {
    std::string label;
    std::function<double(const std::string& mode, std::size_t x)> measure;
    std::vector<std::size_t> xs{};     ///< where it is measured; empty: all of the figure's
    std::vector<std::string> modes{};  ///< the only ones that it makes sense in; empty: all
};

/// What a figure's x and values are.
enum class StudyShape {
    curves,        ///< values over x
    distribution,  ///< a value that x thousandths of all do not exceed. Not printed
    boxes,         ///< the same at 50, 250, 500, 750 and 950: whiskers, a box and its middle
    table,         ///< values by x, printed and not drawn
};
[[nodiscard]] std::string_view name_of(StudyShape shape) noexcept;

struct StudyFigure {
    std::string id;        ///< as the work numbers it: "3.4"
    std::string title;     ///< what it shows
    std::string quantity;  ///< its name in JSON: "round_trips_per_second"
    std::string unit;      ///< for people
    std::string over;      ///< what x is: "message size in bytes"
    std::vector<std::size_t> xs;
    std::vector<StudySeries> series{};
    std::vector<std::string> modes{};  ///< of the study's, unless others are asked for; empty: all
    StudyShape shape = StudyShape::curves;
};

/// What was measured in one mode.
class StudyView {
  public:
    using Key = std::tuple<std::string, std::string, std::size_t>;  ///< figure, label, x
    using Values = std::map<Key, std::vector<double>>;

    explicit StudyView(const Values& values) : values_{&values} {}

    [[nodiscard]] std::optional<Summary> summary(const std::string& figure,
                                                 const std::string& label, std::size_t x) const;
    /// The median of the runs.
    [[nodiscard]] std::optional<double> get(const std::string& figure, const std::string& label,
                                            std::size_t x) const;
    /// The one divided by the other, run by run: the median over every x from `least` to `most`.
    /// Nothing if no x has both.
    [[nodiscard]] std::optional<Summary> ratio(
        const std::string& figure, const std::string& above, const std::string& below,
        std::size_t least = 0, std::size_t most = static_cast<std::size_t>(-1)) const;
    /// One point by another one, run by run. Nothing, unless both have runs.
    [[nodiscard]] std::optional<Summary> ratios(const Key& above, const Key& below) const;

  private:
    const Values* values_;
};

/// Nothing: not measured.
using Judge = std::function<std::optional<StudyVerdict>(const StudyView&)>;

struct StudyFinding {
    std::string section;  ///< of the work
    std::string figure;   ///< whose measurement it needs
    std::string claim;    ///< of the work, in our words
    std::string rule;     ///< when we agree
    Judge judge;
};

/// By StudyView::ratio and judge_ratio.
[[nodiscard]] Judge ratio_between(std::string figure, std::string above, std::string below,
                                  Range allowed, std::size_t least = 0,
                                  std::size_t most = static_cast<std::size_t>(-1));
/// By StudyView::ratio and judge_factor.
[[nodiscard]] Judge ratio_near(std::string figure, std::string above, std::string below,
                               double of_work, std::size_t least = 0,
                               std::size_t most = static_cast<std::size_t>(-1));
/// By StudyView::ratios, of two points, and judge_ratio.
[[nodiscard]] Judge point_to_point(StudyView::Key above, StudyView::Key below, Range allowed);
/// ... and judge_factor.
[[nodiscard]] Judge point_near_point(StudyView::Key above, StudyView::Key below, double of_work);

struct Study {
    std::string name;                ///< of the command and the files: "verbs"
    std::string work;                ///< "work 001, chapter 3"
    std::vector<std::string> modes;  ///< unless others are asked for
    double seconds_per_point = 0.1;  ///< a guess, for the progress
    std::vector<StudyFigure> figures;
    std::vector<StudyFinding> findings;
    /// What all points have in common, for a reader: "values of 256 B". May be empty.
    std::string setting{};
    /// Between what it was measured; stands above all.
    std::string where{measured_where};
};

struct StudyOptions {
    std::vector<std::string> figures{};  ///< their ids; empty: all
    std::vector<std::string> modes{};    ///< empty: the study's
    tools::JsonOutput json{};
    std::string plots{};   ///< folder
    int repeats = 3;       ///< runs of each point
    bool quick = false;    ///< few points of curves, one run of each
    std::string points{};  ///< file that keeps what is measured until all is; empty: none does
    bool resume = false;   ///< goes on with what that file has
};

/// Throws Error: an unknown figure or mode, a number out of range; a file that cannot be written.
/// Exit status 0 if everything could be measured, else 1.
int run_study(const Study& study, const StudyOptions& options);

/// What was measured of a study, by mode. Used by run_study and its tests.
struct StudyResults {
    std::map<std::string, StudyView::Values> values;
    std::vector<std::string> failures;
    /// What this machine or device lacks (ErrorCode::unsupported), each once: no failure.
    std::vector<std::string> not_offered{};
    double seconds = 0;
};
[[nodiscard]] nlohmann::json document_of(const Study& study, const StudyOptions& options,
                                         const StudyResults& results);

}  // namespace millrace::bench
