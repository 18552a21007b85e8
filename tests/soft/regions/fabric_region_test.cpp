// Registered memory: the owner's table, and how peers reach what it names.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/node.hpp"
#include "millrace/base/detail/own_mappings.hpp"
#include "regions/region_facts.hpp"
#include "soft/fabric_name.hpp"
#include "support/child_process.hpp"

namespace millrace::soft {
namespace {

using test::ChildProcess;
using test::fabric_of_test;
using test::hear;
using test::say;

constexpr std::uint32_t all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// A shared mapping of a fresh memfd, which stays open.
struct SharedMemory {
    int descriptor;
    std::byte* memory;
    std::size_t size;

    SharedMemory(std::size_t bytes, int seals)
        : descriptor{::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)}, size{bytes} {
        if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) std::abort();
        memory = static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
        if (memory == MAP_FAILED) std::abort();
        if (seals != 0 && ::fcntl(descriptor, F_ADD_SEALS, seals) != 0) std::abort();
    }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory() {
        ::munmap(memory, size);
        ::close(descriptor);
    }
};

RegionKind kind_of(const RegionEntry* entry) { return static_cast<RegionKind>(entry->kind); }

/// Registers and expects success.
LocalRegion registered(Node& node, void* address, std::size_t length,
                       std::uint32_t access = all_access) {
    LocalRegion region;
    EXPECT_EQ(node.regions().add(address, length, reinterpret_cast<std::uintptr_t>(address), access,
                                 1, region),
              0);
    return region;
}

TEST(RegionTable, HoldsWhatWasRegistered) {
    const auto node = Node::join(fabric_of_test());
    std::vector<std::byte> memory(10'000);
    LocalRegion region;
    ASSERT_EQ(node->regions().add(memory.data(), memory.size(), 0x1000, all_access, 77, region), 0);
    EXPECT_NE(region.key, 0u);
    const RegionEntry* entry = node->regions().valid(region.key);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->address, reinterpret_cast<std::uintptr_t>(memory.data()));
    EXPECT_EQ(entry->length, memory.size());
    EXPECT_EQ(entry->iova, 0x1000u);
    EXPECT_EQ(entry->access, all_access);
    EXPECT_EQ(entry->pd, 77u);
    EXPECT_EQ(kind_of(entry), RegionKind::private_memory);
    EXPECT_EQ(node->regions().valid(region.key + 1), nullptr);
    EXPECT_EQ(node->regions().valid(0), nullptr);
    EXPECT_EQ(node->regions().valid(0xffffffff), nullptr);
}

TEST(RegionTable, RefusesAccessThatVerbsForbid) {
    const auto node = Node::join(fabric_of_test());
    std::vector<std::byte> memory(64);
    LocalRegion region;
    const auto add = [&](unsigned access, std::size_t length) {
        return node->regions().add(memory.data(), length, 0, access, 1, region);
    };
    EXPECT_EQ(add(IBV_ACCESS_REMOTE_WRITE, 64), EINVAL);
    EXPECT_EQ(add(IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ, 64), EINVAL);
    EXPECT_EQ(add(1u << 15, 64), EINVAL);
    EXPECT_EQ(add(IBV_ACCESS_ON_DEMAND, 64), EOPNOTSUPP);
    EXPECT_EQ(add(IBV_ACCESS_REMOTE_READ, SIZE_MAX), EINVAL);
    EXPECT_EQ(node->regions().add(memory.data(), 64, UINT64_MAX - 10, 0, 1, region), EINVAL);
    EXPECT_EQ(add(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING | (1U << 29), 64), 0);
    EXPECT_EQ(region.access, unsigned{IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING})
        << "other optional flags are ignored";
}

