// Unmodified programs of rdma-core and perftest on the drop-in, two real processes each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "programs.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing::Not;

using Command = std::vector<std::string>;

std::string name_of(const Command& command) {
    std::string name;
    for (const auto& word : command) {
        for (const char c : word) {
            if (std::isalnum(static_cast<unsigned char>(c))) name += c;
        }
        name += '_';
    }
    name.pop_back();
    return name;
}
std::string name_of_parameter(const testing::TestParamInfo<Command>& info) {
    return name_of(info.param);
}

TEST(Devices, AreListedByBothWaysOfLoading) {
    for (const auto loading : {Loading::library_path, Loading::preload}) {
        const auto list = run_on_soft_device({"ibv_devices"}, loading);
        EXPECT_TRUE(list.exit.success()) << list;
        EXPECT_THAT(list.output, HasSubstr("soft0"));
    }
}

TEST(Devices, AreDescribedByDevinfo) {
    const auto information = run_on_soft_device({"ibv_devinfo", "-v", "-d", "soft0"});
    EXPECT_TRUE(information.exit.success()) << information;
    EXPECT_THAT(information.output, HasSubstr("PORT_ACTIVE"));
    EXPECT_THAT(information.output, HasSubstr("GID[  0]"));
    EXPECT_THAT(information.output, Not(HasSubstr("port_lid:\t\t0\n")));
}

TEST(Devices, WorkWithoutALibraryOfTheSystem) {
    const auto information =
        run_on_soft_device({"env", "MILLRACE_SYSTEM_LIBIBVERBS=", "ibv_devinfo", "-v"});
    EXPECT_TRUE(information.exit.success()) << information;
    EXPECT_THAT(information.output, HasSubstr("PORT_ACTIVE"));
    const auto program = run_on_soft_device({"env", "MILLRACE_SYSTEM_LIBIBVERBS=", "ib_write_lat",
                                             "-d", "soft9"});  // linked with every driver library
    EXPECT_EQ(program.exit.how, Exit::How::exited) << program;
}

TEST(Devices, ThatDoNotExistAreRefusedByTheProgram) {
    const auto information = run_on_soft_device({"ibv_devinfo", "-d", "soft9"});
    EXPECT_FALSE(information.exit.success()) << information;
    EXPECT_THAT(information.output, HasSubstr("soft9"));
}

class Pingpong : public testing::TestWithParam<Command> {};

TEST_P(Pingpong, EndsWellOnBothSides) {
    const auto pair = run_pair(GetParam());
    ASSERT_TRUE(pair.success()) << pair;
    EXPECT_THAT(pair.client.output, HasSubstr(" usec/iter")) << pair;
    EXPECT_THAT(pair.server.output, HasSubstr(" usec/iter")) << pair;
    // -c makes it check every buffer; it says so where something is wrong.
    EXPECT_THAT(pair.client.output, Not(HasSubstr("invalid data")));
}

INSTANTIATE_TEST_SUITE_P(
    Rc, Pingpong,
    testing::Values(Command{"ibv_rc_pingpong", "-d", "soft0"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-c"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-e", "-c"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-g", "0", "-c"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-g", "3", "-c"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-s", "1", "-n", "2000"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-s", "1000000", "-n", "100", "-c"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-r", "1", "-n", "1000"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-m", "4096", "-n", "100", "-e"},
                    // ibv_wr_*, extended completion queues with time stamps, device memory
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-N", "-c"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-N", "-e", "-c"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-t", "-c"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-t", "-N"},
                    Command{"ibv_rc_pingpong", "-d", "soft0", "-j", "-N"}),
    name_of_parameter);

INSTANTIATE_TEST_SUITE_P(
    Uc, Pingpong,
    testing::Values(Command{"ibv_uc_pingpong", "-d", "soft0"},
                    Command{"ibv_uc_pingpong", "-d", "soft0", "-e", "-n", "500"},
                    Command{"ibv_uc_pingpong", "-d", "soft0", "-e", "-c"},
                    Command{"ibv_uc_pingpong", "-d", "soft0", "-s", "1000000", "-n", "100"}),
    name_of_parameter);

