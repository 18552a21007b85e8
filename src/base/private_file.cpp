#include "millrace/base/detail/private_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "millrace/base/standard_streams.hpp"

namespace millrace::base {

PrivateFile::PrivateFile(const std::string& path, std::size_t most, const char* attempted,
                         const char* kind, const char* remedy)
    : bytes_(most) {
    struct Opened {
        int number;
        ~Opened() {
            if (number >= 0) ::close(number);
        }
    };
    // Without O_NONBLOCK a pipe would wait for its writer.
    const Opened file{
        above_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY))};
    struct stat facts {};
    if (file.number < 0 || ::fstat(file.number, &facts) != 0) {
        throw_errno(errno, attempted, path, remedy);
    }
    if (!S_ISREG(facts.st_mode)) {
        throw Error{ErrorCode::invalid_argument, attempted, path, "it is not a regular file",
                    remedy};
    }
    if (facts.st_uid != ::geteuid() && facts.st_uid != 0) {
        throw Error{ErrorCode::permission, attempted, path,
                    fmt::format("it belongs to the user {}, who may change it", facts.st_uid),
                    "let it belong to this user or to root"};
    }
    if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        throw Error{
            ErrorCode::permission, attempted, path,
            fmt::format("its mode {:04o} lets others than its owner at it", facts.st_mode & 07777U),
            fmt::format("chmod 600 {}, and make a new {} if others have been there", path, kind)};
    }
    while (size_ < most) {
        const ssize_t got = ::read(file.number, bytes_.data() + size_, most - size_);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw_errno(errno, attempted, path, remedy);
        if (got == 0) break;
        size_ += static_cast<std::size_t>(got);
    }
}

PrivateFile::~PrivateFile() { ::explicit_bzero(bytes_.data(), bytes_.size()); }

}  // namespace millrace::base
