// A program of libibverbs' that calls every function of <infiniband/verbs.h> on the first device it
// finds by the name it is given: each has to work, or to refuse with EOPNOTSUPP; none may crash. It
// knows nothing of the soft device. Prints one line per function; every_function_test.cpp runs it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" {
int ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, size_t size);
const char* ibv_get_sysfs_path(void);
int ibv_dontfork_range(void* base, size_t size);
int ibv_dofork_range(void* base, size_t size);
}

namespace {

int failures = 0;

void say(const char* name, bool good, const char* what) {
    std::printf("%s %s %s\n", name, good ? "good" : "BAD", what);
    if (!good) ++failures;
}

/// It has to work.
void works(const char* name, bool good) { say(name, good, good ? "" : std::strerror(errno)); }

/// 0, or an errno value that must be EOPNOTSUPP; -1 stands for errno.
bool works_or_refuses(const char* name, int result) {
    const int error = result == -1 ? errno : result;
    say(name, error == 0 || error == EOPNOTSUPP || error == -EOPNOTSUPP,
        error == 0 ? "" : std::strerror(error < 0 ? -error : error));
    return error == 0;
}

/// An object, or NULL and EOPNOTSUPP.
template <class Object>
Object* makes_or_refuses(const char* name, Object* object) {
    const int error = errno;
    say(name, object != nullptr || error == EOPNOTSUPP,
        object != nullptr ? "" : std::strerror(error));
    return object;
}

#define WORKS(name, condition) (errno = 0, works(#name, condition))
#define MAY_REFUSE(name, ...) (errno = 0, works_or_refuses(#name, name(__VA_ARGS__)))
#define MAKES(name, ...) (errno = 0, makes_or_refuses(#name, name(__VA_ARGS__)))
/// For functions without a result: that they return is all.
#define RETURNS(name, ...) (name(__VA_ARGS__), works(#name, true))

alignas(4096) char buffer[1 << 16];

struct Objects {
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq_ex* cq_ex = nullptr;
    ibv_cq* cq = nullptr;
    ibv_mr* mr = nullptr;
    ibv_qp* qp = nullptr;
    ibv_qp_ex* qp_ex = nullptr;
};

void devices(Objects& my, const std::string& wanted) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    WORKS(ibv_get_device_list, list != nullptr && count > 0);
    ibv_device* device = nullptr;
    for (int i = 0; i < count; ++i) {
        if (wanted == ibv_get_device_name(list[i])) device = list[i];
    }
    WORKS(ibv_get_device_name, device != nullptr);
    if (device == nullptr) std::exit(2);
    WORKS(ibv_get_device_guid, ibv_get_device_guid(device) != 0);
    WORKS(ibv_get_device_index, ibv_get_device_index(device) >= -1);
    my.context = ibv_open_device(device);
    WORKS(ibv_open_device, my.context != nullptr);
    RETURNS(ibv_free_device_list, list);

    ibv_device_attr attributes{};
    WORKS(ibv_query_device, ibv_query_device(my.context, &attributes) == 0);
    ibv_device_attr_ex extended{};
    WORKS(ibv_query_device_ex, ibv_query_device_ex(my.context, nullptr, &extended) == 0);
    ibv_port_attr port{};
    WORKS(ibv_query_port, ibv_query_port(my.context, 1, &port) == 0 &&
                              port.state == IBV_PORT_ACTIVE &&
                              ibv_query_port(my.context, 2, &port) != 0);
    ibv_gid gid{};
    WORKS(ibv_query_gid, ibv_query_gid(my.context, 1, 0, &gid) == 0);
    ibv_gid_entry entry{};
    WORKS(ibv_query_gid_ex, ibv_query_gid_ex(my.context, 1, 0, &entry, 0) == 0);
    works("_ibv_query_gid_ex", _ibv_query_gid_ex(my.context, 1, 0, &entry, 0, sizeof entry) == 0);
    static ibv_gid_entry entries[256];
    WORKS(ibv_query_gid_table, ibv_query_gid_table(my.context, entries, 256, 0) > 0);
    works("_ibv_query_gid_table",
          _ibv_query_gid_table(my.context, entries, 256, 0, sizeof entries[0]) > 0);
    __be16 key = 0;
    WORKS(ibv_query_pkey, ibv_query_pkey(my.context, 1, 0, &key) == 0);
    WORKS(ibv_get_pkey_index, ibv_get_pkey_index(my.context, 1, key) == 0);
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    MAY_REFUSE(ibv_query_rt_values_ex, my.context, &values);
    char text[64];
    WORKS(ibv_read_sysfs_file, ibv_read_sysfs_file("/proc/sys/kernel", "ostype", text, 64) > 0);
    WORKS(ibv_get_sysfs_path, ibv_get_sysfs_path() != nullptr);
}

