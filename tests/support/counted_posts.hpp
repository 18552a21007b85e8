// Counts what an endpoint posts, by opcode, below the library, where programs hand it to the
// device: in the table of operations of the endpoint's device context.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "millrace/connect/link.hpp"

namespace millrace::test {

/// Posts of one end by opcode. A receive counts as `receive`.
struct Posts {
    std::atomic<std::uint64_t> write{0};
    std::atomic<std::uint64_t> write_with_immediate{0};
    std::atomic<std::uint64_t> send{0};
    std::atomic<std::uint64_t> read{0};
    std::atomic<std::uint64_t> receive{0};
    std::atomic<std::uint64_t> doorbells{0};  ///< lists of SENDs, WRITEs and READs
    std::atomic<std::uint64_t> inlined{0};    ///< of any opcode
    std::atomic<std::uint64_t> signaled{0};   ///< the same
    std::atomic<std::uint64_t> polls{0};      ///< of completion queues, whatever they found

    /// Those of SENDs, WRITEs and READs that one thread made.
    std::atomic<std::thread::id> watched{};
    std::atomic<std::uint64_t> by_watched{0};
    /// Of each queue pair by its number, and by opcode.
    std::map<std::uint32_t, std::map<ibv_wr_opcode, std::uint64_t>> by_queue_pair;
    std::mutex mutex;  ///< of by_queue_pair

    void clear() {
        const std::lock_guard lock{mutex};
        by_queue_pair.clear();
        watched = std::thread::id{};
        by_watched = 0;
        for (auto* count : {&write, &write_with_immediate, &send, &read, &receive, &doorbells,
                            &inlined, &signaled, &polls})
            *count = 0;
    }
    [[nodiscard]] std::uint64_t all() const { return write + write_with_immediate + send + read; }
    void count(std::uint32_t queue_pair, ibv_wr_opcode opcode) {
        {
            const std::lock_guard lock{mutex};
            ++by_queue_pair[queue_pair][opcode];
        }
        switch (opcode) {
            case IBV_WR_RDMA_WRITE: ++write; break;
            case IBV_WR_RDMA_WRITE_WITH_IMM: ++write_with_immediate; break;
            case IBV_WR_SEND: ++send; break;
            case IBV_WR_RDMA_READ: ++read; break;
            default: ADD_FAILURE() << "a request of opcode " << opcode;
        }
    }
};

/// An endpoint with a device context of its own, whose posts are counted.
struct CountedEndpoint {
    std::shared_ptr<connect::Endpoint> endpoint = connect::Endpoint::open();
    Posts posts;
    int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
    int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
    int (*post_srq_recv)(ibv_srq*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
    int (*poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;

    static std::map<ibv_context*, CountedEndpoint*>& all() {
        static std::map<ibv_context*, CountedEndpoint*> map;
        return map;
    }
    CountedEndpoint() {
        ibv_context* const context = endpoint->context().raw();
        all()[context] = this;
        post_send = context->ops.post_send;
        post_recv = context->ops.post_recv;
        post_srq_recv = context->ops.post_srq_recv;
        poll_cq = context->ops.poll_cq;
        context->ops.poll_cq = [](ibv_cq* cq, int count, ibv_wc* wc) {
            CountedEndpoint& self = *all().at(cq->context);
            ++self.posts.polls;
            return self.poll_cq(cq, count, wc);
        };
        context->ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
            CountedEndpoint& self = *all().at(qp->context);
            const int error = self.post_send(qp, wr, bad);
            ++self.posts.doorbells;
            if (std::this_thread::get_id() == self.posts.watched.load()) ++self.posts.by_watched;
            for (; wr != nullptr && error == 0; wr = wr->next) {
                self.posts.count(qp->qp_num, wr->opcode);
                if ((wr->send_flags & IBV_SEND_INLINE) != 0) ++self.posts.inlined;
                if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) ++self.posts.signaled;
            }
            return error;
        };
        context->ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
            CountedEndpoint& self = *all().at(qp->context);
            const int error = self.post_recv(qp, wr, bad);
            for (; wr != nullptr && error == 0; wr = wr->next) ++self.posts.receive;
            return error;
        };
        context->ops.post_srq_recv = [](ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
            CountedEndpoint& self = *all().at(srq->context);
            const int error = self.post_srq_recv(srq, wr, bad);
            for (; wr != nullptr && error == 0; wr = wr->next) ++self.posts.receive;
            return error;
        };
    }
};

}  // namespace millrace::test
