// Programs that connect through the system's librdmacm, unmodified, on the drop-in: two real
// processes each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/wait.hpp"
#include "millrace/cm/survey.hpp"
#include "programs.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing::Not;

using Command = std::vector<std::string>;

/// The ports that the programs which this test process starts have taken.
std::vector<cm::TakenPort> ports_of_these_programs() {
    auto ports = cm::taken_ports();
    const std::string fabric = "drop-in-test-" + std::to_string(getpid());
    std::erase_if(ports, [&](const auto& one) { return one.fabric != fabric; });
    return ports;
}

/// Waits until the condition holds.
template <class Condition>
[[nodiscard]] bool comes_true(const Condition& condition) {
    base::NapParker parker;
    return base::wait_until(condition, base::Deadline::after(patience),
                            base::WaitPolicy::blocking(), parker) == base::Status::ok;
}

[[nodiscard]] bool listens(const std::string& port) {
    return comes_true([&] {
        const auto ports = ports_of_these_programs();
        return std::any_of(ports.begin(), ports.end(), [&](const auto& one) {
            return one.listening && std::to_string(one.port) == port;
        });
    });
}

[[nodiscard]] bool nothing_is_left() {
    return comes_true([] { return ports_of_these_programs().empty(); });
}

/// What the process runs at the moment.
std::string program_of(pid_t process) {
    std::string name;
    std::getline(std::ifstream{"/proc/" + std::to_string(process) + "/comm"}, name);
    return name;
}

/// A server that ends by itself or is ended, and its client. PORT stands for a free one.
struct Program {
    std::string name;
    Command server;
    Command client;
    bool server_ends = true;
    std::string port{};  ///< the one that it always takes; no other process is on this fabric
};
void PrintTo(const Program& program, std::ostream* stream) { *stream << program.name; }

Command with_port(Command command, const std::string& port) {
    for (auto& word : command) {
        if (word == "PORT") word = port;
    }
    return command;
}

PairOutcome run(const Program& program, Loading loading = Loading::library_path) {
    const std::string port = program.port.empty() ? free_port() : program.port;
    PairOutcome outcome;
    auto server = start_on_soft_device(with_port(program.server, port), loading);
    if (!listens(port)) {
        outcome.server = finish(server, std::chrono::milliseconds{0});
        return outcome;
    }
    outcome.client = run_on_soft_device(with_port(program.client, port), loading);
    if (!program.server_ends) server.send_signal(SIGTERM);
    outcome.server = finish(server);
    if (!program.server_ends && outcome.server.exit.killed_by(SIGTERM)) {
        outcome.server.exit = {Exit::How::exited, 0};
    }
    // rping closes its channel at the end, whether its other thread is about to ask it for an event
    // or not; one that does ends the program by what it says then, after all that is judged.
    for (auto* const end : {&outcome.server, &outcome.client}) {
        if (end->output.find("rdma_get_cm_event: Bad file descriptor") != std::string::npos) {
            end->exit = {Exit::How::exited, 0};
        }
    }
    return outcome;
}

class Connecting : public testing::TestWithParam<Program> {};

TEST_P(Connecting, EndsWellOnBothSides) {
    const auto pair = run_perftest([] { return run(GetParam()); });
    ASSERT_TRUE(pair.success()) << pair;
    for (const auto* output : {&pair.client.output, &pair.server.output}) {
        EXPECT_THAT(*output, Not(HasSubstr("ailed"))) << pair;
        EXPECT_THAT(*output, Not(HasSubstr("error"))) << pair;
    }
    EXPECT_TRUE(nothing_is_left());
}

std::string name_of_program(const testing::TestParamInfo<Program>& info) { return info.param.name; }

// rping says data that came by READ and by WRITE, and compares it (-V).
INSTANTIATE_TEST_SUITE_P(
    Rping, Connecting,
    testing::Values(Program{"Plain",
                            {"rping", "-s", "-p", "PORT", "-C", "20", "-V"},
                            {"rping", "-c", "-a", "127.0.0.1", "-p", "PORT", "-C", "20", "-V"}},
                    Program{"OfIpv6",
                            {"rping", "-s", "-a", "::0", "-p", "PORT", "-C", "20", "-V"},
                            {"rping", "-c", "-a", "::1", "-p", "PORT", "-C", "20", "-V"}},
                    Program{"OfIpv4ToAListenerOfBoth",
                            {"rping", "-s", "-a", "::0", "-p", "PORT", "-C", "20", "-V"},
                            {"rping", "-c", "-a", "127.0.0.1", "-p", "PORT", "-C", "20", "-V"}},
                    Program{"OnOneAddress",
                            {"rping", "-s", "-a", "127.0.0.1", "-p", "PORT", "-C", "20", "-V"},
                            {"rping", "-c", "-a", "127.0.0.1", "-p", "PORT", "-C", "20", "-V"}},
                    // It makes its queue pair itself: CONNECT_RESPONSE comes to the program.
                    Program{
                        "WithItsOwnQueuePair",
                        {"rping", "-s", "-q", "-p", "PORT", "-C", "20", "-V"},
                        {"rping", "-c", "-q", "-a", "127.0.0.1", "-p", "PORT", "-C", "20", "-V"}},
                    Program{"WithAServerForMany",
                            {"rping", "-s", "-P", "-p", "PORT", "-C", "20", "-V"},
                            {"rping", "-c", "-a", "127.0.0.1", "-p", "PORT", "-C", "20", "-V"},
                            false}),
    name_of_program);

