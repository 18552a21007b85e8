// All that mode `strict` says of a program's mistakes: one line of the log each, with the queue
// pair, the request and the exact cause. Called by queue pairs and their link; in mode `fast` only
// when a connection is brought up. docs/modes.md, "strict".
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "reasons.hpp"

namespace millrace::soft {

struct QueuePair;
struct SentSlot;

/// The oldest request that was not executed fails. With send_lock, before the queue pair is told.
void tell_failure(const QueuePair& qp, ibv_wc_status status, const Reason& reason) noexcept;

/// A peer's request was refused here, for a reason that it has left in the fault line.
void tell_refusal(const QueuePair& qp, ibv_wc_status status) noexcept;

/// ibv_modify_qp refuses: which attributes the transition needs and which it does not take.
void tell_transition(const QueuePair& qp, ibv_qp_state to, int mask, int required,
                     int optional) noexcept;
/// The same where there is no such transition.
void tell_no_transition(const QueuePair& qp, ibv_qp_state to) noexcept;

/// In every mode: requests from queue pair `from` to queue pair `to` do not arrive, or not all of
/// them (path.hpp).
void tell_way(const Reason& way, std::uint32_t from, std::uint32_t to) noexcept;

/// The buffer of `posted`, of `bytes` bytes, is not what it was when it was posted.
void tell_changed_buffer(const QueuePair& qp, const SentSlot& posted, std::uint32_t bytes) noexcept;

/// The region with `key` is about to be deregistered: does a request that may still be executed
/// name it? Takes send_lock.
void tell_if_in_flight(QueuePair& qp, std::uint32_t key) noexcept;

}  // namespace millrace::soft
