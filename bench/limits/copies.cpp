// memcpy hot and cold, and process_vm_writev of eight bytes.
#include "copies.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <sys/uio.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"

namespace millrace::bench {
namespace {

void drop_from_caches([[maybe_unused]] const std::vector<std::byte>& memory) {
#if defined(__x86_64__)
    for (std::size_t at = 0; at < memory.size(); at += 64) _mm_clflush(memory.data() + at);
    _mm_mfence();
#elif defined(__aarch64__)
    for (std::size_t at = 0; at < memory.size(); at += 64) {
        asm volatile("dc civac, %0" : : "r"(memory.data() + at) : "memory");
    }
    asm volatile("dsb ish" : : : "memory");
#endif
}

}  // namespace

double copy_hot(std::size_t size) {
    return run_alone([size] {
        std::vector<std::byte> from(size, std::byte{1});
        std::vector<std::byte> to(size);
        const std::size_t copies =
            std::max<std::size_t>(64, (32U << 20) / std::max<std::size_t>(size, 64));
        base::Clock::time_point start{};
        for (std::size_t i = 0; i < copies + copies / 10; ++i) {
            if (i == copies / 10) start = base::Clock::now();
            stamp(from.data(), size, i);
            std::memcpy(to.data(), from.data(), size);
            keep(to.data());
        }
        return static_cast<double>(size * copies) / nanoseconds_since(start);
    });
}

double copy_cold(std::size_t size) {
    return run_alone([size] {
        const std::size_t stride = (size + 127) / 128 * 128;
        const std::size_t count = std::max<std::size_t>(8, (4U << 20) / stride);
        std::vector<std::byte> from(stride * count, std::byte{1});
        std::vector<std::byte> to(stride * count, std::byte{2});
        // In a shuffled order, so that the prefetchers do not know the next one.
        std::vector<std::size_t> order(count);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::shuffle(order.begin(), order.end(), std::mt19937_64{1});
        drop_from_caches(from);
        drop_from_caches(to);
        const auto start = base::Clock::now();
        for (const std::size_t i : order) {
            std::memcpy(to.data() + i * stride, from.data() + i * stride, size);
        }
        keep(to.data());
        const double elapsed = nanoseconds_since(start);
        require_intact(to.front() == std::byte{1}, "a cold copy");
        return static_cast<double>(size * count) / elapsed;
    });
}

namespace {

/// Each side's word lies at the same address, but is its own: the first store makes it so.
class Thrower {
  public:
    Thrower(Pair& pair, std::uint64_t& word) : pair_{&pair}, word_{&word} {
        std::atomic_ref{word}.store(0, std::memory_order_relaxed);
        pair.meet();
    }
    void write(std::uint64_t number) {
        const iovec from{&number, sizeof(number)};
        const iovec to{word_, sizeof(*word_)};
        if (::process_vm_writev(pair_->other_pid(), &from, 1, &to, 1, 0) != sizeof(number)) {
            base::throw_errno(errno, "write into another process", "8 bytes by process_vm_writev",
                              "allow ptrace (Yama, CAP_SYS_PTRACE)");
        }
    }
    void wait_for(std::uint64_t number) {
        const std::atomic_ref word{*word_};
        pair_->spin_until([&] { return word.load(std::memory_order_acquire) == number; });
    }

  private:
    Pair* pair_;
    std::uint64_t* word_;
};

}  // namespace

double process_vm_write(std::uint64_t calls) {
    const Windows windows{calls};
    alignas(128) std::uint64_t word = 0;
    return run_pair(
        {},
        [&](Pair& pair) {
            Thrower side{pair, word};
            const double median =
                median_step(windows, [&](std::uint64_t number) { side.write(number); });
            pair.meet();
            return median;
        },
        [&](Pair& pair) {
            Thrower side{pair, word};
            side.wait_for(windows.total());
            pair.meet();
        });
}

double process_vm_one_way(std::uint64_t round_trips) {
    const Windows windows{round_trips};
    alignas(128) std::uint64_t word = 0;
    return run_pair(
               {},
               [&](Pair& pair) {
                   Thrower side{pair, word};
                   const double median = median_step(windows, [&](std::uint64_t number) {
                       side.write(number);
                       side.wait_for(number);
                   });
                   pair.meet();
                   return median;
               },
               [&](Pair& pair) {
                   Thrower side{pair, word};
                   for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                       side.wait_for(number);
                       side.write(number);
                   }
                   pair.meet();
               }) /
           2;
}

}  // namespace millrace::bench
