// One reader at its log, see the header.
#include "log/session.hpp"

#include <algorithm>
#include <cstring>
#include <span>

namespace millrace::flow::detail {

using base::Status;

namespace {

/// A part of the ring that one frame takes at most, so that others are on their way meanwhile.
constexpr std::uint64_t parts_of_ring = 8;

std::uint64_t longest_of(const LogStore& store) noexcept {
    return store.shape().is_framed() ? log_record_bytes(store.history().longest_item())
                                     : store.shape().item_size;
}

}  // namespace

LogSession::Taken LogSession::take(LogStore& store) {
    Taken taken;
    if (!requests.has_value()) return taken;
    LogRequest request;
    while (requests->has_item() && requests->try_dequeue(request) == Status::ok) {
        ++taken.requests;
        const std::uint64_t before = subscription_.acknowledged();
        const LogView view = store.view();
        taken.fault = subscription_.take(
            request, view, [&](const std::string& by) { return store.book().acknowledged(by); });
        if (taken.fault != nullptr) return taken;
        if (subscription_.acknowledged() != before && !name().empty()) {
            ++taken.acknowledgements;
            store.acknowledge(name(), subscription_.acknowledged());
        }
        if (static_cast<LogAsk>(request.ask) == LogAsk::join &&
            subscription_.state() == LogSubscription::State::reading) {
            const bool is_kept = name().empty() || store.has_room_for(name());
            if (!is_kept) subscription_.refuse(LogRefusal::full_book, view);
        }
    }
    return taken;
}

Status LogSession::look_after() noexcept {
    return requests.has_value() ? requests->look_around() : Status::empty;
}

std::size_t LogSession::longest_run(const LogStore& store) const noexcept {
    const std::uint64_t most = items->max_size() - log_word_bytes;
    return std::min(most, std::max(items->capacity() / parts_of_ring, longest_of(store)));
}

LogSession::Sent LogSession::send(const LogStore& store, std::uint32_t most) {
    Sent sent;
    has_no_room = false;
    has_all = !items.has_value();
    if (has_all) return sent;
    std::span<std::byte> place;
    const LogHistory& history = store.history();
    for (; most != 0; --most) {
        if (subscription_.is_due()) {
            const LogView view = store.view();
            if (subscription_.state() == LogSubscription::State::reading &&
                items->max_size() < log_word_bytes + longest_of(store)) {
                subscription_.refuse(LogRefusal::small_ring, view);
            }
            sent.status = items->claim(LogSubscription::due_bytes(), place);
            if (sent.status != Status::ok) break;
            subscription_.say(place, view);
            cursor_ = {.position = subscription_.sent()};
            is_welcome_ = is_welcome_ || subscription_.is_reading();
        } else if (!subscription_.is_reading() || cursor_.position == history.end()) {
            has_all = true;
            return sent;
        } else if (cursor_.position < history.first()) {
            subscription_.pass(store.view());
            ++sent.passed;
            continue;
        } else {
            LogHistory::Cursor next = cursor_;
            const std::span<const std::byte> run = history.next(next, longest_run(store));
            sent.status = items->claim(log_word_bytes + run.size(), place);
            if (sent.status != Status::ok) break;
            const std::uint64_t word = LogWord{LogSay::items, cursor_.position}.pack();
            std::memcpy(place.data(), &word, sizeof word);
            std::memcpy(place.data() + sizeof word, run.data(), run.size());
            cursor_ = next;
            subscription_.send(next.position);
        }
        is_settled = false;
        sent.status = items->commit();
        ++sent.frames;
        if (sent.status != Status::ok) break;
    }
    has_no_room = sent.status == Status::full;
    return sent;
}

Status LogSession::settle() {
    if (is_settled || !items.has_value()) return Status::ok;
    const Status status = items->flush(base::Deadline::now());
    is_settled = status == Status::ok;
    return status;
}

void LogSession::displace(const LogStore& store) {
    subscription_.displace();
    (void)send(store, 1);
    (void)settle();
}

LogConsumer LogSession::facts() const {
    return {.number = number,
            .name = name(),
            .peer = items.has_value() ? items->peer() : std::string{},
            .sent = subscription_.sent(),
            .acknowledged = subscription_.acknowledged()};
}

}  // namespace millrace::flow::detail
