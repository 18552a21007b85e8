// Measurements as a table for people and as JSON for scripts, with the machine they come from.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "rounds.hpp"
#include "statistics.hpp"

namespace millrace::bench {

/// What stands above every table: nobody shall take it for what a NIC would do.
inline constexpr std::string_view measured_where =
    "Between processes of this host, through its memory and its kernel: no network is measured.";

/// "231", "85.2 M", "0.613": three figures that count.
[[nodiscard]] std::string humane(double value);

/// "name    231 ns   (225 to 240)" for each contender, with the rounds and the cache-line time.
[[nodiscard]] std::string table_of(const Results& results);

[[nodiscard]] nlohmann::json json_of(const Summary& summary);
[[nodiscard]] nlohmann::json json_of(const Results& results);
/// Processor, cores, kernel, placement of the two sides, build.
[[nodiscard]] nlohmann::json describe_machine();

}  // namespace millrace::bench
