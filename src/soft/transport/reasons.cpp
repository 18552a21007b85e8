#include "transport/reasons.hpp"

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

std::string text_of_flags(std::uint64_t flags, std::span<const NamedFlag> names) {
    std::string text;
    const auto add = [&](const auto& name) {
        if (!text.empty()) text += " | ";
        text += name;
    };
    for (const auto& [flag, name] : names) {
        if ((flags & flag) == 0) continue;
        add(name);
        flags &= ~flag;
    }
    if (flags != 0) add(fmt::format("{:#x}", flags));
    return text;
}

std::string text_of_access(std::uint64_t flags) {
    constexpr NamedFlag names[] = {
        {IBV_ACCESS_LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE"},
        {IBV_ACCESS_REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"},
        {IBV_ACCESS_REMOTE_READ, "IBV_ACCESS_REMOTE_READ"},
        {IBV_ACCESS_REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"},
    };
    const std::string text = text_of_flags(flags, names);
    return text.empty() ? "a right" : text;
}

std::string text_of(const Reason& reason) {
    const auto key = reason.key;
    const auto amount = reason.amount;
    switch (reason.kind) {
        case ReasonKind::no_key:
            return fmt::format(
                "there is no memory region with key {:#x} (never registered, or deregistered)",
                key);
        case ReasonKind::ended_key:
            return fmt::format(
                "no region has key {:#x}: it was deregistered or registered anew, or never given "
                "out; use the key that is valid now, and no request after ibv_dereg_mr",
                key);
        case ReasonKind::other_domain:
            return fmt::format(
                "the region with key {:#x} belongs to another protection domain than the queue "
                "pair",
                key);
        case ReasonKind::window_key:
            return fmt::format("key {:#x} is a memory window's, which is for peers only", key);
        case ReasonKind::before:
            return fmt::format("the range begins {} bytes before the region with key {:#x}", amount,
                               key);
        case ReasonKind::beyond:
            return fmt::format("the range reaches {} bytes beyond the region with key {:#x}",
                               amount, key);
        case ReasonKind::region_access:
            return fmt::format("the region with key {:#x} was registered without {}", key,
                               text_of_access(amount));
        case ReasonKind::queue_pair_access:
            return fmt::format(
                "the responding queue pair does not allow it: {} is not among its "
                "qp_access_flags, or its max_dest_rd_atomic is 0",
                text_of_access(amount));
        case ReasonKind::cannot_map:
            return fmt::format("the region with key {:#x} cannot be reached from the other process",
                               key);
        case ReasonKind::unmapped: return "memory that is still registered was unmapped";
        case ReasonKind::message_too_long:
            return fmt::format("it is {} bytes longer than a message may be", amount);
        case ReasonKind::receive_too_short:
            return fmt::format("it is {} bytes longer than the receive that it came to", amount);
        case ReasonKind::unaligned:
            return fmt::format("the address {:#x} of an atomic is no multiple of 8", amount);
        case ReasonKind::not_eight:
            return fmt::format("the result of an atomic needs 8 bytes, not {}", amount);
        case ReasonKind::no_window:
            return fmt::format(
                "key {:#x}, which it invalidates, is no memory window of type 2 "
                "bound through the responding queue pair",
                key);
        case ReasonKind::malformed: return "it is no request that this queue pair takes";
        case ReasonKind::no_receive:
            return "the peer had posted no receive for it within all retries; post receives before "
                   "the peer may send";
        case ReasonKind::no_answer:
            return "the peer's queue pair was in no state to receive within all retries: not yet "
                   "in RTR, in ERROR, or gone";
        case ReasonKind::senders_address:
            return "the sender's address vector leads to no port here; take its LID or GID from "
                   "the receiver's ibv_query_port or ibv_query_gid";
        case ReasonKind::receivers_address:
            return "the receiver's address vector leads to no port here, so that no "
                   "acknowledgement comes back; take its LID or GID from the sender's "
                   "ibv_query_port or ibv_query_gid";
        case ReasonKind::other_psn:
            return fmt::format(
                "sq_psn {} at the sender, rq_psn {} at the receiver; give each end the other's "
                "sq_psn as its rq_psn",
                key, amount);
        case ReasonKind::other_mtu:
            return fmt::format(
                "path_mtu {} at the sender, {} at the receiver: messages of more than {} bytes do "
                "not arrive; give both ends the smaller one",
                key, amount, key < amount ? key : amount);
        case ReasonKind::none:
        case ReasonKind::count: break;
    }
    return "no more is known";
}

std::string_view text_of_status(int status) noexcept {
    switch (status) {
        case IBV_WC_LOC_LEN_ERR: return "local length error";
        case IBV_WC_LOC_QP_OP_ERR: return "local QP operation error";
        case IBV_WC_LOC_PROT_ERR: return "local protection error";
        case IBV_WC_WR_FLUSH_ERR: return "Work Request Flushed Error";
        case IBV_WC_MW_BIND_ERR: return "memory management operation error";
        case IBV_WC_BAD_RESP_ERR: return "bad response error";
        case IBV_WC_REM_INV_REQ_ERR: return "remote invalid request error";
        case IBV_WC_REM_ACCESS_ERR: return "remote access error";
        case IBV_WC_REM_OP_ERR: return "remote operation error";
        case IBV_WC_RETRY_EXC_ERR: return "transport retry counter exceeded";
        case IBV_WC_RNR_RETRY_EXC_ERR: return "RNR retry counter exceeded";
        default: return "error";
    }
}

}  // namespace millrace::soft
