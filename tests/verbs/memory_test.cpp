// Buffers, regions and what they say when they cannot be had.
#include "millrace/verbs/memory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "available_memory.hpp"
#include "loopback.hpp"
#include "millrace/base/error.hpp"
#include "millrace/soft/device.hpp"
#include "registration_remedy.hpp"

namespace millrace::verbs {
namespace {

using testing::HasSubstr;

std::vector<int> buffer_descriptors() {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
        std::error_code error;
        const auto target = std::filesystem::read_symlink(entry.path(), error).string();
        if (target.find("millrace-buffer") != std::string::npos) {
            found.push_back(std::atoi(entry.path().filename().c_str()));
        }
    }
    return found;
}

bool mapped(const std::byte* address) {
    unsigned char resident;
    const auto page = reinterpret_cast<std::uintptr_t>(address) & ~std::uintptr_t{4095};
    return mincore(reinterpret_cast<void*>(page), 4096, &resident) == 0;
}

TEST(Buffer, IsZeroedPageAlignedAndAtLeastAsLargeAsAsked) {
    for (const std::size_t size : {1UL, 4095UL, 4096UL, 4097UL, 1UL << 20}) {
        const Buffer buffer{size};
        EXPECT_GE(buffer.size(), size);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096, 0U);
        EXPECT_TRUE(std::all_of(buffer.bytes().begin(), buffer.bytes().end(),
                                [](std::byte b) { return b == std::byte{0}; }));
        std::memset(buffer.data(), 0x5a, buffer.size());
    }
}

