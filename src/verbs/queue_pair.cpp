// The queue pair's state machine, with errors that show what was asked for.
#include "millrace/verbs/queue_pair.hpp"

#include <cerrno>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "failure.hpp"
#include "millrace/base/log.hpp"
#include "parents_objects.hpp"

namespace millrace::verbs {
namespace {

constexpr unsigned remote_bits =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

int bytes_of(ibv_mtu mtu) noexcept { return 128 << mtu; }

std::string text_of(const ibv_ah_attr& path) {
    std::string text = fmt::format("port {}, LID {}", path.port_num, path.dlid);
    if (path.is_global != 0) {
        text += fmt::format(", GID index {} to ", path.grh.sgid_index);
        for (int i = 0; i < 16; i += 2) {
            text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", path.grh.dgid.raw[i],
                                path.grh.dgid.raw[i + 1]);
        }
    }
    return text;
}

[[noreturn]] void throw_transition(int error, const ibv_qp* qp, const char* transition,
                                   const std::string& attributes) {
    base::throw_errno(
        error > 0 ? error : (errno != 0 ? errno : EIO),
        fmt::format("move a queue pair from {}", transition),
        fmt::format("queue pair {} of {} ({})", qp->qp_num, qp->context->device->name, attributes),
        "check that the port is active, the GID index is valid here and at the "
        "peer, and both ends are on one network");
}

}  // namespace

QueuePair::QueuePair(QueuePair&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, path_{other.path_}, capacity_{other.capacity_} {}

QueuePair& QueuePair::operator=(QueuePair&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    std::swap(capacity_, other.capacity_);
    return *this;
}

QueuePair::~QueuePair() {
    if (raw_ == nullptr || is_parents(raw_->context)) return;
    if (const int error = path_->destroy_qp(raw_); error != 0) {
        base::log(base::LogLevel::warn, "verbs", "destroy a queue pair: {}",
                  base::describe_errno(error));
    }
}

void QueuePair::initialise(std::uint8_t port, Access remote) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.pkey_index = 0;
    attributes.port_num = port;
    attributes.qp_access_flags = static_cast<unsigned>(remote) & remote_bits;
    const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    errno = 0;
    if (const int error = path_->modify_qp(raw_, &attributes, mask); error != 0) {
        throw_transition(error, raw_, "RESET to INIT",
                         fmt::format("port {}, access {:#x}", port, attributes.qp_access_flags));
    }
}

void QueuePair::connect(const QueuePairAddress& peer, std::uint32_t own_packet_sequence,
                        const PathOptions& path) {
    const bool reliable = raw_->qp_type == IBV_QPT_RC;
    if (!reliable && raw_->qp_type != IBV_QPT_UC) {
        throw base::Error(
            base::ErrorCode::unsupported, "connect a queue pair",
            fmt::format("queue pair {} of {}", raw_->qp_num, raw_->context->device->name),
            "only RC and UC queue pairs are connected", "address UD per request");
    }
    ibv_qp_attr to_receive{};
    to_receive.qp_state = IBV_QPS_RTR;
    to_receive.path_mtu = path.mtu;
    to_receive.dest_qp_num = peer.number;
    to_receive.rq_psn = peer.packet_sequence & 0xffffff;
    to_receive.ah_attr.dlid = peer.lid;
    to_receive.ah_attr.port_num = path.port;
    if (path.gid_index >= 0 && peer.has_gid) {
        to_receive.ah_attr.is_global = 1;
        to_receive.ah_attr.grh.dgid = peer.gid;
        to_receive.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(path.gid_index);
        to_receive.ah_attr.grh.hop_limit = path.hop_limit;
    }
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (reliable) {
        to_receive.max_dest_rd_atomic = path.max_reads;
        to_receive.min_rnr_timer = path.min_rnr_timer;
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    errno = 0;
    if (const int error = path_->modify_qp(raw_, &to_receive, mask); error != 0) {
        throw_transition(error, raw_, "INIT to RTR",
                         fmt::format("to queue pair {}, {}, MTU {}, packet sequence {}, {} READs",
                                     peer.number, text_of(to_receive.ah_attr), bytes_of(path.mtu),
                                     to_receive.rq_psn, path.max_reads));
    }

    ibv_qp_attr to_send{};
    to_send.qp_state = IBV_QPS_RTS;
    to_send.sq_psn = own_packet_sequence & 0xffffff;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (reliable) {
        to_send.timeout = path.timeout;
        to_send.retry_cnt = path.retry_count;
        to_send.rnr_retry = path.rnr_retry;
        to_send.max_rd_atomic = path.max_reads;
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    errno = 0;
    if (const int error = path_->modify_qp(raw_, &to_send, mask); error != 0) {
        throw_transition(error, raw_, "RTR to RTS",
                         fmt::format("packet sequence {}, timeout {}, retries {}, receiver not "
                                     "ready retries {}, {} READs",
                                     to_send.sq_psn, path.timeout, path.retry_count, path.rnr_retry,
                                     path.max_reads));
    }
}

void QueuePair::fail() noexcept {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    if (const int error = path_->modify_qp(raw_, &attributes, IBV_QP_STATE); error != 0) {
        base::log(base::LogLevel::warn, "verbs", "move queue pair {} to ERROR: {}", raw_->qp_num,
                  base::describe_errno(error > 0 ? error : errno));
    }
}

ibv_qp_state QueuePair::state() const {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    errno = 0;
    if (const int error = path_->query_qp(raw_, &attributes, IBV_QP_STATE, &init); error != 0) {
        base::throw_errno(
            error > 0 ? error : EIO, "query a queue pair",
            fmt::format("queue pair {} of {}", raw_->qp_num, raw_->context->device->name));
    }
    return attributes.qp_state;
}

bool QueuePair::writes_in_order() const noexcept {
    return path_->query_qp_data_in_order(raw_, IBV_WR_RDMA_WRITE, 0) == 1;
}

std::shared_ptr<std::byte> QueuePair::map_remote(RemoteAddress at,
                                                 std::size_t length) const noexcept {
    if (path_->map_remote == nullptr) return nullptr;
    return path_->map_remote(raw_, at.address, at.rkey, length);
}

bool QueuePair::shares_memory() const noexcept {
    return raw_ != nullptr && path_->shares_memory != nullptr && path_->shares_memory(raw_);
}

}  // namespace millrace::verbs
