#include "fabric/node_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>

#include "fabric/fabric_names.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "system/copy_rights.hpp"
#include "system/process_identity.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace millrace::soft {
namespace {

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// A node with less room for blocks is not worth having.
constexpr std::uint64_t smallest_size = std::uint64_t{32} << 20;

/// Blocks up to here have all their memory from the beginning.
constexpr std::uint64_t largest_allocated = std::uint64_t{128} << 10;

constexpr std::string_view attempt = "make the soft device's node memory";

/// The whole of it, or what the limit on file sizes allows: exceeding that is a deadly signal.
std::uint64_t allowed_size() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return node_memory_size;
    }
    return std::min<std::uint64_t>(node_memory_size, limit.rlim_cur / page_size * page_size);
}

NodeIdentity random_identity(std::string_view object) {
    NodeIdentity identity;
    if (::getrandom(&identity, sizeof identity, 0) != ssize_t{sizeof identity}) {
        base::throw_errno(errno, std::string{attempt}, std::string{object});
    }
    return identity;
}

Descriptor make_file(const std::string& name, std::uint64_t size, const std::string& object) {
    Descriptor file{::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (!file || ::ftruncate(file.get(), static_cast<off_t>(size)) != 0) {
        base::throw_errno(errno, std::string{attempt}, object);
    }
    return file;
}

/// Peers open its read end through /proc; nobody ever writes.
Descriptor make_lifeline(const std::string& object) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        base::throw_errno(errno, std::string{attempt}, object);
    }
    const Descriptor reading{ends[0]};
    return Descriptor{ends[1]};
}

}  // namespace

NodeMemory::NodeMemory(std::string_view fabric, std::uint32_t number, bool membarrier)
    : membarrier_{membarrier},
      pid_{::getpid()},
      size_{allowed_size()},
      generations_(blocks_per_node, 0) {
    const std::string object = describe_node(fabric, number);
    if (size_ < smallest_size) {
        throw base::Error{base::ErrorCode::resource_exhausted, std::string{attempt}, object,
                          fmt::format("files may have at most {} bytes here", size_),
                          "raise the limit on file sizes (ulimit -f)"};
    }
    identity_ = random_identity(object);
    lifeline_ = make_lifeline(object);
    tables_file_ = make_file(tables_name(fabric, number), tables_size, object);
    // The one mapping that can ever be written is made before the seal: whoever opens the file
    // through /proc may only read it. (Before Linux 5.1 there is no such seal.)
    tables_ = Mapping{tables_file_.get(), 0, tables_size, PROT_READ | PROT_WRITE};
    if (!tables_ ||
        (::fcntl(tables_file_.get(), F_ADD_SEALS, size_seals | F_SEAL_FUTURE_WRITE) != 0 &&
         ::fcntl(tables_file_.get(), F_ADD_SEALS, size_seals) != 0)) {
        base::throw_errno(errno, std::string{attempt}, object);
    }
    file_ = make_file(blocks_name(fabric, number), size_, object);
    first_pages_ = Mapping{file_.get(), 0, blocks_offset, PROT_READ | PROT_WRITE};
    if (!first_pages_ || ::fcntl(file_.get(), F_ADD_SEALS, size_seals) != 0) {
        base::throw_errno(errno, std::string{attempt}, object);
    }
    free_extents_.emplace(blocks_offset, size_ - blocks_offset);
    atomic_locks_.emplace(file_.get());

    if (own_pid_namespace() == 0) {
        throw base::Error{base::ErrorCode::unsupported, std::string{attempt}, object,
                          "/proc cannot be read", "mount /proc"};
    }
    fill_in(*new (tables_.memory()) NodeHeader{}, number);
    fill_in(*new (first_pages_.memory()) NodeHeader{}, number);
}

void NodeMemory::fill_in(NodeHeader& facts, std::uint32_t number) const noexcept {
    facts.version = layout_version;
    facts.node_number = number;
    facts.identity = identity_;
    facts.pid = pid_;
    facts.membarrier = membarrier_ ? 1 : 0;
    facts.pid_namespace = own_pid_namespace();
    facts.cannot_copy = may_copy(pid_) ? 0 : 1;
    struct stat status {};
    if (::fstat(file_.get(), &status) == 0) {
        facts.blocks_descriptor = file_.get();
        facts.blocks_device = status.st_dev;
        facts.blocks_inode = status.st_ino;
    }
    if (::fstat(lifeline_.get(), &status) == 0) {
        facts.lifeline_descriptor = lifeline_.get();
        facts.lifeline_inode = status.st_ino;
    }
    facts.magic = node_magic;
}

NodeHeader& NodeMemory::header() const noexcept {
    return *reinterpret_cast<NodeHeader*>(tables_.memory());
}

void NodeMemory::end() noexcept {
    header().closed.store(1, std::memory_order_release);
    lifeline_.close();
}

void NodeMemory::abandon() noexcept {
    tables_file_.close();
    file_.close();
    lifeline_.close();
}

GroupEntry* NodeMemory::groups() const noexcept {
    return reinterpret_cast<GroupEntry*>(tables_.memory() + group_table_offset);
}
Membership& NodeMemory::membership() const noexcept {
    return *reinterpret_cast<Membership*>(first_pages_.memory() + membership_offset);
}
RegionEntry* NodeMemory::regions() const noexcept {
    return reinterpret_cast<RegionEntry*>(tables_.memory() + region_table_offset);
}

DirectoryEntry& NodeMemory::directory(std::uint32_t index) const noexcept {
    return reinterpret_cast<DirectoryEntry*>(tables_.memory() + directory_offset)[index];
}

