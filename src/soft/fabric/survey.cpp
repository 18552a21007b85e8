// See the header. A node is found by two traces: its socket's abstract name in /proc/net/unix,
// which everybody sees, and its memory among the descriptors of its process, which only its user
// does.
#include "millrace/soft/survey.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "fabric/fabric_names.hpp"
#include "layout/block_layout.hpp"
#include "layout/layout.hpp"
#include "layout/receive_pool_layout.hpp"
#include "layout/state_names.hpp"
#include "system/descriptor.hpp"
#include "system/file_of_process.hpp"
#include "system/mapping.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {
namespace {

constexpr std::string_view tables_prefix = "/memfd:millrace-node:";
constexpr std::string_view blocks_prefix = "/memfd:millrace-blocks:";

std::string first_line(const std::string& path) {
    std::string line;
    std::ifstream file{path};
    std::getline(file, line);
    return line;
}

std::string name_of_user(uid_t user) {
    std::vector<char> text(4096);
    passwd entry{};
    passwd* found = nullptr;
    if (getpwuid_r(user, &entry, text.data(), text.size(), &found) == 0 && found != nullptr) {
        return entry.pw_name;
    }
    return std::to_string(user);
}

/// What the process is called in its own pid namespace.
std::optional<pid_t> own_pid_of(pid_t pid) {
    std::ifstream file{fmt::format("/proc/{}/status", pid)};
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("NSpid:")) continue;
        return number_of<pid_t>(std::string_view{line}.substr(line.find_last_of(" \t") + 1));
    }
    return std::nullopt;
}

std::uint64_t pid_namespace_of(pid_t pid) noexcept {
    struct stat status {};
    return ::stat(fmt::format("/proc/{}/ns/pid", pid).c_str(), &status) == 0 ? status.st_ino : 0;
}

std::string name_of_state(std::uint64_t state_word) {
    return std::string{state_name(static_cast<ibv_qp_state>(state_word & state_mask))};
}

/// Looked at before it is opened: opening may have effects when it is something else.
Descriptor open_regular(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
    return Descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
}