INSTANTIATE_TEST_SUITE_P(Ud, Pingpong,
                         testing::Values(Command{"ibv_ud_pingpong", "-d", "soft0"},
                                         Command{"ibv_ud_pingpong", "-d", "soft0", "-c"},
                                         Command{"ibv_ud_pingpong", "-d", "soft0", "-e", "-c"},
                                         Command{"ibv_ud_pingpong", "-d", "soft0", "-g", "0", "-c"},
                                         Command{"ibv_ud_pingpong", "-d", "soft0", "-s", "4096",
                                                 "-r", "1", "-c"}),
                         name_of_parameter);

INSTANTIATE_TEST_SUITE_P(Srq, Pingpong,
                         testing::Values(Command{"ibv_srq_pingpong", "-d", "soft0"},
                                         Command{"ibv_srq_pingpong", "-d", "soft0", "-c"},
                                         Command{"ibv_srq_pingpong", "-d", "soft0", "-e", "-c"},
                                         Command{"ibv_srq_pingpong", "-d", "soft0", "-q", "3", "-r",
                                                 "8", "-e"}),
                         name_of_parameter);

TEST(PreloadedPingpong, EndsWellOnBothSides) {
    const auto pair = run_pair({"ibv_rc_pingpong", "-d", "soft0", "-c"}, Loading::preload);
    EXPECT_TRUE(pair.success()) << pair;
}

// perftest spins on memory without ever giving its processor away: where the processors are taken
// by others, a single exchange may last two time slices.
constexpr std::chrono::seconds perftest_patience{90};

class Perftest : public testing::TestWithParam<Command> {};

PairOutcome run_perftest_by(const Command& command) {
    return run_perftest(
        [&] { return run_pair(command, Loading::library_path, perftest_patience); });
}

TEST_P(Perftest, EndsWellOnBothSidesAndPrintsAResult) {
    const auto pair = run_perftest_by(GetParam());
    expect_result_of_perftest(pair);
}

// -a goes through all sizes. Before each result perftest compares two clocks (quick_clock), and a
// latency's once more unless the result shall be in cycles (-C): one of each program is not.
INSTANTIATE_TEST_SUITE_P(
    Latency, Perftest,
    testing::Values(Command{"ib_write_lat", "-d", "soft0", "-s", "8"},
                    Command{"ib_write_lat", "-d", "soft0", "-s", "65536", "-n", "200", "-C"},
                    Command{"ib_write_lat", "-d", "soft0", "-s", "64", "-C", "--inline_size", "0"},
                    Command{"ib_write_lat", "-d", "soft0", "-s", "64", "-C", "--inline_size", "64"},
                    Command{"ib_write_lat", "-d", "soft0", "-s", "8", "-C", "-x", "0"},
                    Command{"ib_write_lat", "-d", "soft0", "-s", "8", "-C", "-x", "3"},
                    Command{"ib_send_lat", "-d", "soft0", "-s", "8"},
                    Command{"ib_send_lat", "-d", "soft0", "-s", "8", "-C", "-e", "-n", "200"},
                    Command{"ib_send_lat", "-d", "soft0", "-s", "65536", "-n", "50", "-C"},
                    Command{"ib_send_lat", "-d", "soft0", "-s", "64", "-C", "--inline_size", "0"},
                    Command{"ib_read_lat", "-d", "soft0", "-s", "8"},
                    Command{"ib_read_lat", "-d", "soft0", "-s", "8", "-C", "-e", "-n", "200"},
                    Command{"ib_read_lat", "-d", "soft0", "-a", "-n", "5", "-C"}),
    name_of_parameter);

INSTANTIATE_TEST_SUITE_P(
    Bandwidth, Perftest,
    testing::Values(Command{"ib_write_bw", "-d", "soft0", "-s", "65536", "-n", "1000"},
                    Command{"ib_write_bw", "-d", "soft0", "-s", "8", "-n", "5000", "-q", "4"},
                    Command{"ib_write_bw", "-d", "soft0", "-b", "-n", "500"},
                    Command{"ib_write_bw", "-d", "soft0", "-a", "-n", "50"},
                    Command{"ib_send_bw", "-d", "soft0", "-s", "65536", "-n", "1000"},
                    Command{"ib_send_bw", "-d", "soft0", "-s", "8", "-n", "5000", "-q", "4"},
                    Command{"ib_send_bw", "-d", "soft0", "-b", "-n", "500"},
                    Command{"ib_send_bw", "-d", "soft0", "-e", "-n", "500"},
                    Command{"ib_read_bw", "-d", "soft0", "-s", "65536", "-n", "1000"},
                    Command{"ib_read_bw", "-d", "soft0", "-s", "8", "-n", "5000", "-q", "4"},
                    Command{"ib_read_bw", "-d", "soft0", "-b", "-n", "500"}),
    name_of_parameter);

