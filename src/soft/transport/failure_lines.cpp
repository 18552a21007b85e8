#include "transport/failure_lines.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "layout/state_names.hpp"
#include "millrace/base/log.hpp"
#include "system/cable_time.hpp"
#include "transport/request.hpp"

namespace millrace::soft {
namespace {

/// Each kind has its own allowance of lines.
enum class Mistake : std::uint8_t {
    buffer_changed,
    memory_gone,
    remote_key,
    local_key,
    receive,
    state,
    way,
    count
};

constexpr std::uint32_t free_lines = 8;
constexpr std::int64_t pause_ns = 1'000'000'000;

struct Allowance {
    std::atomic<std::uint32_t> said{0};
    std::atomic<std::int64_t> next{0};
    std::atomic<std::uint64_t> left_out{0};
};

[[nodiscard]] Allowance& allowance_of(Mistake kind) noexcept {
    static std::array<Allowance, static_cast<std::size_t>(Mistake::count)> all;
    return all[static_cast<std::size_t>(kind)];
}

/// May a line about this kind be said now? The first eight, then one a second: not more than can
/// be read.
[[nodiscard]] bool may_complain(Mistake kind) noexcept {
    Allowance& allowance = allowance_of(kind);
    if (allowance.said.fetch_add(1, std::memory_order_relaxed) < free_lines) return true;
    allowance.said.store(free_lines, std::memory_order_relaxed);
    std::int64_t next = allowance.next.load(std::memory_order_relaxed);
    const std::int64_t now = cable_now();
    if (now >= next && allowance.next.compare_exchange_strong(next, now + pause_ns)) return true;
    allowance.left_out.fetch_add(1, std::memory_order_relaxed);
    return false;
}

/// `text` is completed by how many like it were left out.
void say_complaint(Mistake kind, std::string_view text) noexcept {
    const std::uint64_t left_out = allowance_of(kind).left_out.exchange(0);
    if (left_out == 0) return base::log_line(base::LogLevel::error, "soft", text);
    base::log(base::LogLevel::error, "soft", "{} ({} more like it were not shown)", text, left_out);
}

[[nodiscard]] std::string_view name_of(ibv_wc_opcode opcode) noexcept {
    switch (opcode) {
        case IBV_WC_SEND: return "SEND";
        case IBV_WC_RDMA_WRITE: return "WRITE";
        case IBV_WC_RDMA_READ: return "READ";
        case IBV_WC_COMP_SWAP: return "compare-and-swap";
        case IBV_WC_FETCH_ADD: return "fetch-and-add";
        default: return "request";
    }
}

[[nodiscard]] Mistake kind_of(ibv_wc_status status) noexcept {
    switch (status) {
        case IBV_WC_LOC_PROT_ERR:
        case IBV_WC_LOC_LEN_ERR:
        case IBV_WC_LOC_QP_OP_ERR: return Mistake::local_key;
        case IBV_WC_RNR_RETRY_EXC_ERR:
        case IBV_WC_RETRY_EXC_ERR: return Mistake::receive;
        default: return Mistake::remote_key;
    }
}

[[nodiscard]] std::string names_of_attributes(int mask) {
    constexpr NamedFlag names[] = {
        {IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE"},
        {IBV_QP_EN_SQD_ASYNC_NOTIFY, "IBV_QP_EN_SQD_ASYNC_NOTIFY"},
        {IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"},
        {IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"},
        {IBV_QP_PORT, "IBV_QP_PORT"},
        {IBV_QP_QKEY, "IBV_QP_QKEY"},
        {IBV_QP_AV, "IBV_QP_AV"},
        {IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"},
        {IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"},
        {IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"},
        {IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"},
        {IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"},
        {IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"},
        {IBV_QP_ALT_PATH, "IBV_QP_ALT_PATH"},
        {IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"},
        {IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"},
        {IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"},
        {IBV_QP_PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE"},
        {IBV_QP_CAP, "IBV_QP_CAP"},
        {IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"},
    };
    return text_of_flags(static_cast<unsigned>(mask), names);
}

/// Makes the text only if it may be said; a message less where there is no memory for it.
template <class Make>
void tell(Mistake kind, Make&& make) noexcept {
    if (!may_complain(kind)) return;
    try {
        say_complaint(kind, make());
    } catch (const std::exception&) {
    }
}

}  // namespace

void tell_failure(std::uint32_t from, std::uint32_t to, const SentSlot& posted,
                  ibv_wc_status status, const Reason& reason) noexcept {
    tell(kind_of(status), [&] {
        return fmt::format(
            "queue pair {:#x}, {} with wr_id {:#x} to queue pair {:#x} fails with {}: {}", from,
            name_of(posted.opcode), posted.wr_id, to, text_of_status(status), text_of(reason));
    });
}

void tell_refusal(std::uint32_t at, std::uint32_t from, ibv_wc_status status,
                  const Reason& reason) noexcept {
    tell(Mistake::remote_key, [&] {
        return fmt::format(
            "queue pair {:#x} refuses a request of its peer, queue pair {:#x}, and goes to "
            "ERROR{}: {}",
            at, from,
            status == IBV_WC_WR_FLUSH_ERR
                ? std::string{}
                : fmt::format(" (its oldest receive fails with {})", text_of_status(status)),
            text_of(reason));
    });
}

void tell_transition(const ibv_qp& qp, ibv_qp_state to, int mask, int required,
                     int optional) noexcept {
    tell(Mistake::state, [&] {
        const int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
        const int missing = required & ~given;
        const int surplus = given & ~(required | optional);
        std::string text =
            fmt::format("queue pair {:#x}, ibv_modify_qp from {} to {} is refused:", qp.qp_num,
                        state_name(qp.state), state_name(to));
        if (missing != 0) text += fmt::format(" it needs {}", names_of_attributes(missing));
        if (surplus != 0) {
            text += fmt::format("{} it does not take {}", missing != 0 ? ", and" : "",
                                names_of_attributes(surplus));
        }
        return text;
    });
}

void tell_no_transition(const ibv_qp& qp, ibv_qp_state to) noexcept {
    tell(Mistake::state, [&] {
        return fmt::format(
            "queue pair {:#x}, ibv_modify_qp from {} to {} is refused: there is no such "
            "transition; the way is RESET, INIT, RTR, RTS, and from anywhere to ERROR or RESET",
            qp.qp_num, state_name(qp.state), state_name(to));
    });
}

void tell_way(const Reason& way, std::uint32_t from, std::uint32_t to) noexcept {
    tell(Mistake::way, [&] {
        return fmt::format(
            "queue pair {:#x} {} to queue pair {:#x}: {}", from,
            way.kind == ReasonKind::other_mtu ? "cannot send everything" : "cannot send", to,
            text_of(way));
    });
}

void tell_changed_buffer(std::uint32_t from, const SentSlot& posted, std::uint32_t bytes) noexcept {
    tell(Mistake::buffer_changed, [&] {
        return fmt::format(
            "queue pair {:#x}, request with wr_id {:#x} ({} of {} bytes): its buffer was changed "
            "between ibv_post_send and its completion, so that anything may have been sent; leave "
            "the buffer alone until the completion of this request, or of a later one, was polled",
            from, posted.wr_id, name_of(posted.opcode), bytes);
    });
}

void tell_memory_gone(std::uint32_t from, const SentSlot& posted, std::uint32_t key) noexcept {
    tell(Mistake::memory_gone, [&] {
        return fmt::format(
            "the region with key {:#x} is deregistered while queue pair {:#x}, {} with wr_id "
            "{:#x}, still needs it; wait for the completion first",
            key, from, name_of(posted.opcode), posted.wr_id);
    });
}

}  // namespace millrace::soft
