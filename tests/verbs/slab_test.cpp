// Slabs: the files that a protection domain's small buffers are pieces of. What comes of a piece
// that was given back, of a store that comes late, of a file that is used up, of a child.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "loopback.hpp"
#include "memory_file.hpp"
#include "millrace/base/detail/own_mappings.hpp"
#include "support/resources.hpp"

namespace millrace::verbs {
namespace {

constexpr std::size_t page = 4096;

/// Which file, and where in it, a buffer of ours is.
base::OwnMapping place_of(const RegisteredBuffer& buffer) {
    const auto found = base::find_own_mapping(buffer.data(), buffer.size());
    EXPECT_TRUE(found.has_value());
    return found.value_or(base::OwnMapping{});
}
std::uint64_t pages_of(int descriptor) {
    struct stat status {};
    EXPECT_EQ(fstat(descriptor, &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512 / page;
}

/// What a peer has that was granted a buffer, and goes on with it for ever.
class Peer {
  public:
    explicit Peer(const RegisteredBuffer& granted) : size_{granted.size()} {
        const base::OwnMapping place = place_of(granted);
        void* const mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED,
                                  place.descriptor, static_cast<off_t>(place.file_offset));
        EXPECT_NE(mapped, MAP_FAILED);
        memory_ = static_cast<char*>(mapped);
    }
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;
    ~Peer() { munmap(memory_, size_); }
    void scribble() const { std::memset(memory_, 0x5a, size_); }

  private:
    std::size_t size_;
    char* memory_;
};

class Slab : public testing::Test {
  protected:
    Context context_ = find_device().open();
    ProtectionDomain domain_ = context_.allocate_protection_domain();
    /// The slab stays as long as there is a piece of it.
    RegisteredBuffer stays_ = allocate();
    const int file_ = place_of(stays_).descriptor;

    RegisteredBuffer allocate(std::size_t size = 2 * page) {
        return domain_.allocate(size, test::everything);
    }
};

TEST_F(Slab, CostsNoDescriptorForEachBuffer) {
    const std::size_t before = millrace::test::open_descriptors();
    std::vector<RegisteredBuffer> many;
    for (int i = 0; i < 100; ++i) many.push_back(allocate());
    EXPECT_EQ(millrace::test::open_descriptors(), before);
    EXPECT_EQ(pages_of(file_), 2 * 101U);
    for (RegisteredBuffer& one : many) {
        for (std::size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one.data()[i], std::byte{0});
        std::memset(one.data(), 1, one.size());
    }
}

TEST_F(Slab, HasManyPackedBuffersInAPageOfItsDomain) {
    const std::uint64_t before = pages_of(file_);
    std::vector<RegisteredBuffer> many;
    for (int i = 0; i < 64; ++i) {
        many.push_back(domain_.allocate_packed(300, test::everything));
        RegisteredBuffer& one = many.back();
        EXPECT_EQ(one.size(), 384U);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one.data()) % 128, 0U);
        EXPECT_EQ(place_of(one).descriptor, file_);
        for (std::size_t at = 0; at < one.size(); ++at) ASSERT_EQ(one.data()[at], std::byte{0});
        std::memset(one.data(), i + 1, one.size());
    }
    EXPECT_EQ(pages_of(file_), before + 64 * 384 / page);
    // Others' pages between theirs: they begin anew.
    const RegisteredBuffer plain = allocate(page);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plain.data()) % page, 0U);
    const RegisteredBuffer large = domain_.allocate_packed(3 * page, test::everything);
    std::memset(large.data(), 0xff, large.size());
    for (int i = 0; i < 64; ++i) {
        for (std::size_t at = 0; at < 384; ++at) {
            ASSERT_EQ(many[static_cast<std::size_t>(i)].data()[at], static_cast<std::byte>(i + 1));
        }
    }
    for (std::size_t at = 0; at < page; ++at) ASSERT_EQ(plain.data()[at], std::byte{0});
}

