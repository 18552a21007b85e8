// Nodes: joining a fabric, blocks, and what is left when a process is gone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "completion/ringing.hpp"
#include "fabric/fabric.hpp"
#include "fabric/fabric_names.hpp"
#include "fabric/node.hpp"
#include "millrace/base/error.hpp"
#include "soft/fabric_name.hpp"
#include "support/child_process.hpp"
#include "system/process_identity.hpp"

namespace millrace::soft {
namespace {

using test::ChildProcess;
using test::fabric_of_test;
using test::hear;
using test::say;

/// Joins the fabric, tells its node number, stays until told otherwise.
MILLRACE_CHILD(fabric_member) {
    const auto node = Node::join(arguments.at(0));
    say(std::to_string(node->number()));
    while (auto line = hear()) {
        if (*line == "block") {
            const auto block = node->allocate_block(3 * page_size);
            std::memcpy(block->memory, "from child", 11);
            say(std::to_string(block->index) + " " + std::to_string(block->generation));
        } else if (*line == "close") {
            break;
        } else if (*line == "exec") {
            ::execlp("sleep", "sleep", "60", nullptr);
        } else if (*line == "fork") {
            if (::fork() == 0) {
                say(std::to_string(::getpid()));
                ::poll(nullptr, 0, 60'000);
                ::_exit(0);
            }
        }
    }
    return 0;
}

ChildProcess start_member(const std::string& fabric, std::uint32_t& number) {
    ChildProcess child = ChildProcess::start("fabric_member", {fabric});
    const auto line = child.read_line();
    number = line ? static_cast<std::uint32_t>(std::stoul(*line)) : 0;
    EXPECT_NE(number, 0u) << "the child could not join";
    return child;
}

/// Waits until `node` has noticed a death.
bool notices_a_death(Node& node) {
    pollfd sign{node.liveness_descriptor(), POLLIN, 0};
    return ::poll(&sign, 1, 20'000) == 1 && node.check_liveness();
}

bool named_in_proc_net_unix(const std::string& name) {
    std::ifstream sockets{"/proc/net/unix"};
    for (std::string line; std::getline(sockets, line);) {
        if (line.find("@" + name) != std::string::npos) return true;
    }
    return false;
}

TEST(FabricNode, IsOnePerProcessAndFabric) {
    const auto node = Node::join(fabric_of_test());
    EXPECT_EQ(Node::join(fabric_of_test()), node);
    const auto other = Node::join(fabric_of_test() + ".other");
    EXPECT_NE(other, node);
    EXPECT_EQ(other->number(), 1u);
    EXPECT_FALSE(other->identity() == node->identity());
}

TEST(FabricNode, RefusesFabricNamesThatCannotBeNames) {
    for (const std::string& name :
         {std::string{}, std::string{"a/b"}, std::string{"white space"}, std::string(65, 'x')}) {
        EXPECT_THROW((void)Node::join(name), base::Error) << name;
    }
    EXPECT_NO_THROW((void)Node::join("-._9" + std::string(60, 'x')));
}

TEST(FabricNode, GivesTheNumberBackWhenClosed) {
    const std::string fabric = fabric_of_test();
    EXPECT_EQ(Node::join(fabric)->number(), 1u);
    EXPECT_EQ(Node::join(fabric)->number(), 1u);
}

TEST(FabricNode, GivesTheNumberBackWhenKilled) {
    const std::string fabric = fabric_of_test();
    const auto node = Node::join(fabric);
    std::uint32_t number = 0;
    {
        ChildProcess child = start_member(fabric, number);
        EXPECT_EQ(number, 2u);
        EXPECT_TRUE(child.kill_and_wait().killed_by(SIGKILL));
    }
    ChildProcess next = start_member(fabric, number);
    EXPECT_EQ(number, 2u);
}

TEST(FabricNode, LeavesNothingBehindWhenKilled) {
    const std::string fabric = fabric_of_test();
    const auto shared_memory = [] {
        std::set<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator{"/dev/shm"}) {
            if (entry.path().string().find("millrace") != std::string::npos) {
                names.insert(entry.path());
            }
        }
        return names;
    };
    const auto before = shared_memory();
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric, number);
    child.write_line("block");
    ASSERT_TRUE(child.read_line());
    EXPECT_TRUE(named_in_proc_net_unix("millrace/" + std::to_string(::geteuid()) + "/" + fabric));
    child.kill_and_wait();
    EXPECT_FALSE(named_in_proc_net_unix("millrace/" + std::to_string(::geteuid()) + "/" + fabric));
    EXPECT_EQ(shared_memory(), before);
}

TEST(FabricNode, GivesOutZeroedBlocksAgainAndAgain) {
    const auto node = Node::join(fabric_of_test());
    const auto zeroed = [](const Block& block) {
        for (std::size_t i = 0; i < block.size; ++i) {
            if (block.memory[i] != std::byte{0}) return false;
        }
        return true;
    };
    std::set<std::pair<std::uint32_t, std::uint32_t>> names;
    for (int round = 0; round < 3 * static_cast<int>(queue_pairs_per_node); ++round) {
        const auto block = node->allocate_block(5000);
        ASSERT_TRUE(block) << std::strerror(errno);
        ASSERT_EQ(block->size, 2 * page_size);
        ASSERT_NE(block->generation, 0u);
        ASSERT_TRUE(zeroed(*block));
        ASSERT_TRUE(names.emplace(block->index, block->generation).second);
        std::memset(block->memory, 0xff, block->size);
        node->free_block(*block, false);
    }
}

TEST(FabricNode, ReportsWhenNoBlockIsLeft) {
    const auto node = Node::join(fabric_of_test());
    std::vector<Block> blocks;
    for (std::uint32_t i = 0; i < queue_pairs_per_node; ++i) {
        auto block = node->allocate_block(1);
        ASSERT_TRUE(block);
        blocks.push_back(*block);
    }
    errno = 0;
    EXPECT_FALSE(node->allocate_block(1));
    EXPECT_EQ(errno, ENOMEM);
    node->free_block(blocks[7], false);
    const auto again = node->allocate_block(1);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->index, blocks[7].index);
    EXPECT_EQ(again->generation, blocks[7].generation + 1);
    const auto other = node->allocate_block(1, BlockUse::other);
    ASSERT_TRUE(other) << "what is no queue pair's takes no queue pair's index";
    EXPECT_GE(other->index, queue_pairs_per_node);
    const auto self = node->peer(node->number());
    const auto mapped = self->map_block(other->index, other->generation);
    ASSERT_TRUE(mapped);
    self->unmap_block(*mapped);
    node->free_block(*other, false);
    EXPECT_FALSE(node->allocate_block(1)) << "and gives none back";
    node->free_block(blocks[8], true);
    EXPECT_FALSE(node->allocate_block(1)) << "a quarantined index must not come back";
    errno = 0;
    EXPECT_FALSE(Node::join(fabric_of_test() + ".2")->allocate_block(node_memory_size));
    EXPECT_EQ(errno, ENOMEM);
}

TEST(FabricNode, UsesMemoryOnlyForWhatExists) {
    const auto node = Node::join(fabric_of_test());
    const std::string wanted = "/memfd:" + blocks_name(fabric_of_test(), node->number());
    const auto used = [&] {
        for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
            std::error_code error;
            if (std::filesystem::read_symlink(entry.path(), error).string().starts_with(wanted)) {
                struct stat status {};
                EXPECT_EQ(::stat(entry.path().c_str(), &status), 0);
                return static_cast<std::size_t>(status.st_blocks) * 512;
            }
        }
        ADD_FAILURE() << "no " << wanted;
        return std::size_t{0};
    };
    const std::size_t empty = used();
    EXPECT_LE(empty, 64 * page_size);
    const auto small = node->allocate_block(64 << 10);
    ASSERT_TRUE(small);
    EXPECT_GE(used(), empty + (64 << 10)) << "allocated whole";
    node->free_block(*small, false);
    EXPECT_LE(used(), empty + 4 * page_size);
    const auto large = node->allocate_block(1 << 20);
    ASSERT_TRUE(large);
    EXPECT_LE(used(), empty + 8 * page_size) << "as it is used";
    std::memset(large->memory, 1, large->size);
    EXPECT_GE(used(), empty + (1 << 20));
    node->free_block(*large, false);
    EXPECT_LE(used(), empty + 4 * page_size);
}

