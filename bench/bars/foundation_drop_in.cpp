// Bar of the drop-in: Debian's unmodified ib_write_lat on its own private memory, one way as it
// reports it (t_typical), beside the same exchange made of bare process_vm_writev calls.
//
// t_typical is the median over the iterations of half the time from one post to the next, with the
// peer's answer seen in memory between them. So is the figure it is compared with. In a loop that
// nobody answers the call is faster than it ever is in an exchange, where the word that it stores
// was just read on the other core, and what it needs of the kernel's memory was, too.
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "framework/bars.hpp"
#include "framework/pair.hpp"
#include "limits/copies.hpp"
#include "meeting.hpp"
#include "millrace/base/error.hpp"

namespace millrace::bench {
namespace {

using base::Error;
using base::ErrorCode;

constexpr const char* attempt = "measure ib_write_lat";

/// The directory of the drop-in, beside this program's, built or installed.
std::string drop_in_directory() {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    const auto directory = program.parent_path().parent_path() / "lib" / "millrace";
    if (!std::filesystem::exists(directory / "libibverbs.so.1")) {
        throw Error{ErrorCode::not_found, attempt, directory.string(),
                    "there is no libibverbs.so.1", "build the target millrace_ibverbs"};
    }
    return directory.string();
}

/// A port that is free now.
std::uint16_t free_port() {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    const bool done = descriptor >= 0 && ::bind(descriptor, generic, length) == 0 &&
                      ::getsockname(descriptor, generic, &length) == 0;
    const int cause = errno;
    if (descriptor >= 0) ::close(descriptor);
    if (!done) base::throw_errno(cause, attempt, "a free port", "");
    return ntohs(address.sin_port);
}

/// True if somebody listens on `port`; connecting to see would be taken for the client.
bool listens(std::uint16_t port) {
    const auto wanted = fmt::format(":{:04X}", port);
    for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
        std::ifstream table{path};
        for (std::string line; std::getline(table, line);) {
            std::istringstream fields{line};
            std::string number;
            std::string local;
            std::string remote;
            std::string state;
            fields >> number >> local >> remote >> state;
            if (local.ends_with(wanted) && state == "0A") return true;
        }
    }
    return false;
}

/// A child that runs a program on one core with its output in a pipe; killed when it goes.
class Program {
  public:
    Program(std::vector<std::string> arguments, int core) {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) base::throw_errno(errno, attempt, "a pipe", "");
        std::vector<char*> raw;
        for (auto& argument : arguments) raw.push_back(argument.data());
        raw.push_back(nullptr);
        const auto library = drop_in_directory();
        const auto fabric = fmt::format("bench-{}", ::getpid());
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            cpu_set_t cores;
            CPU_ZERO(&cores);
            CPU_SET(static_cast<std::size_t>(core), &cores);
            ::sched_setaffinity(0, sizeof(cores), &cores);
            ::setenv("LD_LIBRARY_PATH", library.c_str(), 1);
            ::setenv("MILLRACE_FABRIC", fabric.c_str(), 1);
            ::dup2(ends[1], STDOUT_FILENO);
            ::dup2(ends[1], STDERR_FILENO);
            ::execvp(raw[0], raw.data());
            std::fprintf(stderr, "cannot run %s\n", raw[0]);
            ::_exit(127);
        }
        const int cause = errno;
        ::close(ends[1]);
        output_ = ends[0];
        if (pid_ < 0) {
            ::close(output_);
            base::throw_errno(cause, attempt, arguments[0], "raise the limit of processes");
        }
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    ~Program() {
        if (!ended_) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
        ::close(output_);
    }

    [[nodiscard]] bool running() {
        int status = 0;
        if (!ended_ && ::waitpid(pid_, &status, WNOHANG) == pid_) ended_ = true;
        return !ended_;
    }
    /// What it says until it ends. Throws when the deadline is over.
    std::string read_all(const base::Deadline& deadline) {
        std::string text;
        for (;;) {
            if (deadline.expired()) {
                throw Error{ErrorCode::timed_out, attempt, "its client",
                            "it did not end in time; it said: " + text, ""};
            }
            pollfd ready{output_, POLLIN, 0};
            if (::poll(&ready, 1, 50) <= 0) continue;
            std::array<char, 4096> part;
            const auto got = ::read(output_, part.data(), part.size());
            if (got <= 0) return text;
            text.append(part.data(), static_cast<std::size_t>(got));
        }
    }

  private:
    pid_t pid_ = -1;
    int output_ = -1;
    bool ended_ = false;
};

/// The fifth column of the line that begins with the size, in nanoseconds.
double typical_latency(const std::string& output) {
    std::istringstream lines{output};
    for (std::string line; std::getline(lines, line);) {
        std::istringstream fields{line};
        double bytes = 0;
        double iterations = 0;
        double least = 0;
        double most = 0;
        double typical = 0;
        if (fields >> bytes >> iterations >> least >> most >> typical && bytes == 8) {
            return typical * 1e3;
        }
    }
    throw Error{ErrorCode::protocol, attempt, "its table", "it has no line for 8 bytes: " + output,
                "install perftest; see whether millrace soft run -- ib_write_lat works"};
}

double ib_write_lat(int iterations) {
    const auto port = free_port();
    const auto cores = two_cores();
    const std::vector<std::string> command{
        "ib_write_lat",      "-d", "soft0", "-F", "-s", "8", "-n", std::to_string(iterations), "-p",
        std::to_string(port)};
    const auto deadline = patience();
    Program server{command, cores.second};
    while (!listens(port)) {
        if (deadline.expired() || !server.running()) {
            throw Error{ErrorCode::timed_out, attempt, "its server", "it does not listen",
                        "install perftest; see whether millrace soft run -- ib_write_lat works"};
        }
        ::usleep(5'000);
    }
    auto with_server = command;
    with_server.emplace_back("127.0.0.1");
    Program client{with_server, cores.first};
    const double typical = typical_latency(client.read_all(deadline));
    static_cast<void>(server.read_all(deadline));
    return typical;
}

const BarRegistration to_process_vm{
    {.group = "foundation",
     .name = "ib_write_lat -s 8, private memory, to process_vm_writev",
     .limit = 1.4,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"ib_write_lat", [] { return ib_write_lat(20'000); }, "ns"});
         rounds.add({"bare", [] { return process_vm_one_way(20'000); }, "ns"});
         return rounds.run().ratio("ib_write_lat", "bare");
     }}};

}  // namespace
}  // namespace millrace::bench
