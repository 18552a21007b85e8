// `millrace soft status`, `soft clean` and `soft trace`, with `millrace cat` and with an unmodified
// program as the watched ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/child_process.hpp"
#include "support/command.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::tools {
namespace {

using millrace::test::ChildProcess;
using millrace::test::Exit;
using millrace::test::run_command;
using millrace::test::run_line;
using Outcome = millrace::test::CommandOutcome;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Soft : public testing::Test {
  protected:
    [[nodiscard]] std::string fabric() const { return "soft-test-" + std::to_string(getpid()); }
    [[nodiscard]] std::vector<std::string> on_fabric() const {
        return {"MILLRACE_FABRIC=" + fabric()};
    }
    [[nodiscard]] std::string address() const { return "unix:" + folder_.path("socket"); }
    [[nodiscard]] const std::string& folder() const { return folder_.path(); }

    [[nodiscard]] json status() const {
        const Outcome outcome = run_command({"soft", "status", "--json", "--fabric", fabric()});
        EXPECT_TRUE(outcome.exit.success()) << outcome.text;
        return json::parse(outcome.text)["participants"];
    }

  private:
    millrace::test::TemporaryFolder folder_;
};

TEST_F(Soft, StatusSaysThatNobodyIsThere) {
    const Outcome outcome = run_command({"soft", "status", "--fabric", fabric()});
    EXPECT_TRUE(outcome.exit.success());
    EXPECT_THAT(outcome.text, HasSubstr("no program has the soft device open on fabric"));
    EXPECT_EQ(status().size(), 0U);
}

TEST_F(Soft, StatusAndCleanSayThatTheyCannotTellWithoutProc) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, for a mount namespace of its own";
    for (const std::string word : {"status", "status --json", "clean"}) {
        const Outcome outcome = run_line(
            "exec 2>&1; unshare --mount --propagation unchanged true || exit 77\n"
            "exec unshare --mount --propagation unchanged /bin/sh -c '"
            "mount --make-rprivate / 2>/dev/null; mount -t tmpfs none /proc || exit 77; "
            "exec \"$0\" soft " +
            word + "' \"$0\"");
        if (outcome.exit.exited_with(77)) GTEST_SKIP() << "no mounts here: " << outcome.text;
        EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.exit << '\n' << outcome.text;
        EXPECT_THAT(outcome.text,
                    AllOf(HasSubstr("cannot tell who has the soft device open"),
                          HasSubstr("it shows no process"), Not(HasSubstr("no program"))));
    }
}

TEST_F(Soft, StatusShowsBothEndsOfAConnectionAndWhatTheyHave) {
    ChildProcess listening =
        ChildProcess::start_program({MILLRACE_COMMAND, "cat", "listen", address()}, on_fabric());
    ChildProcess sending =
        ChildProcess::start_program({MILLRACE_COMMAND, "cat", address()}, on_fabric());
    ASSERT_TRUE(sending.write_line("hello"));
    ASSERT_EQ(listening.read_line(), "hello");  // so both are connected

    const json both = status();
    ASSERT_EQ(both.size(), 2U) << both;
    std::map<int, json> by_pid;
    std::map<unsigned, json> queue_pairs;
    for (const auto& one : both) {
        by_pid[one["pid"].get<int>()] = one;
        EXPECT_EQ(one["fabric"], fabric());
        EXPECT_EQ(one["program"], "millrace");
        EXPECT_EQ(one["user_id"], geteuid());
        EXPECT_TRUE(one["readable"].get<bool>());
        ASSERT_FALSE(one["queue_pairs"].empty()) << one;
        EXPECT_FALSE(one["regions"].empty());
        EXPECT_GT(one["control_memory_bytes"], 0);
        for (const auto& qp : one["queue_pairs"]) {
            EXPECT_EQ(qp["number"].get<unsigned>() >> 12, one["node"].get<unsigned>());
            queue_pairs[qp["number"].get<unsigned>()] = qp;
        }
        for (const auto& region : one["regions"]) EXPECT_GT(region["bytes"], 0);
    }
    EXPECT_TRUE(by_pid.contains(listening.pid()));
    EXPECT_TRUE(by_pid.contains(sending.pid()));
    for (const auto& [number, qp] : queue_pairs) {
        EXPECT_EQ(qp["type"], "RC");
        EXPECT_EQ(qp["state"], "RTS");
        const auto peer = qp["peer"].get<unsigned>();
        ASSERT_TRUE(queue_pairs.contains(peer)) << both;
        EXPECT_EQ(queue_pairs[peer]["peer"].get<unsigned>(), number);
    }
    bool counted = false;
    for (const auto& page : by_pid[sending.pid()]["counters"]) {
        counted = counted || page["title"] == "soft device";
    }
    EXPECT_TRUE(counted) << both;

    const Outcome table = run_command({"soft", "status", "--fabric", fabric()});
    EXPECT_THAT(table.text,
                AllOf(HasSubstr("pid " + std::to_string(listening.pid())),
                      HasSubstr("pid " + std::to_string(sending.pid())), HasSubstr("RC  RTS"),
                      HasSubstr("mapped by peers"), HasSubstr("completion channel")));

    sending.close_input();
    EXPECT_TRUE(sending.wait().success());
    EXPECT_TRUE(listening.wait().success());
    EXPECT_EQ(status().size(), 0U);
}

