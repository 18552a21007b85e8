// What the producers that fold by key may be asked for, and how they explain themselves.
#include "millrace/flow/keyed.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/flow/aggregating.hpp"
#include "millrace/flow/windowed.hpp"

namespace millrace::flow::detail {
namespace {

constexpr std::uint32_t most_keys = 1U << 22;
constexpr std::int64_t most_panes = 1024;

[[noreturn]] void refuse(const char* what, std::string asked, std::string why, std::string remedy) {
    throw base::Error{base::ErrorCode::invalid_argument, std::string{"make "} + what,
                      std::move(asked), std::move(why), std::move(remedy)};
}

/// "10s", or as many units as it takes to say it exactly.
std::string in_words(std::int64_t nanoseconds) {
    if (nanoseconds % 1'000'000'000 == 0) return fmt::format("{} s", nanoseconds / 1'000'000'000);
    if (nanoseconds % 1'000'000 == 0) return fmt::format("{} ms", nanoseconds / 1'000'000);
    if (nanoseconds % 1'000 == 0) return fmt::format("{} us", nanoseconds / 1'000);
    return fmt::format("{} ns", nanoseconds);
}
std::string in_words(const Window& window, std::int64_t length) {
    return window.is_by_time() ? in_words(length) : fmt::format("{} values", length);
}

}  // namespace

void check_keys(const char* what, std::uint32_t keys) {
    if (keys != 0 && keys <= most_keys) return;
    refuse(what, fmt::format("{} keys", keys), fmt::format("it has from 1 to {}", most_keys),
           "say how many different keys wait at a time, at most");
}

void check(const AggregatingOptions& options) {
    constexpr const char* what = "an aggregating producer";
    check_keys(what, options.keys);
    if (options.after.count() < 0) {
        refuse(what, fmt::format("results after {} ns", options.after.count()),
               "that is in the past", "use 0 for results that do not go by the clock");
    }
}

void check(const Window& window, const WindowOptions& options) {
    constexpr const char* what = "a windowed producer";
    check_keys(what, options.keys);
    if (window.distance() <= 0 || window.length() <= 0 ||
        window.length() % window.distance() != 0) {
        refuse(what,
               fmt::format("windows of {}, one in each {}", in_words(window, window.length()),
                           in_words(window, window.distance())),
               "a window is made of whole panes, as long as windows begin apart",
               "choose a length that is a multiple of the distance");
    }
    if (window.panes() > most_panes) {
        refuse(what, fmt::format("windows of {} panes", window.panes()),
               fmt::format("each key has memory for all of them, and there are {} at most",
                           most_panes),
               "let windows begin farther apart");
    }
}

std::string explain_keyed(std::string_view what, std::uint32_t keys, const KeyedStats& stats) {
    return fmt::format("{}; {} keys of at most {} wait\nso far: {} taken, {} sent\n", what,
                       stats.waiting, keys, stats.taken, stats.sent);
}

std::string explain_flushes(const AggregatingOptions& options) {
    std::vector<std::string> rules;
    if (options.items != 0) rules.push_back(fmt::format("after {} values", options.items));
    if (options.bytes != 0) rules.push_back(fmt::format("at {} bytes of results", options.bytes));
    if (options.after.count() != 0) {
        rules.push_back(fmt::format("{} after the first value", in_words(options.after.count())));
    }
    rules.emplace_back("by flush()");
    return fmt::format("an aggregating producer: values are folded by key, and sent {}",
                       fmt::join(rules, ", "));
}

std::string explain_windows(const Window& window) {
    if (window.panes() == 1) {
        return fmt::format("a windowed producer: by key, tumbling windows of {}",
                           in_words(window, window.length()));
    }
    return fmt::format("a windowed producer: by key, sliding windows of {}, one in each {}",
                       in_words(window, window.length()), in_words(window, window.distance()));
}

}  // namespace millrace::flow::detail
