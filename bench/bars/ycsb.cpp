// Bars of the Yahoo! Cloud Serving Benchmark: workloads A to F by this library's own client over
// mailboxes, to redis over Unix sockets.
#include <chrono>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/framework/bars.hpp"
#include "bench/ycsb/measure_ycsb.hpp"

namespace millrace::bench {
namespace {

double operations_per_second(const workload::YcsbWorkload& workload, unsigned clients,
                             const char* way) {
    YcsbCase chosen;
    chosen.workload = workload;
    chosen.records = 1000;
    chosen.clients = clients;
    chosen.warm_up = std::chrono::milliseconds{50};
    chosen.duration = std::chrono::milliseconds{150};
    return measure_ycsb(chosen, *find_ycsb_way(way), "fast").operations_per_second;
}

Bar ycsb_to_redis(unsigned clients, double limit) {
    const auto contender = [clients](const workload::YcsbWorkload& workload, const char* name,
                                     const char* way) {
        return Contender{fmt::format("{}, {}", workload.name, name),
                         [=] { return operations_per_second(workload, clients, way); }, "1/s"};
    };
    std::vector<BarPoint> points;
    for (const workload::YcsbWorkload& workload : workload::ycsb_workloads) {
        points.push_back(
            {{contender(workload, "ours", "rc")}, {contender(workload, "redis", "redis")}});
    }
    return worst_ratio_bar(
        "doors",
        fmt::format("YCSB's workloads A to F by {} client{}: operations a second to redis' over a "
                    "Unix socket",
                    clients, clients == 1 ? "" : "s"),
        limit, Sense::at_least, std::move(points));
}

const BarRegistration of_one_client{ycsb_to_redis(1, 10)};
const BarRegistration of_sixteen_clients{ycsb_to_redis(16, 4)};

}  // namespace
}  // namespace millrace::bench
