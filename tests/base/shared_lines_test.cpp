// Lines that a reader takes: which of them are stored to, and that nothing is changed.
#include "millrace/base/detail/shared_lines.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace millrace::base {
namespace {

/// Private pages of a file: those that were stored to show its later content no more.
class PrivatePages {
  public:
    explicit PrivatePages(std::size_t count)
        : size_{count * page_}, file_{memfd_create("millrace-test", MFD_CLOEXEC)} {
        write(std::byte{1});
        void* const mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file_, 0);
        if (mapped != MAP_FAILED) bytes_ = static_cast<std::byte*>(mapped);
    }
    PrivatePages(const PrivatePages&) = delete;
    PrivatePages& operator=(const PrivatePages&) = delete;
    ~PrivatePages() {
        if (bytes_ != nullptr) munmap(bytes_, size_);
        close(file_);
    }
    [[nodiscard]] std::byte* bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::size_t page() const noexcept { return page_; }
    /// 0 or 1 for each page.
    [[nodiscard]] std::vector<int> stored() {
        write(std::byte{2});
        std::vector<int> answer;
        for (std::size_t at = 0; at < size_; at += page_) {
            answer.push_back(bytes_[at] == std::byte{1} ? 1 : 0);
        }
        return answer;
    }

  private:
    void write(std::byte value) {
        const std::vector<std::byte> content(size_, value);
        EXPECT_EQ(pwrite(file_, content.data(), size_, 0), static_cast<ssize_t>(size_));
    }
    std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::size_t size_;
    int file_;
    std::byte* bytes_ = nullptr;
};

TEST(SharedLines, AreStoredToFromTheFirstByteToTheLast) {
    const auto stored = [](auto&& place) {
        PrivatePages pages{4};
        if (pages.bytes() == nullptr) return std::vector<int>{};
        const auto [from, size] = place(pages.page());
        take_lines(pages.bytes() + from, size);
        return pages.stored();
    };
    using Place = std::pair<std::size_t, std::size_t>;
    EXPECT_EQ(stored([](std::size_t page) {
                  return Place{page, 0};
              }),
              (std::vector<int>{0, 0, 0, 0}));
    EXPECT_EQ(stored([](std::size_t page) {
                  return Place{page, page};
              }),
              (std::vector<int>{0, 1, 0, 0}));
    EXPECT_EQ(stored([](std::size_t page) {
                  return Place{2 * page - 1, 2};
              }),
              (std::vector<int>{0, 1, 1, 0}));
    EXPECT_EQ(stored([](std::size_t page) {
                  return Place{page - 1, 2 * page};
              }),
              (std::vector<int>{1, 1, 1, 0}));
}

TEST(SharedLines, KeepWhatStandsThere) {
    std::vector<std::byte> bytes(1000);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31);
    const std::vector<std::byte> before = bytes;
    for (std::size_t from = 0; from < 130; ++from) {
        take_lines(bytes.data() + from, bytes.size() - from - from % 7);
        ASSERT_EQ(bytes, before) << from;
    }
}

TEST(SharedLines, AreTakenOfACacheAtMost) { EXPECT_GE(most_taken_bytes(), std::size_t{64} << 10); }

}  // namespace
}  // namespace millrace::base
