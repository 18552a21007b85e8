// What lies in a node's shared memory (docs/soft/node.md): the tables, which its owner alone can
// write, and the blocks, which every process of its user can. Every field names its one writer.
// Peers of other builds may map this: a change of layout is a change of `layout_version`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace millrace::soft {

inline constexpr std::uint64_t node_magic = 0x31304544'4f4e524d;  // "MRNODE01"
inline constexpr std::uint32_t layout_version = 12;

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t page_size = 4096;

inline constexpr std::uint32_t max_node_number = 4095;
inline constexpr std::uint32_t queue_pairs_per_node = 4096;
/// Nodes on the wire share a port: each has the slot that its number leaves by this, none has 0.
inline constexpr std::uint32_t wire_slots = 64;
/// The first of them are queue pairs'; the others are receive pools, pages of news, copy boxes.
inline constexpr std::uint32_t blocks_per_node = 32768;
inline constexpr std::uint32_t regions_per_node = 65536;

/// In the file of tables, which begins with the header.
inline constexpr std::size_t directory_offset = std::size_t{64} << 10;
inline constexpr std::size_t group_table_offset = std::size_t{640} << 10;
inline constexpr std::size_t region_table_offset = std::size_t{1} << 20;
inline constexpr std::size_t tables_size = std::size_t{5} << 20;  // sparse

/// In the file of blocks, which begins with a copy of the header for those who find this file
/// alone (survey.cpp). Nobody believes it.
inline constexpr std::size_t membership_offset = page_size;
inline constexpr std::size_t blocks_offset = std::size_t{64} << 10;
inline constexpr std::size_t node_memory_size = std::size_t{64} << 30;  // sparse

/// Queue pair number: node << 12 | index.
[[nodiscard]] constexpr std::uint32_t make_qpn(std::uint32_t node, std::uint32_t index) noexcept {
    return node << 12 | index;
}
[[nodiscard]] constexpr std::uint32_t node_of_qpn(std::uint32_t qpn) noexcept {
    return (qpn >> 12) & 0xfff;
}
[[nodiscard]] constexpr std::uint32_t index_of_qpn(std::uint32_t qpn) noexcept {
    return qpn & 0xfff;
}

/// Keys: an index, between the halves of a salt, so that nobody guesses one. The upper half is
/// random, 1…127, so that no key is 0 or has bit 31 (hazard.hpp); the lower half counts on each
/// time, and is the program's to choose in a window's key.
[[nodiscard]] constexpr std::uint32_t make_key(std::uint32_t index, std::uint16_t salt) noexcept {
    return std::uint32_t{salt} >> 8 << 24 | index << 8 | (salt & 0xffU);
}
[[nodiscard]] constexpr std::uint32_t index_of_key(std::uint32_t key) noexcept {
    return key >> 8 & 0xffff;
}
static_assert(regions_per_node == 1U << 16);
[[nodiscard]] constexpr std::uint16_t salt_of_key(std::uint32_t key) noexcept {
    return static_cast<std::uint16_t>(key >> 24 << 8 | (key & 0xff));
}

struct NodeIdentity {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    friend bool operator==(const NodeIdentity&, const NodeIdentity&) = default;
};

/// Offset 0 of the tables. Written by the owner before its socket listens, except `closed`.
struct alignas(cache_line) NodeHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t node_number;
    NodeIdentity identity;              ///< random: no two nodes, ever, have the same
    std::int32_t pid;                   ///< in the owner's pid namespace
    std::uint32_t membarrier;           ///< 1: registered for GLOBAL_EXPEDITED and can call it
    std::uint64_t pid_namespace;        ///< inode of /proc/<pid>/ns/pid
    std::atomic<std::uint32_t> closed;  ///< 1: the device was closed in good order
    std::uint32_t cannot_copy;          ///< 1: the system refuses it process_vm_* altogether
    std::int32_t blocks_descriptor;     ///< the file of blocks: number in the owner's table, and
    std::int32_t lifeline_descriptor;   ///< likewise the pipe that hangs up when the node ends
    std::uint64_t blocks_device;        ///< st_dev, st_ino of the file
    std::uint64_t blocks_inode;
    std::uint64_t lifeline_inode;
};
static_assert(sizeof(NodeHeader) == 128);

