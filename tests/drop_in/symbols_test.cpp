// The drop-in's symbols are the system library's: every name in every version, and everything
// that programs and drivers are bound to at load finds its symbol.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "programs.hpp"

namespace millrace::test {
namespace {

using Symbol = std::pair<std::string, std::string>;  // name, version

const std::string system_library = MILLRACE_SYSTEM_LIBIBVERBS_FILE;

/// What `objdump -T` lists as defined, without the version nodes themselves.
std::set<Symbol> exported_by(const std::string& library) {
    std::istringstream lines{output_of({"objdump", "-T", library})};
    std::set<Symbol> symbols;
    const std::regex defined{R"(^[0-9a-f]+ .{7} (\S+)\s+[0-9a-f]+ +\(?(\S+?)\)? +(\S+)$)"};
    for (std::string line; std::getline(lines, line);) {
        std::smatch match;
        if (!std::regex_match(line, match, defined)) continue;
        if (match[1] == "*UND*" || match[1] == "*ABS*") continue;
        symbols.emplace(match[3], match[2]);
    }
    return symbols;
}

TEST(Symbols, AreAllThatTheSystemsLibraryHasInTheSameVersions) {
    const auto theirs = exported_by(system_library);
    const auto ours = exported_by(MILLRACE_DROP_IN);
    ASSERT_GT(theirs.size(), 150u) << "objdump's output was not understood";
    std::set<Symbol> missing;
    std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(),
                        std::inserter(missing, missing.end()));
    EXPECT_THAT(missing, testing::IsEmpty());
}

// A driver of a newer rdma-core names them with that one's number, and is bound to all at load.
TEST(Symbols, HaveThePrivateOnesInTheVersionsOfNewerLibraries) {
    const auto ours = exported_by(MILLRACE_DROP_IN);
    std::size_t count = 0;
    for (const auto& [name, version] : ours) {
        if (version != "IBVERBS_PRIVATE_34") continue;
        ++count;
        for (const char* number : {"57", "59", "64", "65"}) {
            EXPECT_TRUE(ours.contains({name, std::string{"IBVERBS_PRIVATE_"} + number}))
                << name << " " << number;
        }
    }
    EXPECT_GT(count, 60U);
}

TEST(Symbols, HideEverythingThatIsNotLibibverbs) {
    for (const auto& [name, version] : exported_by(MILLRACE_DROP_IN)) {
        EXPECT_TRUE(version.starts_with("IBVERBS_") || name == "millrace_soft_drop_in" ||
                    name == "millrace_soft_device_files")
            << name << " " << version;
    }
}

// It comes into every program that `soft run` starts, whatever that program is made of.
TEST(PreloadedLibrary, BringsNoLibraryAlong) {
    const std::string report =
        output_of({"ldd", MILLRACE_DROP_IN_FOLDER "/libmillrace_device_files.so"});
    EXPECT_THAT(report, testing::HasSubstr("libc.so"));
    for (const char* other : {"libstdc++", "libfmt", "libspdlog", "libibverbs"}) {
        EXPECT_THAT(report, testing::Not(testing::HasSubstr(other)));
    }
}

class Resolution : public testing::TestWithParam<const char*> {};

TEST_P(Resolution, FindsEverySymbolInTheDropIn) {
    if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
    const std::string report = output_of(
        {"/bin/sh", "-c", "LD_PRELOAD=$1 ldd -r $2 2>&1", "sh", MILLRACE_DROP_IN, GetParam()});
    EXPECT_THAT(report, testing::HasSubstr(MILLRACE_DROP_IN));
    EXPECT_THAT(report, testing::Not(testing::HasSubstr("undefined symbol")));
    EXPECT_THAT(report, testing::Not(testing::HasSubstr("not found")));
    EXPECT_THAT(report, testing::Not(testing::HasSubstr(system_library)));
}

INSTANTIATE_TEST_SUITE_P(OfWhatLinksLibibverbs, Resolution,
                         testing::Values(MILLRACE_LIBRARY_FOLDER "/libmlx5.so.1",
                                         MILLRACE_LIBRARY_FOLDER "/libefa.so.1",
                                         MILLRACE_LIBRARY_FOLDER "/librdmacm.so.1",
                                         "/usr/bin/ib_write_lat", "/usr/bin/ibv_rc_pingpong",
                                         "/usr/bin/ibv_devinfo"));

/// Both libraries in this process, each by its path.
struct Libraries {
    void* ours = dlopen(MILLRACE_DROP_IN, RTLD_NOW | RTLD_LOCAL);
    void* theirs = dlopen(MILLRACE_SYSTEM_LIBIBVERBS_FILE, RTLD_NOW | RTLD_LOCAL);

