// Implementation of remote_pages.hpp: /proc/PID/pagemap.
#include "system/remote_pages.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "system/process_identity.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint64_t present = std::uint64_t{1} << 63;
constexpr std::uint64_t write_waits = std::uint64_t{1} << 57;  ///< protected by a userfaultfd

/// In units of 5 ms.
[[nodiscard]] std::uint64_t time_now() noexcept {
    static const std::uint64_t unit = base::ticks_in(std::chrono::milliseconds{5});
    return base::ticks() / unit & 0xfffffff;
}
/// A page's number has 36 bits where addresses have 48: the rest is the time.
[[nodiscard]] constexpr std::uint64_t known_at(std::uint64_t page, std::uint64_t time) noexcept {
    return page << 28 | time;
}
/// And one unit earlier.
[[nodiscard]] bool is_known(std::uint64_t known, std::uint64_t now) noexcept {
    return known == now || known == now - 1;
}

}  // namespace

int RemotePages::map_of_pages(pid_t pid) noexcept {
    const int known = opened_.load(std::memory_order_acquire);
    if (known >= 0) return known;
    const std::lock_guard guard{mutex_};
    if (tried_) return opened_.load(std::memory_order_relaxed);
    tried_ = true;
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%d/pagemap", static_cast<int>(living_thread_of(pid)));
    base::count_system_call();
    descriptor_ = Descriptor{::open(path, O_RDONLY | O_CLOEXEC)};
    opened_.store(descriptor_.get(), std::memory_order_release);
    return descriptor_.get();
}

bool RemotePages::ask(pid_t pid, std::uint64_t first, std::uint64_t needed) noexcept {
    const base::Uncancelled held;
    const int pages = map_of_pages(pid);
    if (pages < 0) return true;
    std::array<std::uint64_t, 16> words;
    for (std::uint64_t done = 0; done < needed;) {
        base::count_system_call();
        const ssize_t got = ::pread(pages, words.data(), sizeof words,
                                    static_cast<off_t>((first + done) * sizeof words[0]));
        // Its end, or none of its addresses: what copies says so.
        if (got < static_cast<ssize_t>(sizeof words[0])) return true;
        const std::uint64_t read = static_cast<std::uint64_t>(got) / sizeof words[0];
        const std::uint64_t now = time_now();
        for (std::uint64_t i = 0; i < read; ++i) {
            const std::uint64_t page = first + done + i;
            if ((words[i] & (present | write_waits)) == present) {
                place_of(page).store(known_at(page, now), std::memory_order_relaxed);
            } else if (done + i < needed) {
                return false;
            }
        }
        done += read;
    }
    return true;
}

bool RemotePages::there(pid_t pid, std::uint64_t address, std::size_t bytes) noexcept {
    static const std::uint64_t size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t last = (address + bytes - 1) / size;
    std::uint64_t page = address / size;
    const std::uint64_t now = time_now();
    while (page <= last &&
           is_known(place_of(page).load(std::memory_order_relaxed), known_at(page, now))) {
        ++page;
    }
    return page > last || ask(pid, page, last - page + 1);
}

}  // namespace millrace::soft
