// The beginning and the end of a queue pair, and of its membership in multicast groups. Entries of
// <millrace/soft/device.hpp>.
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "datagram/address_handle.hpp"
#include "datagram/datagram_send.hpp"
#include "fabric/multicast.hpp"
#include "fabric/node.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/soft/device.hpp"
#include "objects/shared_receive_queue.hpp"
#include "process/asynchronous_events.hpp"
#include "process/context.hpp"
#include "process/control_calls.hpp"
#include "process/domains.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "system/fences.hpp"
#include "system/refused.hpp"
#include "wire/datagrams.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {

namespace {

[[nodiscard]] std::uint32_t ring_size(std::uint32_t requested) noexcept {
    return std::bit_ceil(requested == 0 ? 1U : requested);
}

[[nodiscard]] CompletionQueue& queue_of(ibv_cq* cq) noexcept {
    return *static_cast<CompletionQueue*>(cq);
}

[[nodiscard]] bool is_datagram(const ibv_qp_init_attr& wanted) noexcept {
    return wanted.qp_type == IBV_QPT_UD;
}

/// What ibv_create_qp refuses `wanted` with; 0: nothing.
[[nodiscard]] int objection(ibv_pd* pd, const ibv_qp_init_attr& wanted) noexcept {
    const ibv_qp_cap& cap = wanted.cap;
    if (!usable(pd) || wanted.send_cq == nullptr || wanted.recv_cq == nullptr) return EINVAL;
    if (wanted.send_cq->context != pd->context || wanted.recv_cq->context != pd->context) {
        return EINVAL;  // objects of two contexts have nothing to do with each other
    }
    const bool supported = wanted.qp_type == IBV_QPT_RC || wanted.qp_type == IBV_QPT_UC ||
                           wanted.qp_type == IBV_QPT_UD;
    if (!supported || (wanted.srq != nullptr && wanted.qp_type == IBV_QPT_UC)) return EOPNOTSUPP;
    if (wanted.srq != nullptr && !opened_together(wanted.srq->context, pd->context)) return EINVAL;
    const bool too_much = cap.max_send_wr > max_queue_entries ||
                          cap.max_recv_wr > max_queue_entries || cap.max_send_sge > max_sges ||
                          cap.max_recv_sge > max_sges || cap.max_inline_data > max_inline_bytes;
    return too_much ? EINVAL : 0;
}

[[nodiscard]] Geometry geometry_of(const Context& owner, const ibv_qp_init_attr& wanted) noexcept {
    const ibv_qp_cap& cap = wanted.cap;
    Geometry geometry;
    geometry.send_entries = ring_size(cap.max_send_wr);
    if (owner.cable != nullptr) {
        // Slots may come back before their requests have left the pending ring.
        const bool strict = owner.cable->mode.kind == ModeKind::strict && !is_datagram(wanted);
        const std::uint32_t times = strict ? 2 : wanted.qp_type == IBV_QPT_RC ? 1 : 4;
        geometry.send_entries = std::min(times * geometry.send_entries, max_queue_entries);
    }
    geometry.receive_entries = ring_size(cap.max_recv_wr);
    geometry.send_sges = cap.max_send_sge == 0 ? 1 : cap.max_send_sge;
    geometry.receive_sges = cap.max_recv_sge == 0 ? 1 : cap.max_recv_sge;
    geometry.inline_bytes = cap.max_inline_data;  // rdma_xclient asks for none, and sends some:
    if (geometry.inline_bytes == 0) geometry.inline_bytes = 16 * geometry.send_sges;  // in place
    geometry.stamped = queue_of(wanted.send_cq).stamps || queue_of(wanted.recv_cq).stamps;
    if (is_datagram(wanted) || wanted.srq != nullptr) {
        // The receives lie in the pool, and a datagram's completion as well.
        const auto* const srq = static_cast<const SharedReceiveQueue*>(wanted.srq);
        geometry.receive_entries = is_datagram(wanted) ? 1 : srq->pool->entries();
        geometry.receive_sges = 1;
    }
    return geometry;
}

/// The queues of receives that only its own process reads. Not touched before they are used: they
/// may be large.
/// False, with errno. Throws bad_alloc.
[[nodiscard]] bool make_own_queues(QueuePair& qp, Process& process, const ibv_qp_init_attr& wanted,
                                   const Geometry& geometry) {
    if (wanted.srq != nullptr) {
        qp.pool = static_cast<SharedReceiveQueue*>(wanted.srq)->pool.get();
    } else if (is_datagram(wanted)) {
        qp.own_pool =
            ReceivePool::make(process.node(), wanted.cap.max_recv_wr, wanted.cap.max_recv_sge);
        qp.pool = qp.own_pool.get();
        return qp.pool != nullptr;
    } else {
        qp.receives.make(geometry);
    }
    return true;
}

void set_facts(SendHeld held, QueuePair& qp, ibv_pd* pd, const ibv_qp_init_attr& wanted,
               const Block& memory, const Geometry& geometry) noexcept {
    const ibv_qp_cap& cap = wanted.cap;
    qp.context = pd->context;
    qp.qp_context = wanted.qp_context;
    qp.pd = pd;
    qp.send_cq = wanted.send_cq;
    qp.recv_cq = wanted.recv_cq;
    qp.srq = wanted.srq;
    qp.handle = memory.index;
    qp.owner = context_of(pd->context);
    qp.qp_num = make_qpn(qp.owner->process->node().number(), memory.index);
    qp.state = IBV_QPS_RESET;
    qp.qp_type = wanted.qp_type;
    qp.sends(held).opcodes = allowed_opcodes(held, qp);
    qp.events_completed = 0;
    qp.memory = memory;
    qp.geometry = geometry;
    qp.block = BlockView{memory.memory, geometry};
    qp.always = wanted.sq_sig_all != 0 ? unsigned{IBV_SEND_SIGNALED} : 0U;
    qp.slots.set_size(held, geometry.send_entries,
                      cap.max_send_wr == 0 ? 0 : ring_size(cap.max_send_wr));
    qp.send_sges = geometry.send_sges;
    qp.inline_bytes = geometry.inline_bytes;
    qp.receives.mask = geometry.receive_entries - 1;
    if (wanted.srq == nullptr) {
        qp.receives.capacity = cap.max_recv_wr == 0 ? 0 : geometry.receive_entries;
        qp.receives.sges = geometry.receive_sges;
    }
    End& end = qp.end;
    end.mine = true;
    end.block = qp.block;
    end.block.receive_queue = qp.receives.copy();
    end.block.pending_ring = nullptr;
    end.path = &qp.path;
    end.state_word = &qp.state_word;
    end.receive_head = &qp.receive_source.position;
    end.receive_tail = &qp.receives.tail();
    end.access = &qp.access;
    end.qpn = qp.qp_num;
    end.generation = memory.generation;
    end.pd = static_cast<ProtectionDomain*>(pd)->number;
    // A shared receive queue may be of another domain.
    end.receive_pd = static_cast<ProtectionDomain*>(qp.srq != nullptr ? qp.srq->pd : pd)->number;
    end.type = wanted.qp_type;
    end.bell_send = queue_of(wanted.send_cq).bell();
    end.bell_receive = queue_of(wanted.recv_cq).bell();
    end.bell_async = qp.owner->events->bell();
    end.news_send = &qp.send_source.place;
    end.news_receive = &qp.receive_source.place;
    if (qp.pool != nullptr) {
        end.pool = qp.pool->view();
        end.own_pool = qp.pool;
    }
    qp.send_source.ring = qp.block.send_ring;
    qp.send_source.mask = qp.slots.mask();
    qp.send_source.send = true;
    qp.send_source.qp = &qp;
    qp.send_source.block = &qp.block;
    qp.receive_source.ring = qp.block.receive_ring;
    qp.receive_source.mask = qp.receives.mask;
    qp.receive_source.qp = &qp;
    qp.receive_source.block = &qp.block;
}

/// What a modelled link keeps of a connection's requests. Throws.
void set_up_link(SendHeld held, QueuePair& qp, const ibv_qp_init_attr& wanted) {
    if (qp.owner->cable == nullptr || is_datagram(wanted)) return;
    SendSide& sends = qp.sends(held);
    if (!sends.pending.make()) throw std::bad_alloc{};  // every request waits there
    const CableView view{qp,        sends.attributes, qp.block,     qp.connection(held).view(),
                         sends.own, qp.slots,         sends.pending};
    qp.cable = std::make_unique<CableQueue>([&qp] { qp.service(); }, qp.owner->cable, view,
                                            qp.geometry.send_entries,
                                            ring_size(wanted.cap.max_send_wr), qp.reliable());
    qp.on_cable = qp.cable.get();
    qp.end.strict = qp.cable->strict();
}

/// What a UD queue pair has besides. Throws.
void set_up_datagrams(SendHeld held, QueuePair& qp, const ibv_qp_init_attr& wanted) {
    if (!is_datagram(wanted)) return;
    Node& node = qp.owner->process->node();
    qp.set_asymmetric(held, node.membarrier());
    qp.datagram = std::make_unique<Datagram>(node, qp.memory.memory + qp.geometry.block_size(),
                                             qp.pool->entries());
    std::unique_ptr<DatagramFlights> flights;
    if (qp.owner->cable != nullptr) {
        flights = std::make_unique<DatagramFlights>([&qp] { qp.service(); }, qp.owner->cable, qp,
                                                    qp.counters, qp.geometry.send_entries,
                                                    ring_size(wanted.cap.max_send_wr));
    }
    qp.on_cable = flights.get();
    const DatagramSender::Of of{qp.block,        qp.end,      qp.sends(held).attributes.qkey,
                                qp.asymmetric(), qp.counters, *qp.owner->process};
    std::unique_ptr<DatagramWire> wire;
    if (WirePort* const port = qp.owner->process->wire(); port != nullptr && flights == nullptr) {
        wire = std::make_unique<Datagrams>(*port, *qp.owner->process, qp.qp_num);
        for (ibv_cq* const cq : {qp.send_cq, qp.recv_cq}) queue_of(cq).look_at_wire();
    }
    qp.take_transport(held,
                      std::make_unique<DatagramSender>(of, std::move(flights), std::move(wire)));
    qp.receive_source.ring = qp.datagram->ring();
    qp.receive_source.mask = qp.datagram->mask();
    qp.receive_source.collects_from = qp.pool;
    if (wanted.srq == nullptr) {
        qp.receives.capacity = qp.pool->entries();
        qp.receives.sges = qp.pool->sges();
    }
}

/// Writes what peers read into its block.
void publish_identity(SendHeld held, QueuePair& qp) noexcept {
    const Geometry& geometry = qp.geometry;
    ReceiveLine& receive = *qp.block.receive;
    receive.type = static_cast<std::uint32_t>(qp.qp_type);
    receive.stamped = geometry.stamped ? 1 : 0;
    receive.pd = qp.end.receive_pd;
    receive.pool_index = qp.pool != nullptr ? qp.pool->block().index : 0;
    receive.pool_generation = qp.pool != nullptr ? qp.pool->block().generation : 0;

    ControlLine& control = *qp.block.control;
    control.send_entries = geometry.send_entries;
    control.receive_entries = geometry.receive_entries;
    control.send_sges = static_cast<std::uint8_t>(geometry.send_sges);
    control.receive_sges = static_cast<std::uint8_t>(geometry.receive_sges);
    control.inline_bytes = geometry.inline_bytes;
    control.type = static_cast<std::uint16_t>(qp.qp_type);
    control.pd.store(qp.end.pd, std::memory_order_relaxed);
    control.bell_send.store(qp.end.bell_send, std::memory_order_relaxed);
    control.bell_receive.store(qp.end.bell_receive, std::memory_order_relaxed);
    control.bell_async.store(qp.end.bell_async, std::memory_order_relaxed);
    publish_mode(*qp.block.mode, qp.owner->mode);
    qp.rewind_block();
    qp.set_state(held, IBV_QPS_RESET);
}

/// Makes it known to whoever serves it. Throws.
void enlist(QueuePair& qp) {
    if (qp.pool != nullptr) {
        PoolUser user{qp.memory.index, qp.datagram.get(), &qp.receive_source.position, nullptr};
        if (user.datagram == nullptr) {
            user.run_waiting = [&qp] { qp.run_peer_pending_if_any(); };
        }
        qp.pool->attach(std::move(user));
    }
    for (CompletionSource* source : {&qp.send_source, &qp.receive_source}) {
        source->cable = qp.on_cable;
    }
    Process& process = *qp.owner->process;
    queue_of(qp.send_cq).attach(qp.send_source, process.node());
    queue_of(qp.recv_cq).attach(qp.receive_source, process.node());
    if (qp.on_cable != nullptr) qp.on_cable->enlist();
    process.queue_pairs().add(qp);
}

/// After any part of `enlist`.
void withdraw(QueuePair& qp) noexcept {
    if (qp.on_cable != nullptr) qp.on_cable->withdraw();
    queue_of(qp.send_cq).detach(qp.send_source);
    queue_of(qp.recv_cq).detach(qp.receive_source);
    if (qp.pool != nullptr) qp.pool->detach(qp.memory.index);
}

/// Nobody is in it, and nobody has it.
void give_back(std::unique_ptr<QueuePair> qp) noexcept {
    Context* const owner = qp->owner;
    const auto process = owner->process;
    process->queue_pairs().remove(*qp);
    if (qp->own_pool != nullptr) {
        qp->own_pool->give_back();
    } else if (qp->pool != nullptr) {
        qp->pool->offer_again(qp->memory.index, true, qp->datagram.get());
    }
    qp->disconnect(process->listed().held_by_hand(), qp->sends.held_by_hand(),
                   qp->theirs.held_by_hand());
    process->node().free_block(qp->memory, false);
    qp.reset();
    release(owner);
}

/// Those that were destroyed while somebody stood still in them, who has left since, or is dead.
void give_back_kept(Process& process) noexcept {
    process.look_for_deaths(base::ticks());
    for (QueuePair* const kept : std::exchange(process.listed().hold()->kept, {})) {
        std::unique_ptr<QueuePair> qp{kept};
        SeenHazards seen;
        qp->see_hazards(seen);
        if (qp->executors_out(seen, nullptr)) {
            give_back(std::move(qp));
        } else {
            process.queue_pairs().keep(std::move(qp));
        }
    }
}

}  // namespace

