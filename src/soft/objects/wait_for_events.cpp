// How programs wait for events: completion channels, made, waited for and ended, and the
// asynchronous events of a context. Entries of <millrace/soft/device.hpp>.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <new>
#include <utility>

#include "completion/completion_channel.hpp"
#include "completion/ringing.hpp"
#include "fabric/node.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/standard_streams.hpp"
#include "millrace/soft/device.hpp"
#include "objects/polling.hpp"
#include "process/asynchronous_events.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "system/event_wait.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

void close_all(CompletionChannel& channel) noexcept {
    if (channel.bell >= 0 && !channel.is_bare()) close(channel.bell);
    for (const int descriptor : {channel.fd, channel.timer.load()}) {
        if (descriptor >= 0) close(descriptor);
    }
}

/// What makes the channel's descriptor readable: of the peers, here all of them. In place of a
/// missing timer, that descriptor itself: it will have the timer, if one comes while we sleep.
[[nodiscard]] std::array<pollfd, 3> sources_of(const CompletionChannel& channel) noexcept {
    const int liveness = channel.owner->process->node().liveness_descriptor();
    const int timer = channel.timer.load(std::memory_order_acquire);
    return {pollfd{channel.bell, POLLIN, 0}, pollfd{timer < 0 ? channel.fd : timer, POLLIN, 0},
            pollfd{liveness, POLLIN, 0}};
}

/// Empties those that have something. Before events are looked for: what rings afterwards makes
/// the descriptor readable again.
void take_news(CompletionChannel& channel, const std::array<pollfd, 3>& sources) noexcept {
    const auto& [bell, timer, liveness] = sources;
    if (bell.revents != 0) drain_bell(bell.fd);
    if (timer.revents != 0 && timer.fd != channel.fd) {
        std::uint64_t expirations = 0;
        if (read(timer.fd, &expirations, sizeof expirations) > 0) {
            channel.alarms.fetch_add(1, std::memory_order_relaxed);
        }
        base::count_system_call();
    }
    static_cast<void>(channel.take_alarm());
    if (liveness.revents != 0) channel.owner->process->look_now(base::ticks());
    // Here or elsewhere: a death rings every channel, and its thread may not poll for long.
    channel.owner->process->queue_pairs().let_go_of_the_dead();
}

/// Does the program want to wait in here?
[[nodiscard]] bool is_blocking(const CompletionChannel& channel) noexcept {
    if (channel.is_bare()) return false;
    base::count_system_call();
    return (fcntl(channel.fd, F_GETFL) & O_NONBLOCK) == 0;
}

/// The completion queue whose turn it is to have its event, disarmed; nullptr: none has one. The
/// descriptor stays readable only while another has: a program that waits for it to become readable
/// and then asks for an event without having made it non-blocking must not wait in vain.
[[nodiscard]] PolledQueue* next_event(CompletionChannel& channel) noexcept {
    const auto queues = channel.queues.hold();
    PolledQueue* found = nullptr;
    bool another = false;
    const std::size_t total = queues->all.size();
    const std::size_t first = queues->next;
    for (std::size_t i = 0; i < total && !another; ++i) {
        const std::size_t index = (first + i) % total;
        PolledQueue& cq = *static_cast<PolledQueue*>(queues->all[index]);
        const auto turn = cq.turn.hold();
        cq.service(turn);
        if (found != nullptr) {
            another = cq.event_due(turn);
        } else if (cq.take_event(turn)) {
            cq.events_delivered.fetch_add(1, std::memory_order_relaxed);
            queues->next = index + 1;
            found = &cq;
        }
    }
    if (another) channel.ring();  // the bell for it may have been taken with the others
    return found;
}

/// An event that is not due, of a completion queue that is armed, and disarmed by it; nullptr: none
/// is. For a program that may have seen the descriptor readable by what is no event: a timer,
/// another peer's death, a bell that came after its event.
[[nodiscard]] PolledQueue* empty_event(CompletionChannel& channel) noexcept {
    const auto queues = channel.queues.hold();
    for (CompletionQueue* const one : queues->all) {
        auto* const cq = static_cast<PolledQueue*>(one);
        const auto turn = cq->turn.hold();
        if ((turn->armed & armed_mode_mask) == armed_not) continue;
        if (cq->poller(turn).moderation.put_off_at != 0) continue;  // its event comes by itself
        cq->event_forced.store(true, std::memory_order_relaxed);
        static_cast<void>(cq->take_event(turn));
        cq->events_delivered.fetch_add(1, std::memory_order_relaxed);
        return cq;
    }
    return nullptr;
}

template <class Object>
void acknowledge(Object& object, std::uint32_t& completed, unsigned count = 1) noexcept {
    pthread_mutex_lock(&object.mutex);
    completed += count;
    pthread_cond_broadcast(&object.cond);
    pthread_mutex_unlock(&object.mutex);
}

}  // namespace

