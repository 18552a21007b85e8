#include "transport/mode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint32_t most_packets = 1U << 20;
constexpr std::uint32_t strict_packets = 4096;

[[noreturn]] void refuse(std::string_view text, std::string cause) {
    throw base::Error{
        base::ErrorCode::invalid_argument, "choose the soft device's mode",
        fmt::format("'{}'", text), std::move(cause),
        "use fast, strict[:seed=NUMBER][,delay=TIME][,order=any|increasing], "
        "shaped[:RATE][,latency=TIME][,jitter=TIME][,inflight=PACKETS][,mtu=BYTES]"
        "[,header=BYTES][,seed=NUMBER], for example shaped:10g,latency=1us, or faulty with what "
        "shaped has and [,loss=SHARE][,rnr=SHARE][,duplicate=SHARE][,reorder=SHARE][,delay=TIME]"
        "[,exhaust=SHARE][,die=OPERATION], for example faulty:seed=3,loss=1% "
        "(MILLRACE_SOFT_MODE, or millrace soft run --mode)"};
}

/// The number at the beginning of `text`, and in `unit` what follows it.
[[nodiscard]] std::optional<double> number(std::string_view text, std::string_view& unit) {
    double value = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    if (error != std::errc{} || value < 0) return std::nullopt;
    unit = text.substr(static_cast<std::size_t>(end - text.data()));
    return value;
}

[[nodiscard]] std::optional<std::uint64_t> rate(std::string_view text) {
    if (text == "unlimited") return 0;
    std::string_view unit;
    const auto value = number(text, unit);
    if (!value) return std::nullopt;
    double factor = 0;
    if (unit == "g" || unit == "G") factor = 1e9;
    if (unit == "m" || unit == "M") factor = 1e6;
    const double bits = *value * factor;
    if (bits < 1e6 || bits > 10e12) return std::nullopt;
    return static_cast<std::uint64_t>(bits + 0.5);
}

[[nodiscard]] std::optional<std::int64_t> time(std::string_view text) {
    std::string_view unit;
    const auto value = number(text, unit);
    if (!value) return std::nullopt;
    double factor = 0;
    if (unit == "ns") factor = 1;
    if (unit == "us" || unit == "µs") factor = 1e3;
    if (unit == "ms") factor = 1e6;
    if (unit == "s") factor = 1e9;
    if (factor == 0 && *value != 0) return std::nullopt;
    const double ns = *value * factor;
    if (ns > static_cast<double>(longest_ns)) return std::nullopt;
    return static_cast<std::int64_t>(ns + 0.5);
}

template <class Number>
[[nodiscard]] std::optional<Number> whole(std::string_view text, Number least, Number most) {
    const auto value = number_of<Number>(text);
    return value && *value >= least && *value <= most ? value : std::nullopt;
}

/// Twice what a round trip holds, so that the limit does not show unless somebody sets it.
[[nodiscard]] std::uint32_t generous_packets(const CableSettings& cable) noexcept {
    constexpr double least = 64;
    const double bytes = static_cast<double>(cable.bits_per_second) / 8e9 *
                         (2.0 * static_cast<double>(cable.latency_ns + cable.jitter_ns));
    const double packets = cable.bits_per_second == 0 ? most_packets : 2 * bytes / cable.mtu;
    return static_cast<std::uint32_t>(
        std::clamp(packets, least, static_cast<double>(most_packets)));
}

template <class Value>
void set(Value& field, const std::optional<Value>& value, std::string_view all,
         std::string_view item, std::string_view allowed) {
    if (!value) refuse(all, fmt::format("'{}' is not {}", item, allowed));
    field = *value;
}

[[nodiscard]] std::string text_of_time(std::int64_t ns) {
    if (ns >= 1'000'000) return fmt::format("{:g} ms", static_cast<double>(ns) / 1e6);
    if (ns >= 1'000) return fmt::format("{:g} us", static_cast<double>(ns) / 1e3);
    return fmt::format("{} ns", ns);
}

/// "KEY=VALUE", or "VALUE" of the setting that needs no name.
struct Item {
    std::string_view text;
    std::string_view key;
    std::string_view value;
};

/// Takes the first of the settings that are left.
[[nodiscard]] Item next_item(std::string_view& rest, std::string_view nameless) {
    const std::size_t comma = rest.find(',');
    const std::string_view text = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) return {text, nameless, text};
    return {text, text.substr(0, equals), text.substr(equals + 1)};
}

