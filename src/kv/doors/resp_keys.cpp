// The RESP door's commands for keys, whatever their values.
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <optional>

#include "change.hpp"
#include "doors/resp_commands.hpp"
#include "doors/text.hpp"
#include "millrace/base/detail/random.hpp"
#include "size_classes.hpp"

namespace millrace::kv::resp {
namespace {

using Time = std::optional<base::Clock::time_point>;

/// Every key of the command for which `holds(key)`.
template <class Holds>
void count_keys(RespCall& call, Holds holds) {
    std::int64_t count = 0;
    for (std::size_t i = 1; i < call.words.size(); ++i) count += holds(call.key(i)) ? 1 : 0;
    call.out.integer(count);
}

/// Sets the second key to what the first one is. None: there is no such item.
std::optional<Outcome> copy_item(RespCall& call) {
    Time expires_at;
    std::uint64_t note = 0;
    const Outcome found = call.store().get(call.key(1), [&](const Entry& entry) {
        call.scratch.assign(word_of(entry.value));
        expires_at = entry.expires_at;
        note = entry.note;
    });
    if (found != Outcome::ok) return std::nullopt;
    const auto value = bytes_of_word(call.scratch);
    return call.store().set_until(call.key(2), value, expires_at, {}, note).outcome;
}

/// With the gate alone. `only_new`: answers 0 or 1.
void rename_by(RespCall& call, bool only_new) {
    if (!call.store().exists(call.key(1))) return call.no_such_key();
    const auto answer = [&](bool is_done) {
        only_new ? call.out.integer(is_done ? 1 : 0) : call.ok();
    };
    if (call.word(1) == call.word(2)) return answer(false);
    if (only_new && call.store().exists(call.key(2))) return answer(false);
    const auto copied = copy_item(call);
    if (!copied) return call.no_such_key();
    if (!call.took(*copied)) return;
    (void)call.store().erase(call.key(1));
    answer(true);
}

/// As Redis reads a cursor.
std::optional<std::uint64_t> parse_cursor(std::string_view word) {
    const std::string text{word};
    if (!text.empty() && std::isspace(static_cast<unsigned char>(text[0])) != 0) {
        return std::nullopt;
    }
    char* end = nullptr;
    errno = 0;
    const std::uint64_t cursor = std::strtoull(text.c_str(), &end, 10);
    if (end != text.c_str() + text.size() || errno == ERANGE) return std::nullopt;
    return cursor;
}

struct ScanOptions {
    std::size_t count = 10;
    std::string_view pattern = "*";
    bool of_strings = true;  ///< those of other types are none
};

bool parse_scan(RespCall& call, ScanOptions& options) {
    for (std::size_t i = 2; i < call.words.size(); i += 2) {
        const std::string_view word = call.word(i);
        const bool has_next = i + 1 < call.words.size();
        if (has_next && is_word(word, "count")) {
            const auto count = call.integer(i + 1);
            if (!count) return false;
            if (*count < 1) {
                call.syntax_error();
                return false;
            }
            options.count = static_cast<std::size_t>(*count);
        } else if (has_next && is_word(word, "match")) {
            options.pattern = call.word(i + 1);
        } else if (has_next && is_word(word, "type")) {
            options.of_strings = is_word(call.word(i + 1), "string");
        } else {
            call.syntax_error();
            return false;
        }
    }
    return true;
}

/// Keys as answers to several, whose number is not known before the last.
class KeyList {
  public:
    explicit KeyList(RespCall& call)
        : call_{&call}, writer_{call.scratch, most(call), call.out.protocol()} {
        call.scratch.clear();
    }
    void add(std::string_view key) {
        if (writer_.is_full()) return;
        writer_.string(key);
        ++count_;
    }
    /// Of what follows there may be so many bytes, or none of it is kept. False: it was that.
    template <class Add>
    [[nodiscard]] bool add_whole(std::size_t most, Add add_all) {
        if (writer_.is_full()) return true;  // so is the answer
        const std::size_t size = call_->scratch.size();
        const std::size_t count = count_;
        writer_.limit(size + most);
        add_all();
        if (!writer_.is_full()) return true;
        call_->scratch.resize(size);
        count_ = count;
        writer_ = RespWriter{call_->scratch, size, call_->out.protocol()};
        return false;
    }
    void answer() {
        if (writer_.is_full()) return call_->out.give_up();
        call_->out.array(count_);
        call_->out.raw(call_->scratch);
    }

    static std::size_t most(const RespCall& call) {
        return 2 * call.service.options.max_unread_bytes;
    }