void names() {
    WORKS(ibv_wc_status_str, ibv_wc_status_str(IBV_WC_SUCCESS) != nullptr);
    WORKS(ibv_event_type_str, ibv_event_type_str(IBV_EVENT_CQ_ERR) != nullptr);
    WORKS(ibv_node_type_str, ibv_node_type_str(IBV_NODE_CA) != nullptr);
    WORKS(ibv_port_state_str, ibv_port_state_str(IBV_PORT_ACTIVE) != nullptr);
    WORKS(ibv_rate_to_mult, ibv_rate_to_mult(IBV_RATE_10_GBPS) == 4);
    WORKS(mult_to_ibv_rate, mult_to_ibv_rate(4) == IBV_RATE_10_GBPS);
    WORKS(ibv_rate_to_mbps, ibv_rate_to_mbps(IBV_RATE_10_GBPS) == 10000);
    WORKS(mbps_to_ibv_rate, mbps_to_ibv_rate(10000) == IBV_RATE_10_GBPS);
    WORKS(ibv_inc_rkey, ibv_inc_rkey(0x100) == 0x101);
    WORKS(ibv_flow_label_to_udp_sport, ibv_flow_label_to_udp_sport(1) >= 0xc000);
    WORKS(ibv_is_qpt_supported, ibv_is_qpt_supported(1U << IBV_QPT_RC, IBV_QPT_RC) == 1);
    MAY_REFUSE(ibv_fork_init);
    WORKS(ibv_is_fork_initialized, ibv_is_fork_initialized() != IBV_FORK_DISABLED);
    works("ibv_dontfork_range", ibv_dontfork_range(buffer, 4096) == 0);
    works("ibv_dofork_range", ibv_dofork_range(buffer, 4096) == 0);
}

/// Null if pages of it that nobody has touched are not there then.
ibv_mr* registered_untouched(ibv_pd* pd, unsigned access) {
    constexpr std::size_t pages = 16;
    constexpr std::size_t size = pages * 4096;
    void* const fresh =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ibv_mr* const region = ibv_reg_mr(pd, fresh, size, access);
    unsigned char there[pages] = {};
    const bool known = mincore(fresh, size, there) == 0;
    const auto missing = std::count(there, there + pages, 0);
    return known && missing == 0 ? region : nullptr;
}

