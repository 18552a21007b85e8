// millrace-limits: what this machine can do at best, the yardstick of every measurement.
#include <cstdio>
#include <exception>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "run_limits.hpp"

int main(int argc, char** argv) {
    CLI::App app{"What two processes on two cores of this machine can do at best."};
    millrace::bench::LimitOptions options;
    app.add_flag("--brief", options.brief, "fewer sizes and repetitions");
    app.add_option("--rounds", options.rounds, "rounds that must count")
        ->check(CLI::Range(1, 1000));
    app.add_option("--json", options.json,
                   "also write JSON to this file (-: standard output, no table)");
    app.add_option("--only", options.only, "only limits whose name contains this text");
    CLI11_PARSE(app, argc, argv);
    try {
        return millrace::bench::run_limits(options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "\nmillrace-limits: {}\n", error.what());
        return 1;
    }
}