/// One per block, at `directory_offset`, by index: a queue pair's is its own. Written by the owner;
/// `generation` last.
struct DirectoryEntry {
    std::atomic<std::uint32_t> generation;  ///< 0: free; else the block is that generation's
    std::uint32_t block_pages;
    std::uint64_t block_offset;  ///< in the file of blocks
};
static_assert(sizeof(DirectoryEntry) == 16);
/// Wakes the node's copy service (copy_service.hpp): raised by whoever asks it for something.
struct alignas(cache_line) CopyBell {
    std::atomic<std::uint32_t> rung;
    std::atomic<std::uint32_t> sleeps;  ///< 1: its thread sleeps on `rung`; written by the owner
};

/// At `membership_offset` of the blocks, alone in its page, which peers map writable.
struct Membership {
    std::atomic<std::uint32_t>
        epoch;  ///< raised by whoever attaches to a multicast group or leaves
    CopyBell copy_bell;
};

/// One per attached queue pair, at `group_table_offset`. Written by the owner; `member` last.
struct GroupEntry {
    std::uint8_t group[16];
    std::atomic<std::uint32_t> member;  ///< 1 + index of the queue pair; 0: free
    std::uint32_t unused[3];
};
static_assert(sizeof(GroupEntry) == 32);
inline constexpr std::uint32_t groups_per_node = 1024;
static_assert(directory_offset + blocks_per_node * sizeof(DirectoryEntry) <= group_table_offset);
static_assert(group_table_offset + groups_per_node * sizeof(GroupEntry) <= region_table_offset);

enum class RegionKind : std::uint32_t {
    private_memory = 0,  ///< peers reach it by process_vm_*
    shared_file = 1,     ///< peers may map descriptor/device/inode/file_offset
    nothing = 2,         ///< reads as zero, keeps nothing (ibv_alloc_null_mr)
};

/// One per region index. Written by the owner: `key_word` cleared first and stored last.
struct alignas(cache_line) RegionEntry {
    std::atomic<std::uint64_t> key_word;  ///< 0: invalid; else make_key_word
    std::uint64_t iova;                   ///< what work requests call its first byte
    std::uint64_t length;
    std::uint64_t address;    ///< the first byte in the owner's address space
    std::uint32_t access;     ///< ibv_access_flags
    std::uint32_t pd;         ///< protection domain number within the node, never 0
    std::int32_t descriptor;  ///< shared_file: number in the owner's descriptor table
    std::uint32_t device;     ///< shared_file: st_dev, st_ino of the file, offset of the first byte
    std::uint64_t inode;
    std::uint64_t file_offset : 62;
    std::uint64_t kind : 2;  ///< RegionKind
};
static_assert(sizeof(RegionEntry) == 64);
static_assert(region_table_offset + regions_per_node * sizeof(RegionEntry) <= tables_size);

/// In `access`: a memory window, whose key is for peers only.
inline constexpr std::uint32_t access_window = 1U << 31;
/// In `pd`: a window of type 2, which belongs to one queue pair and not to a protection domain.
inline constexpr std::uint32_t pd_is_queue_pair = 1U << 31;
inline constexpr std::uint32_t windows_per_queue_pair = 256;
[[nodiscard]] constexpr std::uint32_t make_window_pd(std::uint32_t slot,
                                                     std::uint32_t index) noexcept {
    return pd_is_queue_pair | slot << 12 | index;
}
[[nodiscard]] constexpr std::uint32_t slot_of_window_pd(std::uint32_t pd) noexcept {
    return (pd >> 12) % windows_per_queue_pair;
}

/// What an entry holds while its key is valid; so does a place in the block of the queue pair that
/// a window of type 2 belongs to. Keys come again, so it also says which of the node's
/// registrations and bindings it is: who has cached one compares the whole word.
[[nodiscard]] constexpr std::uint64_t make_key_word(std::uint32_t key,
                                                    std::uint64_t number) noexcept {
    return std::uint64_t{1} << 63 | number << 17 >> 1 | salt_of_key(key);
}
/// Of a word that lies at the key's index.
[[nodiscard]] constexpr bool is_word_of(std::uint64_t word, std::uint32_t key) noexcept {
    return word >> 63 != 0 && static_cast<std::uint16_t>(word) == salt_of_key(key);
}

}  // namespace millrace::soft
