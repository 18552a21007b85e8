// The arguments of `millrace perf`, see perf.hpp.
#include "perf/perf.hpp"

#include <cstdint>
#include <memory>
#include <string>

#include "command_line/numbers.hpp"
#include "millrace/connect/address.hpp"
#include "stream_options.hpp"

namespace millrace::tools {

void add_perf(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand(
        "perf", "Measure how fast bytes travel, as iperf3 does: perf -s, and perf -c ADDRESS");
    auto server = std::make_shared<PerfServerOptions>();
    auto client = std::make_shared<PerfClientOptions>();
    perf::Plan& plan = client->plan;
    auto* serves = command
                       ->add_option("-s,--server", server->address,
                                    "Serve, on host:port or unix:PATH (default :5201)")
                       ->type_name("[ADDRESS]")
                       ->expected(0, 1);
    auto* asks = command->add_option("-c,--client", client->address, "Measure with a server")
                     ->type_name("ADDRESS")
                     ->excludes(serves);
    command->add_flag("-1,--one-off", server->one_off, "The server ends behind one measurement")
        ->needs(serves);
    command->add_option("-t,--time", plan.seconds, "Seconds to send for")
        ->transform(whole_between(1, perf::Plan::most_seconds))
        ->capture_default_str()
        ->needs(asks);
    command
        ->add_option("-n,--bytes", plan.bytes,
                     "Send so many bytes, of all streams of a way, as in 512m; not for a time")
        ->transform(bytes_between(1, std::uint64_t{1} << 60))
        ->needs(asks);
    command
        ->add_option("-l,--length", plan.length,
                     "Bytes of one send and of one receive, up to 64m (default 1m)")
        ->transform(bytes_between(1, perf::Plan::most_length))
        ->needs(asks);
    command->add_option("-P,--parallel", plan.streams, "Streams at once, a thread each")
        ->transform(whole_between(1, perf::Plan::most_streams))
        ->capture_default_str()
        ->needs(asks);
    command->add_option("--buffers", plan.buffers, "Sends of a stream at once, and receives")
        ->transform(whole_between(1, perf::Plan::most_buffers))
        ->capture_default_str()
        ->needs(asks);
    auto* reverse = command
                        ->add_flag_callback(
                            "-R,--reverse", [&plan] { plan.direction = perf::Direction::reverse; },
                            "The server sends")
                        ->needs(asks);
    command
        ->add_flag_callback(
            "--bidir", [&plan] { plan.direction = perf::Direction::both; },
            "Both send, each over streams of its own")
        ->needs(asks)
        ->excludes(reverse);
    auto* mode = add_stream_mode(*command, plan.mode)->needs(asks);
    auto* type = add_stream_type(*command, plan.type)->needs(asks);
    command->add_flag("--tcp", plan.tcp, "Over TCP of the kernel, for comparison")
        ->needs(asks)
        ->excludes(mode)
        ->excludes(type);
    command
        ->add_option_function<double>(
            "-i,--interval",
            [client](double seconds) {
                client->interval = std::chrono::milliseconds{static_cast<int>(seconds * 1000)};
            },
            "Seconds between lines; 0: only the end (default 1)")
        ->transform(fraction_between(0, 3600))
        ->check([](const std::string& seconds) {
            const double between = std::stod(seconds);
            return between == 0 || between >= 0.1
                       ? std::string{}
                       : std::string{"lines are at least 0.1 s apart; 0: only the end"};
        })
        ->type_name("SECONDS")
        ->needs(asks);
    add_json(*command, client->json)->needs(asks);
    add_device_and_secret(*command, client->device, client->secret_file);
    command->final_callback([=, &chosen] {
        if (serves->count() == 0 && asks->count() == 0) {
            throw CLI::ValidationError{"either -s or -c ADDRESS is needed",
                                       CLI::ExitCodes::ValidationError};
        }
        if (serves->count() != 0) {
            server->device = client->device;
            server->secret_file = client->secret_file;
            if (server->address.empty()) server->address = ":5201";
            refuse_if_wrong([&] { (void)connect::Address::parse(server->address); });
            chosen = [server] { return run_perf_server(*server); };
            return;
        }
        if (const std::string wrong = client->plan.wrong(); !wrong.empty()) {
            throw CLI::ValidationError{wrong, CLI::ExitCodes::ValidationError};
        }
        refuse_if_wrong([&] {
            const auto address = connect::Address::parse(client->address);
            if (client->plan.tcp && address.kind() != connect::Address::Kind::tcp) {
                throw CLI::ValidationError{"--tcp needs a host and a port, not a Unix socket",
                                           CLI::ExitCodes::ValidationError};
            }
        });
        chosen = [client] { return run_perf_client(*client); };
    });
}

}  // namespace millrace::tools