TEST(RegionTable, RefusesMemoryThatIsNotThere) {
    const auto node = Node::join(fabric_of_test());
    auto* memory = static_cast<std::byte*>(
        ::mmap(nullptr, 4 * page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory, MAP_FAILED);
    LocalRegion region;
    const auto add = [&](std::size_t page, std::size_t pages, std::uint32_t access) {
        return node->regions().add(memory + page * page_size, pages * page_size, 0, access, 1,
                                   region);
    };
    EXPECT_EQ(add(0, 4, all_access), 0);
    ASSERT_EQ(::mprotect(memory + page_size, page_size, PROT_READ), 0);
    EXPECT_EQ(add(0, 4, all_access), EFAULT) << "one page may not be written";
    EXPECT_EQ(add(0, 4, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    EXPECT_EQ(add(0, 4, IBV_ACCESS_REMOTE_READ), 0) << "reading needs no right to write";
    EXPECT_EQ(add(2, 2, all_access), 0);
    ASSERT_EQ(::mprotect(memory + page_size, page_size, PROT_NONE), 0);
    EXPECT_EQ(add(0, 4, IBV_ACCESS_REMOTE_READ), EFAULT);
    ASSERT_EQ(::munmap(memory + 2 * page_size, page_size), 0);
    EXPECT_EQ(add(2, 2, IBV_ACCESS_REMOTE_READ), EFAULT) << "a hole in front";
    EXPECT_EQ(add(0, 1, all_access), 0);
    ::munmap(memory, 4 * page_size);
}

TEST(RegionTable, KnowsWhatPeersCanMap) {
    const auto node = Node::join(fabric_of_test());
    const SharedMemory sealed{4 * page_size, F_SEAL_SHRINK};
    const auto key = registered(*node, sealed.memory + page_size + 10, 2 * page_size).key;
    const RegionEntry* entry = node->regions().valid(key);
    EXPECT_EQ(kind_of(entry), RegionKind::shared_file);
    EXPECT_EQ(entry->file_offset, page_size + 10);
    EXPECT_EQ(entry->descriptor, sealed.descriptor);

    const SharedMemory open_ended{4 * page_size, F_SEAL_GROW};
    EXPECT_EQ(kind_of(node->regions().valid(registered(*node, open_ended.memory, page_size).key)),
              RegionKind::private_memory)
        << "it could shrink under a peer";

    SharedMemory closed{page_size, F_SEAL_SHRINK};
    ::close(std::exchange(closed.descriptor, -1));
    EXPECT_EQ(kind_of(node->regions().valid(registered(*node, closed.memory, page_size).key)),
              RegionKind::private_memory)
        << "nobody could open it";

    void* copy_on_write =
        ::mmap(nullptr, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, sealed.descriptor, 0);
    ASSERT_NE(copy_on_write, MAP_FAILED);
    EXPECT_EQ(kind_of(node->regions().valid(registered(*node, copy_on_write, page_size).key)),
              RegionKind::private_memory);
    ::munmap(copy_on_write, page_size);
}

TEST(RegionTable, KnowsWhatThisLibraryHasMapped) {
    const auto node = Node::join(fabric_of_test());
    const SharedMemory sealed{4 * page_size, F_SEAL_SHRINK};
    base::add_own_mapping(sealed.memory, sealed.size, sealed.descriptor, 0);
    const auto key = registered(*node, sealed.memory + page_size + 10, 2 * page_size).key;
    const RegionEntry* entry = node->regions().valid(key);
    EXPECT_EQ(kind_of(entry), RegionKind::shared_file);
    EXPECT_EQ(entry->file_offset, page_size + 10);
    EXPECT_EQ(entry->descriptor, sealed.descriptor);
    // Where the program has put something else at the descriptor's number, the kernel is asked.
    const int elsewhere = ::dup(sealed.descriptor);
    const int other = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::dup3(other, sealed.descriptor, O_CLOEXEC), sealed.descriptor);
    entry = node->regions().valid(registered(*node, sealed.memory, page_size).key);
    EXPECT_EQ(kind_of(entry), RegionKind::shared_file);
    EXPECT_EQ(entry->descriptor, elsewhere);
    ::close(elsewhere);
    ::close(other);
    base::remove_own_mapping(sealed.memory);
    LocalRegion region;
    ASSERT_EQ(::munmap(sealed.memory, page_size), 0);
    EXPECT_EQ(node->regions().add(sealed.memory, page_size, 0, all_access, 1, region), EFAULT);
}

TEST(RegionTable, SharesMemoryWhateverItsDescriptorsNumberIs) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    constexpr int high = 16'400;
    rlimit more = before;
    more.rlim_cur = std::max<rlim_t>(more.rlim_cur, high + 1);
    more.rlim_max = std::max<rlim_t>(more.rlim_max, high + 1);
    if (::setrlimit(RLIMIT_NOFILE, &more) != 0) GTEST_SKIP() << "needs that many descriptors";
    const auto node = Node::join(fabric_of_test());
    SharedMemory sealed{4 * page_size, F_SEAL_SHRINK};
    const int moved = ::fcntl(sealed.descriptor, F_DUPFD_CLOEXEC, high);
    ASSERT_GE(moved, high);
    ::close(std::exchange(sealed.descriptor, moved));
    const RegionEntry* entry =
        node->regions().valid(registered(*node, sealed.memory, 2 * page_size).key);
    EXPECT_EQ(kind_of(entry), RegionKind::shared_file);
    EXPECT_EQ(entry->descriptor, moved);
    ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(RegionTable, SeesTwoMappingsSideBySideForWhatTheyAre) {
    const auto node = Node::join(fabric_of_test());
    const SharedMemory file{4 * page_size, F_SEAL_SHRINK};
    auto* memory = static_cast<std::byte*>(
        ::mmap(nullptr, 3 * page_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory, MAP_FAILED);
    const auto place = [&](std::size_t at_page, std::size_t file_page) {
        return ::mmap(memory + at_page * page_size, page_size, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, file.descriptor,
                      static_cast<off_t>(file_page * page_size)) != MAP_FAILED;
    };
    ASSERT_TRUE(place(0, 1) && place(1, 2) && place(2, 0));
    EXPECT_EQ(kind_of(node->regions().valid(registered(*node, memory, 2 * page_size).key)),
              RegionKind::shared_file);
    EXPECT_EQ(kind_of(node->regions().valid(registered(*node, memory, 3 * page_size).key)),
              RegionKind::private_memory)
        << "the third page is not the file's next";
    ::munmap(memory, 3 * page_size);
}

TEST(RegionTable, NeverTakesAStaleKey) {
    const auto node = Node::join(fabric_of_test());
    std::vector<std::byte> memory(64);
    const std::uint32_t key = registered(*node, memory.data(), 64).key;
    ASSERT_NE(node->regions().valid(key), nullptr);
    node->regions().invalidate(key);
    EXPECT_EQ(node->regions().valid(key), nullptr);
    node->regions().release(key);
    EXPECT_EQ(node->regions().valid(key), nullptr);
    const std::uint32_t next = registered(*node, memory.data(), 64).key;
    EXPECT_NE(index_of_key(next), index_of_key(key)) << "fresh indices come first";
    node->regions().invalidate(key);  // once more, and of another's index: nothing happens
    EXPECT_NE(node->regions().valid(next), nullptr);
}

TEST(RegionTable, ReportsWhenItIsFullAndReusesTheOldestIndexWithANewKey) {
    const auto node = Node::join(fabric_of_test());
    std::vector<std::uint32_t> keys;
    LocalRegion region;
    // Of no length: nobody asks the kernel 65,536 times what is behind them.
    const auto add = [&] { return node->regions().add(nullptr, 0, 0, 0, 1, region); };
    for (std::uint32_t i = 0; i < regions_per_node; ++i) {
        ASSERT_EQ(add(), 0);
        keys.push_back(region.key);
    }
    EXPECT_EQ(add(), ENOMEM);
    for (const std::size_t i : {9, 3, 5}) {
        node->regions().invalidate(keys[i]);
        if (i != 3) node->regions().release(keys[i]);
    }
    ASSERT_EQ(add(), 0);
    EXPECT_EQ(index_of_key(region.key), index_of_key(keys[9]));
    EXPECT_NE(region.key, keys[9]);
    EXPECT_EQ(node->regions().valid(keys[9]), nullptr);
    ASSERT_EQ(add(), 0);
    EXPECT_EQ(index_of_key(region.key), index_of_key(keys[5])) << "3 is not released";
    EXPECT_EQ(add(), ENOMEM);
}

// ---------------------------------------------------------------------------------------------

constexpr std::size_t child_bytes = 3 * page_size + 500;

/// Registers memory of the kind asked for, tells node number and key; then obeys:
/// "byte I" tells byte I, "drop" deregisters, "unmap" unmaps.
MILLRACE_CHILD(region_owner) {
    const auto node = Node::join(arguments.at(0));
    const std::string& kind = arguments.at(1);
    const SharedMemory shared{8 * page_size, kind == "unsealed" ? 0 : F_SEAL_SHRINK};
    auto* private_memory = static_cast<std::byte*>(
        ::mmap(nullptr, 8 * page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::byte* memory = (kind == "private" ? private_memory : shared.memory) + page_size + 24;
    for (std::size_t i = 0; i < child_bytes; ++i) memory[i] = static_cast<std::byte>(i * 13);
    const std::uint32_t access =
        kind == "read only" ? std::uint32_t{IBV_ACCESS_REMOTE_READ} : all_access;
    LocalRegion region;
    if (node->regions().add(memory, child_bytes, 0, access, 1, region) != 0) return 1;
    if (kind == "closed") ::close(shared.descriptor);
    say(std::to_string(node->number()) + " " + std::to_string(region.key));
    while (auto line = hear()) {
        std::istringstream order{*line};
        std::string what;
        std::size_t index = 0;
        order >> what >> index;
        if (what == "byte") say(std::to_string(static_cast<int>(memory[index])));
        if (what == "drop") {
            node->regions().invalidate(region.key);
            node->regions().release(region.key);
            say("dropped");
        }
        if (what == "unmap") {
            ::munmap(private_memory + 3 * page_size, 5 * page_size);
            say("unmapped");
        }
    }
    return 0;
}

struct Owner {
    ChildProcess process;
    std::shared_ptr<PeerNode> peer;
    std::uint32_t key = 0;
    const RegionEntry* entry = nullptr;

    Owner(Node& node, const std::string& kind)
        : process{ChildProcess::start("region_owner", {fabric_of_test(), kind})} {
        std::istringstream facts{process.read_line().value_or("")};
        std::uint32_t number = 0;
        facts >> number >> key;
        peer = node.peer(number);
        if (peer != nullptr) entry = peer->region(key);
    }
    int byte(std::size_t index) {
        process.write_line("byte " + std::to_string(index));
        return std::stoi(process.read_line().value_or("-1"));
    }
};

Reach here(std::vector<std::byte>& memory) { return {memory.data(), 0, 0}; }
Reach advanced(Reach reach, std::size_t bytes) {
    return {reach.direct != nullptr ? reach.direct + bytes : nullptr, reach.remote + bytes,
            reach.pid};
}

/// As an executor finds it.
std::optional<Reach> reach_of(PeerNode& peer, std::uint32_t key, bool writable) {
    const auto facts = read_region(*peer.region(key), key);
    return facts ? peer.reach(*facts, key, writable) : std::nullopt;
}

/// Reads and writes all and parts of the owner's region.
void check_transfers(Owner& owner, const Reach& reach) {
    std::vector<std::byte> memory(child_bytes);
    ASSERT_EQ(transfer(here(memory), reach, child_bytes, *owner.peer), CopyResult::ok);
    for (std::size_t i = 0; i < child_bytes; ++i) {
        ASSERT_EQ(memory[i], static_cast<std::byte>(i * 13)) << i;
    }
    for (const std::size_t bytes : {0, 1, 3, 7, 8, 9, 15, 16, 100, 4096, 5001}) {
        for (const std::size_t offset : {0, 1, 5, 8, 4000}) {
            std::vector<std::byte> source(bytes);
            for (std::size_t i = 0; i < bytes; ++i) {
                source[i] = static_cast<std::byte>(i * 7 + bytes + offset);
            }
            const Reach part = advanced(reach, offset);
            ASSERT_EQ(transfer(part, here(source), bytes, *owner.peer), CopyResult::ok);
            std::vector<std::byte> back(bytes + 1, std::byte{0x5a});
            ASSERT_EQ(transfer(here(back), part, bytes, *owner.peer), CopyResult::ok);
            ASSERT_TRUE(std::equal(source.begin(), source.end(), back.begin()))
                << bytes << " " << offset;
            ASSERT_EQ(back[bytes], std::byte{0x5a});
        }
    }
    std::vector<std::byte> mark{std::byte{200}, std::byte{201}};
    ASSERT_EQ(transfer(advanced(reach, child_bytes - 2), here(mark), 2, *owner.peer),
              CopyResult::ok);
    EXPECT_EQ(owner.byte(child_bytes - 2), 200);
    EXPECT_EQ(owner.byte(child_bytes - 1), 201);
}

TEST(RegionReach, IsDirectForASealedSharedMapping) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "shared"};
    ASSERT_NE(owner.entry, nullptr);
    const auto reach = reach_of(*owner.peer, owner.key, true);
    ASSERT_TRUE(reach);
    ASSERT_NE(reach->direct, nullptr);
    EXPECT_EQ(reach_of(*owner.peer, owner.key, true)->direct, reach->direct) << "cached";
    check_transfers(owner, *reach);
    const auto for_reading = reach_of(*owner.peer, owner.key, false);
    ASSERT_TRUE(for_reading);
    EXPECT_NE(for_reading->direct, reach->direct) << "a mapping that cannot be written";
    EXPECT_EQ(for_reading->direct[child_bytes - 2], std::byte{200});
}

TEST(RegionReach, GoesThroughTheKernelForPrivateMemory) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "private"};
    ASSERT_NE(owner.entry, nullptr);
    const auto reach = reach_of(*owner.peer, owner.key, true);
    ASSERT_TRUE(reach);
    EXPECT_EQ(reach->direct, nullptr);
    EXPECT_EQ(reach->pid, owner.process.pid());
    check_transfers(owner, *reach);
}

TEST(RegionReach, NeverMapsAFileThatCouldShrink) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "unsealed"};
    ASSERT_NE(owner.entry, nullptr);
    const auto reach = reach_of(*owner.peer, owner.key, true);
    ASSERT_TRUE(reach);
    EXPECT_EQ(reach->direct, nullptr);
    check_transfers(owner, *reach);
}

