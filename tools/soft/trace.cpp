// The device appends its lines to a memory file of ours, which the program finds through /proc: so
// there is nothing that could be full, and nothing is left if either is killed.
#include "trace.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "millrace/base/error.hpp"

namespace millrace::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds look_interval{20};

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File open_output(const std::string& path) {
    check_writable(path, "write the trace");
    File file{std::fopen(path.c_str(), "we"), &std::fclose};
    if (file == nullptr) {
        base::throw_errno(errno, "write the trace", path, "name a file that can be written");
    }
    return file;
}

void check_written(const File& file, const std::string& path) {
    if (file == nullptr || (std::fflush(file.get()) == 0 && std::ferror(file.get()) == 0)) return;
    throw base::Error{base::ErrorCode::system, "write the trace", path,
                      "not all of it could be written", "free some room there"};
}

/// Reads the growing file and prints its whole lines.
class Follower {
  public:
    /// Either output may be null.
    Follower(int file, std::FILE* timeline, std::FILE* json)
        : file_{file}, timeline_{timeline}, json_{json} {}

    void follow() {
        std::vector<char> buffer(1 << 20);
        for (;;) {
            const ssize_t n = ::pread(file_, buffer.data(), buffer.size(), offset_);
            if (n <= 0) break;
            offset_ += n;
            pending_.append(buffer.data(), static_cast<std::size_t>(n));
            print_lines();
            // What has been printed need not be kept.
            (void)::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                              offset_ / 4096 * 4096);
        }
        for (std::FILE* to : {timeline_, json_}) {
            if (to != nullptr) std::fflush(to);
        }
    }

  private:
    void print_lines() {
        std::size_t begin = 0;
        for (std::size_t end; (end = pending_.find('\n', begin)) != std::string::npos;
             begin = end + 1) {
            const std::string_view line{pending_.data() + begin, end - begin};
            if (json_ != nullptr) put(json_, std::string{line});
            if (timeline_ != nullptr) put(timeline_, timeline_of(line, start_));
        }
        pending_.erase(0, begin);
    }

    /// What cannot be written leaves its mark on the stream: the program runs on.
    static void put(std::FILE* to, std::string text) {
        text += '\n';
        std::fwrite(text.data(), 1, text.size(), to);
    }

    int file_;
    std::FILE* timeline_;
    std::FILE* json_;
    off_t offset_ = 0;
    std::string pending_;
    std::int64_t start_ = 0;
};

/// `shows_on_output`: ours has the trace, so the program's goes where its errors go.
[[noreturn]] void run_child(const std::string& path, pid_t parent, bool shows_on_output,
                            const std::function<int()>& become_program) {
    if (shows_on_output) (void)::dup2(STDERR_FILENO, STDOUT_FILENO);
    // It would go on untraced, and nobody would wait for it.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    int status = 1;
    try {
        if (::getppid() != parent) _exit(1);
        if (::setenv("MILLRACE_TRACE", path.c_str(), 1) != 0) {
            base::throw_errno(errno, "set the environment variable", "MILLRACE_TRACE");
        }
        status = become_program();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "millrace: %s\n", error.what());
    }
    _exit(status);
}

}  // namespace

std::string timeline_of(std::string_view line, std::int64_t& start) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return std::string{line};
    const auto time = json.value("time", std::int64_t{0});
    if (start == 0) start = time;
    std::string text =
        fmt::format("{:>14.3f} us  pid {:<7} {:<13}", static_cast<double>(time - start) / 1e3,
                    json.value("pid", 0), json.value("call", std::string{}));
    for (const auto& [key, value] : json.items()) {
        if (key == "time" || key == "pid" || key == "thread" || key == "call") continue;
        if (value.is_boolean()) {
            if (value.get<bool>()) text += "  " + key;
        } else if (value.is_string()) {
            const auto words = value.get<std::string>();
            const bool plain = key == "opcode" || key == "status" || key == "type";
            text += plain ? "  " + words : fmt::format("  {} {}", key, words);
        } else if (key == "qp" || key == "to") {
            text += fmt::format("  {} {:#x}", key, value.get<std::uint64_t>());
        } else {
            text += fmt::format("  {} {}", key, value.dump());
        }
    }
    return text;
}

int trace(const TraceOptions& options, const std::function<int()>& become_program) {
    File output{nullptr, &std::fclose};
    File json{nullptr, &std::fclose};
    if (!options.output.empty()) output = open_output(options.output);
    const bool beside = options.json.wanted() && !options.json.in_place_of_lines();
    if (beside) json = open_output(options.json.path);
    const int file = ::memfd_create("millrace-trace", MFD_CLOEXEC);
    if (file < 0) base::throw_errno(errno, "make a file for the trace", "in memory");
    const std::string path = fmt::format("/proc/{}/fd/{}", ::getpid(), file);

    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) base::throw_errno(errno, "start the program", "a child process");
    const bool on_output = options.json.in_place_of_lines() && output == nullptr;
    if (child == 0) run_child(path, parent, on_output, become_program);
    // The terminal's signals go to the program; when it ends, so do we.
    ::signal(SIGINT, SIG_IGN);
    ::signal(SIGQUIT, SIG_IGN);

    std::FILE* const lines = output != nullptr ? output.get() : on_output ? stdout : stderr;
    Follower follower{file, options.json.in_place_of_lines() ? nullptr : lines,
                      options.json.in_place_of_lines() ? lines : json.get()};
    int status = 0;
    for (;;) {
        const pid_t ended = ::waitpid(child, &status, WNOHANG);
        follower.follow();
        if (ended == child) break;
        if (ended < 0 && errno != EINTR) base::throw_errno(errno, "wait for the program", path);
        std::this_thread::sleep_for(look_interval);
    }
    ::close(file);
    check_written(output, options.output);
    check_written(json, options.json.path);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace millrace::tools
