#include "process.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <new>
#include <string>

#include "asynchronous_events.hpp"
#include "completion_channel.hpp"
#include "failure_lines.hpp"
#include "fences.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/uncancelled.hpp"
#include "millrace/base/wait.hpp"
#include "queue_pair.hpp"

namespace millrace::soft {
namespace {

std::mutex current_mutex;
std::weak_ptr<Process> current_process;

/// A thread that the child does not have may have held the lock, for as long as joining a fabric
/// takes, and left the pointer half written. The child joins by itself anyway.
void forget_in_child() noexcept {
    new (&current_mutex) std::mutex;
    new (&current_process) std::weak_ptr<Process>;
}

}  // namespace

std::shared_ptr<Process> Process::current() {
    static const int handler = pthread_atfork(nullptr, nullptr, &forget_in_child);
    static_cast<void>(handler);
    const std::lock_guard guard{current_mutex};
    const char* const named = std::getenv("MILLRACE_FABRIC");
    const std::string fabric = named != nullptr && *named != '\0' ? named : "default";
    if (auto process = current_process.lock();
        process && process->node_->usable() && process->fabric_ == fabric) {
        return process;
    }
    auto process = std::make_shared<Process>(Node::join(fabric), fabric);
    current_process = process;
    return process;
}

Process::Process(std::shared_ptr<Node> node, std::string fabric)
    : node_{std::move(node)},
      fabric_{std::move(fabric)},
      tend_interval_{base::ticks_in(std::chrono::milliseconds{5})},
      look_interval_{base::ticks_in(std::chrono::milliseconds{50})},
      publish_interval_{base::ticks_in(std::chrono::milliseconds{100})} {
    try {
        page_ = std::make_unique<base::StatisticsPage>(
            "soft device",
            std::initializer_list<std::string_view>{
                count_names[0], count_names[1], count_names[2], count_names[3], count_names[4],
                count_names[5], count_names[6], count_names[7], count_names[8], count_names[9],
                count_names[10], count_names[11], count_names[12], count_names[13], count_names[14],
                count_names[15], count_names[16], count_names[17]});
        static_assert(count_kinds == 18);
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "soft", "no statistics page: {}", error.what());
    }
}

Process::~Process() {
    copies_.stop();
    const std::lock_guard guard{mutex_};
    publish_sums();
}

void Process::add(QueuePair& qp) {
    const std::lock_guard guard{mutex_};
    queue_pairs_.push_back(&qp);
}

void Process::remove(QueuePair& qp) noexcept {
    const std::lock_guard guard{mutex_};
    if (std::erase(queue_pairs_, &qp) == 0) return;
    for (std::size_t i = 0; i < count_kinds; ++i) {
        retired_[i] += qp.counters.value(i) + qp.run_counters.value(i);
    }
    const auto completions = [&](Count what) -> std::uint64_t& {
        return retired_[static_cast<std::size_t>(what)];
    };
    completions(Count::send_completion) += qp.send_source.polled.load(std::memory_order_relaxed);
    completions(Count::receive_completion) +=
        qp.receive_source.polled.load(std::memory_order_relaxed);
    completions(Count::error_completion) +=
        qp.send_source.errors.load(std::memory_order_relaxed) +
        qp.receive_source.errors.load(std::memory_order_relaxed);
}

void Process::keep(std::unique_ptr<QueuePair> qp) noexcept {
    const std::lock_guard guard{mutex_};
    try {
        kept_.push_back(std::move(qp));
    } catch (const std::bad_alloc&) {
        static_cast<void>(qp.release());  // stays listed all the same
    }
}

void Process::tend_now(std::uint64_t now) noexcept {
    const base::Uncancelled held;
    last_tending_.store(now, std::memory_order_relaxed);
    look_for_deaths(now);
    publish_by_clock(now);
    if (now - last_collection_.load(std::memory_order_relaxed) >= look_interval_) collect(now);
}

