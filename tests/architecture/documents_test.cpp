// What documents and comments name is there: pages, headings, and the files of the soft device.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::architecture::add_matches;
using millrace::architecture::source_tree;
using millrace::architecture::text_of;
using testing::IsEmpty;

std::vector<fs::path> files_below(const fs::path& folder, const std::string& extensions) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator{source_tree() / folder}) {
        const std::string extension = entry.path().extension();
        if (entry.is_regular_file() && !extension.empty() &&
            extensions.find(extension + ' ') != std::string::npos) {
            files.push_back(entry.path());
        }
    }
    return files;
}

std::vector<fs::path> pages() {
    auto all = files_below("docs", ".md ");
    all.push_back(source_tree() / "README.md");
    all.push_back(source_tree() / "CONTRIBUTING.md");
    return all;
}

/// As it is linked to.
std::string anchor_of(std::string_view heading) {
    std::string anchor;
    for (const char c : heading) {
        if (c == ' ') {
            anchor += '-';
        } else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_') {
            anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
    }
    return anchor;
}

std::set<std::string> anchors_in(const std::string& page) {
    static const std::regex heading{R"((?:^|\n)#+ ([^\n]*))"};
    std::set<std::string> headings;
    add_matches(page, heading, headings);
    std::set<std::string> anchors;
    std::transform(headings.begin(), headings.end(), std::inserter(anchors, anchors.end()),
                   anchor_of);
    return anchors;
}

TEST(Documents, LinkToPagesAndHeadingsThatAreThere) {
    static const std::regex link{R"(\]\(([^)\s:]+)\))"};
    std::vector<std::string> missing;
    for (const fs::path& page : pages()) {
        std::set<std::string> targets;
        const std::string text = text_of(page);
        add_matches(text, link, targets);
        for (const std::string& target : targets) {
            const auto hash = target.find('#');
            const std::string name = target.substr(0, hash);
            const fs::path file = name.empty() ? page : page.parent_path() / name;
            const bool found =
                fs::exists(file) && (hash == target.npos ||
                                     anchors_in(text_of(file)).contains(target.substr(hash + 1)));
            if (!found) missing.push_back(page.filename().string() + " -> " + target);
        }
    }
    EXPECT_THAT(missing, IsEmpty());
}

TEST(Documents, OfTheSoftDeviceAreAllInItsIndex) {
    const std::string index = text_of(source_tree() / "docs" / "soft-device.md");
    for (const auto& page : fs::directory_iterator{source_tree() / "docs" / "soft"}) {
        EXPECT_NE(index.find("(soft/" + page.path().filename().string() + ")"), index.npos)
            << page.path();
    }
}

TEST(Documents, AndSourcesNamePagesThatAreThere) {
    static const std::regex named{R"(\b(docs/[a-z0-9/-]+\.md))"};
    std::set<std::string> names;
    for (const char* folder : {"src", "include", "tests", "tools", "models", "scripts"}) {
        for (const fs::path& file : files_below(folder, ".cpp .hpp .txt .list .pml ")) {
            add_matches(text_of(file), named, names);
        }
    }
    for (const std::string& name : names) EXPECT_TRUE(fs::exists(source_tree() / name)) << name;
    EXPECT_GT(names.size(), 10U);  // they were found
}

TEST(Documents, NameFilesOfTheSoftDeviceThatAreThere) {
    static const std::regex in_a_room{R"(`(?:src/soft/)?([a-z_]+/[a-z_]+\.[ch]pp)`)"};
    std::set<std::string> names;
    for (const fs::path& page : files_below("docs/soft", ".md ")) {
        add_matches(text_of(page), in_a_room, names);
    }
    const std::string architecture = text_of(source_tree() / "docs" / "architecture.md");
    const auto begin = architecture.find("### Where something new goes");
    ASSERT_NE(begin, architecture.npos);
    add_matches(architecture.substr(begin, architecture.find("\n#", begin + 1) - begin), in_a_room,
                names);
    for (const std::string& name : names) {
        const bool found = fs::exists(source_tree() / "src" / "soft" / name) ||
                           fs::exists(source_tree() / "include" / "millrace" / name) ||
                           fs::exists(source_tree() / "include" / name);
        EXPECT_TRUE(found) << name;
    }
    EXPECT_GT(names.size(), 10U);
}

}  // namespace
