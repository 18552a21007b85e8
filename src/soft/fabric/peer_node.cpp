// A peer in another process. Finding it: connect to its socket (the kernel says who listens),
// look through that process's descriptors for the node memory, believe nothing that is not checked.
// Nothing comes of the connection: it is closed at once. Where the queue of connections is full,
// because its owner sleeps and somebody fills it, all processes of our user are looked through.
#include "fabric/peer_node.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "fabric/copy_asker.hpp"
#include "fabric/fabric_names.hpp"
#include "fabric/node_owner.hpp"
#include "layout/block_layout.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "regions/region_facts.hpp"
#include "system/bells.hpp"
#include "system/copy_rights.hpp"
#include "system/file_of_process.hpp"
#include "system/process_identity.hpp"
#include "system/remote_pages.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {
namespace {

using base::LogLevel;

/// Mapping offsets must be multiples of this: huge pages have their own.
std::uint64_t mapping_unit(int descriptor) noexcept {
    struct statfs filesystem {};
    if (::fstatfs(descriptor, &filesystem) == 0 && filesystem.f_type == HUGETLBFS_MAGIC) {
        return static_cast<std::uint64_t>(filesystem.f_bsize);
    }
    return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

class RemoteNode final : public PeerNode {
  public:
    RemoteNode(std::uint32_t number, pid_t pid, std::shared_ptr<Liveness> liveness)
        : PeerNode{number, pid, false}, liveness_{std::move(liveness)} {}

    ~RemoteNode() override { liveness_->forget(life_); }

    bool alive() const noexcept override { return !life_.gone.load(std::memory_order_acquire); }
    bool still_there() noexcept override { return life_.ask() && !is_ending(); }
    bool watch_from(int epoll) noexcept override { return liveness_->watch_from(epoll, life_); }

    bool same_process() noexcept override {
        if (!alive()) return false;
        const std::uint64_t now = base::ticks();
        if (now - confirmed_.load(std::memory_order_relaxed) < confirmation_ticks_) return true;
        if (!life_.ask()) return false;
        confirmed_.store(now, std::memory_order_relaxed);
        return true;
    }

    std::optional<Block> map_block(std::uint32_t index, std::uint32_t generation) override {
        if (index >= blocks_per_node) return std::nullopt;
        auto* entry =
            reinterpret_cast<DirectoryEntry*>(tables_.memory() + directory_offset) + index;
        const std::uint32_t now = entry->generation.load(std::memory_order_acquire);
        if (now == 0 || (generation != 0 && now != generation)) return std::nullopt;
        const std::uint64_t offset =
            std::atomic_ref{entry->block_offset}.load(std::memory_order_acquire);
        const std::uint64_t size =
            std::uint64_t{std::atomic_ref{entry->block_pages}.load(std::memory_order_acquire)} *
            page_size;
        if (offset < blocks_offset || offset % page_size != 0 || size == 0 || size > size_ ||
            offset > size_ - size) {
            return std::nullopt;
        }
        Mapping mapping{blocks_.get(), offset, size, PROT_READ | PROT_WRITE};
        if (!mapping || entry->generation.load(std::memory_order_acquire) != now) {
            return std::nullopt;
        }
        return Block{mapping.release(), size, index, now};
    }

    void unmap_block(const Block& block) noexcept override {
        if (block.memory != nullptr) ::munmap(block.memory, block.size);
    }

    const RegionEntry* region(std::uint32_t key) const noexcept override {
        return &regions()[index_of_key(key)];
    }

    std::optional<Reach> reach(const RegionFacts& facts, std::uint32_t key,
                               bool writable) override {
        const base::Uncancelled held;
        if (writable && (facts.access & IBV_ACCESS_LOCAL_WRITE) == 0) return std::nullopt;
        const Reach by_process{nullptr, facts.address, pid()};
        if (static_cast<RegionKind>(facts.kind) != RegionKind::shared_file) return by_process;

        const std::scoped_lock lock{mutex_};
        const MappedKey name{key, facts.key_word, writable};
        const auto known = mapped_.find(name);
        if (known != mapped_.end()) {
            // Its owner may say one thing and then another.
            if (known->second.length != facts.length) return std::nullopt;
            return Reach{known->second.first_byte(), 0, 0};
        }
        std::size_t skip = 0;
        Mapping mapping = map_region(pid(), facts, writable, skip);
        if (!mapping) return by_process;
        auto shared = std::make_shared<Mapping>(std::move(mapping));
        const auto [added, fresh] =
            mapped_.emplace(name, MappedRegion{std::move(shared), skip, facts.length});
        return Reach{added->second.first_byte(), 0, 0};
    }

    std::shared_ptr<std::byte> map(const RegionFacts& facts, std::uint32_t key) override {
        if (!is_shared_and_writable(facts) || !reach(facts, key, true)) return nullptr;
        const std::scoped_lock lock{mutex_};
        const auto known = mapped_.find({key, facts.key_word, true});
        if (known == mapped_.end()) return nullptr;
        return {known->second.mapping, known->second.first_byte()};
    }

    void retire_stale(std::vector<std::shared_ptr<void>>& retired) override {
        const std::scoped_lock lock{mutex_};
        retired.reserve(retired.size() + mapped_.size());
        std::erase_if(mapped_, [&](auto& mapped) {
            const auto& [key, word, writable] = mapped.first;
            if (region(key)->key_word.load(std::memory_order_acquire) == word) return false;
            retired.push_back(std::move(mapped.second.mapping));
            return true;
        });
    }

    std::shared_ptr<const Descriptor> bell(int descriptor_in_peer) noexcept override {
        const std::scoped_lock lock{mutex_};
        return life_.ask() ? bells_.open(pid(), descriptor_in_peer) : nullptr;
    }

    void members(const std::array<std::uint8_t, 16>& group,
                 std::vector<std::uint32_t>& found) const override {
        find_members(reinterpret_cast<const GroupEntry*>(tables_.memory() + group_table_offset),
                     number(), group, found);
    }
    void announce_membership() noexcept override {
        // Mapped for this moment only: it is the one page outside of blocks that is written.
        const Mapping page{blocks_.get(), membership_offset, page_size, PROT_READ | PROT_WRITE};
        if (!page) return;
        reinterpret_cast<Membership*>(page.memory())->epoch.fetch_add(1, std::memory_order_release);
    }

    void abandon() noexcept override {
        life_.gone.store(true, std::memory_order_release);
        life_.lifeline.close();
        blocks_.close();
    }

    AtomicLocks& atomic_locks() noexcept override { return *atomic_locks_; }

    bool pages_there(std::uint64_t address, std::size_t bytes) noexcept override {
        return pages_.there(pid(), address, bytes);
    }

    bool copies_refused() const noexcept override {
        return copies_refused_.load(std::memory_order_relaxed);
    }
    void note_copies_refused() noexcept override {
        copies_refused_.store(true, std::memory_order_relaxed);
    }
    bool cannot_copy() const noexcept override { return load_once(header().cannot_copy) != 0; }
    CopyResult ask_for_copy(const AskedCopy& wanted) noexcept override {
        return asker_.ask(*this, blocks_.get(), wanted);
    }

    /// The steps of connect_to_node that fill it in.
    [[nodiscard]] bool adopt(std::string_view fabric);
    void watch() { liveness_->watch(life_); }

  private:
    /// A process that is killed loses its memory first, then its descriptors, and only then do its
    /// sockets hang up: in between it has no program any more.
    [[nodiscard]] bool is_ending() const noexcept { return living_thread_of(pid()) == 0; }

    /// A key, its word, and whether to be written.
    using MappedKey = std::tuple<std::uint32_t, std::uint64_t, bool>;
    struct MappedRegion {
        std::shared_ptr<Mapping> mapping;
        std::size_t skip;
        std::uint64_t length;
        [[nodiscard]] std::byte* first_byte() const noexcept { return mapping->memory() + skip; }
    };

    const NodeHeader& header() const noexcept {
        return *reinterpret_cast<const NodeHeader*>(tables_.memory());
    }
    const RegionEntry* regions() const noexcept {
        return reinterpret_cast<const RegionEntry*>(tables_.memory() + region_table_offset);
    }
    [[nodiscard]] bool find_memory(std::string_view fabric);
    [[nodiscard]] bool try_memory(int descriptor, const std::string& object);
    [[nodiscard]] bool open_blocks(const NodeHeader& facts);
    [[nodiscard]] bool open_lifeline(const NodeHeader& facts);

    const std::shared_ptr<Liveness> liveness_;
    PeerLife life_;
    Descriptor blocks_;
    std::uint64_t size_ = 0;  ///< of that file
    Mapping tables_;          ///< header, directory, groups and region table, read only
    std::optional<AtomicLocks> atomic_locks_;
    std::atomic<bool> copies_refused_{false};
    RemotePages pages_;
    CopyAsker asker_;
    const std::uint64_t confirmation_ticks_ = base::ticks_in(std::chrono::milliseconds{10});
    std::atomic<std::uint64_t> confirmed_{base::ticks()};

    std::mutex mutex_;
    std::map<MappedKey, MappedRegion> mapped_;
    Bells bells_;
};

bool RemoteNode::adopt(std::string_view fabric) {
    life_.process = open_process(pid());
    // Where the system has no such call or refuses it, the lifeline alone tells of its end.
    if ((!life_.process && errno == ESRCH) || !find_memory(fabric)) return false;
    if (!may_copy(pid())) note_copies_refused();
    return life_.ask();
}

bool RemoteNode::find_memory(std::string_view fabric) {
    const std::string object = describe_node(fabric, number());
    const std::string wanted = link_to_tables(fabric, number());
    const auto directory_path = folder_of_descriptors(pid());
    const std::unique_ptr<DIR, int (*)(DIR*)> directory{::opendir(directory_path.data()),
                                                        &::closedir};
    if (!directory) {
        if (errno != ENOENT) {
            complain_of_node(
                number(), LogLevel::warn,
                "cannot look into process {} ({}): {}; let both run as the same user, and "
                "dumpable (no set-user-id program, no prctl(PR_SET_DUMPABLE, 0))",
                pid(), object, base::describe_errno(errno));
        }
        return false;
    }
    while (const dirent* entry = ::readdir(directory.get())) {
        const auto descriptor = number_of<int>(entry->d_name);
        if (descriptor && leads_to(pid(), *descriptor, wanted) && try_memory(*descriptor, object)) {
            return true;
        }
    }
    if (!is_ending()) {
        complain_of_node(number(), LogLevel::warn,
                         "process {} ({}) has no node memory that can be used", pid(), object);
    }
    return false;
}

bool RemoteNode::try_memory(int descriptor, const std::string& object) {
    const Descriptor file{::open(descriptor_path(pid(), descriptor).c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file || sealed_size(file.get()) < tables_size) return false;
    Mapping tables{file.get(), 0, tables_size, PROT_READ};
    if (!tables) return false;

    const auto& facts = *reinterpret_cast<const NodeHeader*>(tables.memory());
    if (facts.magic != node_magic || facts.node_number != number()) return false;
    if (facts.version != layout_version) {
        complain_of_node(
            number(), LogLevel::warn,
            "{} (process {}) has layout version {}, this library {}: use the same build in "
            "both",
            object, pid(), facts.version, layout_version);
        return false;
    }
    // In another pid namespace its own numbers mean something else; the socket told ours.
    if (facts.pid_namespace == own_pid_namespace() && facts.pid != pid()) return false;
    if (!open_blocks(facts) || !open_lifeline(facts)) return false;
    atomic_locks_.emplace(blocks_.get());
    tables_ = std::move(tables);
    asymmetric_fences_ = facts.membarrier == 1;
    identity_ = facts.identity;
    return true;
}

bool RemoteNode::open_blocks(const NodeHeader& facts) {
    blocks_ = open_file_of(pid(), load_once(facts.blocks_descriptor),
                           load_once(facts.blocks_device), load_once(facts.blocks_inode), O_RDWR);
    if (!blocks_) return false;
    size_ = sealed_size(blocks_.get());
    return size_ > blocks_offset;
}

bool RemoteNode::open_lifeline(const NodeHeader& facts) {
    const std::string path = descriptor_path(pid(), load_once(facts.lifeline_descriptor));
    const std::uint64_t inode = load_once(facts.lifeline_inode);
    const Descriptor look{::open(path.c_str(), O_PATH | O_CLOEXEC)};
    struct stat status {};
    if (!look || ::fstat(look.get(), &status) != 0 || !S_ISFIFO(status.st_mode) ||
        status.st_ino != inode) {
        return false;
    }
    life_.lifeline = Descriptor{::open(fmt::format("/proc/thread-self/fd/{}", look.get()).c_str(),
                                       O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    // A pipe that has had no writer since it was opened never hangs up: so the write end has to be
    // there still.
    return life_.lifeline && ::stat(path.c_str(), &status) == 0 && status.st_ino == inode;
}

}  // namespace

Mapping map_region(pid_t pid, const RegionFacts& facts, bool writable, std::size_t& skip) {
    const Descriptor file = open_file_of(pid, facts.descriptor, facts.device, facts.inode,
                                         writable ? O_RDWR : O_RDONLY);
    const std::uint64_t size = file ? sealed_size(file.get()) : 0;
    if (size == 0) return {};
    if (facts.file_offset > size || size - facts.file_offset < facts.length) return {};
    const std::uint64_t unit = mapping_unit(file.get());
    const std::uint64_t begin = facts.file_offset / unit * unit;
    skip = facts.file_offset - begin;
    const std::uint64_t bytes = (skip + facts.length + unit - 1) / unit * unit;
    // So that the first request to a small ring finds its pages mapped. A large region may have
    // pages that nobody has ever touched: those are left to who touches them.
    constexpr std::uint64_t small = std::uint64_t{64} << 10;
    return Mapping{file.get(), begin, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                   bytes <= small ? MAP_POPULATE : 0};
}

void find_members(const GroupEntry* table, std::uint32_t node,
                  const std::array<std::uint8_t, 16>& group, std::vector<std::uint32_t>& found) {
    for (std::uint32_t i = 0; i < groups_per_node; ++i) {
        const std::uint32_t member = table[i].member.load(std::memory_order_acquire);
        if (member == 0 || member > queue_pairs_per_node) continue;
        if (std::memcmp(table[i].group, group.data(), group.size()) == 0) {
            found.push_back(make_qpn(node, member - 1));
        }
    }
}

std::shared_ptr<PeerNode> connect_to_node(std::string_view fabric, std::uint32_t number,
                                          std::shared_ptr<Liveness> liveness, bool* is_free) {
    const Descriptor connection{
        ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!connection) {
        complain_of_node(number, LogLevel::error, "no socket to reach {}: {}",
                         describe_node(fabric, number), base::describe_errno(errno));
        return nullptr;
    }
    pid_t pid = 0;
    const NodeAddress address{::geteuid(), fabric, number};
    if (::connect(connection.get(), address.get(), address.length) == 0) {
        pid = pid_of_owner(connection.get(), fabric, number);
        if (pid <= 0) return nullptr;
    } else if (errno == EAGAIN) {
        pid = find_owner(fabric, number);
        if (pid <= 0) {
            complain_of_node(
                number, LogLevel::warn,
                "cannot reach {}: too many processes have connected to its socket, and no "
                "process of this user that can be looked into holds it",
                describe_node(fabric, number));
            return nullptr;
        }
    } else {
        if (errno != ECONNREFUSED) {
            complain_of_node(number, LogLevel::warn, "cannot reach {}: {}",
                             describe_node(fabric, number), base::describe_errno(errno));
        } else if (is_free != nullptr) {
            *is_free = true;
        }
        return nullptr;
    }
    auto node = std::make_shared<RemoteNode>(number, pid, std::move(liveness));
    if (!node->adopt(fabric)) {
        // A child of a dead process may hold its socket.
        if (is_free != nullptr && ::kill(pid, 0) != 0) *is_free = errno == ESRCH;
        return nullptr;
    }
    node->watch();
    return node;
}

}  // namespace millrace::soft
