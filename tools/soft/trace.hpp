// `millrace soft trace`: runs a program on the soft device and shows what it asks of it, as it
// goes. Called by soft.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "command_line/json_output.hpp"

namespace millrace::tools {

struct TraceOptions {
    JsonOutput json;  ///< lines as the device writes them, in place of a timeline or beside it
    /// File for the timeline or what is in its place. Empty: a timeline goes to standard error,
    /// JSON to standard output, and what the program writes there to standard error.
    std::string output;
};

/// `become_program` is called in a child process and executes the program there; what it returns is
/// the status if it cannot. Returns the program's exit status, 128 + N if signal N ended it.
int trace(const TraceOptions& options, const std::function<int()>& become_program);

/// One line of JSON as a line of the timeline. `start`: the time of the first one, 0 before it.
[[nodiscard]] std::string timeline_of(std::string_view line, std::int64_t& start);

}  // namespace millrace::tools
