// The rate on standard error, see the header.
#include "cat/rate_line.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

#include <fmt/format.h>

namespace millrace::tools {

namespace {

std::string amount(double bytes) {
    const char* unit = "B";
    for (const char* larger : {"kB", "MB", "GB", "TB"}) {
        if (bytes < 1000) break;
        bytes /= 1000;
        unit = larger;
    }
    return fmt::format("{:.{}f} {}", bytes, unit[0] == 'B' ? 0 : 2, unit);
}

double seconds(base::Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
}

}  // namespace

RateLine::RateLine(bool shown) noexcept
    : shown_{shown},
      terminal_{isatty(STDERR_FILENO) == 1},
      start_{base::Clock::now()},
      last_{start_} {}

void RateLine::update(std::uint64_t bytes) {
    if (!shown_) return;
    const auto now = base::Clock::now();
    const auto interval =
        terminal_ ? std::chrono::milliseconds{250} : std::chrono::milliseconds{2000};
    if (now - last_ < interval) return;
    const double rate = static_cast<double>(bytes - last_bytes_) / seconds(now - last_);
    fmt::print(stderr, "{}{}  {}/s{}", terminal_ ? "\r" : "", amount(static_cast<double>(bytes)),
               amount(rate), terminal_ ? "\x1b[K" : "\n");
    last_ = now;
    last_bytes_ = bytes;
}

void RateLine::finish(std::uint64_t bytes) {
    if (!shown_) return;
    const double time = seconds(base::Clock::now() - start_);
    fmt::print(stderr, "{}{} in {:.2f} s, {}/s{}\n", terminal_ ? "\r" : "",
               amount(static_cast<double>(bytes)), time,
               amount(time > 0 ? static_cast<double>(bytes) / time : 0.0),
               terminal_ ? "\x1b[K" : "");
}

}  // namespace millrace::tools
