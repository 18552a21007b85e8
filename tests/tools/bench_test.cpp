// `millrace bench` as a user runs it: exit status and output, never how fast.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "support/temporary_folder.hpp"

namespace {

/// Exit status, and what it said on both outputs.
std::pair<int, std::string> run(const std::string& arguments) {
    std::FILE* pipe = popen((MILLRACE_COMMAND " bench " + arguments + " 2>&1").c_str(), "r");
    if (pipe == nullptr) return {-1, "popen failed"};
    std::string text;
    std::array<char, 4096> part;
    while (const auto got = std::fread(part.data(), 1, part.size(), pipe)) {
        text.append(part.data(), got);
    }
    const int status = pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST(Bench, SaysThatNoBarHasSuchAName) {
    const auto [status, text] = run("bars --name 'no such bar'");
    EXPECT_EQ(status, 2) << text;
    EXPECT_NE(text.find("no bar is registered whose name contains no such bar"), std::string::npos)
        << text;
}

TEST(Bench, RefusesAnUnknownGroup) {
    const auto [status, text] = run("bars --only nonsense");
    EXPECT_NE(status, 0);
    EXPECT_NE(text.find("foundation"), std::string::npos) << "the groups there are: " << text;
}

TEST(Bench, MeasuresABarAndSaysWhetherItHolds) {
    const auto [status, text] = run("bars --only foundation --name 'WRITE ping-pong' --rounds 1");
    EXPECT_TRUE(status == 0 || status == 1) << text;
    EXPECT_EQ(text.find("not measured"), std::string::npos) << text;
    EXPECT_NE(text.find(status == 0 ? "1 of 1 bars hold" : "0 of 1 bars hold"), std::string::npos)
        << text;
}

TEST(Bench, SaysThatNoNetworkIsMeasured) {
    for (const char* const what : {"bars --only foundation --name 'WRITE ping-pong' --rounds 1",
                                   "limits --brief --rounds 1 --only 'one line both ways'",
                                   "flow --figure 6.3 --mode fast --quick"}) {
        EXPECT_NE(run(what).second.find("no network is measured"), std::string::npos) << what;
    }
}

TEST(Bench, TellsEachPointWhenItIsMeasured) {
    const auto [status, text] = run("flow --figure 6.3 --mode fast --quick");
    EXPECT_EQ(status, 0) << text;
    const auto point = text.find(", 4096 B, fast: ");
    EXPECT_NE(point, std::string::npos) << text;
    EXPECT_LT(point, text.find("Figure 6.3")) << text;
}

TEST(Bench, SaysBeforeItMeasuresThatPlotsCannotBeMade) {
    const millrace::test::TemporaryFolder folder;
    std::ofstream{folder.path("matplotlib.py")} << "raise ImportError\n";
    setenv("PYTHONPATH", folder.path().c_str(), 1);
    const auto [status, text] =
        run("flow --figure 6.3 --mode fast --quick --plots '" + folder.path("plots") + "'");
    unsetenv("PYTHONPATH");
    EXPECT_EQ(status, 0) << text;
    EXPECT_EQ(text.find("millrace bench flow: there will be no plots"), 0U) << text;
    EXPECT_NE(folder.content("plots/flow.json"), "");
    // Nor the figures.
    const auto [refused, told] =
        run("flow --figure 6.3 --mode fast --quick --plots /dev/null/plots");
    EXPECT_EQ(refused, 1);
    EXPECT_NE(told.find("make a folder for plots"), std::string::npos) << told;
    EXPECT_EQ(told.find("Figure 6.3"), std::string::npos) << told;
}

TEST(Bench, WritesJsonInPlaceOfLines) {
    const auto [status, text] = run("limits --brief --rounds 1 --only 'one line both ways' --json");
    EXPECT_EQ(status, 0) << text;
    ASSERT_FALSE(text.empty());
    EXPECT_EQ(text.front(), '{') << text;
    EXPECT_NE(text.find("\"measurements\""), std::string::npos) << text;
}

TEST(Bench, RepeatsAFigureQuicklyAndWritesAllOfItAsJson) {
    const std::string path = testing::TempDir() + "flow-" + std::to_string(getpid()) + ".json";
    const auto [status, text] = run("flow --figure 6.3 --mode fast --quick --json " + path);
    EXPECT_EQ(status, 0) << text;
    std::ifstream file{path};
    const auto document = nlohmann::json::parse(file, nullptr, false);
    std::remove(path.c_str());
    ASSERT_FALSE(document.is_discarded()) << text;
    EXPECT_NE(text.find("Figure 6.3"), std::string::npos) << text;
    ASSERT_EQ(document["figures"].size(), 1U);
    EXPECT_EQ(document["figures"][0]["id"], "6.3");
    for (const auto& series : document["figures"][0]["series"]) {
        EXPECT_EQ(series["points"].size(), 3U) << series;
    }
    EXPECT_EQ(document["points"].size(), 6U) << "two contestants, three sizes";
    for (const auto& point : document["points"]) EXPECT_EQ(point["runs"].size(), 1U) << point;
    EXPECT_FALSE(document["findings"].empty());
    for (const auto& finding : document["findings"]) {
        EXPECT_TRUE(finding["verdict"] == "agrees" || finding["verdict"] == "differs") << finding;
    }
}

TEST(Bench, RefusesFiguresAndModesThatDoNotExist) {
    const auto [status, text] = run("flow --figure 6.13");
    EXPECT_NE(status, 0);
    EXPECT_NE(text.find("6.1 to 6.12"), std::string::npos) << text;
    EXPECT_NE(run("flow --table 6.1 --mode wireless").first, 0);
}

}  // namespace
