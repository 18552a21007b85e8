// One reader at its log, see the header.
#include "log/session.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "millrace/base/log.hpp"

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
        LogView view = store.view();
        const bool joins = static_cast<LogAsk>(request.ask) == LogAsk::join;
        if (joins && subscription_.filter().has_value()) choose_filter(view);
        taken.fault = subscription_.take(
            request, view, [&](const std::string& by) { return store.book().acknowledged(by); });
        if (taken.fault != nullptr) return taken;
        if (joins && choice_.has_value() && !choice_->is_made()) {
            subscription_.refuse(LogRefusal::other_filter, view, choice_->refusal());
            continue;
        }
        if (subscription_.acknowledged() != before && !name().empty()) {
            ++taken.acknowledgements;
            store.acknowledge(name(), subscription_.acknowledged());
        }
        if (joins && subscription_.state() == LogSubscription::State::reading) {
            const bool is_kept = name().empty() || store.has_room_for(name());
            if (!is_kept) subscription_.refuse(LogRefusal::full_book, view);
        }
    }
    return taken;
}

void LogSession::choose_filter(LogView& view) {
    choice_.emplace(*subscription_.filter(), filters_);
    if (choice_->is_made()) view.shape = choice_->shape();
}

Status LogSession::look_after() noexcept {
    return requests.has_value() ? requests->look_around() : Status::empty;
}

std::size_t LogSession::longest_run(const LogStore& store) const noexcept {
    const std::uint64_t most = items->max_size() - log_word_bytes;
    return std::min(most, std::max(items->capacity() / parts_of_ring, longest(store)));
}

std::uint64_t LogSession::longest(const LogStore& store) const noexcept {
    const std::uint64_t bytes = longest_of(store);
    return choice_.has_value() ? std::max(bytes, choice_->room_for(1, bytes, store.shape()))
                               : bytes;
}

Status LogSession::send_chosen(LogStore& store, Sent& sent) {
    /// So many items may be left out before the reader is told how far it is.
    constexpr std::uint64_t untold = 4096;
    LogHistory::Cursor next = cursor_;
    const std::span<const std::byte> run = store.history().next(next, longest_run(store));
    const std::uint64_t most = std::min<std::uint64_t>(
        choice_->room_for(next.position - cursor_.position, run.size(), store.shape()),
        longest_run(store));
    std::span<std::byte> place;
    Status status = items->claim(log_word_bytes + most, place);
    if (status != Status::ok) return status;
    const LogChoice::Filled filled =
        choice_->fill(run, cursor_.position, told_, store.shape(), place.subspan(log_word_bytes));
    const bool is_whole = filled.next == next.position;
    cursor_ = is_whole ? next : LogHistory::Cursor{.position = filled.next};
    const bool is_over = filled.has_thrown && choice_->stops() && filled.next != told_;
    if (filled.passed != 0 || filled.next - told_ >= untold || is_over) {
        const std::uint64_t word = LogWord{LogSay::chosen, told_}.pack();
        std::memcpy(place.data(), &word, sizeof word);
        is_settled = false;
        status = items->commit(log_word_bytes + filled.bytes);
        bytes_ += log_word_bytes + filled.bytes;
        told_ = filled.next;
        ++sent.frames;
    }
    const std::uint64_t before = subscription_.acknowledged();
    subscription_.choose(filled.next, filled.last_end);
    if (subscription_.acknowledged() != before) {
        store.acknowledge(name(), subscription_.acknowledged());
    }
    if (filled.has_thrown && (choice_->stops() || choice_->counts().threw == 1)) {
        const std::uint64_t at = choice_->stops() ? filled.next : filled.next - 1;
        base::log(base::LogLevel::warn, "flow",
                  "the filter of a log's reader threw for the item at {}: {} (reader {})", at,
                  choice_->reason(), items->peer());
        subscription_.tell_thrown(at, choice_->stops(), choice_->reason());
    }
    return status;
}

Status LogSession::tell_position() {
    if (!choice_.has_value() || !subscription_.is_reading() || told_ == cursor_.position) {
        return Status::ok;
    }
    std::span<std::byte> place;
    const Status status = items->claim(log_word_bytes + sizeof(LogChosenHead), place);
    if (status != Status::ok) return status;
    const std::uint64_t word = LogWord{LogSay::chosen, told_}.pack();
    const LogChosenHead head{cursor_.position, choice_->counts().threw};
    std::memcpy(place.data(), &word, sizeof word);
    std::memcpy(place.data() + sizeof word, &head, sizeof head);
    told_ = cursor_.position;
    return items->commit();
}

LogSession::Sent LogSession::send(LogStore& store, std::uint32_t most) {
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
                items->max_size() < log_word_bytes + longest(store)) {
                subscription_.refuse(LogRefusal::small_ring, view);
            }
            sent.status = items->claim(subscription_.due_bytes(), place);
            if (sent.status != Status::ok) break;
            subscription_.say(place, view);
            if (cursor_.position != subscription_.sent() || !is_welcome_) {
                cursor_ = {.position = subscription_.sent()};
                told_ = cursor_.position;
            }
            is_welcome_ = is_welcome_ || subscription_.is_reading();
        } else if (!subscription_.is_reading() || cursor_.position == history.end()) {
            has_all = true;
            return sent;
        } else if (cursor_.position < history.first()) {
            subscription_.pass(store.view());
            ++sent.passed;
            continue;
        } else if (choice_.has_value()) {
            sent.status = send_chosen(store, sent);
            if (sent.status != Status::ok) break;
            continue;
        } else {
            LogHistory::Cursor next = cursor_;
            const std::span<const std::byte> run = history.next(next, longest_run(store));
            sent.status = items->claim(log_word_bytes + run.size(), place);
            if (sent.status != Status::ok) break;
            const std::uint64_t word = LogWord{LogSay::items, cursor_.position}.pack();
            std::memcpy(place.data(), &word, sizeof word);
            std::memcpy(place.data() + sizeof word, run.data(), run.size());
            bytes_ += sizeof word + run.size();
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

void LogSession::displace(LogStore& store) {
    subscription_.displace();
    (void)send(store, 1);
    (void)settle();
}

LogConsumer LogSession::facts() const {
    return {.number = number,
            .name = name(),
            .peer = items.has_value() ? items->peer() : std::string{},
            .sent = subscription_.sent(),
            .acknowledged = subscription_.acknowledged(),
            .bytes = bytes_,
            .filter = choice_.has_value() ? choice_->counts() : FilterCounts{}};
}

}  // namespace millrace::flow::detail
