// `millrace cat`: arguments, connection, exit status.
#include "cat/cat.hpp"

#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

#include "cat/interruption.hpp"
#include "cat/protocol.hpp"
#include "cat/sides.hpp"
#include "command_line/numbers.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/signals.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/stream/socket.hpp"
#include "stream_options.hpp"

namespace millrace::tools {

namespace {

constexpr std::chrono::seconds connect_patience{10};

/// While one sender's stream is received: tells every other who connects that it comes too late,
/// at once, on a thread that sleeps until then. The receiving thread may be held up by its output.
class Refuser {
  public:
    explicit Refuser(stream::Listener listener) : listener_{std::move(listener)} {
        const base::SignalsBlocked blocked;  // they are the receiving thread's
        thread_ = std::jthread{[this] { run(); }};
    }
    Refuser(const Refuser&) = delete;
    Refuser& operator=(const Refuser&) = delete;
    ~Refuser() { over_.request(); }

  private:
    void run() noexcept {
        const auto until_over = base::Deadline::never().cancelled_by(over_);
        while (!over_.requested()) {
            try {
                stream::Socket late = listener_.accept(until_over);
                say_and_close(late, {.kind = NoteKind::busy}, false);
            } catch (const std::exception&) {
                // Of the late one, and it hears of it; or there is nothing to accept with, and it
                // waits in vain.
                std::this_thread::sleep_for(std::chrono::milliseconds{50});
            }
        }
    }

    stream::Listener listener_;
    base::Cancellation over_;
    std::jthread thread_;
};

Transferred copy(const CatOptions& options) {
    const connect::Address address = connect::Address::parse(options.address);
    stream::SocketOptions socket_options;
    socket_options.mode = options.mode;
    socket_options.ring_bytes = cat_ring_bytes;
    socket_options.endpoint = connect::Endpoint::open(options.device);
    if (!options.secret_file.empty()) {
        socket_options.admission.secret = connect::read_secret_file(options.secret_file);
    }
    if (options.listen) {
        auto listener = stream::Listener::listen(address, socket_options);
        if (options.progress) {
            fmt::print(stderr, "listening on {}\n", listener.address().to_string());
        }
        const base::Deadline deadline =
            options.timeout ? base::Deadline::after(*options.timeout) : base::Deadline::never();
        Peer sender{listener.accept(deadline.cancelled_by(interruption())),
                    socket_options.endpoint};
        const Refuser refuser{std::move(listener)};
        return receive_stream(sender, STDOUT_FILENO, options.checksum, options.progress);
    }
    Peer receiver{stream::connect(address, socket_options,
                                  base::Deadline::after(options.timeout.value_or(connect_patience))
                                      .cancelled_by(interruption())),
                  socket_options.endpoint};
    return send_stream(receiver, STDIN_FILENO, options.checksum, options.progress);
}

/// The parser calls one word or two "address(1x)".
struct CatFormatter : CLI::Formatter {
    std::string make_option_usage(const CLI::Option*) const override { return "[listen] address"; }
};

}  // namespace

int run_cat(const CatOptions& options) {
    const Interruption interruptible;
    try {
        const Transferred done = copy(options);
        if (done.show_checksum) {
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
    command->formatter(std::make_shared<CatFormatter>());
    auto options = std::make_shared<CatOptions>();
    auto words = std::make_shared<std::vector<std::string>>();
    command
        ->add_option("address", *words,
                     "[listen] host:port or unix:PATH; the listening side writes the output")
        ->required()
        ->expected(1, 2);
    command->add_flag("--progress", options->progress, "Show amount and rate on standard error");
    command->add_flag("--checksum", options->checksum,
                      "Print the XXH3 of the stream, which both sides compare, on both sides");
    command
        ->add_option_function<unsigned>(
            "--timeout",
            [options](unsigned seconds) { options->timeout = std::chrono::seconds{seconds}; },
            "Seconds to wait for the other side (default: a sender waits 10 for its listener, a "
            "listener as long as it takes)")
        ->transform(whole_between(1, 31'536'000));
    add_stream_mode(*command, options->mode);
    add_device_and_secret(*command, options->device, options->secret_file);
    command->final_callback([=, &chosen] {
        options->listen = words->size() == 2;
        if (!options->listen && words->front() == "listen") {
            throw CLI::ValidationError{"the address to listen on must follow 'listen'",
                                       CLI::ExitCodes::ValidationError};
        }
        if (options->listen && words->front() != "listen") {
            throw CLI::ValidationError{
                "before the address only the word 'listen' may stand, not '" + words->front() + "'",
                CLI::ExitCodes::ValidationError};
        }
        options->address = words->back();
        refuse_if_wrong([&] { (void)connect::Address::parse(options->address); });
        chosen = [options] { return run_cat(*options); };
    });
}

}  // namespace millrace::tools
