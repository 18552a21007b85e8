#include "millrace/rpc/profile.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
#include <tuple>

#include <fmt/format.h>

#include "made/measured_profile.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/device.hpp"

namespace millrace::rpc {

namespace {

/// The next word of a line, which it takes away.
std::string_view take_word(std::string_view& line) noexcept {
    const auto first = std::min(line.find_first_not_of(" \t\r"), line.size());
    line.remove_prefix(first);
    const std::string_view word = line.substr(0, line.find_first_of(" \t\r"));
    line.remove_prefix(word.size());
    return word;
}

template <class Number>
bool take_number(std::string_view& line, Number& into) noexcept {
    const std::string_view word = take_word(line);
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), into);
    return error == std::errc{} && end == word.data() + word.size() && into > 0;
}

std::optional<ProfileLine> parse_line(std::string_view line) {
    ProfileLine read;
    read.device = take_word(line);
    if (!take_number(line, read.response_bytes) || !take_number(line, read.clients)) return {};
    const std::string_view design = take_word(line);
    const auto* const found = std::find_if(every_design.begin(), every_design.end(),
                                           [&](Design one) { return to_string(one) == design; });
    if (found == every_design.end()) return {};
    read.design = *found;
    if (!take_number(line, read.calls_per_second) || !take_number(line, read.median_ns) ||
        !take_number(line, read.p99_ns) || !take_word(line).empty()) {
        return {};
    }
    return read;
}

/// How far a point is from what is asked for, in powers of two.
double distance(const ProfileLine& line, std::size_t bytes, std::uint32_t clients) {
    const auto between = [](double one, double other) { return std::abs(std::log2(one / other)); };
    return between(static_cast<double>(line.response_bytes), static_cast<double>(bytes)) +
           between(line.clients, clients);
}

std::string shown(const ProfileLine& line) {
    return fmt::format("{} {} B, {} clients, {}: {:.4g} calls/s, median {:.4g} ns, p99 {:.4g} ns",
                       line.device, line.response_bytes, line.clients, to_string(line.design),
                       line.calls_per_second, line.median_ns, line.p99_ns);
}

}  // namespace

const Profile& Profile::built_in() {
    static const Profile profile = parse(measured_profile, "the library's profile");
    return profile;
}

Profile Profile::parse(std::string_view text, std::string name) {
    std::vector<ProfileLine> lines;
    for (std::size_t number = 1; !text.empty(); ++number) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        line = line.substr(0, line.find('#'));
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        std::optional<ProfileLine> read = parse_line(line);
        if (!read.has_value()) {
            throw base::Error{base::ErrorCode::invalid_argument, "read a profile of calls",
                              fmt::format("line {} of {}", number, name),
                              fmt::format("'{}' is no measured point", line),
                              "write one by: millrace bench rpc --profile FILE"};
        }
        lines.push_back(*std::move(read));
    }
    return Profile{std::move(lines), std::move(name)};
}

Profile Profile::load(const std::string& path) {
    std::ifstream file{path};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    if (!file.is_open() || file.bad()) {
        throw base::Error{base::ErrorCode::system, "read a profile of calls", path,
                          base::describe_errno(errno), "is it there, and may it be read?"};
    }
    Profile read = parse(text, path);
    if (read.lines().empty()) {
        throw base::Error{base::ErrorCode::invalid_argument, "read a profile of calls", path,
                          "there is no measured point in it",
                          "write one by: millrace bench rpc --profile FILE"};
    }
    return read;
}

std::string Profile::text(std::string_view head) const {
    std::string text;
    while (!head.empty()) {
        const std::string_view line = head.substr(0, head.find('\n'));
        head.remove_prefix(std::min(line.size() + 1, head.size()));
        text += fmt::format("# {}\n", line);
    }
    for (const ProfileLine& line : lines_) {
        text += fmt::format("{} {} {} {} {:.4g} {:.4g} {:.4g}\n", line.device, line.response_bytes,
                            line.clients, to_string(line.design), line.calls_per_second,
                            line.median_ns, line.p99_ns);
    }
    return text;
}

std::vector<Choice> Profile::choose(std::string_view device, const Automatic& load,
                                    bool has_dispatcher) const {
    const std::size_t bytes = std::max<std::size_t>(load.response_bytes, 1);
    const std::uint32_t clients = std::max(load.clients, 1U);
    const auto is_offered = [&](Design design) {
        return design.connection == Connection::own ||
               (has_dispatcher && is_studied(design, clients));
    };
    const ProfileLine* nearest = nullptr;
    for (const ProfileLine& line : lines_) {
        if (line.device != device || !is_offered(line.design)) continue;
        if (nearest == nullptr ||
            distance(line, bytes, clients) < distance(*nearest, bytes, clients)) {
            nearest = &line;
        }
    }
    const std::string asked = fmt::format("for answers of {} B and {} clients", bytes, clients);
    if (nearest == nullptr) {
        return {{Design{}, fmt::format("chosen {}: {} has no line of {}, and work 004 recommends "
                                       "WRITE both ways",
                                       asked, name_.empty() ? "the profile" : name_, device)}};
    }
    std::vector<const ProfileLine*> lines;
    for (const ProfileLine& line : lines_) {
        if (line.device == device && is_offered(line.design) &&
            line.response_bytes == nearest->response_bytes && line.clients == nearest->clients) {
            lines.push_back(&line);
        }
    }
    const bool by_latency = load.aim == Automatic::Aim::latency;
    std::stable_sort(lines.begin(), lines.end(), [&](const auto* one, const auto* other) {
        return by_latency ? one->median_ns < other->median_ns
                          : one->calls_per_second > other->calls_per_second;
    });
    // What is as good within what runs differ by is left to the simpler one.
    constexpr double alike = 0.95;
    const auto is_alike = [&](const ProfileLine* line) {
        return by_latency ? lines[0]->median_ns >= alike * line->median_ns
                          : line->calls_per_second >= alike * lines[0]->calls_per_second;
    };
    const auto rank = [](const ProfileLine* line) {
        return std::find(every_design.begin(), every_design.end(), line->design);
    };
    auto simplest = lines.begin();
    for (auto at = lines.begin(); at != lines.end() && is_alike(*at); ++at) {
        if (rank(*at) < rank(*simplest)) simplest = at;
    }
    std::rotate(lines.begin(), simplest, simplest + 1);
    std::vector<Choice> choices;
    for (const ProfileLine* line : lines) {
        if (std::any_of(choices.begin(), choices.end(),
                        [&](const Choice& one) { return one.design == line->design; })) {
            continue;
        }
        choices.push_back(
            {line->design, fmt::format("chosen {}, {}, by {}: {}", asked,
                                       by_latency ? "for latency" : "for throughput",
                                       name_.empty() ? "a profile" : name_, shown(*line))});
    }
    if (choices.size() > 1) choices[0].why += fmt::format("; the next one: {}", shown(*lines[1]));
    return choices;
}

std::string device_kind(connect::Endpoint& endpoint) {
    const verbs::Context& context = endpoint.context();
    if (context.is_soft()) {
        const std::string mode = verbs::soft_mode();
        return "soft-" + mode.substr(0, mode.find_first_not_of("abcdefghijklmnopqrstuvwxyz"));
    }
    std::string kind{context.name()};
    const auto digit = std::find_if(kind.begin(), kind.end(),
                                    [](unsigned char letter) { return std::isdigit(letter) != 0; });
    kind.erase(digit, kind.end());
    return kind.empty() ? std::string{"device"} : kind;
}

}  // namespace millrace::rpc
