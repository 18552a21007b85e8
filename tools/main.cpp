// The `millrace` command: finds the subcommand and runs it. Exit status 2: the words on the command
// line are wrong; 1: what was asked for failed, or its output is lost.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "command_line/output.hpp"
#include "command_line/usage.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/standard_streams.hpp"
#include "program.hpp"

namespace {

int run(int argc, char** argv) {
    millrace::tools::Action chosen;
    const auto program = millrace::tools::make_program(chosen);
    try {
        program->parse(millrace::tools::words_of(argc, argv));
    } catch (const CLI::ParseError& error) {
        return millrace::tools::tell(*program, error);
    }
    millrace::base::check_log_setting();
    return chosen();
}

}  // namespace

int main(int argc, char** argv) {
    millrace::base::open_standard_streams();
    int status = 1;
    try {
        status = run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "millrace: %s\n", error.what());
    }
    if (!millrace::tools::output_arrived() && status == 0) status = 1;
    return status;
}