std::optional<Block> NodeMemory::allocate(std::size_t size, BlockUse use) {
    const std::scoped_lock lock{mutex_};
    if (size == 0 || size > size_) {
        errno = size == 0 ? EINVAL : ENOMEM;
        return std::nullopt;
    }
    Indices& indices = this->indices(use);
    const bool fresh = indices.never_used < indices.end;
    if (!fresh && indices.freed.empty()) {
        errno = ENOMEM;
        return std::nullopt;
    }
    const std::uint64_t rounded = (size + page_size - 1) / page_size * page_size;
    const auto offset = take_extent(rounded);
    if (!offset) {
        errno = ENOMEM;
        return std::nullopt;
    }
    // Punched once more: a peer that kept its mapping may have scribbled on the free pages. Then
    // allocated here, where a lack of memory is an error and not a SIGBUS in a peer. Of large
    // blocks only what is always used: the rings of deep queues take memory as they are used.
    const std::uint64_t allocated = rounded <= largest_allocated ? rounded : page_size;
    Mapping mapping;
    if (punch(*offset, rounded) && ::fallocate(file_.get(), 0, static_cast<off_t>(*offset),
                                               static_cast<off_t>(allocated)) == 0) {
        mapping = Mapping{file_.get(), *offset, rounded, PROT_READ | PROT_WRITE};
    }
    if (!mapping) {
        const int cause = errno;
        (void)punch(*offset, rounded);
        give_back_extent(*offset, rounded);
        errno = cause;
        return std::nullopt;
    }

    Block block;
    block.memory = mapping.memory();
    block.size = rounded;
    block.index = fresh ? indices.never_used++ : indices.freed.front();
    if (!fresh) indices.freed.pop_front();
    std::uint32_t& generation = generations_[block.index];
    if (++generation == 0) generation = 1;
    block.generation = generation;
    held_.emplace(block.memory,
                  Held{std::move(mapping), *offset, block.index, block.generation, 1, false});

    DirectoryEntry& entry = directory(block.index);
    entry.block_offset = *offset;
    entry.block_pages = static_cast<std::uint32_t>(rounded / page_size);
    entry.generation.store(block.generation, std::memory_order_release);
    return block;
}

void NodeMemory::free(const Block& block, bool quarantine) noexcept {
    const std::scoped_lock lock{mutex_};
    const auto found = held_.find(block.memory);
    if (found == held_.end() || found->second.freed) return;
    Held& held = found->second;
    held.freed = true;
    directory(block.index).generation.store(0, std::memory_order_release);
    // A quarantined block is left as it is, its pages too: somebody may still be in the middle.
    if (!quarantine) {
        if (punch(held.offset, block.size)) {
            try {
                give_back_extent(held.offset, block.size);
                indices(block.index < queue_pairs_per_node ? BlockUse::queue_pair : BlockUse::other)
                    .freed.push_back(block.index);
            } catch (const std::bad_alloc&) {
                base::log(base::LogLevel::warn, "soft",
                          "no memory to free a block: lost for reuse");
            }
        } else {
            base::log(base::LogLevel::warn, "soft",
                      "block {} cannot be punched out ({}): lost for reuse", block.index,
                      base::describe_errno(errno));
        }
    }
    drop_user(block);
}

FilePlace NodeMemory::place_of(const Block& block) noexcept {
    const std::scoped_lock lock{mutex_};
    const auto found = held_.find(block.memory);
    return found == held_.end() ? FilePlace{} : FilePlace{file_.get(), found->second.offset};
}

std::optional<Block> NodeMemory::share(std::uint32_t index, std::uint32_t generation) {
    const std::scoped_lock lock{mutex_};
    for (auto& [memory, held] : held_) {
        if (held.index != index || held.freed) continue;
        if (generation != 0 && held.generation != generation) return std::nullopt;
        ++held.users;
        return Block{memory, held.mapping.size(), index, held.generation};
    }
    return std::nullopt;
}

void NodeMemory::unshare(const Block& block) noexcept {
    const std::scoped_lock lock{mutex_};
    drop_user(block);
}

void NodeMemory::drop_user(const Block& block) noexcept {
    const auto found = held_.find(block.memory);
    if (found != held_.end() && --found->second.users == 0) held_.erase(found);
}

std::optional<std::uint64_t> NodeMemory::take_extent(std::uint64_t size) {
    // Onwards from the last one and around: memory that a peer may still have mapped comes last.
    const auto fits = [&](const auto& extent) { return extent.second >= size; };
    auto found = std::find_if(free_extents_.lower_bound(next_extent_), free_extents_.end(), fits);
    if (found == free_extents_.end()) {
        found = std::find_if(free_extents_.begin(), free_extents_.end(), fits);
    }
    if (found == free_extents_.end()) return std::nullopt;
    const auto [offset, available] = *found;
    if (available > size) free_extents_.emplace(offset + size, available - size);
    free_extents_.erase(offset);
    next_extent_ = offset + size;
    return offset;
}

void NodeMemory::give_back_extent(std::uint64_t offset, std::uint64_t size) {
    auto next = free_extents_.lower_bound(offset);
    if (next != free_extents_.end() && next->first == offset + size) {
        // While it ends where the next one begins, merging would move the unused rest back to a
        // place in front of `next_extent_`: keep fresh memory reachable by its own entry.
        if (next->first != next_extent_) {
            size += next->second;
            next = free_extents_.erase(next);
        }
    }
    if (next != free_extents_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == offset) {
            previous->second += size;
            return;
        }
    }
    free_extents_.emplace(offset, size);
}

bool NodeMemory::punch(std::uint64_t offset, std::uint64_t size) const noexcept {
    return ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       static_cast<off_t>(offset), static_cast<off_t>(size)) == 0;
}

}  // namespace millrace::soft
