// The log: levels, the lazily started thread, forks, overruns. Each case is a process of its own,
// because a process has one log.
#include "millrace/base/log.hpp"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/child_process.hpp"

namespace millrace::base {
namespace {

using test::ChildProcess;
using testing::HasSubstr;
using testing::Not;

std::size_t thread_count() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator{"/proc/self/task"}) {
        ++count;
    }
    return count;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

/// What the child writes to standard error, which it sends to its standard output.
std::string output_of(const char* child, std::vector<std::string> environment = {}) {
    auto process = ChildProcess::start(child, {}, std::move(environment));
    auto text = process.read_all();
    EXPECT_TRUE(process.wait().success());
    return text;
}

MILLRACE_CHILD(log_every_level) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    for (const auto level : {LogLevel::trace, LogLevel::debug, LogLevel::info, LogLevel::warn,
                             LogLevel::error, LogLevel::off}) {
        log(level, "test", "line at {}", static_cast<int>(level));
    }
    flush_log();
    return 0;
}

TEST(Log, WritesWarningsAndErrorsByDefault) {
    const auto text = output_of("log_every_level", {"MILLRACE_LOG="});
    EXPECT_THAT(text, Not(HasSubstr("line at 2")));
    EXPECT_THAT(text, HasSubstr("warn  test: line at 3\n"));
    EXPECT_THAT(text, HasSubstr("error test: line at 4\n"));
    EXPECT_THAT(text, Not(HasSubstr("line at 5")));
}

TEST(Log, WritesWhatTheEnvironmentAsksFor) {
    EXPECT_EQ(occurrences(output_of("log_every_level", {"MILLRACE_LOG=trace"}), "line at"), 5U);
    EXPECT_EQ(occurrences(output_of("log_every_level", {"MILLRACE_LOG=error"}), "line at"), 1U);
    EXPECT_EQ(output_of("log_every_level", {"MILLRACE_LOG=off"}), "");
}

TEST(Log, SaysWhenTheEnvironmentNamesNoLevel) {
    const auto text = output_of("log_every_level", {"MILLRACE_LOG=loud"});
    EXPECT_THAT(text, HasSubstr("MILLRACE_LOG"));
    EXPECT_EQ(occurrences(text, "line at"), 2U);
}

MILLRACE_CHILD(log_set_level) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    set_log_level(LogLevel::debug);
    log(LogLevel::debug, "test", "shown");
    if (!log_enabled(LogLevel::debug) || log_enabled(LogLevel::trace)) return 1;
    set_log_level(LogLevel::off);
    log(LogLevel::error, "test", "hidden");
    if (log_enabled(LogLevel::error) || log_enabled(LogLevel::off)) return 2;
    flush_log();
    return 0;
}

TEST(Log, LevelSetByTheProgramOverridesTheEnvironment) {
    const auto text = output_of("log_set_level", {"MILLRACE_LOG=error"});
    EXPECT_THAT(text, HasSubstr("shown"));
    EXPECT_THAT(text, Not(HasSubstr("hidden")));
}

MILLRACE_CHILD(log_check_setting) {
    try {
        check_log_setting();
        test::say("accepted");
    } catch (const Error& error) {
        test::say(error.what());
    }
    set_log_level(LogLevel::error);
    check_log_setting();  // what does not count need not be right
    return 0;
}

TEST(Log, RefusesALevelThatThereIsNot) {
    EXPECT_EQ(output_of("log_check_setting", {"MILLRACE_LOG=debug"}), "accepted\n");
    EXPECT_EQ(output_of("log_check_setting", {"MILLRACE_LOG="}), "accepted\n");
    EXPECT_THAT(output_of("log_check_setting", {"MILLRACE_LOG=loud"}),
                testing::AllOf(HasSubstr("MILLRACE_LOG"), HasSubstr("'loud'"),
                               HasSubstr("trace, debug, info, warn, error or off")));
}

MILLRACE_CHILD(log_sink) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    const std::size_t before = thread_count();
    set_log_sink([](LogLevel level, std::string_view component, std::string_view text) {
        test::say("taken: " + std::string{name_of(level)} + " " + std::string{component} + " " +
                  std::string{text});
        throw 1;  // is dropped
    });
    log(LogLevel::error, "test", "line {}", 1);
    log(LogLevel::debug, "test", "line {}", 2);
    if (thread_count() > before) return 1;  // nothing is queued
    set_log_sink({});
    log(LogLevel::error, "test", "line {}", 3);
    flush_log();
    return 0;
}

TEST(Log, GivesItsLinesToAProgramThatTakesThem) {
    const auto text = output_of("log_sink", {"MILLRACE_LOG=info"});
    EXPECT_THAT(text, HasSubstr("taken: error test line 1\n"));
    EXPECT_THAT(text, Not(HasSubstr("line 2")));
    EXPECT_THAT(text, HasSubstr("error test: line 3\n"));
    EXPECT_EQ(occurrences(text, "taken"), 1U);
}

MILLRACE_CHILD(log_threads) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    const std::size_t before = thread_count();
    log(LogLevel::debug, "test", "not written");
    flush_log();
    const std::size_t silent = thread_count();
    log(LogLevel::error, "test", "written");
    flush_log();
    const std::size_t loud = thread_count();
    // A sanitizer may add a thread of its own.
    return silent == before && loud > before ? 0 : 1;
}

TEST(Log, HasNoThreadUntilALineIsReallyWritten) {
    auto child = ChildProcess::start("log_threads", {}, {"MILLRACE_LOG=warn"});
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(log_at_exit) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    log(LogLevel::error, "test", "last words");
    return 0;
}

