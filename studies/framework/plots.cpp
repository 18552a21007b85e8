#include "plots.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "millrace/base/error.hpp"
#include "plot_script.hpp"

namespace millrace::bench {
namespace {

void make_folder(const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
        throw base::Error{base::ErrorCode::system, "make a folder for plots", folder,
                          error.message(), "choose a path that can be written"};
    }
}

constexpr const char* interpreters[] = {"python3", "/usr/bin/python3"};

bool can_plot() {
    return std::ranges::any_of(interpreters, [](const char* interpreter) {
        const std::string command =
            fmt::format("{} -c 'import matplotlib' 2>/dev/null", interpreter);
        return std::system(command.c_str()) == 0;
    });
}

/// Runs the plotting script over the file. False if no Python has what it needs: the first of the
/// path, or the system's.
bool plot(const std::string& json, const std::string& folder) {
    // Where there is no Python at all, the pipe breaks.
    std::signal(SIGPIPE, SIG_IGN);
    for (const char* interpreter : interpreters) {
        const std::string command =
            fmt::format("{} - '{}' '{}' 2>/dev/null", interpreter, json, folder);
        std::FILE* python = ::popen(command.c_str(), "w");
        if (python == nullptr) return false;
        std::fwrite(plot_script.data(), 1, plot_script.size(), python);
        if (::pclose(python) == 0) return true;
    }
    return false;
}

/// A field of a line of CSV.
std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string made{'"'};
    for (const char one : text) made += one == '"' ? std::string{"\"\""} : std::string{one};
    return made + '"';
}

}  // namespace

std::string lines_of(const nlohmann::json& document) {
    std::string lines = "figure,mode,series,over,x,unit,median,least,most";
    for (const auto& figure : document.at("figures")) {
        const auto field = [&](const char* name) { return quoted(figure.at(name)); };
        for (const auto& series : figure.at("series")) {
            for (const auto& point : series.at("points")) {
                lines += fmt::format(
                    "\n{},{},{},{},{},{},{},{},{}", field("id"), field("mode"),
                    quoted(series.at("label")), field("over"), point.at("x").get<std::uint64_t>(),
                    field("unit"), point.at("median").get<double>(),
                    point.at("least").get<double>(), point.at("most").get<double>());
            }
        }
    }
    return lines;
}

std::string load_average() {
    std::ifstream file{"/proc/loadavg"};
    std::string text;
    std::getline(file, text);
    return text;
}

void check_plots(const std::string& study, const std::string& folder) {
    if (folder.empty()) return;
    make_folder(folder);
    for (const char* const kind : {"json", "csv"}) {
        tools::check_writable(fmt::format("{}/{}.{}", folder, study, kind), "write the figures");
    }
    if (can_plot()) return;
    fmt::print(
        stderr,
        "millrace bench {}: there will be no plots, but {}/{}.json: Python with matplotlib is "
        "needed (Debian: python3-matplotlib)\n",
        study, folder, study);
    std::fflush(stderr);
}

void write_document(const nlohmann::json& document, const tools::JsonOutput& json,
                    const std::string& folder, const std::string& lines) {
    if (!json.wanted() && folder.empty()) return;
    const std::string text = document.dump(2);
    if (json.wanted()) json.write(text);
    if (folder.empty()) return;
    make_folder(folder);
    const auto study = document.at("study").get<std::string>();
    const std::string path = fmt::format("{}/{}.json", folder, study);
    tools::JsonOutput{path}.write(text);
    if (!lines.empty()) tools::JsonOutput{fmt::format("{}/{}.csv", folder, study)}.write(lines);
    if (!plot(path, folder)) {
        fmt::print(stderr,
                   "millrace bench {}: no plots: Python with matplotlib is needed (Debian: "
                   "python3-matplotlib); the figures are in {}\n",
                   study, path);
    }
}

}  // namespace millrace::bench
