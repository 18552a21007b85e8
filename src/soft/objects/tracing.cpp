#include "objects/tracing.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "layout/state_names.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "process/context.hpp"
#include "queue_pair/queue_pair.hpp"
#include "transport/pieces.hpp"
#include "transport/request.hpp"

namespace millrace::soft {
namespace {

using Lines = fmt::memory_buffer;

template <class... Arguments>
void add(Lines& lines, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(lines), format, std::forward<Arguments>(arguments)...);
}

/// By ibv_wr_opcode.
std::string_view name_of_request(unsigned opcode) noexcept {
    constexpr std::string_view names[] = {
        "WRITE",       "WRITE_WITH_IMM",      "SEND",          "SEND_WITH_IMM",
        "READ",        "COMPARE_AND_SWAP",    "FETCH_AND_ADD", "LOCAL_INVALIDATE",
        "BIND_WINDOW", "SEND_WITH_INVALIDATE"};
    return opcode < std::size(names) ? names[opcode] : "OTHER";
}

std::string_view traced_name(ibv_wc_opcode opcode) noexcept {
    switch (opcode) {
        case IBV_WC_SEND: return "SEND";
        case IBV_WC_RDMA_WRITE: return "WRITE";
        case IBV_WC_RDMA_READ: return "READ";
        case IBV_WC_COMP_SWAP: return "COMPARE_AND_SWAP";
        case IBV_WC_FETCH_ADD: return "FETCH_AND_ADD";
        case IBV_WC_BIND_MW: return "BIND_WINDOW";
        case IBV_WC_LOCAL_INV: return "LOCAL_INVALIDATE";
        case IBV_WC_RECV: return "RECEIVE";
        case IBV_WC_RECV_RDMA_WITH_IMM: return "RECEIVE_OF_WRITE";
        default: return "OTHER";
    }
}

std::string_view name_of(ibv_wc_status status) noexcept {
    constexpr std::string_view names[] = {
        "SUCCESS",          "LOC_LEN_ERR",       "LOC_QP_OP_ERR",     "LOC_EEC_OP_ERR",
        "LOC_PROT_ERR",     "WR_FLUSH_ERR",      "MW_BIND_ERR",       "BAD_RESP_ERR",
        "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",   "REM_ACCESS_ERR",    "REM_OP_ERR",
        "RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",  "REM_INV_RD_REQ_ERR",
        "REM_ABORT_ERR",    "INV_EECN_ERR",      "INV_EEC_STATE_ERR", "FATAL_ERR",
        "RESP_TIMEOUT_ERR", "GENERAL_ERR"};
    const auto index = static_cast<std::size_t>(status);
    return index < std::size(names) ? names[index] : "UNKNOWN";
}

/// What every line begins with. The comma behind it is the next field's.
void begin(Lines& lines, std::string_view call) {
    add(lines, R"({{"time":{},"pid":{},"thread":{},"call":"{}")",
        base::Clock::now().time_since_epoch().count(), ::getpid(), ::syscall(SYS_gettid), call);
}
void end(Lines& lines, int error = 0) {
    if (error != 0) add(lines, R"(,"error":"{}")", base::describe_errno(error));
    add(lines, "}}\n");
}

void add_receives(Lines& lines, std::string_view call, std::string_view queue, std::uint32_t number,
                  const ibv_recv_wr* wr) {
    for (; wr != nullptr; wr = wr->next) {
        begin(lines, call);
        add(lines, R"(,"{}":{},"wr_id":{},"bytes":{},"pieces":{})", queue, number, wr->wr_id,
            bytes_of(wr->sg_list, wr->num_sge), wr->num_sge);
        end(lines);
    }
}

}  // namespace

std::unique_ptr<Tracing> Tracing::from_environment() {
    const char* const path = std::getenv("MILLRACE_TRACE");
    if (path == nullptr || *path == '\0') return nullptr;
    Descriptor file{::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)};
    int error = file ? 0 : errno;
    std::unique_ptr<Tracing> tracing{new Tracing{std::move(file)}};
    if (error == 0) error = tracing->opened();  // the first line tells whether there is room
    if (error == 0) return tracing;
    base::throw_errno(error, "trace the program", path, "let MILLRACE_TRACE name a file with room");
}

void Tracing::install(Context& context) {
    context.tracing = from_environment();
    if (context.tracing == nullptr) return;
    ibv_context_ops& ops = context.context.ops;
    context.tracing->inner_ = ops;
    ops.post_send = post_send;
    ops.post_recv = post_recv;
    ops.post_srq_recv = post_srq_recv;
    ops.poll_cq = poll_cq;
}

