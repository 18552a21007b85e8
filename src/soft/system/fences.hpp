// Asymmetric fences: the frequent side of a store-then-load race pays a compiler barrier, the rare
// side interrupts everybody with membarrier(2). Without membarrier both pay a full fence.
#pragma once

#include <atomic>

#include "millrace/base/detail/full_fence.hpp"

namespace millrace::soft {

using base::full_fence;

/// On the frequent side, between its store and its load. `asymmetric`: PeerNode::asymmetric_fences.
inline void light_fence(bool asymmetric) noexcept {
    if (asymmetric) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
        full_fence();
    }
}

/// On the rare side, between its store and its load. Always also a full fence. Where membarrier was
/// to be had once and no longer is, it sleeps until the frequent sides' stores must have been seen.
void heavy_fence() noexcept;

/// Registers this process (once). False: membarrier is not to be had here.
[[nodiscard]] bool register_for_membarrier() noexcept;

}  // namespace millrace::soft
