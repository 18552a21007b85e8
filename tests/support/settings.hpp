// Settings of the tests (MILLRACE_TEST_…) that are numbers.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace millrace::test {

/// The number that a setting of the tests says.
inline std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

inline constexpr const char* family_setting = "MILLRACE_TEST_FAMILY";

/// A Q_Key that only this test and its children have: tests beside it, on the same fabric, may send
/// to a queue pair number that was somebody else's.
inline std::uint32_t family_qkey() {
    return 0x1000000U | (static_cast<std::uint32_t>(number_from(family_setting, 0)) & 0xffffffU);
}

}  // namespace millrace::test
