// What the two ends of a connection over the soft device's wire may agree on. Called by connect/.
#pragma once

#include <infiniband/verbs.h>

#include "millrace/base/error.hpp"
#include "millrace/verbs/queue_pair.hpp"

namespace millrace::verbs {

/// This process's packets may go without an ICRC to a peer that does not check it: MILLRACE_WIRE
/// does not say ",checked". Throws base::Error: what it says cannot be.
[[nodiscard]] bool may_leave_out_icrc();
/// From now on `queue_pair`, of the soft device, sends packets without an ICRC and takes what comes
/// without a look at it, where its peer is on the wire. Both ends have agreed, it is connected (RTR
/// or RTS), and the peer has sent nothing yet. Any thread.
void leave_out_icrc(QueuePair& queue_pair) noexcept;

}  // namespace millrace::verbs
