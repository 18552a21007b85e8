// Whether a verbs object is of the process that this one was forked from: its device goes on with
// it there, so a child must not destroy its copy. Asked by destructors.
#pragma once

#include <infiniband/verbs.h>

namespace millrace::verbs {

/// A device was opened here, or is about to be closed.
void note_opened(const ibv_context* context);
void note_closed(const ibv_context* context) noexcept;
/// What belongs to that open device is the parent's. Any thread.
[[nodiscard]] bool is_parents(const ibv_context* context) noexcept;

}  // namespace millrace::verbs