[[nodiscard]] std::optional<std::uint64_t> seed(std::string_view text) {
    return whole(text, std::uint64_t{0}, ~std::uint64_t{0});
}

/// "0.5%" in parts per million.
[[nodiscard]] std::optional<std::uint32_t> share(std::string_view text) {
    std::string_view unit;
    const auto value = number(text, unit);
    if (!value || *value > 100 || (unit != "%" && (*value != 0 || !unit.empty()))) {
        return std::nullopt;
    }
    return static_cast<std::uint32_t>(*value * 1e4 + 0.5);
}

struct Share {
    std::string_view key;
    std::string_view words;
    std::uint32_t FaultSettings::*field;
};
constexpr Share shares[] = {{"loss", "loss", &FaultSettings::loss},
                            {"rnr", "not ready", &FaultSettings::not_ready},
                            {"duplicate", "duplicates", &FaultSettings::duplicate},
                            {"reorder", "reordering", &FaultSettings::reorder},
                            {"exhaust", "exhaustion", &FaultSettings::exhaust}};

/// False: there is no such setting.
[[nodiscard]] bool parse_fault(std::string_view all, std::string_view item, std::string_view key,
                               std::string_view value, FaultSettings& faults) {
    for (const Share& one : shares) {
        if (key != one.key) continue;
        set(faults.*one.field, share(value), all, item, "a share from 0% to 100%, as in loss=0.5%");
        return true;
    }
    if (key == "delay") {
        set(faults.delay_ns, time(value), all, item, "a time up to 10s, as in delay=1ms");
    } else if (key == "die") {
        set(faults.die, whole(value, std::uint64_t{1}, ~std::uint64_t{0}), all, item,
            "the number of an operation, from 1");
    } else {
        return false;
    }
    return true;
}

/// The settings of mode `faulty` where there are `faults` to be set.
[[nodiscard]] CableSettings parse_cable(std::string_view all, std::string_view rest,
                                        FaultSettings* faults) {
    CableSettings cable;
    while (!rest.empty()) {
        const auto [item, key, value] = next_item(rest, "rate");
        if (key == "rate") {
            set(cable.bits_per_second, rate(value), all, item,
                "a rate from 1m (1 Mb/s) to 10000g, or unlimited");
        } else if (key == "latency") {
            set(cable.latency_ns, time(value), all, item, "a time up to 10s, as in latency=24ms");
        } else if (key == "jitter") {
            set(cable.jitter_ns, time(value), all, item, "a time up to 10s, as in jitter=5us");
        } else if (key == "inflight") {
            set(cable.packets_in_flight, whole(value, 1U, most_packets), all, item,
                "a number of packets from 1 to 1048576");
        } else if (key == "mtu") {
            const auto mtu = whole(value, 256U, 4096U);
            set(cable.mtu, mtu && std::has_single_bit(*mtu) ? mtu : std::nullopt, all, item,
                "256, 512, 1024, 2048 or 4096");
        } else if (key == "header") {
            set(cable.header, whole(value, 0U, 4096U), all, item, "a number of bytes up to 4096");
        } else if (key == "seed") {
            set(cable.seed, seed(value), all, item, "a whole number");
        } else if (faults == nullptr || !parse_fault(all, item, key, value, *faults)) {
            refuse(all, fmt::format("there is no setting '{}'", key));
        }
    }
    if (cable.packets_in_flight == 0) cable.packets_in_flight = generous_packets(cable);
    return cable;
}

[[nodiscard]] StrictSettings parse_strict(std::string_view all, std::string_view rest) {
    StrictSettings strict;
    while (!rest.empty()) {
        const auto [item, key, value] = next_item(rest, "");
        if (key == "seed") {
            set(strict.seed, seed(value), all, item, "a whole number");
        } else if (key == "delay") {
            set(strict.delay_ns, time(value), all, item, "a time up to 10s, as in delay=200us");
        } else if (key == "order") {
            if (value != "any" && value != "increasing") {
                refuse(all, fmt::format("'{}' is neither order=any nor order=increasing", item));
            }
            strict.in_order = value == "increasing";
        } else {
            refuse(all, fmt::format("there is no setting '{}'", key.empty() ? item : key));
        }
    }
    return strict;
}

