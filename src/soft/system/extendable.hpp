// What lets an object made here be the extended one of its kind (ibv_cq_ex, ibv_qp_ex): its tail
// behind the plain one, reached by address. Beneath completion queues and queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>

namespace millrace::soft {

template <class Plain, class Extended>
struct Extendable : Plain {
    alignas(Extended) std::byte extension[sizeof(Extended) - sizeof(Plain)];

    [[nodiscard]] Extended* extended() noexcept {
        return reinterpret_cast<Extended*>(static_cast<Plain*>(this));
    }
};
using ExtendableCompletionQueue = Extendable<ibv_cq, ibv_cq_ex>;
using ExtendableQueuePair = Extendable<ibv_qp, ibv_qp_ex>;
static_assert(sizeof(ExtendableCompletionQueue) == sizeof(ibv_cq_ex));
static_assert(sizeof(ExtendableQueuePair) == sizeof(ibv_qp_ex));

}  // namespace millrace::soft
