#include "completion_channel.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include "completion_queue.hpp"
#include "context.hpp"
#include "event_wait.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/standard_streams.hpp"
#include "millrace/base/system_calls.hpp"
#include "millrace/base/uncancelled.hpp"
#include "millrace/soft/device.hpp"
#include "ringing.hpp"

namespace millrace::soft {
namespace {

void drain(int descriptor) noexcept {
    std::array<char, 512> bytes;
    ssize_t drained = 0;
    do {
        drained = read(descriptor, bytes.data(), bytes.size());
        base::count_system_call();
    } while (drained == static_cast<ssize_t>(bytes.size()));
}

[[nodiscard]] bool watch(int epoll, int descriptor) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

/// Queue pairs get as many slots as the next power of two: so that a completion queue that is large
/// enough for what a program asked for mostly is for what it got.
[[nodiscard]] int size_of(int entries) noexcept {
    return static_cast<int>(std::bit_ceil(static_cast<unsigned>(entries)));
}

void close_all(CompletionChannel& channel) noexcept {
    if (channel.bell >= 0 && !channel.is_bare()) close(channel.bell);
    for (const int descriptor : {channel.fd, channel.timer.load()}) {
        if (descriptor >= 0) close(descriptor);
    }
}

[[nodiscard]] std::int64_t clock_now() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               base::Clock::now().time_since_epoch())
        .count();
}

/// What makes the channel's descriptor readable: of the peers, here all of them. In place of a
/// timer that there is not, that descriptor itself: it will have the timer, if one comes while we
/// sleep.
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
    if (bell.revents != 0) drain(bell.fd);
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
    channel.owner->process->let_go_of_the_dead();
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
[[nodiscard]] CompletionQueue* next_event(CompletionChannel& channel) noexcept {
    const std::lock_guard guard{channel.mutex};
    CompletionQueue* found = nullptr;
    bool another = false;
    const std::size_t total = channel.queues.size();
    const std::size_t first = channel.next_queue;
    for (std::size_t i = 0; i < total && !another; ++i) {
        const std::size_t index = (first + i) % total;
        CompletionQueue& cq = *channel.queues[index];
        const std::lock_guard queue_guard{cq.lock};
        cq.service();
        if (found != nullptr) {
            another = cq.event_due();
        } else if (cq.take_event()) {
            cq.events_delivered.fetch_add(1, std::memory_order_relaxed);
            channel.next_queue = index + 1;
            found = &cq;
        }
    }
    if (another) channel.ring();  // the bell for it may have been taken with the others
    return found;
}

/// An event that is not due, of a completion queue that is armed, and disarmed by it; nullptr: the
/// program may sleep. With `news`, of any: something made the descriptor readable that is no event
/// (a timer, another peer's death, a bell that came after its event), and the program may have seen
/// it. Without, of one with completions that the program has not polled: it would sleep beside
/// them.
[[nodiscard]] CompletionQueue* empty_event(CompletionChannel& channel, bool news) noexcept {
    const std::lock_guard guard{channel.mutex};
    for (CompletionQueue* const cq : channel.queues) {
        const std::lock_guard queue_guard{cq->lock};
        if ((cq->armed & armed_mode_mask) == armed_not) continue;
        if (cq->moderation.put_off_at != 0) continue;  // its event comes by itself
        if (!news && !cq->unpolled_due()) continue;
        cq->event_forced.store(true, std::memory_order_relaxed);
        static_cast<void>(cq->take_event());
        cq->events_delivered.fetch_add(1, std::memory_order_relaxed);
        return cq;
    }
    return nullptr;
}

}  // namespace

int CompletionQueue::bell() const noexcept {
    return soft_channel == nullptr ? -1 : soft_channel->bell;
}

void CompletionChannel::ring() noexcept { ring_bell(bell); }

