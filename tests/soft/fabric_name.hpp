// A fabric of its own for every test and process.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <string>

namespace millrace::test {

inline std::string fabric_of_test() {
    constexpr std::size_t longest = 64;  // characters of a fabric's name
    return ("test-" + std::to_string(::getpid()) + "-" +
            testing::UnitTest::GetInstance()->current_test_info()->name())
        .substr(0, longest);
}

}  // namespace millrace::test
