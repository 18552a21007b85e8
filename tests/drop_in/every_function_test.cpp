// Every public function of libibverbs on the soft device, called by an unmodified program of ours
// (unmodified/every_function.cpp): it works or refuses, and nothing is left out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "programs.hpp"

namespace millrace::test {
namespace {

/// The functions that libibverbs exports to programs, by any version but the drivers' and 1.0's.
std::set<std::string> exported_functions() {
    std::istringstream lines{output_of({"nm", "-D", "--defined-only", MILLRACE_DROP_IN})};
    const std::regex function{R"( T (\w+)@@IBVERBS_1\.\d+$)"};
    std::set<std::string> names;
    for (std::string line; std::getline(lines, line);) {
        std::smatch match;
        if (std::regex_search(line, match, function)) names.insert(match[1]);
    }
    // Between the library, drivers and librdmacm: no program calls them for a device.
    for (const char* internal :
         {"ibv_register_driver", "ibv_copy_ah_attr_from_kern", "ibv_copy_path_rec_from_kern",
          "ibv_copy_path_rec_to_kern", "ibv_copy_qp_attr_from_kern"}) {
        names.erase(internal);
    }
    return names;
}

/// The functions that <infiniband/verbs.h> defines itself.
std::set<std::string> inline_functions() {
    std::ifstream header{"/usr/include/infiniband/verbs.h"};
    const std::string text{std::istreambuf_iterator<char>{header}, {}};
    const std::regex function{R"(static inline [^;{}()]*?\b(ibv_\w+)\s*\()"};
    std::set<std::string> names;
    for (std::sregex_iterator at{text.begin(), text.end(), function}, end; at != end; ++at) {
        names.insert((*at)[1]);
    }
    return names;
}

struct Walk {
    Outcome outcome;
    std::set<std::string> called;
};

Walk walk(const std::string& setting = {}) {
    std::vector<std::string> command{MILLRACE_EVERY_FUNCTION, "soft0"};
    if (!setting.empty()) command.insert(command.begin(), {"env", setting});
    Walk result{run_on_soft_device(command), {}};
    std::istringstream lines{result.outcome.output};
    for (std::string name, rest; lines >> name && std::getline(lines, rest);) {
        result.called.insert(name);
    }
    return result;
}

TEST(EveryFunction, WorksOrRefusesAndNoneIsForgotten) {
    const auto found = walk();
    EXPECT_TRUE(found.outcome.exit.success()) << found.outcome;
    EXPECT_THAT(found.outcome.output, testing::Not(testing::HasSubstr(" BAD ")));
    const auto exported = exported_functions();
    const auto defined = inline_functions();
    ASSERT_GT(exported.size(), 60U) << "nm's output was not understood";
    ASSERT_GT(defined.size(), 60U) << "verbs.h was not understood";
    for (const auto& names : {exported, defined}) {
        for (const auto& name : names) EXPECT_EQ(found.called.count(name), 1U) << name;
    }
}

TEST(EveryFunction, OfTheSoftDeviceNeedsNoLibraryOfTheSystem) {
    // The functions that know no device have no one to answer them then: those may say BAD.
    const auto found = walk("MILLRACE_SYSTEM_LIBIBVERBS=");
    EXPECT_EQ(found.outcome.exit.how, Exit::How::exited) << found.outcome;
    const std::set<std::string> deviceless{
        "ibv_rate_to_mult",    "mult_to_ibv_rate",   "ibv_rate_to_mbps",    "mbps_to_ibv_rate",
        "ibv_read_sysfs_file", "ibv_get_sysfs_path", "ibv_get_device_index"};
    std::istringstream lines{found.outcome.output};
    for (std::string line; std::getline(lines, line);) {
        const auto name = line.substr(0, line.find(' '));
        if (deviceless.count(name) == 0) {
            EXPECT_THAT(line, testing::Not(testing::HasSubstr(" BAD ")));
        }
    }
    EXPECT_EQ(found.called.count("ibv_close_device"), 1U) << "it did not come to its end";
}

}  // namespace
}  // namespace millrace::test
