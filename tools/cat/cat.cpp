// `millrace cat`: arguments, connection, exit status.
#include "cat/cat.hpp"

#include <memory>
#include <stdexcept>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

#include "cat/interruption.hpp"
#include "cat/protocol.hpp"
#include "cat/sides.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::tools {

namespace {

Transferred copy(const CatOptions& options) {
    const connect::Address address = connect::Address::parse(options.address);
    message::ChannelOptions channel_options;
    channel_options.ring_bytes = cat_ring_bytes;
    channel_options.endpoint = connect::Endpoint::open(options.device);
    if (options.listen) {
        auto listener = message::Listener::listen(address, channel_options);
        if (options.progress) {
            fmt::print(stderr, "listening on {}\n", listener.address().to_string());
        }
        message::Channel channel =
            listener.accept(base::Deadline::never().cancelled_by(interruption()));
        return receive_stream(channel, STDOUT_FILENO, options.checksum, options.progress);
    }
    message::Channel channel =
        message::connect(address, channel_options,
                         base::Deadline::after(options.timeout).cancelled_by(interruption()));
    return send_stream(channel, STDIN_FILENO, options.checksum, options.progress);
}

}  // namespace

int run_cat(const CatOptions& options) {
    const Interruption interruptible;
    try {
        const Transferred done = copy(options);
        if (done.checksummed) {
            fmt::print(stderr, "xxh3 {:016x}  {} bytes\n", done.checksum, done.bytes);
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "millrace cat: {}\n", error.what());
        return interrupting_signal() != 0 ? 128 + interrupting_signal() : 1;
    }
}

void add_cat(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand(
        "cat", "Copy any amount of bytes: cat listen ADDRESS > out, cat ADDRESS < in");
    auto options = std::make_shared<CatOptions>();
    auto words = std::make_shared<std::vector<std::string>>();
    auto timeout = std::make_shared<unsigned>(10);
    command
        ->add_option("address", *words,
                     "[listen] host:port or unix:PATH; the listening side writes the output")
        ->required()
        ->expected(1, 2);
    command->add_flag("--progress", options->progress, "Show amount and rate on standard error");
    command->add_flag("--checksum", options->checksum,
                      "Compare an XXH3 of the stream end to end, and print it on both sides");
    command->add_option("--timeout", *timeout, "Seconds to wait for the listening side")
        ->capture_default_str();
    command->add_option("--device", options->device, "Name of the device (see millrace devices)");
    command->final_callback([=, &chosen] {
        options->listen = words->size() == 2;
        if (options->listen && words->front() != "listen") {
            throw CLI::ValidationError{"cat",
                                       "before the address only the word `listen` may "
                                       "stand, not `" +
                                           words->front() + "`"};
        }
        options->address = words->back();
        options->timeout = std::chrono::seconds{*timeout};
        chosen = [options] { return run_cat(*options); };
    });
}

}  // namespace millrace::tools
