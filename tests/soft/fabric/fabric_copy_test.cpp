// copy_in_order, and base::copy_for_peer, by which WRITEs go to regions of relaxed ordering: the
// right bytes, in the right order, nothing beside them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "fabric/copy_in_order.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/long_copy.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::soft {
namespace {

constexpr std::byte unwritten{0xa5};

using Copy = void (*)(std::byte*, const std::byte*, std::size_t) noexcept;
void in_order(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    copy_in_order(to, from, bytes);
}

std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 31 + (i >> 8) * 7 + 1); }

/// Copies `bytes` to and from those offsets of a cache line; the memory around must stay as it is.
void check_copy(std::size_t bytes, std::size_t to_offset, std::size_t from_offset,
                Copy copy = in_order) {
    constexpr std::size_t margin = 64;
    std::vector<std::byte> to_memory(bytes + 4 * margin, unwritten);
    std::vector<std::byte> from_memory(bytes + 2 * margin);
    const auto line_of = [](std::vector<std::byte>& memory) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
        return memory.data() + (margin - address % margin);
    };
    std::byte* to = line_of(to_memory) + margin + to_offset;
    std::byte* from = line_of(from_memory) + from_offset;
    for (std::size_t i = 0; i < bytes; ++i) from[i] = pattern(i);
    copy(to, from, bytes);
    ASSERT_EQ(std::memcmp(to, from, bytes), 0)
        << bytes << " bytes to offset " << to_offset << " from " << from_offset;
    for (const std::byte* p = to_memory.data(); p < to_memory.data() + to_memory.size(); ++p) {
        if (p >= to && p < to + bytes) continue;
        ASSERT_EQ(*p, unwritten) << bytes << " bytes to offset " << to_offset << " from "
                                 << from_offset << " touched byte " << p - to;
    }
}