  private:
    RespCall* call_;
    RespWriter writer_;
    std::size_t count_ = 0;
};

}  // namespace

void del(RespCall& call) {
    count_keys(call, [&](std::span<const std::byte> key) {
        return call.store().erase(key) == Outcome::ok;
    });
}

void exists(RespCall& call) {
    count_keys(call, [&](std::span<const std::byte> key) { return call.store().exists(key); });
}

void touch(RespCall& call) {
    count_keys(call, [&](std::span<const std::byte> key) {
        return call.store().get(key, [](const Entry&) {}) == Outcome::ok;
    });
}

void type(RespCall& call) { call.out.word(call.store().exists(call.key()) ? "string" : "none"); }

void keys(RespCall& call) {
    KeyList list{call};
    call.store().for_each([&](const Entry& entry) {
        const std::string_view key = word_of(entry.key);
        if (matches_glob(call.word(1), key)) list.add(key);
    });
    list.answer();
}

void scan(RespCall& call) {
    auto cursor = parse_cursor(call.word(1));
    if (!cursor) return call.out.error("ERR invalid cursor");
    ScanOptions options;
    if (!parse_scan(call, options)) return;
    KeyList list{call};
    const auto visit = [&](const Entry& entry) {
        const std::string_view key = word_of(entry.key);
        if (options.of_strings && matches_glob(options.pattern, key)) list.add(key);
    };
    Scans& scans = call.service.scans;
    std::uint64_t next = scans.step(*cursor, options.count, visit);
    if (next == Scans::end()) {
        // Too much for the last piece comes in pieces; a walk that has gone round in vain, as
        // everything moves faster than it is asked for, has given what was there.
        constexpr std::size_t usual = std::size_t{1} << 20;
        const Gate::Alone alone{call.service.gate, call.thread};
        const std::size_t most = KeyList::most(call) / 2;
        const std::size_t here = Scans::may_go_round(*cursor) ? std::min(usual, most) : most;
        const bool is_whole = list.add_whole(here, [&] { scans.finish(*cursor, visit); });
        if (!is_whole) next = scans.go_round(*cursor);
    }
    call.out.array(2);
    call.out.string(std::to_string(next));
    list.answer();
}

void randomkey(RespCall& call) {
    std::string& key = call.scratch;
    const bool is_found = call.store().pick(
        base::random_bits(), [&](const Entry& entry) { key.assign(word_of(entry.key)); });
    is_found ? call.out.string(key) : call.out.null();
}

void rename(RespCall& call) { rename_by(call, false); }
void renamenx(RespCall& call) { rename_by(call, true); }

void copy(RespCall& call) {
    bool replaces = false;
    for (std::size_t i = 3; i < call.words.size(); ++i) {
        if (is_word(call.word(i), "replace")) {
            replaces = true;
        } else if (is_word(call.word(i), "db") && i + 1 < call.words.size()) {
            const auto database = call.integer(++i);
            if (!database) return;
            if (*database != 0) return call.out.error("ERR DB index is out of range");
        } else {
            return call.syntax_error();
        }
    }
    if (call.word(1) == call.word(2)) {
        return call.out.error("ERR source and destination objects are the same");
    }
    if (!replaces && call.store().exists(call.key(2))) return call.out.integer(0);
    const auto copied = copy_item(call);
    if (!copied) return call.out.integer(0);
    if (call.took(*copied)) call.out.integer(1);
}

void dbsize(RespCall& call) {
    call.out.integer(static_cast<std::int64_t>(call.store().stats().items));
}

void flush(RespCall& call) {
    const bool is_right = call.words.size() == 1 ||
                          (call.words.size() == 2 &&
                           (is_word(call.word(1), "async") || is_word(call.word(1), "sync")));
    if (!is_right) return call.syntax_error();
    call.store().clear();
    call.ok();
}

void object_encoding(RespCall& call) {
    constexpr std::size_t longest_embedded = 44;
    std::string_view encoding;
    (void)call.store().get(call.key(2), [&](const Entry& entry) {
        const std::string_view value = word_of(entry.value);
        encoding = parse_integer(value)               ? "int"
                   : value.size() <= longest_embedded ? "embstr"
                                                      : "raw";
    });
    encoding.empty() ? call.out.null() : call.out.string(encoding);
}

void memory_usage(RespCall& call) {
    for (std::size_t i = 3; i < call.words.size(); i += 2) {
        if (!is_word(call.word(i), "samples") || i + 1 == call.words.size()) {
            return call.syntax_error();
        }
        const auto samples = call.integer(i + 1);
        if (!samples) return;
        if (*samples < 0) return call.syntax_error();
    }
    std::size_t bytes = 0;
    (void)call.store().get(call.key(2), [&](const Entry& entry) {
        bytes = chunk_of(class_of(bytes_of_item(entry.key.size(), entry.value.size(),
                                                entry.expires_at.has_value(), entry.note != 0)));
    });
    bytes == 0 ? call.out.null() : call.out.integer(static_cast<std::int64_t>(bytes));
}

}  // namespace millrace::kv::resp