TEST(FabricNode, CanBeReachedAgainAfterThousandsOfPeersHaveGone) {
    const auto node = Node::join(fabric_of_test());
    const NodeAddress address{::geteuid(), fabric_of_test(), node->number()};
    const auto connect = [&] {
        const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (::connect(socket, address.get(), address.length) == 0) return socket;
        EXPECT_EQ(errno, EAGAIN);
        ::close(socket);
        return -1;
    };
    int gone = 0;
    for (int socket = connect(); socket >= 0 && gone < 100'000; socket = connect(), ++gone) {
        ::close(socket);
    }
    EXPECT_GT(gone, 0);
    EXPECT_LT(gone, 100'000) << "the queue was expected to fill up";
    ASSERT_TRUE(node->allocate_block(1));
    const int next = connect();
    EXPECT_GE(next, 0) << "those that have gone must have been taken out";
    ::close(next);
}

TEST(FabricNode, IsNotInheritedByFork) {
    const std::string fabric = fabric_of_test();
    const auto node = Node::join(fabric);
    const auto block = node->allocate_block(1);
    ASSERT_TRUE(block);
    const pid_t child = ::fork();
    if (child == 0) {
        int wrong = 0;
        if (node->usable()) wrong |= 1;
        errno = 0;
        if (node->allocate_block(1) || errno != ENODEV) wrong |= 2;
        LocalRegion region;
        int value = 0;
        if (node->regions().add(&value, sizeof value, 0, 0, 1, region) != ENODEV) wrong |= 4;
        if (node->peer(1) != nullptr) wrong |= 8;
        node->free_block(*block, false);
        if (Node::join(fabric)->number() != 2) wrong |= 16;
        ::_exit(wrong);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_TRUE(node->usable());
    EXPECT_TRUE(node->peer(1)->map_block(block->index, block->generation))
        << "the child must not have freed its parent's block";
    EXPECT_TRUE(
        named_in_proc_net_unix("millrace/" + std::to_string(::geteuid()) + "/" + fabric + "/1"));
}

TEST(FabricNode, SkipsANumberThatAnotherUserSquatsOn) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
    const std::string fabric = fabric_of_test();
    int ready[2];
    int stay[2];
    ASSERT_EQ(::pipe(ready), 0);
    ASSERT_EQ(::pipe(stay), 0);
    const pid_t squatter = ::fork();
    if (squatter == 0) {
        ::close(stay[1]);
        const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const NodeAddress address{0, fabric, 1};
        char answer = ::setuid(65534) == 0 && ::bind(socket, address.get(), address.length) == 0 &&
                              ::listen(socket, 1) == 0
                          ? 'y'
                          : 'n';
        if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
        char end;
        ::_exit(::read(stay[0], &end, 1) == 0 ? 0 : 1);
    }
    char answer = 0;
    ASSERT_EQ(::read(ready[0], &answer, 1), 1);
    ASSERT_EQ(answer, 'y');
    const auto node = Node::join(fabric);
    EXPECT_EQ(node->number(), 2u);
    EXPECT_EQ(node->peer(1), nullptr) << "another user's node is not to be trusted";
    for (const int descriptor : {ready[0], ready[1], stay[0], stay[1]}) ::close(descriptor);
    EXPECT_EQ(::waitpid(squatter, nullptr, 0), squatter);
}

// ---------------------------------------------------------------------------------------------

TEST(FabricPeer, IsNullWhereNobodyIs) {
    const auto node = Node::join(fabric_of_test());
    EXPECT_EQ(node->peer(0), nullptr);
    EXPECT_EQ(node->peer(2), nullptr);
    EXPECT_EQ(node->peer(max_node_number), nullptr);
    EXPECT_EQ(node->peer(max_node_number + 1), nullptr);
}

TEST(FabricPeer, IsTheSameObjectWhileItLives) {
    const auto node = Node::join(fabric_of_test());
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric_of_test(), number);
    const auto peer = node->peer(number);
    ASSERT_NE(peer, nullptr);
    EXPECT_EQ(peer->number(), number);
    EXPECT_EQ(peer->pid(), child.pid());
    EXPECT_FALSE(peer->is_self());
    EXPECT_TRUE(peer->alive());
    EXPECT_TRUE(peer->same_process());
    EXPECT_EQ(peer->asymmetric_fences(), node->membarrier());
    EXPECT_EQ(node->peer(number), peer);
}

