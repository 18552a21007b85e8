// Scan kernels: each finds what a plain loop finds, at all lengths and alignments, and touches
// nothing else. A kernel that this processor cannot run is skipped.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "millrace/message/detail/mailbox_scan.hpp"

namespace millrace::message {
namespace {

std::size_t by_loop(const std::byte* boxes, std::size_t from, std::size_t count) {
    for (std::size_t i = from; i < count; ++i) {
        if (boxes[i] != std::byte{0}) return i;
    }
    return count;
}

/// So many bytes that end, or begin, at a page that nobody may touch.
class Fenced {
  public:
    Fenced() {
        memory_ = static_cast<std::byte*>(
            mmap(nullptr, room() + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        EXPECT_NE(memory_, MAP_FAILED);
        EXPECT_EQ(mprotect(memory_ + page(), room(), PROT_READ | PROT_WRITE), 0);
    }
    Fenced(const Fenced&) = delete;
    Fenced& operator=(const Fenced&) = delete;
    ~Fenced() { munmap(memory_, room() + 2 * page()); }
    [[nodiscard]] std::byte* first() const { return memory_ + page(); }
    [[nodiscard]] std::byte* ending(std::size_t size) const { return first() + room() - size; }
    [[nodiscard]] static std::size_t room() { return page(); }

  private:
    static std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
    std::byte* memory_;
};

class MailboxScan : public testing::TestWithParam<ScanKernel> {
  protected:
    void SetUp() override {
        if (!is_available(GetParam())) GTEST_SKIP() << "not on this processor";
        scan = scan_by(GetParam());
    }
    Scan scan = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Kernels, MailboxScan, testing::ValuesIn(every_scan_kernel),
                         [](const auto& kernel) { return std::string{name_of(kernel.param)}; });

TEST_P(MailboxScan, FindsTheOnlyOneAtEveryPlaceOfEveryLength) {
    const Fenced memory;
    for (std::size_t count = 0; count <= 300; ++count) {
        std::byte* const boxes = memory.ending(count);
        ASSERT_EQ(scan(boxes, 0, count), count);
        for (std::size_t place = 0; place < count; ++place) {
            boxes[place] = std::byte{0x80};
            ASSERT_EQ(scan(boxes, 0, count), place) << count;
            ASSERT_EQ(scan(boxes, place, count), place) << count;
            ASSERT_EQ(scan(boxes, place + 1, count), count) << place;
            boxes[place] = std::byte{0};
        }
    }
}

TEST_P(MailboxScan, FindsWhatALoopFindsAtRandom) {
    const Fenced memory;
    std::mt19937_64 random{17};
    for (int round = 0; round < 20'000; ++round) {
        const std::size_t count = random() % 700;
        const std::size_t offset = random() % 130;
        std::byte* const boxes =
            round % 2 == 0 ? memory.first() + offset : memory.ending(count + offset);
        const std::uint64_t some = random() % 4;
        for (std::uint64_t i = 0; i < some && count != 0; ++i) {
            boxes[random() % count] = static_cast<std::byte>(random());
        }
        // What lies before and behind is nobody's business.
        if (boxes != memory.first()) boxes[-1] = std::byte{1};
        if (boxes + count != memory.ending(0)) boxes[count] = std::byte{1};
        const std::size_t from = random() % (count + 2);
        ASSERT_EQ(scan(boxes, from, count), from < count ? by_loop(boxes, from, count) : count)
            << "of " << count << " from " << from << ", at " << offset;
        std::fill(memory.first(), memory.ending(0), std::byte{0});
    }
}

TEST_P(MailboxScan, GoesFromOneToTheNext) {
    std::vector<std::byte> boxes(2048);
    std::mt19937_64 random{5};
    for (std::byte& box : boxes) box = random() % 5 == 0 ? std::byte{7} : std::byte{0};
    std::size_t at = 0;
    std::size_t expected = 0;
    while (true) {
        expected = by_loop(boxes.data(), expected, boxes.size());
        at = scan(boxes.data(), at, boxes.size());
        ASSERT_EQ(at, expected);
        if (at == boxes.size()) break;
        ++at;
        ++expected;
    }
}

TEST(MailboxScanChoice, IsAvailable) {
    EXPECT_TRUE(is_available(best_scan_kernel()));
    EXPECT_TRUE(is_available(ScanKernel::scalar));
}

}  // namespace
}  // namespace millrace::message
