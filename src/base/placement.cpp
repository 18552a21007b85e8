// Placement: asks and sets the processor affinity of threads.
#include "millrace/base/placement.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <sched.h>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::base {
namespace {

/// Large enough for every kernel's mask (8192 processors).
struct Mask {
    static constexpr int bits = 8192;
    alignas(cpu_set_t) unsigned char bytes[bits / 8]{};

    [[nodiscard]] cpu_set_t* set() noexcept { return reinterpret_cast<cpu_set_t*>(bytes); }
};

std::vector<int> cores_of_this_thread() {
    Mask mask;
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof(mask.bytes), mask.set()) == 0) {
        for (int core = 0; core < Mask::bits; ++core) {
            if (CPU_ISSET_S(static_cast<std::size_t>(core), sizeof(mask.bytes), mask.set())) {
                cores.push_back(core);
            }
        }
    }
    if (cores.empty()) cores.push_back(current_core());
    return cores;
}

std::string processor_model() {
    std::ifstream file{"/proc/cpuinfo"};
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("model name")) continue;
        const auto colon = line.find(": ");
        if (colon != std::string::npos) return line.substr(colon + 2);
    }
    return "processor model not told";
}

}  // namespace

std::vector<int> available_cores() {
    // Asked once, before this library first pins a thread: afterwards a pinned thread's own mask
    // would say that there is one core.
    static const std::vector<int> cores = cores_of_this_thread();
    return cores;
}

void pin_this_thread(int core) { bind_this_thread({&core, 1}); }

void bind_this_thread(std::span<const int> cores) {
    const auto allowed = available_cores();
    const auto object =
        fmt::format("core{} {}", cores.size() == 1 ? "" : "s", fmt::join(cores, ", "));
    const auto remedy = fmt::format("choose one of: {}", fmt::join(allowed, ", "));
    Mask mask;
    for (const int core : cores) {
        if (core < 0 || core >= Mask::bits) {
            throw Error{ErrorCode::invalid_argument, "pin this thread", object,
                        "there is no such core", remedy};
        }
        CPU_SET_S(static_cast<std::size_t>(core), sizeof(mask.bytes), mask.set());
    }
    if (sched_setaffinity(0, sizeof(mask.bytes), mask.set()) != 0) {
        throw_errno(errno, "pin this thread", object, remedy);
    }
}

bool leave_this_core() noexcept {
    Mask mask;
    if (sched_getaffinity(0, sizeof(mask.bytes), mask.set()) != 0) return false;
    Mask others = mask;
    CPU_CLR_S(static_cast<std::size_t>(current_core()), sizeof(others.bytes), others.set());
    if (CPU_COUNT_S(sizeof(others.bytes), others.set()) == 0 ||
        sched_setaffinity(0, sizeof(others.bytes), others.set()) != 0) {
        return false;
    }
    if (sched_setaffinity(0, sizeof(mask.bytes), mask.set()) != 0) {
        // None of them belongs to the process any more: whatever does.
        Mask all;
        std::ranges::fill(all.bytes, static_cast<unsigned char>(0xff));
        (void)sched_setaffinity(0, sizeof(all.bytes), all.set());
    }
    return true;
}

std::vector<int> parse_core_list(std::string_view text) {
    std::vector<int> cores;
    const char* at = text.data();
    const char* const end = at + text.size();
    const auto number = [&](int& into) {
        const auto [behind, error] = std::from_chars(at, end, into);
        const bool is_one = error == std::errc{} && into >= 0 && into < Mask::bits;
        at = behind;
        return is_one;
    };
    while (at != end && *at != '\n') {
        int first = 0;
        if (!number(first)) return {};
        int last = first;
        if (at != end && *at == '-' && (++at, !number(last) || last < first)) return {};
        for (int core = first; core <= last; ++core) cores.push_back(core);
        if (at != end && *at == ',') {
            ++at;
        } else if (at != end && *at != '\n') {
            return {};
        }
    }
    return cores;
}

std::vector<int> cores_of_node(int node, const std::string& nodes) {
    const std::vector<int> available = available_cores();
    std::error_code none;
    if (!std::filesystem::exists(nodes, none)) return node == 0 ? available : std::vector<int>{};
    std::ifstream file{fmt::format("{}/node{}/cpulist", nodes, node)};
    std::string line;
    std::getline(file, line);
    std::vector<int> cores = parse_core_list(line);
    std::erase_if(cores,
                  [&](int core) { return std::ranges::find(available, core) == available.end(); });
    return cores;
}

int current_core() noexcept {
    const int core = sched_getcpu();
    return core < 0 ? 0 : core;
}

std::string describe_placement() {
    const auto cores = available_cores();
    const auto mine = cores_of_this_thread();
    const auto count = fmt::format("{} core{} ({})", cores.size(), cores.size() == 1 ? "" : "s",
                                   processor_model());
    if (mine.size() == 1) return fmt::format("{}, this thread pinned to core {}", count, mine[0]);
    return fmt::format("{}, this thread runs on cores {}", count, fmt::join(mine, ", "));
}

}  // namespace millrace::base
