#include "objects/lender.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "fabric/node.hpp"
#include "fabric/peer_node.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "regions/registration.hpp"

namespace millrace::soft {

std::unique_ptr<Lender> Lender::find(Node& own, int file, const DeviceFacts& facts) {
    const bool possible = facts.node_number > 0 && facts.node_number <= max_node_number;
    auto owner = possible ? own.peer(facts.node_number) : nullptr;
    if (owner == nullptr || owner->identity() != facts.identity || owner->is_self()) {
        throw base::Error{
            base::ErrorCode::not_found, "import a soft device",
            fmt::format("opened by node {} of its fabric", facts.node_number),
            "there is no such node now in the fabric of this process",
            "keep the device open where it was opened as long as it is imported, and use the same "
            "MILLRACE_FABRIC and the same user in both"};
    }
    return std::make_unique<Lender>(file, std::move(owner));
}

std::uint32_t Lender::domain(std::uint32_t handle) const noexcept {
    return read_domain(file_, handle);
}

int Lender::region(std::uint32_t handle, LentRegion& region) const {
    if (handle >= regions_per_node || !owner_->alive()) return ENOENT;
    const RegionEntry* const entry = owner_->region(make_key(handle, 0));
    const std::uint64_t word = entry->key_word.load(std::memory_order_acquire);
    const auto key = static_cast<std::uint32_t>(word);
    if (word != key_word_of(key) || index_of_key(key) != handle) return ENOENT;
    const auto facts = read_region(*entry, key);
    if (!facts || (facts->access & access_window) != 0) return ENOENT;
    region.domain = find_domain(file_, facts->pd);
    if (region.domain == 0) return ENOENT;  // of another device that the process opened
    region.facts = *facts;
    switch (static_cast<RegionKind>(facts->kind)) {
        case RegionKind::nothing: return 0;
        case RegionKind::shared_file:
            region.file = open_region_file(owner_->pid(), *facts,
                                           (facts->access & IBV_ACCESS_LOCAL_WRITE) != 0);
            if (region.file) {
                region.mapping =
                    map_region_file(region.file.get(), *facts,
                                    (facts->access & IBV_ACCESS_LOCAL_WRITE) != 0, region.skip);
            }
            if (region.mapping) return 0;
            break;
        default: break;
    }
    base::log(base::LogLevel::error, "soft",
              "import a region of process {}: its memory cannot be shared between processes; "
              "register a mapping of a memfd that is sealed against shrinking there (or run that "
              "program with MILLRACE_REMAP=1), or import within that process",
              owner_->pid());
    return EOPNOTSUPP;
}

Descriptor Lender::memory(std::uint32_t handle, std::size_t& length) const {
    const auto place = read_memory(file_, handle);
    if (!place || !owner_->alive() || place->length == 0 || place->length > max_device_memory) {
        return {};
    }
    RegionFacts facts{};
    facts.device = static_cast<std::uint32_t>(place->device);
    facts.inode = place->inode;
    facts.descriptor = static_cast<std::int32_t>(place->descriptor);
    facts.length = place->length;
    Descriptor file = open_region_file(owner_->pid(), facts, true);
    length = place->length;
    return file;
}

}  // namespace millrace::soft
