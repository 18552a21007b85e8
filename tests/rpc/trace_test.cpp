// The text form of a trace, as other systems write it in the header traceparent.
#include <cstdint>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "millrace/rpc/trace.hpp"

namespace millrace::rpc {
namespace {

// The specification's own example.
constexpr std::string_view example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(Traceparent, IsReadAndWrittenAsTheSpecificationSays) {
    const auto trace = parse_traceparent(example);
    ASSERT_TRUE(trace.has_value());
    EXPECT_EQ(trace->trace_id[0], std::byte{0x4b});
    EXPECT_EQ(trace->trace_id[15], std::byte{0x36});
    EXPECT_EQ(trace->parent_id[0], std::byte{0x00});
    EXPECT_EQ(trace->parent_id[7], std::byte{0xb7});
    EXPECT_EQ(trace->flags, 1);
    EXPECT_TRUE(trace->is_sampled());
    EXPECT_EQ(to_traceparent(*trace), example);
    // Flags that level 1 does not name are carried on.
    std::string other{example};
    other.replace(53, 2, "fe");
    const auto flagged = parse_traceparent(other);
    ASSERT_TRUE(flagged.has_value());
    EXPECT_EQ(flagged->flags, 0xfe);
    EXPECT_FALSE(flagged->is_sampled());
    EXPECT_EQ(to_traceparent(*flagged), other);
}

TEST(Traceparent, OfALaterVersionIsReadAsFarAsItIsKnown) {
    std::string later{example};
    later.replace(0, 2, "cc");
    EXPECT_EQ(parse_traceparent(later), parse_traceparent(example));
    EXPECT_EQ(parse_traceparent(later + "-what-the-future-will-be-like"),
              parse_traceparent(example));
    EXPECT_EQ(parse_traceparent(later + ".what"), std::nullopt);
    EXPECT_EQ(parse_traceparent(later + "0"), std::nullopt);
}

TEST(Traceparent, OfAnotherFormIsNone) {
    const auto with = [](std::size_t at, std::string_view in_place) {
        return std::string{example}.replace(at, in_place.size(), in_place);
    };
    EXPECT_EQ(parse_traceparent(""), std::nullopt);
    EXPECT_EQ(parse_traceparent(std::string{example} + "-00"), std::nullopt) << "of version 00";
    EXPECT_EQ(parse_traceparent(std::string{example} + " "), std::nullopt);
    EXPECT_EQ(parse_traceparent(with(0, "ff")), std::nullopt) << "which is no version";
    EXPECT_EQ(parse_traceparent(with(0, "0g")), std::nullopt);
    EXPECT_EQ(parse_traceparent(with(3, "4B")), std::nullopt) << "upper case";
    EXPECT_EQ(parse_traceparent(with(3, std::string(32, '0'))), std::nullopt);
    EXPECT_EQ(parse_traceparent(with(36, std::string(16, '0'))), std::nullopt);
    for (const std::size_t dash : {2U, 35U, 52U}) {
        EXPECT_EQ(parse_traceparent(with(dash, "_")), std::nullopt) << dash;
    }
    for (std::size_t length = 0; length < example.size(); ++length) {
        EXPECT_EQ(parse_traceparent(example.substr(0, length)), std::nullopt) << length;
    }
    for (std::size_t at = 0; at < example.size(); ++at) {
        EXPECT_EQ(parse_traceparent(with(at, "x")), std::nullopt) << at;
    }
}

}  // namespace
}  // namespace millrace::rpc
