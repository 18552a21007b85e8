// SAVE, BGSAVE and LASTSAVE, and snapshots by themselves, while clients of a door are served.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "doors/resp_client.hpp"

namespace millrace::kv {
namespace {

class RespSaves : public testing::Test {
  protected:
    /// Waits until what is known of snapshots is so.
    template <class IsSo>
    static bool becomes(const DoorServing& serving, IsSo is_so) {
        const auto deadline = base::Deadline::after(test::patience);
        while (!is_so(serving.server().save_stats())) {
            if (deadline.expired()) return false;
            std::this_thread::yield();
        }
        return true;
    }
    static bool is_written(const SaveStats& now) { return !now.is_writing && now.written != 0; }
    [[nodiscard]] ServerOptions with_file(std::uint32_t threads) const {
        ServerOptions options = of_threads(threads);
        options.snapshot_file = file;
        return options;
    }

    test::TemporaryFolder folder;
    const std::string file = folder.path("items");
};

TEST_F(RespSaves, NeedAFile) {
    DoorServing serving;
    RawClient client{serving};
    EXPECT_NE(client.ask({"save"}).find("--snapshot"), std::string::npos);
    EXPECT_NE(client.ask({"bgsave"}).find("--snapshot"), std::string::npos);
    EXPECT_EQ(client.ask({"bgsave", "x"}), "-ERR syntax error\r\n");
}

class RespSavesOf : public RespSaves, public testing::WithParamInterface<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, RespSavesOf, testing::Values(1U, 3U),
                         [](const auto& of) { return "of" + std::to_string(of.param); });

TEST_P(RespSavesOf, HaveEveryKeyThatIsThereAllTheWhile) {
    constexpr int keys = 2000;
    const auto key = [](int i) { return "key:" + std::to_string(i); };
    {
        DoorServing serving{with_file(GetParam())};
        RawClient client{serving};
        for (int i = 0; i < keys; ++i) {
            ASSERT_EQ(client.ask({"set", key(i), std::string(1 + i % 900, 'v')}), "+OK\r\n");
        }
        std::atomic<bool> ends{false};
        std::thread writer{[&] {
            RawClient other{serving};
            for (unsigned i = 0; !ends; i = i * 1'103'515'245 + 12'345) {
                (void)other.ask({"set", key(static_cast<int>(i / 65'536 % keys)),
                                 std::string(1 + i / 64 % 3000, 'v')});
            }
        }};
        ASSERT_EQ(client.ask({"bgsave"}), "+Background saving started\r\n");
        EXPECT_TRUE(becomes(serving, is_written));
        ends = true;
        writer.join();
        const std::string at = std::to_string(serving.server().save_stats().last_at);
        EXPECT_EQ(client.ask({"lastsave"}), ':' + at + "\r\n");
        const std::string info = client.ask({"info", "persistence"});
        EXPECT_NE(info.find("rdb_bgsave_in_progress:0\r\n"), std::string::npos) << info;
        EXPECT_NE(info.find("rdb_last_save_time:" + at + "\r\n"), std::string::npos) << info;
        EXPECT_NE(info.find("rdb_last_bgsave_status:ok\r\n"), std::string::npos) << info;
    }
    DoorServing serving{with_file(1)};
    EXPECT_EQ(serving.server().loaded().items, std::uint64_t{keys});
}

TEST_F(RespSaves, AreOneAtATimeAndTellThatOneFailed) {
    // Whoever opens this waits until it is read: the writer.
    ASSERT_EQ(::mkfifo((file + ".new").c_str(), 0600), 0);
    DoorServing serving{with_file(1)};
    RawClient client{serving};
    ASSERT_EQ(client.ask({"set", "k", "v"}), "+OK\r\n");
    ASSERT_EQ(client.ask({"bgsave"}), "+Background saving started\r\n");
    EXPECT_EQ(client.ask({"bgsave", "schedule"}), "-ERR Background save already in progress\r\n");
    EXPECT_EQ(client.ask({"save"}), "-ERR Background save already in progress\r\n");
    EXPECT_NE(client.ask({"info", "persistence"}).find("rdb_bgsave_in_progress:1\r\n"),
              std::string::npos);
    EXPECT_EQ(client.ask({"get", "k"}), "$1\r\nv\r\n") << "others are served meanwhile";
    {
        std::ifstream reader{file + ".new", std::ios::binary};
        const std::string all{std::istreambuf_iterator<char>{reader}, {}};
        EXPECT_EQ(all.substr(0, 8), "MRKVSNAP");
    }
    // It cannot be synchronised: a pipe is on no disk.
    EXPECT_TRUE(becomes(serving, [](const SaveStats& now) { return now.failed == 1; }));
    EXPECT_TRUE(becomes(serving, [](const SaveStats& now) { return !now.is_writing; }));
    EXPECT_NE(client.ask({"info", "persistence"}).find("rdb_last_bgsave_status:err\r\n"),
              std::string::npos);
    ASSERT_EQ(client.ask({"bgsave"}), "+Background saving started\r\n");
    EXPECT_TRUE(becomes(serving, is_written));
    EXPECT_NE(client.ask({"info", "persistence"}).find("rdb_last_bgsave_status:ok\r\n"),
              std::string::npos);
}

TEST_P(RespSavesOf, ComeByThemselvesWhereSomethingHasChanged) {
    ServerOptions options = with_file(GetParam());
    options.snapshot_period = std::chrono::milliseconds{5};
    {
        DoorServing serving{options};
        RawClient client{serving};
        for (std::uint64_t i = 1; i <= 3; ++i) {
            const std::uint64_t before = serving.server().save_stats().written;
            ASSERT_EQ(client.ask({"set", "k", std::to_string(i)}), "+OK\r\n");
            ASSERT_TRUE(
                becomes(serving, [&](const SaveStats& now) { return now.written > before; }));
        }
        ASSERT_EQ(client.ask({"del", "k"}), ":1\r\n");
        ASSERT_EQ(client.ask({"set", "other", "v"}), "+OK\r\n");
        // Twice, as the first of them may have begun before that.
        const std::uint64_t before = serving.server().save_stats().written;
        ASSERT_TRUE(becomes(serving, [&](const SaveStats& now) { return now.written > before; }));
        ASSERT_EQ(client.ask({"set", "other", "w"}), "+OK\r\n");
        ASSERT_TRUE(
            becomes(serving, [&](const SaveStats& now) { return now.written > before + 1; }));
    }
    options.snapshot_period = std::chrono::hours{1};
    DoorServing serving{options};
    RawClient client{serving};
    EXPECT_EQ(client.ask({"exists", "k", "other"}), ":1\r\n");
    EXPECT_EQ(client.ask({"get", "other"}).substr(0, 4), "$1\r\n");
}

TEST(Saves, RefusePeriodsThatAreNone) {
    const test::TemporaryFolder folder;
    const auto listen = [&](const std::string& file, int seconds) {
        ServerOptions options;
        options.messages.transports = connect::Transport::tcp;
        options.snapshot_file = file;
        options.snapshot_period = std::chrono::seconds{seconds};
        (void)Server::listen(connect::Address::unix_socket(folder.path("own")), options);
    };
    EXPECT_THROW(listen("", 1), base::Error);
    EXPECT_THROW(listen(folder.path("items"), -1), base::Error);
    EXPECT_NO_THROW(listen(folder.path("items"), 1));
}

}  // namespace
}  // namespace millrace::kv
