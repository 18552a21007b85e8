// One reader as its log knows it: which requests may come, what they change, and what is to be said
// next. No I/O, and nothing that a reader says can break it: tests/structures, fuzz/log_words.cpp
// and models/log.pml play it.
//
//   awaited ──join──▶ reading ──retention passes it──▶ passed ──skip──▶ reading
//      └──────join that cannot be──▶ refused
//
// Invariants: sent ≤ end; what `acknowledge` says is ≤ sent; between `joined` or `begins` at p and
// the next word but `items`, runs begin at p and follow each other without a gap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "log/choice.hpp"
#include "log/words.hpp"

namespace millrace::flow::detail {

/// What of a log a request is judged by.
struct LogView {
    LogShape shape{};
    std::uint64_t sequence = 0;
    /// Of each epoch, where it began; the last one is this one. Of `epochs.size()` numbers up to
    /// `epoch`.
    std::span<const std::uint64_t> epochs{};
    std::uint32_t epoch = 0;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
};

class LogSubscription {
  public:
    enum class State : std::uint8_t { awaited, reading, passed, refused };

    /// Takes a request. Null: it keeps to the protocol. Else what it did, "acknowledged what it was
    /// never sent": nothing has changed then, and it is to be dismissed.
    /// `acknowledged`: what its name has at the log, asked once, by its join.
    template <class Acknowledged>
    [[nodiscard]] const char* take(const LogRequest& request, const LogView& log,
                                   Acknowledged&& acknowledged) {
        switch (static_cast<LogAsk>(request.ask)) {
            case LogAsk::join: {
                const char* const fault = check_join(request);
                if (fault != nullptr) return fault;
                name_.assign(request.name, request.name_length);
                const LogRefusal refusal = refusal_of(request, log);
                if (refusal != LogRefusal::none) {
                    refuse(refusal, log);
                } else {
                    join(request, log, name_.empty() ? std::nullopt : acknowledged(name_));
                }
                return nullptr;
            }
            case LogAsk::acknowledge: return acknowledge(request.position);
            case LogAsk::skip: return skip(log);
            case LogAsk::filter: return ask_for_filter(request);
        }
        return "asked for what no reader asks for";
    }

    /// What is to be said before anything else, once; its frame is due_bytes() long.
    [[nodiscard]] bool is_due() const noexcept { return due_.has_value(); }
    [[nodiscard]] std::size_t due_bytes() const noexcept {
        return log_word_bytes + sizeof(LogFacts) + text_.size();
    }
    /// Writes it. It is no longer due.
    void say(std::span<std::byte> into, const LogView& log) noexcept;

    /// Items may be sent, from sent() on.
    [[nodiscard]] bool is_reading() const noexcept { return state_ == State::reading && !due_; }
    [[nodiscard]] State state() const noexcept { return state_; }
    /// The items before `position` have been sent as well.
    void send(std::uint64_t position) noexcept { sent_ = position; }
    /// The same by a filter, which let the last one pass before `last_end` (0: none of them). What
    /// it left out after what was acknowledged needs no acknowledgement.
    void choose(std::uint64_t position, std::uint64_t last_end) noexcept {
        sent_ = position;
        if (last_end != 0) chosen_end_ = last_end;
        acknowledge_what_is_left_out();
    }
    /// What the reader has asked for before it joined.
    [[nodiscard]] const std::optional<LogFilterAsked>& filter() const noexcept { return filter_; }
    /// Its filter threw for the item at `position`. `stops`: it gets nothing more.
    void tell_thrown(std::uint64_t position, bool stops, std::string_view reason);
    /// What it would be sent next is no longer kept.
    void pass(const LogView& log) noexcept {
        state_ = State::passed;
        due_ = LogWord{LogSay::passed, log.first};
    }
    /// Another one came by its name.
    void displace() noexcept {
        state_ = State::refused;
        due_ = LogWord{LogSay::displaced, sent_};
    }
    /// Instead of joining. `text`: of other_filter.
    void refuse(LogRefusal refusal, const LogView& log, std::string_view text = {}) noexcept;

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
    [[nodiscard]] std::uint64_t acknowledged() const noexcept { return acknowledged_; }

  private:
    [[nodiscard]] const char* check_join(const LogRequest& request) const noexcept;
    [[nodiscard]] static LogRefusal refusal_of(const LogRequest& request,
                                               const LogView& log) noexcept;
    void join(const LogRequest& request, const LogView& log,
              std::optional<std::uint64_t> acknowledged) noexcept;
    [[nodiscard]] const char* acknowledge(std::uint64_t position) noexcept;
    [[nodiscard]] const char* skip(const LogView& log) noexcept;
    [[nodiscard]] const char* ask_for_filter(const LogRequest& request) noexcept;
    void acknowledge_what_is_left_out() noexcept {
        if (filter_ && !name_.empty() && acknowledged_ >= chosen_end_) {
            acknowledged_ = std::max(acknowledged_, sent_);
        }
    }

    State state_ = State::awaited;
    LogRefusal refusal_ = LogRefusal::none;
    std::optional<LogWord> due_;
    std::string name_;
    std::uint64_t sent_ = 0;
    std::uint64_t acknowledged_ = 0;
    std::optional<LogFilterAsked> filter_;
    std::uint64_t chosen_end_ = 0;  ///< after the last item that passed
    bool stops_ = false;            ///< of what was thrown and is due
    std::string text_;              ///< of what is due
};

}  // namespace millrace::flow::detail