INSTANTIATE_TEST_SUITE_P(
    Examples, Connecting,
    testing::Values(
        Program{
            "Ucmatose", {"ucmatose", "-p", "PORT"}, {"ucmatose", "-p", "PORT", "-s", "127.0.0.1"}},
        Program{"UcmatoseWithManyWhoseIdsMigrate",
                {"ucmatose", "-p", "PORT", "-c", "20", "-m"},
                {"ucmatose", "-p", "PORT", "-c", "20", "-m", "-s", "127.0.0.1"}},
        Program{"Udaddy", {"udaddy"}, {"udaddy", "-s", "127.0.0.1"}, true, "7174"},
        Program{"RdmaServer",
                {"rdma_server", "-p", "PORT"},
                {"rdma_client", "-p", "PORT", "-s", "127.0.0.1"}},
        Program{"RdmaXserver",
                {"rdma_xserver", "-p", "PORT"},
                {"rdma_xclient", "-p", "PORT", "-s", "127.0.0.1"}},
        Program{"Cmtime",
                {"cmtime", "-p", "PORT"},
                {"cmtime", "-p", "PORT", "-c", "200", "-s", "127.0.0.1"},
                false},
        Program{"Rstream",
                {"rstream", "-p", "PORT", "-S", "4096", "-C", "100", "-T", "v"},
                {"rstream", "-p", "PORT", "-S", "4096", "-C", "100", "-T", "v", "-s", "127.0.0.1"}},
        Program{
            "Riostream",
            {"riostream", "-p", "PORT", "-S", "4096", "-C", "100", "-T", "v"},
            {"riostream", "-p", "PORT", "-S", "4096", "-C", "100", "-T", "v", "-s", "127.0.0.1"}}),
    name_of_program);

/// A program that is told which side it is.
Program of_two_sides(const std::string& name, const Command& command) {
    Program pair{name, command, command};
    pair.server.insert(pair.server.end(), {"server", "PORT"});
    pair.client.insert(pair.client.end(), {"client", "PORT"});
    return pair;
}
INSTANTIATE_TEST_SUITE_P(
    Own, Connecting,
    testing::Values(of_two_sides("Pyverbs", {"/usr/bin/python3",
                                             MILLRACE_UNMODIFIED_FOLDER "/connections.py"}),
                    of_two_sides("SocketsByLibrspreload",
                                 {"env",
                                  "LD_PRELOAD=" MILLRACE_DROP_IN_FOLDER
                                  "/libmillrace_device_files.so:" MILLRACE_LIBRARY_FOLDER
                                  "/rsocket/librspreload.so.1",
                                  MILLRACE_SOCKETS})),
    name_of_program);

/// perftest with -R; the queue pairs are connected by rdma_cm.
Program perftest(const std::string& name, Command command) {
    command.insert(command.begin() + 1, {"-R", "-p", "PORT"});
    Command client = command;
    client.push_back("127.0.0.1");
    return {name, command, client};
}
INSTANTIATE_TEST_SUITE_P(
    Perftest, Connecting,
    testing::Values(perftest("ib_write_lat", {"ib_write_lat", "-n", "200", "-C"}),
                    perftest("ib_write_bw", {"ib_write_bw", "-n", "200"}),
                    perftest("ib_write_bw_by_four", {"ib_write_bw", "-n", "200", "-q", "4"}),
                    perftest("ib_send_lat", {"ib_send_lat", "-n", "200", "-C"}),
                    perftest("ib_send_lat_by_events", {"ib_send_lat", "-n", "200", "-C", "-e"}),
                    perftest("ib_send_lat_UD", {"ib_send_lat", "-n", "200", "-C", "-c", "UD"}),
                    perftest("ib_send_bw", {"ib_send_bw", "-n", "200"}),
                    perftest("ib_read_lat", {"ib_read_lat", "-n", "200", "-C"}),
                    perftest("ib_read_bw", {"ib_read_bw", "-n", "200"}),
                    perftest("ib_atomic_lat", {"ib_atomic_lat", "-n", "200", "-C"}),
                    perftest("ib_atomic_bw", {"ib_atomic_bw", "-n", "200"})),
    name_of_program);

