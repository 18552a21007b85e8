#include "queue_pair/queue_pairs.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <tuple>

#include "copy_service/copy_service.hpp"
#include "datagram/datagram_target.hpp"
#include "fabric/node.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/wait.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/fences.hpp"
#include "wire/wire_calls.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {
namespace {

std::mutex current_mutex;
std::weak_ptr<Process> the_current;

/// A thread that the child does not have may have held the lock, for as long as joining a fabric
/// takes, and left the pointer half written. The child joins by itself anyway.
void forget_in_child() noexcept {
    new (&current_mutex) std::mutex;
    new (&the_current) std::weak_ptr<Process>;
}

}  // namespace

std::shared_ptr<Process> current_process() {
    static const int handler = pthread_atfork(nullptr, nullptr, &forget_in_child);
    static_cast<void>(handler);
    const std::lock_guard guard{current_mutex};
    const char* const named = std::getenv("MILLRACE_FABRIC");
    const std::string fabric = named != nullptr && *named != '\0' ? named : "default";
    if (auto process = the_current.lock();
        process && process->node().usable() && process->fabric() == fabric) {
        return process;
    }
    auto wire = WirePort::open();
    const auto slot = wire == nullptr ? std::nullopt : wire->slot();
    auto process = std::make_shared<Process>(Node::join(fabric, slot), fabric);
    give_wire(process, std::move(wire));
    process->take(std::make_shared<CopyService>(process->node()));
    process->take(std::make_shared<DatagramTargets>(process->counters()));
    process->take(std::make_shared<QueuePairs>(*process));
    the_current = process;
    return process;
}

QueuePairs::QueuePairs(Process& process)
    : process_{process},
      tend_interval_{base::ticks_in(std::chrono::milliseconds{5})},
      collect_interval_{base::ticks_in(std::chrono::milliseconds{50})},
      publish_interval_{base::ticks_in(std::chrono::milliseconds{100})} {
    try {
        page_ = std::apply(
            [](auto... names) {
                return std::make_unique<base::StatisticsPage>(
                    "soft device", std::initializer_list<std::string_view>{names...});
            },
            count_names);
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "soft", "no statistics page: {}", error.what());
    }
}

QueuePairs::~QueuePairs() {
    process_.copies().stop();
    const auto held = process_.listed().hold();
    publish_sums(held);
}

void QueuePairs::add(QueuePair& qp) {
    const auto held = process_.listed().hold();
    held->all.push_back(&qp);
}

void QueuePairs::remove(QueuePair& qp) noexcept {
    const auto held = process_.listed().hold();
    if (std::erase(held->all, &qp) != 0) add_to(held->retired, qp);
}

void QueuePairs::add_to(Sums& sums, const QueuePair& qp) noexcept {
    for (std::size_t i = 0; i < count_kinds; ++i) {
        sums[i] += qp.counters.value(i) + qp.run_counters.value(i);
    }
    const auto add = [&](Count what, const std::atomic<std::uint64_t>& count) {
        sums[static_cast<std::size_t>(what)] += count.load(std::memory_order_relaxed);
    };
    add(Count::send_completion, qp.send_source.polled);
    add(Count::receive_completion, qp.receive_source.polled);
    add(Count::error_completion, qp.send_source.errors);
    add(Count::error_completion, qp.receive_source.errors);
}

void QueuePairs::keep(std::unique_ptr<QueuePair> qp) noexcept {
    const auto held = process_.listed().hold();
    try {
        held->kept.push_back(qp.get());
    } catch (const std::bad_alloc&) {  // stays listed all the same
    }
    static_cast<void>(qp.release());
}

void QueuePairs::tend_now(std::uint64_t now) noexcept {
    const base::Uncancelled held;
    last_tending_.store(now, std::memory_order_relaxed);
    process_.look_for_deaths(now);
    publish_by_clock(now);
    if (now - last_collection_.load(std::memory_order_relaxed) >= collect_interval_) collect(now);
}

void QueuePairs::publish_now(std::uint64_t now) noexcept {
    // The caller may hold a completion queue's lock, which comes after the mutex.
    const auto held = process_.listed().try_hold();
    if (!held) return;
    last_publication_.store(now, std::memory_order_relaxed);
    publish_sums(held);
    publication_cost_.store(base::ticks() - now, std::memory_order_relaxed);
}

void QueuePairs::collect(std::uint64_t now) noexcept {
    const auto held = process_.listed().try_hold();
    if (!held) return;
    last_collection_.store(now, std::memory_order_relaxed);
    let_go_of_the_gone(held, now);
    try {
        retire_mappings(held);
    } catch (const std::bad_alloc&) {  // what has not been taken out is taken out next time
    }
    if (held->retired_mappings.empty()) return;
    bool forgotten = true;
    for (QueuePair* qp : held->all) forgotten &= qp->forget_regions(held);
    try {
        for (const auto& target : process_.datagram_targets().all())
            forgotten &= target->forget_regions();
    } catch (const std::bad_alloc&) {
        forgotten = false;
    }
    if (forgotten) held->retired_mappings.clear();
}

/// A sender of datagrams would find out by itself, but only when it sends there again. Every
/// second, because queue pairs end while their processes live, and at once after a death, which has
/// cost descriptors.
void QueuePairs::let_go_of_the_gone(QueuePairsHeld held, std::uint64_t now) noexcept {
    ListedQueuePairs& listed = process_.listed()(held);
    static const std::uint64_t seldom = base::ticks_in(std::chrono::seconds{1});
    const std::uint64_t deaths = process_.deaths();
    if (deaths == deaths_let_go_.load(std::memory_order_relaxed) &&
        now - listed.last_letting_go < seldom)
        return;
    bool all = true;
    for (QueuePair* qp : listed.all) all &= qp->forget_gone_receivers();
    process_.copies().forget_dead();
    if (!all) return;
    deaths_let_go_.store(deaths, std::memory_order_relaxed);
    listed.last_letting_go = now;
}

