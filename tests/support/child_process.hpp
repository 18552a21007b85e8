// Other processes for tests: start, talk to, stop, kill and wait for them.
//
// A test that needs a second process names what that process does and starts it:
//
//     MILLRACE_CHILD(echo) {                       // runs in a fresh process (fork and exec)
//         while (auto line = hear()) say(*line);   // its standard input and output are pipes
//         return 0;                                // its exit code
//     }
//     TEST(Echo, AnswersWhatItHears) {
//         ChildProcess child = ChildProcess::start("echo");
//         child.write_line("hello");
//         EXPECT_EQ(child.read_line(), "hello");
//         child.close_input();
//         EXPECT_TRUE(child.wait().success());
//     }
//
// `arguments` (const std::vector<std::string>&) is what the parent passed. Standard error is the
// parent's. Tests link tests/support/main.cpp in place of gtest_main: it runs the child's body
// instead of the tests when the program was started as a child.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::test {

/// How long waits last when a test does not say. Generous: it only ends tests that have failed.
inline constexpr std::chrono::milliseconds patience{20'000};

/// How a process ended.
struct Exit {
    enum class How { timed_out, exited, signalled } how = How::timed_out;
    int value = 0;  ///< exit code or signal number
    [[nodiscard]] bool success() const noexcept { return how == How::exited && value == 0; }
    [[nodiscard]] bool exited_with(int code) const noexcept {
        return how == How::exited && value == code;
    }
    [[nodiscard]] bool killed_by(int signal) const noexcept {
        return how == How::signalled && value == signal;
    }
    friend bool operator==(const Exit&, const Exit&) = default;
};

/// "exited with 0", "killed by signal 9", "still running". For gtest's messages too.
[[nodiscard]] std::string describe(const Exit& exit);
std::ostream& operator<<(std::ostream& stream, const Exit& exit);

/// A running child. Move-only; killed and reaped on destruction. One thread at a time. The thread
/// that starts it must live as long as it: the kernel kills the child when that thread ends, so
/// that a crashed test leaves no process behind.
class ChildProcess {
  public:
    /// Starts this program again to run MILLRACE_CHILD(name). `environment`: "NAME=value" entries
    /// added to (or replacing those of) ours. Throws std::system_error if it cannot be started.
    [[nodiscard]] static ChildProcess start(std::string_view name,
                                            std::vector<std::string> arguments = {},
                                            std::vector<std::string> environment = {});
    /// Starts another program (looked up in PATH) with the same pipes.
    [[nodiscard]] static ChildProcess start_program(std::vector<std::string> command,
                                                    std::vector<std::string> environment = {});

    ChildProcess(ChildProcess&& other) noexcept;
    ChildProcess& operator=(ChildProcess&& other) noexcept;
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;
    ~ChildProcess();

    [[nodiscard]] pid_t pid() const noexcept { return pid_; }

    /// Writes a line to the child's standard input. False if the child no longer reads.
    bool write_line(std::string_view line);
    /// The child then reads end of file.
    void close_input() noexcept;
    /// The next line of the child's standard output, without its newline. nullopt: end of file,
    /// or nothing within `timeout`.
    [[nodiscard]] std::optional<std::string> read_line(
        std::chrono::milliseconds timeout = patience);
    /// Everything up to end of file or the timeout.
    [[nodiscard]] std::string read_all(std::chrono::milliseconds timeout = patience);

    void send_signal(int signal) noexcept;
    void kill() noexcept;  ///< SIGKILL; `wait` still has to reap it
    /// SIGSTOP, and returns when the child is stopped (false: not within `timeout`).
    bool stop(std::chrono::milliseconds timeout = patience);
    void resume() noexcept;  ///< SIGCONT

    /// Waits for the end of the process and reaps it. Asked again, it answers the same.
    Exit wait(std::chrono::milliseconds timeout = patience);
    /// Kills and reaps it.
    Exit kill_and_wait();

  private:
    ChildProcess(pid_t pid, int process, int input, int output) noexcept;
    void take(ChildProcess& other) noexcept;
    void discard() noexcept;
    bool fill(std::chrono::steady_clock::time_point until);

    pid_t pid_ = -1;
    int process_ = -1;  ///< pidfd
    int input_ = -1;
    int output_ = -1;
    std::string buffer_;
    bool ended_ = false;
    Exit exit_;
};

/// For the child: writes a line to standard output at once. For use in MILLRACE_CHILD bodies.
void say(std::string_view line);
/// For the child: the next line of standard input; nullopt at end of file.
[[nodiscard]] std::optional<std::string> hear();

using ChildMain = int (*)(const std::vector<std::string>& arguments);

/// Registers a child's body. Use MILLRACE_CHILD.
struct ChildRegistration {
    ChildRegistration(const char* name, ChildMain main);
};

/// If this process was started as a child: runs its body and returns its exit code.
[[nodiscard]] std::optional<int> run_as_child(int argc, char** argv);

}  // namespace millrace::test

#define MILLRACE_CHILD(name)                                                             \
    static int millrace_child_##name(const std::vector<std::string>& arguments);         \
    static const ::millrace::test::ChildRegistration millrace_child_registration_##name{ \
        #name, &millrace_child_##name};                                                  \
    static int millrace_child_##name([[maybe_unused]] const std::vector<std::string>& arguments)
