// What a completion's status means and what usually causes it, for error messages.
#include <string_view>

#include <fmt/format.h>

#include "millrace/soft/device.hpp"
#include "millrace/verbs/completion_queue.hpp"

namespace millrace::verbs {
namespace {

std::string_view meaning(const ibv_wc& raw) noexcept {
    if (raw.vendor_err == soft::vendor_peer_ended) {
        return "the peer does not answer: its process has ended, or was killed";
    }
    if (raw.vendor_err == soft::vendor_no_answer) {
        return "the peer does not answer: its queue pair is in the error state or not connected "
               "to ours, or its process cannot be reached, of which the log warns";
    }
    switch (raw.status) {
        case IBV_WC_SUCCESS: return "success";
        case IBV_WC_LOC_LEN_ERR:
            return "local length error: a message is larger than the receive buffer posted for "
                   "it, or than the device can carry; post larger receives or send less";
        case IBV_WC_LOC_QP_OP_ERR:
            return "local queue pair operation error: the request is inconsistent with the queue "
                   "pair (too many slices, an inline too large, an operation its type does not "
                   "have)";
        case IBV_WC_LOC_EEC_OP_ERR:
            return "local end-to-end context operation error (reliable datagrams only): the "
                   "driver reports something this library never asks for";
        case IBV_WC_LOC_PROT_ERR:
            return "local protection error: a slice's lkey, bounds or protection domain do not "
                   "match a registered region, or it lacks local write; has the region been "
                   "deregistered?";
        case IBV_WC_WR_FLUSH_ERR:
            return "flushed: the queue pair was already in the error state when this request's "
                   "turn came; the cause is the first completion that failed otherwise, or the "
                   "peer went away, or this side closed";
        case IBV_WC_MW_BIND_ERR:
            return "memory window bind error: the window's region does not allow binding or the "
                   "access asked for";
        case IBV_WC_BAD_RESP_ERR:
            return "bad response: the peer answered with a packet that fits no request of ours; "
                   "a mismatch of queue pair numbers or sequence numbers is likely";
        case IBV_WC_LOC_ACCESS_ERR:
            return "local access error: the peer's WRITE with immediate or SEND hit memory here "
                   "that does not allow it";
        case IBV_WC_REM_INV_REQ_ERR:
            return "remote invalid request: the peer's queue pair does not accept this operation "
                   "(remote access not enabled on it, message longer than its receive buffer, or "
                   "too many READs outstanding)";
        case IBV_WC_REM_ACCESS_ERR:
            return "remote access error: the peer's rkey, bounds or access flags do not allow it; "
                   "has the peer deregistered the region, or is the address beyond its end?";
        case IBV_WC_REM_OP_ERR:
            return "remote operation error: the peer could not finish the operation; its own "
                   "completion queue tells why";
        case IBV_WC_RETRY_EXC_ERR:
            return "transport retries exhausted: the peer does not answer; it has died, its queue "
                   "pair is in the error state or not connected to ours, or the network between "
                   "is broken (wrong GID index, MTU, firewall of UDP port 4791)";
        case IBV_WC_RNR_RETRY_EXC_ERR:
            return "receiver not ready: the peer posted no receive in time; it is too slow, or "
                   "its credits are counted wrongly";
        case IBV_WC_LOC_RDD_VIOL_ERR:
            return "local reliable datagram domain violation: the driver reports something this "
                   "library never asks for";
        case IBV_WC_REM_INV_RD_REQ_ERR:
            return "remote invalid reliable datagram request: the driver reports something this "
                   "library never asks for";
        case IBV_WC_REM_ABORT_ERR:
            return "remote aborted: the peer's device gave the operation up, often because its "
                   "queue pair was moved to the error state";
        case IBV_WC_INV_EECN_ERR:
            return "invalid end-to-end context number: the driver reports something this library "
                   "never asks for";
        case IBV_WC_INV_EEC_STATE_ERR:
            return "invalid end-to-end context state: the driver reports something this library "
                   "never asks for";
        case IBV_WC_FATAL_ERR:
            return "fatal transport error: the device or its driver failed; see the kernel log";
        case IBV_WC_RESP_TIMEOUT_ERR:
            return "response timeout: the peer took the request and did not answer in time";
        case IBV_WC_GENERAL_ERR:
            return "general error: the device gives no better reason; the vendor code may";
        case IBV_WC_TM_ERR: return "tag matching error";
        case IBV_WC_TM_RNDV_INCOMPLETE:
            return "tag matching rendezvous incomplete: the application must finish the message";
    }
    return "a status this library does not know";
}

}  // namespace

std::string Completion::explain() const {
    if (ok()) return std::string{meaning(raw)};
    return fmt::format("{} (status {}, vendor code {:#x}, queue pair {}, request {})", meaning(raw),
                       static_cast<int>(raw.status), raw.vendor_err, raw.qp_num, raw.wr_id);
}

}  // namespace millrace::verbs