int CompletionChannel::alarm() noexcept {
    int made = timer.load(std::memory_order_acquire);
    if (made >= 0) return made;
    const int mine =
        base::above_standard_streams(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (mine < 0) return -1;
    if (!watch(fd, mine) || !timer.compare_exchange_strong(made, mine)) {
        close(mine);
        return made;  // another thread's, or none
    }
    return mine;
}

bool CompletionChannel::take_alarm() noexcept {
    std::int64_t at = due.load(std::memory_order_acquire);
    if (at == no_alarm || at > clock_now()) return false;
    // An earlier one that another thread sets meanwhile has rung the bell: that look is to come.
    if (!due.compare_exchange_strong(at, no_alarm, std::memory_order_acq_rel)) return false;
    alarms.fetch_add(1, std::memory_order_relaxed);
    return true;
}

// Whoever sleeps by then asked for the time before: the bell tells it that there is another. The
// same alarm that is set again comes at nearly the same time, and must not ring each time.
void CompletionChannel::note_alarm(std::chrono::nanoseconds delay) noexcept {
    constexpr std::int64_t same = 20'000;
    const std::int64_t at = clock_now() + std::max<std::int64_t>(delay.count(), 1);
    std::int64_t noted = due.load(std::memory_order_acquire);
    do {
        if (noted != no_alarm && noted <= at + same) return;
    } while (!due.compare_exchange_weak(noted, at, std::memory_order_acq_rel));
    ring();
}

void CompletionChannel::wake_in(std::chrono::nanoseconds delay) noexcept {
    if (is_bare()) return note_alarm(delay);
    const int timer = alarm();
    if (timer < 0) {
        alarms.fetch_add(1, std::memory_order_relaxed);  // whoever looks sets it again
        return ring();
    }
    if (delay.count() <= 0) delay = std::chrono::nanoseconds{1};
    // An earlier alarm is never put off: whoever set it sets it again when it fires.
    itimerspec current{};
    timerfd_gettime(timer, &current);
    base::count_system_call();
    const std::chrono::nanoseconds left = std::chrono::seconds{current.it_value.tv_sec} +
                                          std::chrono::nanoseconds{current.it_value.tv_nsec};
    if (left.count() > 0 && left <= delay) return;
    itimerspec next{};
    next.it_value.tv_sec = delay.count() / 1'000'000'000;
    next.it_value.tv_nsec = delay.count() % 1'000'000'000;
    timerfd_settime(timer, 0, &next, nullptr);
    base::count_system_call();
}

ibv_comp_channel* create_comp_channel(ibv_context* context) noexcept {
    const base::Uncancelled held;
    Context* const owner = context_of(context);
    auto* channel = new (std::nothrow) CompletionChannel{};
    if (channel == nullptr) {
        errno = ENOMEM;
        return nullptr;
    }
    channel->fd = base::above_standard_streams(epoll_create1(EPOLL_CLOEXEC));
    if (channel->fd >= 0) channel->bell = new_bell().release();
    if (channel->bell < 0 || !watch(channel->fd, channel->bell)) {
        const int error = errno;
        close_all(*channel);
        delete channel;
        errno = error;
        return nullptr;
    }
    channel->context = context;
    channel->refcnt = 0;
    channel->owner = owner;
    try {
        owner->process->add(*channel);
    } catch (const std::bad_alloc&) {
        close_all(*channel);
        delete channel;
        errno = ENOMEM;
        return nullptr;
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

std::chrono::nanoseconds next_alarm(const ibv_comp_channel* public_channel) noexcept {
    const auto& channel = *static_cast<const CompletionChannel*>(public_channel);
    const std::int64_t at = channel.due.load(std::memory_order_acquire);
    if (at == CompletionChannel::no_alarm) return std::chrono::nanoseconds::max();
    return std::chrono::nanoseconds{std::max<std::int64_t>(at - clock_now(), 0)};
}

int destroy_comp_channel(ibv_comp_channel* public_channel) noexcept {
    const base::Uncancelled held;
    auto* channel = static_cast<CompletionChannel*>(public_channel);
    {
        const std::lock_guard guard{channel->mutex};
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
    int news = look_for_news(sources);
    if (news < 0) return -1;
    take_news(*channel, sources);
    CompletionQueue* cq = next_event(*channel);
    if (cq == nullptr) {
        if (!is_blocking(*channel)) {
            errno = EAGAIN;
            return -1;
        }
        cq = empty_event(*channel, news > 0);
    }
    // As libibverbs does: as long as it takes, if the program has left the descriptor blocking.
    while (cq == nullptr) {
        process.publish_before_sleep();
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
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_broadcast(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                  int vector) noexcept {
    const base::Uncancelled held;
    constexpr int max_entries = 4 << 20;
    if (entries < 1 || entries > max_entries || vector < 0 || vector >= context->num_comp_vectors) {
        errno = EINVAL;
        return nullptr;
    }
    auto place = context_of(context)->process->completion_queues().take();
    if (place == nullptr) return nullptr;  // errno says why
    auto* cq = new (std::nothrow) CompletionQueue{context_of(context)->yields};
    if (cq == nullptr) {
        errno = ENOMEM;
        return nullptr;
    }
    cq->context = context;
    cq->place = std::move(place);
    cq->channel = channel;
    cq->cq_context = cq_context;
    cq->cqe = size_of(entries);
    pthread_mutex_init(&cq->mutex, nullptr);
    pthread_cond_init(&cq->cond, nullptr);
    cq->owner = context_of(context);
    cq->service_interval = base::ticks_in(std::chrono::microseconds{10});
    cq->yield_after = base::ticks_in(std::chrono::microseconds{20});
    if (channel != nullptr) {
        cq->soft_channel = static_cast<CompletionChannel*>(channel);
        const std::lock_guard guard{cq->soft_channel->mutex};
        cq->soft_channel->queues.push_back(cq);
        ++channel->refcnt;
    }
    cq->owner->users.fetch_add(1);
    return cq;
}

int resize_cq(ibv_cq* public_queue, int entries) noexcept {
    constexpr int max_entries = 4 << 20;
    if (entries < 1 || entries > max_entries) return EINVAL;
    auto* cq = static_cast<CompletionQueue*>(public_queue);
    const std::lock_guard guard{cq->lock};
    // A size is a limit here, not a ring; but what is there has to fit.
    std::uint64_t unpolled = 0;
    for (const CompletionSource* source : cq->turns.all()) {
        std::uint32_t at = source->position.load(std::memory_order_relaxed);
        for (std::uint32_t seen = 0; seen <= source->mask && source->holds(at); ++seen) ++at;
        unpolled += at - source->position.load(std::memory_order_relaxed);
    }
    if (unpolled > static_cast<std::uint64_t>(entries)) return EINVAL;
    cq->cqe = size_of(entries);
    cq->look_whether_limited();
    return 0;
}

int destroy_cq(ibv_cq* public_queue) noexcept {
    const base::Uncancelled held;
    auto* cq = static_cast<CompletionQueue*>(public_queue);
    {
        const std::lock_guard guard{cq->lock};
        if (!cq->turns.all().empty()) return EBUSY;
    }
    if (cq->soft_channel != nullptr) {
        const std::lock_guard guard{cq->soft_channel->mutex};
        std::erase(cq->soft_channel->queues, cq);
        cq->soft_channel->next_queue = 0;
        --cq->soft_channel->refcnt;
    }
    // As libibverbs: until every event that was handed out has been acknowledged.
    pthread_mutex_lock(&cq->mutex);
    while (cq->comp_events_completed != cq->events_delivered.load(std::memory_order_relaxed)) {
        pthread_cond_wait(&cq->cond, &cq->mutex);
    }
    pthread_mutex_unlock(&cq->mutex);
    end_async_events(*public_queue);
    pthread_cond_destroy(&cq->cond);
    pthread_mutex_destroy(&cq->mutex);
    Context* const owner = cq->owner;
    delete cq;  // gives memory back to the owner's process
    release(owner);
    return 0;
}

}  // namespace millrace::soft
