// The RESP door's commands for values.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "change.hpp"
#include "doors/resp_commands.hpp"
#include "doors/resp_times.hpp"
#include "doors/text.hpp"

namespace millrace::kv::resp {
namespace {

using Time = std::optional<base::Clock::time_point>;

constexpr Change nothing{};

Change to_value(std::string_view value, Time expires_at) {
    return {Change::Kind::set, bytes_of_word(value), expires_at};
}
Change kept_as_long(std::string_view value, const Entry* entry) {
    Change change = to_value(value, entry == nullptr ? Time{} : entry->expires_at);
    change.note = entry == nullptr ? 0 : entry->note;
    return change;
}

/// The options of SET and GETEX.
struct Options {
    bool only_new = false;
    bool only_old = false;
    bool tells_old = false;
    bool keeps_time = false;
    bool persists = false;
    std::optional<std::string_view> if_equal;
    std::optional<TimeUnit> unit;
    std::string_view time;
};

enum class Extended : std::uint8_t { set, getex };

/// Words from `from` on. False: they are none, and that is answered.
bool parse_options(RespCall& call, std::size_t from, Extended which, Options& options) {
    const bool is_set = which == Extended::set;
    for (std::size_t i = from; i < call.words.size(); ++i) {
        const std::string_view word = call.word(i);
        const bool has_next = i + 1 < call.words.size();
        const bool has_time = options.unit.has_value() || options.keeps_time || options.persists;
        const auto unit = time_unit_of(word);
        if (is_set && is_word(word, "nx") && !options.only_old && !options.if_equal) {
            options.only_new = true;
        } else if (is_set && is_word(word, "xx") && !options.only_new && !options.if_equal) {
            options.only_old = true;
        } else if (is_set && is_word(word, "get")) {
            options.tells_old = true;
        } else if (is_set && is_word(word, "ifeq") && has_next && !options.only_new &&
                   !options.only_old && !options.if_equal) {
            options.if_equal = call.word(++i);
        } else if (is_set && is_word(word, "keepttl") && !options.unit && !options.persists) {
            options.keeps_time = true;
        } else if (!is_set && is_word(word, "persist") && !options.unit && !options.keeps_time) {
            options.persists = true;
        } else if (unit && has_next && (!has_time || (options.unit && *options.unit == *unit))) {
            options.unit = unit;
            options.time = call.word(++i);
        } else {
            call.syntax_error();
            return false;
        }
    }
    return true;
}

void set_by(RespCall& call, std::size_t value_at, const Options& options) {
    const std::string_view value = call.word(value_at);
    Time expires_at;
    if (options.unit) {
        const auto at = positive_time(call, *options.unit, options.time);
        if (!at) return;
        expires_at = call.service.of_unix(*at);
    }
    const bool depends = options.only_new || options.only_old || options.tells_old ||
                         options.keeps_time || options.if_equal.has_value();
    bool is_set = true;
    if (!depends) {
        const auto result =
            expires_at ? call.store().set_until(call.key(), bytes_of_word(value), expires_at)
                       : call.store().set(call.key(), bytes_of_word(value));
        if (!call.took(result.outcome)) return;
    } else {
        std::optional<std::string> old;
        const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
            old.reset();
            if (options.tells_old && entry != nullptr) old.emplace(word_of(entry->value));
            is_set = !(options.only_new && entry != nullptr) &&
                     !((options.only_old || options.if_equal) && entry == nullptr) &&
                     !(options.if_equal && word_of(entry->value) != *options.if_equal);
            if (!is_set) return nothing;
            return to_value(
                value, options.keeps_time && entry != nullptr ? entry->expires_at : expires_at);
        });
        if (!call.took(outcome)) return;
        if (options.tells_old) {
            if (expires_at && is_set) call.service.note_expiring();
            return old ? call.out.string(*old) : call.out.null();
        }
    }
    if (expires_at && is_set) call.service.note_expiring();
    is_set ? call.ok() : call.out.null();
}