Tracing& Tracing::of(ibv_context* context) noexcept { return *context_of(context)->tracing; }

template <class Fill>
void Tracing::write(Fill&& fill) noexcept {
    const base::Uncancelled held;
    try {
        Lines lines;
        fill(lines);
        std::size_t done = 0;
        while (done < lines.size()) {
            const ssize_t n = ::write(file_.get(), lines.data() + done, lines.size() - done);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0 && lost_.exchange(n < 0 ? errno : ENOSPC) == 0 && inner_.poll_cq != nullptr)
                base::log(base::LogLevel::error, "soft", "the trace lacks lines from here on: {}",
                          base::describe_errno(lost_));
            if (n <= 0) return;
            done += static_cast<std::size_t>(n);
        }
    } catch (const std::exception&) {  // no memory: the program goes on
    }
}

template <class Fill>
void Tracing::write_line(std::string_view call, int error, Fill&& fill) noexcept {
    write([&](Lines& lines) {
        begin(lines, call);
        fill(lines);
        end(lines, error);
    });
}

template <class Request, class Post>
int Tracing::pass_on(std::string_view call, std::string_view queue, std::uint32_t number,
                     Request** bad, Post&& post) noexcept {
    Request* refused = nullptr;
    const int error = post(&refused);
    if (error == 0) return 0;
    if (bad != nullptr) *bad = refused;
    write_line(call, error, [&](Lines& lines) {
        add(lines, R"(,"{}":{})", queue, number);
        if (refused != nullptr) add(lines, R"(,"wr_id":{})", refused->wr_id);
        add(lines, R"(,"refused":"this request and those behind it")");
    });
    return error;
}

