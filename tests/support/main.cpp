// main() of every test program: a child's body when started as a child, the tests otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/child_process.hpp"
#include "support/processor_time.hpp"
#include "support/settings.hpp"
#include "support/withheld_copies.hpp"

int main(int argc, char** argv) {
    if (std::getenv(millrace::test::withhold_copies_setting) != nullptr &&
        !millrace::test::withhold_copies()) {
        std::perror("withhold copies");
        return 1;
    }
    if (const auto code = millrace::test::run_as_child(argc, argv)) return *code;
    setenv(millrace::test::family_setting, std::to_string(getpid()).c_str(), 1);
    testing::InitGoogleMock(&argc, argv);
    millrace::test::ProcessorTime::print_if_asked_for();
    return RUN_ALL_TESTS();
}
