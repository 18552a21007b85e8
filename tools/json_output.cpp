// See json_output.hpp.
#include "json_output.hpp"

#include <cerrno>
#include <fstream>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::tools {

void JsonOutput::check() const {
    if (!wanted() || in_place_of_lines()) return;
    errno = 0;
    if (!std::ofstream{path, std::ios::app}) {
        base::throw_errno(errno, "write the results as JSON", path, "name a path that is writable");
    }
}

void JsonOutput::write(std::string_view document) const {
    if (in_place_of_lines()) {
        fmt::print("{}\n", document);
        return;
    }
    errno = 0;
    std::ofstream file{path};
    file << document << '\n';
    file.close();
    if (!file) {
        base::throw_errno(errno, "write the results as JSON", path,
                          "name a path that is writable, on a disk with room");
    }
}

}  // namespace millrace::tools
