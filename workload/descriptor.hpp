// A file descriptor with an owner. For what subcommands do with the kernel's own sockets.
#pragma once

#include <utility>

#include <unistd.h>

namespace millrace::workload {

class Descriptor {
  public:
    explicit Descriptor(int value = -1) noexcept : value_{value} {}
    Descriptor(Descriptor&& other) noexcept : value_{std::exchange(other.value_, -1)} {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (value_ >= 0) ::close(value_);
    }
    [[nodiscard]] int get() const noexcept { return value_; }

  private:
    int value_;
};

}  // namespace millrace::workload