INSTANTIATE_TEST_SUITE_P(Atomics, Perftest,
                         testing::Values(Command{"ib_atomic_lat", "-d", "soft0", "-n", "500"},
                                         Command{"ib_atomic_lat", "-d", "soft0", "-A",
                                                 "CMP_AND_SWAP", "-n", "500", "-C"},
                                         Command{"ib_atomic_bw", "-d", "soft0", "-n", "1000"},
                                         Command{"ib_atomic_bw", "-d", "soft0", "-A",
                                                 "CMP_AND_SWAP", "-n", "1000", "-q", "2"}),
                         name_of_parameter);

INSTANTIATE_TEST_SUITE_P(
    Uc, Perftest,
    testing::Values(Command{"ib_write_lat", "-d", "soft0", "-c", "UC", "-s", "8", "-C"},
                    Command{"ib_write_bw", "-d", "soft0", "-c", "UC", "-s", "65536", "-n", "1000"},
                    Command{"ib_write_bw", "-d", "soft0", "-c", "UC", "-a", "-n", "50"},
                    Command{"ib_send_lat", "-d", "soft0", "-c", "UC", "-s", "8", "-C"},
                    Command{"ib_send_bw", "-d", "soft0", "-c", "UC", "-s", "4096", "-n", "1000"}),
    name_of_parameter);

// Inline sizes, several queue pairs, both directions, events: by type of connection and operation.
INSTANTIATE_TEST_SUITE_P(
    Matrix, Perftest,
    testing::Values(
        Command{"ib_write_bw", "-d", "soft0", "-s", "64", "-n", "2000", "-I", "64"},
        Command{"ib_write_bw", "-d", "soft0", "-s", "64", "-n", "2000", "-I", "0"},
        Command{"ib_write_bw", "-d", "soft0", "-b", "-q", "2", "-s", "4096", "-n", "500"},
        Command{"ib_write_bw", "-d", "soft0", "-l", "16", "-q", "2", "-s", "8", "-n", "1600"},
        Command{"ib_write_bw", "-d", "soft0", "-c", "UC", "-b", "-q", "2", "-n", "200"},
        Command{"ib_write_lat", "-d", "soft0", "-c", "UC", "-s", "64", "-I", "64", "-n", "200",
                "-C"},
        Command{"ib_send_bw", "-d", "soft0", "-a", "-n", "50"},
        Command{"ib_send_bw", "-d", "soft0", "-s", "64", "-n", "2000", "-I", "64"},
        Command{"ib_send_bw", "-d", "soft0", "-b", "-q", "2", "-n", "200"},
        Command{"ib_send_bw", "-d", "soft0", "-q", "2", "-e", "-n", "200"},
        Command{"ib_send_bw", "-d", "soft0", "-b", "-q", "2", "-e", "-n", "2000"},
        Command{"ib_send_bw", "-d", "soft0", "-c", "UC", "-b", "-q", "2", "-n", "200"},
        Command{"ib_send_bw", "-d", "soft0", "-c", "UC", "-e", "-n", "200"},
        Command{"ib_send_lat", "-d", "soft0", "-c", "UC", "-e", "-n", "200", "-C"},
        Command{"ib_send_lat", "-d", "soft0", "-c", "UC", "-s", "64", "-I", "64", "-n", "200",
                "-C"},
        Command{"ib_read_bw", "-d", "soft0", "-e", "-n", "500"},
        Command{"ib_atomic_lat", "-d", "soft0", "-e", "-n", "200", "-C"},
        Command{"ib_atomic_bw", "-d", "soft0", "-b", "-q", "2", "-n", "500"},
        Command{"ib_atomic_bw", "-d", "soft0", "-e", "-n", "500"}),
    name_of_parameter);

TEST(Pyverbs, WalksStatesAndErrors) {
    // The system's Python, which is the one that Debian's python3-pyverbs belongs to.
    const auto outcome =
        run_on_soft_device({"/usr/bin/python3", MILLRACE_UNMODIFIED_FOLDER "/states.py", "soft0"});
    EXPECT_TRUE(outcome.exit.success()) << outcome;
    EXPECT_THAT(outcome.output, HasSubstr("steps as they should be"));
}

