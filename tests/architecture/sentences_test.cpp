// The house rule for sentences, in the comments of the public headers of floors 4 to 7: words that
// were used in another language's sense. A comment that one of them stands in can be said with a
// subject, a verb and the field's term.
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::architecture::source_tree;
using millrace::architecture::text_of;
using testing::IsEmpty;
using testing::SizeIs;

/// Each comment in one line, without code in backquotes: a comment goes on over lines that are
/// nothing else.
std::vector<std::string> comments_of(const std::string& text) {
    static const std::regex line{R"(([^\n]*)\n)"};
    static const std::regex comment{R"rx(^(\s*|.*\s)(///<|///|//)\s?(.*)$)rx"};
    static const std::regex code{"`[^`]*`"};
    std::vector<std::string> found;
    bool goes_on = false;
    for (std::sregex_iterator each{text.begin(), text.end(), line}, end; each != end; ++each) {
        const std::string one = (*each)[1];
        std::smatch match;
        if (!std::regex_match(one, match, comment)) {
            goes_on = false;
            continue;
        }
        const bool is_alone = match[1].str().find_first_not_of(' ') == std::string::npos;
        if (goes_on && is_alone) {
            found.back() += " " + match[3].str();
        } else {
            found.push_back(match[3]);
        }
        goes_on = is_alone;
    }
    for (std::string& each : found) each = std::regex_replace(each, code, "``");
    return found;
}

/// What is wrong with a comment; else nothing.
std::vector<std::string> faults_in(const std::string& comment) {
    static const std::vector<std::pair<const char*, std::regex>> rules = [] {
        std::vector<std::pair<const char*, std::regex>> made;
        for (
            const auto& [fault, words] : std::vector<std::pair<const char*, const char*>>{
                {"behind: say after",  // a word of a drawing, or of an idiom, may stay
                 R"((^|[^|l] |[^l]l )[Bb]ehind\b(?! +[|]|    ))"},
                {"beside: say while, or apart from", R"(\b[Bb]esides?\b)"},
                {"whoever: name it", R"(\b[Ww]hoever\b)"},
                {"who without a noun: name it",
                 R"((\b([Ff]or|of|from|to|by|at|with|but|after|before|where|while|than) who\b)|(^|[.;] )[Ww]ho [a-z]+s\b)"},
                {"is no X: say is not",
                 R"((^|[^e] |[^r]e )is no (?!longer\b|more\b|older\b|later\b))"},
                {"by store: say where values are stored", R"(\b[Bb]y store\b)"},
                {"The same of: name what", "^The same of\\b"},
                {"So, Such: say what", R"(^(So (?!many|few|much)|Such ))"}}) {
            made.emplace_back(fault, std::regex{words});
        }
        return made;
    }();
    std::vector<std::string> found;
    for (const auto& [fault, words] : rules) {
        if (std::regex_search(comment, words)) found.emplace_back(fault);
    }
    return found;
}

/// Headers of the floors 4 to 7.
std::vector<fs::path> public_headers() {
    std::vector<fs::path> found;
    for (const char* floor : {"end", "ring", "flow", "message", "stream", "rpc", "kv"}) {
        for (const auto& entry :
             fs::recursive_directory_iterator{source_tree() / "include" / "millrace" / floor}) {
            if (entry.path().extension() == ".hpp") found.push_back(entry.path());
        }
    }
    return found;
}

TEST(Sentences, OfPublicHeadersUseWordsAsEnglishDoes) {
    std::vector<std::string> faults;
    std::size_t comments = 0;
    for (const fs::path& header : public_headers()) {
        for (const std::string& comment : comments_of(text_of(header))) {
            ++comments;
            for (const std::string& fault : faults_in(comment)) {
                faults.push_back(header.filename().string() + ": " + fault + ": " + comment);
            }
        }
    }
    EXPECT_GT(comments, 2000U);  // they were found
    EXPECT_THAT(faults, IsEmpty());
}

TEST(Sentences, HaveNoNamesThatSayNothing) {
    static const std::regex name{R"(\b\w+_(otherwise|well)\b|\b(look_aside|disbelieve|hushed)\b)"};
    std::vector<std::string> found;
    for (const char* root : {"src", "include/millrace"}) {
        for (const auto& entry : fs::recursive_directory_iterator{source_tree() / root}) {
            const std::string extension = entry.path().extension();
            if (extension != ".cpp" && extension != ".hpp") continue;
            const std::string text = text_of(entry.path());
            std::smatch match;
            if (std::regex_search(text, match, name)) {
                found.push_back(entry.path().filename().string() + ": " + match[0].str());
            }
        }
    }
    EXPECT_THAT(found, IsEmpty());
}

TEST(SentenceCheck, ReportsWordsOfAnotherLanguage) {
    for (const char* wrong :
         {"A fence behind the store.", "Beside it, nothing.", "Whoever sleeps is rung for.",
          "For who looks at many.", "Who sleeps is rung for.", "That is no frame.",
          "Laid by store.", "The same of a client.", "So that it ends."}) {
        EXPECT_THAT(faults_in(wrong), SizeIs(1)) << wrong;
    }
}

TEST(SentenceCheck, PassesTheSameWordsInTheirPlace) {
    for (const char* right :
         {"A producer that does not fall behind.", "There is no room.", "It is no longer there.",
          "So many bytes are kept.", "The same, waiting for room.", "A client who asks.",
          "outcome | behind | limit", "Tells who has come."}) {
        EXPECT_THAT(faults_in(right), IsEmpty()) << right;
    }
}

TEST(SentenceCheck, ReadsACommentOverItsLines) {
    EXPECT_THAT(comments_of("int a;  ///< one\n/// two `behind`\n/// three\nint b;\n// four\n"),
                testing::ElementsAre("one", "two `` three", "four"));
}

}  // namespace