/// Adds to the number that a value is; none is 0.
void add(RespCall& call, std::int64_t more) {
    enum class Failed : std::uint8_t { no, not_integer, overflows };
    Failed failed{};
    std::int64_t sum = 0;
    char digits[24];
    const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
        failed = Failed::no;
        std::int64_t number = 0;
        if (entry != nullptr) {
            const auto parsed = parse_integer(word_of(entry->value));
            if (!parsed) failed = Failed::not_integer;
            number = parsed.value_or(0);
        }
        if (failed == Failed::no && __builtin_add_overflow(number, more, &sum)) {
            failed = Failed::overflows;
        }
        if (failed != Failed::no) return nothing;
        const auto end = std::to_chars(digits, digits + sizeof digits, sum).ptr;
        return kept_as_long({digits, static_cast<std::size_t>(end - digits)}, entry);
    });
    if (!call.took(outcome)) return;
    switch (failed) {
        case Failed::no: return call.out.integer(sum);
        case Failed::not_integer: return call.not_integer();
        case Failed::overflows: return call.out.error("ERR increment or decrement would overflow");
    }
}

}  // namespace

void get(RespCall& call) {
    const Outcome outcome = call.store().get(
        call.key(), [&](const Entry& entry) { call.out.string(word_of(entry.value)); });
    // A key that none can have is not there.
    if (outcome != Outcome::ok) call.out.null();
}

void set(RespCall& call) {
    Options options;
    if (!parse_options(call, 3, Extended::set, options)) return;
    set_by(call, 2, options);
}

void setnx(RespCall& call) {
    const auto result = call.store().set(call.key(), call.key(2), {.if_version = 0});
    if (result.outcome == Outcome::conflict) return call.out.integer(0);
    if (call.took(result.outcome)) call.out.integer(1);
}

void setex(RespCall& call) {
    Options options;
    options.unit = TimeUnit::seconds;
    options.time = call.word(2);
    set_by(call, 3, options);
}

void psetex(RespCall& call) {
    Options options;
    options.unit = TimeUnit::milliseconds;
    options.time = call.word(2);
    set_by(call, 3, options);
}

void getset(RespCall& call) {
    Options options;
    options.tells_old = true;
    set_by(call, 2, options);
}

void getdel(RespCall& call) {
    std::string& old = call.scratch;
    bool was_there = false;
    const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
        was_there = entry != nullptr;
        if (!was_there) return nothing;
        old.assign(word_of(entry->value));
        return Change{.kind = Change::Kind::erase};
    });
    if (outcome != Outcome::ok || !was_there) return call.out.null();
    call.out.string(old);
}

void getex(RespCall& call) {
    Options options;
    if (!parse_options(call, 2, Extended::getex, options)) return;
    if (!options.unit && !options.persists) return get(call);
    // Nobody's time is looked at where there is no item.
    if (!call.store().exists(call.key())) return call.out.null();
    Time expires_at;
    bool is_over = false;
    if (options.unit) {
        const auto at = positive_time(call, *options.unit, options.time);
        if (!at) return;
        is_over = *at <= call.service.unix_now();
        expires_at = call.service.of_unix(*at);
    }
    std::string& value = call.scratch;
    bool was_there = false;
    const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
        was_there = entry != nullptr;
        if (!was_there) return nothing;
        value.assign(word_of(entry->value));
        if (is_over) return Change{.kind = Change::Kind::erase};
        if (options.persists && !entry->expires_at) return nothing;
        Change change = kept_as_long(value, entry);
        change.expires_at = expires_at;
        return change;
    });
    if (!call.took(outcome)) return;
    if (!was_there) return call.out.null();
    if (expires_at) call.service.note_expiring();
    call.out.string(value);
}

void mget(RespCall& call) {
    call.out.array(call.words.size() - 1);
    for (std::size_t i = 1; i < call.words.size(); ++i) {
        const Outcome outcome = call.store().get(
            call.key(i), [&](const Entry& entry) { call.out.string(word_of(entry.value)); });
        if (outcome != Outcome::ok) call.out.null();
    }
}

namespace {
/// The keys of all pairs from `i` on. What the store does not take stops it: false, and `i` is its
/// key; those before it are set.
bool set_pairs(RespCall& call, std::size_t& i) {
    for (; i < call.words.size(); i += 2) {
        if (!call.took(call.store().set(call.key(i), call.key(i + 1)).outcome)) return false;
    }
    return true;
}
/// Looked at before the first is set, as all or none are.
bool has_good_keys(RespCall& call) {
    for (std::size_t i = 1; i < call.words.size(); i += 2) {
        const std::size_t size = call.word(i).size();
        if (size == 0 || size > longest_key) return call.took(Outcome::bad_key);
    }
    return true;
}
}  // namespace

void mset(RespCall& call) {
    if (call.words.size() % 2 == 0) return call.wrong_count();
    std::size_t next = 1;
    if (has_good_keys(call) && set_pairs(call, next)) call.ok();
}

