// See program.hpp.
#include "program.hpp"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "bench.hpp"
#include "cat/cat.hpp"
#include "completion.hpp"
#include "demo.hpp"
#include "devices.hpp"
#include "doctor.hpp"
#include "manual.hpp"
#include "output.hpp"
#include "soft.hpp"
#include "version.hpp"

namespace millrace::tools {
namespace {

// In the order of `millrace --help`. A subcommand is added here and nowhere else.
constexpr AddCommand* commands[] = {
    add_demo, add_devices, add_doctor, add_cat, add_soft, add_bench, add_completion, add_manual,
};

/// The program and the chosen subcommands, each below the one before.
std::vector<const CLI::App*> chain_of(const CLI::App& program) {
    std::vector<const CLI::App*> chain{&program};
    for (auto below = program.get_subcommands(); !below.empty();
         below = chain.back()->get_subcommands()) {
        chain.push_back(below.back());
    }
    return chain;
}

std::string names_below(const CLI::App& app) {
    std::string names;
    for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
        // A command without a group is not shown.
        if (one->get_group().empty()) continue;
        names += (names.empty() ? "" : ", ") + one->get_name();
    }
    return names;
}

}  // namespace

std::unique_ptr<CLI::App> make_program(Action& chosen) {
    auto program = std::make_unique<CLI::App>(
        "Millrace: the speed of RDMA, with RDMA hardware or without.", "millrace");
    program->set_version_flag("--version", version_text,
                              "Show version, commit, compiler and device");
    program->require_subcommand(1);
    for (auto* add : commands) add(*program, chosen);
    return program;
}

std::vector<std::string> words_of(int argc, char** argv) {
    std::vector<std::string> words(argv + 1, argv + argc);
    // The parser takes a `--` behind an option whose value may lack for the end of its values,
    // and would read on in the words of the program behind it.
    const auto rest = std::find(words.begin(), words.end(), "--");
    if (rest != words.end() && rest != words.begin() && *(rest - 1) == "--json") {
        *(rest - 1) = "--json=-";
    }
    std::reverse(words.begin(), words.end());
    return words;
}

std::string complaint(const CLI::App& program, const CLI::ParseError& error) {
    std::string path;
    for (const CLI::App* app : chain_of(program)) {
        path += (path.empty() ? "" : " ") + app->get_name();
        const std::string below = names_below(*app);
        auto unknown = app->remaining();
        std::erase(unknown, "--");  // only says that no options follow
        // Unknown words first: what else is wrong may follow from them.
        if (!unknown.empty()) {
            const std::string& word = unknown.front();
            if (word.starts_with('-')) {
                return fmt::format("there is no option '{}' of {} (see {} --help)", word, path,
                                   path);
            }
            if (!below.empty() && app->get_subcommands().empty()) {
                return fmt::format("there is no command '{}' of {}; choose one of: {}", word, path,
                                   below);
            }
            return fmt::format("{} does not expect the word '{}' (see {} --help)", path, word,
                               path);
        }
        if (!below.empty() && app->get_subcommands().empty() &&
            app->get_require_subcommand_min() > 0) {
            return fmt::format("{} needs a command: choose one of: {}", path, below);
        }
    }
    return fmt::format("{} (see {} --help)", error.what(), path);
}

std::string answer(const CLI::App& program, const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream ignored;
    (void)program.exit(error, out, ignored);
    // Where the parser's help puts its descriptions.
    constexpr std::size_t descriptions = 30;
    return error.get_name() == "CallForHelp" ? wrapped(out.str(), descriptions) : out.str();
}

}  // namespace millrace::tools
