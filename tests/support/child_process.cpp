// Implementation of child_process.hpp: fork and exec with pipes, pidfd for waits with a limit.
#include "support/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <system_error>
#include <utility>

extern char** environ;

namespace millrace::test {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::string_view child_option = "--millrace-child=";

[[noreturn]] void fail(const char* what) {
    throw std::system_error{errno, std::generic_category(), what};
}

std::map<std::string, ChildMain, std::less<>>& registry() {
    static std::map<std::string, ChildMain, std::less<>> children;
    return children;
}

int milliseconds_until(SteadyClock::time_point until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - SteadyClock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3'600'000));
}

/// Waits until `descriptor` is readable (or at its end). False: not before `until`.
bool wait_readable(int descriptor, SteadyClock::time_point until) {
    for (;;) {
        pollfd entry{descriptor, POLLIN, 0};
        const int ready = ::poll(&entry, 1, milliseconds_until(until));
        if (ready > 0) return true;
        if (ready == 0) return false;
        if (errno != EINTR) fail("poll");
    }
}

void close_descriptor(int& descriptor) noexcept {
    if (descriptor >= 0) ::close(descriptor);
    descriptor = -1;
}

std::vector<std::string> merged_environment(const std::vector<std::string>& additions) {
    std::vector<std::string> result;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view existing{*entry};
        const auto name = existing.substr(0, existing.find('=') + 1);
        const bool replaced = std::any_of(additions.begin(), additions.end(), [&](const auto& a) {
            return !name.empty() && a.starts_with(name);
        });
        if (!replaced) result.emplace_back(existing);
    }
    result.insert(result.end(), additions.begin(), additions.end());
    return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
    std::vector<char*> pointers;
    for (auto& string : strings) pointers.push_back(string.data());
    pointers.push_back(nullptr);
    return pointers;
}

struct Started {
    pid_t pid;
    int process;
    int input;
    int output;
};

Started launch(const std::string& program, std::vector<std::string> arguments,
               const std::vector<std::string>& environment) {
    int to_child[2];
    int from_child[2];
    if (::pipe2(to_child, O_CLOEXEC) != 0) fail("pipe2");
    if (::pipe2(from_child, O_CLOEXEC) != 0) fail("pipe2");
    auto variables = merged_environment(environment);
    const auto argv = pointers_to(arguments);
    const auto envp = pointers_to(variables);
    const pid_t parent = ::getpid();

    const pid_t pid = ::fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {  // only async-signal-safe calls from here to exec
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(127);
        // dup2 onto itself would keep O_CLOEXEC: move a pipe that got 0 or 1 out of the way first.
        const int in = ::fcntl(to_child[0], F_DUPFD, 3);
        const int out = ::fcntl(from_child[1], F_DUPFD, 3);
        ::dup2(in, STDIN_FILENO);
        ::dup2(out, STDOUT_FILENO);
        ::close(in);
        ::close(out);
        sigset_t none;
        ::sigemptyset(&none);
        ::sigprocmask(SIG_SETMASK, &none, nullptr);
        ::execvpe(program.c_str(), argv.data(), envp.data());
        ::_exit(127);
    }
    ::close(to_child[0]);
    ::close(from_child[1]);
    const int process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (process < 0) fail("pidfd_open");
    return {pid, process, to_child[1], from_child[0]};
}

}  // namespace

std::string describe(const Exit& exit) {
    switch (exit.how) {
        case Exit::How::exited: return "exited with " + std::to_string(exit.value);
        case Exit::How::signalled: return "killed by signal " + std::to_string(exit.value);
        case Exit::How::timed_out: break;
    }
    return "still running";
}

std::ostream& operator<<(std::ostream& stream, const Exit& exit) {
    return stream << describe(exit);
}

ChildProcess ChildProcess::start(std::string_view name, std::vector<std::string> arguments,
                                 std::vector<std::string> environment) {
    if (registry().find(name) == registry().end()) {
        throw std::invalid_argument{"no MILLRACE_CHILD(" + std::string{name} + ") in this program"};
    }
    arguments.insert(arguments.begin(),
                     {"millrace-child", std::string{child_option} + std::string{name}});
    const Started child = launch("/proc/self/exe", std::move(arguments), environment);
    return {child.pid, child.process, child.input, child.output};
}

ChildProcess ChildProcess::start_program(std::vector<std::string> command,
                                         std::vector<std::string> environment) {
    const std::string program = command.at(0);
    const Started child = launch(program, std::move(command), environment);
    return {child.pid, child.process, child.input, child.output};
}

ChildProcess::ChildProcess(pid_t pid, int process, int input, int output) noexcept
    : pid_{pid}, process_{process}, input_{input}, output_{output} {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept { take(other); }

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
    if (this != &other) {
        discard();
        take(other);
    }
    return *this;
}

ChildProcess::~ChildProcess() { discard(); }

