// One request again and again, by many connections at a time, each with several requests on its
// way: what redis-benchmark does, for any protocol whose answer is known beforehand, and with less
// work for each. Called by measure_doors.hpp.
#pragma once

#include <chrono>
#include <string>

#include "millrace/connect/address.hpp"

namespace millrace::bench {

struct WordsLoad {
    unsigned connections = 1;
    unsigned pipeline = 1;  ///< requests of a connection that are sent, and awaited, together
    std::string request;
    std::string answer;  ///< to each of them
    std::chrono::nanoseconds warm_up = std::chrono::milliseconds{50};
    std::chrono::nanoseconds duration = std::chrono::milliseconds{250};
};

/// Answers a second, by the calling thread; it compares every byte of them. Throws Error.
[[nodiscard]] double answers_per_second(const WordsLoad& load, const connect::Address& server);

}  // namespace millrace::bench
