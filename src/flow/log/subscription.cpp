// The log's side of what is said between a log and a reader, see the header.
#include "log/subscription.hpp"

#include <algorithm>

#include "millrace/base/detail/name_hash.hpp"
#include "millrace/flow/log_options.hpp"

namespace millrace::flow::detail {
namespace {

/// Where the epochs after `number` began, at the lowest: a reader of `number` that is beyond it has
/// items that the log lacks. Not only the next one: a later one may have lost more. Nothing: there
/// is none.
std::optional<std::uint64_t> begin_after_epoch(const LogView& log, std::uint32_t number) {
    if (number >= log.epoch || log.epochs.empty()) return std::nullopt;
    const std::size_t later = log.epoch - number;
    return *std::ranges::min_element(
        log.epochs.last(std::min<std::size_t>(later, log.epochs.size())));
}

}  // namespace

LogShape log_shape_of(const ItemFacts& item) noexcept {
    return {static_cast<std::uint32_t>(item.size), static_cast<std::uint32_t>(item.alignment),
            base::name_hash(item.name)};
}

const char* LogSubscription::check_join(const LogRequest& request) const noexcept {
    if (state_ != State::awaited) return "joined twice";
    if (request.name_length > longest_log_name) return "has a name that is too long";
    if (request.from > static_cast<std::uint32_t>(LogStart::At::position)) {
        return "begins where nobody can";
    }
    if (request.acknowledged != 0 && (request.sequence == 0 || request.name_length == 0)) {
        return "acknowledged without a name, or of no sequence";
    }
    return nullptr;
}

LogRefusal LogSubscription::refusal_of(const LogRequest& request, const LogView& log) noexcept {
    const LogShape shape{request.item_size, request.item_alignment, request.item_name};
    if (shape != log.shape) return LogRefusal::other_items;
    if (request.sequence != 0) {
        if (request.sequence != log.sequence || request.epoch > log.epoch) {
            return LogRefusal::other_sequence;
        }
        const auto next = begin_after_epoch(log, request.epoch);
        const bool is_beyond = request.acknowledged > next.value_or(log.end) ||
                               (static_cast<LogStart::At>(request.from) == LogStart::At::position &&
                                next && request.position > *next);
        if (is_beyond) return LogRefusal::lost_items;
    }
    if (static_cast<LogStart::At>(request.from) == LogStart::At::position &&
        request.position > log.end) {
        return LogRefusal::beyond_end;
    }
    return LogRefusal::none;
}

void LogSubscription::join(const LogRequest& request, const LogView& log,
                           std::optional<std::uint64_t> acknowledged) noexcept {
    std::uint64_t begin = log.first;
    switch (static_cast<LogStart::At>(request.from)) {
        case LogStart::At::acknowledged: begin = acknowledged.value_or(log.first); break;
        case LogStart::At::earliest: break;
        case LogStart::At::latest: begin = log.end; break;
        case LogStart::At::position: begin = request.position; break;
    }
    sent_ = begin;
    acknowledged_ = std::max(acknowledged.value_or(0), request.acknowledged);
    if (static_cast<LogStart::At>(request.from) == LogStart::At::acknowledged) {
        sent_ = std::max(sent_, request.acknowledged);
    }
    state_ = State::reading;
    due_ = LogWord{LogSay::joined, sent_};
}

void LogSubscription::refuse(LogRefusal refusal, const LogView& log,
                             std::string_view text) noexcept {
    state_ = State::refused;
    refusal_ = refusal;
    text_ = text.substr(0, longest_log_text);
    due_ = LogWord{LogSay::refused, log.end};
}

const char* LogSubscription::acknowledge(std::uint64_t position) noexcept {
    if (state_ == State::awaited || state_ == State::refused) {
        return "acknowledged before it had joined";
    }
    if (name_.empty()) return "acknowledged without a name";
    if (position > sent_) return "acknowledged what it was never sent";
    acknowledged_ = std::max(acknowledged_, position);
    acknowledge_what_is_left_out();
    return nullptr;
}

const char* LogSubscription::ask_for_filter(const LogRequest& request) noexcept {
    if (state_ != State::awaited || filter_) return "asked for a filter after it had joined";
    if (request.name_length > ring::most_filter_bytes || request.from > 1) {
        return "asked for a filter that is none";
    }
    filter_.emplace();
    filter_->name_hash = request.item_name;
    filter_->alignment = request.item_alignment;
    filter_->stops = static_cast<WhenThrown>(request.from) == WhenThrown::stop;
    filter_->size = request.name_length;
    std::memcpy(filter_->object.data(), request.name, request.name_length);
    return nullptr;
}

void LogSubscription::tell_thrown(std::uint64_t position, bool stops, std::string_view reason) {
    if (stops) state_ = State::refused;
    stops_ = stops;
    text_ = reason.substr(0, longest_log_text);
    due_ = LogWord{LogSay::threw, position};
}

const char* LogSubscription::skip(const LogView& log) noexcept {
    if (state_ != State::passed || due_) return "went past nothing";
    sent_ = std::max(log.first, sent_);
    state_ = State::reading;
    due_ = LogWord{LogSay::begins, sent_};
    return nullptr;
}

void LogSubscription::say(std::span<std::byte> into, const LogView& log) noexcept {
    const std::uint64_t word = due_->pack();
    std::memcpy(into.data(), &word, sizeof word);
    LogFacts facts{log.sequence, log.epoch, log.first, log.end};
    if (due_->say == LogSay::refused) {
        facts = {};
        facts.sequence = static_cast<std::uint64_t>(refusal_);
    }
    if (due_->say == LogSay::threw) facts.sequence = stops_ ? 1 : 0;
    std::memcpy(into.data() + sizeof word, &facts, sizeof facts);
    std::memcpy(into.data() + sizeof word + sizeof facts, text_.data(), text_.size());
    text_.clear();
    due_.reset();
}

}  // namespace millrace::flow::detail