TEST_F(Soft, CleanSaysWhatItLookedForAndRemovesOnlyOldFoldersOfDemos) {
    const std::string old_one = folder() + "/millrace-demo-oldold";
    const std::string new_one = folder() + "/millrace-demo-newnew";
    const std::string other = folder() + "/something-else";
    for (const auto& path : {old_one, new_one, other}) {
        std::filesystem::create_directory(path);
        std::ofstream{path + "/socket"} << "";
    }
    const utimbuf long_ago{.actime = 1'000'000'000, .modtime = 1'000'000'000};
    ASSERT_EQ(utime(old_one.c_str(), &long_ago), 0);
    ASSERT_EQ(utime(other.c_str(), &long_ago), 0);
    const std::vector<std::string> here{"TMPDIR=" + folder()};

    const Outcome dry = run_command({"soft", "clean", "--dry-run"}, here);
    EXPECT_TRUE(dry.exit.success()) << dry.text;
    EXPECT_THAT(dry.text, AllOf(HasSubstr(old_one + " would be removed"),
                                Not(HasSubstr("nothing to clean"))));
    EXPECT_TRUE(std::filesystem::exists(old_one));

    const Outcome outcome = run_command({"soft", "clean"}, here);
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(outcome.text,
                AllOf(HasSubstr("names of fabrics"), HasSubstr("memory of dead programs"),
                      HasSubstr("/dev/shm"), HasSubstr(old_one + " removed")));
    EXPECT_FALSE(std::filesystem::exists(old_one));
    EXPECT_TRUE(std::filesystem::exists(new_one));
    EXPECT_TRUE(std::filesystem::exists(other));

    EXPECT_THAT(run_command({"soft", "clean"}, here).text, HasSubstr("none older than a day"));
}

TEST_F(Soft, CleanTellsOfADeadPeersMemoryAndWhoHoldsIt) {
    ChildProcess listening = ChildProcess::start_program(
        {"/bin/sh", "-c", "exec \"$0\" cat listen \"$1\" 2>/dev/null", MILLRACE_COMMAND, address()},
        on_fabric());
    ChildProcess sending =
        ChildProcess::start_program({MILLRACE_COMMAND, "cat", address()}, on_fabric());
    ASSERT_TRUE(sending.write_line("hello"));
    ASSERT_EQ(listening.read_line(), "hello");
    // While it is stopped, it does not notice that its peer dies, and keeps its memory.
    ASSERT_TRUE(listening.stop());
    (void)sending.kill_and_wait();
    const Outcome outcome = run_command({"soft", "clean"});
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("of fabric '" + fabric() + "'"),
                                    HasSubstr("held by pid " + std::to_string(listening.pid()))));
    listening.resume();
    EXPECT_FALSE(listening.wait().success());
    EXPECT_THAT(run_command({"soft", "clean"}).text, Not(HasSubstr("'" + fabric() + "'")));
}

// --- trace

std::vector<json> lines_of(const std::string& path) {
    std::vector<json> lines;
    std::ifstream file{path};
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
}

std::size_t count(const std::vector<json>& lines, const json& wanted) {
    std::size_t found = 0;
    for (const json& line : lines) {
        bool fits = true;
        for (const auto& [key, value] : wanted.items()) {
            fits = fits && line.contains(key) && line[key] == value;
        }
        found += fits ? 1 : 0;
    }
    return found;
}

