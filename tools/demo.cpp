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
    command->add_option("--limit", options->limit, "at most so many bytes of files, 1 or more")
        ->transform(CLI::AsSizeValue(false))
        ->check([](const std::string& bytes) {
            return bytes == "0" ? std::string{"no file fits into 0 bytes; say 1 or more"}
                                : std::string{};
        });
    command->add_option("--record-size", options->record_size, "bytes per record, at most")
        ->check(CLI::Range(1u, 1u << 20))
        ->capture_default_str();
    command->add_option("--ring", options->ring_bytes, "bytes of ring and socket buffer, per side")
        ->transform(CLI::AsSizeValue(false))
        ->capture_default_str();
    command->add_option("--rounds", options->rounds, "how often each transport runs")
        ->check(CLI::Range(1u, 1000u))
        ->capture_default_str();
    command->add_option("--only", options->only, "one transport (beside unix, the baseline)")
        ->check(CLI::IsMember(demo_transports()));
    add_json(*command, options->json);
    command->callback([options, &chosen] {
        refuse_if_wrong([&] { check_demo(*options); });
        chosen = [options] { return run_demo(*options); };
    });
}

}  // namespace millrace::tools
