// A file descriptor with one owner, never one of the program's standard streams. Used throughout
// the fabric.
#pragma once

#include <unistd.h>

#include <utility>

#include "millrace/base/standard_streams.hpp"

namespace millrace::soft {

class Descriptor {
  public:
    Descriptor() noexcept = default;
    /// Takes a new descriptor (negative: none), or with 0 to 2 a copy of it above them.
    explicit Descriptor(int number) noexcept : number_{base::above_standard_streams(number)} {}
    Descriptor(Descriptor&& other) noexcept : number_{std::exchange(other.number_, -1)} {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) {
            close();
            number_ = std::exchange(other.number_, -1);
        }
        return *this;
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() { close(); }

    [[nodiscard]] int get() const noexcept { return number_; }
    explicit operator bool() const noexcept { return number_ >= 0; }
    /// Gives up ownership: the caller closes.
    int release() noexcept { return std::exchange(number_, -1); }
    void close() noexcept {
        if (number_ >= 0) ::close(std::exchange(number_, -1));
    }

  private:
    int number_ = -1;
};

}  // namespace millrace::soft