TEST_F(Soft, TraceWritesEveryRequestAndCompletionOfBothEnds) {
    const std::string file = folder() + "/trace";
    auto environment = on_fabric();
    environment.push_back("MILLRACE_TRACE=" + file);
    environment.push_back("MILLRACE_CARRIER=post");  // what is stored is no request
    ChildProcess listening =
        ChildProcess::start_program({MILLRACE_COMMAND, "cat", "listen", address()}, environment);
    ChildProcess sending =
        ChildProcess::start_program({MILLRACE_COMMAND, "cat", address()}, environment);
    ASSERT_TRUE(sending.write_line("hello"));
    sending.close_input();
    EXPECT_EQ(listening.read_line(), "hello");
    EXPECT_TRUE(sending.wait().success());
    EXPECT_TRUE(listening.wait().success());

    const std::vector<json> lines = lines_of(file);
    for (const pid_t pid : {listening.pid(), sending.pid()}) {
        EXPECT_EQ(count(lines, {{"pid", pid}, {"call", "open_device"}, {"program", "millrace"}}),
                  1U);
        EXPECT_EQ(count(lines, {{"pid", pid}, {"call", "create_qp"}, {"type", "RC"}}), 1U);
        for (const char* const state : {"INIT", "RTR", "RTS"}) {
            EXPECT_EQ(count(lines, {{"pid", pid}, {"call", "modify_qp"}, {"state", state}}), 1U)
                << state;
        }
        EXPECT_GE(count(lines, {{"pid", pid}, {"call", "reg_mr"}}), 2U);
        EXPECT_EQ(count(lines, {{"pid", pid}, {"call", "reg_mr"}}),
                  count(lines, {{"pid", pid}, {"call", "dereg_mr"}}));
        EXPECT_EQ(count(lines, {{"pid", pid}, {"call", "destroy_qp"}}), 1U);
        EXPECT_EQ(count(lines, {{"pid", pid}, {"call", "close_device"}}), 1U);
    }
    EXPECT_GE(count(lines, {{"pid", sending.pid()}, {"call", "post_send"}, {"opcode", "WRITE"}}),
              1U);
    EXPECT_EQ(count(lines, {{"call", "completion"}, {"status", "LOC_PROT_ERR"}}), 0U);
    std::int64_t last = 0;
    for (const json& line : lines) {
        if (line["pid"] != sending.pid()) continue;
        EXPECT_GE(line["time"].get<std::int64_t>(), last) << line;  // one thread
        last = line["time"].get<std::int64_t>();
    }
}

/// A port below those that the system gives to whoever asks for any.
std::string port_of_this_test(int attempt) {
    return std::to_string(20'000 + (getpid() * 11 + attempt * 1'117) % 12'000);
}

bool pingpong_runs() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;  // an unmodified program has not the sanitizer's runtime
#else
    return std::system("command -v ibv_rc_pingpong >/dev/null") == 0;
#endif
}

/// A server's and a client's ibv_rc_pingpong; the client is traced. `wire`: the server's address on
/// it, or off.
Outcome pingpong(const std::string& fabric, std::vector<std::string> trace_options,
                 const std::string& wire = "off") {
    const std::string gid = wire == "off" ? "0" : "1";
    // The client tries until the server listens. Where another program has the port, both end.
    for (int attempt = 0; attempt < 3; ++attempt) {
        const std::string port = port_of_this_test(attempt);
        ChildProcess server =
            ChildProcess::start_program({"/bin/sh", "-c",
                                         "exec \"$0\" soft run --fabric \"$1\" --wire \"$3\" -- "
                                         "ibv_rc_pingpong -d soft0 -n 5 -s 100 -p \"$2\" -g \"$4\" "
                                         "2>&1",
                                         MILLRACE_COMMAND, fabric, port, wire, gid});
        std::vector<std::string> arguments{"soft", "trace", "--fabric", fabric};
        arguments.insert(arguments.end(), trace_options.begin(), trace_options.end());
        for (const char* const one :
             {"--", "/bin/sh", "-c",
              "i=0; while [ $((i += 1)) -lt 50 ]; do ibv_rc_pingpong -d soft0 -n 5 "
              "-s 100 -p \"$0\" -g \"$1\" 127.0.0.1 && exit 0; sleep 0.2; done; exit 9"}) {
            arguments.emplace_back(one);
        }
        arguments.insert(arguments.end(), {port, gid});
        Outcome outcome = run_command(arguments);
        if (server.wait().success()) return outcome;
    }
    return {"no port", {}};
}

