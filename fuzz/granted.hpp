// What peers may write in this process: every region that is registered for remote writing. For
// the fuzzers of what lies above verbs, whose two ends live in this process.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "fabric/node.hpp"
#include "fuzz/input.hpp"
#include "fuzz/target.hpp"
#include "layout/layout.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pairs.hpp"

namespace millrace::fuzz {

class GrantedMemory {
  public:
    /// As it is now.
    GrantedMemory() {
        soft::Node& node = soft::current_process()->node();
        const auto self = node.peer(node.number());
        // Indices are used again only when all have been used: what is new lies behind the last.
        static std::uint32_t begin = 0;
        const bool all = begin + 1024 > soft::regions_per_node;
        std::uint32_t last = all ? 0 : begin;
        for (std::uint32_t index = last; index < soft::regions_per_node; ++index) {
            if (!all && index - last > 64) break;
            const soft::RegionEntry* const entry = self->region(soft::make_key(index, 1));
            if (entry->key_word.load() == 0) continue;
            last = index;
            const std::span<std::byte> area{reinterpret_cast<std::byte*>(entry->address),
                                            static_cast<std::size_t>(entry->length)};
            registered_.push_back(area);
            if ((entry->access & IBV_ACCESS_REMOTE_WRITE) != 0) areas_.push_back(area);
        }
        if (!all) begin = last + 1;
        require(!areas_.empty(), "there is memory that peers may write");
    }

    /// Does it lie in registered memory?
    [[nodiscard]] bool contains(std::span<const std::byte> bytes) const {
        for (const std::span<std::byte> area : registered_) {
            if (bytes.data() >= area.data() &&
                bytes.data() + bytes.size() <= area.data() + area.size()) {
                return true;
            }
        }
        return false;
    }

    /// Writes what `value(old word)` says into an aligned word somewhere. Near the beginning more
    /// often than not, where what is small lies.
    template <class Value>
    void scribble(Input& input, Value&& value) {
        const std::span<std::byte> area =
            areas_[input.below(static_cast<std::uint32_t>(areas_.size()))];
        const std::uint32_t where = input.take<std::uint8_t>();
        const std::size_t words = area.size() / 8;
        std::size_t word = where;
        if (where >= 224) word = input.take<std::uint32_t>();
        std::byte* const at = area.data() + word % words * 8;
        std::uint64_t old = 0;
        std::memcpy(&old, at, sizeof old);
        const std::uint64_t now = value(old);
        std::memcpy(at, &now, sizeof now);
    }

  private:
    std::vector<std::span<std::byte>> areas_;
    std::vector<std::span<std::byte>> registered_;
};

}  // namespace millrace::fuzz
