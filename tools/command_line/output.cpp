// See output.hpp.
#include "output.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::tools {
namespace {

constexpr std::size_t unknown_width = 80;
constexpr std::size_t least_width = 20;

std::optional<std::size_t> width_from_environment() {
    const char* const text = std::getenv("COLUMNS");
    if (text == nullptr) return std::nullopt;
    const std::string_view digits{text};
    std::size_t width = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), width);
    if (error != std::errc{} || end != digits.end() || width == 0) return std::nullopt;
    return width;
}

/// Columns that the text takes: the characters of what we print are one column each.
std::size_t columns_of(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;  // not within a character
    }));
}

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    for (;;) {
        const auto end = text.find('\n');
        lines.push_back(text.substr(0, end));
        if (end == std::string_view::npos) return lines;
        text.remove_prefix(end + 1);
    }
}

void append_wrapped(std::string& out, std::string_view line, std::size_t indent,
                    std::size_t width) {
    std::size_t used = 0;
    bool first = true;
    while (!line.empty()) {
        // A word with the spaces before it, which fall away where the line is broken.
        const auto begin = std::min(line.find_first_not_of(' '), line.size());
        const auto end = std::min(line.find(' ', begin), line.size());
        const std::size_t columns = columns_of(line.substr(0, end));
        if (!first && used + columns > width) {
            out += '\n';
            out.append(indent, ' ');
            out += line.substr(begin, end - begin);
            used = indent + columns - begin;
        } else {
            out += line.substr(0, end);
            used += columns;
        }
        first = false;
        line.remove_prefix(end);
    }
}

std::string cell_of(const std::vector<std::string>& cells, std::size_t column) {
    return column < cells.size() ? cells[column] : std::string{};
}

void pad(std::string& out, std::string_view text, std::size_t width, bool left) {
    const std::size_t spaces = width - std::min(width, columns_of(text));
    if (!left) out.append(spaces, ' ');
    out += text;
    if (left) out.append(spaces, ' ');
}

}  // namespace

std::optional<std::size_t> terminal_width() {
    winsize size{};
    if (const auto wanted = width_from_environment()) return std::max(*wanted, least_width);
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
    return std::max<std::size_t>(size.ws_col, least_width);
}

std::size_t output_width() { return terminal_width().value_or(unknown_width); }

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
    indent = std::min(indent, width / 2);
    std::string out;
    bool first = true;
    for (const std::string_view line : lines_of(text)) {
        if (!first) out += '\n';
        first = false;
        append_wrapped(out, line, indent, width);
    }
    return out;
}

void print_wrapped(std::string_view text, std::size_t indent) {
    fmt::print("{}", wrapped(text, indent));
}

std::string Table::text(std::size_t width) const {
    constexpr std::size_t gap = 2;
    std::vector<std::size_t> widths(headings_.size(), 0);
    std::size_t heading_lines = 0;
    for (std::size_t column = 0; column < headings_.size(); ++column) {
        const auto lines = lines_of(headings_[column]);
        heading_lines = std::max(heading_lines, lines.size());
        for (const auto line : lines) widths[column] = std::max(widths[column], columns_of(line));
        for (const auto& row : rows_) {
            widths[column] = std::max(widths[column], columns_of(cell_of(row, column)));
        }
    }
    std::string out;
    for (std::size_t first = 1; first < headings_.size() || first == 1;) {
        std::size_t end = first;
        std::size_t used = widths[0];
        while (end < headings_.size() && (end == first || used + gap + widths[end] <= width)) {
            used += gap + widths[end++];
        }
        if (first > 1) out += '\n';
        const auto add_line = [&](auto&& text_at) {
            std::string line;
            pad(line, text_at(std::size_t{0}), widths[0], true);
            for (std::size_t column = first; column < end; ++column) {
                line.append(gap, ' ');
                pad(line, text_at(column), widths[column], false);
            }
            line.erase(line.find_last_not_of(' ') + 1);
            out += line + '\n';
        };
        for (std::size_t i = 0; i < heading_lines; ++i) {
            add_line([&](std::size_t column) {
                const auto lines = lines_of(headings_[column]);
                return std::string{i < lines.size() ? lines[i] : std::string_view{}};
            });
        }
        for (const auto& row : rows_) {
            add_line([&](std::size_t column) { return cell_of(row, column); });
        }
        if (end == first) break;
        first = end;
    }
    return out;
}

bool output_arrived() noexcept {
    // What failed earlier left its mark on the stream, and the number of the error is gone.
    const bool failed_before = std::ferror(stdout) != 0;
    int error = std::fflush(stdout) != 0 ? errno : 0;
    // Some file systems tell only at a close that the disk is full. The descriptor itself may be
    // closed on purpose: `cat listen` does when it has written everything.
    if (error == 0 && !failed_before) {
        const int copy = ::dup(STDOUT_FILENO);
        if (copy >= 0 && ::close(copy) != 0 && errno != EINTR) error = errno;
    }
    if (error == 0 && !failed_before) return true;
    try {
        const base::Error lost{base::code_of_errno(error), "write all of the output",
                               "standard output",
                               error != 0 ? base::describe_errno(error) : "a write failed",
                               "look at the room on the disk, or at what reads the output"};
        std::fprintf(stderr, "millrace: %s\n", lost.what());
    } catch (...) {
        std::fputs("millrace: cannot write all of the output (standard output)\n", stderr);
    }
    return false;
}

}  // namespace millrace::tools
