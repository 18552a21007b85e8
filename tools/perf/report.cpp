#include "perf/report.hpp"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "command_line/output.hpp"
#include "millrace/connect/address.hpp"

namespace millrace::tools::perf {
namespace {

using nlohmann::json;

double bits_per_second(std::uint64_t bytes, double seconds) {
    return seconds > 0 ? 8.0 * static_cast<double>(bytes) / seconds : 0.0;
}

/// "1.25 GiB", with three digits.
std::string scaled(double number, double step, std::initializer_list<const char*> units) {
    auto unit = units.begin();
    while (number >= step && unit + 1 != units.end()) {
        number /= step;
        ++unit;
    }
    return fmt::format("{:.{}f} {}", number, number < 10 ? 2 : number < 100 ? 1 : 0, *unit);
}

/// As iperf3 names what one stream, or all of them, did in a time.
json piece(double from, double to, std::uint64_t bytes, bool sender) {
    return {{"start", from},
            {"end", to},
            {"seconds", to - from},
            {"bytes", bytes},
            {"bits_per_second", bits_per_second(bytes, to - from)},
            {"sender", sender}};
}
json piece_of(std::uint32_t lane, double from, double to, std::uint64_t bytes, bool sender) {
    json one = piece(from, to, bytes, sender);
    one["socket"] = lane;
    return one;
}

/// The first and last number of lanes of one way, and how its sums are called.
struct Way {
    std::uint32_t first;
    std::uint32_t last;
    bool client_sends;
    std::string suffix;
};
std::vector<Way> ways_of(const Plan& plan) {
    if (plan.direction != Direction::both) {
        return {{0, plan.streams, plan.direction == Direction::forward, ""}};
    }
    return {{0, plan.streams, true, ""}, {plan.streams, plan.lanes(), false, "_bidir_reverse"}};
}

}  // namespace

Report::Report(std::string address, const Plan& plan, bool lines)
    : plan_{plan}, lines_{lines}, before_(plan.lanes()) {
    json to{{"host", address}, {"port", 0}};
    if (const auto parsed = connect::Address::parse(address);
        parsed.kind() == connect::Address::Kind::tcp) {
        to = {{"host", parsed.host()}, {"port", parsed.port()}};
    }
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    document_["start"] = {
        {"version", std::string{"millrace "} + MILLRACE_VERSION},
        {"timestamp",
         {{"timesecs", std::chrono::duration_cast<std::chrono::seconds>(now).count()}}},
        {"connecting_to", to},
        {"test_start",
         {{"protocol", plan.tcp ? "TCP" : "RDMA"},
          {"num_streams", plan.streams},
          {"blksize", plan.length},
          {"omit", 0},
          {"duration", plan.bytes == 0 ? plan.seconds : 0},
          {"bytes", plan.bytes},
          {"blocks", 0},
          {"reverse", plan.direction == Direction::reverse ? 1 : 0},
          {"bidir", plan.direction == Direction::both ? 1 : 0},
          {"mode", plan.tcp ? "" : stream::name_of(plan.mode)},
          {"type", plan.tcp ? "" : stream::name_of(plan.type)},
          {"buffers", plan.buffers}}}};
    document_["intervals"] = json::array();
    if (!lines_) return;
    fmt::print("{} with {}: {} {}, {} of {} bytes each\n",
               plan.tcp ? "TCP"
                        : fmt::format("{} ({})",
                                      plan.type == stream::Type::stream ? "Byte streams"
                                                                        : "Streams of messages",
                                      stream::name_of(plan.mode)),
               address, plan.streams, plan.streams == 1 ? "stream" : "streams",
               plan.tcp ? "sends" : fmt::format("{} buffers", plan.buffers), plan.length);
}

void Report::begin(const std::string& device) {
    document_["start"]["test_start"]["device"] = device;
    if (!lines_) return;
    if (!device.empty()) print_wrapped(fmt::format("device {}\n", device), 7);
    fmt::print("{:<8} {:>15}  {:>10}  {:>10}\n", "stream", "seconds", "amount", "rate");
    (void)output_arrived();  // whoever reads along sees that it has begun
}

std::string Report::name_of(std::uint32_t lane) const {
    const char* const arrow = plan_.client_sends(lane) ? "->" : "<-";
    return fmt::format("{:>3} {}", lane, arrow);
}

void Report::line(const std::string& who, double from, double to, std::uint64_t bytes,
                  const std::string& remark) const {
    if (!lines_) return;
    fmt::print("{:<8} {:>7.2f}-{:>7.2f}  {:>10}  {:>10}{}{}\n", who, from, to,
               scaled(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB"}),
               scaled(bits_per_second(bytes, to - from), 1000, {"b/s", "kb/s", "Mb/s", "Gb/s"}),
               remark.empty() ? "" : "  ", remark);
}

void Report::interval(const std::vector<std::uint64_t>& bytes, double seconds) {
    json streams = json::array();
    json one;
    for (const Way& way : ways_of(plan_)) {
        std::uint64_t sum = 0;
        for (std::uint32_t lane = way.first; lane < way.last; ++lane) {
            const std::uint64_t moved = bytes[lane] - before_[lane];
            sum += moved;
            streams.push_back(piece_of(lane, before_seconds_, seconds, moved, way.client_sends));
            line(name_of(lane), before_seconds_, seconds, moved, "");
        }
        one["sum" + way.suffix] = piece(before_seconds_, seconds, sum, way.client_sends);
        if (plan_.streams > 1) {
            line(way.client_sends ? "all ->" : "all <-", before_seconds_, seconds, sum, "");
        }
    }
    one["streams"] = std::move(streams);
    document_["intervals"].push_back(std::move(one));
    if (lines_) (void)output_arrived();
    before_ = bytes;
    before_seconds_ = seconds;
}

void Report::end(const Counts& mine, const Counts& theirs) {
    json& end = document_["end"];
    end["streams"] = json::array();
    if (lines_) fmt::print("\n");
    for (const Way& way : ways_of(plan_)) {
        const Counts& from = way.client_sends ? mine : theirs;
        const Counts& to = way.client_sends ? theirs : mine;
        LaneCount sent;
        LaneCount received;
        for (std::uint32_t lane = way.first; lane < way.last; ++lane) {
            const LaneCount& out = from.lanes[lane];
            const LaneCount& in = to.lanes[lane];
            json sender = piece_of(lane, 0, out.seconds, out.bytes, way.client_sends);
            if (out.percent_direct >= 0) sender["percent_direct"] = out.percent_direct;
            end["streams"].push_back(
                {{"sender", std::move(sender)},
                 {"receiver", piece_of(lane, 0, in.seconds, in.bytes, way.client_sends)}});
            line(name_of(lane), 0, out.seconds, out.bytes,
                 out.percent_direct < 0
                     ? "sender"
                     : fmt::format("sender, {:.1f} % direct", out.percent_direct));
            line(name_of(lane), 0, in.seconds, in.bytes, "receiver");
            sent.bytes += out.bytes;
            sent.seconds = std::max(sent.seconds, out.seconds);
            received.bytes += in.bytes;
            received.seconds = std::max(received.seconds, in.seconds);
        }
        end["sum_sent" + way.suffix] = piece(0, sent.seconds, sent.bytes, way.client_sends);
        end["sum_received" + way.suffix] =
            piece(0, received.seconds, received.bytes, way.client_sends);
        if (plan_.streams > 1) {
            const std::string all = way.client_sends ? "all ->" : "all <-";
            line(all, 0, sent.seconds, sent.bytes, "sender");
            line(all, 0, received.seconds, received.bytes, "receiver");
        }
    }
    end["cpu_utilization_percent"] = {{"host_total", mine.cpu.user + mine.cpu.system},
                                      {"host_user", mine.cpu.user},
                                      {"host_system", mine.cpu.system},
                                      {"remote_total", theirs.cpu.user + theirs.cpu.system},
                                      {"remote_user", theirs.cpu.user},
                                      {"remote_system", theirs.cpu.system}};
    if (!lines_) return;
    fmt::print(
        "processor: {:.0f} % here ({:.0f} user, {:.0f} system), {:.0f} % there ({:.0f}, "
        "{:.0f})\n",
        mine.cpu.user + mine.cpu.system, mine.cpu.user, mine.cpu.system,
        theirs.cpu.user + theirs.cpu.system, theirs.cpu.user, theirs.cpu.system);
}

}  // namespace millrace::tools::perf
