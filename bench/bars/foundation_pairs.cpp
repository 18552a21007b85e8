// Bars of waiting pairs: threads of two processes that exchange messages on two cores by the
// default wait, to the better one of those that poll and those that sleep.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "bench/framework/bars.hpp"
#include "bench/framework/rounds.hpp"
#include "bench/message/measure_clients.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::bench {
namespace {

Bar of_pairs(std::size_t pairs) {
    const auto echoes = [pairs](const base::WaitPolicy& wait) {
        return echoes_of_pairs(pairs, "fast", wait);
    };
    return {.group = "foundation",
            .name = fmt::format("echoes of {} {} of threads by the default wait, to the better of "
                                "polling and sleeping",
                                pairs, pairs == 1 ? "pair" : "pairs"),
            .limit = 0.9,
            .sense = Sense::at_least,
            .unit = "x",
            .measure = [echoes](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add({"default",
                            [=] {
                                // The threads are this program's own, and pinned by nobody.
                                return echoes({.moves = true});
                            },
                            "/s"});
                rounds.add({"better",
                            [=] {
                                return std::max(echoes(base::WaitPolicy::polling()),
                                                echoes(base::WaitPolicy::blocking()));
                            },
                            "/s"});
                return rounds.run().ratio("default", "better");
            }};
}

const BarRegistration one{of_pairs(1)};
const BarRegistration two{of_pairs(2)};
const BarRegistration four{of_pairs(4)};
const BarRegistration eight{of_pairs(8)};
const BarRegistration sixteen{of_pairs(16)};

}  // namespace
}  // namespace millrace::bench
