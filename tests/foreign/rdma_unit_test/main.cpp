// The main function of google/rdma-unit-test's programs, instead of its unit/gunit_main.cc, which
// does not know the soft device. Flags are the suite's own (--device_name, --ipv4_only, …).
#include "absl/flags/parse.h"
#include "introspection.hpp"

#include <gtest/gtest.h>

int main(int argc, char* argv[]) {
    testing::InitGoogleTest(&argc, argv);
    absl::ParseCommandLine(argc, argv);
    millrace::foreign::register_soft_device();
    return RUN_ALL_TESTS();
}
