// What docs/threat-model.md says of huge pages: a peer that grants memory in them, takes a page
// back and leaves the machine without another one ends whoever stores there. Needs free huge pages,
// and few enough of them to take all for a moment.
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

std::uint64_t free_huge_pages() {
    std::uint64_t pages = 0;
    std::ifstream{"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"} >> pages;
    return pages;
}

/// A file of huge pages, which the pool gets back with it.
class HugeFile {
  public:
    HugeFile()
        : descriptor_{memfd_create("test-huge",
                                   MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB)} {}
    ~HugeFile() {
        if (memory_ != MAP_FAILED) munmap(memory_, huge_page);
        close(descriptor_);
    }
    HugeFile(const HugeFile&) = delete;
    HugeFile& operator=(const HugeFile&) = delete;

    /// One more page; false: the pool is empty.
    bool take() {
        const auto at = static_cast<off_t>(huge_page * pages_);
        if (fallocate(descriptor_, 0, at, static_cast<off_t>(huge_page)) != 0) return false;
        ++pages_;
        return true;
    }
    bool punch_first() {
        return fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                         static_cast<off_t>(huge_page)) == 0;
    }
    /// The first page, so that peers can map it: null where that cannot be.
    std::byte* map() {
        if (fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK) != 0) return nullptr;
        memory_ = mmap(nullptr, huge_page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
        return memory_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory_);
    }

  private:
    int descriptor_;
    std::size_t pages_ = 0;
    void* memory_ = MAP_FAILED;
};

TEST(HugePages, ThatAPeerTakesBackEndWhoStoresThere) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizer takes the signal";
#endif
    constexpr std::uint64_t few = 64;
    const std::uint64_t available = free_huge_pages();
    if (available == 0 || available > few) {
        GTEST_SKIP() << available << " free huge pages of 2 MiB: needs 1 to " << few
                     << " (/proc/sys/vm/nr_hugepages)";
    }
    RemotePair pair;
    HugeFile granted;
    if (!granted.take()) GTEST_SKIP() << "somebody else took the last huge page";
    std::byte* const memory = granted.map();
    ASSERT_NE(memory, nullptr);
    ibv_mr* const region =
        soft::reg_mr(pair.left.pd, memory, huge_page, reinterpret_cast<std::uint64_t>(memory),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ASSERT_NE(region, nullptr);
    const std::string to = std::to_string(reinterpret_cast<std::uint64_t>(memory)) + ' ' +
                           std::to_string(region->rkey);
    EXPECT_EQ(pair.right.ask("fill 0 64 90"), "ok");
    ASSERT_EQ(pair.right.ask("write 1 0 64 " + to), "0");
    ASSERT_EQ(pair.right.ask("complete").substr(0, 4), "1 0 ");
    EXPECT_EQ(memory[63], std::byte{90});

    // A hole where the pool has another page is filled with zeros, and nobody is hurt.
    ASSERT_TRUE(granted.punch_first());
    ASSERT_EQ(pair.right.ask("write 2 0 64 " + to), "0");
    ASSERT_EQ(pair.right.ask("complete").substr(0, 4), "2 0 ");
    EXPECT_EQ(memory[63], std::byte{90});

    ASSERT_TRUE(granted.punch_first());
    HugeFile rest;
    while (rest.take()) {
    }
    (void)pair.right.child.write_line("write 3 0 64 " + to);
    (void)pair.right.child.write_line("complete");
    EXPECT_TRUE(pair.right.child.wait().killed_by(SIGBUS));
    EXPECT_EQ(soft::dereg_mr(region), 0);
}

}  // namespace
}  // namespace millrace::test
