#include "measure_posting.hpp"

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>

#include <infiniband/verbs.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/control_path.hpp"

namespace millrace::bench {
namespace {

constexpr std::uint32_t bytes = 64;
constexpr std::size_t most_at_a_time = 64;

[[noreturn]] void not_offered(const std::string& device) {
    throw base::Error{base::ErrorCode::unsupported, "make a queue pair in a thread domain", device,
                      "not offered: the device has no thread domains", "measure another device"};
}

/// A queue pair that no class of verbs/ makes, as those know no thread domains.
class PlainQueuePair {
  public:
    PlainQueuePair(connect::Endpoint& endpoint, bool thread_domain)
        : path_{&endpoint.protection_domain().control_path()} {
        ibv_context* const context = endpoint.context().raw();
        ibv_pd* domain = endpoint.protection_domain().raw();
        if (thread_domain) {
            ibv_td_init_attr nothing{};
            thread_ = ibv_alloc_td(context, &nothing);
            if (thread_ == nullptr) not_offered(context->device->name);
            ibv_parent_domain_init_attr attributes{};
            attributes.pd = domain;
            attributes.td = thread_;
            parent_ = ibv_alloc_parent_domain(context, &attributes);
            if (parent_ == nullptr) {
                (void)ibv_dealloc_td(thread_);
                not_offered(context->device->name);
            }
            domain = parent_;
        }
        queue_ = path_->create_cq(context, 256, nullptr, nullptr, 0);
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = queue_;
        init.qp_type = IBV_QPT_RC;
        init.cap = {.max_send_wr = 2 * most_at_a_time,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = bytes};
        if (queue_ != nullptr) raw_ = path_->create_qp(domain, &init);
        if (raw_ != nullptr) return;
        const int error = errno;
        release();
        base::throw_errno(error, "make a queue pair", context->device->name, "use another device");
    }
    PlainQueuePair(const PlainQueuePair&) = delete;
    PlainQueuePair& operator=(const PlainQueuePair&) = delete;
    ~PlainQueuePair() { release(); }

    void connect(const verbs::QueuePairAddress& peer, const verbs::PathOptions& path) {
        ibv_qp_attr to{};
        to.qp_state = IBV_QPS_INIT;
        to.port_num = path.port;
        move(to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        to.qp_state = IBV_QPS_RTR;
        to.path_mtu = path.mtu;
        to.dest_qp_num = peer.number;
        to.ah_attr.dlid = peer.lid;
        to.ah_attr.port_num = path.port;
        if (peer.has_gid) {
            to.ah_attr.is_global = 1;
            to.ah_attr.grh.dgid = peer.gid;
            to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(path.gid_index);
            to.ah_attr.grh.hop_limit = path.hop_limit;
        }
        to.max_dest_rd_atomic = 1;
        to.min_rnr_timer = path.min_rnr_timer;
        move(to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        to.qp_state = IBV_QPS_RTS;
        to.timeout = path.timeout;
        to.retry_cnt = path.retry_count;
        to.rnr_retry = path.rnr_retry;
        to.max_rd_atomic = 1;
        move(to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    }
    [[nodiscard]] ibv_qp* raw() const noexcept { return raw_; }
    /// Waits for the completion of the last request of a call.
    void await() const {
        ibv_wc completion{};
        int count = 0;
        while ((count = ibv_poll_cq(queue_, 1, &completion)) == 0) {
        }
        require(count == 1 && completion.status == IBV_WC_SUCCESS, "a WRITE");
    }

  private:
    void move(ibv_qp_attr& to, int mask) const {
        if (const int error = path_->modify_qp(raw_, &to, mask); error != 0) {
            base::throw_errno(error, "connect a queue pair", raw_->context->device->name,
                              "use another device");
        }
    }
    void release() noexcept {
        if (raw_ != nullptr) (void)path_->destroy_qp(raw_);
        if (queue_ != nullptr) (void)path_->destroy_cq(queue_);
        if (parent_ != nullptr) (void)path_->dealloc_pd(parent_);
        if (thread_ != nullptr) (void)ibv_dealloc_td(thread_);
    }

    const verbs::ControlPath* path_;
    ibv_td* thread_ = nullptr;
    ibv_pd* parent_ = nullptr;
    ibv_cq* queue_ = nullptr;
    ibv_qp* raw_ = nullptr;
};

}  // namespace

double measure_posting(const PostingCase& chosen) {
    require(chosen.at_a_time >= 1 && chosen.at_a_time <= most_at_a_time, "this case");
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const auto endpoint = connect::Endpoint::open(chosen.device);
    verbs::Context& context = endpoint->context();
    const ibv_port_attr port = context.port(endpoint->port());
    verbs::PathOptions path;
    path.port = endpoint->port();
    path.gid_index = endpoint->gid_index();
    path.mtu = port.active_mtu;
    verbs::QueuePairAddress here{.lid = port.lid};
    if (path.gid_index >= 0) {
        here.has_gid = true;
        here.gid = context.gid(path.port, path.gid_index);
    }
    verbs::ProtectionDomain& domain = endpoint->protection_domain();
    const verbs::RegisteredBuffer from = domain.allocate(bytes, verbs::Access::none);
    const verbs::RegisteredBuffer to =
        domain.allocate(most_at_a_time * bytes, verbs::Access::remote_write);

    PlainQueuePair sender{*endpoint, chosen.thread_domain};
    verbs::CompletionQueue completions = context.create_completion_queue(16);
    verbs::QueuePairOptions options;
    options.send_queue = options.receive_queue = &completions;
    verbs::QueuePair receiver = domain.create_queue_pair(options);
    receiver.initialise(path.port, verbs::Access::remote_write);
    verbs::QueuePairAddress other = here;
    other.number = sender.raw()->qp_num;
    receiver.connect(other, 0, path);
    other.number = receiver.number();
    sender.connect(other, path);

    ibv_sge slice = from.slice(0, bytes);
    std::array<ibv_send_wr, most_at_a_time> requests{};
    for (std::size_t i = 0; i < chosen.at_a_time; ++i) {
        const bool is_last = i + 1 == chosen.at_a_time;
        ibv_send_wr& each = requests[i];
        each.next = is_last ? nullptr : &requests[i + 1];
        each.sg_list = &slice;
        each.num_sge = 1;
        each.opcode = IBV_WR_RDMA_WRITE;
        each.send_flags = IBV_SEND_INLINE;
        if (is_last) each.send_flags |= IBV_SEND_SIGNALED;
        each.wr.rdma.remote_addr = to.remote().address + i * bytes;
        each.wr.rdma.rkey = to.remote().rkey;
    }
    const double time = median_step(Windows{chosen.calls}, [&](std::uint64_t) {
        ibv_send_wr* bad = nullptr;
        require(ibv_post_send(sender.raw(), requests.data(), &bad) == 0, "posting");
        sender.await();
    });
    return static_cast<double>(chosen.at_a_time) * 1e3 / time;
}

}  // namespace millrace::bench
