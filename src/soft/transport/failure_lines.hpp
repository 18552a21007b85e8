// All that mode `strict` says of a program's mistakes: one line of the log each, with the queue
// pair, the request and the exact cause. Called by queue pairs and their link; in mode `fast` only
// when a connection is brought up. docs/modes.md, "strict".
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "transport/reasons.hpp"

namespace millrace::soft {

struct SentSlot;

/// What `posted` was, from queue pair `from` to queue pair `to`, fails.
void tell_failure(std::uint32_t from, std::uint32_t to, const SentSlot& posted,
                  ibv_wc_status status, const Reason& reason) noexcept;

/// A request of queue pair `from` was refused by queue pair `at`; `status`: of its oldest receive.
void tell_refusal(std::uint32_t at, std::uint32_t from, ibv_wc_status status,
                  const Reason& reason) noexcept;

/// ibv_modify_qp refuses: which attributes the transition needs and which it does not take.
void tell_transition(const ibv_qp& qp, ibv_qp_state to, int mask, int required,
                     int optional) noexcept;
/// The same where there is no such transition.
void tell_no_transition(const ibv_qp& qp, ibv_qp_state to) noexcept;

/// In every mode: requests from queue pair `from` to queue pair `to` do not arrive, or not all of
/// them (path.hpp).
void tell_way(const Reason& way, std::uint32_t from, std::uint32_t to) noexcept;

/// The buffer of `posted`, of `bytes` bytes, is not what it was when it was posted.
void tell_changed_buffer(std::uint32_t from, const SentSlot& posted, std::uint32_t bytes) noexcept;

/// The region with `key` is about to be deregistered, and `posted` may still be executed.
void tell_memory_gone(std::uint32_t from, const SentSlot& posted, std::uint32_t key) noexcept;

}  // namespace millrace::soft