TEST(Pyverbs, ImportsWhatItHasMade) {
    const auto outcome =
        run_on_soft_device({"/usr/bin/python3", MILLRACE_UNMODIFIED_FOLDER "/imports.py", "soft0"});
    EXPECT_TRUE(outcome.exit.success()) << outcome;
    EXPECT_THAT(outcome.output, HasSubstr("steps as they should be"));
}

/// What is said by a program that loads the system's libibverbs, as by one that brings its own
/// along, and then looks for devices.
std::string said_with_preloaded(const std::string& libraries) {
    auto process = ChildProcess::start_program(
        {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh", "env", "LD_PRELOAD=" + libraries, "python3",
         "-c",
         "import ctypes, os; ctypes.CDLL('libibverbs.so.1'); os.listdir('/sys/class/infiniband')"});
    const auto outcome = finish(process);
    EXPECT_TRUE(outcome.exit.success()) << outcome;
    return outcome.output;
}

TEST(DeviceFiles, TellAProgramWithALibibverbsOfItsOwnToBeStartedByPreload) {
    const std::string files = MILLRACE_DROP_IN_FOLDER "/libmillrace_device_files.so";
    EXPECT_THAT(said_with_preloaded(files),
                testing::AllOf(HasSubstr("libibverbs.so.1"), HasSubstr("soft run --preload")));
    EXPECT_EQ(said_with_preloaded(MILLRACE_DROP_IN ":" + files), "");
}

TEST(DeviceFiles, AreWhatProgramsFindOfANic) {
    for (const auto loading : {Loading::library_path, Loading::preload}) {
        const auto outcome = run_on_soft_device(
            {"/usr/bin/python3", MILLRACE_UNMODIFIED_FOLDER "/files.py", "soft0"}, loading);
        EXPECT_TRUE(outcome.exit.success()) << outcome;
        EXPECT_THAT(outcome.output, HasSubstr("steps as they should be"));
    }
}

TEST(Gids, AreTheHostsAddressesOnEthernetAndThePortsOwnOnInfiniband) {
    for (const std::string link : {"ethernet", "infiniband"}) {
        const auto outcome =
            run_on_soft_device({"env", "MILLRACE_SOFT_LINK=" + link, "/usr/bin/python3",
                                MILLRACE_UNMODIFIED_FOLDER "/gids.py", "soft0", link});
        EXPECT_TRUE(outcome.exit.success()) << link << ": " << outcome;
        EXPECT_THAT(outcome.output, HasSubstr("steps as they should be"));
    }
}

TEST(Gids, AreThoseOfEthernetUnlessSomebodySaysOtherwise) {
    const auto plain = run_on_soft_device({"ibv_devinfo", "-v", "-d", "soft0"});
    EXPECT_THAT(plain.output, testing::ContainsRegex("link_layer:\t+Ethernet"));
    EXPECT_THAT(plain.output, testing::ContainsRegex("GID\\[  3\\]:\t+::ffff:.*, RoCE v2"));
}

TEST(Gids, OfALinkLayerThatDoesNotExistAreRefused) {
    const auto outcome =
        run_on_soft_device({"env", "MILLRACE_SOFT_LINK=token-ring", "ibv_devinfo", "-d", "soft0"});
    EXPECT_FALSE(outcome.exit.success()) << outcome;
    EXPECT_THAT(outcome.output, HasSubstr("MILLRACE_SOFT_LINK=token-ring"));
    EXPECT_THAT(outcome.output, HasSubstr("set it to ethernet"));
}

// Programs that choose a GID, and programs that know nothing of GIDs, on both kinds of port.
class OnInfiniband : public Pingpong {
  protected:
    void SetUp() override { setenv("MILLRACE_SOFT_LINK", "infiniband", 1); }
    void TearDown() override { unsetenv("MILLRACE_SOFT_LINK"); }
};

TEST_P(OnInfiniband, EndsWellOnBothSides) {
    const auto pair = run_pair(GetParam());
    ASSERT_TRUE(pair.success()) << pair;
}

INSTANTIATE_TEST_SUITE_P(Links, OnInfiniband,
                         testing::Values(Command{"ibv_rc_pingpong", "-d", "soft0", "-c"},
                                         Command{"ibv_ud_pingpong", "-d", "soft0", "-g", "0", "-c"},
                                         Command{"ib_write_lat", "-d", "soft0", "-s", "8"}),
                         name_of_parameter);

