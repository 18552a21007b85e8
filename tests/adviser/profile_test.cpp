// Profiles: what choose() makes of what was measured, and files that are damaged, old or foreign.
#include "millrace/flow/profile.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/advice.hpp"
#include "millrace/verbs/device.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::flow {
namespace {

using base::Error;
using base::ErrorCode;
using testing::HasSubstr;

ProfileLine line(const Load& load, const std::string& design, double figure) {
    return {load, ring::parse_design(design), figure};
}

Profile small_profile(ProfileOrigin origin = {.device = "soft0",
                                              .mode = "fast",
                                              .is_stored = true,
                                              .machine = "a machine",
                                              .date = "2026-11-28T17:00:00Z"}) {
    const Load stream{.item_bytes = 64};
    const Load single{.item_bytes = 64, .burst = 1};
    return Profile{
        std::move(origin),
        {line(stream, "push1/watermark/push", 1e7), line(stream, "pull/pull/push+fixed", 3e7),
         line(stream, "push1/watermark/pull+dynamic+mover", 9e7),
         line(single, "push1/watermark/push", 100), line(single, "pull/pull/push+fixed", 1)}};
}

std::string chosen(const Profile& profile, const Load& load, bool spare_core = false) {
    const PointChoice choice = choose_point(profile, load, spare_core);
    return ring::to_string(choice.design.design, choice.design.batch);
}

/// What reading that text throws.
std::optional<Error> refusal(const std::string& text) {
    try {
        (void)Profile::parse(text, "a file");
        return std::nullopt;
    } catch (const Error& error) {
        return error;
    }
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
    const auto at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), by);
}

class EnvironmentIs {
  public:
    EnvironmentIs(const char* name, const std::string& value) : name_{name} {
        if (const char* const before = std::getenv(name)) before_ = before;
        setenv(name, value.c_str(), 1);
    }
    ~EnvironmentIs() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
    EnvironmentIs(const EnvironmentIs&) = delete;
    EnvironmentIs& operator=(const EnvironmentIs&) = delete;

  private:
    const char* name_;
    std::optional<std::string> before_;
};

TEST(ProfileChoice, IsTheBestThatTheLoadAllows) {
    const Profile profile = small_profile();
    EXPECT_EQ(chosen(profile, {.item_bytes = 64}), "pull/pull/push+fixed");
    EXPECT_EQ(chosen(profile, {.item_bytes = 64}, true), "push1/watermark/pull+dynamic+mover");
    EXPECT_EQ(chosen(profile, {.item_bytes = 64, .burst = 1}), "push1/watermark/push")
        << "the last items of a fixed batch would wait";
    EXPECT_EQ(chosen(profile, {.item_bytes = 64, .consumer_is_busy = true}), "pull/pull/push+fixed")
        << "the kind of load that is most like it";
}

TEST(ProfileChoice, IsTheSimplestOfThoseThatAreAlike) {
    const Load load{.item_bytes = 64};
    const ProfileOrigin origin{.device = "soft0"};
    EXPECT_EQ(chosen(Profile{origin,
                             {line(load, "push1/watermark/push", 0.99e7),
                              line(load, "pull/pull/push+fixed", 1e7)}},
                     load),
              "push1/watermark/push");
    EXPECT_EQ(chosen(Profile{origin,
                             {line(load, "push1/watermark/push", 0.9e7),
                              line(load, "pull/pull/push+fixed", 1e7)}},
                     load),
              "pull/pull/push+fixed");
}

TEST(ProfileChoice, GoesBetweenSizesByTheirLogarithms) {
    const ProfileOrigin origin{.device = "soft0"};
    const Profile profile{origin,
                          {line({.item_bytes = 16}, "push1/watermark/push", 2e7),
                           line({.item_bytes = 16}, "push1/push/push", 1.2e7),
                           line({.item_bytes = 4096}, "push1/watermark/push", 1e6),
                           line({.item_bytes = 4096}, "push1/push/push", 2e6)}};
    EXPECT_EQ(chosen(profile, {.item_bytes = 8}), "push1/watermark/push");
    EXPECT_EQ(chosen(profile, {.item_bytes = 32}), "push1/watermark/push");
    EXPECT_EQ(chosen(profile, {.item_bytes = 1024}), "push1/push/push");
    EXPECT_EQ(chosen(profile, {.item_bytes = 1U << 20}), "push1/push/push");
}

TEST(ProfileChoice, SaysWhereItComesFromAndWhereItIsOfNoUse) {
    const Profile profile = small_profile();
    const Advice advice = choose({.item_bytes = 64}, profile);
    EXPECT_EQ(ring::to_string(*advice.design), "pull/pull/push+fixed");
    EXPECT_THAT(advice.source, HasSubstr("soft0"));
    EXPECT_THAT(advice.text(), HasSubstr("30 million items a second of 64 B"));

    const Advice elsewhere = choose({.item_bytes = 64, .other_hosts = true}, profile);
    EXPECT_EQ(elsewhere.source, choose({.item_bytes = 64, .other_hosts = true}).source);
    EXPECT_THAT(elsewhere.text(), HasSubstr("says nothing of other hosts"));

    const Profile streams{{.device = "soft0"}, {line({}, "pull/push/push", 1)}};
    const Advice single = choose({.item_bytes = 64, .burst = 1}, streams);
    EXPECT_THAT(single.text(), HasSubstr("knows no load like this one"));
    EXPECT_EQ(single.design, choose({.item_bytes = 64, .burst = 1}).design);
}

