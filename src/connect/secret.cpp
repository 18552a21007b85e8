// Secrets, and where they are read from.
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "millrace/base/detail/private_file.hpp"
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
    // A line end or two more than the longest, and a byte that shows what is too long.
    const base::PrivateFile file{path, Secret::max_bytes + 3, attempted, "secret", remedy};
    const std::span<const std::byte> bytes = file.bytes();
    std::size_t size = bytes.size();
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
    return Secret{bytes.first(size)};
}

}  // namespace millrace::connect
