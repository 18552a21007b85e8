// Whether a hazard is about a key of this process that was taken back. Made by who fences a region.
// docs/soft-device.md, "Fences".
#pragma once

#include <cstdint>

#include "hazard.hpp"

namespace millrace::soft {

class Node;

/// A key of this process that was taken back, for who asks whether a hazard is about it.
class FencedKey {
  public:
    FencedKey(const Node& node, std::uint32_t key) noexcept;
    /// May what runs under the hazard, if it is odd, touch the region? `mine`: the halves of its
    /// names that are keys of this process (NamedBy).
    [[nodiscard]] bool may_be_in(const Hazard& hazard, unsigned mine) const noexcept;

  private:
    [[nodiscard]] bool is(std::uint32_t named) const noexcept;
    [[nodiscard]] bool in_pair(std::uint64_t pair, unsigned mine) const noexcept;

    const Node& node_;
    std::uint32_t index_;
    bool window_;
};

}  // namespace millrace::soft
