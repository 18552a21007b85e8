// How the demo tells its result: to people (table, bar chart, what it means) and to programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "run.hpp"

namespace millrace::tools::demo {

/// All rounds of one transport.
struct Measured {
    std::string key;
    std::string title;
    bool baseline = false;
    std::vector<RunResult> rounds;
};

struct Setting {
    std::string device;     ///< name and mode
    std::string placement;  ///< cores of both ends
    std::string source;     ///< folder, files, bytes, what was left out
    std::uint32_t record_size = 0;
    std::size_t ring_bytes = 0;
    bool hosts = false;  ///< between two hosts
};

/// Median over the rounds; for ratios, of the rounds' ratios against the transport with `base_key`.
[[nodiscard]] std::string table(const std::vector<Measured>& measured, const std::string& base_key);
/// Horizontal bars of items per second, to scale, and of median latency.
[[nodiscard]] std::string chart(const std::vector<Measured>& measured);
/// What the numbers do and do not mean.
[[nodiscard]] std::string meaning(const Setting& setting);
[[nodiscard]] nlohmann::json as_json(const std::vector<Measured>& measured, const Setting& setting,
                                     const std::string& base_key);

}  // namespace millrace::tools::demo