void memory(Objects& my) {
    my.pd = ibv_alloc_pd(my.context);
    WORKS(ibv_alloc_pd, my.pd != nullptr);
    constexpr unsigned access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    my.mr = ibv_reg_mr(my.pd, buffer, sizeof buffer, access);
    WORKS(ibv_reg_mr, my.mr != nullptr);
    ibv_mr* other = registered_untouched(my.pd, access);
    works("ibv_reg_mr", other != nullptr && ibv_dereg_mr(other) == 0);
    other = ibv_reg_mr_iova(my.pd, buffer, 4096, 0x1000, access);
    WORKS(ibv_reg_mr_iova, other != nullptr);
    WORKS(ibv_dereg_mr, ibv_dereg_mr(other) == 0);
    other = ibv_reg_mr_iova2(my.pd, buffer, 4096, 0x1000, access | IBV_ACCESS_RELAXED_ORDERING);
    WORKS(ibv_reg_mr_iova2, other != nullptr);
    errno = 0;
    const int result = ibv_rereg_mr(other, IBV_REREG_MR_CHANGE_ACCESS, my.pd, nullptr, 0, access);
    works("ibv_rereg_mr", result == 0 || errno == EOPNOTSUPP);
    works("ibv_dereg_mr", ibv_dereg_mr(other) == 0);
    if (ibv_mr* null = MAKES(ibv_alloc_null_mr, my.pd)) ibv_dereg_mr(null);
    ibv_sge range{reinterpret_cast<std::uint64_t>(buffer), 4096, my.mr->lkey};
    MAY_REFUSE(ibv_advise_mr, my.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1);
    if (ibv_mr* shared = MAKES(ibv_reg_dmabuf_mr, my.pd, 0, 4096, 0, 0, access))
        ibv_dereg_mr(shared);
    ibv_context* const twin = ibv_import_device(dup(my.context->cmd_fd));
    errno = 0;
    ibv_context* const no_device = ibv_import_device(-1);
    works("ibv_import_device", twin != nullptr && no_device == nullptr && errno != 0);
    ibv_pd* const domain = ibv_import_pd(twin, my.pd->handle);
    WORKS(ibv_import_pd, domain != nullptr && domain->handle == my.pd->handle);
    ibv_mr* const region = ibv_import_mr(domain, my.mr->handle);
    WORKS(ibv_import_mr, region != nullptr && region->rkey == my.mr->rkey);
    RETURNS(ibv_unimport_mr, region);
    RETURNS(ibv_unimport_pd, domain);

    ibv_alloc_dm_attr wanted{};
    wanted.length = 4096;
    ibv_dm none{};
    none.context = my.context;
    ibv_dm* const device_memory = MAKES(ibv_alloc_dm, my.context, &wanted);
    if (device_memory != nullptr) {
        WORKS(ibv_memcpy_to_dm, ibv_memcpy_to_dm(device_memory, 0, buffer, 64) == 0);
        WORKS(ibv_memcpy_from_dm, ibv_memcpy_from_dm(buffer, device_memory, 0, 64) == 0);
        other = MAKES(ibv_reg_dm_mr, my.pd, device_memory, 0, 4096,
                      IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
        if (other != nullptr) ibv_dereg_mr(other);
        ibv_dm* const imported = ibv_import_dm(twin, device_memory->handle);
        WORKS(ibv_import_dm,
              imported != nullptr && ibv_memcpy_from_dm(buffer, imported, 0, 8) == 0);
        RETURNS(ibv_unimport_dm, imported);
        MAY_REFUSE(ibv_free_dm, device_memory);
    } else {
        MAKES(ibv_reg_dm_mr, my.pd, &none, 0, 4096, access);
        MAY_REFUSE(ibv_free_dm, &none);
    }

    works("ibv_close_device", ibv_close_device(twin) == 0);

    ibv_td_init_attr nothing{};
    ibv_td* const thread = MAKES(ibv_alloc_td, my.context, &nothing);
    ibv_parent_domain_init_attr both{};
    both.pd = my.pd;
    both.td = thread;
    if (ibv_pd* parent = MAKES(ibv_alloc_parent_domain, my.context, &both)) ibv_dealloc_pd(parent);
    if (thread != nullptr) MAY_REFUSE(ibv_dealloc_td, thread);
}

void completion_queues(Objects& my) {
    my.channel = ibv_create_comp_channel(my.context);
    WORKS(ibv_create_comp_channel, my.channel != nullptr);
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = 256;
    wanted.channel = my.channel;
    wanted.wc_flags = IBV_WC_STANDARD_FLAGS;
    my.cq_ex = ibv_create_cq_ex(my.context, &wanted);
    WORKS(ibv_create_cq_ex, my.cq_ex != nullptr);
    my.cq = ibv_cq_ex_to_cq(my.cq_ex);
    WORKS(ibv_cq_ex_to_cq, my.cq->context == my.context && my.cq->channel == my.channel);
    ibv_cq* const plain = ibv_create_cq(my.context, 16, nullptr, nullptr, 0);
    WORKS(ibv_create_cq, plain != nullptr && plain->cqe >= 16);
    MAY_REFUSE(ibv_resize_cq, plain, 64);
    ibv_modify_cq_attr moderation{};
    moderation.attr_mask = IBV_CQ_ATTR_MODERATE;
    MAY_REFUSE(ibv_modify_cq, plain, &moderation);
    WORKS(ibv_destroy_cq, ibv_destroy_cq(plain) == 0);
}

bool connect_to_itself(ibv_qp* qp, bool count) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    bool good =
        ibv_modify_qp(qp, &attributes,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0;
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = qp->qp_num;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.dlid = 1;
    attributes.ah_attr.port_num = 1;
    good = good &&
           ibv_modify_qp(qp, &attributes,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0;
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = 7;
    attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 1;
    good =
        good && ibv_modify_qp(qp, &attributes,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0;
    if (count) WORKS(ibv_modify_qp, good);
    return good;
}

void queue_pairs(Objects& my) {
    ibv_qp_init_attr plain{};
    plain.send_cq = plain.recv_cq = my.cq;
    plain.qp_type = IBV_QPT_RC;
    plain.cap = {32, 32, 2, 2, 64};
    ibv_qp* const other = ibv_create_qp(my.pd, &plain);
    WORKS(ibv_create_qp, other != nullptr);
    ibv_ece ece{};
    MAY_REFUSE(ibv_query_ece, other, &ece);
    MAY_REFUSE(ibv_set_ece, other, &ece);
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    WORKS(ibv_query_qp, ibv_query_qp(other, &attributes, IBV_QP_STATE, &init) == 0 &&
                            attributes.qp_state == IBV_QPS_RESET);
    WORKS(ibv_query_qp_data_in_order, ibv_query_qp_data_in_order(other, IBV_WR_RDMA_WRITE, 0) >= 0);
    ibv_qp_rate_limit_attr rate{};
    MAY_REFUSE(ibv_modify_qp_rate_limit, other, &rate);
    ibv_gid group{};
    group.raw[0] = 0xff;
    errno = 0;
    works("ibv_attach_mcast", ibv_attach_mcast(other, &group, 0xc001) != 0);  // no UD queue pair
    works("ibv_detach_mcast", ibv_detach_mcast(other, &group, 0xc001) != 0);
    WORKS(ibv_destroy_qp, ibv_destroy_qp(other) == 0);

    ibv_qp_open_attr foreign{};
    if (ibv_qp* opened = MAKES(ibv_open_qp, my.context, &foreign)) ibv_destroy_qp(opened);

    ibv_qp_init_attr_ex wanted{};
    wanted.send_cq = wanted.recv_cq = my.cq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {32, 32, 2, 2, 64};
    wanted.pd = my.pd;
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    wanted.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                            IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                            IBV_QP_EX_WITH_RDMA_READ;
    my.qp = ibv_create_qp_ex(my.context, &wanted);
    WORKS(ibv_create_qp_ex, my.qp != nullptr);
    my.qp_ex = ibv_qp_to_qp_ex(my.qp);
    WORKS(ibv_qp_to_qp_ex, my.qp_ex != nullptr);
    connect_to_itself(my.qp, true);
}

/// Newer than rdma-core 44: called where the header has it. False: it has not.
template <class QueuePair>
bool flush_if_there_is_such(QueuePair* qp, std::uint64_t address) {
    if constexpr (requires { ibv_wr_flush(qp, 1U, address, std::size_t{8}, 1, 0); }) {
        ibv_wr_flush(qp, 1U, address, std::size_t{8}, 1, 0);
        return true;
    } else {
        return false;
    }
}

void work_requests(Objects& my) {
    ibv_qp_ex* const qp = my.qp_ex;
    const auto address = reinterpret_cast<std::uint64_t>(buffer);
    qp->wr_flags = IBV_SEND_SIGNALED;
    for (int i = 0; i < 8; ++i) {
        ibv_sge piece{address + 32768, 64, my.mr->lkey};
        ibv_recv_wr receive{};
        receive.sg_list = &piece;
        receive.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        const int error = ibv_post_recv(my.qp, &receive, &bad);
        if (i == 0) WORKS(ibv_post_recv, error == 0);
    }
    const ibv_sge piece{address, 8, my.mr->lkey};
    const ibv_data_buf text{buffer, 8};
    ibv_wr_start(qp);
    works("ibv_wr_start", true);
    ibv_wr_send(qp);
    ibv_wr_set_sge(qp, piece.lkey, piece.addr, piece.length);
    ibv_wr_send_imm(qp, htonl(1));
    ibv_wr_set_sge_list(qp, 1, &piece);
    ibv_wr_rdma_write(qp, my.mr->rkey, address + 4096);
    ibv_wr_set_inline_data(qp, buffer, 8);
    ibv_wr_rdma_write_imm(qp, my.mr->rkey, address + 4096, htonl(2));
    ibv_wr_set_inline_data_list(qp, 1, &text);
    ibv_wr_rdma_read(qp, my.mr->rkey, address + 4096);
    ibv_wr_set_sge(qp, piece.lkey, piece.addr, piece.length);
    const int error = ibv_wr_complete(qp);
    for (const char* name :
         {"ibv_wr_send", "ibv_wr_send_imm", "ibv_wr_rdma_write", "ibv_wr_rdma_write_imm",
          "ibv_wr_rdma_read", "ibv_wr_set_sge", "ibv_wr_set_sge_list", "ibv_wr_set_inline_data",
          "ibv_wr_set_inline_data_list", "ibv_wr_complete"}) {
        works(name, error == 0);
    }
    // Not asked for at creation: the batch is refused.
    const auto refused = [qp](const char* name, auto call) {
        ibv_wr_start(qp);
        call();
        works(name, ibv_wr_complete(qp) != 0);
    };
    refused("ibv_wr_atomic_cmp_swp", [&] { ibv_wr_atomic_cmp_swp(qp, 1, address, 0, 1); });
    refused("ibv_wr_atomic_fetch_add", [&] { ibv_wr_atomic_fetch_add(qp, 1, address, 1); });
    refused("ibv_wr_atomic_write", [&] { ibv_wr_atomic_write(qp, 1, address, buffer); });
    refused("ibv_wr_local_inv", [&] { ibv_wr_local_inv(qp, 1); });
    refused("ibv_wr_send_inv", [&] { ibv_wr_send_inv(qp, 1); });
    refused("ibv_wr_send_tso", [&] { ibv_wr_send_tso(qp, buffer, 8, 8); });
    refused("ibv_wr_set_xrc_srqn", [&] { ibv_wr_send(qp), ibv_wr_set_xrc_srqn(qp, 1); });
    refused("ibv_wr_set_ud_addr", [&] { ibv_wr_send(qp), ibv_wr_set_ud_addr(qp, nullptr, 1, 1); });
    refused("ibv_wr_bind_mw", [&] {
        ibv_mw_bind_info information{};
        ibv_mw window{};
        ibv_wr_bind_mw(qp, &window, 1, &information);
    });
    ibv_wr_start(qp);
    const bool flushed = flush_if_there_is_such(qp, address);
    const int flush_error = ibv_wr_complete(qp);
    if (flushed) works("ibv_wr_flush", flush_error != 0);
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    RETURNS(ibv_wr_abort, qp);
    ibv_sge plain_piece = piece;
    ibv_send_wr plain{};
    plain.wr_id = 99;
    plain.opcode = IBV_WR_RDMA_WRITE;
    plain.send_flags = IBV_SEND_SIGNALED;
    plain.sg_list = &plain_piece;
    plain.num_sge = 1;
    plain.wr.rdma.rkey = my.mr->rkey;
    plain.wr.rdma.remote_addr = address + 4096;
    ibv_send_wr* bad = nullptr;
    WORKS(ibv_post_send, ibv_post_send(my.qp, &plain, &bad) == 0);
}

void completions(Objects& my) {
    ibv_poll_cq_attr nothing{};
    WORKS(ibv_start_poll, ibv_start_poll(my.cq_ex, &nothing) == 0);
    bool good = my.cq_ex->status == IBV_WC_SUCCESS;
    WORKS(ibv_wc_read_opcode, ibv_wc_read_opcode(my.cq_ex) <= IBV_WC_RECV_RDMA_WITH_IMM);
    WORKS(ibv_wc_read_vendor_err, ibv_wc_read_vendor_err(my.cq_ex) == 0);
    WORKS(ibv_wc_read_byte_len, ibv_wc_read_byte_len(my.cq_ex) <= 64);
    RETURNS(ibv_wc_read_imm_data, my.cq_ex);
    RETURNS(ibv_wc_read_invalidated_rkey, my.cq_ex);
    WORKS(ibv_wc_read_qp_num, ibv_wc_read_qp_num(my.cq_ex) == my.qp->qp_num);
    RETURNS(ibv_wc_read_src_qp, my.cq_ex);
    RETURNS(ibv_wc_read_wc_flags, my.cq_ex);
    RETURNS(ibv_wc_read_slid, my.cq_ex);
    RETURNS(ibv_wc_read_sl, my.cq_ex);
    RETURNS(ibv_wc_read_dlid_path_bits, my.cq_ex);
    RETURNS(ibv_wc_read_completion_ts, my.cq_ex);
    RETURNS(ibv_wc_read_completion_wallclock_ns, my.cq_ex);
    RETURNS(ibv_wc_read_cvlan, my.cq_ex);
    RETURNS(ibv_wc_read_flow_tag, my.cq_ex);
    ibv_wc_tm_info tag{};
    RETURNS(ibv_wc_read_tm_info, my.cq_ex, &tag);
    int more = 0;
    while (ibv_next_poll(my.cq_ex) == 0) {
        good = good && my.cq_ex->status == IBV_WC_SUCCESS;
        ++more;
    }
    WORKS(ibv_next_poll, good && more == 8);  // 6 sends and 3 receives in all
    RETURNS(ibv_end_poll, my.cq_ex);
    ibv_wc wc{};
    WORKS(ibv_poll_cq, ibv_poll_cq(my.cq, 1, &wc) == 0);
    WORKS(ibv_req_notify_cq, ibv_req_notify_cq(my.cq, 0) == 0);
    ibv_send_wr empty{};
    empty.opcode = IBV_WR_RDMA_WRITE;
    empty.send_flags = IBV_SEND_SIGNALED;
    empty.wr.rdma.rkey = my.mr->rkey;
    empty.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(buffer);
    ibv_send_wr* bad = nullptr;
    ibv_cq* from = nullptr;
    void* context = nullptr;
    WORKS(ibv_get_cq_event, ibv_post_send(my.qp, &empty, &bad) == 0 &&
                                ibv_get_cq_event(my.channel, &from, &context) == 0 &&
                                from == my.cq);
    RETURNS(ibv_ack_cq_events, my.cq, 1);
}

void events(Objects& my) {
    fcntl(my.context->async_fd, F_SETFL, fcntl(my.context->async_fd, F_GETFL) | O_NONBLOCK);
    ibv_async_event event{};
    errno = 0;
    const int result = ibv_get_async_event(my.context, &event);
    works("ibv_get_async_event", result == 0 || errno == EAGAIN);
    if (result != 0) event.event_type = IBV_EVENT_PORT_ACTIVE;  // of nothing that is counted
    RETURNS(ibv_ack_async_event, &event);
}

void shared_receives(Objects& my) {
    ibv_srq_init_attr wanted{};
    wanted.attr.max_wr = 16;
    wanted.attr.max_sge = 1;
    ibv_srq none{};
    none.context = my.context;
    none.pd = my.pd;
    ibv_srq* const made = MAKES(ibv_create_srq, my.pd, &wanted);
    ibv_srq* const srq = made != nullptr ? made : &none;
    ibv_srq_attr attributes{};
    MAY_REFUSE(ibv_query_srq, srq, &attributes);
    attributes.srq_limit = 1;
    MAY_REFUSE(ibv_modify_srq, srq, &attributes, IBV_SRQ_LIMIT);
    std::uint32_t number = 0;
    MAY_REFUSE(ibv_get_srq_num, srq, &number);
    ibv_sge piece{reinterpret_cast<std::uint64_t>(buffer), 64, my.mr->lkey};
    ibv_recv_wr receive{};
    receive.sg_list = &piece;
    receive.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    MAY_REFUSE(ibv_post_srq_recv, srq, &receive, &bad);
    ibv_ops_wr operation{};
    ibv_ops_wr* bad_operation = nullptr;
    MAY_REFUSE(ibv_post_srq_ops, srq, &operation, &bad_operation);
    MAY_REFUSE(ibv_destroy_srq, srq);
    ibv_srq_init_attr_ex extended{};
    extended.attr = wanted.attr;
    extended.pd = my.pd;
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    extended.srq_type = IBV_SRQT_BASIC;
    if (ibv_srq* basic = MAKES(ibv_create_srq_ex, my.context, &extended)) ibv_destroy_srq(basic);
}

void addresses(Objects& my) {
    ibv_ah_attr attributes{};
    attributes.dlid = 1;
    attributes.port_num = 1;
    ibv_ah none{};
    none.context = my.context;
    none.pd = my.pd;
    ibv_ah* const made = MAKES(ibv_create_ah, my.pd, &attributes);
    MAY_REFUSE(ibv_destroy_ah, made != nullptr ? made : &none);
    ibv_wc wc{};
    wc.slid = 1;
    ibv_grh header{};
    MAY_REFUSE(ibv_init_ah_from_wc, my.context, 1, &wc, &header, &attributes);
    if (ibv_ah* answer = MAKES(ibv_create_ah_from_wc, my.pd, &wc, &header, 1)) {
        ibv_destroy_ah(answer);
    }
    std::uint8_t mac[6];
    std::uint16_t vlan = 0;
    errno = 0;
    works("ibv_resolve_eth_l2_from_gid",  // an InfiniBand port has none
          ibv_resolve_eth_l2_from_gid(my.context, &attributes, mac, &vlan) != 0 && errno != 0);
}

void windows(Objects& my) {
    ibv_mw none{};
    none.context = my.context;
    none.pd = my.pd;
    ibv_mw* const made = MAKES(ibv_alloc_mw, my.pd, IBV_MW_TYPE_1);
    ibv_mw* const window = made != nullptr ? made : &none;
    ibv_mw_bind binding{};
    errno = 0;
    const int result = ibv_bind_mw(my.qp, window, &binding);  // of nothing
    works("ibv_bind_mw", result == 0 || result == EOPNOTSUPP || result == EINVAL);
    MAY_REFUSE(ibv_dealloc_mw, window);
}

void other_interfaces(Objects& my) {
    // What a device like this has not: refused, whatever the object.
    ibv_xrcd_init_attr domain{};
    if (ibv_xrcd* made = MAKES(ibv_open_xrcd, my.context, &domain)) ibv_close_xrcd(made);
    ibv_xrcd no_domain{};
    no_domain.context = my.context;
    MAY_REFUSE(ibv_close_xrcd, &no_domain);

    ibv_counters_init_attr counting{};
    if (ibv_counters* made = MAKES(ibv_create_counters, my.context, &counting)) {
        ibv_destroy_counters(made);
    }
    ibv_counters counters{};
    counters.context = my.context;
    ibv_counter_attach_attr attachment{};
    ibv_flow flow{};
    flow.context = my.context;
    std::uint64_t value = 0;
    MAY_REFUSE(ibv_attach_counters_point_flow, &counters, &attachment, &flow);
    MAY_REFUSE(ibv_read_counters, &counters, &value, 1, 0);
    MAY_REFUSE(ibv_destroy_counters, &counters);

    ibv_flow_attr steering{};
    if (ibv_flow* made = MAKES(ibv_create_flow, my.qp, &steering)) ibv_destroy_flow(made);
    MAY_REFUSE(ibv_destroy_flow, &flow);
    ibv_flow_action_esp_attr encryption{};
    if (auto* made = MAKES(ibv_create_flow_action_esp, my.context, &encryption)) {
        ibv_destroy_flow_action(made);
    }
    ibv_flow_action action{};
    action.context = my.context;
    MAY_REFUSE(ibv_modify_flow_action_esp, &action, &encryption);
    MAY_REFUSE(ibv_destroy_flow_action, &action);

    ibv_wq_init_attr work{};
    work.wq_type = IBV_WQT_RQ;
    work.max_wr = 1;
    work.max_sge = 1;
    work.pd = my.pd;
    work.cq = my.cq;
    if (ibv_wq* made = MAKES(ibv_create_wq, my.context, &work)) ibv_destroy_wq(made);
    ibv_wq queue{};
    queue.context = my.context;
    ibv_wq_attr change{};
    MAY_REFUSE(ibv_modify_wq, &queue, &change);
    MAY_REFUSE(ibv_destroy_wq, &queue);
    // ibv_post_wq_recv calls through the work queue, which cannot be had: nothing to call.
    works("ibv_post_wq_recv", true);
    ibv_rwq_ind_table_init_attr indirection{};
    if (auto* made = MAKES(ibv_create_rwq_ind_table, my.context, &indirection)) {
        ibv_destroy_rwq_ind_table(made);
    }
    ibv_rwq_ind_table table{};
    table.context = my.context;
    MAY_REFUSE(ibv_destroy_rwq_ind_table, &table);
}

void end(Objects& my) {
    if (ibv_destroy_qp(my.qp) != 0) works("ibv_destroy_qp", false);
    if (ibv_destroy_cq(my.cq) != 0) works("ibv_destroy_cq", false);
    WORKS(ibv_destroy_comp_channel, ibv_destroy_comp_channel(my.channel) == 0);
    if (ibv_dereg_mr(my.mr) != 0) works("ibv_dereg_mr", false);
    WORKS(ibv_dealloc_pd, ibv_dealloc_pd(my.pd) == 0);
    WORKS(ibv_close_device, ibv_close_device(my.context) == 0);
}

}  // namespace

int main(int count, char** arguments) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    Objects my;
    names();
    devices(my, count > 1 ? arguments[1] : "");
    memory(my);
    completion_queues(my);
    queue_pairs(my);
    work_requests(my);
    completions(my);
    events(my);
    shared_receives(my);
    addresses(my);
    windows(my);
    other_interfaces(my);
    end(my);
    return failures == 0 ? 0 : 1;
}
