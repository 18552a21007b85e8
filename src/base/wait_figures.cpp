#include "millrace/base/wait_figures.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace millrace::base {
namespace {

/// By number, as a page shows it.
constexpr std::array reasons{WaitReason::none_yet, WaitReason::short_gaps, WaitReason::crowded,
                             WaitReason::long_gaps, WaitReason::trial};

[[nodiscard]] std::span<const std::string_view> described_reasons() {
    static const auto described = [] {
        std::array<std::string_view, reasons.size()> texts;
        std::transform(reasons.begin(), reasons.end(), texts.begin(), describe);
        return texts;
    }();
    return described;
}

}  // namespace

std::vector<Figure> with_waits(std::span<const Figure> own, bool adapts) {
    using enum FigureKind;
    std::vector<Figure> all{own.begin(), own.end()};
    if (!adapts) return all;
    const auto behind = std::find_if(all.begin(), all.end(),
                                     [](const Figure& one) { return one.kind == histogram; });
    all.insert(behind, {{"wait", state, described_reasons()},
                        {"ns between events", gauge},
                        {"ns of looks", gauge},
                        {"looks in time, in %", gauge},
                        {"ns of a wake-up", gauge},
                        {"waits that looked", counter},
                        {"waits that offered their processor", counter},
                        {"waits that slept", counter},
                        {"moves to another processor", counter}});
    return all;
}

void show_waits(StatisticsPage& page, std::size_t first, const WaitFacts& facts) noexcept {
    const auto reason = std::find(reasons.begin(), reasons.end(), facts.reason);
    const auto whole = [](auto value) { return static_cast<std::uint64_t>(value); };
    const std::array values{whole(reason - reasons.begin()),
                            whole(facts.expected_gap.count()),
                            whole(facts.looked.count()),
                            whole(100 * facts.found),
                            whole(facts.wake_up_cost.count()),
                            facts.spun,
                            facts.offered,
                            facts.slept,
                            facts.moved};
    page.set(values, first);
}

}  // namespace millrace::base
