// See demo.hpp.
#include "demo.hpp"

#include <memory>

#include "demo/demo.hpp"

namespace millrace::tools {

void add_demo(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand(
        "demo", "Send real files as records through Millrace and through sockets, side by side");
    auto options = std::make_shared<DemoOptions>();
    command->add_option("PATH", options->path,
                        "folder or file to send (default: /usr/lib, at most 256 MiB of it)");
    command->add_option("--limit", options->limit, "at most so many bytes of files")
        ->transform(CLI::AsSizeValue(false));
    command->add_option("--record-size", options->record_size, "bytes per record, at most")
        ->check(CLI::Range(1u, 1u << 20))
        ->capture_default_str();
    command->add_option("--ring", options->ring_bytes, "bytes of ring and socket buffer, per side")
        ->transform(CLI::AsSizeValue(false))
        ->capture_default_str();
    command->add_option("--rounds", options->rounds, "how often each transport runs")
        ->check(CLI::Range(1u, 1000u))
        ->capture_default_str();
    command->add_option("--only", options->only,
                        "one transport: flow-1, flow-2, message, tcp (beside unix, the baseline)");
    command->add_option("--json", options->json_file, "write every figure to this file");
    command->callback([options, &chosen] { chosen = [options] { return run_demo(*options); }; });
}

}  // namespace millrace::tools
