#include "perftest.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <utility>

#include "bench/framework/program.hpp"
#include "millrace/base/error.hpp"

namespace millrace::bench {
namespace {

/// The directory of the drop-in, next to this program's, built or installed.
std::string drop_in_directory() {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    const auto directory = program.parent_path().parent_path() / "lib" / "millrace";
    if (!std::filesystem::exists(directory / "libibverbs.so.1")) {
        throw base::Error{base::ErrorCode::not_found, "measure perftest", directory.string(),
                          "there is no libibverbs.so.1", "run make build"};
    }
    return directory.string();
}

}  // namespace

std::vector<double> run_perftest(const Perftest& test) {
    require_program(test.program, "perftest");
    const auto port = free_port();
    std::vector<std::string> command{test.program, "-d",
                                     "soft0",      "-F",
                                     "-s",         std::to_string(test.bytes),
                                     "-n",         std::to_string(test.iterations),
                                     "-p",         std::to_string(port)};
    command.insert(command.end(), test.arguments.begin(), test.arguments.end());
    const Environment environment{{"LD_LIBRARY_PATH", drop_in_directory()},
                                  {"MILLRACE_FABRIC", fmt::format("bench-{}", ::getpid())},
                                  {"MILLRACE_REMAP", test.remapped ? "1" : "0"}};
    return numbers_in(output_of_client(std::move(command), port, environment,
                                       "see whether millrace soft run -- ib_write_lat works"),
                      static_cast<double>(test.bytes));
}

}  // namespace millrace::bench
