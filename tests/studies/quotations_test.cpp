// What the code and its pages say that a work prints is what studies/works/quotations.md has.
#include "studies/works/quotations.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "studies/flow/thesis.hpp"
#include "studies/kv/run_kv.hpp"
#include "studies/message/run_message.hpp"
#include "studies/rpc/run_rpc.hpp"
#include "studies/stream/run_stream.hpp"
#include "studies/verbs/run_verbs.hpp"
#include "studies/ycsb/work_001_figures.hpp"

namespace millrace::bench {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

const fs::path source_tree{MILLRACE_SOURCE_DIR};

std::string text_of(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream{file}.rdbuf();
    return text.str();
}

TEST(Quotations, HaveAWorkASectionAUnitAndANameOfTheirOwn) {
    std::set<std::string> names;
    std::set<std::string_view> works;
    for (const Quotation& one : all_quotations()) {
        EXPECT_TRUE(names.insert(one.name).second) << one.name << " comes twice";
        works.insert(one.work());
        EXPECT_FALSE(one.section.empty() || one.where.empty() || one.says.empty() ||
                     one.unit.empty() || one.values.empty())
            << one.name;
    }
    EXPECT_THAT(works, ElementsAre("000", "001", "002", "003", "004"));
}

TEST(Quotations, AreAskedByName) {
    EXPECT_EQ(quoted("001.lookup.unix"), 8.3);
    EXPECT_EQ(quoted("000.mover.40g", 4096), 39262);
    EXPECT_DOUBLE_EQ(quoted_gain("001.placement"), 1.4);
    EXPECT_THROW((void)quoted("001.lookup"), base::Error);
    EXPECT_THROW((void)quoted("001.load.mean"), base::Error) << "it has six";
    EXPECT_THROW((void)quoted("001.load.mean", 7), base::Error);
}

TEST(Quotations, OfTablesGiveWhatIsReckonedOfThem) {
    double least = 1e9;
    double most = 0;
    for (std::size_t bytes = 4; bytes <= 1024; bytes *= 2) {
        const double ratio = quoted("000.batching.10g", static_cast<double>(bytes)) /
                             quoted("000.basic.10g", static_cast<double>(bytes));
        least = std::min(least, ratio);
        most = std::max(most, ratio);
    }
    EXPECT_NEAR(least, quoted("000.batching_gain_least"), 0.005);
    EXPECT_NEAR(most, quoted("000.batching_gain_most"), 0.005);
    EXPECT_NEAR(quoted("002.uc.blocking.median", 5) / quoted("002.uc.median", 5),
                quoted("002.blocking_to_polling"), 0.005);
    EXPECT_NEAR(quoted("002.uc.p99", 60) / quoted("002.uc.blocking.p99", 60),
                quoted("002.polling_to_blocking"), 0.005);
}

TEST(Numbers, AreThoseThatStandAlone) {
    EXPECT_THAT(numbers_in("2.75 to 4.67 times, 1,296 us; 5/6"),
                ElementsAre("2.75", "4.67", "1,296", "5", "6"));
    EXPECT_THAT(numbers_in("Push-2 of 6.4.1 in x86, 4.4a, the 99th"), IsEmpty());
    EXPECT_THAT(numbers_in("up to 4."), ElementsAre("4"));
}

TEST(Numbers, AreQuotedIfTheyAreTheWorksAsFarAsTheyAreWritten) {
    EXPECT_TRUE(is_quoted("002", "79")) << "79.05 %";
    EXPECT_TRUE(is_quoted("002", "79.05"));
    EXPECT_TRUE(is_quoted("002", "79.1"));
    EXPECT_FALSE(is_quoted("002", "79.2"));
    EXPECT_FALSE(is_quoted("000", "79")) << "another work's";
    EXPECT_TRUE(is_quoted("002", "1,296"));
    EXPECT_TRUE(is_quoted("000", "16384")) << "a size of a table";
}

/// What a text says in another's name, but that the work does not print.
std::vector<std::string> not_quoted(std::string_view work, const std::string& text) {
    static const std::regex reference{R"((sections?|figures?|tables?|chapters?) [\d.]+[a-c]?)"};
    std::vector<std::string> found;
    for (const std::string& number : numbers_in(std::regex_replace(text, reference, " "))) {
        if (!is_quoted(work, number)) found.push_back(number + " in: " + text);
    }
    return found;
}

void expect_quoted_claims(std::string_view work, const std::vector<StudyFinding>& findings) {
    for (const StudyFinding& one : findings) {
        if (!one.claim.starts_with("(beyond the work)")) {
            EXPECT_THAT(not_quoted(work, one.claim), IsEmpty());
        }
    }
}
TEST(Quotations, HaveEveryNumberOfWhatFindingsClaim) {
    for (const Finding& one : all_findings()) {
        EXPECT_THAT(not_quoted("000", std::string{one.claim}), IsEmpty());
    }
    expect_quoted_claims("001", verbs_study().findings);
    expect_quoted_claims("001", message_study().findings);
    expect_quoted_claims("001", work_001_ycsb_findings());
    expect_quoted_claims("002", kv_study({}).findings);
    expect_quoted_claims("003", stream_study().findings);
    expect_quoted_claims("004", rpc_study().findings);
}

/// The comments of a source, in one line; where code is between two of them, a ";".
std::string comments_of(const std::string& source) {
    std::istringstream lines{source};
    std::string all;
    for (std::string line; std::getline(lines, line);) {
        const auto begin = line.find("//");
        const auto code = line.find_first_not_of(' ');
        if (begin == line.npos || code != begin) all += "; ";
        if (begin == line.npos) continue;
        line.erase(0, line.find_first_not_of("/<", begin));
        all += line;
        if (code != begin) all += "; ";
    }
    return all;
}
/// A page in one line.
std::string page_of(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

/// Where a text says that the work has a number: "the work had 90", "(the work: 4.67)".
std::vector<std::string> sayings_of(const std::string& text) {
    static const std::regex saying{
        R"(([Ww]hat )?\b[Tt]he work(?:'s \w+)?(?::| (?:had|has|prints|printed|says|said|measured|found|finds|made|gives|gave|reached|ran)\b)(?:[^.;:)|]|\.\d)*)"};
    std::vector<std::string> found;
    for (std::sregex_iterator match{text.begin(), text.end(), saying}, end; match != end; ++match) {
        if ((*match)[1].length() == 0) found.push_back(match->str());
    }
    return found;
}

TEST(Sayings, AreFound) {
    EXPECT_THAT(sayings_of("8 times (the work: 2.75 to 4.67), and what the work says holds in 3. "
                           "The work had 90 of them; 4."),
                ElementsAre("the work: 2.75 to 4.67", "The work had 90 of them"));
    EXPECT_THAT(sayings_of(comments_of("int runs = 3;  ///< the work made 10\n"
                                       "double limit = 0.3;\n"
                                       "/// The work had 90, and\n"
                                       "/// responders on 3 hosts.\n")),
                ElementsAre("the work made 10", "The work had 90, and responders on 3 hosts"));
}

TEST(Quotations, HaveEveryNumberThatCommentsAndPagesSayOfAWork) {
    const std::map<std::string, std::string> works{
        {"flow", "000"}, {"verbs", "001"},  {"message", "001"}, {"ycsb", "001"},
        {"kv", "002"},   {"stream", "003"}, {"rpc", "004"}};
    std::size_t sayings = 0;
    const auto check = [&](const std::string& work, const std::string& text, const fs::path& file) {
        for (const std::string& one : sayings_of(text)) {
            ++sayings;
            EXPECT_THAT(not_quoted(work, one), IsEmpty()) << file;
        }
    };
    for (const auto& [folder, work] : works) {
        for (const auto& entry : fs::directory_iterator{source_tree / "studies" / folder}) {
            check(work, comments_of(text_of(entry.path())), entry.path());
        }
    }
    for (const auto& entry : fs::directory_iterator{source_tree / "docs" / "performance"}) {
        const std::string name = entry.path().filename();
        if (!name.starts_with("work-")) continue;
        check(name.substr(5, 3), page_of(text_of(entry.path())), entry.path());
    }
    EXPECT_GT(sayings, 10U);
}

TEST(Quotations, AreThereUnderEachNameThatTheCodeAsksFor) {
    static const std::regex name{R"rx("(00[0-4]\.[a-z0-9_.]+)")rx"};
    std::set<std::string> asked;
    for (const auto& entry : fs::recursive_directory_iterator{source_tree / "studies"}) {
        const std::string text = text_of(entry.path());
        for (std::sregex_iterator match{text.begin(), text.end(), name}, end; match != end;
             ++match) {
            asked.insert((*match)[1]);
        }
    }
    for (const std::string& one : asked) EXPECT_NO_THROW((void)quotation(one)) << one;
    EXPECT_GT(asked.size(), 15U);
}

}  // namespace
}  // namespace millrace::bench
