// See programs.hpp.
#include "programs.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <ostream>
#include <sstream>
#include <system_error>

#include "millrace/base/wait.hpp"

namespace millrace::test {
namespace {

/// As `millrace soft run` sets it, and, for perftest (ib_*), a clock that takes less of its time.
std::vector<std::string> environment_for(Loading loading, const std::string& program) {
    std::string files = MILLRACE_DROP_IN_FOLDER "/libmillrace_device_files.so";
    if (program.starts_with("ib_")) files += ":" MILLRACE_QUICK_CLOCK;
    const std::string fabric = fmt::format("MILLRACE_FABRIC=drop-in-test-{}", getpid());
    if (loading == Loading::preload) return {"LD_PRELOAD=" MILLRACE_DROP_IN ":" + files, fabric};
    return {"LD_LIBRARY_PATH=" MILLRACE_DROP_IN_FOLDER, "LD_PRELOAD=" + files, fabric};
}

bool somebody_listens(unsigned port, const char* table) {
    std::ifstream file{table};
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
        // "  0: 00000000:4A38 00000000:0000 0A …": state 0A is LISTEN.
        std::istringstream fields{line};
        std::string slot, local, remote, state;
        fields >> slot >> local >> remote >> state;
        const auto colon = local.rfind(':');
        if (state == "0A" && colon != std::string::npos &&
            std::stoul(local.substr(colon + 1), nullptr, 16) == port) {
            return true;
        }
    }
    return false;
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Outcome& outcome) {
    return stream << outcome.exit << ", said:\n" << outcome.output;
}

std::ostream& operator<<(std::ostream& stream, const PairOutcome& outcome) {
    return stream << "server " << outcome.server << "\nclient " << outcome.client;
}

ChildProcess start_on_soft_device(std::vector<std::string> command, Loading loading,
                                  std::vector<std::string> environment) {
    // The shell joins the two outputs, and is then replaced by env, which alone sets the loader's
    // variables, so that the drop-in is in nothing but the program.
    std::vector<std::string> wrapped{"/bin/sh", "-c", "exec env \"$@\" 2>&1", "sh"};
    for (auto& entry : environment_for(loading, command[0])) wrapped.push_back(std::move(entry));
    wrapped.insert(wrapped.end(), command.begin(), command.end());
    return ChildProcess::start_program(std::move(wrapped), std::move(environment));
}

Outcome finish(ChildProcess& process, std::chrono::milliseconds limit) {
    Outcome outcome;
    outcome.output = process.read_all(limit);
    outcome.exit = process.wait();
    if (outcome.exit.how == Exit::How::timed_out) {
        (void)process.kill_and_wait();
        outcome.output += "\n(killed by the test: it did not end)";
    }
    return outcome;
}

Outcome run_on_soft_device(std::vector<std::string> command, Loading loading,
                           std::chrono::milliseconds limit) {
    auto process = start_on_soft_device(std::move(command), loading);
    return finish(process, limit);
}

std::string free_port() {
    // Below those that the system gives to whoever asks for any: so nobody has it when the program
    // binds it. Tests beside this one have other numbers.
    static int turn = 0;
    for (int tries = 0; tries < 100; ++tries) {
        const int port = 10'000 + (getpid() * 7 + turn++ * 1'117) % 10'000;
        const int descriptor = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in6 address{};
        address.sin6_family = AF_INET6;
        address.sin6_port = htons(static_cast<std::uint16_t>(port));
        const bool is_free =
            bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
        close(descriptor);
        if (is_free) return std::to_string(port);
    }
    throw std::system_error{errno, std::generic_category(), "find a free port"};
}

bool wait_for_listener(const std::string& port, std::chrono::milliseconds limit) {
    const auto number = static_cast<unsigned>(std::stoul(port));
    base::NapParker parker;
    return base::wait_until(
               [&] {
                   return somebody_listens(number, "/proc/net/tcp") ||
                          somebody_listens(number, "/proc/net/tcp6");
               },
               base::Deadline::after(limit), base::WaitPolicy::blocking(),
               parker) == base::Status::ok;
}

PairOutcome run_pair(std::vector<std::string> command, Loading loading,
                     std::chrono::milliseconds limit, const HostsOfPair& hosts) {
    const std::string port = free_port();
    command.insert(command.begin() + 1, {"-p", port});
    const auto start = [&](const std::string& host) {
        std::vector<std::string> environment;
        if (!host.empty()) environment.push_back("MILLRACE_WIRE=" + host);
        return start_on_soft_device(command, loading, std::move(environment));
    };
    PairOutcome outcome;
    auto server = start(hosts.server);
    if (!wait_for_listener(port)) {
        outcome.server = finish(server, std::chrono::seconds{1});
        return outcome;
    }
    command.push_back("127.0.0.1");
    auto client = start(hosts.client);
    outcome.client = finish(client, limit);
    outcome.server =
        finish(server, outcome.client.exit.success() ? limit : std::chrono::seconds{3});
    return outcome;
}

PairOutcome run_perftest(const std::function<PairOutcome()>& run) {
    const auto gave_up = [](const Outcome& side) {
        return side.output.find("Correlation coefficient") != std::string::npos;
    };
    PairOutcome pair = run();
    for (int more = 5; more > 0 && (gave_up(pair.client) || gave_up(pair.server)); --more) {
        pair = run();
    }
    return pair;
}

void expect_result_of_perftest(const PairOutcome& pair) {
    using testing::HasSubstr;
    using testing::Not;
    ASSERT_TRUE(pair.success()) << pair;
    EXPECT_THAT(pair.client.output, HasSubstr("#bytes")) << pair;
    for (const auto* output : {&pair.client.output, &pair.server.output}) {
        EXPECT_THAT(*output, Not(HasSubstr("ailed"))) << pair;
        EXPECT_THAT(*output, Not(HasSubstr("Completion with error"))) << pair;
    }
}

std::string output_of(std::vector<std::string> command, std::vector<std::string> environment) {
    auto process = ChildProcess::start_program(command, std::move(environment));
    const auto outcome = finish(process);
    EXPECT_TRUE(outcome.exit.success()) << command[0] << " " << outcome;
    return outcome.output;
}

}  // namespace millrace::test
