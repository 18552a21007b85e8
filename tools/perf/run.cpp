#include "perf/run.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "millrace/base/error.hpp"
#include "millrace/base/signals.hpp"

namespace millrace::tools::perf {

nlohmann::json Counts::to_json() const {
    auto all = nlohmann::json::array();
    for (const LaneCount& lane : lanes) {
        all.push_back({{"bytes", lane.bytes},
                       {"seconds", lane.seconds},
                       {"percent_direct", lane.percent_direct}});
    }
    return {{"lanes", all}, {"cpu", {{"user", cpu.user}, {"system", cpu.system}}}};
}

Counts Counts::parse(const nlohmann::json& document, std::size_t lanes) {
    try {
        Counts counts;
        for (const auto& lane : document.at("lanes")) {
            counts.lanes.push_back({lane.at("bytes").get<std::uint64_t>(),
                                    lane.at("seconds").get<double>(),
                                    lane.at("percent_direct").get<double>()});
        }
        document.at("cpu").at("user").get_to(counts.cpu.user);
        document.at("cpu").at("system").get_to(counts.cpu.system);
        if (counts.lanes.size() == lanes) return counts;
    } catch (const nlohmann::json::exception&) {
        // As below.
    }
    throw base::Error{base::ErrorCode::protocol, "hear what the other end counted", "a measurement",
                      "it does not speak as `millrace perf` does",
                      "use the same version of millrace on both sides"};
}

Run::~Run() { stop(); }

bool Run::add(std::uint32_t number, std::unique_ptr<Lane> lane) {
    if (number >= lanes_.size() || lanes_[number] != nullptr) return false;
    lanes_[number] = std::move(lane);
    ++present_;
    return true;
}

void Run::start() {
    cpu_before_ = workload::cpu_time();
    started_ = base::Clock::now();
    running_ = lanes_.size();
    const base::SignalsBlocked blocked;  // they are the main thread's
    for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
        threads_.emplace_back([this, lane] { run(lane); });
    }
}

void Run::run(std::uint32_t number) noexcept {
    LaneCount count;
    std::exception_ptr failure;
    try {
        Lane& lane = *lanes_[number];
        count = sends(number) ? lane.send(plan_, number) : lane.receive(plan_);
    } catch (...) {
        failure = std::current_exception();
    }
    const std::lock_guard lock{mutex_};
    counts_.lanes[number] = count;
    if (failure && !failure_) {
        failure_ = failure;
        stop_.request();  // what the others would measure is not what was asked for
    }
    if (--running_ == 0) {
        const workload::CpuTime now = workload::cpu_time();
        const double seconds = seconds_since(started_);
        counts_.cpu = {100 * (now.user - cpu_before_.user) / seconds,
                       100 * (now.system - cpu_before_.system) / seconds};
        ended_.notify_all();
    }
}

bool Run::wait(base::Clock::time_point until) {
    std::unique_lock lock{mutex_};
    return ended_.wait_until(lock, until, [this] { return running_ == 0; });
}

void Run::require_progress() {
    std::uint64_t moved = 0;
    for (const auto& lane : lanes_) moved += lane->bytes();
    const auto now = base::Clock::now();
    if (moved != moved_) {
        moved_ = moved;
        moved_at_ = now;
    } else if (now - std::max(moved_at_, started_) > patience) {
        throw base::Error{base::ErrorCode::timed_out, "measure", "streams",
                          "nothing has moved for 10 s",
                          "look whether the other end is stopped, or the network is gone"};
    }
}

const Counts& Run::counts() {
    threads_.clear();
    if (failure_) std::rethrow_exception(failure_);
    return counts_;
}

void Run::stop() noexcept {
    stop_.request();
    threads_.clear();
}

}  // namespace millrace::tools::perf
