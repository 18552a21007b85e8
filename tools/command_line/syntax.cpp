// See syntax.hpp.
#include "syntax.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>

#include <nlohmann/json.hpp>

namespace millrace::tools {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OptionSyntax, names, place, value, value_may_lack, required,
                                   takes_file, choices, has_others, description)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommandSyntax, path, name, description, runs_a_program, options,
                                   commands)

namespace {

/// The parser's "TEXT:{a,b}" and "UINT:INT in [1 - 9]" are a type and what is checked of it.
void take_type(const CLI::Option& option, OptionSyntax& syntax) {
    const std::string type = option.get_type_name();
    syntax.value = type.substr(0, type.find(':'));
    const auto begin = type.find('{');
    const auto end = type.rfind('}');
    if (begin == std::string::npos || end == std::string::npos) return;
    syntax.value = "NAME";
    syntax.choices = CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
    syntax.has_others = std::erase(syntax.choices, "...") != 0;
}

OptionSyntax syntax_of(const CLI::Option& option) {
    OptionSyntax syntax;
    const auto takes_values = option.get_items_expected_max() > 0;
    for (const auto& name : option.get_snames()) syntax.names.push_back("-" + name);
    for (const auto& name : option.get_lnames()) syntax.names.push_back("--" + name);
    if (syntax.names.empty()) syntax.place = option.get_name(true);
    if (takes_values) take_type(option, syntax);
    syntax.value_may_lack = takes_values && option.get_items_expected_min() == 0;
    syntax.required = option.get_required();
    syntax.takes_file =
        syntax.value == "FILE" || syntax.value == "FOLDER" || syntax.place == "PATH";
    syntax.description = option.get_description();
    if (!option.get_default_str().empty()) {
        syntax.description += " (default: " + option.get_default_str() + ")";
    }
    return syntax;
}

CommandSyntax syntax_below(const CLI::App& app, const std::string& above) {
    CommandSyntax syntax;
    syntax.name = app.get_name();
    syntax.path = above.empty() ? syntax.name : above + " " + syntax.name;
    syntax.description = app.get_description();
    // What belongs to no group is not shown to users.
    for (const CLI::Option* option : app.get_options()) {
        if (!option->get_group().empty()) syntax.options.push_back(syntax_of(*option));
    }
    for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; })) {
        if (!below->get_group().empty()) {
            syntax.commands.push_back(syntax_below(*below, syntax.path));
        }
    }
    syntax.runs_a_program =
        std::any_of(syntax.options.begin(), syntax.options.end(),
                    [](const OptionSyntax& option) { return option.place == "program"; });
    return syntax;
}

}  // namespace

CommandSyntax syntax_of(const CLI::App& program) { return syntax_below(program, {}); }

std::string to_json(const CommandSyntax& syntax) {
    const nlohmann::json document = syntax;
    return document.dump();
}

std::optional<CommandSyntax> syntax_of_json(const std::string& text) {
    try {
        return nlohmann::json::parse(text).get<CommandSyntax>();
    } catch (const nlohmann::json::exception&) {
        return std::nullopt;
    }
}

std::vector<const CommandSyntax*> flattened(const CommandSyntax& syntax) {
    std::vector<const CommandSyntax*> all{&syntax};
    for (const CommandSyntax& one : syntax.commands) {
        const auto below = flattened(one);
        all.insert(all.end(), below.begin(), below.end());
    }
    return all;
}

const CommandSyntax* find_command(const CommandSyntax& syntax, std::string_view path) {
    const auto all = flattened(syntax);
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const CommandSyntax* one) { return one->path == path; });
    return found != all.end() ? *found : nullptr;
}

}  // namespace millrace::tools
