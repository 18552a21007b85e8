// The `millrace` command: finds the subcommand and runs it.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "bench.hpp"
#include "cat/cat.hpp"
#include "command.hpp"
#include "demo.hpp"
#include "devices.hpp"
#include "doctor.hpp"
#include "soft.hpp"

namespace {

// In the order of `millrace --help`. A subcommand is added here and nowhere else.
constexpr millrace::tools::AddCommand* commands[] = {
    millrace::tools::add_demo, millrace::tools::add_devices, millrace::tools::add_doctor,
    millrace::tools::add_cat,  millrace::tools::add_soft,    millrace::tools::add_bench,
};

}  // namespace

int main(int argc, char** argv) {
    CLI::App program{"Millrace: the speed of RDMA, with RDMA hardware or without."};
    program.name("millrace");
    program.set_version_flag("--version", MILLRACE_VERSION);
    program.require_subcommand(1);
    millrace::tools::Action chosen;
    for (auto* add : commands) add(program, chosen);
    try {
        program.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return program.exit(error);
    }
    try {
        return chosen();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "millrace: %s\n", error.what());
        return 1;
    }
}
