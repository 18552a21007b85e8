// What a structure that takes from many may be asked for.
#include "millrace/flow/sources.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::flow::detail {
namespace {

constexpr std::uint32_t most_producers = 65'536;
constexpr std::uint32_t most_levels = 256;

}  // namespace

void check(const char* whose, const FanInOptions& options) {
    const auto refuse = [whose](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, std::string{"make "} + whose,
                          std::move(what), std::move(why), std::move(remedy)};
    };
    if (options.max_producers == 0 || options.max_producers > most_producers) {
        refuse(fmt::format("a budget of {} producers", options.max_producers),
               fmt::format("it is from 1 to {}", most_producers), "use the default of 1024");
    }
    if (options.levels == 0 || options.levels > most_levels) {
        refuse(fmt::format("{} levels", options.levels),
               fmt::format("there are from 1 to {}", most_levels),
               "use 1 if nothing is more urgent than the rest");
    }
    if (options.burst == 0) {
        refuse("a burst of 0 items", "then nobody would ever be served", "use the default of 16");
    }
}

Options queue_options(const char* whose, const FanInOptions& options) {
    check(whose, options);
    Options queue = without_spin(options.queue);
    if (options.levels != 1) queue.ring.peer_labels = options.levels;
    return queue;
}

}  // namespace millrace::flow::detail