void QueuePairs::retire_mappings(QueuePairsHeld held) {
    ListedQueuePairs& listed = process_.listed()(held);
    std::vector<PeerNode*> peers;
    for (const QueuePair* qp : listed.all) {
        const Connection& to = qp->connection(held);
        if (!to) continue;
        // Thousands of connections lead to few peers, one behind the other.
        PeerNode* const peer = to.peer().get();
        if (peers.empty() || peers.back() != peer) peers.push_back(peer);
    }
    const auto targets = process_.datagram_targets().all();
    for (const auto& target : targets) peers.push_back(&target->peer());
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    for (PeerNode* peer : peers) peer->retire_stale(listed.retired_mappings);
}

void QueuePairs::publish_before_sleep() noexcept {
    const std::uint64_t now = base::ticks();
    const std::uint64_t rest = 100 * publication_cost_.load(std::memory_order_relaxed);
    if (now - last_publication_.load(std::memory_order_relaxed) >= rest) publish_now(now);
}

void QueuePairs::publish_sums(QueuePairsHeld held) noexcept {
    if (page_ == nullptr) return;
    const ListedQueuePairs& listed = process_.listed()(held);
    Sums sums = listed.retired;
    for (std::size_t i = 0; i < count_kinds; ++i) sums[i] += process_.counters().value(i);
    for (const QueuePair* qp : listed.all) add_to(sums, *qp);
    for (std::size_t i = 0; i < count_kinds; ++i) page_->counter(i).set(sums[i]);
}

void QueuePairs::let_go_of_the_dead() noexcept {
    if (process_.deaths() == deaths_let_go_.load(std::memory_order_relaxed)) [[likely]]
        return;
    collect(base::ticks());
}

void QueuePairs::look_after() noexcept {
    const auto held = process_.listed().hold();
    for (QueuePair* qp : held->all) qp->look_after(held);
}

void QueuePairs::tell_of_requests_with(std::uint32_t key) noexcept {
    const auto held = process_.listed().hold();
    for (QueuePair* qp : held->all) {
        if (qp->strict()) qp->tell_if_in_flight(key);
    }
}

int QueuePairs::fence_region(std::uint32_t key, std::uint64_t registration) noexcept try {
    heavy_fence();
    process_.counters().add(Count::heavy_fence);
    process_.look_for_deaths(base::ticks());
    const FencedKey region{process_.node(), key};
    struct Watched {
        QueuePair* qp;
        std::uint32_t index;
        std::uint32_t generation;
        std::uint32_t connection;
        SeenHazards seen;
    };
    std::vector<Watched> watched;
    bool free = true;
    std::chrono::milliseconds patience{0};
    {
        const auto held = process_.listed().hold();
        for (QueuePair* qp : held->all) {
            Watched one{
                qp, qp->memory.index, qp->memory.generation, qp->connection(held).closed(), {}};
            qp->see_hazards(one.seen);
            if (qp->executors_out(one.seen, &region)) continue;
            if (const std::uint64_t broken = qp->broken.load(std::memory_order_acquire)) {
                // Its executor stopped before this memory was registered, or it may be in it.
                if (registration < broken) free = false;
                continue;
            }
            // Of a UD queue pair, only who is stopped is to be mistrusted, not all the others.
            if (qp->datagram != nullptr &&
                !qp->datagram->pass_stopped(held, one.seen.senders, registration, region)) {
                free = false;
            }
            const Connection& to = qp->connection(held);
            patience = std::max(patience, to ? to.peer()->patience() : longest_execution);
            watched.push_back(std::move(one));
        }
    }
    if (watched.empty()) return free ? 0 : EBUSY;
    // Who is no longer listed, or connected otherwise, has waited for its executors itself.
    const auto forget_those_out = [&](QueuePairsHeld held) {
        const std::vector<QueuePair*>& all = process_.listed()(held).all;
        std::erase_if(watched, [&](const Watched& one) {
            return std::find(all.begin(), all.end(), one.qp) == all.end() ||
                   one.qp->memory.index != one.index ||
                   one.qp->memory.generation != one.generation ||
                   one.qp->connection(held).closed() != one.connection ||
                   one.qp->executors_out(one.seen, &region);
        });
    };
    base::NapParker parker;
    const auto out = [&] {
        process_.look_for_deaths(base::ticks());
        const auto held = process_.listed().hold();
        forget_those_out(held);
        return watched.empty();
    };
    if (base::wait_until(out, base::Deadline::after(patience), {}, parker) == base::Status::ok) {
        return free ? 0 : EBUSY;
    }
    const auto held = process_.listed().hold();
    forget_those_out(held);  // this thread may have slept for long since
    for (const Watched& one : watched) {
        if (one.qp->datagram != nullptr && one.seen.complete) {
            one.qp->datagram->remember_stopped(held, one.seen.senders, process_.registrations(),
                                               region);
            continue;
        }
        if (const Connection& to = one.qp->connection(held)) to.peer()->note_standstill();
        one.qp->give_up(process_.registrations());
    }
    return free && watched.empty() ? 0 : EBUSY;
} catch (const std::bad_alloc&) {
    return ENOMEM;
}

}  // namespace millrace::soft