const Program rping{"rping",
                    {"rping", "-s", "-p", "PORT", "-v", "-C", "20"},
                    {"rping", "-c", "-a", "127.0.0.1", "-p", "PORT", "-C", "20"}};

TEST(ConnectingPreloaded, EndsWellOnBothSides) {
    const auto pair = run(rping, Loading::preload);
    EXPECT_TRUE(pair.success()) << pair;
}

TEST(Rcopy, CopiesAFile) {
    const std::string from = testing::TempDir() + "rcopy-from." + std::to_string(getpid());
    const std::string to = testing::TempDir() + "rcopy-to." + std::to_string(getpid());
    std::string content(3'000'000, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * i >> 8);
    std::ofstream{from, std::ios::binary} << content;
    const std::string port = free_port();
    auto server = start_on_soft_device({"rcopy", "-p", port});
    ASSERT_TRUE(listens(port));
    const auto client = run_on_soft_device({"rcopy", from, "127.0.0.1:" + to, "-p", port});
    EXPECT_TRUE(client.exit.success()) << client;
    (void)server.kill_and_wait();  // it serves for ever
    std::ostringstream copy;
    copy << std::ifstream{to, std::ios::binary}.rdbuf();
    EXPECT_TRUE(copy.str() == content) << copy.str().size() << " bytes";
    EXPECT_TRUE(nothing_is_left());
    std::filesystem::remove(from);
    std::filesystem::remove(to);
}

// --- libfabric, UCX, valkey ---------------------------------------------------------------------

TEST(Libfabric, ListsEndpointsThatConnectByRdmaCm) {
    const auto listed = run_on_soft_device({"fi_info", "-p", "verbs"});
    ASSERT_TRUE(listed.exit.success()) << listed;
    EXPECT_THAT(listed.output, HasSubstr("domain: soft0\n"));
    EXPECT_THAT(listed.output, HasSubstr("FI_PROTO_RDMA_CM_IB_RC"));
    EXPECT_THAT(listed.output, HasSubstr("verbs;ofi_rxm"));
}

/// Provider and kind of endpoint.
class LibfabricEndpoint : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(LibfabricEndpoint, PingsAndPongs) {
    const auto [provider, kind] = GetParam();
    const std::string port = free_port();
    Command server{"fi_pingpong", "-p", provider, "-e", kind, "-I", "20", "-S", "4096", "-c"};
    Command client = server;
    server.insert(server.end(), {"-B", port});
    client.insert(client.end(), {"-P", port, "127.0.0.1"});
    PairOutcome pair;
    auto started = start_on_soft_device(server);
    ASSERT_TRUE(wait_for_listener(port));
    pair.client = run_on_soft_device(client);
    pair.server = finish(started);
    // On a busy machine the server of an rdm endpoint was seen to wait on after its client's end.
    EXPECT_TRUE(pair.client.exit.success()) << pair;
    if (std::string_view{kind} != "rdm") {
        EXPECT_TRUE(pair.server.exit.success()) << pair;
    }
    EXPECT_THAT(pair.client.output, testing::ContainsRegex("4k +20 +=20")) << pair;
    EXPECT_TRUE(nothing_is_left());
}

INSTANTIATE_TEST_SUITE_P(Endpoints, LibfabricEndpoint,
                         testing::Values(std::pair{"verbs", "msg"}, std::pair{"verbs", "dgram"},
                                         std::pair{"verbs;ofi_rxm", "rdm"}),
                         [](const auto& one) { return std::string{one.param.second}; });

TEST(Librspreload, IsNotAskedForTheDropInsOwnSockets) {
    // It would make rsockets of them, by a librdmacm that waits for the drop-in (rdma-core 65).
    const auto wanted = output_of({"nm", "-D", "--undefined-only", MILLRACE_DROP_IN});
    EXPECT_THAT(wanted, HasSubstr(" eventfd@"));
    for (const char* const name : {" socket@", " epoll_create1@", " epoll_ctl@", " epoll_wait@"}) {
        EXPECT_THAT(wanted, Not(HasSubstr(name)));
    }
}

