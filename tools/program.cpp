// See program.hpp.
#include "program.hpp"

#include "bench.hpp"
#include "cat/cat.hpp"
#include "completion.hpp"
#include "demo.hpp"
#include "devices.hpp"
#include "doctor.hpp"
#include "kv.hpp"
#include "manual.hpp"
#include "perf/perf.hpp"
#include "rpc.hpp"
#include "soft.hpp"
#include "version.hpp"

namespace millrace::tools {
namespace {

// In the order of `millrace --help`. A subcommand is added here and nowhere else.
constexpr AddCommand* commands[] = {
    add_demo, add_devices, add_doctor, add_cat,  add_perf,       add_kv,
    add_rpc,  add_soft,    add_bench,  add_tune, add_completion, add_manual,
};

}  // namespace

std::unique_ptr<CLI::App> make_program(Action& chosen) {
    auto program = std::make_unique<CLI::App>(
        "Millrace: the speed of RDMA, with RDMA hardware or without.", "millrace");
    program->set_version_flag("--version", version_text,
                              "Show version, commit, compiler and device");
    program->require_subcommand(1);
    for (auto* add : commands) add(*program, chosen);
    return program;
}

}  // namespace millrace::tools
