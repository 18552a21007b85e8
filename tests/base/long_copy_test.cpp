// Long copies: the right bytes by both ways, and which way is taken.
#include "millrace/base/detail/long_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace millrace::base {
namespace {

using Way = CopyChoice::Way;

/// Copies, of which each takes `cached` or `streaming` for a byte. How many went past the caches?
std::uint32_t streamed(CopyChoice& choice, std::uint32_t copies, float cached, float streaming) {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < copies; ++i) {
        const bool is_streaming = choice.next() == Way::streaming;
        count += is_streaming ? 1 : 0;
        choice.note(is_streaming ? streaming : cached);
    }
    return count;
}

TEST(CopyChoice, TriesBothWaysFirst) {
    CopyChoice choice;
    EXPECT_EQ(streamed(choice, CopyChoice::trial, 1, 1), 0U);
    EXPECT_EQ(streamed(choice, CopyChoice::trial, 1, 1), CopyChoice::trial);
}

TEST(CopyChoice, StaysWithTheFasterWayAndSeldomTriesTheOther) {
    constexpr std::uint32_t copies = 100'000;
    for (const float slower : {1.2F, 2.0F, 9.0F}) {
        CopyChoice past_caches;
        CopyChoice ordinary;
        const std::uint32_t of_past_caches = copies - streamed(past_caches, copies, slower, 1);
        const std::uint32_t of_ordinary = streamed(ordinary, copies, 1, slower);
        for (const std::uint32_t others : {of_past_caches, of_ordinary}) {
            EXPECT_GE(others, 2 * CopyChoice::trial) << slower;
            // What they cost beside the others.
            EXPECT_LE(static_cast<float>(others) * (slower - 1), 0.015F * copies) << slower;
        }
    }
}

TEST(CopyChoice, TurnsWhenTheOtherWayHasBecomeFaster) {
    CopyChoice choice;
    (void)streamed(choice, 1000, 4, 1);
    EXPECT_EQ(choice.next(), Way::streaming);
    (void)streamed(choice, 2 * CopyChoice::most_between(CopyChoice::trial), 1, 4);
    EXPECT_EQ(choice.next(), Way::cached);
}

TEST(CopyChoice, OfLongOnesIsMadeBehindFewOfThem) {
    CopyChoice choice{8};
    EXPECT_EQ(streamed(choice, 8, 2, 1), 0U);
    EXPECT_EQ(streamed(choice, 100, 2, 1), 100U);
}

TEST(CopyChoice, IsNotTurnedByOneSlowCopy) {
    CopyChoice choice;
    for (std::uint32_t i = 0; i < 50'000; ++i) {
        const bool is_streaming = choice.next() == Way::streaming;
        choice.note((is_streaming ? 2.0F : 1.0F) * (i % 7 == 0 ? 1000.0F : 1.0F));
    }
    EXPECT_LT(streamed(choice, 10'000, 1, 2), 1000U);
}

struct Times {
    std::uint64_t write_cached;
    std::uint64_t write_streaming;
    std::uint64_t read_cached;
    std::uint64_t read_streaming;
};
/// By a writer that may be four copies ahead of its reader, and that has the next one to write
/// after `pause(i)`: how many went past the caches?
template <class Pause>
std::uint32_t streamed_to_reader(std::uint32_t copies, const Times& times, Pause&& pause) {
    constexpr std::size_t ahead = 4;
    CopyChoice choice;
    std::uint64_t now = 0;
    std::uint64_t reader_is_done = 0;
    std::array<std::uint64_t, ahead> free_at{};  // when the reader is through with each place
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < copies; ++i) {
        std::uint64_t& place = free_at[i % ahead];
        now = std::max(now, place);
        const bool is_streaming = choice.begin(now, 1000) == Way::streaming;
        count += is_streaming ? 1 : 0;
        now += is_streaming ? times.write_streaming : times.write_cached;
        choice.end(now);
        now += pause(i);
        reader_is_done = std::max(now, reader_is_done) +
                         (is_streaming ? times.read_streaming : times.read_cached);
        place = reader_is_done;
    }
    return count;
}

TEST(CopyChoice, CountsWhatTheReaderPaysForWhatTheWriterSpares) {
    constexpr std::uint32_t copies = 100'000;
    const auto none = [](std::uint32_t) { return std::uint64_t{0}; };
    // The writer would be faster past the caches, and the reader slower than either.
    EXPECT_LT(streamed_to_reader(copies, {20, 10, 15, 40}, none), copies / 50);
    // The same, where the writer's share is small.
    EXPECT_LT(streamed_to_reader(copies, {10, 2, 60, 90}, none), copies / 50);
    EXPECT_GT(streamed_to_reader(copies, {2, 10, 24, 20}, none), copies - copies / 50);
    // Both are faster past the caches.
    EXPECT_GT(streamed_to_reader(copies, {40, 10, 40, 20}, none), copies - copies / 50);
}

TEST(CopyChoice, DoesNotCountWhatAProgramThinksBetweenTwoCopies) {
    constexpr std::uint32_t copies = 100'000;
    // However long that is, and however it differs: longer by chance in the trials.
    const auto thinks = [](std::uint32_t i) { return 1000 + (i / 48 * 7919) % 5000; };
    EXPECT_LT(streamed_to_reader(copies, {10, 20, 10, 10}, thinks), copies / 50);
    EXPECT_GT(streamed_to_reader(copies, {20, 10, 10, 10}, thinks), copies - copies / 50);
}

TEST(CopyChoice, LivesWithAClockThatStands) {
    CopyChoice choice;
    EXPECT_LT(streamed(choice, 100'000, 0, 0), 2000U);
}

TEST(LongCopy, CopiesAllBytesAndNothingBeside) {
    constexpr std::size_t margin = 192;
    constexpr std::byte unwritten{0xa5};
    for (const std::size_t bytes : {least_long_copy, least_long_copy + 1, std::size_t{65'536},
                                    std::size_t{100'003}, std::size_t{1} << 20}) {
        std::vector<std::byte> to(bytes + 2 * margin);
        std::vector<std::byte> from(bytes + margin);
        for (std::size_t i = 0; i < from.size(); ++i) {
            from[i] = static_cast<std::byte>(i * 31 + (i >> 8) * 7);
        }
        // So often that both ways are taken.
        for (std::size_t turn = 0; turn <= std::size_t{2} * CopyChoice::trial; ++turn) {
            const std::size_t to_offset = margin / 2 + turn * 5 % 67;
            const std::size_t from_offset = turn * 3 % 64;
            std::fill(to.begin(), to.end(), unwritten);
            copy_for_peer(to.data() + to_offset, from.data() + from_offset, bytes);
            ASSERT_EQ(std::memcmp(to.data() + to_offset, from.data() + from_offset, bytes), 0)
                << bytes << " bytes, turn " << turn;
            for (std::size_t i = 0; i < to.size(); ++i) {
                if (i >= to_offset && i < to_offset + bytes) continue;
                ASSERT_EQ(to[i], unwritten) << bytes << " bytes, turn " << turn << ", byte " << i;
            }
        }
    }
}

}  // namespace
}  // namespace millrace::base
