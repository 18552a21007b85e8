#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "command_line/output.hpp"
#include "millrace/base/clock.hpp"

namespace millrace::tools {
namespace {
std::int64_t ticks_now() { return base::Clock::now().time_since_epoch().count(); }
}  // namespace

ProgressLine::ProgressLine(std::string what, std::uint64_t total, std::string unit, double scale)
    : what_{std::move(what)},
      total_{total},
      unit_{std::move(unit)},
      scale_{scale},
      terminal_{::isatty(STDERR_FILENO) == 1},
      start_ns_{ticks_now()} {}

ProgressLine::~ProgressLine() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
}

void ProgressLine::update(std::uint64_t done) {
    if (!terminal_) return;
    const std::int64_t now = ticks_now();
    if (now - last_ns_ < 100'000'000) return;
    last_ns_ = now;
    const double seconds = std::max(1e-3, static_cast<double>(now - start_ns_) * 1e-9);
    const double rate = static_cast<double>(done) / seconds;
    const double share =
        total_ == 0 ? 0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
    const double left = rate > 0 ? static_cast<double>(total_ - std::min(done, total_)) / rate : 0;
    const std::string figures = fmt::format(" {:3.0f} %  {:.0f} {}/s  {:.0f} s left", share * 100,
                                            rate / scale_, unit_, left);
    // A line that is broken could not be taken back: the bar has what the words leave of it.
    constexpr std::size_t longest_bar = 24;
    const std::size_t room = output_width() - 1;
    const std::size_t words = what_.size() + figures.size() + 3;
    std::string line = what_;
    if (words < room) {
        const std::size_t bar = std::min(longest_bar, room - words);
        const auto filled = static_cast<std::size_t>(share * static_cast<double>(bar));
        line += fmt::format(" [{:#<{}}{:<{}}]", "", filled, "", bar - filled);
    }
    line += figures;
    fmt::print(stderr, "\r\033[K{}", line.substr(0, room));
    std::fflush(stderr);
    drawn_ = true;
}

}  // namespace millrace::tools
