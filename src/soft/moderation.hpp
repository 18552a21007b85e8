// Fewer events of a completion queue (ibv_modify_cq): one is put off until so many completions are
// there, or so much time has passed since it was first found to be due. Its owner does that, when
// an event is asked for; who completes rings the bell as ever. Called by completion queues and the
// context. docs/soft-device.md, "Completion queues".
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

/// Of one completion queue; guarded by its lock.
struct Moderation {
    std::uint32_t count = 0;      ///< completions per event; below 2: no moderation
    std::int64_t period = 0;      ///< ns that an event may be put off; 0: no moderation
    std::int64_t put_off_at = 0;  ///< as `cable_now`: when an event was first put off, 0: none is

    [[nodiscard]] bool on() const noexcept { return count > 1 && period != 0; }
};

/// EINVAL: it asks for something else than moderation.
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attributes) noexcept;

}  // namespace millrace::soft