void ChildProcess::take(ChildProcess& other) noexcept {
    pid_ = std::exchange(other.pid_, -1);
    process_ = std::exchange(other.process_, -1);
    input_ = std::exchange(other.input_, -1);
    output_ = std::exchange(other.output_, -1);
    buffer_ = std::move(other.buffer_);
    ended_ = other.ended_;
    exit_ = other.exit_;
}

void ChildProcess::discard() noexcept {
    if (pid_ > 0 && !ended_) {
        ::kill(pid_, SIGKILL);
        while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
        }
        ended_ = true;
    }
    close_descriptor(process_);
    close_descriptor(input_);
    close_descriptor(output_);
    pid_ = -1;
}

bool ChildProcess::write_line(std::string_view line) {
    if (input_ < 0) return false;
    std::string text{line};
    text += '\n';
    // A dead child must be an answer, not a SIGPIPE for the whole test program.
    sigset_t pipe_signal;
    sigset_t before;
    ::sigemptyset(&pipe_signal);
    ::sigaddset(&pipe_signal, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    bool written = true;
    for (std::size_t done = 0; done < text.size();) {
        const ssize_t n = ::write(input_, text.data() + done, text.size() - done);
        if (n > 0) {
            done += static_cast<std::size_t>(n);
        } else if (errno != EINTR) {
            written = false;
            const timespec at_once{0, 0};
            if (errno == EPIPE) ::sigtimedwait(&pipe_signal, nullptr, &at_once);
            break;
        }
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return written;
}

void ChildProcess::close_input() noexcept { close_descriptor(input_); }

bool ChildProcess::fill(SteadyClock::time_point until) {
    if (output_ < 0 || !wait_readable(output_, until)) return false;
    char chunk[4096];
    ssize_t n;
    do {
        n = ::read(output_, chunk, sizeof chunk);
    } while (n < 0 && errno == EINTR);
    if (n <= 0) {
        close_descriptor(output_);
        return false;
    }
    buffer_.append(chunk, static_cast<std::size_t>(n));
    return true;
}

std::optional<std::string> ChildProcess::read_line(std::chrono::milliseconds timeout) {
    const auto until = SteadyClock::now() + timeout;
    for (;;) {
        if (const auto end = buffer_.find('\n'); end != std::string::npos) {
            std::string line = buffer_.substr(0, end);
            buffer_.erase(0, end + 1);
            return line;
        }
        if (!fill(until)) return std::nullopt;
    }
}

std::string ChildProcess::read_all(std::chrono::milliseconds timeout) {
    const auto until = SteadyClock::now() + timeout;
    while (fill(until)) {
    }
    return std::exchange(buffer_, {});
}

void ChildProcess::send_signal(int signal) noexcept {
    if (pid_ > 0 && !ended_) ::kill(pid_, signal);
}

void ChildProcess::kill() noexcept { send_signal(SIGKILL); }

bool ChildProcess::stop(std::chrono::milliseconds timeout) {
    send_signal(SIGSTOP);
    const auto until = SteadyClock::now() + timeout;
    while (SteadyClock::now() < until) {
        siginfo_t info{};
        if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG) != 0) return false;
        if (info.si_pid == pid_) return true;
        ::poll(nullptr, 0, 1);
    }
    return false;
}

void ChildProcess::resume() noexcept { send_signal(SIGCONT); }

Exit ChildProcess::wait(std::chrono::milliseconds timeout) {
    if (ended_ || pid_ <= 0) return exit_;
    if (!wait_readable(process_, SteadyClock::now() + timeout)) return {};
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0) {
        if (errno != EINTR) fail("waitpid");
    }
    ended_ = true;
    if (WIFEXITED(status)) exit_ = {Exit::How::exited, WEXITSTATUS(status)};
    if (WIFSIGNALED(status)) exit_ = {Exit::How::signalled, WTERMSIG(status)};
    return exit_;
}

Exit ChildProcess::kill_and_wait() {
    kill();
    return wait();
}

void say(std::string_view line) {
    std::string text{line};
    text += '\n';
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

std::optional<std::string> hear() {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
}

ChildRegistration::ChildRegistration(const char* name, ChildMain main) {
    if (!registry().emplace(name, main).second) {
        std::fprintf(stderr, "MILLRACE_CHILD(%s) is there twice\n", name);
        std::abort();
    }
}

std::optional<int> run_as_child(int argc, char** argv) {
    if (argc < 2) return std::nullopt;
    const std::string_view option{argv[1]};
    if (!option.starts_with(child_option)) return std::nullopt;
    const auto child = registry().find(option.substr(child_option.size()));
    if (child == registry().end()) {
        std::fprintf(stderr, "no MILLRACE_CHILD for %s\n", argv[1]);
        return 126;
    }
    try {
        return child->second({argv + 2, argv + argc});
    } catch (const std::exception& error) {
        std::fprintf(stderr, "child %s: %s\n", child->first.c_str(), error.what());
        return 125;
    }
}

}  // namespace millrace::test