TEST_F(Soft, StatusShowsPooledReceivesOfAnUnmodifiedServer) {
    if (!pingpong_runs()) GTEST_SKIP() << "needs ibverbs-utils and a drop-in without sanitizers";
    // A server that waits for its client: its queue pairs are in INIT, its receives are posted.
    const std::string port = port_of_this_test(0);
    for (const std::string type : {"UD", "RC"}) {
        ChildProcess server = ChildProcess::start_program(
            {MILLRACE_COMMAND, "soft", "run", "--fabric", fabric(), "--",
             type == "UD" ? "ibv_ud_pingpong" : "ibv_srq_pingpong", "-d", "soft0", "-r", "40", "-p",
             port});
        json seen;
        for (int i = 0; i < 400; ++i) {
            seen = status();
            if (seen.size() == 1 && !seen[0]["queue_pairs"].empty() &&
                seen[0]["queue_pairs"].back()["state"] == "INIT" &&
                seen[0]["queue_pairs"][0]["posted_receives"] == 40) {
                break;
            }
            usleep(20'000);
        }
        ASSERT_EQ(seen.size(), 1U) << type;
        ASSERT_EQ(seen[0]["queue_pairs"].size(), type == "UD" ? 1U : 16U) << seen;
        for (const auto& qp : seen[0]["queue_pairs"]) {
            EXPECT_EQ(qp["type"], type);
            EXPECT_EQ(qp["state"], "INIT");
            EXPECT_TRUE(qp["peer"].is_null()) << qp;
            EXPECT_TRUE(qp["pool"].is_number()) << qp;
            EXPECT_EQ(qp["posted_receives"], 40) << qp;
        }
        (void)server.kill_and_wait();
    }
}

TEST_F(Soft, TraceShowsAnUnmodifiedProgramsTimeline) {
    if (!pingpong_runs()) GTEST_SKIP() << "needs ibverbs-utils and a drop-in without sanitizers";
    const Outcome outcome = pingpong(fabric(), {});
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("open_device"), HasSubstr("program ibv_rc_pingpong"),
                                    HasSubstr("state RTS"), HasSubstr("SUCCESS  SEND"),
                                    HasSubstr("SUCCESS  RECEIVE"), HasSubstr("bytes 100")));
}

/// An address of the loopback for a host of this test.
std::string loopback(int host) {
    const int own = static_cast<int>(getpid());
    return "127." + std::to_string(200 + (own >> 8) % 50) + "." + std::to_string(own & 0xff) + "." +
           std::to_string(host);
}

TEST_F(Soft, TraceWritesTheWiresPacketsAsTsharkReadsThem) {
    if (!pingpong_runs()) GTEST_SKIP() << "needs ibverbs-utils and a drop-in without sanitizers";
    const std::string file = folder() + "/wire.pcap";
    const Outcome outcome =
        pingpong(fabric(), {"--wire", loopback(3), "--pcap", file}, loopback(2));
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    const auto packets = [&](const std::string& source) {
        // 4: SEND_ONLY of a reliable connection
        // A packet may go twice where the machine is busy.
        return run_line("tshark -r \"$1\" -Y \"infiniband.bth.opcode == 4 && ip.src == $2\" "
                        "-T fields -e infiniband.bth.psn 2>/dev/null | sort -u | wc -l",
                        {file, source})
            .text;
    };
    EXPECT_THAT(packets(loopback(3)), HasSubstr("5\n"));
    EXPECT_THAT(packets(loopback(2)), HasSubstr("5\n"));
}