ibv_qp* make_queue_pair(ibv_pd* pd, ibv_qp_init_attr* attributes) noexcept {
    if (const int error = objection(pd, *attributes); error != 0) return refused(error);
    Context* const owner = context_of(pd->context);
    Process& process = *owner->process;
    give_back_kept(process);
    const Geometry geometry = geometry_of(*owner, *attributes);
    std::optional<Block> memory;
    std::unique_ptr<QueuePair> qp;
    try {
        qp = std::make_unique<QueuePair>();
        if (!make_own_queues(*qp, process, *attributes, geometry)) return nullptr;
        memory = process.node().allocate_block(geometry.block_size() +
                                               (is_datagram(*attributes) ? SenderTable::size : 0));
        if (!memory) {
            if (qp->own_pool != nullptr) qp->own_pool->give_back();
            return nullptr;  // errno says why
        }
        {
            const auto held = qp->sends.hold();
            set_facts(held, *qp, pd, *attributes, *memory, geometry);
            set_up_link(held, *qp, *attributes);
            set_up_datagrams(held, *qp, *attributes);
            publish_identity(held, *qp);
        }
        enlist(*qp);
    } catch (const std::exception&) {
        if (memory) {
            withdraw(*qp);
            process.node().free_block(*memory, false);
        }
        if (qp != nullptr && qp->own_pool != nullptr) qp->own_pool->give_back();
        return refused(ENOMEM);
    }
    attributes->cap.max_send_wr = qp->slots.capacity();
    attributes->cap.max_recv_wr = qp->receives.capacity;
    attributes->cap.max_send_sge = qp->send_sges;
    attributes->cap.max_recv_sge = qp->receives.sges;
    qp->created = *attributes;
    qp->sends.hold()->attributes.cap = attributes->cap;
    pthread_mutex_init(&qp->mutex, nullptr);
    pthread_cond_init(&qp->cond, nullptr);
    enter(pd);
    owner->users.fetch_add(1);
    return qp.release();
}