ibv_comp_channel* create_comp_channel(ibv_context* context) noexcept {
    const base::Uncancelled held;
    Context* const owner = context_of(context);
    auto* channel = new (std::nothrow) CompletionChannel{};
    if (channel == nullptr) return refused(ENOMEM);
    channel->fd = base::above_standard_streams(epoll_create1(EPOLL_CLOEXEC));
    if (channel->fd >= 0) channel->bell = new_bell().release();
    if (channel->bell < 0 || !channel->watch(channel->bell)) {
        const int error = errno;
        close_all(*channel);
        delete channel;
        return refused(error);
    }
    channel->context = context;
    channel->refcnt = 0;
    channel->owner = owner;
    try {
        owner->process->add(*channel);
    } catch (const std::bad_alloc&) {
        close_all(*channel);
        delete channel;
        return refused(ENOMEM);
    }
    owner->users.fetch_add(1);
    return channel;
}

void leave_peers_to_program(ibv_comp_channel* channel) noexcept {
    static_cast<CompletionChannel*>(channel)->hears_of_peers = false;
}

void tell_events_only(ibv_comp_channel* public_channel) noexcept {
    auto& channel = *static_cast<CompletionChannel*>(public_channel);
    channel.hears_of_peers = false;
    if (channel.is_bare()) return;
    // Whoever finds a death rings all bells.
    const auto held = channel.owner->process->hold_events();
    // The number stays: it becomes another one of the bell. Where it cannot be, all stays as it is:
    // then alarms come by a timer.
    if (base::above_standard_streams(dup3(channel.bell, channel.fd, O_CLOEXEC)) != channel.fd) {
        return;
    }
    close(std::exchange(channel.bell, channel.fd));
}

std::chrono::nanoseconds next_alarm(const ibv_comp_channel* channel) noexcept {
    return static_cast<const CompletionChannel*>(channel)->next_alarm();
}

int destroy_comp_channel(ibv_comp_channel* public_channel) noexcept {
    const base::Uncancelled held;
    auto* channel = static_cast<CompletionChannel*>(public_channel);
    {
        const auto queues = channel->queues.hold();
        if (channel->refcnt != 0) return EBUSY;
    }
    channel->owner->process->remove(*channel);
    close_all(*channel);
    release(channel->owner);
    delete channel;
    return 0;
}

// Not noexcept: programs cancel the thread that waits here (pthread_cancel unwinds it).
int get_cq_event(ibv_comp_channel* public_channel, ibv_cq** queue, void** queue_context) {
    auto* channel = static_cast<CompletionChannel*>(public_channel);
    Process& process = *channel->owner->process;
    pthread_testcancel();  // an event that is there makes no difference
    const base::Uncancelled held;
    std::array<pollfd, 3> sources = sources_of(*channel);
    // A bare channel hears of nothing but its bell: where that rang, nobody else need be asked.
    int news = channel->is_bare() && drain_bell(channel->bell) ? 0 : look_for_news(sources);
    if (news < 0) return -1;
    take_news(*channel, sources);
    PolledQueue* cq = next_event(*channel);
    if (cq == nullptr) {
        if (!is_blocking(*channel)) {
            errno = EAGAIN;
            return -1;
        }
        if (news > 0) cq = empty_event(*channel);
    }
    // As libibverbs does: as long as it takes, if the program has left the descriptor blocking.
    while (cq == nullptr) {
        process.queue_pairs().publish_before_sleep();
        sources = sources_of(*channel);  // a timer may have come
        news = wait_for_news(sources, held);
        if (news < 0) return -1;
        take_news(*channel, sources);
        cq = next_event(*channel);
    }
    *queue = cq;
    *queue_context = cq->cq_context;
    return 0;
}

void ack_cq_events(ibv_cq* cq, unsigned count) noexcept {
    acknowledge(*cq, cq->comp_events_completed, count);
}

// Not noexcept: programs cancel the thread that waits here (pthread_cancel unwinds it).
int get_async_event(ibv_context* public_context, ibv_async_event* event) {
    Context* const context = context_of(public_context);
    AsynchronousEvents& events = *context->events;
    Process& process = *context->process;
    pthread_testcancel();  // an event that is there makes no difference
    const base::Uncancelled held;
    for (;;) {
        // Drained before looking: what rings after this is seen by the next poll.
        bool look = drain_bell(events.bell());
        pollfd living{process.node().liveness_descriptor(), POLLIN, 0};
        if (look_for_news({&living, 1}) > 0) {
            process.look_now(base::ticks());
            look = true;
        }
        if (look) {
            process.queue_pairs().look_after();
            process.queue_pairs().let_go_of_the_dead();
        }
        if (events.take(*event)) return 0;
        if ((fcntl(events.descriptor(), F_GETFL) & O_NONBLOCK) != 0) {
            errno = EAGAIN;
            return -1;
        }
        // As libibverbs does: as long as it takes.
        pollfd waiting{events.descriptor(), POLLIN, 0};
        if (wait_for_news({&waiting, 1}, held) < 0) return -1;
    }
}

void ack_async_event(ibv_async_event* event) noexcept {
    switch (element_of(event->event_type)) {
        case Element::qp:
            return acknowledge(*event->element.qp, event->element.qp->events_completed);
        case Element::cq:
            return acknowledge(*event->element.cq, event->element.cq->async_events_completed);
        case Element::srq:
            return acknowledge(*event->element.srq, event->element.srq->events_completed);
        case Element::none: return;  // nothing that is destroyed waits for those
    }
}

}  // namespace millrace::soft