class Ucx : public testing::TestWithParam<Command> {
  protected:
    void SetUp() override {
        setenv("UCX_TLS", GetParam()[0].c_str(), 1);
        setenv("UCX_NET_DEVICES", "soft0:1", 1);
    }
    void TearDown() override {
        unsetenv("UCX_TLS");
        unsetenv("UCX_NET_DEVICES");
    }
};

// Tags, puts and active messages, of UCP over one transport.
TEST_P(Ucx, EndsWellOnBothSides) {
    Command command{"ucx_perftest", "-w", "10"};
    command.insert(command.end(), GetParam().begin() + 1, GetParam().end());
    const auto pair = run_pair(command, Loading::library_path, perftest_patience);
    ASSERT_TRUE(pair.success()) << pair;
    EXPECT_THAT(pair.client.output, HasSubstr("Final:")) << pair;
    for (const auto* output : {&pair.client.output, &pair.server.output}) {
        EXPECT_THAT(*output, Not(HasSubstr("ERROR"))) << pair;
    }
}

std::vector<Command> ucx_commands() {
    std::vector<Command> commands;
    for (const char* transport : {"rc_verbs,ud_verbs:aux", "ud_verbs"}) {  // rc is set up over ud
        for (const char* test : {"tag_lat", "ucp_put_lat", "ucp_am_lat"}) {
            commands.push_back({transport, "-t", test, "-s", "8", "-n", "500"});
        }
        for (const char* test : {"tag_bw", "ucp_put_bw", "ucp_am_bw"}) {
            commands.push_back({transport, "-t", test, "-s", "100000", "-n", "100"});
        }
        // It counts on an event for a completion that came between its last poll and the arming.
        commands.push_back({transport, "-E", "sleep", "-t", "tag_lat", "-s", "8", "-n", "500"});
        commands.push_back({transport, "-E", "sleep", "-t", "tag_bw", "-s", "8", "-n", "1000"});
    }
    return commands;
}

INSTANTIATE_TEST_SUITE_P(Ucp, Ucx, testing::ValuesIn(ucx_commands()), name_of_parameter);

/// qperf's server takes its device from the client, and serves until a client says quit.
Outcome run_qperf(const Command& tests) {
    const std::string port = free_port();
    auto server = start_on_soft_device({"qperf", "-lp", port});
    EXPECT_TRUE(wait_for_listener(port));
    Command command{"qperf", "-lp", port, "127.0.0.1", "-i", "soft0", "-t", "1"};
    command.insert(command.end(), tests.begin(), tests.end());
    command.push_back("quit");
    auto outcome = run_on_soft_device(command, Loading::library_path, perftest_patience);
    const auto served = finish(server, std::chrono::seconds{10});
    EXPECT_TRUE(served.exit.success()) << served;
    return outcome;
}

void expect_results_of_qperf(const Outcome& outcome, const Command& tests) {
    EXPECT_TRUE(outcome.exit.success()) << outcome;
    for (const std::string& test : tests) {
        EXPECT_THAT(outcome.output, testing::ContainsRegex(test + ":\n.*(latency|bw|rate)"));
    }
}

// It frees the list of devices by free().
TEST(Qperf, MeasuresOverEveryTransport) {
    const Command tests{"rc_lat", "rc_rdma_read_bw", "uc_bw", "ud_lat", "ver_rc_compare_swap"};
    expect_results_of_qperf(run_qperf(tests), tests);
}

TEST(Qperf, ConnectsByRdmaCm) {
    const Command tests{"rc_lat", "rc_rdma_write_bw"};
    Command command{"-cm1"};
    command.insert(command.end(), tests.begin(), tests.end());
    expect_results_of_qperf(run_qperf(command), tests);
}

TEST(UcxInfo, ListsTheTransportsOfTheDevice) {
    const auto outcome = run_on_soft_device({"ucx_info", "-d"});
    EXPECT_TRUE(outcome.exit.success()) << outcome;
    for (const char* transport : {"rc_verbs", "ud_verbs"}) {
        EXPECT_THAT(outcome.output, testing::ContainsRegex(std::string{"Transport: "} + transport +
                                                           "\n#  +Device: soft0:1"));
    }
}

/// With the program's own memory made shared.
class RemappedPerftest : public Perftest {
  protected:
    void SetUp() override { setenv("MILLRACE_REMAP", "1", 1); }
    void TearDown() override { unsetenv("MILLRACE_REMAP"); }
};

