// The soft device, src/soft, on its way to rooms with an order: its files include each other in
// circles, and none of what is wrong with that may grow. Whoever makes it smaller lowers the
// number.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

/// What there is at most.
constexpr std::size_t largest_circle = 3;
constexpr std::ptrdiff_t longest_file = 471;
constexpr std::ptrdiff_t all_lines = 22615;

/// Text by name of file.
using Files = std::map<std::string, std::string>;
/// Whom each module includes.
using Graph = std::map<std::string, std::set<std::string>>;

/// A header and its source are one module. So is a source without a header of its name and the
/// header whose name begins its own: queue_pair_states.cpp belongs to queue_pair.
std::string module_of(const std::string& file, const Files& files) {
    std::string module = fs::path{file}.stem();
    for (auto name = module;; name.resize(name.rfind('_'))) {
        if (files.contains(name + ".hpp")) return name;
        if (name.find('_') == std::string::npos) return module;
    }
}

Graph graph_of(const Files& files) {
    static const std::regex include{R"rx((?:^|\n)[ \t]*#[ \t]*include[ \t]*"([^"]+)")rx"};
    Graph graph;
    for (const auto& [file, text] : files) {
        const std::string module = module_of(file, files);
        auto& used = graph[module];
        std::set<std::string> headers;
        millrace::architecture::add_matches(text, include, headers);
        for (const auto& header : headers) {
            if (files.contains(header)) used.insert(module_of(header, files));
        }
        used.erase(module);
    }
    return graph;
}

/// All that can be reached from a module.
std::set<std::string> reach_of(const std::string& module, const Graph& graph) {
    std::set<std::string> reached;
    std::vector<std::string> next{module};
    while (!next.empty()) {
        const auto from = next.back();
        next.pop_back();
        for (const auto& used : graph.at(from)) {
            if (reached.insert(used).second) next.push_back(used);
        }
    }
    return reached;
}

/// The largest set of modules of which each reaches each; empty: there is no circle.
std::vector<std::string> circle_in(const Graph& graph) {
    std::map<std::string, std::set<std::string>> reach;
    for (const auto& [module, used] : graph) reach[module] = reach_of(module, graph);
    std::vector<std::string> largest;
    for (const auto& [module, reached] : reach) {
        std::vector<std::string> circle;
        for (const auto& other : reached) {
            if (reach[other].contains(module)) circle.push_back(other);
        }
        if (circle.size() > largest.size()) largest = circle;
    }
    return largest;
}

Files files_of_soft() {
    Files files;
    for (const auto& entry :
         fs::directory_iterator{millrace::architecture::source_tree() / "src" / "soft"}) {
        files[entry.path().filename()] = millrace::architecture::text_of(entry.path());
    }
    return files;
}

std::ptrdiff_t lines_of(const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
}

TEST(SoftRooms, HaveNoLargerCircleOfModules) {
    const auto circle = circle_in(graph_of(files_of_soft()));
    EXPECT_LE(circle.size(), largest_circle) << testing::PrintToString(circle);
}

TEST(SoftRooms, HaveNoLongerFileAndNoMoreLines) {
    std::ptrdiff_t all = 0;
    for (const auto& [file, text] : files_of_soft()) {
        EXPECT_LE(lines_of(text), longest_file) << file;
        all += lines_of(text);
    }
    EXPECT_LE(all, all_lines);
    EXPECT_GT(all, all_lines / 2);  // the folder was found
}

TEST(SoftRoomsCheck, FindsACircleThroughASourceWithoutAHeader) {
    const Files files{{"a.hpp", ""},
                      {"a_more.cpp", "#include \"a.hpp\"\n#include \"b.hpp\"\n"},
                      {"b.hpp", "#include <vector>\n#include \"a.hpp\"\n"},
                      {"c.hpp", "#include \"a.hpp\"\n"}};
    EXPECT_THAT(circle_in(graph_of(files)), ElementsAre("a", "b"));
}

TEST(SoftRoomsCheck, FindsNoCircleWhereThereIsNone) {
    const Files files{{"a.hpp", ""},
                      {"a.cpp", "#include \"a.hpp\"\n"},
                      {"ab.hpp", "#include \"a.hpp\"\n// #include \"c.hpp\"\n"},
                      {"c.cpp", "#include \"ab.hpp\"\n"}};
    EXPECT_THAT(circle_in(graph_of(files)), IsEmpty());
}

}  // namespace