TEST_F(Soft, StatusShowsWhoHasAPortOfTheWire) {
    if (!pingpong_runs()) GTEST_SKIP() << "needs ibverbs-utils and a drop-in without sanitizers";
    const std::string port = port_of_this_test(0);
    ChildProcess server = ChildProcess::start_program(
        {MILLRACE_COMMAND, "soft", "run", "--fabric", fabric(), "--wire", loopback(4), "--",
         "ibv_rc_pingpong", "-d", "soft0", "-g", "1", "-p", port});
    json seen;
    for (int i = 0; i < 400 && (seen.size() != 1 || seen[0]["counters"].size() < 2); ++i) {
        seen = status();
        usleep(20'000);
    }
    const Outcome table = run_command({"soft", "status", "--fabric", fabric()});
    EXPECT_THAT(table.text, HasSubstr("wire " + loopback(4) + ":4791: slot of the port "));
    EXPECT_THAT(table.text, HasSubstr("processes at the port 1"));
    (void)server.kill_and_wait();
}

TEST_F(Soft, ProgramsDoNotRunOnAWireThatCannotBe) {
    const Outcome wrong = run_command({"soft", "run", "--wire", "localhost", "--", "true"});
    EXPECT_TRUE(wrong.exit.exited_with(2)) << wrong.exit;
    EXPECT_THAT(wrong.text, HasSubstr("neither auto nor an IP address in numbers"));
}

TEST_F(Soft, TraceWritesJsonIntoAFileAndLeavesTheProgramsOutputAlone) {
    if (!pingpong_runs()) GTEST_SKIP() << "needs ibverbs-utils and a drop-in without sanitizers";
    const std::string file = folder() + "/trace.json";
    const Outcome outcome = pingpong(fabric(), {"--json", "--output", file});
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("5 iters in"), Not(HasSubstr("open_device"))));
    const auto lines = lines_of(file);
    EXPECT_EQ(count(lines, {{"call", "post_send"}, {"opcode", "SEND"}, {"bytes", 100}}), 5U);
    EXPECT_EQ(count(lines, {{"call", "completion"}, {"opcode", "SEND"}, {"status", "SUCCESS"}}),
              5U);
    EXPECT_EQ(count(lines, {{"call", "completion"}, {"opcode", "RECEIVE"}}), 5U);
    // As many as it keeps posted, by its default.
    EXPECT_GE(count(lines, {{"call", "post_recv"}, {"bytes", 100}}), 5U);
}

// As `--json` does everywhere; what the program says would be among it.
TEST_F(Soft, TraceWritesJsonAloneToStandardOutputAndNothingElse) {
    if (!pingpong_runs()) GTEST_SKIP() << "needs ibverbs-utils and a drop-in without sanitizers";
    const Outcome outcome =
        run_line("exec \"$0\" \"$@\" 2>/dev/null </dev/null",
                 {"soft", "trace", "--json", "--fabric", fabric(), "--", "/bin/sh", "-c",
                  "echo said by the program; ibv_devinfo -d soft0"});
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(outcome.text,
                AllOf(HasSubstr(R"("call":"open_device")"), HasSubstr(R"("call":"close_device")"),
                      Not(HasSubstr("said by")), Not(HasSubstr("hca_id"))));
}

TEST_F(Soft, TraceEndsAsTheProgramDoes) {
    EXPECT_TRUE(
        run_command({"soft", "trace", "--", "/bin/sh", "-c", "exit 7"}).exit.exited_with(7));
    EXPECT_TRUE(
        run_command({"soft", "trace", "--", "/bin/sh", "-c", "kill -9 $$"}).exit.exited_with(137));
    const Outcome missing = run_command({"soft", "trace", "--", "/nowhere/program"});
    EXPECT_TRUE(missing.exit.exited_with(127)) << missing.exit;
    EXPECT_THAT(missing.text, AllOf(HasSubstr("/nowhere/program"), HasSubstr("PATH")));
    const Outcome unwritable =
        run_command({"soft", "trace", "--output", folder() + "/nowhere/x", "--", "true"});
    EXPECT_TRUE(unwritable.exit.exited_with(1));
    EXPECT_THAT(unwritable.text, AllOf(HasSubstr("write the trace"), HasSubstr("nowhere")));
}

TEST_F(Soft, ProgramsDoNotRunUntracedWhereTheTraceCannotBeWritten) {
    for (const std::string& file : {folder() + "/nowhere/x", std::string{"/dev/full"}}) {
        const Outcome outcome =
            run_command({"kv", "bench", "--seconds", "0.01"}, {"MILLRACE_TRACE=" + file});
        EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.exit << outcome.text;
        EXPECT_THAT(outcome.text, AllOf(HasSubstr("trace the program"), HasSubstr(file),
                                        HasSubstr("MILLRACE_TRACE")));
        EXPECT_THAT(outcome.text, Not(HasSubstr("operations per second")));
    }
}

}  // namespace
}  // namespace millrace::tools
