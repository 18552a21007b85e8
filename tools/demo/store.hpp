// The end of the demo: one server with many clients, a key-value store in a process of its own.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "millrace/connect/transport.hpp"

namespace millrace::tools::demo {

struct StoreMeasured {
    connect::Transport transport = connect::Transport::rc;
    std::string title;
    double per_second = 0;
    double p50_us = 0;
    double p99_us = 0;
};

inline constexpr unsigned store_clients = 8;
inline constexpr unsigned store_keys = 100'000;

/// Starts the store in a child, fills it, and has clients get and set for a moment, over memory and
/// over its socket; every value is compared. `folder`: private to this process. Throws Error.
[[nodiscard]] std::vector<StoreMeasured> run_store(const std::string& folder);
[[nodiscard]] std::string store_text(const std::vector<StoreMeasured>& measured);
[[nodiscard]] nlohmann::json store_json(const std::vector<StoreMeasured>& measured);

}  // namespace millrace::tools::demo