TEST(CopyInOrder, CopiesEverySmallSizeAtEveryAlignment) {
    for (std::size_t bytes = 0; bytes <= 300; ++bytes) {
        for (std::size_t to = 0; to < 33; ++to) {
            for (const std::size_t from : {0, 1, 3, 4, 8, 15, 16, 31}) {
                check_copy(bytes, to, from);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST(CopyInOrder, CopiesLargeSizes) {
    for (const std::size_t bytes : {1000, 4095, 4096, 4097, 65536, 65553, 1 << 20, (8 << 20) + 5}) {
        for (const std::size_t to : {0, 1, 8, 16, 31}) {
            check_copy(bytes, to, (to * 5 + 3) % 32);
            if (HasFatalFailure()) return;
        }
    }
}

TEST(CopyForPeer, CopiesEveryAlignment) {
    for (const std::size_t bytes :
         {base::least_long_copy, base::least_long_copy + 1, std::size_t{65'553}}) {
        for (std::size_t turn = 0; turn < 70; ++turn) {
            check_copy(bytes, turn, turn * 5 % 64, base::copy_for_peer);
            if (HasFatalFailure()) return;
        }
    }
}

/// Copies items of `bytes` again and again, each filled with its number, to a buffer whose reader
/// polls the last byte and then expects the number in all that lie before.
void check_order(std::size_t bytes, std::size_t offset, Copy copy = in_order) {
    // Two hand-overs each, which on a busy machine wait for the scheduler; 70 times this.
    const int items = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 400 : 100;
    alignas(64) static std::byte to_memory[80 << 10];
    std::byte* to = to_memory + offset;
    std::memset(to_memory, 0, sizeof to_memory);
    std::atomic<int> consumed{0};
    std::atomic<bool> failed{false};
    const auto deadline = base::Deadline::after(std::chrono::seconds{60});
    base::NapParker naps;

    std::thread reader{[&] {
        base::NapParker reader_naps;
        for (int item = 1; item <= items; ++item) {
            const auto value = static_cast<std::uint8_t>(item % 251 + 1);
            std::atomic_ref<std::uint8_t> last{*reinterpret_cast<std::uint8_t*>(to + bytes - 1)};
            const auto arrived = [&] { return last.load(std::memory_order_acquire) == value; };
            if (base::wait_until(arrived, deadline, {}, reader_naps) != base::Status::ok) {
                failed = true;
                return;
            }
            const auto last_word = reinterpret_cast<std::uintptr_t>(to + bytes - 1) & 7;
            for (std::size_t i = 0; i < bytes; ++i) {
                // Of the last word only one byte was polled: that orders what lies before the word.
                std::atomic_ref<std::uint8_t> byte{*reinterpret_cast<std::uint8_t*>(to + i)};
                const bool in_last_word = i + last_word + 1 >= bytes;
                const auto seen = in_last_word ? byte.load(std::memory_order_relaxed)
                                               : static_cast<std::uint8_t>(to[i]);
                if (seen != value) failed = true;
            }
            consumed.store(item, std::memory_order_release);
        }
    }};
    std::vector<std::byte> item_memory(bytes);
    for (int item = 1; item <= items && !failed; ++item) {
        std::memset(item_memory.data(), item % 251 + 1, bytes);
        copy(to, item_memory.data(), bytes);
        const auto done = [&] {
            return consumed.load(std::memory_order_acquire) == item || failed;
        };
        if (base::wait_until(done, deadline, {}, naps) != base::Status::ok) failed = true;
    }
    reader.join();
    EXPECT_FALSE(failed) << bytes << " bytes at offset " << offset;
}

TEST(CopyInOrder, StoresTheLastByteLast) {
    for (const std::size_t bytes : {1, 2, 7, 8, 9, 24, 63, 64, 65, 129, 200, 1024, 4096, 4099}) {
        for (const std::size_t offset : {0, 1, 4, 9, 16}) check_order(bytes, offset);
    }
}

TEST(CopyForPeer, StoresTheLastByteLast) {
    for (const std::size_t bytes : {base::least_long_copy, std::size_t{65'557}}) {
        for (const std::size_t offset : {0, 1, 63}) check_order(bytes, offset, base::copy_for_peer);
    }
}

TEST(CopyInOrder, StoresInIncreasingOrderThroughout) {
#if !defined(__x86_64__)
    GTEST_SKIP() << "only promised on x86-64";
#endif
    // The writer fills the buffer with ever larger numbers, without waiting; a reader that walks
    // from the end to the beginning must never see a number fall: what lies before was stored
    // earlier, so it is at least as new.
    constexpr std::size_t words = 512;
    constexpr std::uint64_t rounds = 20'000;
    alignas(64) static std::uint64_t to[words];
    std::memset(to, 0, sizeof to);
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> walks_with_change{0};
    std::atomic<bool> fell{false};
    std::thread reader{[&] {
        while (!stop.load(std::memory_order_relaxed)) {
            std::uint64_t newest = 0;
            bool change = false;
            for (std::size_t i = words; i-- > 0;) {
                const std::uint64_t seen =
                    std::atomic_ref<std::uint64_t>{to[i]}.load(std::memory_order_acquire);
                if (seen < newest) fell = true;
                if (newest != 0 && seen > newest) change = true;
                newest = seen;
            }
            if (change) walks_with_change.fetch_add(1, std::memory_order_relaxed);
        }
    }};
    const auto deadline = base::Deadline::after(std::chrono::seconds{20});
    std::vector<std::uint64_t> source(words);
    std::uint64_t round = 0;
    // Goes on until the two really met, however few cores there are.
    while (round < rounds || (walks_with_change < 20 && !deadline.expired())) {
        ++round;
        std::fill(source.begin(), source.end(), round);
        copy_in_order(reinterpret_cast<std::byte*>(to),
                      reinterpret_cast<const std::byte*>(source.data()), sizeof to);
    }
    stop = true;
    reader.join();
    EXPECT_FALSE(fell);
    EXPECT_GE(walks_with_change, 20u) << "the reader never met the writer: nothing was shown";
}

}  // namespace
}  // namespace millrace::soft
