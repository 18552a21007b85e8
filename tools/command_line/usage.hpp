// The words on the command line, for the `millrace` command and for the program of its
// measurements: how they are read, and what a user hears that asks for help or got one wrong.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace millrace::tools {

/// The words of the command line in the order CLI::App::parse takes them (the last first). "help kv
/// get" is "kv get --help".
[[nodiscard]] std::vector<std::string> words_of(int argc, char** argv);

/// Tells the user what `error` is about: the answer to --help and --version, which the parser
/// reports as errors, on standard output; else, on standard error, why the words were refused,
/// naming the one that is wrong, and what to look at. Returns the exit status.
[[nodiscard]] int tell(const CLI::App& program, const CLI::ParseError& error);

}  // namespace millrace::tools