void msetnx(RespCall& call) {
    if (call.words.size() % 2 == 0) return call.wrong_count();
    if (!has_good_keys(call)) return;
    for (std::size_t i = 1; i < call.words.size(); i += 2) {
        if (call.store().exists(call.key(i))) return call.out.integer(0);
    }
    std::size_t next = 1;
    if (set_pairs(call, next)) return call.out.integer(1);
    // All or none, also where there is no memory for all.
    for (std::size_t i = 1; i < next; i += 2) (void)call.store().erase(call.key(i));
}

void append(RespCall& call) {
    std::string& value = call.scratch;
    bool fits = true;
    const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
        const std::size_t before = entry == nullptr ? 0 : entry->value.size();
        fits = before + call.word(2).size() <= longest_value;
        if (!fits) return nothing;
        value.assign(entry == nullptr ? std::string_view{} : word_of(entry->value));
        value.append(call.word(2));
        return kept_as_long(value, entry);
    });
    if (!fits) return void(call.took(Outcome::bad_value));
    if (call.took(outcome)) call.out.integer(static_cast<std::int64_t>(value.size()));
}

void strlen(RespCall& call) {
    std::size_t length = 0;
    (void)call.store().get(call.key(), [&](const Entry& entry) { length = entry.value.size(); });
    call.out.integer(static_cast<std::int64_t>(length));
}

void setrange(RespCall& call) {
    const auto offset = call.integer(2);
    if (!offset) return;
    if (*offset < 0) return call.out.error("ERR offset is out of range");
    const auto begin = static_cast<std::uint64_t>(*offset);
    const std::string_view over = call.word(3);
    if (over.empty()) return strlen(call);
    if (begin > longest_value || begin + over.size() > longest_value) {
        return void(call.took(Outcome::bad_value));
    }
    std::string& value = call.scratch;
    const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
        value.assign(entry == nullptr ? std::string_view{} : word_of(entry->value));
        if (value.size() < begin + over.size()) value.resize(begin + over.size());
        value.replace(begin, over.size(), over);
        return kept_as_long(value, entry);
    });
    if (call.took(outcome)) call.out.integer(static_cast<std::int64_t>(value.size()));
}

void getrange(RespCall& call) {
    auto first = call.integer(2);
    if (!first) return;
    auto last = call.integer(3);
    if (!last) return;
    const Outcome outcome = call.store().get(call.key(), [&](const Entry& entry) {
        const std::string_view value = word_of(entry.value);
        const auto length = static_cast<std::int64_t>(value.size());
        if (*first < 0 && *last < 0 && *first > *last) return call.out.string({});
        const auto from_end = [length](std::int64_t at) {
            return at < 0 ? std::max<std::int64_t>(at + length, 0) : at;
        };
        const std::int64_t from = from_end(*first);
        const std::int64_t to = std::min(from_end(*last), length - 1);
        if (from > to || length == 0) return call.out.string({});
        call.out.string(
            value.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from + 1)));
    });
    if (outcome != Outcome::ok) call.out.string({});
}

void incr(RespCall& call) { add(call, 1); }
void decr(RespCall& call) { add(call, -1); }
void incrby(RespCall& call) {
    if (const auto more = call.integer(2)) add(call, *more);
}
void decrby(RespCall& call) {
    const auto less = call.integer(2);
    if (!less) return;
    if (*less == std::numeric_limits<std::int64_t>::min()) {
        return call.out.error("ERR decrement would overflow");
    }
    add(call, -*less);
}

void incrbyfloat(RespCall& call) {
    enum class Failed : std::uint8_t { no, no_float, no_number };
    Failed failed{};
    std::string text;
    const auto more = parse_float(call.word(2));
    const Outcome outcome = change(call.store(), call.key(), [&](const Entry* entry) {
        failed = Failed::no;
        const auto number =
            entry == nullptr ? std::optional{0.0L} : parse_float(word_of(entry->value));
        if (!number || !more) {
            failed = Failed::no_float;
            return nothing;
        }
        const long double sum = *number + *more;
        if (std::isnan(sum) || std::isinf(sum)) {
            failed = Failed::no_number;
            return nothing;
        }
        text = text_of_float(sum);
        return kept_as_long(text, entry);
    });
    if (!call.took(outcome)) return;
    switch (failed) {
        case Failed::no: return call.out.string(text);
        case Failed::no_float: return call.out.error("ERR value is not a valid float");
        case Failed::no_number:
            return call.out.error("ERR increment would produce NaN or Infinity");
    }
}

}  // namespace millrace::kv::resp
