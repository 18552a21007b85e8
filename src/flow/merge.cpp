// What a merge may be asked for, and what it says of itself.
#include "millrace/flow/merge.hpp"

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"

namespace millrace::flow::detail {

FanInOptions sources_of(const MergeOptions& options) {
    if (options.patience.has_value() && options.patience->count() <= 0) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a merge",
                          fmt::format("a patience of {} ns", options.patience->count()),
                          "nobody would be waited for, and what comes a moment later would be late",
                          "leave it out to wait for as long as it takes, or use a FanIn where the "
                          "order is of no interest"};
    }
    return {.queue = options.queue,
            .max_producers = options.max_producers,
            .expected = options.expected,
            .acceptor = options.acceptor};
}

std::string explain_merge(const connect::Address& address, const MergeOptions& options,
                          const MergeStats& stats, std::size_t silent) {
    return fmt::format(
        "merge at {}: {} producers of at most {}, the smallest item in front first\n"
        "silent: {} of them, each of which holds up the others until it sends{}; {} were passed\n"
        "so far: {} items handed out, {} late\n",
        address.to_string(), stats.sources.producers, options.max_producers, silent,
        options.patience.has_value()
            ? fmt::format(
                  ", or for {} us",
                  std::chrono::duration_cast<std::chrono::microseconds>(*options.patience).count())
            : std::string{" or leaves"},
        stats.passed, stats.sources.items, stats.late);
}

void warn_of_late_item(const std::string& peer) {
    base::log(base::LogLevel::warn, "flow",
              "an item of {} is late: later ones were handed out, and it is not (stats() counts "
              "these, on_late tells of each)",
              peer);
}

}  // namespace millrace::flow::detail
