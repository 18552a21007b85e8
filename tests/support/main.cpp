// main() of every test program: a child's body when started as a child, the tests otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/child_process.hpp"

int main(int argc, char** argv) {
    if (const auto code = millrace::test::run_as_child(argc, argv)) return *code;
    testing::InitGoogleMock(&argc, argv);
    return RUN_ALL_TESTS();
}
