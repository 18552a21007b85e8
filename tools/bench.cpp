// See bench.hpp.
#include "bench.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/error.hpp"

namespace millrace::tools {
namespace {

/// Becomes the program of the measurements, which lies beside this one, built or installed.
int become_bench(std::vector<std::string> arguments) {
    const auto program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "millrace-bench";
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

}  // namespace

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