void Process::publish_now(std::uint64_t now) noexcept {
    // The caller may hold a completion queue's lock, which comes after the mutex.
    const std::unique_lock guard{mutex_, std::try_to_lock};
    if (!guard) return;
    last_publication_.store(now, std::memory_order_relaxed);
    publish_sums();
    publication_cost_.store(base::ticks() - now, std::memory_order_relaxed);
}

void Process::collect(std::uint64_t now) noexcept {
    const std::unique_lock guard{mutex_, std::try_to_lock};
    if (!guard) return;
    last_collection_.store(now, std::memory_order_relaxed);
    let_go_of_the_gone(now);
    try {
        retire_mappings();
    } catch (const std::bad_alloc&) {  // what has not been taken out is taken out next time
    }
    if (retired_mappings_.empty()) return;
    bool forgotten = true;
    for (QueuePair* qp : queue_pairs_) forgotten &= qp->forget_regions();
    try {
        for (const auto& target : datagram_targets_.all()) forgotten &= target->forget_regions();
    } catch (const std::bad_alloc&) {
        forgotten = false;
    }
    if (forgotten) retired_mappings_.clear();
}

/// A sender of datagrams would find out by itself, but only when it sends there again. Every
/// second, because queue pairs end while their processes live, and at once after a death, which has
/// cost descriptors.
void Process::let_go_of_the_gone(std::uint64_t now) noexcept {
    static const std::uint64_t seldom = base::ticks_in(std::chrono::seconds{1});
    const std::uint64_t deaths = this->deaths();
    if (deaths == deaths_let_go_.load(std::memory_order_relaxed) && now - last_letting_go_ < seldom)
        return;
    bool all = true;
    for (QueuePair* qp : queue_pairs_) all &= qp->forget_gone_receivers();
    copies_.forget_dead();
    if (!all) return;
    deaths_let_go_.store(deaths, std::memory_order_relaxed);
    last_letting_go_ = now;
}

void Process::retire_mappings() {
    std::vector<PeerNode*> peers;
    for (const QueuePair* qp : queue_pairs_) {
        if (qp->peer != nullptr) peers.push_back(qp->peer.get());
    }
    const auto targets = datagram_targets_.all();
    for (const auto& target : targets) peers.push_back(&target->peer());
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    for (PeerNode* peer : peers) peer->retire_stale(retired_mappings_);
}

void Process::publish_before_sleep() noexcept {
    const std::uint64_t now = base::ticks();
    const std::uint64_t rest = 100 * publication_cost_.load(std::memory_order_relaxed);
    if (now - last_publication_.load(std::memory_order_relaxed) >= rest) publish_now(now);
}

void Process::publish_sums() noexcept {
    if (page_ == nullptr) return;
    std::array<std::uint64_t, count_kinds> sums = retired_;
    for (std::size_t i = 0; i < count_kinds; ++i) sums[i] += counters_.value(i);
    for (const QueuePair* qp : queue_pairs_) {
        for (std::size_t i = 0; i < count_kinds; ++i) {
            sums[i] += qp->counters.value(i) + qp->run_counters.value(i);
        }
        sums[static_cast<std::size_t>(Count::send_completion)] +=
            qp->send_source.polled.load(std::memory_order_relaxed);
        sums[static_cast<std::size_t>(Count::receive_completion)] +=
            qp->receive_source.polled.load(std::memory_order_relaxed);
        sums[static_cast<std::size_t>(Count::error_completion)] +=
            qp->send_source.errors.load(std::memory_order_relaxed) +
            qp->receive_source.errors.load(std::memory_order_relaxed);
    }
    for (std::size_t i = 0; i < count_kinds; ++i) page_->counter(i).set(sums[i]);
}

