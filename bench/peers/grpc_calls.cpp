#include "grpc_calls.hpp"

#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>

#include <unistd.h>

#include <fmt/format.h>

#include "bench/framework/pair.hpp"
#include "bench/framework/program.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"

namespace millrace::bench {

double grpc_call(std::size_t outstanding, std::uint64_t calls) {
    const auto program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "millrace-grpc-echo";
    if (!std::filesystem::exists(program)) {
        throw base::Error{base::ErrorCode::not_found, "measure calls of gRPC", program.string(),
                          "it is not there: this was built without gRPC",
                          "install: libgrpc++-dev, and run make build again"};
    }
    const std::string path = fmt::format("/tmp/millrace-bench-grpc-{}", getpid());
    const std::string address = "unix:" + path;
    const Cores cores = two_cores();
    std::string said;
    {
        // Calls wait until the server is there.
        const Program server{{program, "serve", address}, {}, cores.second};
        Program client{
            {program, "call", address, std::to_string(calls), std::to_string(outstanding)},
            {},
            cores.first};
        said = client.read_all(base::Deadline::after(std::chrono::seconds{90}));
    }
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    try {
        return std::stod(said);
    } catch (const std::exception&) {
        throw base::Error{base::ErrorCode::protocol, "measure calls of gRPC", program.string(),
                          fmt::format("it said '{}'", said), ""};
    }
}

}  // namespace millrace::bench
