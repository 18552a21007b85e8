// Whom a queue pair is connected to: its peer found, mapped and watched; and let go of.
#include <cerrno>
#include <cstdint>

#include "completion/completion_channel.hpp"
#include "copy_service/copy_service.hpp"
#include "fabric/node.hpp"
#include "millrace/base/log.hpp"
#include "process/asynchronous_events.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "transport/failure_lines.hpp"

namespace millrace::soft {
namespace {

/// The block of a peer that is not there: in RESET for ever.
[[nodiscard]] BlockView nobody() noexcept {
    alignas(cache_line) static std::byte memory[Geometry{}.block_size()]{};
    return BlockView{memory, Geometry{}};
}

}  // namespace

// Whoever waits for an event of this queue pair hears of its peer's death.
void QueuePair::watch_peer() const noexcept {
    const auto watch = [&](int epoll) {
        PeerNode& peer = *connection_.peer();
        if (peer.watch_from(epoll)) return;
        base::log(base::LogLevel::warn, "soft",
                  "watch the life of process {} for queue pair {:#x}: {}; who waits for an event "
                  "without a limit may not be told of its death: raise fs.epoll.max_user_watches",
                  peer.pid(), qp_num, base::describe_errno(errno));
    };
    watch(owner->events->descriptor());
    const auto watch_for = [&](const ibv_comp_channel* channel) {
        if (channel == nullptr) return;
        if (static_cast<const CompletionChannel*>(channel)->hears_of_peers) watch(channel->fd);
    };
    watch_for(send_cq->channel);
    if (recv_cq->channel != send_cq->channel) watch_for(recv_cq->channel);
}

bool QueuePair::connect(QueuePairsHeld listed, SendHeld held, TheirsHeld) noexcept {
    SendSide& my = sends(held);
    my.told_of_way_there = my.told_of_way_here = false;
    const std::uint32_t number = destination.load(std::memory_order_relaxed);
    End other;
    other.type = qp_type;
    other.strict = end.strict;
    Node* const node = &owner->process->node();
    if (!reliable()) {
        // Until the peer is there, and should it never be, what is sent to it is lost.
        other.block = nobody();
        my.own.connect(node, nullptr, end, other, false, &counters);
    }
    try {
        if (!connection_.open(*node, number)) return true;
        const ModeLine& mode = *connection_.view().mode;
        if (cable == nullptr ? !is_fast(mode) : !cable->agrees_with(mode)) {
            base::log(base::LogLevel::error, "soft",
                      "connect queue pair {:#x} to {:#x} of process {}: their devices are in "
                      "different modes, here '{}', there '{}'; set MILLRACE_SOFT_MODE to the same "
                      "for both",
                      qp_num, number, connection_.peer()->pid(), describe_agreement(owner->mode),
                      describe(mode));
            connection_.close();
            return false;
        }
        watch_peer();
        other.pool = connection_.open_pool();
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "soft", "cannot reach queue pair {:#x}: {}", number,
                  error.what());
        connection_.close();
        return true;
    }
    PeerNode* const peer = connection_.peer().get();
    set_asymmetric(held, node->membarrier() && peer->asymmetric_fences());
    if (pool != nullptr && !asymmetric()) pool->need_full_fences();
    other.block = connection_.view();
    other.qpn = number;
    other.generation = connection_.generation();
    block.control->destination.store(make_destination(other.generation, number),
                                     std::memory_order_release);
    my.own.connect(node, peer, end, other, asymmetric(), &counters);
    // Those of a deep queue take pages of their own, and most are never used.
    constexpr std::uint32_t few_slots = 256;
    if (my.own.be_ready_for_first() && !slots.made() && slots.mask() < few_slots) slots.make(held);
    if (CopyService::likely_needed(*peer))
        owner->process->copies().serve(listed, copy_granter(), *peer, false);
    peer_pending.store(other.block.pending, std::memory_order_release);
    return true;
}

void QueuePair::tell_of_way(SendHeld held, bool both) noexcept {
    SendSide& my = sends(held);
    const std::uint32_t other = destination.load(std::memory_order_relaxed);
    const auto tell = [](bool& told, const Reason& way, std::uint32_t from, std::uint32_t to) {
        if (told || way.kind == ReasonKind::none) return;
        told = true;
        tell_way(way, from, to);
    };
    tell(my.told_of_way_there, my.own.way(), qp_num, other);
    if (both) tell(my.told_of_way_here, my.own.way_back(), other, qp_num);
}

void QueuePair::disconnect(QueuePairsHeld listed, SendHeld held, TheirsHeld run) noexcept {
    peer_pending.store(nullptr, std::memory_order_release);
    sends(held).own.disconnect();
    if (theirs(run) != nullptr) theirs(run)->disconnect();
    owner->process->copies().forget(listed, end);
    connection_.close();
}

bool QueuePair::forget_gone_receivers() noexcept {
    const auto held = sends.try_hold();
    if (held && held->transport != nullptr) held->transport->forget_gone();
    return static_cast<bool>(held);
}

bool QueuePair::forget_regions(QueuePairsHeld) noexcept {
    if (const auto held = sends.try_hold(); held) {
        held->own.forget_regions();
    } else {
        return false;
    }
    if (!theirs.lock().try_lock()) return false;
    const PeerExecutor& executor = theirs(theirs.held_by_hand());
    if (executor != nullptr) executor->forget_regions();
    if (theirs.lock().unlock()) run_peer_pending();
    return true;
}

}  // namespace millrace::soft