TEST(Log, WritesWhatIsQueuedWhenTheProcessExits) {
    EXPECT_THAT(output_of("log_at_exit"), HasSubstr("last words"));
}

/// Standard error, read byte by byte, and full until somebody does.
struct SlowOutput {
    SlowOutput() {
        if (pipe2(ends, O_NONBLOCK) != 0) std::abort();
        const std::string page(4096, '.');
        fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(page.size()));
        while (write(ends[1], page.data(), page.size()) > 0) {
        }
        fcntl(ends[1], F_SETFL, 0);
        dup2(ends[1], STDERR_FILENO);
    }
    [[nodiscard]] bool take_byte() {
        const std::lock_guard guard{mutex};
        char byte = 0;
        if (read(ends[0], &byte, 1) != 1) return false;
        text += byte;
        return true;
    }
    int ends[2];
    std::mutex mutex;
    std::string text;
};

// As rping's threads, one of which returns from main() and the other calls exit().
MILLRACE_CHILD(log_at_two_exits) {
    static SlowOutput output;
    static std::atomic<int> ending{0};
    // Called after the log's own, which are registered by its first line. The thread that does not
    // call it may end the process first, with 0: it has flushed, too.
    std::atexit([] {
        while (output.take_byte()) {
        }
        _exit(output.text.find("last words") != std::string::npos ? 0 : 2);
    });
    log(LogLevel::error, "test", "last words");
    std::thread{[] {
        while (ending.load() != 2) std::this_thread::yield();
        while (true) static_cast<void>(output.take_byte());
    }}.detach();
    std::thread{[] {
        ++ending;
        std::exit(0);
    }}.detach();
    ++ending;
    std::exit(0);
}

TEST(Log, WritesWhatIsQueuedWhenTwoThreadsEndTheProcess) {
    auto child = ChildProcess::start("log_at_two_exits");
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(log_and_leave) {
    log(LogLevel::error, "test", "written");
    flush_log();
    pthread_exit(nullptr);
}

TEST(Log, KeepsNoProcessWhoseThreadsHaveEnded) {
    auto child = ChildProcess::start("log_and_leave");
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(log_forks) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    log(LogLevel::error, "test", "from the parent");
    // Another thread logs during the forks, so that the queue's lock is held in some of them.
    std::atomic<bool> stop{false};
    std::jthread noise{[&] {
        while (!stop.load()) log(LogLevel::error, "test", "noise");
    }};
    int failed = 0;
    for (int i = 0; i < 20; ++i) {
        const pid_t pid = fork();
        if (pid == 0) {
            log(LogLevel::error, "test", "from child {}.", i);
            flush_log();
            _exit(0);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
    }
    stop.store(true);
    noise.join();
    flush_log();
    return failed;
}

TEST(Log, WorksInForkedChildrenWhateverTheParentsThreadsHeld) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    // Seen: the child's thread waits for the sanitizer's allocator, whose lock was held at the
    // fork.
    GTEST_SKIP() << "the sanitizer's own locks do not survive the fork of a process with threads";
#endif
    const auto text = output_of("log_forks");
    for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(text.find("from child " + std::to_string(i) + ".") != std::string::npos) << i;
    }
}

MILLRACE_CHILD(log_overrun) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) return 1;
    const int saved = dup(STDOUT_FILENO);
    fcntl(pipe_ends[1], F_SETPIPE_SZ, 4096);
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[1]);
    // Nobody reads the pipe yet: the writer blocks, the queue overruns, the caller goes on.
    for (int i = 0; i < 5000; ++i) log(LogLevel::error, "test", "number {}.", i);
    std::jthread reader{[&] {
        char buffer[4096];
        for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof(buffer))) > 0;) {
            if (write(saved, buffer, static_cast<std::size_t>(n)) != n) return;
        }
    }};
    flush_log();
    dup2(saved, STDERR_FILENO);  // the last writing end of the pipe is gone: the reader ends
    return 0;
}

TEST(Log, DropsTheOldestLinesOfAFullQueueAndSaysSo) {
    const auto text = output_of("log_overrun");
    EXPECT_THAT(text, HasSubstr("number 4999."));
    // "millrace: 3886 lines of the log were dropped in all"
    const auto note = text.rfind("millrace: ");
    ASSERT_NE(note, std::string::npos) << "nothing is said of dropped lines";
    const auto dropped = std::stoul(text.substr(note + std::string{"millrace: "}.size()));
    EXPECT_GT(dropped, 0U);
    EXPECT_EQ(occurrences(text, "test: number ") + dropped, 5000U);
}

MILLRACE_CHILD(log_from_threads) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([t] {
            for (int i = 0; i < 100; ++i) log(LogLevel::error, "test", "<{}:{}>", t, i);
        });
    }
    threads.clear();
    flush_log();
    return 0;
}

TEST(Log, WritesEveryLineOfEveryThreadWhole) {
    const auto text = output_of("log_from_threads");
    for (int t = 0; t < 4; ++t) {
        for (int i = 0; i < 100; ++i) {
            const auto line = "error test: <" + std::to_string(t) + ":" + std::to_string(i) + ">\n";
            ASSERT_EQ(occurrences(text, line), 1U) << line;
        }
    }
}

MILLRACE_CHILD(log_closed_output) {
    close(STDERR_FILENO);
    log(LogLevel::error, "test", "nobody hears this");
    flush_log();
    return 0;
}

TEST(Log, GoesOnWhenStandardErrorIsClosed) {
    auto child = ChildProcess::start("log_closed_output");
    EXPECT_TRUE(child.wait().success());
}

}  // namespace
}  // namespace millrace::base
