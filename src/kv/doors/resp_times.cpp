// The RESP door's commands for how long keys stay.
#include "doors/resp_times.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "change.hpp"
#include "doors/text.hpp"

namespace millrace::kv {

namespace resp {

std::optional<TimeUnit> time_unit_of(std::string_view word) noexcept {
    if (is_word(word, "ex")) return TimeUnit::seconds;
    if (is_word(word, "px")) return TimeUnit::milliseconds;
    if (is_word(word, "exat")) return TimeUnit::unix_seconds;
    if (is_word(word, "pxat")) return TimeUnit::unix_milliseconds;
    return std::nullopt;
}

std::optional<std::int64_t> unix_time_of(const RespService& service, TimeUnit unit,
                                         std::int64_t number) noexcept {
    if ((unit == TimeUnit::seconds || unit == TimeUnit::unix_seconds) &&
        __builtin_mul_overflow(number, std::int64_t{1000}, &number)) {
        return std::nullopt;
    }
    if ((unit == TimeUnit::seconds || unit == TimeUnit::milliseconds) &&
        __builtin_add_overflow(number, service.unix_now(), &number)) {
        return std::nullopt;
    }
    return number;
}

std::optional<std::int64_t> positive_time(RespCall& call, TimeUnit unit, std::string_view word) {
    const auto number = parse_integer(word);
    if (!number) {
        call.not_integer();
        return std::nullopt;
    }
    const auto time = *number > 0 ? unix_time_of(call.service, unit, *number) : std::nullopt;
    if (!time) call.wrong_time();
    return time;
}

namespace {

/// On what it depends whether EXPIRE and its like do something.
struct Conditions {
    bool if_none = false;     ///< NX
    bool if_some = false;     ///< XX
    bool if_later = false;    ///< GT
    bool if_earlier = false;  ///< LT

    [[nodiscard]] bool hold(std::optional<base::Clock::time_point> now_at,
                            base::Clock::time_point then) const noexcept {
        if (if_none && now_at) return false;
        if (if_some && !now_at) return false;
        if (if_later && (!now_at || then <= *now_at)) return false;
        return !(if_earlier && now_at && then >= *now_at);
    }
};

bool parse_conditions(RespCall& call, Conditions& conditions) {
    for (std::size_t i = 3; i < call.words.size(); ++i) {
        const std::string_view word = call.word(i);
        if (is_word(word, "nx"))
            conditions.if_none = true;
        else if (is_word(word, "xx"))
            conditions.if_some = true;
        else if (is_word(word, "gt"))
            conditions.if_later = true;
        else if (is_word(word, "lt"))
            conditions.if_earlier = true;
        else {
            call.out.error(fmt::format("ERR Unsupported option {}", repeated(word)));
            return false;
        }
    }
    if (conditions.if_none &&
        (conditions.if_some || conditions.if_later || conditions.if_earlier)) {
        call.out.error("ERR NX and XX, GT or LT options at the same time are not compatible");
        return false;
    }
    if (conditions.if_later && conditions.if_earlier) {
        call.out.error("ERR GT and LT options at the same time are not compatible");
        return false;
    }
    return true;
}

/// Gives a key that is there another time; none: it stays for ever.
void expire_by(RespCall& call, TimeUnit unit) {
    Conditions conditions;
    if (!parse_conditions(call, conditions)) return;
    const auto number = call.integer(2);
    if (!number) return;
    const auto time = unix_time_of(call.service, unit, *number);
    if (!time) return call.wrong_time();
    const bool is_over = *time <= call.service.unix_now();
    const base::Clock::time_point then = call.service.of_unix(*time);
    bool is_done = false;
    const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
        is_done = entry != nullptr && conditions.hold(entry->expires_at, then);
        if (!is_done) return Change{};
        if (is_over) return Change{.kind = Change::Kind::erase};
        call.scratch.assign(word_of(entry->value));
        return Change{Change::Kind::set, bytes_of_word(call.scratch), then, entry->note};
    });
    if (outcome == Outcome::bad_key) return call.out.integer(0);
    if (!call.took(outcome)) return;
    if (is_done && !is_over) call.service.note_expiring();
    call.out.integer(is_done ? 1 : 0);
}

/// Answers when a key goes, as `told(Unix time)` says it; -2: it is not there; -1: never.
template <class Told>
void tell_time(RespCall& call, Told told) {
    std::int64_t answer = -2;
    (void)call.store().get(call.key(), [&](const Entry& entry) {
        answer = entry.expires_at ? told(call.service.unix_of(*entry.expires_at)) : -1;
    });
    call.out.integer(answer);
}

std::int64_t rounded_seconds(std::int64_t milliseconds) { return (milliseconds + 500) / 1000; }

}  // namespace

void expire(RespCall& call) { expire_by(call, TimeUnit::seconds); }
void pexpire(RespCall& call) { expire_by(call, TimeUnit::milliseconds); }
void expireat(RespCall& call) { expire_by(call, TimeUnit::unix_seconds); }
void pexpireat(RespCall& call) { expire_by(call, TimeUnit::unix_milliseconds); }

void ttl(RespCall& call) {
    tell_time(call, [&](std::int64_t at) {
        return rounded_seconds(std::max<std::int64_t>(at - call.service.unix_now(), 0));
    });
}
void pttl(RespCall& call) {
    tell_time(call, [&](std::int64_t at) {
        return std::max<std::int64_t>(at - call.service.unix_now(), 0);
    });
}
void expiretime(RespCall& call) {
    tell_time(call, [](std::int64_t at) { return rounded_seconds(at); });
}
void pexpiretime(RespCall& call) {
    tell_time(call, [](std::int64_t at) { return at; });
}

void persist(RespCall& call) {
    bool is_done = false;
    const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
        is_done = entry != nullptr && entry->expires_at.has_value();
        if (!is_done) return Change{};
        call.scratch.assign(word_of(entry->value));
        return Change{Change::Kind::set, bytes_of_word(call.scratch), {}, entry->note};
    });
    if (outcome == Outcome::bad_key) return call.out.integer(0);
    if (call.took(outcome)) call.out.integer(is_done ? 1 : 0);
}

}  // namespace resp
}  // namespace millrace::kv
