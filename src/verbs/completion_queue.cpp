// Completion queues and the channels on which they raise events.
#include "millrace/verbs/completion_queue.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "failure.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/log.hpp"
#include "millrace/verbs/device.hpp"
#include "parents_objects.hpp"

namespace millrace::verbs {

CompletionChannel Context::create_completion_channel() {
    errno = 0;
    ibv_comp_channel* raw = path_->create_comp_channel(raw_);
    if (raw == nullptr) throw_call_failed("create a completion channel", std::string{name()});
    CompletionChannel channel{raw, *path_};
    const int flags = fcntl(raw->fd, F_GETFL);
    if (flags < 0 || fcntl(raw->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        throw_call_failed("make a completion channel non-blocking", std::string{name()});
    }
    return channel;
}

CompletionQueue Context::create_completion_queue(int entries, CompletionChannel* channel) {
    errno = 0;
    ibv_cq* raw =
        path_->create_cq(raw_, entries, nullptr, channel != nullptr ? channel->raw() : nullptr, 0);
    if (raw == nullptr) {
        const int error = errno != 0 ? errno : EIO;
        const int limit = attributes().max_cqe;
        base::throw_errno(error, "create a completion queue",
                          fmt::format("{} entries on {}", entries, name()),
                          entries > limit || entries < 1
                              ? fmt::format("ask for 1 to {} entries, the device's limit", limit)
                              : "");
    }
    return CompletionQueue{raw, *path_};
}

CompletionChannel::CompletionChannel(CompletionChannel&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, path_{other.path_}, drained_{other.drained_} {}

CompletionChannel& CompletionChannel::operator=(CompletionChannel&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    std::swap(drained_, other.drained_);
    return *this;
}

CompletionChannel::~CompletionChannel() {
    if (raw_ == nullptr || is_parents(raw_->context)) return;
    if (const int error = path_->destroy_comp_channel(raw_); error != 0) {
        base::log(base::LogLevel::warn, "verbs", "destroy a completion channel: {}",
                  base::describe_errno(error));
    }
}

void CompletionChannel::leave_peers_to_program() noexcept {
    if (path_->leave_peers_to_program != nullptr) path_->leave_peers_to_program(raw_);
}

void CompletionChannel::tell_events_only() noexcept {
    if (path_->tell_events_only != nullptr) path_->tell_events_only(raw_);
}

std::chrono::nanoseconds CompletionChannel::next_alarm() const noexcept {
    if (raw_ == nullptr || path_->next_alarm == nullptr) return std::chrono::nanoseconds::max();
    return path_->next_alarm(raw_);
}

int CompletionChannel::drain() noexcept {
    const base::Uncancelled held;
    int events = 0;
    ibv_cq* queue;
    void* queue_context;
    while (path_->get_cq_event(raw_, &queue, &queue_context) == 0) {
        path_->ack_cq_events(queue, 1);
        ++events;
    }
    drained_ += static_cast<std::uint64_t>(events);
    return events;
}

bool CompletionChannel::wait(std::chrono::nanoseconds limit) noexcept {
    const base::Uncancelled held;
    using namespace std::chrono;
    limit = std::clamp<nanoseconds>(std::min(limit, next_alarm()), nanoseconds{0}, hours{1});
    const timespec time{.tv_sec = duration_cast<seconds>(limit).count(),
                        .tv_nsec = (limit % seconds{1}).count()};
    pollfd entry{.fd = raw_->fd, .events = POLLIN, .revents = 0};
    if (ppoll(&entry, 1, &time, nullptr) <= 0 && next_alarm().count() != 0) return false;
    return drain() > 0;
}

CompletionQueue::CompletionQueue(CompletionQueue&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, path_{other.path_} {}

CompletionQueue& CompletionQueue::operator=(CompletionQueue&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    return *this;
}

CompletionQueue::~CompletionQueue() {
    if (raw_ == nullptr || is_parents(raw_->context)) return;
    if (const int error = path_->destroy_cq(raw_); error != 0) {
        base::log(base::LogLevel::warn, "verbs", "destroy a completion queue: {}",
                  base::describe_errno(error));
    }
}

}  // namespace millrace::verbs
