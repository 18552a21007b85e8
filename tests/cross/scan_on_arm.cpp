// The NEON kernel, compiled for AArch64 and run there or by qemu: finds what a plain loop finds.
// tests/message/mailbox_scan_test.cpp asks more, where GoogleTest is; this needs a compiler alone.
// Ends with status 1 where the two differ.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "millrace/message/detail/mailbox_scan.hpp"

using namespace millrace::message;

int main() {
    if (!is_available(ScanKernel::neon) || best_scan_kernel() != ScanKernel::neon) {
        std::puts("there is no kernel of that name, or it is not the one that is taken");
        return 1;
    }
    const Scan plain = scan_by(ScanKernel::scalar);
    const Scan vectors = scan_by(ScanKernel::neon);
    if (plain == vectors) {
        std::puts("the kernel is the plain loop");
        return 1;
    }
    std::mt19937_64 random{17};
    std::vector<std::byte> memory(1024);
    const auto differs = [&](const std::byte* boxes, std::size_t from, std::size_t count) {
        const std::size_t right = plain(boxes, from, count);
        const std::size_t found = vectors(boxes, from, count);
        if (found == right) return false;
        std::printf("%zu, not %zu, of %zu from %zu\n", found, right, count, from);
        return true;
    };
    // The only one, at every place of every length.
    for (std::size_t count = 0; count <= 300; ++count) {
        std::byte* const boxes = memory.data() + count % 64;
        if (differs(boxes, 0, count)) return 1;
        for (std::size_t place = 0; place < count; ++place) {
            boxes[place] = std::byte{0x80};
            if (differs(boxes, 0, count) || differs(boxes, place, count) ||
                differs(boxes, place + 1, count)) {
                return 1;
            }
            boxes[place] = std::byte{0};
        }
    }
    for (int round = 0; round < 20'000; ++round) {
        for (std::byte& box : memory) {
            box = random() % 200 == 0 ? static_cast<std::byte>(random()) : std::byte{0};
        }
        const std::size_t offset = random() % 130;
        const std::size_t count = random() % 700;
        if (differs(memory.data() + offset, random() % (count + 1), count)) return 1;
    }
    return 0;
}