TEST(FabricPeer, MapsTheBlockThatItsProcessMade) {
    const auto node = Node::join(fabric_of_test());
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric_of_test(), number);
    const auto peer = node->peer(number);
    ASSERT_NE(peer, nullptr);
    EXPECT_FALSE(peer->map_block(0, 0)) << "there is no queue pair yet";
    child.write_line("block");
    std::istringstream facts{child.read_line().value_or("")};
    std::uint32_t index = 0;
    std::uint32_t generation = 0;
    ASSERT_TRUE(facts >> index >> generation);
    const auto block = peer->map_block(index, generation);
    ASSERT_TRUE(block);
    EXPECT_EQ(block->size, 3 * page_size);
    EXPECT_STREQ(reinterpret_cast<const char*>(block->memory), "from child");
    EXPECT_TRUE(peer->map_block(index, 0)) << "0: whatever generation it is";
    EXPECT_FALSE(peer->map_block(index, generation + 1));
    EXPECT_FALSE(peer->map_block(index + 1, 0));
    EXPECT_FALSE(peer->map_block(blocks_per_node, 0));
    child.kill_and_wait();
    EXPECT_STREQ(reinterpret_cast<const char*>(block->memory), "from child")
        << "a mapping outlives its owner";
    peer->unmap_block(*block);
}

