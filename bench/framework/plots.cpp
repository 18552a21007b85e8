#include "plots.hpp"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "plot_script.hpp"

namespace millrace::bench {
namespace {

/// Runs the plotting script over the file. False if no Python has what it needs: the first of the
/// path, or the system's.
bool plot(const std::string& json, const std::string& folder) {
    // Where there is no Python at all, the pipe breaks.
    std::signal(SIGPIPE, SIG_IGN);
    for (const char* interpreter : {"python3", "/usr/bin/python3"}) {
        const std::string command =
            fmt::format("{} - '{}' '{}' 2>/dev/null", interpreter, json, folder);
        std::FILE* python = ::popen(command.c_str(), "w");
        if (python == nullptr) return false;
        std::fwrite(plot_script.data(), 1, plot_script.size(), python);
        if (::pclose(python) == 0) return true;
    }
    return false;
}

}  // namespace

std::string load_average() {
    std::ifstream file{"/proc/loadavg"};
    std::string text;
    std::getline(file, text);
    return text;
}

void write_document(const nlohmann::json& document, const tools::JsonOutput& json,
                    const std::string& folder) {
    if (!json.wanted() && folder.empty()) return;
    const std::string text = document.dump(2);
    if (json.wanted()) json.write(text);
    if (folder.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
        throw base::Error{base::ErrorCode::system, "make a folder for plots", folder,
                          error.message(), "choose a path that can be written"};
    }
    const auto study = document.at("study").get<std::string>();
    const std::string path = fmt::format("{}/{}.json", folder, study);
    tools::JsonOutput{path}.write(text);
    if (!plot(path, folder)) {
        fmt::print(stderr,
                   "millrace bench {}: no plots: Python with matplotlib is needed (Debian: "
                   "python3-matplotlib); the figures are in {}\n",
                   study, path);
    }
}

}  // namespace millrace::bench