TEST(ProfileFile, IsReadAsItWasWritten) {
    const millrace::test::TemporaryFolder folder;
    const Profile written = small_profile();
    written.save(folder.path("new/folder/profile.json"));
    const Profile read = Profile::load(folder.path("new/folder/profile.json"));
    EXPECT_EQ(read.origin(), written.origin());
    EXPECT_TRUE(std::is_permutation(read.lines().begin(), read.lines().end(),
                                    written.lines().begin(), written.lines().end()));
    EXPECT_EQ(read.text(), Profile::parse(read.text(), "again").text());
}

TEST(ProfileFile, IsNotThere) {
    const millrace::test::TemporaryFolder folder;
    try {
        (void)Profile::load(folder.path("none.json"));
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::not_found);
        EXPECT_THAT(error.remedy(), HasSubstr("millrace tune"));
    }
    EXPECT_THROW(small_profile().save("/proc/no/such/profile.json"), Error);
}

TEST(ProfileFile, OfAnotherVersionIsRefused) {
    const auto error =
        refusal(replaced(small_profile().text(), "\"version\": 1", "\"version\": 2"));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::version_mismatch);
    EXPECT_THAT(error->cause(), HasSubstr("version 2"));
}

TEST(ProfileFile, ThatIsDamagedIsRefusedWithTheReason) {
    const std::string text = small_profile().text();
    const std::vector<std::pair<std::string, std::string>> damaged{
        {"", "parse error"},
        {"[]", ""},
        {"{}", "no such profile"},
        {"{\"what\": \"something else\"}", "no such profile"},
        {replaced(text, "\"device\"", "\"devise\""), "device"},
        {replaced(text, "push1/watermark/push\"", "push1/watermark/pusch\""), "pusch"},
        {replaced(text, "10000000.0", "-1"), "-1"},
        {replaced(text, "10000000.0", "\"fast\""), "string"},
        {replaced(text, "10000000.0", "1e999"), ""},
        {replaced(text, "\"burst\": 0", "\"burst\": true"), ""},
        {replaced(text, "\"item_bytes\": 64", "\"item_bytes\": 0"), "0 B"},
        {R"({"what":"millrace flow profile","version":1,"device":"","mode":"","stored":true,)"
         R"("machine":"","date":"","loads":[]})",
         "no measured point"},
    };
    for (const auto& [content, reason] : damaged) {
        const auto error = refusal(content);
        ASSERT_TRUE(error) << content;
        EXPECT_EQ(error->code(), ErrorCode::invalid_argument) << error->what();
        EXPECT_THAT(error->what(), HasSubstr(reason));
        EXPECT_THAT(error->remedy(), HasSubstr("millrace tune"));
    }
}

TEST(ProfileFile, IsReadOrRefusedWhateverStandsInIt) {
    const std::string text = small_profile().text();
    rc::check([&] {
        std::string changed = text.substr(0, *rc::gen::inRange<std::size_t>(0, text.size() + 1));
        const auto changes = *rc::gen::inRange(0, 4);
        for (int i = 0; i != changes && !changed.empty(); ++i) {
            changed[*rc::gen::inRange<std::size_t>(0, changed.size())] =
                *rc::gen::arbitrary<char>();
        }
        try {
            const Profile read = Profile::parse(changed, "a file");
            RC_ASSERT(!read.lines().empty());
            (void)choose({}, read);
        } catch (const Error&) {
        }
    });
}

TEST(ProfileFile, LiesInTheUsersCache) {
    const EnvironmentIs home{"HOME", "/home/user"};
    {
        const EnvironmentIs cache{"XDG_CACHE_HOME", "/cache"};
        EXPECT_EQ(Profile::default_path("mlx5_0", ""), "/cache/millrace/flow-mlx5_0.json");
        EXPECT_EQ(Profile::default_path("soft0", "shaped:10g,latency=1us"),
                  "/cache/millrace/flow-soft0-shaped-10g-latency=1us.json");
        EXPECT_EQ(Profile::default_path("../up", ""), "/cache/millrace/flow-..-up.json");
    }
    const EnvironmentIs relative{"XDG_CACHE_HOME", "cache"};
    EXPECT_EQ(Profile::default_path("soft0", "fast"),
              "/home/user/.cache/millrace/flow-soft0-fast.json")
        << "a relative one is passed over";
}

TEST(ProfileFile, OfThisDeviceAndMachineAloneIsTakenByItself) {
    const millrace::test::TemporaryFolder folder;
    const EnvironmentIs cache{"XDG_CACHE_HOME", folder.path()};
    const auto endpoint = connect::Endpoint::shared();
    const std::string device{endpoint->context().name()};
    const std::string mode = endpoint->context().is_soft() ? verbs::soft_mode() : "";
    const std::string path = Profile::default_path(device, mode);
    ProfileOrigin here{.device = device, .mode = mode, .machine = Profile::this_machine()};
    const auto refused = [&] {
        try {
            (void)Profile::load();
            return std::string{};
        } catch (const Error& error) {
            return std::string{error.what()};
        }
    };
    EXPECT_THAT(refused(), HasSubstr(path));
    small_profile(here).save(path);
    EXPECT_EQ(Profile::load().origin(), here);

    ProfileOrigin foreign = here;
    foreign.machine = "an abacus, 1 core";
    small_profile(foreign).save(path);
    EXPECT_THAT(refused(), testing::AllOf(HasSubstr("an abacus"), HasSubstr(here.machine)));
    EXPECT_EQ(Profile::load(path).origin(), foreign) << "a program may ask for it";
    foreign = here;
    foreign.device = "mlx5_7";
    small_profile(foreign).save(path);
    EXPECT_THAT(refused(), HasSubstr("mlx5_7"));
}

}  // namespace
}  // namespace millrace::flow
