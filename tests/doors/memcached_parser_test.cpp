// Requests of memcached's protocol, however they are cut; and words as memcached reads them.
#include "doors/memcached_parser.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "doors/memcached_words.hpp"

namespace millrace::kv {
namespace {

/// The words of each request, then its data in brackets; how many bytes were skipped; an error.
std::string said_in(const std::string& bytes, std::size_t step, bool is_known = true) {
    using State = MemcachedParser::State;
    using Data = MemcachedRequest::Data;
    MemcachedParser parser;
    parser.trust(is_known);
    MemcachedRequest request;
    std::string found;
    std::size_t skipped = 0;
    std::string come;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
        // Elsewhere each time, as a connection's memory is.
        come = std::string{come} + bytes.substr(at, step);
        while (!come.empty()) {
            const State state = parser.parse(come, request);
            if (state == State::failed) return found + std::string{parser.error()};
            if (state == State::more) {
                EXPECT_GT(parser.wanted(), come.size());
                break;
            }
            if (state == State::skipped) skipped += parser.size();
            if (state == State::ready) {
                for (const std::string_view word : request.words) found += std::string{word} + ' ';
                if (request.kind == Data::whole) found += '[' + std::string{request.data} + ']';
                if (request.kind == Data::wrong_end) found += "[wrong]";
                if (request.kind == Data::too_long) found += "[too long]";
                found += '\n';
            }
            come.erase(0, parser.size());
            parser.next();
        }
    }
    return skipped == 0 ? found : found + std::to_string(skipped);
}

TEST(MemcachedParser, FindsTheSameHoweverItIsCut) {
    const std::string bytes =
        "get a  b \r\n"
        "\n"
        "set k 0 0 5\r\nva\r\nl\r\n"
        "set k 0 0 5\r\nlonger\r\n"
        "cas k 0 0 0 7 noreply\n\r\n"
        "set k 0 0 x\r\n"
        "ms k 2 q\r\nab\r\n"
        "ms k -1\r\n"
        "set k 0 0 2000000\r\n" +
        std::string(2'000'000, 'v') + "\r\nmn\r\n";
    const std::string wanted =
        "get a b \n"
        "\n"
        "set k 0 0 5 [va\r\nl]\n"
        "set k 0 0 5 [wrong]\n"
        "\n"
        "cas k 0 0 0 7 noreply []\n"
        "set k 0 0 x \n"
        "ms k 2 q [ab]\n"
        "ms k -1 \n"
        "set k 0 0 2000000 [too long]\n"
        "mn \n"
        "2000002";
    for (const std::size_t step :
         {std::size_t{1}, std::size_t{7}, std::size_t{4096}, bytes.size()}) {
        EXPECT_EQ(said_in(bytes, step), wanted) << step;
    }
}

TEST(MemcachedParser, HasLinesAsLongAsTheyMayBe) {
    const std::string key(250, 'k');
    EXPECT_EQ(said_in("set " + key + " 0 0 1\r\nv\r\n", 10), "set " + key + " 0 0 1 [v]\n");
    // No data follow a line that is wrong.
    EXPECT_EQ(said_in("set k" + key + " 0 0 1\r\nv\r\n", 10), "set k" + key + " 0 0 1 \nv \n");
    for (const std::size_t step : {std::size_t{1}, std::size_t{5000}}) {
        // The longest has 2,048 bytes before its last.
        const std::string longest = "touch " + std::string(2041, 'k');
        EXPECT_EQ(said_in(longest + "\r\n", step), longest + " \n");
        EXPECT_EQ(said_in(longest + "k\r\n", step), "line is too long");
        EXPECT_EQ(said_in("touch " + std::string(2048, 'k') + "\r\n", step), "line is too long");
        EXPECT_EQ(said_in("get " + std::string(2048, 'k') + "\r\n", step),
                  "get " + std::string(2048, 'k') + " \n");
        EXPECT_EQ(said_in("get " + std::string(2048, 'k') + "\r\n", step, false),
                  "line is too long");
    }
    const std::string longest_get = "get " + std::string((std::size_t{1} << 20) - 5, 'k');
    EXPECT_EQ(said_in(longest_get + "\r\n", 4096), longest_get + " \n");
    EXPECT_EQ(said_in(longest_get + "k\r\n", 4096), "line is too long");
    EXPECT_EQ(said_in("\x80 get k\r\n", 1), "the binary protocol is not spoken here");
}

TEST(MemcachedParser, TakesLittleOfStrangers) {
    EXPECT_EQ(said_in("set x y z 3\r\na b\r\nget k\r\n", 1, false), "set x y z 3 [a b]\nget k \n");
    EXPECT_EQ(said_in("set x 0 0 2049\r\nabc", 1, false), "set x 0 0 2049 [too long]\n3");
    EXPECT_EQ(said_in("add k 0 0 1\r\nv\r\n", 1, false), "add k 0 0 1 \nv \n");
}

TEST(MemcachedWords, AreNumbersAsInC) {
    using memcached::parse_signed;
    using memcached::parse_unsigned;
    EXPECT_EQ(parse_unsigned("007"), 7U);
    EXPECT_EQ(parse_unsigned("+5 apples"), 5U);
    EXPECT_EQ(parse_unsigned("18446744073709551615"), ~std::uint64_t{0});
    for (const char* const word : {"", "x", "1x", "18446744073709551616", "-1", "1.5"}) {
        EXPECT_EQ(parse_unsigned(word), std::nullopt) << word;
    }
    EXPECT_EQ(parse_signed("-1"), -1);
    EXPECT_EQ(parse_signed("9223372036854775808"), std::nullopt);
    EXPECT_EQ(memcached::parse_flags("4294967296"), std::nullopt);
    // What a value may begin with, however long it is.
    EXPECT_EQ(parse_unsigned("5" + std::string(100, ' ')), 5U);
    EXPECT_EQ(parse_unsigned(std::string(100, '1')), std::nullopt);
}

TEST(MemcachedWords, AreKeysWithoutBlanks) {
    using memcached::is_key;
    EXPECT_TRUE(is_key("\xc3\xa4"));
    EXPECT_TRUE(is_key(std::string(250, 'k')));
    for (const std::string& word :
         {std::string{}, std::string(251, 'k'), std::string{"a b"}, std::string{"a\tb"},
          std::string("a\0b", 3), std::string{"\x7f"}}) {
        EXPECT_FALSE(is_key(word)) << testing::PrintToString(word);
    }
    memcached::DecodedKey key;
    ASSERT_TRUE(key.decode("AP8g"));
    EXPECT_EQ(key.get(), std::string("\0\xff ", 3));
    memcached::EncodedKey encoded;
    EXPECT_EQ(memcached::encode_key(key.get(), encoded), "AP8g");
    for (const char* const word : {"", "a", "ab", "%%%%", "ab=c"})
        EXPECT_FALSE(key.decode(word)) << word;
}

}  // namespace
}  // namespace millrace::kv
