// What is in a file that nobody but its owner may read: a secret, a key. Used by connect/ and kv/.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/error.hpp"

namespace millrace::base {

/// Wiped when it goes.
class PrivateFile {
  public:
    /// Reads `most` bytes of it at most. `attempted`, `remedy`: for errors; `kind`: "secret", what
    /// is to be made anew where others may have read it. Throws Error: it cannot be read;
    /// permission: others than its owner may read it, or its owner may change it and is neither
    /// this user nor root; invalid_argument: it is not a regular file.
    PrivateFile(const std::string& path, std::size_t most, const char* attempted, const char* kind,
                const char* remedy);
    PrivateFile(const PrivateFile&) = delete;
    PrivateFile& operator=(const PrivateFile&) = delete;
    ~PrivateFile();

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
        return {bytes_.data(), size_};
    }

  private:
    std::vector<std::byte> bytes_;
    std::size_t size_ = 0;
};

}  // namespace millrace::base
