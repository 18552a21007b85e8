// The soft device leaves nothing behind that outlives its processes: its names are abstract sockets
// and its memory is memfds, which the kernel takes back. What can be left is memory of a dead
// program that others still hold, and folders of a demo that was killed.
#include "clean.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "command_line/output.hpp"
#include "soft/seen.hpp"

namespace millrace::tools {
namespace {

namespace fs = std::filesystem;

/// No demo runs that long.
constexpr std::chrono::hours old_enough{24};

/// Folders that `millrace demo` makes for its sockets and removes, unless it is killed.
std::vector<fs::path> folders_of_dead_demos() {
    std::vector<fs::path> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator{fs::temp_directory_path(), error}) {
        struct stat status {};
        if (!entry.path().filename().string().starts_with("millrace-demo-") ||
            ::lstat(entry.path().c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
            status.st_uid != ::geteuid()) {
            continue;
        }
        const auto age = std::chrono::system_clock::now() -
                         std::chrono::system_clock::from_time_t(status.st_mtime);
        if (age >= old_enough) found.push_back(entry.path());
    }
    return found;
}

std::vector<std::string> files_in_shared_memory() {
    std::vector<std::string> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator{"/dev/shm", error}) {
        const std::string name = entry.path().filename().string();
        if (name.find("millrace") != std::string::npos) found.push_back(entry.path().string());
    }
    return found;
}

template <class... Args>
void print_line(fmt::format_string<Args...> format, Args&&... args) {
    print_wrapped(fmt::format(format, std::forward<Args>(args)...), 4);
}

}  // namespace

int clean(bool dry_run) {
    const soft::Survey survey = seen();
    int failures = 0;
    std::size_t found = 0;

    print_line("looked into {} processes ({} more are closed to this user)\n",
               survey.processes_looked_into, survey.processes_closed_to_us);

    std::size_t ownerless = 0;
    for (const auto& one : survey.participants) {
        if (one.user == ::geteuid() && !one.readable) ++ownerless;
    }
    print_line(
        "names of fabrics: {} in use by programs that run{}\n", survey.participants.size(),
        ownerless == 0
            ? std::string{", none by a dead one (the kernel takes them back)"}
            : fmt::format("; of {} the owner was not found: it runs another build or in "
                          "another pid namespace, or a child that it forked holds its socket",
                          ownerless));

    if (survey.leftovers.empty()) {
        print_line("memory of dead programs: none\n");
    }
    for (const auto& one : survey.leftovers) {
        ++found;
        std::string holders;
        for (const auto pid : one.holders) holders += fmt::format(" {}", pid);
        print_line(
            "memory of dead programs: {} KiB of node {} of fabric '{}', held by pid{}; it is "
            "free when they close the device or end\n",
            one.memory_bytes / 1024, one.node, one.fabric, holders);
    }

    const auto files = files_in_shared_memory();
    if (files.empty()) print_line("/dev/shm: nothing (the soft device makes no files there)\n");
    for (const auto& file : files) {
        ++found;
        print_line(
            "/dev/shm: {} has our name, but the soft device does not make such files: left "
            "alone\n",
            file);
    }

    const auto folders = folders_of_dead_demos();
    if (folders.empty()) print_line("folders of killed demos: none older than a day\n");
    for (const auto& folder : folders) {
        ++found;
        std::error_code error;
        if (!dry_run) fs::remove_all(folder, error);
        if (error) ++failures;
        print_line("folders of killed demos: {} {}\n", folder.string(),
                   dry_run ? std::string{"would be removed"}
                   : error ? "cannot be removed: " + error.message()
                           : std::string{"removed"});
    }
    if (found == 0) print_line("nothing to clean\n");
    return failures == 0 ? 0 : 1;
}

}  // namespace millrace::tools