std::uint64_t bytes_in_use(const Descriptor& file) noexcept {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return 0;
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

/// A node's memory, mapped only to be read. Its owner may write it at any time.
struct SeenMemory {
    std::string fabric;
    std::uint32_t node = 0;
    bool tables = false;  ///< else the file of blocks, found alone
    std::uint64_t bytes_in_use = 0;
    Mapping control;    ///< the tables; of blocks alone, their first page
    Descriptor blocks;  ///< with the tables, if they can be opened
    std::uint64_t blocks_size = 0;

    [[nodiscard]] const NodeHeader& header() const noexcept {
        return *reinterpret_cast<const NodeHeader*>(control.memory());
    }
    [[nodiscard]] const DirectoryEntry& directory(std::uint32_t index) const noexcept {
        return reinterpret_cast<const DirectoryEntry*>(control.memory() + directory_offset)[index];
    }
    [[nodiscard]] const RegionEntry& region(std::uint32_t index) const noexcept {
        return reinterpret_cast<const RegionEntry*>(control.memory() + region_table_offset)[index];
    }
};

std::optional<SeenMemory> open_memory(const std::string& path, std::string_view target) {
    // "/memfd:millrace-node:<fabric>:<number> (deleted)"
    SeenMemory memory;
    memory.tables = target.starts_with(tables_prefix);
    target.remove_prefix(memory.tables ? tables_prefix.size() : blocks_prefix.size());
    const auto colon = target.rfind(':');
    const auto space = target.find(' ', colon == target.npos ? 0 : colon);
    if (colon == target.npos || space == target.npos) return std::nullopt;
    const auto node = number_of<std::uint32_t>(target.substr(colon + 1, space - colon - 1));
    if (!node) return std::nullopt;

    memory.fabric = std::string{target.substr(0, colon)};
    memory.node = *node;
    const Descriptor file = open_regular(path);
    const std::uint64_t needed = memory.tables ? tables_size : page_size;
    if (!file || sealed_size(file.get()) < needed) return std::nullopt;
    memory.bytes_in_use = bytes_in_use(file);
    memory.control = Mapping{file.get(), 0, needed, PROT_READ};
    if (!memory.control) return std::nullopt;
    const NodeHeader& header = memory.header();
    if (header.magic != node_magic || header.version != layout_version ||
        header.node_number != memory.node) {
        return std::nullopt;
    }
    return memory;
}

/// Of the owner's tables: the blocks that they speak of.
void open_blocks(pid_t pid, SeenMemory& memory) {
    const NodeHeader& header = memory.header();
    Descriptor file =
        open_file_of(pid, load_once(header.blocks_descriptor), load_once(header.blocks_device),
                     load_once(header.blocks_inode), O_RDONLY);
    const std::uint64_t size = file ? sealed_size(file.get()) : 0;
    if (size <= blocks_offset) return;
    memory.bytes_in_use += bytes_in_use(file);
    memory.blocks_size = size;
    memory.blocks = std::move(file);
}

/// The first page of a block, in which all but the rings lies. Empty: the index has none.
Mapping map_block(const SeenMemory& memory, std::uint32_t index) {
    if (index >= blocks_per_node || !memory.blocks) return {};
    const DirectoryEntry& entry = memory.directory(index);
    if (entry.generation.load(std::memory_order_acquire) == 0) return {};
    const std::uint64_t offset = load_once(entry.block_offset);
    if (offset < blocks_offset || offset % page_size != 0 ||
        offset > memory.blocks_size - page_size) {
        return {};
    }
    return Mapping{memory.blocks.get(), offset, page_size, PROT_READ};
}

/// Blocks hold queue pairs, receive pools and more: a queue pair's says which one it is.
bool is_queue_pair(const BlockView& view, std::uint32_t index, std::uint32_t generation) noexcept {
    const std::uint64_t word = view.control->state_word.load(std::memory_order_relaxed);
    const std::uint32_t type = load_once(view.control->type);
    return (word >> 44) == (generation & 0xfffff) && (word >> 32 & 0xfff) == index &&
           (type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_UD);
}

void look_at_receives(const SeenMemory& memory, const BlockView& view, SeenQueuePair& seen) {
    seen.posted_receives = view.receive->tail.load(std::memory_order_relaxed) -
                           view.consumed->position.load(std::memory_order_relaxed);
    if (load_once(view.receive->pool_generation) != 0) {
        seen.pool = load_once(view.receive->pool_index);
        seen.posted_receives = 0;
        if (const Mapping block = map_block(memory, *seen.pool)) {
            const PoolView pool{block.memory(), PoolGeometry{}};
            seen.posted_receives = pool.tail().position.load(std::memory_order_relaxed) -
                                   pool.head().position.load(std::memory_order_relaxed);
        }
    }
}

void look_at_queue_pairs(const SeenMemory& memory, Participant& participant) {
    std::set<std::int32_t> bells;
    for (std::uint32_t index = 0; index < queue_pairs_per_node; ++index) {
        const DirectoryEntry& entry = memory.directory(index);
        const std::uint32_t generation = entry.generation.load(std::memory_order_acquire);
        const Mapping block = map_block(memory, index);
        if (!block) continue;
        const BlockView view{block.memory(), Geometry{}};
        if (!is_queue_pair(view, index, generation)) continue;
        SeenQueuePair seen;
        seen.number = make_qpn(memory.node, index);
        seen.type = type_name(static_cast<ibv_qp_type>(load_once(view.control->type)));
        seen.state = name_of_state(view.control->state_word.load(std::memory_order_relaxed));
        const auto destination = view.control->destination.load(std::memory_order_relaxed);
        if ((destination & 0xffffff) != 0) {
            seen.peer = static_cast<std::uint32_t>(destination & 0xffffff);
        }
        seen.pending_sends = view.pending->tail.load(std::memory_order_relaxed) -
                             view.pending->head.load(std::memory_order_relaxed);
        look_at_receives(memory, view, seen);
        // Read one after the other while both move: differences that cannot be say nothing.
        if (seen.pending_sends > max_queue_entries) seen.pending_sends = 0;
        if (seen.posted_receives > max_queue_entries) seen.posted_receives = 0;
        for (const auto* bell : {&view.control->bell_send, &view.control->bell_receive}) {
            if (const auto number = bell->load(std::memory_order_relaxed); number >= 0) {
                bells.insert(number);
            }
        }
        // It may have been given back meanwhile, and the page with it.
        if (entry.generation.load(std::memory_order_acquire) != generation) continue;
        participant.queue_pairs.push_back(std::move(seen));
    }
    participant.completion_channels = static_cast<std::uint32_t>(bells.size());
}

void look_at_regions(const SeenMemory& memory, Participant& participant) {
    for (std::uint32_t index = 0; index < regions_per_node; ++index) {
        const RegionEntry& entry = memory.region(index);
        const std::uint64_t word = entry.key_word.load(std::memory_order_acquire);
        if (word == 0) continue;
        SeenRegion seen;
        seen.rkey = make_key(index, static_cast<std::uint16_t>(word));
        seen.address = load_once(entry.address);
        seen.bytes = load_once(entry.length);
        seen.access = load_once(entry.access);
        seen.shared = entry.kind == static_cast<std::uint64_t>(RegionKind::shared_file);
        if (entry.key_word.load(std::memory_order_acquire) == word) {
            participant.regions.push_back(seen);
        }
    }
}

/// All processes in /proc.
template <class Visit>
void for_each_process(Visit&& visit) {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder{::opendir("/proc"), &::closedir};
    while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
        if (const auto pid = number_of<pid_t>(entry->d_name)) visit(*pid);
    }
}

}  // namespace

