// `millrace perf` as a user runs it: a server, and measurements with it. What is measured is not
// looked at, only that every byte is accounted for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "millrace/base/deadline.hpp"
#include "support/child_process.hpp"
#include "support/command.hpp"
#include "support/setting_scope.hpp"
#include "support/temporary_folder.hpp"

namespace {

using millrace::test::ChildProcess;
using millrace::test::CommandOutcome;
using millrace::test::run_command;
using millrace::test::run_line;
using millrace::test::SettingScope;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

class Perf : public testing::Test {
  protected:
    void serve(const std::string& address, const Words& options = {}) {
        Words command{MILLRACE_COMMAND, "perf", "-s", address};
        command.insert(command.end(), options.begin(), options.end());
        server_.emplace(ChildProcess::start_program(command));
        const auto line = server_->read_line();
        ASSERT_TRUE(line && line->starts_with("listening on ")) << line.value_or("nothing");
        address_ = line->substr(std::string{"listening on "}.size());
    }
    void serve() { serve("unix:" + folder_.path("perf")); }

    [[nodiscard]] Words asking(Words words) const {
        words.insert(words.begin(), {"perf", "-c", address_});
        return words;
    }
    [[nodiscard]] CommandOutcome ask(Words words) const { return run_command(asking(words)); }
    /// Its JSON.
    [[nodiscard]] nlohmann::json measure(Words words) const {
        words.push_back("--json");
        const CommandOutcome outcome = ask(std::move(words));
        EXPECT_TRUE(outcome.exit.success()) << outcome.text;
        auto document = nlohmann::json::parse(outcome.text, nullptr, false);
        EXPECT_TRUE(document.is_object()) << outcome.text;
        return document;
    }

