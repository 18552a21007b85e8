// Programs that others wrote, for comparison: found, started on one core, and listened to.
#include "program.hpp"

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

#include "millrace/base/error.hpp"
#include "pair.hpp"

namespace millrace::bench {

using base::Error;
using base::ErrorCode;

namespace {
constexpr const char* attempt = "measure an unmodified program";
}  // namespace

Environment drop_in_environment() {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    std::string libraries = program.parent_path().parent_path() / "lib" / "millrace";
    if (!std::filesystem::exists(libraries + "/libibverbs.so.1")) {
        throw Error{ErrorCode::not_found, attempt, libraries, "there is no libibverbs.so.1",
                    "run make build"};
    }
    if (const char* others = std::getenv("LD_LIBRARY_PATH")) libraries += std::string{":"} + others;
    return {{"LD_LIBRARY_PATH", libraries},
            {"MILLRACE_FABRIC", fmt::format("bench-{}", ::getpid())}};
}

void require_program(const std::string& name, const std::string& package) {
    const char* path = std::getenv("PATH");
    std::istringstream folders{path == nullptr ? "/usr/bin" : path};
    for (std::string folder; std::getline(folders, folder, ':');) {
        if (::access((folder + '/' + name).c_str(), X_OK) == 0) return;
    }
    throw Error{ErrorCode::not_found, attempt, name, "there is no such program",
                "install: " + package};
}

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

Program::Program(std::vector<std::string> arguments, const Environment& environment, int core) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) base::throw_errno(errno, attempt, "a pipe", "");
    std::vector<char*> raw;
    for (auto& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(static_cast<std::size_t>(core), &cores);
        ::sched_setaffinity(0, sizeof(cores), &cores);
        for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
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

Program::~Program() {
    if (!ended_) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    ::close(output_);
}

bool Program::running() {
    int status = 0;
    if (!ended_ && ::waitpid(pid_, &status, WNOHANG) == pid_) ended_ = true;
    return !ended_;
}

std::string Program::read_all(const base::Deadline& deadline) {
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

std::string output_of_client(std::vector<std::string> command, std::uint16_t port,
                             const Environment& environment, const std::string& remedy) {
    const auto cores = two_cores();
    const auto deadline = base::Deadline::after(std::chrono::seconds{20});
    Program server{command, environment, cores.second};
    while (!listens(port)) {
        if (deadline.expired() || !server.running()) {
            throw Error{ErrorCode::timed_out, attempt, command.front(),
                        "its server does not listen", remedy};
        }
        ::usleep(5'000);
    }
    command.emplace_back("127.0.0.1");
    Program client{command, environment, cores.first};
    std::string output = client.read_all(deadline);
    static_cast<void>(server.read_all(deadline));
    return output;
}

std::vector<double> numbers_in(const std::string& output, double first) {
    std::istringstream lines{output};
    for (std::string line; std::getline(lines, line);) {
        std::istringstream fields{line};
        std::vector<double> numbers;
        for (std::string field; fields >> field;) {
            char* end = nullptr;
            const double number = std::strtod(field.c_str(), &end);
            if (*end == '\0') {
                numbers.push_back(number);
            } else if (!numbers.empty()) {
                break;  // words may stand in front
            }
        }
        if (numbers.size() >= 5 && numbers[0] == first) return numbers;
    }
    throw Error{ErrorCode::protocol, attempt, "its client",
                fmt::format("its table has no line that begins with {}: {}", first, output), ""};
}

}  // namespace millrace::bench