/// `own`: what belongs to an end alone.
[[nodiscard]] std::string describe_strict(const StrictSettings& strict, const std::string& own) {
    const StrictSettings usual;
    std::string text = "strict" + own;
    if (strict.delay_ns != usual.delay_ns) {
        text += fmt::format(", delays up to {}", text_of_time(strict.delay_ns));
    }
    if (strict.in_order) text += ", bytes in increasing order";
    return text;
}

[[nodiscard]] std::string describe_faults(const Mode& mode) {
    const FaultSettings& faults = mode.faults;
    std::string text = fmt::format(", seed {}", mode.cable.seed);
    for (const Share& one : shares) {
        const std::uint32_t parts = faults.*one.field;
        if (parts != 0) text += fmt::format(", {} {:g} %", one.words, parts / 1e4);
    }
    text += fmt::format(", delays up to {}", text_of_time(faults.delay_ns));
    if (faults.die != 0) text += fmt::format(", death at operation {}", faults.die);
    return text;
}

}  // namespace

Mode parse_mode(std::string_view text) {
    const std::size_t colon = text.find(':');
    const std::string_view name = text.substr(0, colon);
    const std::string_view rest =
        colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
    if (name == "fast") {
        if (colon != std::string_view::npos) refuse(text, "mode fast has no settings");
        return {};
    }
    Mode mode;
    if (name == "shaped") {
        mode.kind = ModeKind::shaped;
        mode.cable = parse_cable(text, rest, nullptr);
    } else if (name == "faulty") {
        mode.kind = ModeKind::faulty;
        mode.cable = parse_cable(text, rest, &mode.faults);
    } else if (name == "strict") {
        mode.kind = ModeKind::strict;
        mode.strict = parse_strict(text, rest);
        // What the decisions are drawn from, and the way of datagrams.
        mode.cable.seed = mode.strict.seed;
        mode.cable.bits_per_second = 0;
        mode.cable.latency_ns = 0;
        mode.cable.jitter_ns = mode.strict.delay_ns;
        mode.cable.packets_in_flight = strict_packets;
    } else {
        refuse(text, fmt::format("there is no mode '{}'", name));
    }
    return mode;
}

CableFacts cable_facts(std::string_view text) {
    const Mode mode = parse_mode(text);
    if (mode.kind != ModeKind::shaped) return {};
    return {true, mode.cable.bits_per_second, mode.cable.latency_ns};
}

std::string mode_in_words() {
    try {
        return describe_agreement(mode_of_environment());
    } catch (const base::Error& error) {
        return error.object();
    }
}

Mode mode_of_environment() {
    const char* const text = std::getenv("MILLRACE_SOFT_MODE");
    return text == nullptr || *text == '\0' ? Mode{} : parse_mode(text);
}

std::string describe(const Mode& mode) {
    if (mode.kind == ModeKind::strict) {
        return describe_strict(mode.strict, fmt::format(", seed {}", mode.strict.seed));
    }
    return describe_agreement(mode) +
           (mode.kind == ModeKind::faulty ? describe_faults(mode) : std::string{});
}

std::string describe_agreement(const Mode& mode) {
    if (mode.kind == ModeKind::fast) return "fast";
    if (mode.kind == ModeKind::strict) return describe_strict(mode.strict, "");
    const CableSettings& cable = mode.cable;
    const CableSettings usual;
    std::string text = mode.kind == ModeKind::faulty ? "faulty, " : "shaped, ";
    text += cable.bits_per_second == 0
                ? "unlimited rate"
                : fmt::format("{:g} Gb/s", static_cast<double>(cable.bits_per_second) / 1e9);
    text += fmt::format(", {} one way", text_of_time(cable.latency_ns));
    if (cable.jitter_ns != 0) text += fmt::format(", jitter {}", text_of_time(cable.jitter_ns));
    if (cable.packets_in_flight != generous_packets(cable)) {
        text += fmt::format(", {} packets in flight", cable.packets_in_flight);
    }
    if (cable.mtu != usual.mtu) text += fmt::format(", MTU {} bytes", cable.mtu);
    if (cable.header != usual.header) text += fmt::format(", headers of {} bytes", cable.header);
    return text;
}

}  // namespace millrace::soft
