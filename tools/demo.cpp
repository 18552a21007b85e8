// See demo.hpp.
#include "demo.hpp"

#include <cstdint>
#include <memory>

#include "command_line/numbers.hpp"
#include "demo/demo.hpp"

namespace millrace::tools {

void add_demo(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand(
        "demo", "Send real files as records through Millrace and through sockets, side by side");
    auto options = std::make_shared<DemoOptions>();
    command->add_option("PATH", options->path,
                        "folder or file to send (default: /usr/lib, at most 256 MiB of it)");
    command->add_option("--limit", options->limit, "at most so many bytes of files, 1 or more")
        ->transform(bytes_between(1, std::uint64_t{1} << 60));
    command->add_option("--record-size", options->record_size, "bytes per record, at most")
        ->transform(whole_between(1, 1u << 20))
        ->capture_default_str();
    command->add_option("--ring", options->ring_bytes, "bytes of ring and socket buffer, per side")
        ->transform(bytes_between(0, std::uint64_t{1} << 60))  // check_demo knows the range
        ->capture_default_str();
    command->add_option("--rounds", options->rounds, "how often each transport runs")
        ->transform(whole_between(1, 1000))
        ->capture_default_str();
    command->add_option("--only", options->only, "one transport (beside unix, the baseline)")
        ->check(CLI::IsMember(demo_transports()));
    command->add_flag("--hosts", options->hosts,
                      "between two hosts, over the soft device's wire (UDP): 127.0.0.2 and "
                      "127.0.0.3 of this machine");
    command->add_flag(
        "--netns", options->network_namespaces,
        "--hosts by two network namespaces with a cable between them, in their place");
    add_json(*command, options->json);
    command->callback([options, &chosen] {
        refuse_if_wrong([&] { check_demo(*options); });
        chosen = [options] { return run_demo(*options); };
    });
}

}  // namespace millrace::tools
