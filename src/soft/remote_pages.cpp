// Implementation of remote_pages.hpp: /proc/PID/pagemap.
#include "remote_pages.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "layout.hpp"
#include "link_time.hpp"
#include "millrace/base/system_calls.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint64_t present = std::uint64_t{1} << 63;
constexpr std::uint64_t write_waits = std::uint64_t{1} << 57;  ///< protected by a userfaultfd

/// A page's number has 36 bits where addresses have 48; the rest is the time, in units of 8.4 ms.
[[nodiscard]] std::uint64_t known_now(std::uint64_t page) noexcept {
    return page << 28 | (static_cast<std::uint64_t>(link_now()) >> 23 & 0xfffffff);
}

}  // namespace

int RemotePages::map_of_pages(pid_t pid) noexcept {
    const int known = opened_.load(std::memory_order_acquire);
    if (known >= 0) return known;
    const std::lock_guard guard{mutex_};
    if (tried_) return opened_.load(std::memory_order_relaxed);
    tried_ = true;
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%d/pagemap", static_cast<int>(pid));
    base::count_system_call();
    descriptor_ = Descriptor{::open(path, O_RDONLY | O_CLOEXEC)};
    opened_.store(descriptor_.get(), std::memory_order_release);
    return descriptor_.get();
}

bool RemotePages::ask(pid_t pid, std::uint64_t first, std::uint64_t count) noexcept {
    const int pages = map_of_pages(pid);
    if (pages < 0) return true;
    std::array<std::uint64_t, 128> words;
    while (count > 0) {
        const std::uint64_t some = std::min<std::uint64_t>(count, words.size());
        base::count_system_call();
        const ssize_t got = ::pread(pages, words.data(), some * sizeof words[0],
                                    static_cast<off_t>(first * sizeof words[0]));
        // Its end, or none of its addresses: what copies says so.
        if (got < static_cast<ssize_t>(sizeof words[0])) return true;
        const std::uint64_t read = static_cast<std::uint64_t>(got) / sizeof words[0];
        for (std::uint64_t i = 0; i < read; ++i) {
            if ((words[i] & (present | write_waits)) != present) return false;
        }
        first += read;
        count -= read;
    }
    return true;
}

bool RemotePages::there(pid_t pid, std::uint64_t address, std::size_t bytes) noexcept {
    static const std::uint64_t size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t first = address / size;
    const std::uint64_t last = (address + bytes - 1) / size;
    if (first != last) return ask(pid, first, last - first + 1);
    const std::uint64_t now = known_now(first);
    if (known_.load(std::memory_order_relaxed) == now) return true;
    if (!ask(pid, first, 1)) return false;
    known_.store(now, std::memory_order_relaxed);
    return true;
}

}  // namespace millrace::soft
