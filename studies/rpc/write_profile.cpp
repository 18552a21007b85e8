#include "write_profile.hpp"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/report.hpp"
#include "bench/framework/statistics.hpp"
#include "bench/rpc/measure_rpc.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/rpc/profile.hpp"
#include "studies/framework/progress.hpp"

namespace millrace::bench {
namespace {

/// As the work's hosts, whose threads share a dispatcher.
constexpr std::size_t per_dispatcher = 8;

struct Point {
    std::string mode;
    std::size_t bytes;
    std::size_t clients;
    rpc::Design design;
};

rpc::ProfileLine measure(const Point& point, const ProfileOptions& options) {
    const bool is_shared = point.design.connection == rpc::Connection::dispatcher;
    std::vector<double> rates, medians, p99s;
    for (int i = 0; i < options.repeats; ++i) {
        const RpcResult result = measure_rpc({.device = options.device,
                                              .mode = point.mode,
                                              .requests = point.design.request,
                                              .answers = point.design.response,
                                              .response_bytes = point.bytes,
                                              .requesters = point.clients,
                                              .per_dispatcher = is_shared ? per_dispatcher : 0});
        rates.push_back(result.per_second);
        medians.push_back(1e3 * result.median_us);
        p99s.push_back(1e3 * result.p99_us);
    }
    return {.response_bytes = point.bytes,
            .clients = static_cast<std::uint32_t>(point.clients),
            .design = point.design,
            .calls_per_second = quantile(std::move(rates), 0.5),
            .median_ns = quantile(std::move(medians), 0.5),
            .p99_ns = quantile(std::move(p99s), 0.5)};
}

std::string device_of(const Point& point, const ProfileOptions& options) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", point.mode};
    return rpc::device_kind(*connect::Endpoint::open(options.device));
}

/// Where a profile stands until it is whole; what is left there goes.
struct Unfinished {
    explicit Unfinished(const std::string& file) : path{file + ".unfinished"} {}
    Unfinished(const Unfinished&) = delete;
    Unfinished& operator=(const Unfinished&) = delete;
    ~Unfinished() { (void)std::remove(path.c_str()); }

    std::string path;
};

}  // namespace

int write_profile(const ProfileOptions& options) {
    std::vector<std::string> modes = options.modes;
    const bool is_soft = connect::Endpoint::open(options.device)->context().is_soft();
    if (!is_soft) modes = {"fast"};  // which means nothing there
    if (modes.empty()) modes = {"fast", "shaped:100g,latency=1us"};
    std::vector<Point> points;
    for (const std::string& mode : modes) {
        for (const std::size_t bytes : options.response_bytes) {
            for (const std::size_t clients : options.clients) {
                for (const rpc::Design design : rpc::every_design) {
                    if (rpc::is_studied(design, clients)) {
                        points.push_back({mode, bytes, clients, design});
                    }
                }
            }
        }
    }
    // The former one stays until this one is measured.
    const Unfinished unfinished{options.file};
    std::ofstream file{unfinished.path};
    if (!file) {
        throw base::Error{base::ErrorCode::system, "write a profile of calls", unfinished.path,
                          "it cannot be written", "name a file in a folder that is yours"};
    }
    Progress progress{std::vector<double>(points.size(), 0.4 * options.repeats)};
    std::vector<rpc::ProfileLine> lines;
    for (std::size_t i = 0; i < points.size(); ++i) {
        const Point& point = points[i];
        progress.before(i, fmt::format("{}, {} B, {} clients, {}", point.mode, point.bytes,
                                       point.clients, rpc::to_string(point.design)));
        lines.push_back(measure(point, options));
        lines.back().device = device_of(point, options);
    }
    progress.over();
    std::string settings;
    for (const std::string& mode : modes) settings += (settings.empty() ? "" : "; ") + mode;
    const std::string head = fmt::format(
        "What designs of calls do: millrace bench rpc --profile, medians of {} runs of each "
        "point.\n"
        "Device {}{}. {}\n"
        "Requests of 64 B, one of each client on its way; clients are one thread, the server "
        "another one\non another core; a dispatcher for each {} clients.\n"
        "device bytes clients design calls/s median-ns p99-ns",
        options.repeats, options.device, is_soft ? ", modes " + settings : "",
        describe_machine()["placement"].get<std::string>(), per_dispatcher);
    file << rpc::Profile{std::move(lines), options.file}.text(head);
    file.close();
    if (!file) {
        throw base::Error{base::ErrorCode::system, "write a profile of calls", unfinished.path,
                          "not all of it could be written", "is there room?"};
    }
    if (std::rename(unfinished.path.c_str(), options.file.c_str()) != 0) {
        base::throw_errno(errno, "write a profile of calls", options.file,
                          "name a file in a folder that is yours");
    }
    return 0;
}

}  // namespace millrace::bench
