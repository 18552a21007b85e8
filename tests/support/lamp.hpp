// A descriptor that a test makes readable and unreadable at will: for tests of loops.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include <gtest/gtest.h>

namespace millrace::test {

/// Readable while it is lit.
class Lamp {
  public:
    Lamp() : descriptor_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {}
    Lamp(const Lamp&) = delete;
    ~Lamp() { close(descriptor_); }
    void light() const {
        const std::uint64_t one = 1;
        EXPECT_EQ(write(descriptor_, &one, sizeof one), 8);
    }
    void quench() const {
        std::uint64_t count = 0;
        (void)!read(descriptor_, &count, sizeof count);
    }
    [[nodiscard]] int descriptor() const { return descriptor_; }

  private:
    int descriptor_;
};

}  // namespace millrace::test