TEST_P(RemappedPerftest, EndsWellOnBothSides) {
    const auto pair = run_perftest_by(GetParam());
    ASSERT_TRUE(pair.success()) << pair;
    EXPECT_THAT(pair.client.output, HasSubstr("#bytes")) << pair;
}

INSTANTIATE_TEST_SUITE_P(Memory, RemappedPerftest,
                         testing::Values(Command{"ib_write_lat", "-d", "soft0", "-s", "8", "-C"},
                                         Command{"ib_write_bw", "-d", "soft0", "-a", "-n", "50"},
                                         Command{"ib_send_lat", "-d", "soft0", "-s", "8", "-C"},
                                         Command{"ib_atomic_lat", "-d", "soft0", "-n", "500",
                                                 "-C"}),
                         name_of_parameter);

INSTANTIATE_TEST_SUITE_P(
    Datagrams, Perftest,
    testing::Values(Command{"ib_send_lat", "-d", "soft0", "-c", "UD", "-s", "8", "-C"},
                    Command{"ib_send_bw", "-d", "soft0", "-c", "UD", "-a", "-n", "50"},
                    Command{"ib_send_lat", "-d", "soft0", "-c", "UD", "-s", "8", "-x", "3", "-C"},
                    Command{"ib_send_lat", "-d", "soft0", "-c", "UD", "-e", "-n", "200", "-C"},
                    Command{"ib_send_lat", "-d", "soft0", "-c", "UD", "-g", "-n", "200", "-C"},
                    Command{"ib_send_bw", "-d", "soft0", "-c", "UD", "-s", "64"},
                    Command{"ib_send_bw", "-d", "soft0", "-c", "UD", "-b", "-n", "500"}),
    name_of_parameter);

INSTANTIATE_TEST_SUITE_P(
    SharedReceives, Perftest,
    testing::Values(Command{"ib_send_lat", "-d", "soft0", "--use-srq", "-s", "8", "-C"},
                    Command{"ib_send_lat", "-d", "soft0", "--use-srq", "-c", "UD", "-s", "8", "-C"},
                    Command{"ib_send_bw", "-d", "soft0", "--use-srq", "-s", "4096", "-n", "1000",
                            "-q", "4"},
                    Command{"ib_send_bw", "-d", "soft0", "--use-srq", "-e", "-n", "500"}),
    name_of_parameter);

class Refusal : public testing::TestWithParam<Command> {};

// What the soft device does not do ends the program by its own error handling, never by a signal.
TEST_P(Refusal, EndsTheProgramWithItsOwnMessage) {
    auto command = GetParam();
    command.insert(command.begin() + 1, {"-p", free_port()});
    const auto outcome = run_on_soft_device(command);
    EXPECT_EQ(outcome.exit.how, Exit::How::exited) << outcome;
    EXPECT_FALSE(outcome.exit.success()) << outcome;
    EXPECT_FALSE(outcome.output.empty());
}

INSTANTIATE_TEST_SUITE_P(OfWhatIsNotThere, Refusal,
                         testing::Values(Command{"ibv_xsrq_pingpong", "-d", "soft0"},
                                         Command{"ibv_rc_pingpong", "-d", "soft0", "-o"}),
                         name_of_parameter);

TEST(Death, OfOneSideEndsTheOther) {
    // The client is killed in the middle; the server notices through its queue pair or through
    // perftest's socket, and ends by itself.
    const std::string port = free_port();
    auto server =
        start_on_soft_device({"ib_send_bw", "-p", port, "-d", "soft0", "-n", "100000000"});
    ASSERT_TRUE(wait_for_listener(port));
    auto client = start_on_soft_device(  // line by line: we want to see when it is running
        {"stdbuf", "-oL", "ib_send_bw", "-p", port, "-d", "soft0", "-n", "100000000", "127.0.0.1"});
    bool running = false;
    while (auto line = client.read_line()) {
        if (line->find("#bytes") != std::string::npos) {
            running = true;
            break;
        }
    }
    ASSERT_TRUE(running);
    (void)client.kill_and_wait();
    const auto end = finish(server);
    EXPECT_EQ(end.exit.how, Exit::How::exited) << end;
    EXPECT_FALSE(end.exit.success()) << end;
}