int end_queue_pair(ibv_qp* public_qp) noexcept {
    if (const auto& bound = *static_cast<QueuePair*>(public_qp);
        bound.datagram != nullptr &&
        in_any_group(bound.owner->process->node(), bound.memory.index)) {
        return EBUSY;
    }
    std::unique_ptr<QueuePair> qp{static_cast<QueuePair*>(public_qp)};
    Context* const owner = qp->owner;
    if (qp->on_cable != nullptr) {
        qp->await_landing();
        qp->on_cable->withdraw();
    }
    {
        const auto held = qp->sends.hold();
        qp->execute_at_once(held, false);
        ++held->resets;  // what peers know of it is no longer true
        qp->set_state(held, IBV_QPS_RESET);
    }
    heavy_fence();
    const bool out = qp->wait_for_executors();
    qp->forget_local(qp->sends.hold());
    owner->process->windows().leave(qp->block.windows);
    static_cast<CompletionQueue*>(qp->send_cq)->detach(qp->send_source);
    static_cast<CompletionQueue*>(qp->recv_cq)->detach(qp->receive_source);
    qp->leave_wire();
    leave(qp->pd);
    const auto process = owner->process;
    if (qp->pool != nullptr) qp->pool->detach(qp->memory.index);
    if (out) {
        end_async_events(*public_qp);
        give_back(std::move(qp));
    } else {
        // While a stopped executor is in it, its connection, block and number are not used again.
        // It goes on using its context.
        if (qp->own_pool == nullptr && qp->pool != nullptr) qp->pool->quarantine();
        if (qp->own_pool == nullptr) qp->pool = nullptr;  // it may go before
        qp->broken.store(process->registrations() + 1, std::memory_order_release);
        process->queue_pairs().keep(std::move(qp));
        end_async_events(*public_qp);
    }
    give_back_kept(*process);
    return 0;
}

int attach_mcast(ibv_qp* public_qp, const ibv_gid* gid, std::uint16_t) noexcept {
    const base::Uncancelled held;
    const auto& qp = *static_cast<const QueuePair*>(public_qp);
    if (qp.datagram == nullptr || !is_multicast(*gid)) return EINVAL;
    Node& node = qp.owner->process->node();
    return node.usable() ? join_group(node, group_name(*gid), qp.memory.index) : ENODEV;
}

int detach_mcast(ibv_qp* public_qp, const ibv_gid* gid, std::uint16_t) noexcept {
    const base::Uncancelled held;
    const auto& qp = *static_cast<const QueuePair*>(public_qp);
    Node& node = qp.owner->process->node();
    return node.usable() ? leave_group(node, group_name(*gid), qp.memory.index) : ENODEV;
}

int query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode, std::uint32_t flags) noexcept {
    const auto& cable = static_cast<QueuePair*>(qp)->cable;
    const StrictSettings* const strict = cable == nullptr ? nullptr : cable->strict();
    if (flags != 0 || (strict != nullptr && !strict->in_order)) return 0;
#if defined(__x86_64__)
    return 1;
#else
    return 0;
#endif
}

}  // namespace millrace::soft
