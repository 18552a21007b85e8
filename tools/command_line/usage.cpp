// See usage.hpp.
#include "usage.hpp"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include <fmt/format.h>

#include "output.hpp"

namespace millrace::tools {
namespace {

constexpr int wrong_words = 2;  ///< the exit status

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

/// Why the words were refused, naming the one that is wrong, and what to look at.
std::string complaint_of(const CLI::App& program, const CLI::ParseError& error) {
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

/// The parser's help, fitted to the terminal: its lists have the descriptions at `descriptions`.
std::string fitted(const std::string& help) {
    constexpr std::size_t descriptions = 30;
    std::string text;
    std::istringstream lines{help};
    for (std::string line; std::getline(lines, line);) {
        text += wrapped(line, line.starts_with(' ') ? descriptions : 0) + '\n';
    }
    return text;
}

std::string answer_to(const CLI::App& program, const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream ignored;
    (void)program.exit(error, out, ignored);
    return error.get_name() == "CallForHelp" ? fitted(out.str()) : out.str();
}

}  // namespace

std::vector<std::string> words_of(int argc, char** argv) {
    std::vector<std::string> words(argv + 1, argv + argc);
    // The parser takes a `--` after an option whose value may lack for the end of its values,
    // and would read on in the words of the program after it.
    const auto rest = std::find(words.begin(), words.end(), "--");
    if (rest != words.end() && rest != words.begin() && *(rest - 1) == "--json") {
        *(rest - 1) = "--json=-";
    }
    if (!words.empty() && words.front() == "help") {
        words.erase(words.begin());
        words.emplace_back("--help");
    }
    std::reverse(words.begin(), words.end());
    return words;
}

int tell(const CLI::App& program, const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
        std::fputs(answer_to(program, error).c_str(), stdout);
        return 0;
    }
    std::fprintf(stderr, "millrace: %s\n", complaint_of(program, error).c_str());
    return wrong_words;
}

}  // namespace millrace::tools
