// What documents and comments name is there: pages, headings, and the files of the soft device.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
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

TEST(Documents, NameFilesOfThisTreeThatAreThere) {
    static const std::regex in_the_tree{
        R"(`((?:bench|examples|fuzz|include|models|scripts|src|studies|tests|tools|workload)/[A-Za-z0-9_./-]+)`)"};
    std::vector<std::string> missing;
    std::size_t found = 0;
    for (const fs::path& page : pages()) {
        if (page.parent_path().filename() == "decisions") continue;  // of their day
        std::set<std::string> names;
        add_matches(text_of(page), in_the_tree, names);
        for (const std::string& name : names) {
            ++found;
            if (!fs::exists(source_tree() / name))
                missing.push_back(page.filename().string() + ": " + name);
        }
    }
    EXPECT_THAT(missing, IsEmpty());
    EXPECT_GT(found, 100U);
}

TEST(Documents, AreAllLinkedTo) {
    static const std::regex link{R"(\]\(([^)\s:#]+))"};
    std::set<fs::path> linked;
    for (const fs::path& page : pages()) {
        std::set<std::string> targets;
        add_matches(text_of(page), link, targets);
        for (const std::string& target : targets) {
            linked.insert((page.parent_path() / target).lexically_normal());
        }
    }
    std::vector<std::string> alone;
    for (const fs::path& page : files_below("docs", ".md ")) {
        const fs::path relative = page.lexically_relative(source_tree());
        // Decisions are found by their folder.
        if (relative.parent_path().filename() == "decisions") continue;
        if (!linked.contains(page.lexically_normal())) alone.push_back(relative);
    }
    EXPECT_THAT(alone, IsEmpty());
    EXPECT_GT(linked.size(), 40U);
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
    for (const char* folder : {"src", "include", "tests", "tools", "bench", "studies", "workload",
                               "models", "scripts"}) {
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

/// Without blanks.
std::string unspaced(std::string text) {
    std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
    return text;
}

/// The examples at the head of a header, in pieces without blanks: where a line is left out, or a
/// "…" stands for something, another one begins. What a comment says beside one is no part of it.
std::vector<std::string> examples_of(const std::string& header) {
    constexpr std::string_view begin = "//     ";
    constexpr std::string_view rest = "…";
    std::istringstream lines{header.substr(0, header.find("#pragma once"))};
    std::vector<std::string> pieces;
    bool is_within = false;
    bool is_new = true;
    for (std::string line; std::getline(lines, line);) {
        // A drawing begins with fewer blanks.
        const bool is_indented = line.starts_with("//   ");
        is_within = is_indented && (is_within || (line.starts_with(begin) && line[7] != ' '));
        if (!is_within) {
            is_new = true;
            if (is_indented) is_within = false;
            continue;
        }
        std::string code = line.substr(begin.size());
        code = code.substr(0, code.find("  // "));
        for (;;) {
            const auto end = code.find(rest);
            if (is_new) pieces.emplace_back();
            pieces.back() += unspaced(code.substr(0, end));
            is_new = end != code.npos;
            if (!is_new) break;
            code = code.substr(end + rest.size());
        }
    }
    std::erase(pieces, "");
    return pieces;
}

TEST(Headers, OfMessagesHaveExamplesThatAreCompiled) {
    // Each below the name of its header, what is left out between them.
    const std::string compiled =
        text_of(source_tree() / "tests" / "message" / "header_examples_test.cpp");
    std::size_t examples = 0;
    for (const fs::path& file : files_below("include/millrace/message", ".hpp ")) {
        const std::vector<std::string> pieces = examples_of(text_of(file));
        const auto named = compiled.find("// " + file.filename().string() + "\n");
        if (pieces.empty()) {
            // It has no class or function but those of the library itself.
            const std::set<std::string> for_the_library{"held_bytes.hpp", "in_place.hpp"};
            EXPECT_TRUE(file.parent_path().filename() == "detail" ||
                        for_the_library.contains(file.filename().string()))
                << file;
            continue;
        }
        ++examples;
        ASSERT_NE(named, compiled.npos) << file;
        const std::string code = unspaced(compiled.substr(named));
        std::size_t at = 0;
        for (const std::string& piece : pieces) {
            const auto found = code.find(piece, at);
            ASSERT_NE(found, code.npos) << file << ": " << piece;
            at = found + piece.size();
        }
    }
    EXPECT_GT(examples, 12U);
}

}  // namespace