TEST(UcxBySocketAddress, ConnectsEndpointsByRdmaCmAlone) {
    // Client and server in one process: the wire-up has no other way than rdma_cm.
    const auto outcome = run_on_soft_device({"env", "UCX_TLS=rc_verbs", "UCX_NET_DEVICES=soft0:1",
                                             "ucx_info", "-u", "te", "-e", "-A", "127.0.0.1"});
    EXPECT_TRUE(outcome.exit.success()) << outcome;
    EXPECT_THAT(outcome.output, HasSubstr("cm rdmacm"));
    EXPECT_THAT(outcome.output, HasSubstr("rc_verbs/soft0:1"));
    EXPECT_TRUE(nothing_is_left());
}

TEST(Valkey, ServesItsOwnClientOverRdma) {
    const auto help = run_on_soft_device({"valkey-cli", "--help"});
    if (help.output.find("--rdma") == std::string::npos) {
        GTEST_SKIP() << "there is no valkey-cli with --rdma: Debian's packages are built without";
    }
    const std::string port = free_port();
    auto server = start_on_soft_device({"valkey-server", "--port", "0", "--rdma-port", port,
                                        "--rdma-bind", "127.0.0.1", "--save", ""});
    ASSERT_TRUE(listens(port));
    const Command client{"valkey-cli", "--rdma", "-h", "127.0.0.1", "-p", port};
    const auto ask = [&](Command words) {
        words.insert(words.begin(), client.begin(), client.end());
        return run_on_soft_device(words).output;
    };
    const std::string value(100'000, 'v');
    EXPECT_EQ(ask({"set", "key", value}), "OK\n");
    EXPECT_EQ(ask({"get", "key"}), value + "\n");
    EXPECT_EQ(ask({"strlen", "key"}), "100000\n");
    (void)ask({"shutdown", "nosave"});
    EXPECT_TRUE(finish(server).exit.success());
    EXPECT_TRUE(nothing_is_left());
}

// --- loading, exec ------------------------------------------------------------------------------

TEST(ALibrdmacmOfAnotherName, IsBoundEachTimeItIsLoadedAndItsPortIsFreeAfterExec) {
    const std::string copy =
        testing::TempDir() + "connecting-1a2b3c.so." + std::to_string(getpid());
    std::filesystem::copy_file(MILLRACE_LIBRARY_FOLDER "/librdmacm.so.1", copy,
                               std::filesystem::copy_options::overwrite_existing);
    const std::string port = free_port();
    auto server =
        start_on_soft_device({"/usr/bin/python3", MILLRACE_UNMODIFIED_FOLDER "/loaded.py", copy,
                              port, "rping", "-s", "-a", "127.0.0.1", "-p", port, "-C", "5"});
    const auto listening = [&] {
        const auto ports = ports_of_these_programs();
        return !ports.empty() && ports[0].listening && program_of(server.pid()) == "rping";
    };
    ASSERT_TRUE(comes_true(listening)) << finish(server, std::chrono::milliseconds{0});
    const auto client =
        run_on_soft_device({"rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "5", "-V"});
    EXPECT_TRUE(client.exit.success()) << client;
    (void)finish(server);
    EXPECT_TRUE(nothing_is_left());
    std::filesystem::remove(copy);
}

TEST(ConnectingOnInfiniband, EndsWellOnBothSides) {
    setenv("MILLRACE_SOFT_LINK", "infiniband", 1);
    const auto pair = run(rping);
    unsetenv("MILLRACE_SOFT_LINK");
    EXPECT_TRUE(pair.success()) << pair;
}

TEST(ConnectingToNobody, IsRejectedAsByTheKernel) {
    const auto client = run_on_soft_device(with_port(rping.client, free_port()));
    EXPECT_FALSE(client.exit.success()) << client;
    EXPECT_THAT(client.output, HasSubstr("RDMA_CM_EVENT_REJECTED, error 8"));
    EXPECT_TRUE(nothing_is_left());
}

TEST(ConnectingToAnotherHost, IsRefusedWithItsReason) {
    const auto client =
        run_on_soft_device({"rping", "-c", "-a", "192.0.2.254", "-p", free_port(), "-C", "1"});
    EXPECT_FALSE(client.exit.success()) << client;
    EXPECT_THAT(client.output, HasSubstr("192.0.2.254"));
    EXPECT_THAT(client.output, HasSubstr("no address of this host"));
    EXPECT_THAT(client.output, HasSubstr("RDMA_CM_EVENT_ADDR_ERROR"));
}

TEST(ConnectingByTheKernel, IsLeftToIt) {
    setenv("MILLRACE_CM", "kernel", 1);
    const auto server = run_on_soft_device(with_port(rping.server, free_port()));
    unsetenv("MILLRACE_CM");
    EXPECT_FALSE(server.exit.success()) << server;  // this one has none
    EXPECT_THAT(server.output, HasSubstr("failed to create RDMA CM event channel"));
}

TEST(JoiningAGroup, BringsMckeyWhatAnotherSends) {
    // Whoever sends does it seconds after it has joined; line by line, this one says when it has.
    auto receiver =
        start_on_soft_device({"stdbuf", "-oL", "mckey", "-m", "239.1.2.3", "-b", "127.0.0.1"});
    std::string said;
    while (said.find("joined") == std::string::npos) {
        const auto line = receiver.read_line();
        ASSERT_TRUE(line) << said;
        said = *line;
    }
    EXPECT_THAT(said, HasSubstr("joined dgid: ff0e::ffff:ef01:203"));
    const auto sender = run_on_soft_device({"mckey", "-m", "239.1.2.3", "-b", "127.0.0.1", "-s"});
    EXPECT_TRUE(sender.exit.success()) << sender;
    const auto received = finish(receiver);
    EXPECT_TRUE(received.exit.success()) << received;
    EXPECT_THAT(received.output, HasSubstr("data transfers complete"));
    EXPECT_TRUE(nothing_is_left());
}

// --- deaths -------------------------------------------------------------------------------------

/// A server and a client of rping that exchange data until they are ended.
struct Endless {
    Endless()
        : port{free_port()},
          server{start_on_soft_device({"rping", "-s", "-v", "-p", port})},
          listening{listens(port)},
          client{start_on_soft_device({"rping", "-c", "-a", "127.0.0.1", "-p", port})},
          exchanging{server.read_line().value_or("").find("ping data") != std::string::npos} {}

    std::string port;
    ChildProcess server;
    bool listening;
    ChildProcess client;
    bool exchanging;
};

void tells_of_the_others_death(ChildProcess& dies, ChildProcess& lives) {
    (void)dies.kill_and_wait();
    const auto told = finish(lives);
    EXPECT_EQ(told.exit.how, Exit::How::exited) << told.exit;
    // A WRITE to the dead may fail before its event has come, and rping ends by it.
    EXPECT_THAT(told.output, testing::AnyOf(HasSubstr("DISCONNECT EVENT"),
                                            HasSubstr("cq completion failed status")));
    EXPECT_TRUE(nothing_is_left());
}

TEST(DeathOfAConnected, ClientIsToldToTheServer) {
    Endless pair;
    ASSERT_TRUE(pair.exchanging);
    tells_of_the_others_death(pair.client, pair.server);
}

TEST(DeathOfAConnected, ServerIsToldToTheClient) {
    Endless pair;
    ASSERT_TRUE(pair.exchanging);
    tells_of_the_others_death(pair.server, pair.client);
}

TEST(DeathOfAListener, LeavesItsPortToTheNext) {
    const std::string port = free_port();
    const Command command = with_port(rping.server, port);
    auto first = start_on_soft_device(command);
    ASSERT_TRUE(listens(port));
    const auto meanwhile = run_on_soft_device(command);
    EXPECT_FALSE(meanwhile.exit.success()) << meanwhile;
    EXPECT_THAT(meanwhile.output, HasSubstr("rdma_bind_addr: Cannot assign requested address"));
    (void)first.kill_and_wait();
    auto second = start_on_soft_device(command);
    ASSERT_TRUE(listens(port));
    const auto client = run_on_soft_device(with_port(rping.client, port));
    EXPECT_TRUE(client.exit.success()) << client;
    EXPECT_TRUE(finish(second).exit.success());
}

TEST(Status, ShowsListenersAndConnectedIds) {
    Endless pair;
    ASSERT_TRUE(pair.exchanging);
    const auto said = output_of({MILLRACE_COMMAND, "soft", "status", "--fabric",
                                 "drop-in-test-" + std::to_string(getpid())});
    EXPECT_THAT(said, HasSubstr("tcp 0.0.0.0:" + pair.port + " listens"));
    EXPECT_THAT(said, testing::ContainsRegex("tcp .*:" + pair.port + " is connected"));
}

TEST(AStoppedListener, HoldsUpNobodyElse) {
    auto stopped = start_on_soft_device({"rping", "-s", "-p", free_port()});
    Endless others;
    ASSERT_TRUE(others.exchanging);
    ASSERT_TRUE(stopped.stop());
    const auto pair = run(rping);
    EXPECT_TRUE(pair.success()) << pair;
    stopped.resume();
}

}  // namespace
}  // namespace millrace::test
