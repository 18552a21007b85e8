#include "run_verbs.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "measure_echo.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "studies/works/quotations.hpp"

namespace millrace::bench {
namespace {

/// The work's link, with what it measured to and fro of up to 16 B (section 3.2.2).
std::string network() {
    return fmt::format("shaped:{}g,latency={}us", quoted("001.link"), quoted("001.round_trip") / 2);
}

/// Echoes of one run: some 0.1 s.
std::uint64_t echoes_in(const std::string& mode) {
    return soft::cable_facts(mode).shaped ? 6'000 : 30'000;
}

enum class Value { per_second, microseconds };

StudySeries curve(std::string label, EchoCase chosen, Value value,
                  std::vector<std::size_t> xs = {}) {
    return {std::move(label),
            [chosen, value](const std::string& mode, std::size_t bytes) {
                EchoCase at = chosen;
                at.bytes = bytes;
                at.mode = mode;
                at.echoes = echoes_in(mode);
                // Sleeping takes some microseconds more.
                if (at.events) at.echoes /= 3;
                const double ns = measure_echo(at);
                return value == Value::per_second ? 1e9 / ns : ns / 1e3;
            },
            std::move(xs)};
}

StudyFigure figure(std::string id, std::string title, Value value, std::vector<std::size_t> xs) {
    const bool rate = value == Value::per_second;
    return {std::move(id),
            std::move(title),
            rate ? "round_trips_per_second" : "round_trip_us",
            rate ? "round trips per second" : "us to and fro",
            "message size in bytes",
            std::move(xs),
            {}};
}

StudyFigure figure_3_2() {
    auto shown = figure("3.2", "Latencies: polled or by events, inline or not", Value::microseconds,
                        {4, 16, 64, 256, 1024, 4096, 16384, 65536});
    const std::vector<std::size_t> can_be_inline{4, 16, 64, 256};
    const auto us = Value::microseconds;
    shown.series = {
        curve("SEND, polled, inline", {.way = Way::send}, us, can_be_inline),
        curve("SEND, polled", {.way = Way::send, .inlined = false}, us),
        curve("SEND, events", {.way = Way::send, .inlined = false, .events = true}, us),
        curve("WRITE, inline", {.way = Way::write}, us, can_be_inline),
        curve("WRITE", {.way = Way::write, .inlined = false}, us),
    };
    return shown;
}

StudyFigure figure_3_3() {
    auto shown = figure("3.3", "The same messages over all three transports", Value::per_second,
                        {4, 8, 16, 32, 64, 128, 256, 512, 1024});
    const auto rate = Value::per_second;
    shown.series = {
        curve("RC", {.way = Way::send, .transport = Transport::reliable}, rate),
        curve("UC", {.way = Way::send, .transport = Transport::unreliable}, rate),
        curve("UD", {.way = Way::send, .transport = Transport::datagram}, rate),
        curve("RC, immediate", {.way = Way::immediate_alone, .transport = Transport::reliable},
              rate, {4}),
        curve("UC, immediate", {.way = Way::immediate_alone, .transport = Transport::unreliable},
              rate, {4}),
        curve("UD, immediate", {.way = Way::immediate_alone, .transport = Transport::datagram},
              rate, {4}),
    };
    return shown;
}

StudyFigure figure_3_4() {
    auto shown = figure("3.4", "Messages by different work requests over RC", Value::per_second,
                        {4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096});
    const auto rate = Value::per_second;
    shown.series = {
        curve("WRITE", {.way = Way::write}, rate),
        curve("READ, memory", {.way = Way::read_memory}, rate),
        curve("READ, completion", {.way = Way::read_completion}, rate),
        curve("SEND", {.way = Way::send}, rate),
        curve("WRITE, immediate", {.way = Way::write_immediate}, rate),
    };
    return shown;
}

StudyFigure figure_3_6() {
    auto shown = figure("3.6", "Writes to a place that the sender chooses", Value::microseconds,
                        {4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096});
    const auto us = Value::microseconds;
    shown.series = {
        curve("immediate", {.way = Way::place_immediate}, us),
        curve("data first", {.way = Way::place_behind}, us),
        curve("place first", {.way = Way::place_before}, us),
        curve("data first, chained", {.way = Way::chained_behind}, us),
        curve("place first, chained", {.way = Way::chained_before}, us),
        curve("one WRITE", {.way = Way::write}, us),
    };
    return shown;
}

std::vector<StudyFinding> findings() {
    return {
        {"3.2", "3.2", "Busy polling takes about half the time of completion events",
         "median ratio of events to polling up to 1 KiB within a factor of 1.5",
         ratio_near("3.2", "SEND, events", "SEND, polled", quoted("001.polling_to_events"), 0,
                    1024)},
        {"3.2", "3.2", "Inline data are faster for small messages",
         "median ratio of WRITE to WRITE, inline up to 64 B above 1",
         ratio_between("3.2", "WRITE", "WRITE, inline", {1.0}, 0, 64)},
        {"3.2.1", "3.3", "UD is slightly slower than RC, as a header comes with it",
         "median ratio of UD to RC between 0.75 and 1",
         ratio_between("3.3", "UD", "RC", {0.75, 1})},
        {"3.2.1", "3.3", "RC and UC differ little", "median ratio between 0.9 and 1.1",
         ratio_between("3.3", "UC", "RC", {0.9, 1.1})},
        {"3.2.2", "3.4", "What waits for a receive's completion takes about twice as long: SEND",
         "median ratio of WRITE to SEND, round trips per second, up to 1 KiB between 1.6 and 2.5",
         ratio_between("3.4", "WRITE", "SEND", {1.6, 2.5}, 0, 1024)},
        {"3.2.2", "3.4", "... and WRITE with immediate data",
         "median ratio of WRITE to it up to 1 KiB between 1.6 and 2.5",
         ratio_between("3.4", "WRITE", "WRITE, immediate", {1.6, 2.5}, 0, 1024)},
        {"3.2.2", "3.4", "A READ is faster seen in memory than by its completion",
         "median ratio above 1", ratio_between("3.4", "READ, memory", "READ, completion", {1.0})},
        {"3.2.2", "3.4", "Reads and writes differ little: 3 % below 16 B, 6 % from there",
         "median ratio of READ, memory to WRITE between 0.9 and 1.12",
         ratio_between("3.4", "READ, memory", "WRITE", {0.9, 1.12})},
        {"3.3", "3.6", "Two WRITEs are faster than one with immediate data",
         "median ratio of immediate to data first at least 1.2",
         ratio_between("3.6", "immediate", "data first", {1.2})},
        {"3.3", "3.6", "One WRITE is some 10 % faster than two",
         "median ratio of data first to one WRITE between 1.02 and 1.3",
         ratio_between("3.6", "data first", "one WRITE", {1.02, 1.3})},
        {"3.3", "3.6", "Which of the two goes first matters little",
         "median ratio of place first to data first between 0.9 and 1.1",
         ratio_between("3.6", "place first", "data first", {0.9, 1.1})},
        {"3.3", "3.6", "Chained requests take twice as long as separate ones",
         "median ratio of data first, chained to data first within a factor of 1.5",
         ratio_near("3.6", "data first, chained", "data first", quoted("001.chained"))},
    };
}

}  // namespace

const Study& verbs_study() {
    static const Study study{.name = "verbs",
                             .work = "work 001, chapter 3,",
                             .modes = {"fast", network()},
                             .seconds_per_point = 0.2,
                             .figures = {figure_3_2(), figure_3_3(), figure_3_4(), figure_3_6()},
                             .findings = findings()};
    return study;
}

int run_verbs(const StudyOptions& options) { return run_study(verbs_study(), options); }

}  // namespace millrace::bench
