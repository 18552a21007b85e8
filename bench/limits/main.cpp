// millrace-limits: what this machine can do at best, the yardstick of every measurement.
#include <cstdio>
#include <exception>
#include <string>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "framework/report.hpp"
#include "limits.hpp"
#include "millrace/base/placement.hpp"

int main(int argc, char** argv) {
    using namespace millrace;
    CLI::App app{"What two processes on two cores of this machine can do at best."};
    bool brief = false;
    int rounds = 11;
    std::string json;
    std::string only;
    app.add_flag("--brief", brief, "fewer sizes and repetitions");
    app.add_option("--rounds", rounds, "rounds that must count")->check(CLI::Range(1, 1000));
    app.add_option("--json", json, "also write JSON to this file (-: standard output, no table)");
    app.add_option("--only", only, "only limits whose name contains this text");
    CLI11_PARSE(app, argc, argv);
    try {
        bench::RoundOptions options{.rounds = rounds};
        if (isatty(STDERR_FILENO) != 0) {
            options.progress = [](int round, const std::string& name) {
                fmt::print(stderr, "\r\033[Kround {}: {}", round, name);
                std::fflush(stderr);
            };
        }
        bench::Rounds measurement{options};
        bool any = false;
        for (auto& limit : bench::all_limits(brief)) {
            if (limit.name.find(only) == std::string::npos) continue;
            measurement.add(std::move(limit));
            any = true;
        }
        if (!any) {
            fmt::print(stderr, "millrace-limits: no limit's name contains '{}'\n", only);
            return 2;
        }
        const auto results = measurement.run();
        if (options.progress) fmt::print(stderr, "\r\033[K");
        if (json != "-") fmt::print("{}\n{}", base::describe_placement(), bench::table_of(results));
        if (!json.empty()) {
            auto document = bench::json_of(results);
            document["machine"] = bench::describe_machine();
            bench::write_json(document, json);
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "\nmillrace-limits: {}\n", error.what());
        return 1;
    }
}
