// The command's words as plain data, taken from its parser: what its man pages and its shell
// completions are made from, so that they cannot differ from it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace millrace::tools {

struct OptionSyntax {
    std::vector<std::string> names{};  ///< "--json"; empty: a word by its place
    std::string place{};               ///< of a word by its place: "PATH"
    std::string value{};               ///< "FILE", "UINT"; empty: takes none
    bool value_may_lack = false;
    bool required = false;
    bool takes_file = false;             ///< a shell completes it from the disk
    std::vector<std::string> choices{};  ///< the values there are, if they are few
    bool has_others = false;             ///< ... and others, which begin as these do
    std::string description{};
};

struct CommandSyntax {
    std::string path{};  ///< "millrace soft run"
    std::string name{};  ///< "run"
    std::string description{};
    bool runs_a_program = false;  ///< what follows `--` is another program's
    std::vector<OptionSyntax> options{};
    std::vector<CommandSyntax> commands{};
};

[[nodiscard]] CommandSyntax syntax_of(const CLI::App& program);

/// As one program tells it another one.
[[nodiscard]] std::string to_json(const CommandSyntax& syntax);
/// None: it is not what to_json() gives.
[[nodiscard]] std::optional<CommandSyntax> syntax_of_json(const std::string& text);

/// The command whose path this is; null: none.
[[nodiscard]] const CommandSyntax* find_command(const CommandSyntax& syntax, std::string_view path);

/// The command and all below it, parents first.
[[nodiscard]] std::vector<const CommandSyntax*> flattened(const CommandSyntax& syntax);

}  // namespace millrace::tools
