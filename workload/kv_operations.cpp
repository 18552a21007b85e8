#include "kv_operations.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <memory>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::workload {
namespace {

struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

void write_operations(const KvLoadResult& result, const std::string& path) {
    const auto fail = [&] {
        base::throw_errno(errno, "write every operation", path,
                          "choose a path that can be written, on a disk with room for it");
    };
    const std::unique_ptr<std::FILE, Close> file{std::fopen(path.c_str(), "w")};
    if (file == nullptr) fail();
    fmt::memory_buffer lines;
    const auto flush = [&] {
        if (std::fwrite(lines.data(), 1, lines.size(), file.get()) != lines.size()) fail();
        lines.clear();
    };
    fmt::format_to(std::back_inserter(lines), "client,command,begin_us,end_us\n");
    for (std::size_t client = 0; client != result.each.size(); ++client) {
        for (const KvOperation& one : result.each[client]) {
            const auto begin = static_cast<double>(one.begin_ns);
            fmt::format_to(std::back_inserter(lines), "{},{},{:.3f},{:.3f}\n", client,
                           one.is_get ? "GET" : "SET", begin / 1e3,
                           (begin + static_cast<double>(one.ns)) / 1e3);
            if (lines.size() > std::size_t{1} << 20) flush();
        }
    }
    flush();
    if (std::fflush(file.get()) != 0) fail();
}

}  // namespace millrace::workload
