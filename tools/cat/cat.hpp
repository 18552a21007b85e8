// `millrace cat`: any amount of bytes from one process's input to another's output.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "command_line/command.hpp"
#include "millrace/stream/mode.hpp"

namespace millrace::tools {

struct CatOptions {
    std::string address;
    bool listen = false;    ///< receive: standard output; else send: standard input
    bool progress = false;  ///< amount and rate to standard error
    bool checksum = false;  ///< print what is compared anyway; asked for by one side, both do it
    /// How long to wait for the other side; else 10 s for a listening one, and for a sender as
    /// long as it takes.
    std::optional<std::chrono::seconds> timeout;
    std::string device;       ///< empty: the default
    std::string secret_file;  ///< empty: no secret
    stream::Mode mode = stream::Mode::dynamic;
};

/// Copies until the end of the stream. Returns the exit status: 0 only if everything was written
/// at the receiver's end and acknowledged; 128 + signal when interrupted; else 1, with an error
/// on standard error. For use by main: it sets signal handlers.
int run_cat(const CatOptions& options);

void add_cat(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
