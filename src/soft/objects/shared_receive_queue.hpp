// Shared receive queues: a receive pool with an ibv_srq's face. Used by queue pairs at creation.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "receives/receive_pool.hpp"
#include "system/object_limit.hpp"

namespace millrace::soft {

struct SharedReceiveQueue : ibv_srq {
    ObjectLimit::Place place;
    std::unique_ptr<ReceivePool> pool;
};

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept;

}  // namespace millrace::soft
