// What a process holds, and what one more idle connection adds to it. Included by the bars of many
// connections.
#pragma once

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "millrace/connect/hub.hpp"

namespace millrace::bench {

/// As many of `wanted` clients as the limit on open files allows, which is raised.
[[nodiscard]] inline std::size_t allowed(std::size_t wanted) {
    rlimit files{};
    require(getrlimit(RLIMIT_NOFILE, &files) == 0, "the limit on open files");
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    return std::min<std::size_t>(wanted, (files.rlim_cur - 100) / 10);
}

struct Use {
    double descriptors = 0;
    double kibibytes = 0;
    double resident = 0;  ///< KiB, where such pages count whole
    double files = 0;     ///< of the descriptors, those of files in memory
};
[[nodiscard]] inline Use use_of_this_process() {
    // What earlier rounds have given back is resident until then, and would be used again unseen.
    (void)malloc_trim(0);
    Use use;
    for (const auto& one : std::filesystem::directory_iterator{"/proc/self/fd"}) {
        ++use.descriptors;
        std::error_code gone;  // that of this look
        const std::string what = std::filesystem::read_symlink(one.path(), gone).string();
        if (what.starts_with("/memfd:")) ++use.files;
    }
    // Pages that a peer maps, too, count for half: it counts the other half.
    std::ifstream rollup{"/proc/self/smaps_rollup"};
    for (std::string name; rollup >> name && name != "Pss:";) {
        if (name == "Rss:") rollup >> use.resident;
    }
    rollup >> use.kibibytes;
    return use;
}

/// Of a core, for a hub whose ends have nothing to do, in percent.
[[nodiscard]] inline double processor_share_of(connect::Hub& hub) {
    (void)hub.run(base::Deadline::after(std::chrono::milliseconds{500}));  // all are quiet
    timespec before{}, after{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    const base::Status status = hub.run(base::Deadline::after(std::chrono::seconds{2}));
    require(status == base::Status::timed_out, "ends that stay idle");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    return 100.0 *
           (static_cast<double>(after.tv_sec - before.tv_sec) +
            static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9) /
           2.0;
}

/// What one more idle end, in a loop, takes of the process that has accepted it. `Kind`:
/// listen(address), connect(address), and both give ends whose descriptor() may be asked for.
template <class Kind>
[[nodiscard]] double use_of_one(double Use::*what) {
    const std::size_t count = allowed(500);
    const auto accept = [](Pair& pair, std::size_t so_many) {
        auto listener = Kind::listen(connect::Address::tcp("127.0.0.1", 0));
        pair.set_value(0, listener.address().port());
        pair.meet();
        std::vector<typename Kind::Accepted> ends;
        while (ends.size() != so_many) ends.push_back(Kind::accept(listener));
        for (auto& end : ends) (void)end.descriptor();
        return ends;
    };
    const auto connect = [](Pair& pair, std::size_t so_many) {
        const connect::Address address = address_of_first(pair);
        std::vector<typename Kind::Connected> ends;
        while (ends.size() != so_many) ends.push_back(Kind::connect(address));
        return ends;
    };
    return run_pair(
        {},
        [&](Pair& pair) {
            const auto some = accept(pair, 1);  // what the process has once
            pair.meet();
            const Use before = use_of_this_process();
            const auto ends = accept(pair, count);
            Use after = use_of_this_process();
            pair.meet();
            // A file that 50 and more have their pages in is none of theirs.
            const double files = after.files - before.files;
            if (files * 50 <= static_cast<double>(count)) after.descriptors -= files;
            return (after.*what - before.*what) / static_cast<double>(count);
        },
        [&](Pair& pair) {
            const auto some = connect(pair, 1);
            pair.meet();
            const auto ends = connect(pair, count);
            pair.meet();
        });
}

}  // namespace millrace::bench