TEST(RegionReach, GoesThroughTheKernelWhenTheDescriptorWasClosedSince) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "closed"};
    ASSERT_NE(owner.entry, nullptr);
    EXPECT_EQ(kind_of(owner.entry), RegionKind::shared_file);
    const auto reach = reach_of(*owner.peer, owner.key, true);
    ASSERT_TRUE(reach);
    EXPECT_EQ(reach->direct, nullptr);
    check_transfers(owner, *reach);
}

TEST(RegionReach, IsRefusedForWritingWhatMayOnlyBeRead) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "read only"};
    ASSERT_NE(owner.entry, nullptr);
    EXPECT_FALSE(reach_of(*owner.peer, owner.key, true));
    EXPECT_TRUE(reach_of(*owner.peer, owner.key, false));
}

TEST(RegionReach, IsRefusedForAStaleKey) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "shared"};
    ASSERT_NE(owner.entry, nullptr);
    const auto reach = reach_of(*owner.peer, owner.key, true);
    ASSERT_TRUE(reach);
    EXPECT_FALSE(reach_of(*owner.peer, owner.key + 1, false)) << "another generation";
    std::vector<std::shared_ptr<void>> retired;
    owner.peer->retire_stale(retired);
    EXPECT_TRUE(retired.empty());
    owner.process.write_line("drop");
    ASSERT_EQ(owner.process.read_line(), "dropped");
    EXPECT_FALSE(reach_of(*owner.peer, owner.key, true));
    EXPECT_EQ(owner.entry->key_word.load(), 0u);
    owner.peer->retire_stale(retired);
    ASSERT_EQ(retired.size(), 1u);
    EXPECT_EQ(reach->direct[0], std::byte{0}) << "still mapped, until the caller lets go";
    owner.peer->retire_stale(retired);
    EXPECT_EQ(retired.size(), 1u);
    EXPECT_EQ(owner.peer->region(~0U) - owner.peer->region(0), regions_per_node - 1)
        << "no key leads out of the table";
}

