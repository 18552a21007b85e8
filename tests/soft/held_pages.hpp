// Memory whose pages do not come until the test lets them: whoever touches it stands still in the
// kernel, as with a file whose server does not answer. By userfaultfd, which needs root here.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace millrace::test {

class HeldPages {
  public:
    /// Faults of the kernel, too: those of another process's system calls.
    [[nodiscard]] static bool possible() {
        const int descriptor = open_one();
        if (descriptor >= 0) close(descriptor);
        return descriptor >= 0;
    }

    /// [memory, memory + bytes), whole pages of a private mapping. What was in them is gone.
    HeldPages(std::byte* memory, std::size_t bytes)
        : memory_{memory}, bytes_{bytes}, descriptor_{open_one()} {
        uffdio_register range{};
        range.range = {reinterpret_cast<std::uint64_t>(memory), bytes};
        range.mode = UFFDIO_REGISTER_MODE_MISSING;
        if (descriptor_ < 0 || madvise(memory, bytes, MADV_DONTNEED) != 0 ||
            ioctl(descriptor_, UFFDIO_REGISTER, &range) != 0) {
            throw std::runtime_error("cannot hold pages");
        }
    }
    ~HeldPages() { release(); }
    HeldPages(const HeldPages&) = delete;
    HeldPages& operator=(const HeldPages&) = delete;

    /// Somebody stands still in them (or did).
    [[nodiscard]] bool await_somebody() {
        pollfd waiting{descriptor_, POLLIN, 0};
        uffd_msg message{};
        return poll(&waiting, 1, 40'000) == 1 &&
               read(descriptor_, &message, sizeof message) == sizeof message;
    }
    /// They come, full of zeros.
    void release() {
        if (descriptor_ < 0) return;
        uffdio_range range{reinterpret_cast<std::uint64_t>(memory_), bytes_};
        ioctl(descriptor_, UFFDIO_UNREGISTER, &range);  // wakes who waits
        close(descriptor_);
        descriptor_ = -1;
    }

  private:
    [[nodiscard]] static int open_one() {
        const int descriptor = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
        if (descriptor < 0) return -1;
        uffdio_api api{};
        api.api = UFFD_API;
        if (ioctl(descriptor, UFFDIO_API, &api) == 0) return descriptor;
        close(descriptor);
        return -1;
    }

    std::byte* memory_;
    std::size_t bytes_;
    int descriptor_;
};

}  // namespace millrace::test
