// What `millrace perf` tells: lines for people, and a document with the names that iperf3's has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "perf/plan.hpp"
#include "perf/run.hpp"

namespace millrace::tools::perf {

/// The client's. One thread.
class Report {
  public:
    /// `lines`: prints them as they come.
    Report(std::string address, const Plan& plan, bool lines);

    /// `device`: what carries the streams, as it describes itself; empty: TCP.
    void begin(const std::string& device);
    /// Bytes of every lane at this end, so far, `seconds` behind the start.
    void interval(const std::vector<std::uint64_t>& bytes, double seconds);
    /// What both ends counted.
    void end(const Counts& mine, const Counts& theirs);

    [[nodiscard]] const nlohmann::json& document() const noexcept { return document_; }

  private:
    void line(const std::string& who, double from, double to, std::uint64_t bytes,
              const std::string& remark) const;
    [[nodiscard]] std::string name_of(std::uint32_t lane) const;

    Plan plan_;
    bool lines_;
    nlohmann::json document_;
    std::vector<std::uint64_t> before_;
    double before_seconds_ = 0;
};

}  // namespace millrace::tools::perf
