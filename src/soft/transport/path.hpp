// What the two ends of a connection were told of the way between them (ibv_modify_qp to RTR and
// RTS): compared once, when an end has become ready, because a real device would not get a packet
// through. Called by queue pairs, which publish their own, and by executors, which compare.
#pragma once

#include <infiniband/verbs.h>

#include "layout/block_layout.hpp"
#include "transport/reasons.hpp"

namespace millrace::soft {

/// Writes what `attributes` say into a queue pair's line. `leads_to_port`: does the address vector?
void describe_path(PathLine& line, const ibv_qp_attr& attributes, bool leads_to_port) noexcept;

/// Why requests from `sender` to `receiver` do not arrive, or (`other_mtu`) not all of them;
/// `none`: they do. Acknowledgements of a `reliable` one have to come back, and only there packets
/// that are out of sequence are refused.
[[nodiscard]] Reason compare_paths(const PathLine& sender, const PathLine& receiver,
                                   bool reliable) noexcept;

/// The longest message that arrives if `compare_paths` says `other_mtu`: what one packet of either
/// end holds. The pieces of a longer one have a size that the receiver does not expect.
[[nodiscard]] inline std::uint32_t longest_message(const Reason& other_mtu) noexcept {
    return other_mtu.key < other_mtu.amount ? other_mtu.key
                                            : static_cast<std::uint32_t>(other_mtu.amount);
}

}  // namespace millrace::soft
