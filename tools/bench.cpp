// See bench.hpp.
#include "bench.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"

namespace millrace::tools {
namespace {

/// The program of the measurements lies beside this one, built or installed.
std::filesystem::path bench_program() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "millrace-bench";
}

int become_bench(std::vector<std::string> arguments) {
    const auto program = bench_program();
    arguments.insert(arguments.begin(), program.string());
    std::vector<char*> raw;
    for (auto& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    ::execv(raw[0], raw.data());
    const int cause = errno;
    throw base::Error{base::ErrorCode::not_found, "start the measurements", program.string(),
                      cause == ENOENT ? "they are not built" : base::describe_errno(cause),
                      "run make build"};
}

/// What it says of its words. None: it is not built.
std::optional<CommandSyntax> syntax_of_bench() {
    const std::string program = bench_program().string();
    if (!std::filesystem::exists(program) || program.find('\'') != program.npos) return {};
    std::FILE* const told = ::popen(("'" + program + "' syntax 2>/dev/null").c_str(), "re");
    if (told == nullptr) return {};
    std::string text;
    char part[4096];
    for (std::size_t size; (size = std::fread(part, 1, sizeof part, told)) != 0;) {
        text.append(part, size);
    }
    return ::pclose(told) == 0 ? syntax_of_json(text) : std::nullopt;
}

/// A command of this program that the other one carries out, by words that the other one knows.
void add_measuring(CLI::App& program, Action& chosen, const char* name, const char* description,
                   std::vector<std::string> first_words) {
    auto* command = program.add_subcommand(name, description);
    command->prefix_command();
    command->set_help_flag();
    command->callback([command, first_words = std::move(first_words), &chosen] {
        std::vector<std::string> words = first_words;
        for (std::string& word : command->remaining()) words.push_back(std::move(word));
        chosen = [words = std::move(words)] { return become_bench(words); };
    });
}

}  // namespace

CommandSyntax whole_syntax(const CLI::App& program) {
    CommandSyntax whole = syntax_of(program);
    auto bench = syntax_of_bench();
    if (!bench.has_value()) return whole;
    const auto tune = std::find_if(bench->commands.begin(), bench->commands.end(),
                                   [](const CommandSyntax& one) { return one.name == "tune"; });
    for (CommandSyntax& command : whole.commands) {
        if (command.name == "tune" && tune != bench->commands.end()) {
            command.options = tune->options;
        }
    }
    if (tune != bench->commands.end()) bench->commands.erase(tune);
    for (CommandSyntax& command : whole.commands) {
        if (command.name != "bench") continue;
        command.options = std::move(bench->options);
        command.commands = std::move(bench->commands);
    }
    return whole;
}

void add_bench(CLI::App& program, Action& chosen) {
    add_measuring(program, chosen, "bench",
                  "Measure this machine, and Millrace on it (see millrace bench --help)", {});
}

void add_tune(CLI::App& program, Action& chosen) {
    add_measuring(program, chosen, "tune",
                  "Measure which points of flow queues do best on this device, for "
                  "flow::choose() (see millrace tune --help)",
                  {"tune"});
}

}  // namespace millrace::tools
