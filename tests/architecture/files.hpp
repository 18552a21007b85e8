// The texts of the house's own files, and what stands in them: for the tests of this folder.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace millrace::architecture {

/// Of this source tree.
[[nodiscard]] inline std::filesystem::path source_tree() { return MILLRACE_SOURCE_DIR; }

[[nodiscard]] inline std::string text_of(const std::filesystem::path& file) {
    std::ostringstream text;
    text << std::ifstream{file}.rdbuf();
    return text.str();
}

/// Text by name of file.
using Files = std::map<std::string, std::string>;
/// The soft device's, by room and name.
[[nodiscard]] inline Files files_of_soft() {
    const std::filesystem::path soft = source_tree() / "src" / "soft";
    Files files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator{soft}) {
        if (!entry.is_regular_file()) continue;
        files[entry.path().lexically_relative(soft)] = text_of(entry.path());
    }
    return files;
}

/// The first group of each match.
inline void add_matches(const std::string& text, const std::regex& pattern,
                        std::set<std::string>& names) {
    for (std::sregex_iterator match{text.begin(), text.end(), pattern}, end; match != end;
         ++match) {
        names.insert((*match)[1]);
    }
}

}  // namespace millrace::architecture
