#include "kept_points.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::bench {
namespace {

constexpr const char* attempted = "go on with a study";

/// What a signal that ends the program says. The processes that measure are children, which have
/// the same handler and say nothing.
std::atomic<pid_t> keeper{0};
void tell_and_die(int signal) {
    constexpr std::string_view words =
        "\nmillrace bench: what is measured so far is kept; --resume goes on with it\n";
    if (::getpid() == keeper.load(std::memory_order_relaxed)) {
        (void)!::write(STDERR_FILENO, words.data(), words.size());
    }
    (void)std::signal(signal, SIG_DFL);
    (void)std::raise(signal);
}
void tell_of_interruptions(bool tells) {
    keeper = tells ? ::getpid() : 0;
    for (const int signal : {SIGINT, SIGTERM}) {
        (void)std::signal(signal, tells ? tell_and_die : SIG_DFL);
    }
}

/// The first setting in which they differ: "repeats 3, here 5".
std::string difference_of(const nlohmann::json& kept, const nlohmann::json& wanted) {
    for (const auto& [name, value] : wanted.items()) {
        if (!kept.contains(name)) return fmt::format("no {}", name);
        if (kept[name] != value) {
            return fmt::format("{} {}, here {}", name, kept[name].dump(), value.dump());
        }
    }
    return "other settings";
}

}  // namespace

KeptPoints::KeptPoints(Options options) : options_{std::move(options)} {
    if (options_.path.empty()) {
        if (!options_.resumes) return;
        throw base::Error{base::ErrorCode::not_found, attempted, options_.study,
                          "there is no folder for what is kept", "set HOME or XDG_CACHE_HOME"};
    }
    if (options_.resumes) read();
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path{options_.path}.parent_path(),
                                        ignored);
    // What is there stays, until there is something better.
    file_.reset(std::fopen(options_.path.c_str(), "ae"));
    const int cause = errno;
    const bool is_taken = file_ && ::flock(::fileno(file_.get()), LOCK_EX | LOCK_NB) != 0;
    if (file_ && !is_taken) {
        is_of_this_run_ = options_.resumes;
        if (options_.resumes) {
            fmt::print(stderr, "millrace bench {}: goes on; {} points were measured before\n",
                       options_.study, found_.size());
            std::fflush(stderr);
        }
        tell_of_interruptions(true);
        return;
    }
    file_.reset();
    if (is_taken && options_.resumes) {
        throw base::Error{base::ErrorCode::permission, attempted, options_.path,
                          "another run keeps its points there", "wait for its end"};
    }
    if (options_.resumes) base::throw_errno(cause, attempted, options_.path, "make it writable");
    fmt::print(stderr, "millrace bench {}: what is measured is not kept for --resume: {}\n",
               options_.study,
               is_taken
                   ? "another run keeps its points in " + options_.path
                   : fmt::format("{}: {}", options_.path, std::generic_category().message(cause)));
    std::fflush(stderr);
}

KeptPoints::~KeptPoints() {
    if (file_) tell_of_interruptions(false);
}

void KeptPoints::read() {
    std::ifstream lines{options_.path};
    std::string line;
    if (!lines || !std::getline(lines, line)) {
        throw base::Error{base::ErrorCode::not_found, attempted, options_.path,
                          "no run was interrupted that had measured a point",
                          "begin it without --resume"};
    }
    const auto settings = nlohmann::json::parse(line, nullptr, false);
    if (settings != options_.settings) {
        throw base::Error{base::ErrorCode::invalid_argument, attempted, options_.path,
                          "it was measured with " + difference_of(settings, options_.settings),
                          "ask for the same, or begin without --resume"};
    }
    bool is_whole = true;
    while (std::getline(lines, line)) {
        is_whole = !lines.eof();
        const auto point = nlohmann::json::parse(line, nullptr, false);
        if (!point.is_object() || !point.contains("point")) continue;  // torn
        found_[point["point"].get<std::string>()] = point["values"];
    }
    if (is_whole) return;
    // What follows begins a line of its own.
    std::ofstream{options_.path, std::ios::app} << '\n';
}

const nlohmann::json* KeptPoints::find(const std::string& point) const {
    const auto found = found_.find(point);
    return found == found_.end() ? nullptr : &found->second;
}

void KeptPoints::add(const std::string& point, const nlohmann::json& values) {
    if (!file_) return;
    if (!is_of_this_run_) {
        is_of_this_run_ = true;
        (void)!::ftruncate(::fileno(file_.get()), 0);
        write(options_.settings);
    }
    if (file_) write({{"point", point}, {"values", values}});
}

void KeptPoints::write(const nlohmann::json& line) {
    const std::string text = line.dump() + '\n';
    const bool is_written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
                            std::fflush(file_.get()) == 0;
    if (is_written) return;
    fmt::print(stderr, "millrace bench {}: what is measured from now on is not kept: {}: {}\n",
               options_.study, options_.path, std::generic_category().message(errno));
    tell_of_interruptions(false);
    file_.reset();
}

void KeptPoints::over() noexcept {
    if (!file_) return;
    (void)std::remove(options_.path.c_str());
    tell_of_interruptions(false);
    file_.reset();
}

std::string machine_of_points() {
    const std::string all = base::describe_placement();
    return all.substr(0, all.find(", this thread"));
}

std::string points_file(const std::string& study) {
    const char* const cache = std::getenv("XDG_CACHE_HOME");
    const char* const home = std::getenv("HOME");
    const std::string name = fmt::format("millrace/bench-{}.points", study);
    if (cache != nullptr && *cache == '/') return fmt::format("{}/{}", cache, name);
    if (home == nullptr || *home == '\0') return {};
    return fmt::format("{}/.cache/{}", home, name);
}

}  // namespace millrace::bench
