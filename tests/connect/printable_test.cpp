// Quoting what comes from outside.
#include "printable.hpp"

#include <gtest/gtest.h>

namespace millrace::connect {
namespace {

TEST(Printable, KeepsControlCharactersFromTheTerminal) {
    EXPECT_EQ(printable("plain text", 100), "plain text");
    EXPECT_EQ(printable("\x1b[2J\n", 100), "\\x1b[2J\\x0a");
    EXPECT_EQ(printable(std::string_view{"a\0b", 3}, 100), "a\\x00b");
}

TEST(Printable, LeavesWhatItEscapedAsItIs) {
    const std::string once = printable("\n\\ and \x7f", 100);
    EXPECT_EQ(once, "\\x0a\\ and \\x7f");
    EXPECT_EQ(printable(once, 100), once) << "a peer escapes again what we escaped";
}

TEST(Printable, CutsBetweenCharactersNotWithinAnEscape) {
    EXPECT_EQ(printable("abcdef", 3), "abc");
    EXPECT_EQ(printable("ab\n", 4), "ab");
}

}  // namespace
}  // namespace millrace::connect