TEST(Buffer, IsSealedAgainstEveryChangeOfSize) {
    const auto before = buffer_descriptors();
    const Buffer buffer{10'000};
    auto after = buffer_descriptors();
    std::erase_if(
        after, [&](int fd) { return std::find(before.begin(), before.end(), fd) != before.end(); });
    ASSERT_EQ(after.size(), 1U);
    const int seals = fcntl(after[0], F_GET_SEALS);
    EXPECT_EQ(seals & F_SEAL_SHRINK, F_SEAL_SHRINK);
    EXPECT_EQ(seals & F_SEAL_GROW, F_SEAL_GROW);
    EXPECT_EQ(seals & F_SEAL_SEAL, F_SEAL_SEAL);
    EXPECT_NE(ftruncate(after[0], 0), 0);
    EXPECT_NE(fcntl(after[0], F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Buffer, GivesMemoryAndDescriptorBack) {
    const auto before = buffer_descriptors();
    std::byte* data = nullptr;
    {
        Buffer buffer{8192};
        Buffer moved = std::move(buffer);
        EXPECT_EQ(buffer.data(), nullptr);
        data = moved.data();
        EXPECT_TRUE(mapped(data));
    }
    EXPECT_FALSE(mapped(data));
    EXPECT_EQ(buffer_descriptors(), before);
}

TEST(Buffer, StaysWhereItIsWhenQuarantined) {
    std::byte* data = nullptr;
    {
        Buffer buffer{4096};
        buffer.quarantine();
        data = buffer.data();
    }
    EXPECT_TRUE(mapped(data));
    data[0] = std::byte{1};  // still ours to write
}

TEST(Buffer, FallsBackToPlainPagesWithoutHugeOnes) {
    const Buffer buffer{100, true};
    std::memset(buffer.data(), 1, buffer.size());
    EXPECT_GE(buffer.size(), 4096U);
}

TEST(Buffer, OfNoBytesIsRefused) {
    try {
        const Buffer buffer{0};
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    }
}

TEST(Buffer, LargerThanAnyMachineIsRefused) {
    for (const std::size_t size : {SIZE_MAX, SIZE_MAX / 2, std::size_t{1} << 60}) {
        try {
            const Buffer buffer{size};
            FAIL() << size;
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::resource_exhausted) << size;
        }
    }
}

TEST(Buffer, LargerThanTheMemoryLeftIsRefusedBeforeItTakesAny) {
    const std::uint64_t available = available_memory();
    ASSERT_NE(available, UINT64_MAX) << "this system says nothing of its memory";
    try {
        const Buffer buffer{2 * available + (1 << 20)};
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::resource_exhausted);
        EXPECT_THAT(error.what(), HasSubstr("left"));
    }
}

TEST(MemoryRegion, DescribesWhatWasRegistered) {
    Context context = find_device().open();
    ProtectionDomain domain = context.allocate_protection_domain();
    alignas(64) static std::byte memory[1000];
    MemoryRegion region = domain.register_memory(memory, test::everything);
    EXPECT_EQ(region.data(), memory);
    EXPECT_EQ(region.size(), sizeof memory);
    const ibv_sge slice = region.slice(8, 24);
    EXPECT_EQ(slice.addr, reinterpret_cast<std::uint64_t>(memory) + 8);
    EXPECT_EQ(slice.length, 24U);
    EXPECT_EQ(slice.lkey, region.lkey());
    EXPECT_EQ((region.remote(8) + 8).address, reinterpret_cast<std::uint64_t>(memory) + 16);
    EXPECT_EQ(region.remote().rkey, region.rkey());
    EXPECT_TRUE(region.deregister());
    EXPECT_TRUE(region.deregister()) << "the second time there is nothing to do";
}

TEST(MemoryRegion, OfMemoryThatIsNotThereIsRefused) {
    Context context = find_device().open();
    ProtectionDomain domain = context.allocate_protection_domain();
    void* hole = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(hole, MAP_FAILED);
    ASSERT_EQ(munmap(hole, 8192), 0);
    try {
        (void)domain.register_memory({static_cast<std::byte*>(hole), 8192}, test::everything);
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_EQ(error.attempted(), "register memory");
        EXPECT_THAT(error.object(), HasSubstr("8192 bytes"));
        EXPECT_FALSE(error.cause().empty());
    }
}

TEST(RegisteredBuffer, ReplacesAnotherInTheRightOrder) {
    Context context = find_device().open();
    ProtectionDomain domain = context.allocate_protection_domain();
    RegisteredBuffer buffer = domain.allocate(4096, test::everything);
    const std::byte* first = buffer.data();
    buffer = domain.allocate(8192, test::everything);
    EXPECT_NE(buffer.data(), nullptr);
    EXPECT_NE(buffer.data(), first);
    EXPECT_GE(buffer.size(), 8192U);
}

TEST(RegistrationRemedy, NamesTheMemoryLockLimitThatHolds) {
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    const rlimit small{.rlim_cur = 64 * 1024, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    const std::string text = registration_remedy(ENOMEM);
    setrlimit(RLIMIT_MEMLOCK, &before);
    EXPECT_THAT(text, HasSubstr("64 KiB"));
    EXPECT_THAT(text, HasSubstr("ulimit -l"));
}

/// While it lives, no descriptor can be opened.
class NoMoreDescriptors {
  public:
    NoMoreDescriptors() {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
        const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    }
    ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
    NoMoreDescriptors(const NoMoreDescriptors&) = delete;
    NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;

  private:
    rlimit before_{};
};

// So registering a buffer costs the same whatever else is mapped and open.
TEST(MemoryRegion, OfABufferIsRegisteredWithoutALookIntoProc) {
    const Device device = find_device();
    if (!device.is_soft()) GTEST_SKIP() << "a driver does as it likes";
    Context context = device.open();
    ProtectionDomain domain = context.allocate_protection_domain();
    const Buffer buffer{3 * 4096};
    const std::vector<std::byte> unknown(4096);
    const NoMoreDescriptors none;
    EXPECT_NO_THROW((void)domain.register_memory(buffer.bytes(), test::everything));
    EXPECT_NO_THROW(
        (void)domain.register_memory(buffer.bytes().subspan(100, 5000), test::everything));
    ibv_mr* const raw =
        soft::reg_mr(domain.raw(), const_cast<std::byte*>(unknown.data()), unknown.size(), 0, 0);
    EXPECT_EQ(raw, nullptr) << "then nothing is looked at for any memory, and this proves nothing";
    if (raw != nullptr) soft::dereg_mr(raw);
}

// On a driver that locks memory (the kernel's rxe does), without the privilege to exceed the limit.
TEST(MemoryRegion, BeyondTheMemoryLockLimitNamesTheLimit) {
    const Device device = find_device();
    if (device.is_soft()) GTEST_SKIP() << "the soft device locks no memory";
    if (geteuid() != 0) GTEST_SKIP() << "needs to give up root";
    Context context = device.open();
    ProtectionDomain domain = context.allocate_protection_domain();
    const Buffer buffer{4 << 20};
    rlimit before{};
    getrlimit(RLIMIT_MEMLOCK, &before);
    const rlimit small{.rlim_cur = 64 * 1024, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    ASSERT_EQ(seteuid(65534), 0);
    std::string text;
    try {
        (void)domain.register_memory(buffer.bytes(), test::everything);
    } catch (const base::Error& error) {
        text = error.what();
    }
    ASSERT_EQ(seteuid(0), 0);
    setrlimit(RLIMIT_MEMLOCK, &before);
    EXPECT_THAT(text, HasSubstr("64 KiB"));
}

}  // namespace
}  // namespace millrace::verbs
