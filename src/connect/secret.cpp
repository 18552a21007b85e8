// Secrets, and where they are read from.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "descriptor.hpp"
#include "millrace/connect/admission.hpp"

namespace millrace::connect {

using base::ErrorCode;

/// Never grows, so that no copy of it stays behind.
class Secret::Bytes {
  public:
    explicit Bytes(std::span<const std::byte> bytes) : bytes_{bytes.begin(), bytes.end()} {}
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    ~Bytes() { explicit_bzero(bytes_.data(), bytes_.size()); }
    [[nodiscard]] std::span<const std::byte> get() const noexcept { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
};

Secret::Secret(std::span<const std::byte> bytes) {
    if (bytes.size() < min_bytes || bytes.size() > max_bytes) {
        throw base::Error{ErrorCode::invalid_argument, "take a secret",
                          fmt::format("{} bytes", bytes.size()),
                          fmt::format("a secret has {} to {}", min_bytes, max_bytes),
                          "make one: head -c 32 /dev/urandom | base64"};
    }
    bytes_ = std::make_shared<const Bytes>(bytes);
}

std::span<const std::byte> Secret::bytes() const noexcept {
    return bytes_ != nullptr ? bytes_->get() : std::span<const std::byte>{};
}

Secret read_secret_file(const std::string& path) {
    constexpr const char* attempted = "read a secret";
    constexpr const char* remedy = "name a file that holds the secret";
    // Without O_NONBLOCK a pipe would wait for its writer.
    const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
    if (!file.valid()) base::throw_errno(errno, attempted, path, remedy);
    struct stat facts {};
    if (fstat(file.get(), &facts) != 0) base::throw_errno(errno, attempted, path, remedy);
    if (!S_ISREG(facts.st_mode)) {
        throw base::Error{ErrorCode::invalid_argument, attempted, path, "it is no regular file",
                          remedy};
    }
    if (facts.st_uid != geteuid() && facts.st_uid != 0) {
        throw base::Error{ErrorCode::permission, attempted, path,
                          fmt::format("it belongs to the user {}, who may change it", facts.st_uid),
                          "let it belong to this user or to root"};
    }
    constexpr mode_t others = S_IRWXG | S_IRWXO;
    if ((facts.st_mode & others) != 0) {
        throw base::Error{
            ErrorCode::permission, attempted, path,
            fmt::format("its mode {:04o} lets others than its owner at it", facts.st_mode & 07777U),
            fmt::format("chmod 600 {}, and make a new secret if others have been there", path)};
    }
    // A line end or two more than the longest, and a byte that shows what is too long.
    std::vector<std::byte> bytes(Secret::max_bytes + 3);
    struct Wiped {
        std::vector<std::byte>& bytes;
        ~Wiped() { explicit_bzero(bytes.data(), bytes.size()); }
    };
    const Wiped wiped{bytes};
    std::size_t size = 0;
    while (size < bytes.size()) {
        const ssize_t got = read(file.get(), bytes.data() + size, bytes.size() - size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) base::throw_errno(errno, attempted, path, remedy);
        if (got == 0) break;
        size += static_cast<std::size_t>(got);
    }
    while (size != 0 &&
           (bytes[size - 1] == std::byte{'\n'} || bytes[size - 1] == std::byte{'\r'})) {
        --size;
    }
    if (size < Secret::min_bytes || size > Secret::max_bytes) {
        throw base::Error{
            ErrorCode::invalid_argument, attempted, path,
            size > Secret::max_bytes
                ? fmt::format("it has more than {} bytes", Secret::max_bytes)
                : fmt::format("it has {} bytes, and a secret at least {}", size, Secret::min_bytes),
            "make one: head -c 32 /dev/urandom | base64"};
    }
    return Secret{std::span{bytes}.first(size)};
}

}  // namespace millrace::connect
