// How the `millrace` command is put together: one file per subcommand, each of which tells the
// parser of its arguments and what to do when it is chosen. program.cpp calls them all.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "json_output.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/transport.hpp"

namespace millrace::tools {

/// What the chosen subcommand does once all arguments are known to be right. Returns the exit
/// status; what it throws is printed by main and becomes exit status 1.
using Action = std::function<int()>;

/// Every subcommand has one: adds itself to `program` and, when it is chosen, sets `chosen`.
/// Both outlive the parsing and the action.
using AddCommand = void(CLI::App& program, Action& chosen);

/// `--json [FILE]`, which means the same everywhere: alone, JSON on standard output in place of
/// the lines; with a file, JSON into it besides them.
inline CLI::Option* add_json(CLI::App& command, JsonOutput& json) {
    return command
        .add_option_function<std::string>(
            "--json",
            [&json](const std::string& given) { json.path = given.empty() ? "-" : given; },
            "Write JSON to this file; without a file, to standard output instead of the lines")
        ->type_name("FILE")
        ->expected(0, 1);
}

/// The type of a mode of the soft device (docs/modes.md): what a shell offers of it, and settings
/// after it.
inline constexpr const char* mode_words = "MODE:{fast,shaped,strict,faulty,...}";

/// `--device` and `--secret-file`, of a command that talks to another end.
inline void add_device_and_secret(CLI::App& command, std::string& device,
                                  std::string& secret_file) {
    command.add_option("--device", device, "Name of the device (see millrace devices)");
    command.add_option(
        "--secret-file", secret_file,
        "Talk only to a peer that has the same secret: 16 to 1024 bytes, in a file that "
        "nobody but its owner may read");
}

/// The names of every transport.
inline CLI::IsMember is_transport() {
    std::vector<std::string> names;
    for (const connect::Transport one : {connect::Transport::rc, connect::Transport::uc,
                                         connect::Transport::ud, connect::Transport::tcp}) {
        names.emplace_back(name_of(one));
    }
    return CLI::IsMember{names};
}
/// `--transport`, of a command that connects.
inline void add_transport(CLI::App& command, connect::Transport& transport) {
    command
        .add_option_function<std::string>(
            "--transport",
            [&transport](const std::string& name) {
                transport = connect::parse_transport(name).value_or(transport);
            },
            "What carries requests and answers, one that the server takes: rc (default), uc or ud "
            "of an RDMA device, or tcp, which takes none")
        ->check(is_transport())
        ->type_name("WORD");
}
/// `--fallback`, of a command that connects.
inline void add_fallback(CLI::App& command, std::optional<connect::Transport>& fallback) {
    command
        .add_option_function<std::string>(
            "--fallback",
            [&fallback](const std::string& name) { fallback = connect::parse_transport(name); },
            "What carries them where --transport cannot be had, which a warning tells; default: "
            "nothing, but an error")
        ->check(is_transport())
        ->type_name("WORD");
}
/// The same of a command that listens, which may take several.
inline void add_transports(CLI::App& command, connect::Transports& transports) {
    command
        .add_option_function<std::vector<std::string>>(
            "--transport",
            [&transports](const std::vector<std::string>& names) {
                transports = {};
                for (const std::string& name : names) {
                    transports.add(connect::parse_transport(name).value());
                }
            },
            "What clients may come by, as in rc,tcp; default: rc")
        ->delimiter(',')
        ->check(is_transport())
        ->type_name("WORDS");
}

/// For use while arguments are parsed: an Error that `look` throws is one of usage.
template <class Look>
void refuse_if_wrong(Look&& look) {
    try {
        look();
    } catch (const base::Error& error) {
        throw CLI::ValidationError{error.what(), CLI::ExitCodes::ValidationError};
    }
}

}  // namespace millrace::tools