TEST(RegionReach, IsAPlainPointerWithinOneProcess) {
    const auto node = Node::join(fabric_of_test());
    std::vector<std::byte> memory(64);
    const auto key = registered(*node, memory.data(), 64).key;
    const auto self = node->peer(node->number());
    const auto reach = reach_of(*self, key, true);
    ASSERT_TRUE(reach);
    EXPECT_EQ(reach->direct, memory.data());
    node->regions().invalidate(key);
    EXPECT_FALSE(reach_of(*self, key, true));
}

TEST(Transfer, TellsThatMemoryIsNoLongerThere) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "private"};
    ASSERT_NE(owner.entry, nullptr);
    const auto reach = reach_of(*owner.peer, owner.key, true);
    ASSERT_TRUE(reach);
    owner.process.write_line("unmap");
    ASSERT_EQ(owner.process.read_line(), "unmapped");
    std::vector<std::byte> memory(child_bytes, std::byte{1});
    EXPECT_EQ(transfer(*reach, here(memory), child_bytes, *owner.peer), CopyResult::bad_address);
    EXPECT_EQ(transfer(here(memory), *reach, child_bytes, *owner.peer), CopyResult::bad_address);
    EXPECT_EQ(transfer(*reach, here(memory), 100, *owner.peer), CopyResult::ok)
        << "its beginning is there";
}

