// The command that prints the limits.
#include "run_limits.hpp"

#include <cstdio>

#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/framework/report.hpp"
#include "limits.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::bench {

int run_limits(const LimitOptions& options) {
    RoundOptions rounds{.rounds = options.rounds};
    if (isatty(STDERR_FILENO) != 0) {
        rounds.progress = [](int round, const std::string& name) {
            fmt::print(stderr, "\r\033[Kround {}: {}", round, name);
            std::fflush(stderr);
        };
    }
    Rounds measurement{rounds};
    bool any = false;
    for (auto& limit : all_limits(options.brief)) {
        if (limit.name.find(options.only) == std::string::npos) continue;
        measurement.add(std::move(limit));
        any = true;
    }
    if (!any) {
        fmt::print(stderr, "no limit's name contains '{}'\n", options.only);
        return 2;
    }
    options.json.check();
    const auto results = measurement.run();
    if (rounds.progress) fmt::print(stderr, "\r\033[K");
    if (!options.json.in_place_of_lines()) {
        fmt::print("{}\n{}\n{}", measured_where, base::describe_placement(), table_of(results));
    }
    if (options.json.wanted()) {
        auto document = json_of(results);
        document["machine"] = describe_machine();
        options.json.write(document.dump(2));
    }
    return 0;
}

}  // namespace millrace::bench
