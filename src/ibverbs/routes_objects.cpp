// libibverbs' exports that concern what is made from a context: memory, completion queues, queue
// pairs. Each object names its context, which tells whose it is.
#include "millrace/soft/device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "routes.hpp"

namespace soft = millrace::soft;
using namespace millrace::ibverbs;

namespace {

/// As a NIC's driver does when it pins them: pages that nobody has touched are there from now on.
/// Of a peer that writes to one that is not, a thread of its own has to do it, as it may wait for
/// ever. Of large memory the first 64 MiB: what is reserved and hardly used stays so. Kernels
/// before 5.14 cannot; then pages come as they did.
ibv_mr* with_pages(ibv_mr* region, void* address, std::size_t length, unsigned access) noexcept {
    constexpr std::size_t most = std::size_t{64} << 20;
    if (region == nullptr || length == 0) return region;
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const std::uintptr_t first = begin & ~(page - 1);
    static_cast<void>(::madvise(
        reinterpret_cast<void*>(first), std::min(length, most) + (begin - first),
        (access & IBV_ACCESS_LOCAL_WRITE) != 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ));
    return region;
}

}  // namespace

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
    return soft::owns(context) ? soft::alloc_pd(context) : system_ibv_alloc_pd(context);
}

int ibv_dealloc_pd(ibv_pd* pd) {
    return soft::owns(pd->context) ? told(soft::dealloc_pd(pd)) : system_ibv_dealloc_pd(pd);
}

ibv_pd* ibv_import_pd(ibv_context* context, std::uint32_t handle) {
    return soft::owns(context) ? soft::import_pd(context, handle)
                               : system_ibv_import_pd(context, handle);
}

void ibv_unimport_pd(ibv_pd* pd) {
    soft::owns(pd->context) ? soft::unimport_pd(pd) : system_ibv_unimport_pd(pd);
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int access) {
    if (!soft::owns(pd->context)) return system_ibv_reg_mr(pd, address, length, access);
    return with_pages(soft::reg_mr(pd, address, length, reinterpret_cast<std::uintptr_t>(address),
                                   static_cast<unsigned>(access)),
                      address, length, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                        int access) {
    if (!soft::owns(pd->context)) return system_ibv_reg_mr_iova(pd, address, length, iova, access);
    return with_pages(soft::reg_mr(pd, address, length, iova, static_cast<unsigned>(access)),
                      address, length, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                         unsigned access) {
    if (!soft::owns(pd->context)) {
        return system_ibv_reg_mr_iova2(pd, address, length, iova, access);
    }
    return with_pages(soft::reg_mr(pd, address, length, iova, access), address, length, access);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                          int descriptor, int access) {
    if (soft::owns(pd->context)) return refuse_pointer();
    return system_ibv_reg_dmabuf_mr(pd, offset, length, iova, descriptor, access);
}

int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, std::size_t length, int access) {
    if (!soft::owns(mr->context)) {
        return system_ibv_rereg_mr(mr, flags, pd, address, length, access);
    }
    return soft::rereg_mr(mr, flags, pd, address, length, static_cast<unsigned>(access));
}

int ibv_dereg_mr(ibv_mr* mr) {
    return soft::owns(mr->context) ? told(soft::dereg_mr(mr)) : system_ibv_dereg_mr(mr);
}

ibv_mr* ibv_import_mr(ibv_pd* pd, std::uint32_t handle) {
    return soft::owns(pd->context) ? soft::import_mr(pd, handle) : system_ibv_import_mr(pd, handle);
}

void ibv_unimport_mr(ibv_mr* mr) {
    soft::owns(mr->context) ? soft::unimport_mr(mr) : system_ibv_unimport_mr(mr);
}

ibv_dm* ibv_import_dm(ibv_context* context, std::uint32_t handle) {
    return soft::owns(context) ? soft::import_dm(context, handle)
                               : system_ibv_import_dm(context, handle);
}

void ibv_unimport_dm(ibv_dm* dm) {
    soft::owns(dm->context) ? soft::unimport_dm(dm) : system_ibv_unimport_dm(dm);
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
    return soft::owns(context) ? soft::create_comp_channel(context)
                               : system_ibv_create_comp_channel(context);
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
    return soft::owns(channel->context) ? told(soft::destroy_comp_channel(channel))
                                        : system_ibv_destroy_comp_channel(channel);
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context,
                      ibv_comp_channel* channel, int vector) {
    return soft::owns(context)
               ? soft::create_cq(context, entries, cq_context, channel, vector)
               : system_ibv_create_cq(context, entries, cq_context, channel, vector);
}

int ibv_resize_cq(ibv_cq* cq, int entries) {
    return soft::owns(cq->context) ? told(soft::resize_cq(cq, entries))
                                   : system_ibv_resize_cq(cq, entries);
}

int ibv_destroy_cq(ibv_cq* cq) {
    return soft::owns(cq->context) ? told(soft::destroy_cq(cq)) : system_ibv_destroy_cq(cq);
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
    return soft::owns(channel->context) ? soft::get_cq_event(channel, cq, cq_context)
                                        : system_ibv_get_cq_event(channel, cq, cq_context);
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
    soft::owns(cq->context) ? soft::ack_cq_events(cq, count) : system_ibv_ack_cq_events(cq, count);
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) {
    return soft::owns(pd->context) ? soft::create_srq(pd, attributes)
                                   : system_ibv_create_srq(pd, attributes);
}

int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) {
    return soft::owns(srq->context) ? told(soft::modify_srq(srq, attributes, mask))
                                    : system_ibv_modify_srq(srq, attributes, mask);
}

