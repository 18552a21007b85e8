// See manual.hpp.
#include "manual.hpp"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "bench.hpp"
#include "command_line/syntax.hpp"
#include "millrace/base/error.hpp"

namespace millrace::tools {
namespace {

namespace fs = std::filesystem;

/// Text as roff takes it literally.
std::string roff(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\') {
            out += "\\e";
        } else if (c == '-') {
            out += "\\-";
        } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
            out += "\\&";
            out += c;
        } else {
            out += c;
        }
    }
    return out;
}

std::string with_dashes(std::string_view path) {
    std::string name{path};
    for (char& c : name) c = c == ' ' ? '-' : c;
    return name;
}

std::string bold(std::string_view text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + roff(text) + "\\fR"; }

/// The first line of a description, which man pages call the name.
std::string first_line(std::string_view text) {
    return std::string{text.substr(0, text.find('\n'))};
}

std::string value_of(const OptionSyntax& option) {
    if (option.value.empty()) return {};
    return option.value_may_lack ? " [" + italic(option.value) + "]" : " " + italic(option.value);
}

std::string synopsis_of(const CommandSyntax& command) {
    std::string line = bold(command.path);
    if (!command.options.empty()) line += " [" + italic("OPTION") + "]...";
    if (!command.commands.empty()) line += " " + italic("COMMAND");
    for (const OptionSyntax& option : command.options) {
        if (option.place.empty()) continue;
        const std::string dashes = command.runs_a_program && option.place == "program" ? "-- " : "";
        const std::string word =
            roff(dashes) + italic(option.place) + (option.place == "program" ? "..." : "");
        line += option.required ? " " + word : " [" + word + "]";
    }
    return line;
}

std::string option_text(const OptionSyntax& option) {
    std::string names;
    for (const std::string& name : option.names) {
        names += (names.empty() ? "" : ", ") + bold(name);
    }
    if (names.empty()) names = italic(option.place);
    std::string text = ".TP\n" + names + (option.names.empty() ? "" : value_of(option)) + "\n" +
                       roff(option.description) + "\n";
    if (!option.choices.empty()) {
        std::string choices;
        for (const std::string& one : option.choices) {
            choices += (choices.empty() ? "" : ", ") + one;
        }
        text += roff((option.has_others ? "As in: " : "One of: ") + choices) + "\n";
    }
    return text;
}

std::string page_of(const CommandSyntax& command, const CommandSyntax& program) {
    std::string text =
        fmt::format(".TH {} 1 \"\" \"millrace {}\" \"Millrace\"\n.SH NAME\n{} \\- {}\n",
                    with_dashes(command.path), MILLRACE_VERSION, roff(with_dashes(command.path)),
                    roff(first_line(command.description)));
    text += ".SH SYNOPSIS\n" + synopsis_of(command) + "\n";
    text += ".SH DESCRIPTION\n" + roff(command.description) + "\n";
    if (!command.commands.empty()) {
        text += ".SH COMMANDS\n";
        for (const CommandSyntax& one : command.commands) {
            text += ".TP\n" + bold(one.path) + "\n" + roff(one.description) + "\n";
        }
    }
    text += ".SH OPTIONS\n";
    for (const OptionSyntax& option : command.options) text += option_text(option);
    text +=
        ".SH EXIT STATUS\n0 if all went well, 1 if what was asked for failed or its output was "
        "lost, 2 if the words on\nthe command line are wrong.\n"
        ".SH ENVIRONMENT\n.TP\n\\fBMILLRACE_DEVICE\\fR\nName of the verbs device to use.\n"
        ".TP\n\\fBMILLRACE_LOG\\fR\nLeast level that is logged: trace, debug, info, warn, error, "
        "off.\n.TP\n\\fBMILLRACE_FABRIC\\fR\nName of the soft device\\(aqs fabric.\n"
        ".TP\n\\fBMILLRACE_SOFT_MODE\\fR\nHow the soft device behaves.\n"
        ".PP\nThe others: docs/settings.md of the sources.\n"
        ".SH SEE ALSO\n";
    std::string others;
    for (const CommandSyntax* other : flattened(program)) {
        if (other == &command) continue;
        others += (others.empty() ? "" : ",\n") + bold(with_dashes(other->path)) + "(1)";
    }
    return text + others + "\n";
}

void write_page(const fs::path& path, const std::string& text) {
    std::ofstream file{path};
    file << text;
    file.close();
    if (!file) {
        throw base::Error{base::ErrorCode::system, "write a man page", path.string(),
                          "the file cannot be written", "name a folder that is writable"};
    }
}

int write_pages(const fs::path& folder, const CommandSyntax& program) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) {
        throw base::Error{base::ErrorCode::system, "make the folder for the man pages",
                          folder.string(), error.message(), "name a folder that is writable"};
    }
    for (const CommandSyntax* command : flattened(program)) {
        write_page(folder / (with_dashes(command->path) + ".1"), page_of(*command, program));
    }
    return 0;
}

}  // namespace

void add_manual(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand(
        "manual", "Write the man pages of the command and its subcommands into a folder");
    auto folder = std::make_shared<std::string>();
    command->add_option("folder", *folder, "The folder, which is made if it is not there")
        ->required()
        ->type_name("FOLDER");
    command->callback([folder, &program, &chosen] {
        chosen = [folder, &program] { return write_pages(*folder, whole_syntax(program)); };
    });
}

}  // namespace millrace::tools
