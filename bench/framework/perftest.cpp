#include "perftest.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "pair.hpp"

namespace millrace::bench {
namespace {

using base::Error;
using base::ErrorCode;

constexpr const char* attempt = "measure an unmodified perftest program";
constexpr const char* remedy = "see whether millrace soft run -- ib_write_lat works";

/// Throws Error (not_found) with what to install.
void require_program(const std::string& name) {
    const char* path = std::getenv("PATH");
    std::istringstream folders{path == nullptr ? "/usr/bin" : path};
    for (std::string folder; std::getline(folders, folder, ':');) {
        if (::access((folder + '/' + name).c_str(), X_OK) == 0) return;
    }
    throw Error{ErrorCode::not_found, attempt, name, "there is no such program",
                "install: perftest"};
}

/// The directory of the drop-in, beside this program's, built or installed.
std::string drop_in_directory() {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    const auto directory = program.parent_path().parent_path() / "lib" / "millrace";
    if (!std::filesystem::exists(directory / "libibverbs.so.1")) {
        throw Error{ErrorCode::not_found, attempt, directory.string(),
                    "there is no libibverbs.so.1", "run make build"};
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
    Program(std::vector<std::string> arguments, bool remapped, int core) {
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
            ::setenv("MILLRACE_REMAP", remapped ? "1" : "0", 1);
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

}  // namespace

std::vector<double> run_perftest(const Perftest& test) {
    require_program(test.program);
    const auto port = free_port();
    const auto cores = two_cores();
    std::vector<std::string> command{test.program, "-d",
                                     "soft0",      "-F",
                                     "-s",         std::to_string(test.bytes),
                                     "-n",         std::to_string(test.iterations),
                                     "-p",         std::to_string(port)};
    command.insert(command.end(), test.arguments.begin(), test.arguments.end());
    const auto deadline = base::Deadline::after(std::chrono::seconds{20});
    Program server{command, test.remapped, cores.second};
    while (!listens(port)) {
        if (deadline.expired() || !server.running()) {
            throw Error{ErrorCode::timed_out, attempt, test.program, "its server does not listen",
                        remedy};
        }
        ::usleep(5'000);
    }
    command.emplace_back("127.0.0.1");
    Program client{command, test.remapped, cores.first};
    const std::string output = client.read_all(deadline);
    static_cast<void>(server.read_all(deadline));

    std::istringstream lines{output};
    for (std::string line; std::getline(lines, line);) {
        std::istringstream fields{line};
        std::vector<double> numbers;
        for (double number = 0; fields >> number;) numbers.push_back(number);
        if (numbers.size() >= 5 && numbers[0] == static_cast<double>(test.bytes)) return numbers;
    }
    throw Error{ErrorCode::protocol, attempt, test.program,
                fmt::format("its table has no line for {} bytes: {}", test.bytes, output), remedy};
}

}  // namespace millrace::bench