TEST_F(Slab, KeepsWhatItsNeighboursHaveWhenAPackedBufferGoes) {
    const std::uint64_t before = pages_of(file_);
    std::optional<RegisteredBuffer> left{domain_.allocate_packed(384, test::everything)};
    std::optional<RegisteredBuffer> middle{domain_.allocate_packed(384, test::everything)};
    std::optional<RegisteredBuffer> right{domain_.allocate_packed(384, test::everything)};
    std::memset(left->data(), 1, left->size());
    std::memset(middle->data(), 2, middle->size());
    std::memset(right->data(), 3, right->size());
    const std::uint64_t place = place_of(*middle).file_offset;
    middle.reset();
    for (std::size_t at = 0; at < 384; ++at) {
        ASSERT_EQ(left->data()[at], std::byte{1});
        ASSERT_EQ(right->data()[at], std::byte{3});
    }
    const RegisteredBuffer next = domain_.allocate_packed(384, test::everything);
    EXPECT_NE(place_of(next).file_offset, place) << "no place is used twice";
    EXPECT_EQ(next.data()[0], std::byte{0});
    left.reset();
    right.reset();
    EXPECT_EQ(pages_of(file_), before + 1) << "of the next";
}

TEST_F(Slab, GivesThePagesOfABufferBackAndItsAddresses) {
    const std::uint64_t before = pages_of(file_);
    std::byte* data = nullptr;
    {
        const RegisteredBuffer buffer = allocate(100 * page);
        data = buffer.data();
        EXPECT_EQ(pages_of(file_), before + 100);
    }
    EXPECT_EQ(pages_of(file_), before);
    unsigned char resident;
    EXPECT_NE(mincore(data, page, &resident), 0) << "who uses it further is to be told";
}

TEST_F(Slab, IsClosedWithItsLastBuffer) {
    const std::size_t with = millrace::test::open_descriptors();
    stays_ = RegisteredBuffer{};
    EXPECT_EQ(millrace::test::open_descriptors(), with - 1);
    const RegisteredBuffer next = allocate();
    EXPECT_EQ(millrace::test::open_descriptors(), with);
}

TEST_F(Slab, KeepsTheNextBufferFromWhoGoesOnStoringToOneThatWasGivenBack) {
    std::optional<RegisteredBuffer> first{allocate()};
    const Peer late{*first};
    std::jthread storing{[&](const std::stop_token& stop) {
        while (!stop.stop_requested()) late.scribble();
    }};
    first.reset();
    for (int i = 0; i < 500; ++i) {
        const RegisteredBuffer next = allocate();
        for (std::size_t at = 0; at < next.size(); ++at) {
            ASSERT_EQ(next.data()[at], std::byte{0}) << i;
        }
    }
}

TEST_F(Slab, KeepsNoPageOfLateStoresBeyondTheNextBufferThatGoes) {
    std::optional<RegisteredBuffer> first{allocate()}, second{allocate()}, third{allocate()};
    const std::uint64_t before = pages_of(file_) - 6;
    const Peer late_to_first{*first}, late_to_third{*third};
    first.reset();
    third.reset();
    late_to_first.scribble();
    late_to_third.scribble();
    EXPECT_EQ(pages_of(file_), before + 6);
    second.reset();
    EXPECT_EQ(pages_of(file_), before) << "the neighbours' pages go with it";
}

TEST_F(Slab, UsesNoPlaceTwiceAndGoesOnInANewFile) {
    std::uint64_t last = place_of(stays_).file_offset;
    // Given back at once, they cost no memory.
    int of_this_file = 0;
    for (;;) {
        const RegisteredBuffer large = allocate(std::size_t{16} << 20);
        const base::OwnMapping place = place_of(large);
        if (place.descriptor != file_) break;
        EXPECT_LE(place.file_offset + large.size(), last);
        last = place.file_offset;
        ASSERT_LT(++of_this_file, 1000);
    }
    EXPECT_GT(of_this_file, 10);
    EXPECT_EQ(pages_of(file_), 2U) << "of the one that stays";
}

TEST_F(Slab, IsOfOneDomainAlone) {
    ProtectionDomain other = context_.allocate_protection_domain();
    const RegisteredBuffer others = other.allocate(page, test::everything);
    EXPECT_NE(place_of(others).descriptor, file_);
}

