// See soft.hpp.
//
// The program finds our libibverbs.so.1 through LD_LIBRARY_PATH: the programs that need libibverbs
// load it, and no others (a shell that starts them, say). LD_PRELOAD reaches further, into
// programs with a search path of their own (DT_RPATH), but also into every other one.
//
// What programs look for under /dev and /sys, a small library answers that is always preloaded:
// only there can it stand before the C library. It loads nothing until somebody asks for such a
// file.
#include "soft.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/soft/device.hpp"
#include "millrace/soft/wire.hpp"
#include "soft/clean.hpp"
#include "soft/status.hpp"
#include "soft/trace.hpp"

namespace millrace::tools {
namespace {

struct RunOptions {
    std::string mode;
    std::string fabric;
    std::string wire;
    std::string packets;  ///< file for them, or empty
    bool preload = false;
    bool no_device_files = false;
    std::vector<std::string> command;
};

/// One of the libraries beside this command, in the build tree (bin/ and lib/) as where it is
/// installed.
std::filesystem::path find_library(const char* name, const char* target) {
    const auto command = std::filesystem::read_symlink("/proc/self/exe");
    auto library = command.parent_path().parent_path() / "lib" / "millrace" / name;
    if (!std::filesystem::exists(library)) {
        throw base::Error{base::ErrorCode::not_found, "find a library that the program needs",
                          library.string(), "there is no such file",
                          std::string{"build the target "} + target +
                              ", or install the command together with lib/millrace"};
    }
    return library;
}

void put_first(const char* variable, const std::string& entry) {
    const char* present = std::getenv(variable);
    const std::string value =
        present != nullptr && *present != '\0' ? entry + ":" + present : entry;
    if (setenv(variable, value.c_str(), 1) != 0) {
        base::throw_errno(errno, "set the environment variable", variable);
    }
}

void set_if_said(const char* variable, const std::string& value) {
    if (!value.empty() && setenv(variable, value.c_str(), 1) != 0) {
        base::throw_errno(errno, "set the environment variable", variable);
    }
}

int run(const RunOptions& options) {
    set_if_said("MILLRACE_SOFT_MODE", options.mode);
    set_if_said("MILLRACE_FABRIC", options.fabric);
    set_if_said("MILLRACE_WIRE", options.wire);
    set_if_said("MILLRACE_WIRE_PCAP", options.packets);
    const auto library = find_library("libibverbs.so.1", "millrace_ibverbs");
    if (!options.no_device_files) {
        put_first("LD_PRELOAD",
                  find_library("libmillrace_device_files.so", "millrace_device_files").string());
    }
    if (options.preload) {
        put_first("LD_PRELOAD", library.string());
    } else {
        put_first("LD_LIBRARY_PATH", library.parent_path().string());
    }

    std::vector<char*> arguments;
    arguments.reserve(options.command.size() + 1);
    for (const auto& argument : options.command) {
        arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());

    const int error = errno;
    const base::Error failure{
        base::code_of_errno(error), "run the program", options.command[0],
        base::describe_errno(error),
        error == ENOENT ? "check its name and PATH" : "check that it can be executed"};
    std::fprintf(stderr, "millrace: %s\n", failure.what());
    return error == ENOENT ? 127 : 126;  // as shells do
}

/// What `run` and `trace` have in common.
std::shared_ptr<RunOptions> add_program(CLI::App* command) {
    auto options = std::make_shared<RunOptions>();
    command
        ->add_option("--mode", options->mode,
                     "How the device behaves: fast, like a link, as in shaped:10g,latency=1us, "
                     "like a bad one, as in faulty:loss=1%, or strict:seed=NUMBER "
                     "(docs/modes.md; default: MILLRACE_SOFT_MODE, or fast)")
        ->type_name(mode_words);
    command->add_option("--fabric", options->fabric,
                        "Name of the fabric; programs of different fabrics do not see each other "
                        "(default: MILLRACE_FABRIC, or \"default\")");
    command
        ->add_option("--wire", options->wire,
                     "Reach other hosts, by this address of this one, which is then the device's "
                     "only one: 10.0.0.1, [fd00::1], or 127.0.0.2 to be a host of its own on this "
                     "machine; "
                     "or auto (default: MILLRACE_WIRE, or off)")
        ->type_name("ADDRESS[:PORT]|auto");
    command->add_flag("--preload", options->preload,
                      "Use LD_PRELOAD in place of LD_LIBRARY_PATH, for programs that bring their "
                      "own search path");
    command->add_flag("--no-device-files", options->no_device_files,
                      "Preload nothing: /dev/infiniband and /sys/class/infiniband stay as the "
                      "kernel has them, for programs that bear no preloaded library");
    command->add_option("program", options->command, "After --: the program and its arguments")
        ->required();
    return options;
}

void check(const RunOptions& options) {
    if (!options.mode.empty()) refuse_if_wrong([&] { soft::check_mode(options.mode); });
    refuse_if_wrong([&] { soft::check_wire(options.wire); });
}

/// A new file, for a program that may be in another folder when it opens the device.
void begin_packets(std::string& path) {
    check_writable(path, "write the wire's packets");
    path = std::filesystem::absolute(path);
    std::error_code none;
    std::filesystem::remove(path, none);
}

void add_run(CLI::App& soft, Action& chosen) {
    auto* command = soft.add_subcommand(
        "run",
        "Run an unmodified verbs program, with soft0 beside the machine's own devices:\n"
        "millrace soft run -- ib_write_lat -d soft0");
    auto options = add_program(command);
    command->callback([options, &chosen] {
        check(*options);
        chosen = [options] { return run(*options); };
    });
}

void add_trace(CLI::App& soft, Action& chosen) {
    auto* command = soft.add_subcommand(
        "trace",
        "As run, and show each work request, completion, state change and registration:\n"
        "millrace soft trace -- ib_write_lat -d soft0");
    auto options = add_program(command);
    auto how = std::make_shared<TraceOptions>();
    add_json(*command, how->json)
        ->description(
            "Write each as a line of JSON to this file; without a file, to standard output in "
            "place of the timeline (the program's own then goes to standard error)");
    command->add_option("--output", how->output, "File for what is shown")->type_name("FILE");
    command
        ->add_option("--pcap", options->packets,
                     "Write the wire's packets to this file, too, for tshark or wireshark (--wire)")
        ->type_name("FILE");
    command->callback([options, how, &chosen] {
        check(*options);
        chosen = [options, how] {
            if (!options->packets.empty()) begin_packets(options->packets);
            return trace(*how, [&] { return run(*options); });
        };
    });
}

void add_status(CLI::App& soft, Action& chosen) {
    auto* command = soft.add_subcommand(
        "status", "Show who has the soft device open: queue pairs, memory, counters");
    auto fabric = std::make_shared<std::string>();
    auto json = std::make_shared<JsonOutput>();
    command->add_option("--fabric", *fabric, "Only this fabric (default: all)");
    add_json(*command, *json);
    command->callback(
        [fabric, json, &chosen] { chosen = [=] { return show_status(*fabric, *json); }; });
}

void add_clean(CLI::App& soft, Action& chosen) {
    auto* command = soft.add_subcommand(
        "clean",
        "Look for what dead programs left behind, say what that is, and remove it.\n"
        "The soft device leaves nothing by design: names and memory go with their processes");
    auto dry_run = std::make_shared<bool>(false);
    command->add_flag("--dry-run", *dry_run, "Remove nothing");
    command->callback([dry_run, &chosen] { chosen = [=] { return clean(*dry_run); }; });
}

}  // namespace

void add_soft(CLI::App& program, Action& chosen) {
    auto* soft = program.add_subcommand("soft", "The soft device: RDMA without hardware");
    soft->require_subcommand(1);
    add_run(*soft, chosen);
    add_trace(*soft, chosen);
    add_status(*soft, chosen);
    add_clean(*soft, chosen);
}

}  // namespace millrace::tools
