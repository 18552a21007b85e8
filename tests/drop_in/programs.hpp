// Running programs of others on the drop-in: where the library is, and pairs of a server and a
// client. For the tests in this folder.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/child_process.hpp"

namespace millrace::test {

/// What a program said (both its outputs) and how it ended.
struct Outcome {
    std::string output;
    Exit exit;
};

/// For gtest's messages.
std::ostream& operator<<(std::ostream& stream, const Outcome& outcome);

/// How programs find the drop-in.
enum class Loading { library_path, preload };

/// Starts `command` with the drop-in, standard error joined to standard output. All programs one
/// test process starts are on one fabric that no other process uses. `environment`: entries
/// besides.
[[nodiscard]] ChildProcess start_on_soft_device(std::vector<std::string> command,
                                                Loading loading = Loading::library_path,
                                                std::vector<std::string> environment = {});

/// Runs it to its end, at most `limit`; after that it is killed.
[[nodiscard]] Outcome run_on_soft_device(std::vector<std::string> command,
                                         Loading loading = Loading::library_path,
                                         std::chrono::milliseconds limit = patience);

/// Reads what is left and waits.
[[nodiscard]] Outcome finish(ChildProcess& process, std::chrono::milliseconds limit = patience);

/// A TCP port nobody listens on at this moment.
[[nodiscard]] std::string free_port();

/// True once somebody listens on the port; false if nobody does within `limit`.
[[nodiscard]] bool wait_for_listener(const std::string& port,
                                     std::chrono::milliseconds limit = patience);

struct PairOutcome {
    Outcome server;
    Outcome client;
    [[nodiscard]] bool success() const { return server.exit.success() && client.exit.success(); }
};
std::ostream& operator<<(std::ostream& stream, const PairOutcome& outcome);

/// Addresses of this machine's loopback that two programs have as theirs on the wire
/// (MILLRACE_WIRE), as two hosts would. Empty: there is none, and they share memory.
struct HostsOfPair {
    std::string server{};
    std::string client{};
};

/// Runs `command -p PORT` and `command -p PORT 127.0.0.1` against each other, as ibv_*_pingpong
/// and perftest do it.
[[nodiscard]] PairOutcome run_pair(std::vector<std::string> command,
                                   Loading loading = Loading::library_path,
                                   std::chrono::milliseconds limit = patience,
                                   const HostsOfPair& hosts = {});

/// What `run()` gives of a perftest program. Before it prints, perftest compares two clocks, and
/// gives up where others had its processor meanwhile. That says nothing about the device: then once
/// more.
[[nodiscard]] PairOutcome run_perftest(const std::function<PairOutcome()>& run);
/// Both ends of a perftest program ended well, and a result was printed.
void expect_result_of_perftest(const PairOutcome& pair);

/// The standard output of a command of the system, which must succeed.
[[nodiscard]] std::string output_of(std::vector<std::string> command,
                                    std::vector<std::string> environment = {});

}  // namespace millrace::test
