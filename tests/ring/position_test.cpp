// Positions that travel word by word over devices that move a word byte by byte.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "millrace/ring/position.hpp"

namespace millrace::ring {
namespace {

constexpr std::uint64_t starts[] = {0,
                                    255 * 8,
                                    65535 * 8,
                                    (std::uint64_t{1} << 32) - 64,
                                    (std::uint64_t{1} << 35) - 8,
                                    std::uint64_t{0} - 8};

/// The bytes of `fresh` whose bit in `landed` is set, the others of `stale`.
std::uint64_t mix(std::uint64_t stale, std::uint64_t fresh, unsigned landed) {
    auto bytes = std::bit_cast<std::array<unsigned char, 8>>(stale);
    const auto others = std::bit_cast<std::array<unsigned char, 8>>(fresh);
    for (unsigned i = 0; i < 8; ++i) {
        if ((landed >> i & 1) != 0) bytes[i] = others[i];
    }
    return std::bit_cast<std::uint64_t>(bytes);
}

TEST(PositionWord, SaysWhatWasPacked) {
    for (const std::uint64_t start : starts) {
        for (std::uint64_t step = 0; step < 100 * 8; step += 8) {
            const std::uint64_t word = PositionWord::pack(start + step);
            ASSERT_TRUE(PositionWord::whole(word));
            ASSERT_EQ(PositionWord::ahead(word, start), static_cast<std::int64_t>(step));
            ASSERT_EQ(PositionWord::ahead(PositionWord::pack(start), start + step),
                      -static_cast<std::int64_t>(step));
        }
    }
}

TEST(PositionWord, ZeroedMemoryHoldsNoPosition) { EXPECT_FALSE(PositionWord::whole(0)); }

TEST(PositionWord, AWordThatLandsByteByByteIsTheOldOneTheNewOneOrNone) {
    for (const std::uint64_t start : starts) {
        for (std::uint64_t step = 8; step <= (1 << 20); step += 8 * 37) {
            const std::uint64_t stale = PositionWord::pack(start);
            const std::uint64_t fresh = PositionWord::pack(start + step);
            for (unsigned bytes = 0; bytes <= 8; ++bytes) {
                const unsigned landed = (1U << bytes) - 1;
                // From the front, and from the back.
                for (const unsigned mask : {landed, 0xffU & ~landed}) {
                    const std::uint64_t word = mix(stale, fresh, mask);
                    if (!PositionWord::whole(word)) continue;
                    ASSERT_TRUE(PositionWord::ahead(word, start) == 0 ||
                                PositionWord::ahead(word, start + step) == 0)
                        << start << " + " << step << ", bytes " << mask;
                }
            }
        }
    }
}

TEST(PositionWord, AHalfThatIsTornIsFoundOutInWhateverOrderItsBytesCome) {
    for (const std::uint64_t start : starts) {
        for (std::uint64_t step = 8; step <= (1 << 20); step += 8 * 1031) {
            const std::uint64_t stale = PositionWord::pack(start);
            const std::uint64_t fresh = PositionWord::pack(start + step);
            for (unsigned half = 0; half < 16; ++half) {
                for (const unsigned mask : {half, 0xf0U | half, half << 4, half << 4 | 0xfU}) {
                    const std::uint64_t word = mix(stale, fresh, mask);
                    if (!PositionWord::whole(word)) continue;
                    ASSERT_TRUE(PositionWord::ahead(word, start) == 0 ||
                                PositionWord::ahead(word, start + step) == 0)
                        << start << " + " << step << ", bytes " << mask;
                }
            }
        }
    }
}

// Both halves torn at the same bytes: what a complement in place of a hash lets pass every time.
TEST(PositionWord, HalvesThatAreTornAlikeAreFoundOut) {
    for (const std::uint64_t start : starts) {
        for (std::uint64_t step = 8; step <= (1 << 20); step += 8 * 11) {
            const std::uint64_t stale = PositionWord::pack(start);
            const std::uint64_t fresh = PositionWord::pack(start + step);
            for (unsigned half = 1; half < 15; ++half) {
                const std::uint64_t word = mix(stale, fresh, half << 4 | half);
                if (!PositionWord::whole(word)) continue;
                ASSERT_TRUE(PositionWord::ahead(word, start) == 0 ||
                            PositionWord::ahead(word, start + step) == 0)
                    << start << " + " << step << ", bytes " << half << " of each half";
            }
        }
    }
}

TEST(PeerPosition, TakesWhatIsNewerAndPossible) {
    for (const std::uint64_t start : starts) {
        PeerPosition peer{start};
        EXPECT_EQ(peer.take(PositionWord::pack(start), start + 800), News::none);
        EXPECT_EQ(peer.take(PositionWord::pack(start + 80), start + 800), News::newer);
        EXPECT_EQ(peer.value(), start + 80);
        EXPECT_EQ(peer.take(PositionWord::pack(start + 40), start + 800), News::none);
        EXPECT_EQ(peer.take(PositionWord::pack(start + 800), start + 800), News::newer);
        EXPECT_EQ(peer.value(), start + 800);
    }
}

TEST(PeerPosition, DoesNotBelieveWhatCannotBe) {
    for (const std::uint64_t start : starts) {
        PeerPosition peer{start};
        EXPECT_EQ(peer.take(PositionWord::pack(start + 88), start + 80), News::impossible);
        EXPECT_EQ(peer.take(PositionWord::pack(start + (1 << 30)), start), News::impossible);
        EXPECT_EQ(peer.value(), start);
    }
}

TEST(PeerPosition, PassesOverTornWords) {
    PeerPosition peer{0};
    const std::uint64_t torn =
        mix(PositionWord::pack(0xf0 * 8), PositionWord::pack(0x110 * 8), 0xfe);
    EXPECT_EQ(static_cast<std::uint32_t>(torn), 0x1f0U) << "more than was ever consumed";
    EXPECT_EQ(peer.take(torn, 0x200 * 8), News::none);
    EXPECT_EQ(peer.take(0, 800), News::none);
    EXPECT_EQ(peer.value(), 0U);
}

}  // namespace
}  // namespace millrace::ring
