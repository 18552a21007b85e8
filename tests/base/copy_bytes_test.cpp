// Copies between addresses that lie in any way to each other: the right bytes, and no others. How
// fast is not asked here.
#include "millrace/base/detail/copy_bytes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::base {
namespace {

constexpr std::byte untouched{0xee};

TEST(CopyBytes, CopiesAllAndNothingElseWhereverItLies) {
    constexpr std::size_t page = 4096;
    std::vector<std::byte> source(8 * page);
    for (std::size_t at = 0; at < source.size(); ++at) {
        source[at] = static_cast<std::byte>(at * 7 + at / 251);
    }
    for (const std::size_t bytes : {0U, 1U, 2047U, 2048U, 2111U, 4096U, 10'001U}) {
        for (const std::size_t from : {0U, 1U, 8U, 4090U}) {
            for (std::size_t behind = 0; behind < 20; ++behind) {
                // Both vectors may lie anywhere: this is where the difference is `behind`.
                std::vector<std::byte> target(8 * page, untouched);
                const auto address = [](const std::byte* at) {
                    return reinterpret_cast<std::uintptr_t>(at) % page;
                };
                const std::size_t to =
                    page + (address(&source[from]) + behind - address(target.data())) % page;
                copy_bytes(&target[to], &source[from], bytes);
                ASSERT_TRUE(std::equal(target.begin() + static_cast<std::ptrdiff_t>(to),
                                       target.begin() + static_cast<std::ptrdiff_t>(to + bytes),
                                       source.begin() + static_cast<std::ptrdiff_t>(from)))
                    << bytes << " bytes from " << from << ", " << behind << " behind";
                ASSERT_EQ(target[to - 1], untouched);
                ASSERT_EQ(target[to + bytes], untouched);
            }
        }
    }
}

}  // namespace
}  // namespace millrace::base