TEST_F(Slab, HasNoBufferThatIsLargerThan64MiB) {
    const std::size_t before = millrace::test::open_descriptors();
    const RegisteredBuffer large = allocate(MemoryFile::largest_of_slab + 1);
    EXPECT_EQ(millrace::test::open_descriptors(), before + 1);
    EXPECT_NE(place_of(large).descriptor, file_);
}

TEST_F(Slab, OfAParentIsLeftAloneByItsChild) {
    std::optional<RegisteredBuffer> shared{allocate()};
    std::memset(shared->data(), 7, shared->size());
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        // As at the end of a program; and a buffer more must not lie where the parent's next does.
        const Buffer* const own = new Buffer{page};
        MemoryFile::Piece piece;
        Slabs slabs;
        const auto file = slabs.take(page, piece);
        shared.reset();
        _exit(own->data() != nullptr && file != nullptr ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    for (std::size_t i = 0; i < shared->size(); ++i) ASSERT_EQ(shared->data()[i], std::byte{7});
}

TEST(Slabs, OfAParentGiveItsChildNothing) {
    Slabs slabs;
    MemoryFile::Piece piece;
    const auto file = slabs.take(page, piece);
    ASSERT_NE(file, nullptr);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        MemoryFile::Piece mine;
        const bool none = slabs.take(page, mine) == nullptr && file->take(page, mine) != 0;
        file->give_back(piece);
        _exit(none ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    const base::OwnMapping place = base::find_own_mapping(piece.data, piece.size).value();
    EXPECT_EQ(pages_of(place.descriptor), 1U);
    file->give_back(piece);
}

// A program that closes all descriptors that it does not know (as daemons do), and opens its own.
TEST(Slabs, TouchNoFileThatHasTheirDescriptorsNumberNow) {
    Slabs slabs;
    MemoryFile::Piece piece;
    auto file = slabs.take(page, piece);
    ASSERT_NE(file, nullptr);
    const int number = base::find_own_mapping(piece.data, piece.size).value().descriptor;
    const int programs = memfd_create("of-the-program", MFD_CLOEXEC);
    ASSERT_GE(programs, 0);
    ASSERT_EQ(fallocate(programs, 0, static_cast<off_t>(piece.offset), page), 0);
    const int kept = fcntl(number, F_DUPFD_CLOEXEC, 0);
    ASSERT_EQ(dup3(programs, number, O_CLOEXEC), number);
    MemoryFile::Piece next;
    const auto another = slabs.take(page, next);
    EXPECT_NE(another, file);
    file->give_back(piece);
    EXPECT_EQ(pages_of(programs), 1U);
    ASSERT_NE(another, nullptr);
    another->give_back(next);
    close(programs);
    close(kept);
}

TEST(Slabs, AreNotMadeWhereFilesMayNotBeThatLarge) {
    Context context = find_device().open();
    ProtectionDomain domain = context.allocate_protection_domain();
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 1 << 20;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const RegisteredBuffer buffer = domain.allocate(page, test::everything);
    std::memset(buffer.data(), 1, buffer.size());
    setrlimit(RLIMIT_FSIZE, &before);
    struct stat status {};
    ASSERT_EQ(fstat(place_of(buffer).descriptor, &status), 0);
    EXPECT_EQ(status.st_size, static_cast<off_t>(page));
}

TEST(Slabs, KeepAPieceForEverThatSomebodyMayStillTouch) {
    std::byte* data = nullptr;
    int descriptor = -1;
    {
        Slabs slabs;
        MemoryFile::Piece piece;
        const auto file = slabs.take(page, piece);
        ASSERT_NE(file, nullptr);
        file->keep();
        file->keep();
        data = piece.data;
        descriptor = base::find_own_mapping(data, page).value().descriptor;
    }
    data[0] = std::byte{1};
    EXPECT_EQ(pages_of(descriptor), 1U);
}

}  // namespace
}  // namespace millrace::verbs