TEST(FabricPeer, KeepsOwnBlocksMappedUntilTheyAreUnmapped) {
    const auto node = Node::join(fabric_of_test());
    const auto self = node->peer(node->number());
    ASSERT_NE(self, nullptr);
    EXPECT_TRUE(self->is_self());
    EXPECT_TRUE(self->alive());
    EXPECT_EQ(self->identity(), node->identity());
    const auto block = node->allocate_block(page_size);
    const auto seen = self->map_block(block->index, block->generation);
    ASSERT_TRUE(seen);
    EXPECT_EQ(seen->memory, block->memory);
    node->free_block(*block, false);
    EXPECT_EQ(seen->memory[0], std::byte{0}) << "still mapped, and punched out";
    self->unmap_block(*seen);
    EXPECT_FALSE(self->map_block(block->index, 0));
}

TEST(FabricPeer, IsNoticedToBeGoneWhenKilled) {
    const auto node = Node::join(fabric_of_test());
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric_of_test(), number);
    const auto peer = node->peer(number);
    ASSERT_NE(peer, nullptr);
    EXPECT_FALSE(node->check_liveness());
    child.kill_and_wait();
    EXPECT_TRUE(notices_a_death(*node));
    EXPECT_FALSE(peer->alive());
    EXPECT_FALSE(peer->same_process());
    EXPECT_FALSE(node->check_liveness()) << "a death is news only once";
    EXPECT_EQ(node->peer(number), nullptr);
}

TEST(FabricPeer, IsNoticedToBeGoneWhenItsNodeIsClosed) {
    const auto node = Node::join(fabric_of_test());
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric_of_test(), number);
    const auto peer = node->peer(number);
    ASSERT_NE(peer, nullptr);
    child.write_line("close");
    EXPECT_TRUE(notices_a_death(*node));
    EXPECT_FALSE(peer->alive());
}

