// A fabric of its own for every test and process.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace millrace::test {

inline std::string fabric_of_test() {
    return "test-" + std::to_string(::getpid()) + "-" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
}

}  // namespace millrace::test
