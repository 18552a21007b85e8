// The four-part error and the translation of errno values.
#include "millrace/base/error.hpp"

#include <cerrno>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/status.hpp"

namespace millrace::base {
namespace {

using testing::HasSubstr;

TEST(Error, KeepsItsFourPartsAndItsCode) {
    const Error error{ErrorCode::permission, "open the device", "soft0", "denied",
                      "join the group"};
    EXPECT_EQ(error.code(), ErrorCode::permission);
    EXPECT_EQ(error.attempted(), "open the device");
    EXPECT_EQ(error.object(), "soft0");
    EXPECT_EQ(error.cause(), "denied");
    EXPECT_EQ(error.remedy(), "join the group");
}

TEST(Error, SaysAllFourPartsInOneLine) {
    const Error error{ErrorCode::permission, "open the device", "soft0", "denied",
                      "join the group"};
    const std::string line = error.what();
    EXPECT_THAT(line, HasSubstr("open the device"));
    EXPECT_THAT(line, HasSubstr("soft0"));
    EXPECT_THAT(line, HasSubstr("denied"));
    EXPECT_THAT(line, HasSubstr("join the group"));
    EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(Error, LeavesNoEmptyBracketsOrTrailingSeparatorWhenPartsAreMissing) {
    const Error error{ErrorCode::system, "sleep", "", "woken", ""};
    EXPECT_STREQ(error.what(), "cannot sleep: woken");
}

TEST(ErrorCode, HasADistinctNameForEachCode) {
    std::set<std::string_view> names;
    const int count = static_cast<int>(ErrorCode::verbs) + 1;
    for (int i = 0; i < count; ++i) names.insert(name_of(static_cast<ErrorCode>(i)));
    EXPECT_EQ(names.size(), static_cast<std::size_t>(count));
    EXPECT_FALSE(names.contains("unknown"));
    EXPECT_EQ(name_of(ErrorCode::peer_lost), "peer_lost");
}

TEST(Status, HasADistinctNameForEachOutcome) {
    std::set<std::string_view> names;
    const int count = static_cast<int>(Status::too_large) + 1;
    for (int i = 0; i < count; ++i) names.insert(name_of(static_cast<Status>(i)));
    EXPECT_EQ(names.size(), static_cast<std::size_t>(count));
    EXPECT_FALSE(names.contains("unknown"));
}

TEST(Errno, IsDescribedByTextAndSymbol) {
    EXPECT_EQ(describe_errno(ENOMEM), "Cannot allocate memory (ENOMEM)");
}

TEST(Errno, ThatDoesNotExistIsDescribedByItsNumber) {
    EXPECT_THAT(describe_errno(54321), HasSubstr("54321"));
}

TEST(Errno, BecomesTheCodeThatFits) {
    EXPECT_EQ(code_of_errno(ENOMEM), ErrorCode::resource_exhausted);
    EXPECT_EQ(code_of_errno(EMFILE), ErrorCode::resource_exhausted);
    EXPECT_EQ(code_of_errno(EPERM), ErrorCode::permission);
    EXPECT_EQ(code_of_errno(EACCES), ErrorCode::permission);
    EXPECT_EQ(code_of_errno(ENOENT), ErrorCode::not_found);
    EXPECT_EQ(code_of_errno(ECONNREFUSED), ErrorCode::refused);
    EXPECT_EQ(code_of_errno(ETIMEDOUT), ErrorCode::timed_out);
    EXPECT_EQ(code_of_errno(ECONNRESET), ErrorCode::peer_lost);
    EXPECT_EQ(code_of_errno(EINVAL), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of_errno(EOPNOTSUPP), ErrorCode::unsupported);
    EXPECT_EQ(code_of_errno(EIO), ErrorCode::system);
}

TEST(ThrowErrno, CarriesCodeAndCauseOfTheErrno) {
    try {
        throw_errno(ENOMEM, "register memory", "4096 bytes", "raise the limit");
        FAIL() << "it returned";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
        EXPECT_EQ(error.cause(), describe_errno(ENOMEM));
        EXPECT_EQ(error.attempted(), "register memory");
        EXPECT_EQ(error.object(), "4096 bytes");
        EXPECT_EQ(error.remedy(), "raise the limit");
    }
}

}  // namespace
}  // namespace millrace::base