TEST(FabricPeer, TellsAnEpollOfItsEndUntilThatIsNoticed) {
    const auto node = Node::join(fabric_of_test());
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric_of_test(), number);
    const auto peer = node->peer(number);
    ASSERT_NE(peer, nullptr);
    const Descriptor epoll{::epoll_create1(EPOLL_CLOEXEC)};
    const auto is_readable = [&](int milliseconds) {
        pollfd sign{epoll.get(), POLLIN, 0};
        return ::poll(&sign, 1, milliseconds) == 1;
    };
    ASSERT_TRUE(peer->watch_from(epoll.get()));
    ASSERT_TRUE(peer->watch_from(epoll.get())) << "of two connections to one peer";
    EXPECT_FALSE(is_readable(0));
    child.kill_and_wait();
    EXPECT_TRUE(is_readable(20'000));
    EXPECT_TRUE(notices_a_death(*node));
    EXPECT_FALSE(is_readable(0)) << "it would keep its program awake for ever";
    EXPECT_TRUE(peer->watch_from(epoll.get()));
    EXPECT_FALSE(is_readable(0)) << "the end is known already";
}

TEST(FabricPeer, IsNoticedToBeGoneWhenItExecutesAnotherProgram) {
    const auto node = Node::join(fabric_of_test());
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric_of_test(), number);
    const auto peer = node->peer(number);
    ASSERT_NE(peer, nullptr);
    child.write_line("exec");
    EXPECT_TRUE(notices_a_death(*node));
    EXPECT_FALSE(peer->alive());
    EXPECT_EQ(node->peer(number), nullptr);
}

TEST(FabricPeer, IsNoticedToBeGoneThoughItsForkedChildLives) {
    const auto node = Node::join(fabric_of_test());
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric_of_test(), number);
    const auto peer = node->peer(number);
    ASSERT_NE(peer, nullptr);
    child.write_line("fork");
    const pid_t grandchild = std::stoi(child.read_line().value_or("0"));
    ASSERT_GT(grandchild, 0);
    EXPECT_TRUE(peer->alive());
    child.kill_and_wait();
    EXPECT_TRUE(notices_a_death(*node));
    EXPECT_FALSE(peer->alive());
    EXPECT_EQ(::kill(grandchild, 0), 0) << "it was to live through this";
    std::uint32_t next = 0;
    ChildProcess successor = start_member(fabric_of_test(), next);
    EXPECT_EQ(next, number) << "the child must not hold its parent's number";
    ::kill(grandchild, SIGKILL);
}

TEST(FabricPeer, IsReplacedWhenAnotherProcessTakesItsNumber) {
    const auto node = Node::join(fabric_of_test());
    std::uint32_t number = 0;
    ChildProcess child = start_member(fabric_of_test(), number);
    const auto peer = node->peer(number);
    ASSERT_NE(peer, nullptr);
    child.kill_and_wait();
    std::uint32_t again = 0;
    ChildProcess next = start_member(fabric_of_test(), again);
    ASSERT_EQ(again, number);
    const auto replaced = node->peer(number);
    ASSERT_NE(replaced, nullptr);
    EXPECT_NE(replaced, peer);
    EXPECT_EQ(replaced->pid(), next.pid());
    EXPECT_FALSE(replaced->identity() == peer->identity());
    EXPECT_TRUE(replaced->alive());
}

