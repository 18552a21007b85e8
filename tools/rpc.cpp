// See rpc.hpp.
#include "rpc.hpp"

#include <cstdint>
#include <memory>

#include "command_line/numbers.hpp"
#include "millrace/connect/address.hpp"
#include "rpc/list.hpp"

namespace millrace::tools {
namespace {

void add_list(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "list", "Show a server's procedures, how often they were called, and how long they took");
    auto options = std::make_shared<RpcListOptions>();
    command->add_option("address", options->server, "host:port or unix:PATH")
        ->type_name("ADDRESS")
        ->required();
    command
        ->add_option_function<double>(
            "--timeout",
            [options](double seconds) {
                options->timeout =
                    std::chrono::nanoseconds{static_cast<std::int64_t>(seconds * 1e9)};
            },
            "Seconds to wait for the server and its answer; default: 5")
        ->transform(fraction_between(0.001, 1e6));
    add_json(*command, options->json);
    add_device_and_secret(*command, options->device, options->secret_file);
    command->final_callback([=, &chosen] {
        refuse_if_wrong([&] { (void)connect::Address::parse(options->server); });
        chosen = [options] { return run_rpc_list(*options); };
    });
}

}  // namespace

void add_rpc(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand("rpc", "Look at a server of typed calls");
    command->require_subcommand(1);
    add_list(*command, chosen);
}

}  // namespace millrace::tools
