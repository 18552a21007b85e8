// Clients of memcached as they are in Debian, at the memcached door: what a program does by them
// usually.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "doors/memcached_client.hpp"

namespace millrace::kv {
namespace {

TEST(MemcachedClients, AreServedByThoseOfLibmemcached) {
    if (!is_installed("memccp")) {
        GTEST_SKIP() << "libmemcached-tools: scripts/install-dependencies test";
    }
    DoorServing serving;
    const std::string servers = "--servers=" + serving.path(DoorKind::memcached);
    const auto ask = [&](std::string program, std::vector<std::string> words) {
        words.insert(words.begin(), {"/usr/bin/" + std::move(program), servers});
        return run(std::move(words));
    };
    const test::TemporaryFolder folder;
    const std::string value(200'000, 'v');
    std::ofstream{folder.path() + "/file"} << value;
    const Said copied = ask("memccp", {"--flag=5", folder.path() + "/file"});
    EXPECT_TRUE(copied.exit.success()) << copied.text;
    EXPECT_TRUE(ask("memccat", {"file"}).text == value + '\n');
    EXPECT_TRUE(ask("memccat", {"--flag", "file"}).text == "5\n" + value + '\n');
    EXPECT_TRUE(ask("memcexist", {"file"}).exit.success());
    EXPECT_TRUE(ask("memctouch", {"--expire=1000", "file"}).exit.success());
    const std::string stats = ask("memcstat", {}).text;
    EXPECT_NE(stats.find("curr_items: 1"), std::string::npos) << stats;
    EXPECT_TRUE(ask("memcping", {}).exit.success());
    EXPECT_TRUE(ask("memcrm", {"file"}).exit.success());
    EXPECT_FALSE(ask("memcexist", {"file"}).exit.success());
    EXPECT_EQ(TextClient{serving}.set("k", "v"), "STORED\r\n");
    EXPECT_TRUE(ask("memcflush", {}).exit.success());
    EXPECT_EQ(TextClient{serving}.ask("get k\r\n"), "END\r\n");
}

// It wants TCP. The binary protocol, which it asks for as well, is not spoken here.
TEST(MemcachedClients, FindThatTheDoorIsCapable) {
    if (!is_installed("memccapable")) {
        GTEST_SKIP() << "libmemcached-tools: scripts/install-dependencies test";
    }
    ServerOptions options;
    options.doors.memcached = connect::Address::parse("127.0.0.1:0");
    DoorServing serving{options};
    const auto* const address = serving.server().door_address(DoorKind::memcached);
    const std::string port = std::to_string(address->port());
    // What fails it says to standard error, and that is all of the binary protocol.
    const std::string said =
        run({"/bin/sh", "-c",
             "exec /usr/bin/memccapable -h 127.0.0.1 -t 20 -p " + port + " 2>/dev/null"})
            .text;
    int passed = 0;
    for (std::size_t at = 0; (at = said.find("ascii ", at)) != std::string::npos; ++at) {
        const std::string line = said.substr(at, said.find('\n', at) - at);
        EXPECT_NE(line.find("[pass]"), std::string::npos) << line;
        ++passed;
    }
    EXPECT_GE(passed, 27) << said;
}

TEST(MemcachedClients, AreServedByPymemcache) {
    if (run({"/usr/bin/python3", "-c", "import pymemcache; print(1)"}).text != "1\n") {
        GTEST_SKIP() << "python3-pymemcache: scripts/install-dependencies test";
    }
    const DoorServing serving;
    const Said said = run({"/usr/bin/python3", MILLRACE_SOURCE_DIR "/tests/doors/pymemcache_py.py",
                           serving.path(DoorKind::memcached)});
    EXPECT_TRUE(said.exit.success());
    EXPECT_EQ(said.text, "done\n");
}

}  // namespace
}  // namespace millrace::kv