Survey survey(std::string_view wanted) {
    Survey result;
    using Identity = std::pair<std::uint64_t, std::uint64_t>;
    std::map<Identity, Leftover> held;  // not (yet) found at their owner
    std::set<Identity> owned;
    std::set<NodeName> found;

    for_each_process([&](pid_t pid) {
        const std::string path = fmt::format("/proc/{}/fd", pid);
        const std::unique_ptr<DIR, int (*)(DIR*)> folder{::opendir(path.c_str()), &::closedir};
        if (!folder) {
            // A process that has just ended is not closed to us.
            if (errno != ENOENT && errno != ESRCH) ++result.processes_closed_to_us;
            return;
        }
        ++result.processes_looked_into;
        while (const dirent* entry = ::readdir(folder.get())) {
            const std::string link = fmt::format("{}/{}", path, entry->d_name);
            char text[512];
            const ssize_t length = ::readlink(link.c_str(), text, sizeof text);
            if (length <= 0) continue;
            const std::string_view target{text, static_cast<std::size_t>(length)};
            if (!target.starts_with(tables_prefix) && !target.starts_with(blocks_prefix)) continue;
            auto memory = open_memory(link, target);
            if (!memory || (!wanted.empty() && memory->fabric != wanted)) continue;

            const NodeHeader& header = memory->header();
            const Identity identity{header.identity.high, header.identity.low};
            const bool owner =
                own_pid_of(pid) == header.pid && pid_namespace_of(pid) == header.pid_namespace;
            if (!owner) {
                Leftover& leftover = held[identity];
                leftover.fabric = memory->fabric;
                leftover.node = memory->node;
                leftover.memory_bytes = std::max(leftover.memory_bytes, memory->bytes_in_use);
                if (leftover.holders.empty() || leftover.holders.back() != pid) {
                    leftover.holders.push_back(pid);
                }
                continue;
            }
            if (!memory->tables || !owned.insert(identity).second) continue;
            open_blocks(pid, *memory);
            struct stat process {};
            Participant participant;
            participant.fabric = memory->fabric;
            participant.node = memory->node;
            participant.user = ::stat(path.c_str(), &process) == 0 ? process.st_uid : 0;
            participant.user_name = name_of_user(participant.user);
            participant.pid = pid;
            participant.program = first_line(fmt::format("/proc/{}/comm", pid));
            participant.readable = true;
            participant.memory_bytes = memory->bytes_in_use;
            look_at_queue_pairs(*memory, participant);
            look_at_regions(*memory, participant);
            participant.statistics = base::StatisticsPage::of_process(pid);
            found.insert({participant.user, participant.fabric, participant.node});
            result.participants.push_back(std::move(participant));
        }
    });
    for (const NodeName& name : names_in_use()) {
        if (found.contains(name) || (!wanted.empty() && name.fabric != wanted)) continue;
        Participant participant;
        participant.fabric = name.fabric;
        participant.node = name.node;
        participant.user = name.user;
        participant.user_name = name_of_user(name.user);
        result.participants.push_back(std::move(participant));
    }
    for (auto& [identity, leftover] : held) {
        if (!owned.contains(identity)) result.leftovers.push_back(std::move(leftover));
    }
    std::sort(result.participants.begin(), result.participants.end(),
              [](const Participant& a, const Participant& b) {
                  return std::tie(a.fabric, a.user, a.node) < std::tie(b.fabric, b.user, b.node);
              });
    return result;
}

}  // namespace millrace::soft
