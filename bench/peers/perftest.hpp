// Unmodified programs of Debian's package perftest on the soft device: a server and a client on two
// cores, and what the client's table says. Used by the bars of the drop-in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::bench {

struct Perftest {
    std::string program{};  ///< as ib_write_lat
    std::uint64_t bytes = 8;
    std::uint64_t iterations = 20'000;
    std::vector<std::string> arguments{};  ///< further ones, of both sides
    bool remapped = false;                 ///< both with MILLRACE_REMAP=1
};

/// Columns of the tables; the first two are the size and the iterations.
inline constexpr std::size_t typical_microseconds = 4;  ///< of ib_*_lat
inline constexpr std::size_t average_bandwidth = 3;     ///< of ib_*_bw, Gb/s with --report_gbits
inline constexpr std::size_t million_messages = 4;      ///< of ib_*_bw, a second

/// Runs both sides and gives the numbers of the client's line for `bytes`. Throws base::Error.
[[nodiscard]] std::vector<double> run_perftest(const Perftest& test);

}  // namespace millrace::bench
