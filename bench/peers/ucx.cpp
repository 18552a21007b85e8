#include "ucx.hpp"

#include <string>
#include <utility>
#include <vector>

#include "bench/framework/program.hpp"

namespace millrace::bench {

double ucx_round_trip(std::uint64_t bytes, std::uint64_t iterations) {
    constexpr std::size_t average_microseconds = 2;  // after iterations and median
    require_program("ucx_perftest", "ucx-utils");
    const auto port = free_port();
    std::vector<std::string> command{"ucx_perftest", "-t",
                                     "tag_lat",      "-f",
                                     "-s",           std::to_string(bytes),
                                     "-n",           std::to_string(iterations),
                                     "-p",           std::to_string(port)};
    // Half a round trip is what it calls latency.
    return 2e3 *
           numbers_in(output_of_client(std::move(command), port,
                                       {{"UCX_TLS", "posix,self"}, {"UCX_LOG_LEVEL", "error"}},
                                       "see whether UCX_TLS=posix,self ucx_perftest works"),
                      static_cast<double>(iterations))[average_microseconds];
}

}  // namespace millrace::bench