TEST(Transfer, TellsThatTheProcessIsGone) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "private"};
    ASSERT_NE(owner.entry, nullptr);
    const auto reach = reach_of(*owner.peer, owner.key, true);
    ASSERT_TRUE(reach);
    std::vector<std::byte> memory(64);
    EXPECT_EQ(transfer(*reach, here(memory), 64, *owner.peer), CopyResult::ok);
    owner.process.kill_and_wait();
    EXPECT_EQ(transfer(*reach, here(memory), 64, *owner.peer), CopyResult::peer_gone);
    EXPECT_EQ(transfer(here(memory), *reach, 64, *owner.peer), CopyResult::peer_gone);
}

/// Becomes an ordinary user: the superuser is denied nothing.
bool become_nobody() {
    return ::setgid(65534) == 0 && ::setuid(65534) == 0 && ::prctl(PR_SET_DUMPABLE, 1) == 0;
}

/// Registers private memory, tells node number and key, then closes itself to ptrace when told.
MILLRACE_CHILD(guarded_owner) {
    if (!become_nobody()) return 1;
    const auto node = Node::join(arguments.at(0));
    std::vector<std::byte> memory(64, std::byte{9});
    LocalRegion region;
    if (node->regions().add(memory.data(), 64, 0, all_access, 1, region) != 0) return 1;
    say(std::to_string(node->number()) + " " + std::to_string(region.key));
    if (!hear()) return 1;
    if (::prctl(PR_SET_DUMPABLE, 0) != 0) return 1;
    say("guarded");
    (void)hear();
    return 0;
}