TEST(SoftRun, RunsAProgramOnTheDevice) {
    auto process = ChildProcess::start_program({MILLRACE_COMMAND, "soft", "run", "--fabric",
                                                "drop-in-run", "--", "ibv_devinfo", "-d", "soft0"});
    const auto outcome = finish(process);
    EXPECT_TRUE(outcome.exit.success()) << outcome;
    EXPECT_THAT(outcome.output, HasSubstr("PORT_ACTIVE"));
}

Outcome run_command(const std::string& arguments) {
    auto process =
        ChildProcess::start_program({"/bin/sh", "-c", MILLRACE_COMMAND " " + arguments + " 2>&1"});
    return finish(process);
}

TEST(SoftRun, NeedsNoRoot) {
    // As an ordinary user with no groups and no capabilities; whoever is one already is that.
    std::vector<std::string> as_user;
    if (geteuid() == 0) {
        as_user = {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                   "--bounding-set=-all"};
        auto reach = as_user;
        reach.insert(reach.end(), {"test", "-r", MILLRACE_DROP_IN});
        auto process = ChildProcess::start_program(reach);
        if (const auto reached = finish(process); !reached.exit.success()) {
            GTEST_SKIP() << "another user does not reach this build: " << reached;
        }
    }
    // The device, by verbs, and the files that programs look for before they ask for it.
    auto words = as_user;
    words.insert(words.end(),
                 {MILLRACE_COMMAND, "soft", "run", "--fabric", "drop-in-no-root", "--", "sh", "-c",
                  "id -u; stat -c %F /dev/infiniband/uverbs_soft0; ls /sys/class/infiniband; "
                  "exec ibv_devinfo -d soft0"});
    auto process = ChildProcess::start_program(words);
    const auto outcome = finish(process);
    EXPECT_TRUE(outcome.exit.success()) << outcome;
    EXPECT_THAT(outcome.output, Not(testing::StartsWith("0\n")));
    EXPECT_THAT(outcome.output, HasSubstr("\ncharacter special file\nsoft0\n"));
    EXPECT_THAT(outcome.output, HasSubstr("PORT_ACTIVE"));
}

TEST(SoftRun, SaysWhichProgramItCannotRunAndWhy) {
    const auto missing = run_command("soft run -- no-such-program");
    EXPECT_TRUE(missing.exit.exited_with(127)) << missing;
    EXPECT_THAT(missing.output, HasSubstr("no-such-program"));
    EXPECT_THAT(missing.output, HasSubstr("ENOENT"));
    const auto no_program = run_command("soft run -- /etc/passwd");
    EXPECT_TRUE(no_program.exit.exited_with(126)) << no_program;
    EXPECT_THAT(no_program.output, HasSubstr("EACCES"));
}

TEST(SoftRun, RefusesAModeThatDoesNotExist) {
    const auto outcome = run_command("soft run --mode slow -- true");
    EXPECT_FALSE(outcome.exit.success());
    EXPECT_THAT(outcome.output, HasSubstr("slow"));
}

TEST(SoftRun, PassesArgumentsExitStatusAndFabricOn) {
    const auto outcome = run_command(
        "soft run --fabric here -- sh -c 'echo \"$MILLRACE_FABRIC $1 $2\"; exit 7' -- --help -x");
    EXPECT_TRUE(outcome.exit.exited_with(7)) << outcome;
    EXPECT_EQ(outcome.output, "here --help -x\n");
}

TEST(DevicesCommand, ShowsTheSoftDeviceForPeopleAndForPrograms) {
    const auto text = run_command("devices");
    EXPECT_TRUE(text.exit.success()) << text;
    EXPECT_THAT(text.output, HasSubstr("soft0  (soft device"));
    const auto json = run_command("devices --json");
    EXPECT_TRUE(json.exit.success()) << json;
    EXPECT_THAT(json.output, HasSubstr("\"name\": \"soft0\""));
    EXPECT_THAT(json.output, HasSubstr("\"port_active\": true"));
}

TEST(DevicesCommand, ShowsTheSoftDeviceOnceWhereTheDropInIsLoaded) {
    const auto text = run_on_soft_device({MILLRACE_COMMAND, "devices"}, Loading::preload);
    EXPECT_TRUE(text.exit.success()) << text;
    const auto first = text.output.find("soft0");
    ASSERT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.output.find("\nsoft0", first), std::string::npos) << text;
}

}  // namespace
}  // namespace millrace::test
