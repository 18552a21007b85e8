// See completion.hpp. Each script walks the words before the cursor to find the command that they
// name ("millrace soft run"), and then offers what that one knows. Behind `--` stands another
// program, whose completion takes over.
#include "completion.hpp"

#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "bench.hpp"
#include "command_line/syntax.hpp"

namespace millrace::tools {
namespace {

/// In single quotes for a shell, on one line.
std::string in_quotes(std::string_view text) {
    std::string out = "'";
    for (const char c : text) {
        if (c == '\'') {
            out += "'\\''";
        } else {
            out += c == '\n' ? ' ' : c;
        }
    }
    return out + "'";
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
    std::string out;
    for (const std::string& word : words) {
        if (!out.empty()) out += between;
        out += word;
    }
    return out;
}

/// "millrace soft", "millrace soft run" … as patterns of a shell's `case`.
std::string paths_below(const CommandSyntax& program) {
    std::vector<std::string> patterns;
    for (const CommandSyntax* command : flattened(program)) {
        if (command != &program) patterns.push_back(in_quotes(command->path));
    }
    return joined(patterns, " | ");
}

/// Patterns for "PATH OPTION", for the option's value.
std::string patterns_of(const CommandSyntax& command, const OptionSyntax& option) {
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) {
        patterns.push_back(in_quotes(command.path + " " + name));
    }
    return joined(patterns, " | ");
}

bool takes_files(const CommandSyntax& command) {
    for (const OptionSyntax& option : command.options) {
        if (option.names.empty() && option.takes_file) return true;
    }
    return false;
}

std::string bash(const CommandSyntax& program) {
    std::string text =
        "# bash completion of millrace, written by `millrace completion bash`.\n"
        "_millrace() {\n"
        "    local word i path=millrace current=${COMP_WORDS[COMP_CWORD]}\n"
        "    local previous=${COMP_WORDS[COMP_CWORD-1]}\n"
        "    COMPREPLY=()\n"
        "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
        "        word=${COMP_WORDS[i]}\n"
        "        if [[ $word == -- ]]; then\n"
        "            if declare -F _command_offset >/dev/null; then _command_offset $((i + 1))\n"
        "            else COMPREPLY=($(compgen -c -- \"$current\")); fi\n"
        "            return\n"
        "        fi\n"
        "        case \"$path $word\" in\n";
    text += "            " + paths_below(program) +
            ") path=\"$path $word\" ;;\n        esac\n"
            "    done\n    case \"$path $previous\" in\n";
    for (const CommandSyntax* command : flattened(program)) {
        for (const OptionSyntax& option : command->options) {
            if (option.names.empty() || option.value.empty()) continue;
            std::string offer = "return";  // a value that only the user knows
            if (!option.choices.empty()) {
                offer = fmt::format("COMPREPLY=($(compgen -W {} -- \"$current\")); return",
                                    in_quotes(joined(option.choices, " ")));
            } else if (option.takes_file) {
                offer = "COMPREPLY=($(compgen -f -- \"$current\")); return";
            } else if (option.value_may_lack) {
                continue;
            }
            text += fmt::format("        {}) {} ;;\n", patterns_of(*command, option), offer);
        }
    }
    text += "    esac\n    case $path in\n";
    for (const CommandSyntax* command : flattened(program)) {
        std::vector<std::string> words;
        for (const CommandSyntax& below : command->commands) words.push_back(below.name);
        for (const OptionSyntax& option : command->options) {
            words.insert(words.end(), option.names.begin(), option.names.end());
        }
        if (command->runs_a_program) words.push_back("--");
        text += fmt::format("        {}) COMPREPLY=($(compgen {}-W {} -- \"$current\")) ;;\n",
                            in_quotes(command->path), takes_files(*command) ? "-f " : "",
                            in_quotes(joined(words, " ")));
    }
    return text + "    esac\n}\ncomplete -F _millrace millrace\n";
}

/// "name:description" for zsh's _describe.
std::string described(std::string_view name, std::string_view description) {
    std::string text;
    for (const char c : name) text += c == ':' ? std::string{"\\:"} : std::string(1, c);
    return in_quotes(text + ":" + std::string{description});
}

std::string zsh(const CommandSyntax& program) {
    std::string text =
        "#compdef millrace\n"
        "# zsh completion of millrace, written by `millrace completion zsh`.\n"
        "_millrace() {\n"
        "    local word path_=millrace\n"
        "    local -i i\n"
        "    local -a offers\n"
        "    for ((i = 2; i < CURRENT; i++)); do\n"
        "        word=${words[i]}\n"
        "        if [[ $word == -- ]]; then\n"
        "            words=(\"${(@)words[i + 1,-1]}\")\n"
        "            ((CURRENT -= i))\n"
        "            _normal\n"
        "            return\n"
        "        fi\n"
        "        case \"$path_ $word\" in\n";
    text += "            " + paths_below(program) +
            ") path_=\"$path_ $word\" ;;\n        esac\n    done\n"
            "    case \"$path_ ${words[CURRENT - 1]}\" in\n";
    for (const CommandSyntax* command : flattened(program)) {
        for (const OptionSyntax& option : command->options) {
            if (option.names.empty() || option.value.empty()) continue;
            std::string offer = "return";
            if (!option.choices.empty()) {
                offer = "compadd -- " + joined(option.choices, " ") + "; return";
            } else if (option.takes_file) {
                offer = "_files; return";
            } else if (option.value_may_lack) {
                continue;
            }
            text += fmt::format("        {}) {} ;;\n", patterns_of(*command, option), offer);
        }
    }
    text += "    esac\n    case $path_ in\n";
    for (const CommandSyntax* command : flattened(program)) {
        text += fmt::format("        {}) offers=(", in_quotes(command->path));
        for (const CommandSyntax& below : command->commands) {
            text += "\n            " + described(below.name, below.description);
        }
        for (const OptionSyntax& option : command->options) {
            for (const std::string& name : option.names) {
                text += "\n            " + described(name, option.description);
            }
        }
        text += fmt::format(") {};;\n", takes_files(*command) ? "; _files " : "");
    }
    return text + "    esac\n    _describe 'millrace' offers\n}\n_millrace \"$@\"\n";
}

std::string fish(const CommandSyntax& program) {
    std::string text =
        "# fish completion of millrace, written by `millrace completion fish`.\n"
        "function __millrace_at\n"
        "    set -l path millrace\n"
        "    for word in (commandline -opc)[2..-1]\n"
        "        test \"$word\" = -- ; and return 1\n"
        "        switch \"$path $word\"\n            case";
    for (const CommandSyntax* command : flattened(program)) {
        if (command != &program) text += " " + in_quotes(command->path);
    }
    text +=
        "\n                set path \"$path $word\"\n        end\n    end\n"
        "    test \"$path\" = \"$argv[1]\"\nend\n";
    for (const CommandSyntax* command : flattened(program)) {
        const std::string at = "complete -c millrace -n \"__millrace_at '" + command->path + "'\"";
        if (!takes_files(*command)) text += at + " -f\n";
        for (const CommandSyntax& below : command->commands) {
            text += at + " -a " + below.name + " -d " + in_quotes(below.description) + "\n";
        }
        for (const OptionSyntax& option : command->options) {
            if (option.names.empty()) continue;
            text += at;
            for (const std::string& name : option.names) {
                text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
            }
            if (!option.choices.empty()) {
                text += " -x -a " + in_quotes(joined(option.choices, " "));
            } else if (option.takes_file && !option.value_may_lack) {
                text += " -r -F";
            } else if (!option.value.empty() && !option.value_may_lack) {
                text += " -x";
            }
            text += " -d " + in_quotes(option.description) + "\n";
        }
    }
    return text;
}

}  // namespace

void add_completion(CLI::App& program, Action& chosen) {
    auto* command =
        program.add_subcommand("completion",
                               "Print a script that lets a shell complete this command's words:\n"
                               "source <(millrace completion bash)");
    auto shell = std::make_shared<std::string>();
    command->add_option("shell", *shell, "The shell: bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    command->callback([shell, &program, &chosen] {
        chosen = [shell, &program] {
            const CommandSyntax syntax = whole_syntax(program);
            const auto script = *shell == "bash" ? bash : *shell == "zsh" ? zsh : fish;
            fmt::print("{}", script(syntax));
            return 0;
        };
    });
}

}  // namespace millrace::tools
