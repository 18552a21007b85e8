// The document that `--json` asks for: on standard output or in a file. Called by the subcommands
// of `millrace` and by the measurements.
#pragma once

#include <string>
#include <string_view>

namespace millrace::tools {

/// Throws Error if the file cannot be written, or its disk is full: before time goes into finding
/// what to write. Creates it, and changes nothing in one that is there; what is no file (a pipe, a
/// terminal) gets an empty line. `attempted`: "write the trace".
void check_writable(const std::string& path, const char* attempted);

/// Where `--json [FILE]` of a subcommand sends its document (see add_json in command.hpp).
struct JsonOutput {
    std::string path{};  ///< empty: not asked for; "-": standard output, in place of the lines

    [[nodiscard]] bool wanted() const noexcept { return !path.empty(); }
    [[nodiscard]] bool in_place_of_lines() const noexcept { return path == "-"; }
    /// check_writable() of the file that was asked for.
    void check() const;
    /// Writes the document and a line end. Throws Error.
    void write(std::string_view document) const;
};

}  // namespace millrace::tools
