// Programs that others wrote, for comparison: a server and a client on two cores, and what the
// client's table says. Used by perftest.cpp, ucx.cpp and the bars of
// programs that connect by librdmacm.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"

namespace millrace::bench {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Of programs that are to find the drop-in, built or installed beside this program, and each other
/// on a fabric of this process. Libraries that this process was told of come after it. Throws Error
/// (not_found).
[[nodiscard]] Environment drop_in_environment();

/// Throws Error (not_found) with what to install.
void require_program(const std::string& name, const std::string& package);

/// A port that is free now.
[[nodiscard]] std::uint16_t free_port();
/// True if somebody listens on `port`; connecting to see would be taken for the client.
[[nodiscard]] bool listens(std::uint16_t port);

/// A child that runs a program on one core with its output in a pipe; killed when it goes.
class Program {
  public:
    /// `environment`: variables that it has besides ours.
    Program(std::vector<std::string> arguments, const Environment& environment, int core);
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    ~Program();

    [[nodiscard]] bool running();
    /// What it says until it ends. Throws when the deadline is over.
    [[nodiscard]] std::string read_all(const base::Deadline& deadline);

  private:
    int pid_ = -1;
    int output_ = -1;
    bool ended_ = false;
};

/// Runs `command`, which listens on `port`, as server and, with 127.0.0.1 after it, as client.
/// Returns what the client says. Throws Error; `remedy` where the server does not come up.
[[nodiscard]] std::string output_of_client(std::vector<std::string> command, std::uint16_t port,
                                           const Environment& environment,
                                           const std::string& remedy);

/// The line of `output` with five numbers or more of which the first is `first`; words may stand in
/// front of them. Throws Error.
[[nodiscard]] std::vector<double> numbers_in(const std::string& output, double first);

}  // namespace millrace::bench