// A request is written down before it is posted: so no other thread or process can be seen to
// complete it first, and it is there even if posting it ends the program.
int Tracing::post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    Tracing& tracing = of(qp->context);
    const unsigned always = static_cast<const QueuePair*>(qp)->always;  // by sq_sig_all
    tracing.write([&](Lines& lines) {
        for (const ibv_send_wr* one = wr; one != nullptr; one = one->next) {
            begin(lines, "post_send");
            add(lines, R"(,"qp":{},"wr_id":{},"opcode":"{}","bytes":{},"pieces":{},"signaled":{})",
                qp->qp_num, one->wr_id, name_of_request(raw_opcode(*one)),
                bytes_of(one->sg_list, one->num_sge), one->num_sge,
                ((one->send_flags | always) & IBV_SEND_SIGNALED) != 0);
            if ((one->send_flags & IBV_SEND_INLINE) != 0) add(lines, R"(,"inline":true)");
            if ((one->send_flags & IBV_SEND_FENCE) != 0) add(lines, R"(,"fence":true)");
            if ((one->send_flags & IBV_SEND_SOLICITED) != 0) add(lines, R"(,"solicited":true)");
            switch (raw_opcode(*one)) {
                case IBV_WR_RDMA_WRITE:
                case IBV_WR_RDMA_WRITE_WITH_IMM:
                case IBV_WR_RDMA_READ:
                    add(lines, R"(,"remote_address":"{:#x}","rkey":"{:#x}")",
                        one->wr.rdma.remote_addr, one->wr.rdma.rkey);
                    break;
                case IBV_WR_ATOMIC_CMP_AND_SWP:
                case IBV_WR_ATOMIC_FETCH_AND_ADD:
                    add(lines, R"(,"remote_address":"{:#x}","rkey":"{:#x}")",
                        one->wr.atomic.remote_addr, one->wr.atomic.rkey);
                    break;
                default: break;
            }
            if (const unsigned opcode = raw_opcode(*one);
                opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_IMM) {
                add(lines, R"(,"immediate":"{:#x}")", be32toh(one->imm_data));
            }
            if (qp->qp_type == IBV_QPT_UD) {
                add(lines, R"(,"to":{})", one->wr.ud.remote_qpn);
            }
            end(lines);
        }
    });
    return tracing.pass_on("post_send", "qp", qp->qp_num, bad, [&](ibv_send_wr** refused) {
        return tracing.inner_.post_send(qp, wr, refused);
    });
}

int Tracing::post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    Tracing& tracing = of(qp->context);
    tracing.write([&](Lines& lines) { add_receives(lines, "post_recv", "qp", qp->qp_num, wr); });
    return tracing.pass_on("post_recv", "qp", qp->qp_num, bad, [&](ibv_recv_wr** refused) {
        return tracing.inner_.post_recv(qp, wr, refused);
    });
}

int Tracing::post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    Tracing& tracing = of(srq->context);
    tracing.write(
        [&](Lines& lines) { add_receives(lines, "post_srq_recv", "srq", srq->handle, wr); });
    return tracing.pass_on("post_srq_recv", "srq", srq->handle, bad, [&](ibv_recv_wr** refused) {
        return tracing.inner_.post_srq_recv(srq, wr, refused);
    });
}

int Tracing::poll_cq(ibv_cq* cq, int count, ibv_wc* completions) {
    Tracing& tracing = of(cq->context);
    const int found = tracing.inner_.poll_cq(cq, count, completions);
    tracing.polled(found, completions);
    return found;
}

void Tracing::polled(int found, const ibv_wc* completions) noexcept {
    if (found < 0) write_line("poll_cq", EIO, [](Lines&) {});
    if (found <= 0) return;
    write([&](Lines& lines) {
        for (int i = 0; i < found; ++i) {
            const ibv_wc& one = completions[i];
            begin(lines, "completion");
            add(lines, R"(,"qp":{},"wr_id":{},"status":"{}")", one.qp_num, one.wr_id,
                name_of(one.status));
            // In an error, only these fields mean something.
            if (one.status == IBV_WC_SUCCESS) {
                add(lines, R"(,"opcode":"{}","bytes":{})", traced_name(one.opcode), one.byte_len);
                if ((one.wc_flags & IBV_WC_WITH_IMM) != 0) {
                    add(lines, R"(,"immediate":"{:#x}")", be32toh(one.imm_data));
                }
            }
            end(lines);
        }
    });
}

int Tracing::opened() noexcept {
    write_line("open_device", 0, [](Lines& lines) {
        char name[32] = {};
        const Descriptor file{::open("/proc/self/comm", O_RDONLY | O_CLOEXEC)};
        const ssize_t length = file ? ::read(file.get(), name, sizeof name - 1) : 0;
        std::string program;
        for (ssize_t i = 0; i < length && name[i] != '\n'; ++i) {
            const bool plain = name[i] >= ' ' && name[i] < 127 && name[i] != '"' && name[i] != '\\';
            program += plain ? name[i] : '?';
        }
        add(lines, R"(,"program":"{}")", program);
    });
    return lost_;
}

void Tracing::closes() noexcept {
    write_line("close_device", 0, [](Lines&) {});
}

void Tracing::queue_pair_made(const ibv_qp* qp, ibv_qp_type type, int error) noexcept {
    write_line("create_qp", error, [&](Lines& lines) {
        if (qp != nullptr) add(lines, R"(,"qp":{})", qp->qp_num);
        add(lines, R"(,"type":"{}")", type_name(type));
    });
}

void Tracing::queue_pair_ends(std::uint32_t qpn, int error) noexcept {
    write_line("destroy_qp", error, [&](Lines& lines) { add(lines, R"(,"qp":{})", qpn); });
}

void Tracing::modified(const ibv_qp* qp, const ibv_qp_attr& attributes, int mask,
                       int error) noexcept {
    write_line("modify_qp", error, [&](Lines& lines) {
        add(lines, R"(,"qp":{})", qp->qp_num);
        if ((mask & IBV_QP_STATE) != 0) {
            add(lines, R"(,"state":"{}")", state_name(attributes.qp_state));
        }
        if ((mask & IBV_QP_DEST_QPN) != 0) add(lines, R"(,"to":{})", attributes.dest_qp_num);
    });
}

void Tracing::registered(const ibv_mr* mr, const void* address, std::size_t length, unsigned access,
                         int error) noexcept {
    write_line("reg_mr", error, [&](Lines& lines) {
        add(lines, R"(,"address":"{:#x}","bytes":{},"access":"{:#x}")",
            reinterpret_cast<std::uintptr_t>(address), length, access);
        if (mr != nullptr) add(lines, R"(,"lkey":"{:#x}","rkey":"{:#x}")", mr->lkey, mr->rkey);
    });
}

void Tracing::deregisters(const ibv_mr& mr, int error) noexcept {
    write_line("dereg_mr", error, [&](Lines& lines) {
        add(lines, R"(,"address":"{:#x}","bytes":{},"lkey":"{:#x}")",
            reinterpret_cast<std::uintptr_t>(mr.addr), mr.length, mr.lkey);
    });
}

}  // namespace millrace::soft
