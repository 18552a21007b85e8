// `millrace perf`: how fast bytes travel between two hosts or two processes, in the habit of
// iperf3: one side serves, the other one asks, and TCP for comparison.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "command_line/command.hpp"
#include "command_line/json_output.hpp"
#include "perf/plan.hpp"

namespace millrace::tools {

struct PerfServerOptions {
    std::string address = ":5201";
    bool one_off = false;     ///< ends behind the first test
    std::string device;       ///< empty: the default
    std::string secret_file;  ///< empty: no secret
};

struct PerfClientOptions {
    std::string address;
    perf::Plan plan;
    std::chrono::milliseconds interval{1000};  ///< between lines; 0: none
    JsonOutput json;
    std::string device;
    std::string secret_file;
};

/// Serves tests, one at a time, until SIGINT or SIGTERM. Returns the exit status; throws Error if
/// it cannot listen. For use by main: it sets signal handlers.
int run_perf_server(const PerfServerOptions& options);

/// Runs one test. Exit status 0: every byte that was sent has arrived. Throws Error.
int run_perf_client(const PerfClientOptions& options);

void add_perf(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
