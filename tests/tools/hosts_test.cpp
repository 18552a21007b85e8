// The command between two hosts of one machine, over the soft device's wire.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/child_process.hpp"
#include "support/command.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::tools {
namespace {

using millrace::test::ChildProcess;
using millrace::test::run_line;
using testing::HasSubstr;

class Hosts : public testing::Test {
  protected:
    Hosts() {
        std::filesystem::create_directory(file("files"));
        std::ofstream{file("files/one")} << std::string(300'000, 'x');
    }
    [[nodiscard]] std::string file(const std::string& name) const { return folder_.path(name); }
    [[nodiscard]] std::string demo(const std::string& hosts) const {
        return "exec \"$0\" demo '" + file("files") + "' --rounds 2 " + hosts + " --json 2>&1";
    }

    millrace::test::TemporaryFolder folder_;
};

void expect_all_transports(const millrace::test::CommandOutcome& outcome) {
    ASSERT_TRUE(outcome.exit.success()) << outcome.exit << outcome.text;
    const auto json = nlohmann::json::parse(outcome.text);
    EXPECT_THAT(json.at("device").get<std::string>(), HasSubstr("two hosts on this machine"));
    std::vector<std::string> keys;
    for (const auto& transport : json.at("transports")) keys.push_back(transport.at("key"));
    EXPECT_THAT(keys, testing::ElementsAre("flow-1", "flow-2", "message", "tcp", "udp"));
}

TEST_F(Hosts, OfTwoAddressesMoveFilesByEveryTransport) {
    expect_all_transports(run_line(demo("--hosts")));
}

/// A namespace of one's own, and in it one more: what the demo needs.
bool may_make_namespaces() {
    return std::system("unshare -Urn unshare -n true 2>/dev/null && ip -V >/dev/null 2>&1") == 0;
}

TEST_F(Hosts, OfTwoNetworkNamespacesMoveFilesByEveryTransport) {
    if (!may_make_namespaces()) GTEST_SKIP() << "no network namespaces are to be had here";
    expect_all_transports(run_line(demo("--hosts --netns")));
}

TEST_F(Hosts, AreNamedWhereTheyMakeNoSense) {
    const auto alone = run_line(demo("--netns"));
    EXPECT_FALSE(alone.exit.success());
    EXPECT_THAT(alone.text, HasSubstr("say --hosts, too"));
    const auto unix_only = run_line(demo("--hosts --only unix"));
    EXPECT_FALSE(unix_only.exit.success());
    EXPECT_THAT(unix_only.text, HasSubstr("leads to no other host"));
}

/// Runs `first` and `second` as shells in two network namespaces with a cable between
/// them, 10.77.0.1 and 10.77.0.2; nothing is set for the wire. `second` begins when `first` has
/// written a file, "ready".
std::string in_two_namespaces(const std::string& folder, const std::string& first,
                              const std::string& second) {
    const auto write = [&](const std::string& name, const std::string& text) {
        std::ofstream{folder + "/" + name} << text;
    };
    write("first", first);
    write("second", second);
    write("both", R"sh(
set -e
cd "$1"
ip link set lo up
unshare -n sleep 60 & other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add one type veth peer name two netns $other
ip addr add 10.77.0.1/24 dev one
ip link set one up
nsenter -t $other -n sh -c 'ip link set lo up; ip addr add 10.77.0.2/24 dev two; ip link set two up'
sh ./first & here=$!
while ! [ -e ready ]; do sleep 0.05; done
nsenter -t $other -n sh ./second
wait $here
kill $other
)sh");
    const auto outcome = run_line(
        "export MILLRACE_DEVICE=soft0 MILLRACE=\"$0\"; unset MILLRACE_WIRE; "
        "exec timeout 50 unshare -Urn sh '" +
        folder + "/both' '" + folder + "' 2>&1");
    return outcome.exit.success() ? outcome.text : "failed: " + outcome.text;
}

TEST_F(Hosts, NeedNothingSetWhereOneListensOnAllAddresses) {
    if (!may_make_namespaces()) GTEST_SKIP() << "no network namespaces are to be had here";
    EXPECT_EQ(in_two_namespaces(file(""), R"sh(
"$MILLRACE" cat listen :7411 >got &
until ss -Hltn 'sport = :7411' | grep -q .; do sleep 0.05; done
touch ready
wait $!
)sh",
                                R"sh("$MILLRACE" cat 10.77.0.1:7411 <files/one)sh"),
              "");
    EXPECT_EQ(std::filesystem::file_size(file("got")), 300'000U);
}

TEST_F(Hosts, AreServedByAProcessThatServedItsOwnHostBefore) {
    if (!may_make_namespaces()) GTEST_SKIP() << "no network namespaces are to be had here";
    const std::string said = in_two_namespaces(file(""), R"sh(
"$MILLRACE" kv serve --listen :7412 >served 2>&1 & server=$!
until ss -Hltn 'sport = :7412' | grep -q .; do sleep 0.05; done
"$MILLRACE" kv set key here --server 127.0.0.1:7412
touch ready
while ! [ -e done ]; do sleep 0.05; done
kill $server
wait $server || true
)sh",
                                               R"sh(
"$MILLRACE" kv get key --server 10.77.0.1:7412
touch done
)sh");
    EXPECT_THAT(said, HasSubstr("here"));
    EXPECT_THAT(said, testing::Not(HasSubstr("failed")));
}

// 127.0.0.2 writes what 127.0.0.3 sends.
TEST_F(Hosts, CatCopiesFromOneToTheOther) {
    ChildProcess receiver = ChildProcess::start_program(
        {"/bin/sh", "-c",
         "exec env MILLRACE_DEVICE=soft0 MILLRACE_WIRE=127.0.0.2 \"$0\" cat listen unix:" +
             file("meet") + " >" + file("got"),
         MILLRACE_COMMAND});
    const auto sent = run_line(
        "exec env MILLRACE_DEVICE=soft0 MILLRACE_WIRE=127.0.0.3 \"$0\" cat unix:" + file("meet") +
        " <" + file("files/one") + " 2>&1");
    EXPECT_TRUE(sent.exit.success()) << sent.text;
    EXPECT_TRUE(receiver.wait().success());
    EXPECT_EQ(std::filesystem::file_size(file("got")), 300'000U);
}

}  // namespace
}  // namespace millrace::tools