void Process::look_now(std::uint64_t now) noexcept {
    last_look_.store(now, std::memory_order_relaxed);
    if (!node_->check_liveness()) return;
    deaths_.fetch_add(1, std::memory_order_release);
    // Whoever found it serves the queue pairs of one completion queue; the others' owners may wait
    // for an event only.
    const std::lock_guard guard{events_mutex_};
    for (AsynchronousEvents* events : events_) events->ring();
    for (CompletionChannel* channel : channels_) channel->ring();
}

void Process::look_after_queue_pairs() noexcept {
    const std::lock_guard guard{mutex_};
    for (QueuePair* qp : queue_pairs_) qp->look_after();
}

void Process::add(AsynchronousEvents& events) {
    const std::lock_guard guard{events_mutex_};
    events_.push_back(&events);
}

void Process::remove(AsynchronousEvents& events) noexcept {
    const std::lock_guard guard{events_mutex_};
    std::erase(events_, &events);
}

void Process::add(CompletionChannel& channel) {
    const std::lock_guard guard{events_mutex_};
    channels_.push_back(&channel);
}

void Process::remove(CompletionChannel& channel) noexcept {
    const std::lock_guard guard{events_mutex_};
    std::erase(channels_, &channel);
}

void Process::tell_of_requests_with(std::uint32_t key) noexcept {
    const std::lock_guard guard{mutex_};
    for (QueuePair* qp : queue_pairs_) {
        if (qp->strict()) tell_if_in_flight(*qp, key);
    }
}

bool Process::fence_region(std::uint32_t key, std::uint64_t registration) {
    heavy_fence();
    counters_.add(Count::heavy_fence);
    look_for_deaths(base::ticks());
    const FencedKey region{*node_, key};
    struct Watched {
        QueuePair* qp;
        std::uint32_t index;
        std::uint32_t generation;
        std::uint32_t disconnections;
        SeenHazards seen;
    };
    std::vector<Watched> watched;
    bool free = true;
    {
        const std::lock_guard guard{mutex_};
        for (QueuePair* qp : queue_pairs_) {
            Watched one{qp, qp->memory.index, qp->memory.generation, qp->disconnections, {}};
            qp->see_hazards(one.seen);
            if (qp->executors_out(one.seen, &region)) continue;
            if (qp->broken.load(std::memory_order_acquire)) {
                // Its executor stopped before this memory was registered, or it may be in it.
                if (registration <= qp->broken_at) free = false;
                continue;
            }
            // Of a UD queue pair, only who is stopped is to be mistrusted, not all the others.
            if (qp->datagram != nullptr &&
                !qp->datagram->pass_stopped(one.seen.senders, registration, region)) {
                free = false;
            }
            watched.push_back(std::move(one));
        }
    }
    if (watched.empty()) return free;
    // Who is no longer listed, or connected otherwise, has waited for its executors itself. With
    // the mutex.
    const auto is_out = [&](const Watched& one) {
        const auto found = std::find(queue_pairs_.begin(), queue_pairs_.end(), one.qp);
        return found == queue_pairs_.end() || one.qp->memory.index != one.index ||
               one.qp->memory.generation != one.generation ||
               one.qp->disconnections != one.disconnections ||
               one.qp->executors_out(one.seen, &region);
    };
    base::NapParker parker;
    const auto out = [&] {
        look_for_deaths(base::ticks());
        const std::lock_guard guard{mutex_};
        std::erase_if(watched, is_out);
        return watched.empty();
    };
    if (base::wait_until(out, base::Deadline::after(std::chrono::seconds{1}), base::WaitPolicy{},
                         parker) == base::Status::ok) {
        return free;
    }
    const std::lock_guard guard{mutex_};
    std::erase_if(watched, is_out);  // this thread may have slept for long since
    for (const Watched& one : watched) {
        if (one.qp->datagram != nullptr && one.seen.complete) {
            one.qp->datagram->remember_stopped(one.seen.senders, registrations(), region);
            continue;
        }
        one.qp->give_up(registrations());
    }
    return free && watched.empty();
}

}  // namespace millrace::soft
