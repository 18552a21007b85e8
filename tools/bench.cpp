// See bench.hpp.
#include "bench.hpp"

#include <fmt/format.h>
#include <unistd.h>

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

}  // namespace

CommandSyntax whole_syntax(const CLI::App& program) {
    CommandSyntax whole = syntax_of(program);
    auto bench = syntax_of_bench();
    for (CommandSyntax& command : whole.commands) {
        if (!bench.has_value() || command.name != "bench") continue;
        command.options = std::move(bench->options);
        command.commands = std::move(bench->commands);
    }
    return whole;
}

void add_bench(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand(
        "bench", "Measure this machine, and Millrace on it (see millrace bench --help)");
    command->prefix_command();
    command->set_help_flag();
    command->callback([command, &chosen] {
        chosen = [arguments = command->remaining()] { return become_bench(arguments); };
    });
}

}  // namespace millrace::tools