/// Reads from it before and after; tells how each went.
MILLRACE_CHILD(guarded_reader) {
    if (!become_nobody()) return 1;
    const auto node = Node::join(arguments.at(0));
    const auto peer = node->peer(static_cast<std::uint32_t>(std::stoul(arguments.at(1))));
    const auto key = static_cast<std::uint32_t>(std::stoul(arguments.at(2)));
    if (peer == nullptr) return 1;
    const auto reach = reach_of(*peer, key, false);
    std::vector<std::byte> memory(64);
    do {
        say(std::to_string(static_cast<int>(transfer(here(memory), *reach, 64, *peer))));
    } while (hear());
    return 0;
}

TEST(Transfer, TellsThatTheOperatingSystemForbidsIt) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    const std::string fabric = fabric_of_test();
    ChildProcess owner = ChildProcess::start("guarded_owner", {fabric});
    std::istringstream facts{owner.read_line().value_or("")};
    std::string number;
    std::string key;
    ASSERT_TRUE(facts >> number >> key);
    ChildProcess reader = ChildProcess::start("guarded_reader", {fabric, number, key});
    EXPECT_EQ(reader.read_line(), std::to_string(static_cast<int>(CopyResult::ok)));
    owner.write_line("guard");
    ASSERT_EQ(owner.read_line(), "guarded");
    for (int i = 0; i < 2; ++i) {
        reader.write_line("again");
        EXPECT_EQ(reader.read_line(), std::to_string(static_cast<int>(CopyResult::denied)));
    }
}

TEST(Transfer, StillReadsSharedMemoryOfAProcessThatIsGone) {
    const auto node = Node::join(fabric_of_test());
    Owner owner{*node, "shared"};
    ASSERT_NE(owner.entry, nullptr);
    const auto reach = reach_of(*owner.peer, owner.key, true);
    ASSERT_TRUE(reach);
    owner.process.kill_and_wait();
    std::vector<std::byte> memory(child_bytes);
    EXPECT_EQ(transfer(here(memory), *reach, child_bytes, *owner.peer), CopyResult::ok);
    EXPECT_EQ(memory[1], std::byte{13});
    EXPECT_EQ(reach_of(*owner.peer, owner.key, true)->direct, reach->direct);
}

}  // namespace
}  // namespace millrace::soft