/// Holds node number 1's name and memfds with the right names, and something wrong with it all.
MILLRACE_CHILD(fabric_impostor) {
    const std::string& fabric = arguments.at(0);
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const NodeAddress address{::geteuid(), fabric, 1};
    if (::bind(socket, address.get(), address.length) != 0 || ::listen(socket, 9) != 0) return 1;
    const std::string& fault = arguments.at(1);
    const auto file = [&](const std::string& name, off_t size) {
        const int memory = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
        return ::ftruncate(memory, size) == 0 ? memory : -1;
    };
    const int tables = file(tables_name(fabric, 1), fault == "short" ? 100 : tables_size);
    const int blocks = file(blocks_name(fabric, 1), fault == "no room" ? 100 : 64 << 20);
    int lifeline[2];
    if (tables < 0 || blocks < 0 || ::pipe(lifeline) != 0) return 1;
    NodeHeader header{};
    header.magic = fault == "garbage" ? 0x4242424242424242 : node_magic;
    header.version = layout_version + (fault == "version" ? 1u : 0u);
    header.node_number = 1;
    header.pid = ::getpid() + (fault == "pid" ? 1 : 0);
    struct stat status {};
    if (::stat("/proc/self/ns/pid", &status) != 0) return 1;
    header.pid_namespace = status.st_ino;
    if (::fstat(blocks, &status) != 0) return 1;
    header.blocks_descriptor = fault == "blocks" ? tables : blocks;
    header.blocks_device = status.st_dev;
    header.blocks_inode = status.st_ino;
    if (::fstat(lifeline[1], &status) != 0) return 1;
    header.lifeline_descriptor = fault == "lifeline" ? blocks : lifeline[1];
    header.lifeline_inode = status.st_ino + (fault == "another pipe" ? 1 : 0);
    if (::pwrite(tables, &header, sizeof header, 0) < 0) return 1;
    if (fault != "unsealed") ::fcntl(tables, F_ADD_SEALS, F_SEAL_SHRINK);
    if (fault != "blocks unsealed") ::fcntl(blocks, F_ADD_SEALS, F_SEAL_SHRINK);
    say("ready");
    (void)hear();
    return 0;
}

TEST(FabricPeer, IsRefusedWhenItsMemoryIsNotANodes) {
    for (const char* fault : {"garbage", "short", "version", "pid", "unsealed", "no room", "blocks",
                              "blocks unsealed", "lifeline", "another pipe", "none"}) {
        std::string fabric = fabric_of_test() + "-" + fault;
        std::replace(fabric.begin(), fabric.end(), ' ', '-');
        ChildProcess impostor = ChildProcess::start("fabric_impostor", {fabric, fault});
        ASSERT_EQ(impostor.read_line(), "ready");
        const auto node = Node::join(fabric);
        EXPECT_EQ(node->number(), 2u);
        EXPECT_EQ(node->peer(1) != nullptr, std::string{fault} == "none") << fault;
    }
}

TEST(FabricPeer, IsFoundAndWatchedThoughItsQueueOfConnectionsIsFull) {
    const auto node = Node::join(fabric_of_test());
    for (const char* end : {"exec", "close", "kill"}) {
        std::uint32_t number = 0;
        ChildProcess child = start_member(fabric_of_test(), number);
        const NodeAddress address{::geteuid(), fabric_of_test(), number};
        int error = 0;
        for (int i = 0; i < 100'000 && error == 0; ++i) {
            const Descriptor one{
                ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
            if (::connect(one.get(), address.get(), address.length) != 0) error = errno;
        }
        ASSERT_EQ(error, EAGAIN);
        const auto peer = node->peer(number);
        ASSERT_NE(peer, nullptr) << end;
        EXPECT_EQ(peer->pid(), child.pid());
        EXPECT_TRUE(peer->still_there());
        if (std::string{end} == "kill") {
            child.kill_and_wait();
        } else {
            child.write_line(end);
        }
        EXPECT_TRUE(notices_a_death(*node)) << end;
        EXPECT_FALSE(peer->alive()) << end;
        child.kill();
    }
}

TEST(FabricPeer, OpensThePipeThatANumberNamesNow) {
    const auto node = Node::join(fabric_of_test());
    const auto self = node->peer(node->number());
    const Descriptor first = new_bell();
    const auto bell = self->bell(first.get());
    ASSERT_NE(bell, nullptr);
    EXPECT_EQ(self->bell(first.get()), bell) << "shared";
    ring_bell(bell->get());
    EXPECT_TRUE(drain_bell(first.get()));

    const Descriptor second = new_bell();
    // The number now names another pipe.
    ASSERT_EQ(::dup2(second.get(), first.get()), first.get());
    const auto other = self->bell(first.get());
    ASSERT_NE(other, nullptr);
    EXPECT_NE(other, bell);
    ring_bell(other->get());
    EXPECT_TRUE(drain_bell(second.get()));

    const Descriptor file{::memfd_create("no pipe", MFD_CLOEXEC)};
    EXPECT_EQ(self->bell(file.get()), nullptr);
    EXPECT_EQ(self->bell(-1), nullptr);
}

}  // namespace
}  // namespace millrace::soft
