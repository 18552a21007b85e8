// See json_output.hpp.
#include "json_output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::tools {

namespace {

/// What a document takes, and a little more.
constexpr off_t usual_bytes = 64 << 10;

/// 0, or the errno value that writing there would give. A regular file stays as it is.
int error_of_writing(int file) noexcept {
    struct stat status {};
    if (::fstat(file, &status) != 0) return errno;
    if (!S_ISREG(status.st_mode)) return ::write(file, "\n", 1) == 1 ? 0 : errno;
    const off_t end = status.st_size;
    if (::fallocate(file, FALLOC_FL_KEEP_SIZE, end, usual_bytes) != 0) {
        // Not every file system can do that.
        if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
        if (::write(file, "\n", 1) != 1) return errno;
    }
    return ::ftruncate(file, end) == 0 ? 0 : errno;
}

}  // namespace

void check_writable(const std::string& path, const char* attempted) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const int error = file < 0 ? errno : error_of_writing(file);
    if (file >= 0) ::close(file);
    if (error != 0) {
        base::throw_errno(error, attempted, path,
                          "name a path that is writable, on a disk with room");
    }
}

void JsonOutput::check() const {
    if (wanted() && !in_place_of_lines()) check_writable(path, "write the results as JSON");
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