int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attributes) {
    return soft::owns(srq->context) ? told(soft::query_srq(srq, attributes))
                                    : system_ibv_query_srq(srq, attributes);
}

int ibv_destroy_srq(ibv_srq* srq) {
    return soft::owns(srq->context) ? told(soft::destroy_srq(srq)) : system_ibv_destroy_srq(srq);
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
    return soft::owns(pd->context) ? soft::create_qp(pd, attributes)
                                   : system_ibv_create_qp(pd, attributes);
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
    return soft::owns(qp->context) ? soft::qp_to_qp_ex(qp) : system_ibv_qp_to_qp_ex(qp);
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) {
    return soft::owns(qp->context) ? told(soft::query_qp(qp, attributes, mask, init))
                                   : system_ibv_query_qp(qp, attributes, mask, init);
}

int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode opcode, std::uint32_t flags) {
    return soft::owns(qp->context) ? soft::query_qp_data_in_order(qp, opcode, flags)
                                   : system_ibv_query_qp_data_in_order(qp, opcode, flags);
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
    return soft::owns(qp->context) ? told(soft::modify_qp(qp, attributes, mask))
                                   : system_ibv_modify_qp(qp, attributes, mask);
}

int ibv_destroy_qp(ibv_qp* qp) {
    return soft::owns(qp->context) ? told(soft::destroy_qp(qp)) : system_ibv_destroy_qp(qp);
}

int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
    return soft::owns(qp->context) ? refuse() : system_ibv_set_ece(qp, ece);
}

int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
    return soft::owns(qp->context) ? refuse() : system_ibv_query_ece(qp, ece);
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
    return soft::owns(pd->context) ? soft::create_ah(pd, attributes)
                                   : system_ibv_create_ah(pd, attributes);
}

int ibv_init_ah_from_wc(ibv_context* context, std::uint8_t port, ibv_wc* completion, ibv_grh* grh,
                        ibv_ah_attr* attributes) {
    return soft::owns(context)
               ? soft::init_ah_from_wc(context, port, completion, grh, attributes)
               : system_ibv_init_ah_from_wc(context, port, completion, grh, attributes);
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* completion, ibv_grh* grh, std::uint8_t port) {
    if (soft::owns(pd->context)) return soft::create_ah_from_wc(pd, completion, grh, port);
    return system_ibv_create_ah_from_wc(pd, completion, grh, port);
}

int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attributes, std::uint8_t* mac,
                                std::uint16_t* vlan) {
    return soft::owns(context) ? fail()
                               : system_ibv_resolve_eth_l2_from_gid(context, attributes, mac, vlan);
}

int ibv_destroy_ah(ibv_ah* ah) {
    return soft::owns(ah->context) ? told(soft::destroy_ah(ah)) : system_ibv_destroy_ah(ah);
}

int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) {
    return soft::owns(qp->context) ? told(soft::attach_mcast(qp, gid, lid))
                                   : system_ibv_attach_mcast(qp, gid, lid);
}

int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) {
    return soft::owns(qp->context) ? told(soft::detach_mcast(qp, gid, lid))
                                   : system_ibv_detach_mcast(qp, gid, lid);
}
}
