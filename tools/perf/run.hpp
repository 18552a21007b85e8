// One end of a measurement while it runs: its lanes, each on a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "perf/lane.hpp"
#include "perf/plan.hpp"
#include "workload/cpu_time.hpp"

namespace millrace::tools::perf {

/// Of a processor, in percent: above 100 with several threads.
struct CpuShare {
    double user = 0;
    double system = 0;
};

/// What one end counted.
struct Counts {
    std::vector<LaneCount> lanes;
    CpuShare cpu;

    [[nodiscard]] nlohmann::json to_json() const;
    /// Throws Error (protocol): it is not what the other end of `lanes` lanes says.
    [[nodiscard]] static Counts parse(const nlohmann::json& document, std::size_t lanes);
};

/// One thread, but for what is said of bytes().
class Run {
  public:
    Run(const Plan& plan, bool is_client) : plan_{plan}, is_client_{is_client} {
        lanes_.resize(plan.lanes());
        counts_.lanes.resize(plan.lanes());
    }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    /// Stops.
    ~Run();

    [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
    [[nodiscard]] const base::Cancellation& stopping() const noexcept { return stop_; }
    /// False: there is such a lane, or no lane has that number.
    bool add(std::uint32_t number, std::unique_ptr<Lane> lane);
    [[nodiscard]] bool is_complete() const noexcept { return present_ == lanes_.size(); }

    /// All lanes are there. Begins.
    void start();
    /// True: all lanes have ended. Waits for that at most until `until`.
    bool wait(base::Clock::time_point until);
    /// While it runs, now and then. Throws Error (timed_out): nothing has moved for `patience`, as
    /// where the other end is stopped.
    void require_progress();
    /// Behind wait() that answered true: what was counted; throws what a lane threw.
    [[nodiscard]] const Counts& counts();
    /// Gives it up, and waits for the lanes' threads.
    void stop() noexcept;

    [[nodiscard]] bool sends(std::uint32_t lane) const noexcept {
        return plan_.client_sends(lane) == is_client_;
    }
    /// So far, by lane.
    [[nodiscard]] std::uint64_t bytes(std::uint32_t lane) const noexcept {
        return lanes_[lane]->bytes();
    }
    [[nodiscard]] double seconds() const noexcept { return seconds_since(started_); }

  private:
    void run(std::uint32_t lane) noexcept;

    Plan plan_;
    bool is_client_;
    base::Cancellation stop_;
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::size_t present_ = 0;
    base::Clock::time_point started_{};
    workload::CpuTime cpu_before_{};
    std::uint64_t moved_ = 0;             ///< bytes of all lanes, when they were looked at ...
    base::Clock::time_point moved_at_{};  ///< ... and had changed

    std::mutex mutex_;
    std::condition_variable ended_;
    std::size_t running_ = 0;
    std::exception_ptr failure_{};  ///< the first
    Counts counts_;
    std::vector<std::jthread> threads_;
};

}  // namespace millrace::tools::perf
