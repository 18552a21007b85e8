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

}  // namespace millrace::test
