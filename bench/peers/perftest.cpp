#include "perftest.hpp"

#include <cstdint>
#include <utility>

#include "bench/framework/program.hpp"

namespace millrace::bench {
std::vector<double> run_perftest(const Perftest& test) {
    require_program(test.program, "perftest");
    const auto port = free_port();
    std::vector<std::string> command{test.program, "-d",
                                     "soft0",      "-F",
                                     "-s",         std::to_string(test.bytes),
                                     "-n",         std::to_string(test.iterations),
                                     "-p",         std::to_string(port)};
    command.insert(command.end(), test.arguments.begin(), test.arguments.end());
    Environment environment = drop_in_environment();
    environment.emplace_back("MILLRACE_REMAP", test.remapped ? "1" : "0");
    return numbers_in(output_of_client(std::move(command), port, environment,
                                       "see whether millrace soft run -- ib_write_lat works"),
                      static_cast<double>(test.bytes));
}

}  // namespace millrace::bench