    millrace::test::TemporaryFolder folder_;
    std::string address_;
    std::optional<ChildProcess> server_;
};

constexpr std::uint64_t some = 5 << 20;

TEST_F(Perf, AccountsForEveryByteInEveryModeAndDirection) {
    serve();
    for (const Words& words : {Words{},
                               {"-R"},
                               {"--mode", "direct"},
                               {"--mode", "indirect", "-R"},
                               {"-P", "3"},
                               {"-l", "1000", "--buffers", "1"}}) {
        Words all{"-n", "5m"};
        all.insert(all.end(), words.begin(), words.end());
        const nlohmann::json document = measure(all);
        const auto& end = document.at("end");
        EXPECT_EQ(end.at("sum_sent").at("bytes"), some) << testing::PrintToString(words);
        EXPECT_EQ(end.at("sum_received").at("bytes"), some) << testing::PrintToString(words);
        EXPECT_GT(end.at("sum_received").at("bits_per_second"), 0.0);
    }
    const auto direct = measure({"-n", "5m", "--mode", "direct"});
    EXPECT_EQ(direct["end"]["streams"][0]["sender"]["percent_direct"], 100.0);
    const auto indirect = measure({"-n", "5m", "--mode", "indirect"});
    EXPECT_EQ(indirect["end"]["streams"][0]["sender"]["percent_direct"], 0.0);
}

TEST_F(Perf, MeasuresMessages) {
    for (const char* address : {"", "127.0.0.1:0"}) {
        serve(*address == '\0' ? "unix:" + folder_.path("perf") : address);
        for (const Words& words : {Words{},
                                   {"-R", "-l", "1000"},
                                   {"--mode", "direct", "-P", "2"},
                                   {"--mode", "indirect", "--bidir"}}) {
            Words all{"-n", "5m", "--type", "seqpacket"};
            all.insert(all.end(), words.begin(), words.end());
            const nlohmann::json document = measure(all);
            EXPECT_EQ(document.at("start").at("test_start").at("type"), "seqpacket");
            const auto& end = document.at("end");
            EXPECT_EQ(end.at("sum_sent").at("bytes"), some) << testing::PrintToString(words);
            EXPECT_EQ(end.at("sum_received").at("bytes"), some) << testing::PrintToString(words);
        }
        // Bytes without ends go on as before.
        EXPECT_EQ(measure({"-n", "5m"}).at("end").at("sum_received").at("bytes"), some);
    }
}

TEST_F(Perf, SendsBothWaysAtOnce) {
    serve();
    const nlohmann::json document = measure({"-n", "5m", "-P", "2", "--bidir"});
    const auto& end = document.at("end");
    EXPECT_EQ(end.at("streams").size(), 4U);
    for (const char* sum :
         {"sum_sent", "sum_received", "sum_sent_bidir_reverse", "sum_received_bidir_reverse"}) {
        EXPECT_EQ(end.at(sum).at("bytes"), some) << sum;
    }
}

TEST_F(Perf, MeasuresTcpAsWell) {
    serve("127.0.0.1:0");
    const nlohmann::json document = measure({"-n", "5m", "-P", "2", "--bidir", "--tcp"});
    EXPECT_EQ(document["start"]["test_start"]["protocol"], "TCP");
    EXPECT_EQ(document["end"]["sum_sent"]["bytes"], some);
    EXPECT_EQ(document["end"]["sum_received_bidir_reverse"]["bytes"], some);
}

TEST_F(Perf, MeasuresForATimeAndTellsInBetween) {
    serve();
    // Ten of them, but a busy machine may pass over some, so again until it has not.
    nlohmann::json document;
    for (const auto deadline = millrace::base::Deadline::after(std::chrono::seconds{40});
         document["intervals"].size() < 2 && !deadline.expired();) {
        document = measure({"-t", "1", "-i", "0.1", "-l", "64k"});
    }
    EXPECT_GE(document["intervals"].size(), 2U);
    EXPECT_GE(document["end"]["sum_sent"]["seconds"], 1.0);
    const CommandOutcome lines = ask({"-n", "1m"});
    EXPECT_THAT(lines.text, HasSubstr("receiver"));
    EXPECT_THAT(lines.text, HasSubstr("processor: "));
    EXPECT_THAT(lines.text, HasSubstr("device soft0 (soft device, fast: within this host memory"));
}

/// What it says of the device that it measures.
std::string device_of(const CommandOutcome& outcome) {
    const auto at = outcome.text.find("device ");
    return at == std::string::npos ? outcome.text
                                   : outcome.text.substr(at, outcome.text.find('\n', at) - at);
}

TEST_F(Perf, SaysWhereItMeasuresTheWire) {
    const SettingScope first_host{"MILLRACE_WIRE", "127.0.0.2"};
    serve("127.0.0.1:0");
    EXPECT_THAT(device_of(ask({"-n", "1m"})), Not(HasSubstr("wire")));
    const SettingScope second_host{"MILLRACE_WIRE", "127.0.0.3"};
    EXPECT_THAT(device_of(ask({"-n", "1m"})),
                HasSubstr("over the wire: RoCEv2, from UDP 127.0.0.3 port "));
}

// Its own copy of the device takes the place of the drop-in's, which programs of others get.
TEST_F(Perf, GetsTheWireThatSoftRunTurnsOn) {
    const auto on_host = [](const std::string& host, const Words& words) {
        Words all{"soft", "run", "--wire", host, "--", MILLRACE_COMMAND, "perf"};
        all.insert(all.end(), words.begin(), words.end());
        return all;
    };
    Words serves = on_host("127.0.0.2", {"-s", "127.0.0.1:0"});
    serves.insert(serves.begin(), MILLRACE_COMMAND);
    server_.emplace(ChildProcess::start_program(serves));
    const std::string line = server_->read_line().value_or("nothing");
    ASSERT_TRUE(line.starts_with("listening on ")) << line;
    const std::string address = line.substr(std::string{"listening on "}.size());
    const CommandOutcome outcome = run_command(on_host("127.0.0.3", {"-c", address, "-n", "1m"}));
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(device_of(outcome), HasSubstr("from UDP 127.0.0.3 port "));
    EXPECT_THAT(device_of(outcome), HasSubstr("to 127.0.0.2 port "));
}

TEST_F(Perf, EndsBehindOneMeasurementIfAsked) {
    serve("unix:" + folder_.path("perf"), {"--one-off"});
    EXPECT_TRUE(ask({"-n", "1m"}).exit.success());
    EXPECT_TRUE(server_->wait().success());
}

TEST_F(Perf, ServesOneClientAtATimeAndGoesOnBehindOneThatGaveUp) {
    serve();
    Words command{MILLRACE_COMMAND};
    const Words words = asking({"-t", "300"});
    command.insert(command.end(), words.begin(), words.end());
    ChildProcess first = ChildProcess::start_program(command);
    ASSERT_TRUE(first.read_line().has_value());  // it has begun to speak
    // The server knows its plan when it says so.
    const auto known = server_->read_line();
    ASSERT_TRUE(known && known->ends_with(": 1 stream")) << known.value_or("nothing");
    const CommandOutcome second = ask({"-n", "1m"});
    EXPECT_TRUE(second.exit.exited_with(1)) << second.exit;
    EXPECT_THAT(second.text, HasSubstr("it serves another client"));
    ASSERT_EQ(::kill(first.pid(), SIGINT), 0);
    EXPECT_TRUE(first.wait().exited_with(130));
    // Until the server has found out, it is still busy.
    const auto is_late = std::chrono::steady_clock::now() + std::chrono::seconds{40};
    CommandOutcome third = ask({"-n", "1m"});
    while (third.text.find("another client") != std::string::npos &&
           std::chrono::steady_clock::now() < is_late) {
        third = ask({"-n", "1m"});
    }
    EXPECT_TRUE(third.exit.success()) << third.text;
}

TEST_F(Perf, TheClientOfAKilledServerEnds) {
    serve();
    Words command{MILLRACE_COMMAND};
    const Words words = asking({"-t", "300", "--bidir"});
    command.insert(command.end(), words.begin(), words.end());
    ChildProcess client = ChildProcess::start_program(command);
    ASSERT_TRUE(server_->read_line().has_value());
    server_->kill();
    EXPECT_TRUE(client.wait().exited_with(1));
}

TEST_F(Perf, WaitsForNoStoppedServerForEver) {
    serve();
    Words command{MILLRACE_COMMAND};
    const Words words = asking({"-t", "300"});
    command.insert(command.end(), words.begin(), words.end());
    ChildProcess first = ChildProcess::start_program(command);
    ASSERT_TRUE(server_->read_line().has_value());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(first.read_line().has_value());  // bytes are moving
    ASSERT_TRUE(server_->stop());
    EXPECT_TRUE(first.wait(std::chrono::minutes{2}).exited_with(1));
    server_->resume();
}

TEST_F(Perf, AStoppedClientHoldsUpNobodyForEver) {
    serve();
    Words command{MILLRACE_COMMAND};
    const Words words = asking({"-t", "300"});
    command.insert(command.end(), words.begin(), words.end());
    ChildProcess first = ChildProcess::start_program(command);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(first.read_line().has_value());  // bytes are moving
    ASSERT_TRUE(first.stop());
    CommandOutcome second = ask({"-n", "1m"});
    for (int i = 0; i < 200 && !second.exit.success(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds{300});
        second = ask({"-n", "1m"});
    }
    EXPECT_TRUE(second.exit.success()) << second.text;
    first.resume();
}

TEST_F(Perf, OtherProgramsAreLeftAlone) {
    serve();
    const CommandOutcome cat = run_line("echo text | \"$0\" cat " + address_ + " 2>&1");
    EXPECT_TRUE(cat.exit.exited_with(1)) << cat.text;
    EXPECT_TRUE(ask({"-n", "1m"}).exit.success());
}

TEST_F(Perf, AsksForTheSecret) {
    const std::string secret = folder_.path("secret");
    ASSERT_TRUE(run_line("umask 077; echo 'sixteen bytes and some' > " + secret).exit.success());
    serve("unix:" + folder_.path("perf"), {"--secret-file", secret});
    EXPECT_TRUE(ask({"-n", "1m"}).exit.exited_with(1));
    EXPECT_TRUE(ask({"-n", "1m", "--secret-file", secret}).exit.success());
}

TEST_F(Perf, RefusesWhatCannotBeMeasured) {
    const auto refused = [](const Words& words, const char* why) {
        const CommandOutcome outcome = run_command(words);
        EXPECT_TRUE(outcome.exit.exited_with(2)) << outcome.text;
        EXPECT_THAT(outcome.text, HasSubstr(why));
    };
    refused({"perf"}, "either -s or -c");
    refused({"perf", "-c", "unix:/nowhere/x", "--tcp"}, "a host and a port");
    refused({"perf", "-c", ":1", "--tcp", "--type", "seqpacket"}, "excludes");
    refused({"perf", "-c", ":1", "--type", "datagram"}, "--type");
    refused({"perf", "-c", ":1", "-t", "0"}, "--time");
    refused({"perf", "-c", ":1", "-l", "65m"}, "number of bytes, from 1 to 64m");
    refused({"perf", "-c", ":1", "-l", "64m", "--buffers", "64", "-P", "2"}, "bytes of buffers");
    refused({"perf", "-c", ":1", "-n", "1", "-P", "2"}, "fewer bytes than streams");
    refused({"perf", "-s", "-c", ":1"}, "excludes");
    refused({"perf", "-s", "-R"}, "--client");
}

}  // namespace
