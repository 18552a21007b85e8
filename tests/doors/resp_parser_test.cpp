// Requests of Redis' protocol, however they are cut; and words as Redis reads them.
#include "doors/resp_parser.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "doors/text.hpp"

namespace millrace::kv {
namespace {

using State = RespParser::State;
using Requests = std::vector<std::vector<std::string>>;

/// What a parser finds that is given `step` bytes more at a time; the error it ends with last.
Requests found_in(const std::string& bytes, std::size_t step, bool is_known = true) {
    RespParser parser;
    parser.trust(is_known);
    Requests requests;
    std::string come;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
        // Elsewhere each time, as a connection's memory is.
        come = std::string{come.substr(begin)} + bytes.substr(at, step);
        begin = 0;
        for (;;) {
            const std::string_view rest = std::string_view{come}.substr(begin);
            const State state = parser.parse(rest);
            if (state == State::failed) {
                requests.push_back({parser.error()});
                return requests;
            }
            if (state == State::more) {
                EXPECT_GT(parser.wanted(), rest.size());
                break;
            }
            std::vector<std::string_view> words;
            parser.arguments(rest, words);
            requests.emplace_back(words.begin(), words.end());
            begin += parser.size();
            parser.next();
            if (begin == come.size()) break;
        }
    }
    return requests;
}

TEST(RespParser, FindsTheSameHoweverItIsCut) {
    const std::string bytes =
        "*2\r\n$3\r\nGET\r\n$4\r\nna\r\n\r\n"
        "ping\r\n"
        "*0\r\n"
        "\r\n"
        "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$5\r\n*1\r\n$\r\n"
        "set a \"b \\x41\\\"\" 'c\\'d'\n"
        "*-7\r\nquit\r\n";
    const Requests wanted = {{"GET", "na\r\n"},
                             {"ping"},
                             {},
                             {},
                             {"SET", "", "*1\r\n$"},
                             {"set", "a", "b A\"", "c'd"},
                             {},
                             {"quit"}};
    for (std::size_t step = 1; step <= bytes.size(); ++step) {
        EXPECT_EQ(found_in(bytes, step), wanted) << step;
    }
}

TEST(RespParser, SaysWhyWhatComesIsNoRequest) {
    const std::string line(70'000, 'x');
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"*x\r\n", "invalid multibulk length"},
        {"*2147483648\r\n", "invalid multibulk length"},
        {'*' + line, "too big mbulk count string"},
        {"*1\r\n" + ('$' + line), "too big bulk count string"},
        {"*1\r\n:1\r\n", "expected '$', got ':'"},
        {"*1\r\n$-1\r\n", "invalid bulk length"},
        {"*1\r\n$1048577\r\n", "invalid bulk length"},
        {"*1\r\n$18446744073709551615\r\n", "invalid bulk length"},
        {"a \"b\r\n", "unbalanced quotes in request"},
        {"a 'b'c\r\n", "unbalanced quotes in request"},
        {line, "too big inline request"}};
    for (const auto& [bytes, why] : cases) {
        const Requests wanted = {{"Protocol error: " + why}};
        EXPECT_EQ(found_in(bytes, bytes.size()), wanted);
        EXPECT_EQ(found_in(bytes, bytes.size() < 1000 ? 1 : 4096), wanted);
    }
}

TEST(RespParser, TakesOnlyShortRequestsOfStrangers) {
    EXPECT_EQ(found_in("*11\r\n", 1, false),
              Requests{{"Protocol error: unauthenticated multibulk length"}});
    EXPECT_EQ(found_in("*1\r\n$16385\r\n", 1, false),
              Requests{{"Protocol error: unauthenticated bulk length"}});
    EXPECT_EQ(found_in("*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n", 3, false), (Requests{{"AUTH", "x"}}));
}

TEST(RespParser, KeepsNoMemoryOfARequestOfManyWords) {
    std::string bytes = "*100000\r\n";
    for (int i = 0; i < 100'000; ++i) bytes += "$0\r\n\r\n";
    RespParser parser;
    ASSERT_EQ(parser.parse(bytes), State::ready);
    EXPECT_GT(parser.held(), std::size_t{100'000});
    parser.next();
    EXPECT_LT(parser.held(), std::size_t{20'000});
}

TEST(RespText, MatchesPatternsAsRedisDoes) {
    const std::pair<const char*, const char*> matching[] = {{"*", ""},
                                                            {"", ""},
                                                            {"h?llo", "hello"},
                                                            {"h*llo", "heeeello"},
                                                            {"h[ae]llo", "hallo"},
                                                            {"h[^e]llo", "hallo"},
                                                            {"h[a-c]llo", "hbllo"},
                                                            {"h[c-a]llo", "hbllo"},
                                                            {"\\*", "*"},
                                                            {"a\\", "a\\"},
                                                            {"[\\]]", "]"},
                                                            {"[a", "a"},
                                                            {"*a*b", "xaxbxb"},
                                                            {"a**b", "ab"},
                                                            {"[a-]", "_"}};
    for (const auto& [pattern, text] : matching)
        EXPECT_TRUE(matches_glob(pattern, text)) << pattern;
    const std::pair<const char*, const char*> others[] = {
        {"", "a"},    {"?", ""},   {"h?llo", "hllo"}, {"h[^e]llo", "hello"}, {"*a*b", "xbxa"},
        {"\\*", "a"}, {"[]", "]"}, {"abc", "ab"},     {"ab", "abc"}};
    for (const auto& [pattern, text] : others) EXPECT_FALSE(matches_glob(pattern, text)) << pattern;
}

TEST(RespText, DoesNotTakeLongForAPatternOfManyStars) {
    std::string pattern;
    for (int i = 0; i < 30; ++i) pattern += "a*";
    EXPECT_FALSE(matches_glob(pattern + 'b', std::string(20'000, 'a')));
}

TEST(RespText, ReadsIntegersThatAreWrittenAsRedisWritesThem) {
    EXPECT_EQ(parse_integer("0"), 0);
    EXPECT_EQ(parse_integer("-9223372036854775808"), INT64_MIN);
    EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
    for (const char* const no :
         {"", "-", "-0", "00", "01", "+1", " 1", "1 ", "1a", "0x1", "9223372036854775808"}) {
        EXPECT_EQ(parse_integer(no), std::nullopt) << no;
    }
}

}  // namespace
}  // namespace millrace::kv
