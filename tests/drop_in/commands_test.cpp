// Every command of rdma_cm by librdmacm (unmodified/commands.cpp): the soft device answers as the
// kernel does. What the kernel answers stands in commands.kernel, as scripts/test-kernel finds it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "programs.hpp"

namespace millrace::test {
namespace {

std::vector<std::string> lines_of(std::istream&& text) {
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
}

/// What the soft device says in place of a line of the kernel's. In the file: the reason after "#",
/// the kernel's line after "-", the soft device's after "+".
std::map<std::string, std::string> listed_differences() {
    std::map<std::string, std::string> listed;
    std::string kernels;
    bool has_reason = false;
    for (const auto& line : lines_of(std::ifstream{MILLRACE_COMMANDS_DIFFERENCES})) {
        if (line.starts_with("# ")) has_reason = true;
        if (line.starts_with("- ")) kernels = line.substr(2);
        if (line.starts_with("+ ")) {
            EXPECT_TRUE(has_reason) << line << ": say above why it differs";
            listed[kernels] = line.substr(2);
            has_reason = false;
        }
    }
    return listed;
}

TEST(CommandsOfRdmaCm, AreAnsweredAsByTheKernel) {
    if (!std::ifstream{MILLRACE_COMMANDS}) GTEST_SKIP() << "built without librdmacm-dev";
    const auto outcome =
        run_on_soft_device({"env", "MILLRACE_LOG=off", MILLRACE_COMMANDS, "127.0.0.1"});
    ASSERT_TRUE(outcome.exit.success()) << outcome;
    const auto soft = lines_of(std::istringstream{outcome.output});
    const auto kernel = lines_of(std::ifstream{MILLRACE_COMMANDS_OF_THE_KERNEL});
    const auto listed = listed_differences();
    ASSERT_GT(kernel.size(), 100U);
    std::set<std::string> met;
    for (std::size_t i = 0; i < kernel.size(); ++i) {
        ASSERT_LT(i, soft.size()) << "the soft device's answers end before: " << kernel[i];
        if (soft[i] == kernel[i]) continue;
        const auto known = listed.find(kernel[i]);
        EXPECT_TRUE(known != listed.end() && known->second == soft[i])
            << "line " << i + 1 << "\n  kernel: " << kernel[i] << "\n  soft:   " << soft[i];
        met.insert(kernel[i]);
    }
    EXPECT_EQ(soft.size(), kernel.size());
    for (const auto& [line, other] : listed) {
        EXPECT_TRUE(met.contains(line)) << "differs no more; take it out of the list: " << line;
    }
}

}  // namespace
}  // namespace millrace::test