    template <class Function>
    std::pair<Function*, Function*> both(const char* name) const {
        return {reinterpret_cast<Function*>(dlsym(ours, name)),
                reinterpret_cast<Function*>(dlsym(theirs, name))};
    }
};

TEST(Forwarding, AnswersAsTheSystemsLibraryWhereNoDeviceIsConcerned) {
    const Libraries libraries;
    ASSERT_NE(libraries.ours, nullptr) << dlerror();
    ASSERT_NE(libraries.theirs, nullptr) << dlerror();
    ASSERT_NE(libraries.ours, libraries.theirs);

    const auto [our_status, their_status] =
        libraries.both<decltype(ibv_wc_status_str)>("ibv_wc_status_str");
    for (int status = 0; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
        EXPECT_STREQ(our_status(static_cast<ibv_wc_status>(status)),
                     their_status(static_cast<ibv_wc_status>(status)));
    }
    const auto [our_mult, their_mult] =
        libraries.both<decltype(ibv_rate_to_mult)>("ibv_rate_to_mult");
    const auto [our_rate, their_rate] =
        libraries.both<decltype(mbps_to_ibv_rate)>("mbps_to_ibv_rate");
    for (int rate = 0; rate < 32; ++rate) {
        EXPECT_EQ(our_mult(static_cast<ibv_rate>(rate)), their_mult(static_cast<ibv_rate>(rate)));
        EXPECT_EQ(our_rate(rate * 2500), their_rate(rate * 2500));
    }
    const auto [our_path, their_path] = libraries.both<const char*()>("ibv_get_sysfs_path");
    EXPECT_STREQ(our_path(), their_path());
}

TEST(Forwarding, PassesFileReadsOfOtherDirectoriesOn) {
    const Libraries libraries;
    const auto [ours, theirs] =
        libraries.both<int(const char*, const char*, char*, std::size_t)>("ibv_read_sysfs_file");
    char our_text[64] = {};
    char their_text[64] = {};
    EXPECT_EQ(ours("/proc/sys/kernel", "ostype", our_text, sizeof our_text),
              theirs("/proc/sys/kernel", "ostype", their_text, sizeof their_text));
    EXPECT_STREQ(our_text, "Linux");
    EXPECT_EQ(ours("/proc/sys/kernel", "no such file", our_text, sizeof our_text), -1);
}

TEST(DeviceFiles, AreReadThroughLibibverbs) {
    const Libraries libraries;
    const auto read =
        libraries.both<int(const char*, const char*, char*, std::size_t)>("ibv_read_sysfs_file")
            .first;
    const auto text_of = [&](const char* folder, const char* file) {
        char text[128] = {};
        const int length = read(folder, file, text, sizeof text);
        return length < 0 ? std::string{"none"}
                          : std::string(text, static_cast<std::size_t>(length));
    };
    const char* const device = "/sys/class/infiniband/soft0";
    EXPECT_EQ(text_of(device, "node_type"), "1: CA");
    EXPECT_THAT(text_of(device, "node_guid"), testing::MatchesRegex("[0-9a-f:]{19}"));
    EXPECT_EQ(text_of("/sys/class/infiniband/soft0/ports/1", "state"), "4: ACTIVE");
    EXPECT_EQ(text_of(device, "ports/1/state"), "4: ACTIVE");
    EXPECT_THAT(text_of(device, "ports/1/gids/0"), testing::MatchesRegex("[0-9a-f:]{39}"));
    EXPECT_EQ(text_of(device, "ports/1/pkeys/0"), "0xffff");
    EXPECT_EQ(text_of(device, "ports/99/state"), "none");
    EXPECT_EQ(text_of(device, "no such file"), "none");

    char little[3] = {};
    EXPECT_EQ(read(device, "node_type", little, sizeof little), 2);
    EXPECT_STREQ(little, "1:");
}

TEST(Marker, TellsThatThisIsTheDropIn) {
    const Libraries libraries;
    EXPECT_NE(dlsym(libraries.ours, "millrace_soft_drop_in"), nullptr);
    EXPECT_EQ(dlsym(libraries.theirs, "millrace_soft_drop_in"), nullptr);
}

}  // namespace
}  // namespace millrace::test
