// The extended completion queue: ibv_start_poll, ibv_next_poll, ibv_end_poll and what they read,
// over the same polling as ibv_poll_cq; and ibv_create_cq_ex.
#include <time.h>

#include <cerrno>
#include <cstdint>
#include <new>

#include "millrace/soft/device.hpp"
#include "objects/polling.hpp"
#include "objects/tracing.hpp"
#include "process/context.hpp"
#include "process/control_calls.hpp"
#include "process/domains.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint64_t supported_fields =
    IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP |
    IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS |
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

[[nodiscard]] std::uint64_t nanoseconds_of(clockid_t clock) noexcept {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

/// The one that time stamps show.
[[nodiscard]] std::uint64_t device_clock() noexcept { return nanoseconds_of(CLOCK_MONOTONIC); }

[[nodiscard]] ibv_cq* plain(ibv_cq_ex* cq) noexcept { return reinterpret_cast<ibv_cq*>(cq); }
[[nodiscard]] ExtendedPoll& poll_of(ibv_cq_ex* cq) noexcept {
    return *static_cast<PolledQueue*>(plain(cq))->extended_poll;
}
/// By who has started to poll.
[[nodiscard]] ReadCompletion& completion_of(ibv_cq_ex* cq) noexcept {
    auto& turn = poll_of(cq).turn;
    return turn(turn.held_by_hand());
}

int next_poll(ibv_cq_ex* cq) noexcept {
    ReadCompletion& read = completion_of(cq);
    auto& queue = *static_cast<PolledQueue*>(plain(cq));
    int count = 0;
    if (queue.stamps) {
        count = poll_with_stamp(queue, read.current, read.clock);
        Tracing* const tracing = context_of(cq->context)->tracing.get();
        if (tracing != nullptr) tracing->polled(count, &read.current);
    } else {
        count = cq->context->ops.poll_cq(plain(cq), 1, &read.current);
    }
    if (count != 1) return count == 0 ? ENOENT : EIO;
    cq->status = read.current.status;
    cq->wr_id = read.current.wr_id;
    if (poll_of(cq).with_wallclock) {
        read.wallclock = nanoseconds_of(CLOCK_REALTIME) - (device_clock() - read.clock);
    }
    return 0;
}

void end_poll(ibv_cq_ex* cq) noexcept {
    ExtendedPoll& poll = poll_of(cq);
    if (!poll.single_threaded) poll.turn.lock().unlock();
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attributes) noexcept {
    if (attributes->comp_mask != 0) return EINVAL;
    ExtendedPoll& poll = poll_of(cq);
    if (!poll.single_threaded) poll.turn.lock().lock_often();
    const int error = next_poll(cq);
    if (error != 0) end_poll(cq);  // who starts in vain does not end
    return error;
}

template <auto field, class Result = std::uint32_t>
Result read(ibv_cq_ex* cq) noexcept {
    return completion_of(cq).current.*field;
}
std::uint64_t read_clock(ibv_cq_ex* cq) noexcept { return completion_of(cq).clock; }
std::uint64_t read_wallclock(ibv_cq_ex* cq) noexcept { return completion_of(cq).wallclock; }
// Nobody can have asked for these: create_cq_ex refuses their flags.
std::uint16_t read_no_vlan(ibv_cq_ex*) noexcept { return 0; }
std::uint32_t read_no_flow_tag(ibv_cq_ex*) noexcept { return 0; }
void read_no_tag_matching(ibv_cq_ex*, ibv_wc_tm_info* information) noexcept { *information = {}; }

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) noexcept {
    constexpr std::uint32_t known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    constexpr std::uint32_t known_flags =
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    const std::uint32_t mask = attributes->comp_mask;
    if ((attributes->wc_flags & ~supported_fields) != 0 || (mask & ~known) != 0) {
        return refused(EOPNOTSUPP);
    }
    const std::uint32_t flags = (mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? attributes->flags : 0;
    if ((flags & ~known_flags) != 0) return refused(EOPNOTSUPP);
    ProtectionDomain* domain = nullptr;
    if ((mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0) {
        // Only a parent domain says anything to a completion queue.
        domain = static_cast<ProtectionDomain*>(attributes->parent_domain);
        if (domain == nullptr || domain->context != context || domain->parent_of == nullptr) {
            return refused(EINVAL);
        }
    }
    if (attributes->cqe > (4U << 20)) return refused(EINVAL);
    ibv_cq* const made =
        create_cq(context, static_cast<int>(attributes->cqe), attributes->cq_context,
                  attributes->channel, static_cast<int>(attributes->comp_vector));
    if (made == nullptr) return nullptr;
    auto& cq = *static_cast<PolledQueue*>(made);
    const bool single_threaded = (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0 ||
                                 (domain != nullptr && domain->single_threaded());
    const bool with_wallclock =
        (attributes->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0;
    cq.extended_poll.reset(new (std::nothrow) ExtendedPoll{single_threaded, with_wallclock});
    if (cq.extended_poll == nullptr) {
        destroy_cq(made);
        return refused(ENOMEM);
    }
    cq.overrun_ignored = (flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
    cq.stamps = with_wallclock || (attributes->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0;
    ibv_cq_ex& extended = *cq.extended();
    extended.comp_mask = 0;
    extended.status = IBV_WC_SUCCESS;
    extended.wr_id = 0;
    extended.start_poll = start_poll;
    extended.next_poll = next_poll;
    extended.end_poll = end_poll;
    extended.read_opcode = read<&ibv_wc::opcode, ibv_wc_opcode>;
    extended.read_vendor_err = read<&ibv_wc::vendor_err>;
    extended.read_byte_len = read<&ibv_wc::byte_len>;
    extended.read_imm_data = read<&ibv_wc::imm_data>;
    extended.read_qp_num = read<&ibv_wc::qp_num>;
    extended.read_src_qp = read<&ibv_wc::src_qp>;
    extended.read_wc_flags = read<&ibv_wc::wc_flags>;
    extended.read_slid = read<&ibv_wc::slid>;
    extended.read_sl = read<&ibv_wc::sl, std::uint8_t>;
    extended.read_dlid_path_bits = read<&ibv_wc::dlid_path_bits, std::uint8_t>;
    extended.read_completion_ts = read_clock;
    extended.read_cvlan = read_no_vlan;
    extended.read_flow_tag = read_no_flow_tag;
    extended.read_tm_info = read_no_tag_matching;
    extended.read_completion_wallclock_ns = read_wallclock;
    return &extended;
}

int query_rt_values(ibv_context*, ibv_values_ex* values) noexcept {
    if ((values->comp_mask & ~std::uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) != 0) return EINVAL;
    if ((values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK) != 0) {
        values->raw_clock.tv_sec = 0;
        values->raw_clock.tv_nsec = static_cast<long>(device_clock());
    }
    return 0;
}

}  // namespace millrace::soft
