// The tables that a node shows: nobody but their owner can write them, and the owner itself
// believes nothing that stands there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/fabric_names.hpp"
#include "fabric/node.hpp"
#include "soft/fabric_name.hpp"
#include "soft/shown_tables.hpp"
#include "support/child_process.hpp"

namespace millrace::soft {
namespace {

using test::ChildProcess;
using test::fabric_of_test;
using test::say;

/// A descriptor of the process that leads to a memory file of that name, opened anew; -1: none.
int reopen(const std::string& pid, const std::string& name, int flags) {
    const std::string wanted = "/memfd:" + name + " (deleted)";
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/" + pid + "/fd"}) {
        std::error_code error;
        if (std::filesystem::read_symlink(entry.path(), error).string() == wanted) {
            return ::open(entry.path().c_str(), flags | O_CLOEXEC);
        }
    }
    return -1;
}

/// Another process of the user, which tries everything on the tables of process `pid`; says which
/// ways there are, and what it has read there.
MILLRACE_CHILD(tables_forger) {
    const int file = reopen(arguments.at(0), arguments.at(1), O_RDWR);
    if (file < 0) {
        say("there is no such file");
        return 0;
    }
    std::string ways;
    constexpr auto place = static_cast<off_t>(region_table_offset);
    constexpr std::uint64_t lie = 0x4242424242424242;
    if (::mmap(nullptr, tables_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED) {
        ways += " mmap";
    }
    void* const seen = ::mmap(nullptr, tables_size, PROT_READ, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED) {
        say("they cannot even be read");
        return 0;
    }
    if (::mprotect(seen, tables_size, PROT_READ | PROT_WRITE) == 0) ways += " mprotect";
    if (::pwrite(file, &lie, sizeof lie, place) >= 0) ways += " pwrite";
    if (::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place, page_size) == 0) {
        ways += " punch";
    }
    if (::madvise(static_cast<std::byte*>(seen) + place, page_size, MADV_REMOVE) == 0) {
        ways += " madvise";
    }
    if (::ftruncate(file, 0) == 0) ways += " truncate";
    const int again = reopen(arguments.at(0), arguments.at(1), O_RDWR | O_TRUNC);
    if (again >= 0) ways += " O_TRUNC";
    const auto& header = *static_cast<const NodeHeader*>(seen);
    say(ways.empty() && header.magic == node_magic ? "none" : ways);
    return 0;
}

TEST(NodeTables, NoOtherProcessOfTheUserCanWrite) {
    const auto node = Node::join(fabric_of_test());
    const auto forger = [&](const std::string& name) {
        ChildProcess child =
            ChildProcess::start("tables_forger", {std::to_string(::getpid()), name});
        return child.read_line();
    };
    EXPECT_EQ(forger(tables_name(fabric_of_test(), node->number())), "none");
    // The same steps lead somewhere with the blocks, so that it is not the steps that fail.
    const auto blocks = forger(blocks_name(fabric_of_test(), node->number()));
    EXPECT_EQ(blocks, " mmap mprotect pwrite punch madvise");
}

TEST(NodeTables, WhatIsForgedThereGivesNoRightInTheOwnersProcess) {
    const auto node = Node::join(fabric_of_test());
    const auto self = node->peer(node->number());
    std::vector<std::byte> memory(64);
    LocalRegion region;
    ASSERT_EQ(node->regions().add(memory.data(), 64, 0, IBV_ACCESS_REMOTE_READ, 1, region), 0);
    RegionEntry* const shown = test::shown_regions(fabric_of_test());
    ASSERT_NE(shown, nullptr);
    ASSERT_TRUE(is_word_of(shown[index_of_key(region.key)].key_word.load(), region.key));
    shown[index_of_key(region.key)].length = 1 << 20;
    EXPECT_EQ(node->regions().valid(region.key)->length, 64U);
    EXPECT_EQ(self->region(region.key)->length, 64U);
    const std::uint32_t forged = make_key(77, 0x101);
    shown[77].key_word.store(make_key_word(forged, 1));
    EXPECT_EQ(node->regions().valid(forged), nullptr);
    EXPECT_EQ(self->region(forged)->key_word.load(), 0U);
}

TEST(NodeTables, WhatIsForgedThereLeadsToNoBlockInTheOwnersProcess) {
    const auto node = Node::join(fabric_of_test());
    const auto self = node->peer(node->number());
    const auto one = node->allocate_block(page_size);
    const auto other = node->allocate_block(page_size);
    ASSERT_TRUE(one && other);
    std::byte* const tables = test::shown_tables(fabric_of_test());
    ASSERT_NE(tables, nullptr);
    auto* const directory = reinterpret_cast<DirectoryEntry*>(tables + directory_offset);
    ASSERT_EQ(directory[one->index].generation.load(), one->generation);
    directory[one->index].block_offset = directory[other->index].block_offset;
    directory[one->index].generation.store(one->generation + 1);
    const auto found = self->map_block(one->index, 0);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->memory, one->memory);
    EXPECT_EQ(found->generation, one->generation);
    self->unmap_block(*found);
    node->free_block(*one, false);
    node->free_block(*other, false);
}

}  // namespace
}  // namespace millrace::soft
