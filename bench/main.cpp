// `millrace-bench`: the measurements, which `millrace bench` starts. A program of its own, so that
// nobody who only wants the command has to build them.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/framework/bars.hpp"
#include "bench/limits/run_limits.hpp"
#include "bench/link/run_link.hpp"
#include "command_line/command.hpp"
#include "command_line/numbers.hpp"
#include "command_line/output.hpp"
#include "command_line/syntax.hpp"
#include "command_line/usage.hpp"
#include "millrace/base/standard_streams.hpp"
#include "studies/commands.hpp"

namespace millrace::bench {
namespace {

using tools::Action;
using tools::add_json;
using tools::whole_between;

void add_bars(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "bars",
        "Check every promise about speed on this machine; exit status 0 if all hold, "
        "1 if one does not, 2 if there is none");
    auto options = std::make_shared<BarOptions>();
    command->add_option("--only", options->only, "Only the bars of this group")
        ->check(
            CLI::IsMember(std::vector<std::string>{std::begin(bar_groups), std::end(bar_groups)}));
    command->add_option("--name", options->name, "Only the bars whose name contains this text");
    add_json(*command, options->json);
    command->add_option("--rounds", options->rounds, "Rounds that must count")
        ->transform(whole_between(1, 1000))
        ->capture_default_str();
    command->add_flag("--figures", options->figures, "Also show what each contender took");
    command->callback([options, &chosen] { chosen = [options] { return run_bars(*options); }; });
}

void add_limits(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "limits", "Measure what two processes on this machine can do at best");
    auto options = std::make_shared<LimitOptions>();
    command->add_flag("--brief", options->brief, "Fewer sizes and repetitions");
    command->add_option("--only", options->only, "Only limits whose name contains this text");
    add_json(*command, options->json);
    command->add_option("--rounds", options->rounds, "Rounds that must count")
        ->transform(whole_between(1, 1000))
        ->capture_default_str();
    command->callback([options, &chosen] { chosen = [options] { return run_limits(*options); }; });
}

void add_link(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "link",
        "Compare the soft device's mode shaped with its settings: one-way times and bandwidths; "
        "exit status 0 if all with more than 10 us of latency are within 5 %, else 1");
    auto options = std::make_shared<LinkOptions>();
    command->add_option("--mode", options->mode,
                        "Only this mode, as in shaped:10g,latency=10us (docs/modes.md)");
    command->add_flag("--brief", options->brief, "Fewer settings and repetitions");
    add_json(*command, options->json);
    command->callback([options, &chosen] { chosen = [options] { return run_link(*options); }; });
}

/// For `millrace completion` and `millrace manual`, which ask this program.
void add_syntax(CLI::App& program, Action& chosen) {
    program.add_subcommand("syntax", "Print the words of this command as JSON")
        ->group("")
        ->callback([&program, &chosen] {
            chosen = [&program] {
                // A command of `millrace` itself: hidden from those that look at this one's.
                program.get_subcommand("tune")->group("SUBCOMMANDS");
                std::puts(tools::to_json(tools::syntax_of(program)).c_str());
                return 0;
            };
        });
}

int run(int argc, char** argv) {
    CLI::App program{"Measure this machine, and Millrace on it"};
    program.name(argc > 1 && std::string_view{argv[1]} == "tune" ? "millrace" : "millrace bench");
    program.require_subcommand(1);
    Action chosen;
    add_bars(program, chosen);
    add_limits(program, chosen);
    add_link(program, chosen);
    add_studies(program, chosen);
    add_syntax(program, chosen);
    try {
        program.parse(tools::words_of(argc, argv));
    } catch (const CLI::ParseError& error) {
        return tools::tell(program, error);
    }
    return chosen();
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
    millrace::base::open_standard_streams();
    int status = 1;
    try {
        status = millrace::bench::run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "millrace bench: %s\n", error.what());
    }
    if (!millrace::tools::output_arrived() && status == 0) status = 1;
    return status;
}
