// The memcached door's meta commands: a key, and flags of a letter each, some with a token.
#include <algorithm>
#include <array>
#include <bitset>
#include <chrono>

#include <fmt/format.h>

#include "change.hpp"
#include "doors/memcached_commands.hpp"
#include "doors/text.hpp"
#include "item.hpp"

namespace millrace::kv::memcached {
namespace {

constexpr std::string_view wrong_line = "CLIENT_ERROR bad command line format";
constexpr std::string_view wrong_token = "CLIENT_ERROR bad token in command line format";
constexpr std::string_view too_many = "CLIENT_ERROR options flags too long";
constexpr std::string_view not_kept = "CLIENT_ERROR flags h and l: this store keeps no such times";
constexpr std::string_view wrong_flag = "CLIENT_ERROR invalid or duplicate flag";
constexpr std::size_t most_words = 19;
constexpr std::size_t longest_opaque = 32;  // with its letter

/// What the flags of a command say.
struct Flags {
    std::span<const std::string_view> words;
    std::string_view key;
    bool is_encoded = false;  ///< the key was, and is in the answer
    bool tells_value = false;
    bool is_quiet = false;
    bool invalidates = false;
    bool is_opaque_long = false;
    char mode = 0;
    std::optional<Time> made_time;  ///< N
    std::optional<Time> new_time;   ///< T
    Time renew_before;              ///< R: what is over before this is made anew
    std::optional<std::uint64_t> cas;
    std::uint32_t client_flags = 0;
    std::uint64_t delta = 1;
    std::uint64_t initial = 0;
    DecodedKey decoded;
};

/// Reads them, from a word on. Empty: they are right; else what to say.
class FlagReader {
  public:
    FlagReader(MemcachedCall& call, std::size_t from, Flags& flags) noexcept
        : call_{call}, flags_{flags} {
        flags_.words = std::span{call.request.words}.subspan(from);
        flags_.key = call.word(1);
    }
    std::string_view read() {
        std::bitset<128> seen;
        for (const std::string_view word : flags_.words) {
            const auto letter = static_cast<unsigned char>(word[0]);
            if (letter >= 127 || seen[letter]) return "CLIENT_ERROR duplicate flag";
            seen[letter] = true;
            if (!take(word[0], word.substr(1))) return "CLIENT_ERROR invalid flag";
        }
        if (error_.empty() && !flags_.is_encoded && !is_key(flags_.key)) error_ = wrong_line;
        return error_;
    }

  private:
    void expect(bool is_right, std::string_view otherwise) {
        if (!is_right) error_ = otherwise;
    }
    void take_time(std::string_view token, std::optional<Time>& to) {
        const auto number = parse_signed(token);
        expect(number.has_value(), wrong_token);
        if (number) to = time_of(call_.service, *number);
    }
    void take_number(std::string_view token, std::uint64_t& to, std::string_view otherwise) {
        const auto number = parse_unsigned(token);
        expect(number.has_value(), otherwise);
        to = number.value_or(0);
    }
    /// False: there is no such flag.
    bool take(char letter, std::string_view token) {
        switch (letter) {
            case 'b':
                flags_.is_encoded = true;
                expect(flags_.decoded.decode(call_.word(1)), "CLIENT_ERROR error decoding key");
                flags_.key = flags_.decoded.get();
                return true;
            case 'N': take_time(token, flags_.made_time); return true;
            case 'T': take_time(token, flags_.new_time); return true;
            case 'R': {
                const auto number = parse_signed(token);
                expect(number.has_value(), wrong_token);
                // What is not before any time is never about to be over.
                flags_.renew_before =
                    time_of(call_.service, std::max<std::int64_t>(number.value_or(0), 0));
                return true;
            }
            case 'F': {
                const auto number = parse_flags(token);
                if (error_.empty()) expect(number.has_value(), wrong_line);
                flags_.client_flags = number.value_or(0);
                return true;
            }
            case 'C': {
                std::uint64_t number = 0;
                take_number(token, number, wrong_token);
                flags_.cas = number;
                return true;
            }
            case 'M':
                expect(token.size() == 1, "CLIENT_ERROR incorrect length for M token");
                if (token.size() == 1) flags_.mode = token[0];
                return true;
            case 'J':
                take_number(token, flags_.initial, "CLIENT_ERROR invalid numeric initial value");
                return true;
            case 'D':
                take_number(token, flags_.delta, "CLIENT_ERROR invalid numeric delta value");
                return true;
            case 'O': flags_.is_opaque_long = token.size() >= longest_opaque; return true;
            case 'h':
            case 'l': error_ = not_kept; return true;
            case 'v': flags_.tells_value = true; return true;
            case 'q': flags_.is_quiet = true; return true;
            case 'I': flags_.invalidates = true; return true;
            default: return std::string_view{"PLkstcfu"}.find(letter) != std::string_view::npos;
        }
    }

    MemcachedCall& call_;
    Flags& flags_;
    std::string_view error_;
};

/// The flags of a key that follows the command. False: they are wrong, and that is answered;
/// `otherwise`: with this, whatever it is.
bool read_flags(MemcachedCall& call, Flags& flags, std::size_t from,
                std::string_view otherwise = {}) {
    if (call.word(1).size() > longest_key_word) {
        call.fail(wrong_line);
        return false;
    }
    if (call.words() > most_words) {
        call.fail(call.word(0) == "mg" ? "CLIENT_ERROR options flags are too long" : too_many);
        return false;
    }
    std::string_view why = FlagReader{call, from, flags}.read();
    if (!why.empty() && why != not_kept && !otherwise.empty()) why = otherwise;
    if (why.empty() && flags.is_opaque_long) why = "CLIENT_ERROR opaque token too long";
    if (!why.empty()) call.fail(why);
    return why.empty();
}

/// What an answer may tell of an item.
struct Told {
    std::string_view value{};
    Note note{};
    Time expires_at{};  ///< before the command gave it another time
    Version version = 0;
    bool is_made = false;  ///< by the command
};

/// -1: never.
void tell_time(MemcachedWriter& out, Time expires_at) {
    if (!expires_at) return out.raw("-1");
    const auto left = std::chrono::ceil<std::chrono::seconds>(*expires_at - base::Clock::now());
    out.number(static_cast<std::uint64_t>(std::max<std::int64_t>(left.count(), 0)));
}

void tell_key(MemcachedWriter& out, const Flags& flags) {
    out.raw(" k");
    if (!flags.is_encoded) return out.raw(flags.key);
    EncodedKey encoded;
    out.raw(encode_key(flags.key, encoded));
    out.raw(" b");
}

/// The flags of an answer in which there is no item.
void tell_opaque_and_key(MemcachedWriter& out, const Flags& flags) {
    for (const std::string_view word : flags.words) {
        if (word[0] == 'k') tell_key(out, flags);
        if (word[0] != 'O') continue;
        out.raw(" ");
        out.raw(word);
    }
}
void answer_without_item(MemcachedWriter& out, const Flags& flags, std::string_view code) {
    out.raw(code);
    tell_opaque_and_key(out, flags);
    out.raw("\r\n");
}

/// Which of an answer's flags a command has.
constexpr std::string_view of_mg = "stcfOkTN";
constexpr std::string_view of_ma = "tcOkTN";
constexpr std::string_view of_ms = "Okc";

void tell_flags(MemcachedWriter& out, const Flags& flags, std::string_view known,
                const Told& told) {
    Time expires_at = told.expires_at;
    const auto begin = [&](char letter) { out.raw({&letter, 1}); };
    for (const std::string_view word : flags.words) {
        if (known.find(word[0]) == std::string_view::npos) continue;
        switch (word[0]) {
            // What follows tells the new one.
            case 'T': expires_at = flags.new_time.value_or(expires_at); continue;
            case 'N':
                if (told.is_made) expires_at = flags.made_time.value_or(expires_at);
                continue;
            case 'k': tell_key(out, flags); continue;
            default: break;
        }
        out.raw(" ");
        if (word[0] == 'O') {
            out.raw(word);
            continue;
        }
        begin(word[0]);
        switch (word[0]) {
            case 's': out.number(told.value.size()); break;
            case 't': tell_time(out, expires_at); break;
            case 'c': out.number(told.version); break;
            default: out.number(told.note.flags()); break;
        }
    }
}

/// "HD", or "VA" and how long the value is.
void begin_answer(MemcachedWriter& out, const Flags& flags, std::string_view value) {
    if (!flags.tells_value) return out.raw("HD");
    out.raw("VA ");
    out.number(value.size());
}
void end_answer(MemcachedWriter& out, const Flags& flags, std::string_view value) {
    out.raw("\r\n");
    if (flags.tells_value) out.line(value);
}

/// What becomes of an item by the flags, in the order in which they stand there.
struct Became {
    Time expires_at;
    /// This client is told to make the value anew: nobody was, and it is old, about to be over, or
    /// not there.
    bool wins = false;
};
Became became(const Flags& flags, Note note, Time expires_at, bool is_made) {
    Became then{expires_at, is_made || (note.is_stale() && !note.is_won())};
    for (const std::string_view word : flags.words) {
        if (word[0] == 'T') then.expires_at = *flags.new_time;
        if (word[0] == 'N' && is_made) then.expires_at = *flags.made_time;
        if (word[0] != 'R' || is_made || note.is_won() || !then.expires_at) continue;
        if (flags.renew_before && *then.expires_at < *flags.renew_before) then.wins = true;
    }
    return then;
}

void answer_mg(MemcachedCall& call, const Flags& flags, const Told& told, bool wins) {
    MemcachedWriter& out = call.out;
    begin_answer(out, flags, told.value);
    tell_flags(out, flags, of_mg, told);
    if (told.note.is_won()) out.raw(" Z");
    if (told.note.is_stale()) out.raw(" X");
    if (wins) out.raw(" W");
    end_answer(out, flags, told.value);
}

}  // namespace

void mg(MemcachedCall& call) {
    Flags flags;
    if (!read_flags(call, flags, 2)) return;
    const auto key = bytes_of_word(flags.key);
    bool is_answered = false;
    const Outcome found = call.store().get(key, [&](const Entry& entry) {
        const Note note{entry.note};
        is_answered = !flags.new_time && !became(flags, note, entry.expires_at, false).wins;
        if (!is_answered) return;
        answer_mg(call, flags, {word_of(entry.value), note, entry.expires_at, entry.version},
                  false);
    });
    if (is_answered) return;
    if (found != Outcome::ok && !flags.made_time) {
        if (!flags.is_quiet) answer_without_item(call.out, flags, "EN");
        return;
    }
    // The item changes, or is made.
    Told told;
    Became then;
    bool is_there = false;
    const Outcome outcome = change(
        call.store(), key,
        [&](const Entry* entry) {
            told = {};
            told.is_made = entry == nullptr;
            is_there = !told.is_made || flags.made_time.has_value();
            if (!is_there) return Change{};
            call.scratch.clear();
            if (entry != nullptr) {
                call.scratch.assign(word_of(entry->value));
                told.note = Note{entry->note};
                told.expires_at = entry->expires_at;
            }
            then = became(flags, told.note, told.expires_at, told.is_made);
            if (!then.wins && !flags.new_time) return Change{};
            Note note = told.note;
            if (then.wins) note.set_won(true);
            return Change{Change::Kind::set, bytes_of_word(call.scratch), then.expires_at,
                          note.bits()};
        },
        &told.version);
    if (outcome != Outcome::ok) return call.no_memory();
    if (!is_there) {
        if (!flags.is_quiet) answer_without_item(call.out, flags, "EN");
        return;
    }
    if (then.expires_at) call.service.note_expiring();
    told.value = call.scratch;
    answer_mg(call, flags, told, then.wins);
}

void ms(MemcachedCall& call) {
    using Data = MemcachedRequest::Data;
    if (call.request.kind == Data::none) {
        return call.fail(call.words() > most_words ? too_many : wrong_line);
    }
    Flags flags;
    if (!read_flags(call, flags, 3)) return;
    Storing what{.key = flags.key,
                 .value = call.request.data,
                 .expires_at = flags.new_time.value_or(Time{}),
                 .flags = flags.client_flags,
                 .cas = flags.cas.value_or(0),
                 .takes_old_cas = flags.invalidates};
    using How = Storing::How;
    switch (flags.mode) {
        case 0:
        case 'S': what.how = flags.cas ? How::cas : How::set; break;
        case 'R': what.how = flags.cas ? How::cas : How::replace; break;
        case 'E': what.how = How::add; break;
        case 'A': what.how = How::append; break;
        case 'P': what.how = How::prepend; break;
        default: return call.fail("CLIENT_ERROR invalid mode for ms M token");
    }
    if (call.request.kind == Data::too_long) {
        forget_item(call, flags.key);
        return call.fail(too_large);
    }
    if (call.request.kind == Data::wrong_end) return call.fail(wrong_data);
    const Stored stored = store(call, what);
    std::string_view code;
    switch (stored.code) {
        case Stored::Code::stored:
            if (flags.is_quiet) return;
            code = "HD";
            break;
        case Stored::Code::not_stored: code = "NS"; break;
        case Stored::Code::exists: code = "EX"; break;
        case Stored::Code::not_found: code = "NF"; break;
        case Stored::Code::no_memory: forget_item(call, flags.key); return call.no_memory();
    }
    call.out.raw(code);
    tell_flags(call.out, flags, of_ms, {.version = stored.version});
    call.out.raw("\r\n");
}

void md(MemcachedCall& call) {
    Flags flags;
    if (!read_flags(call, flags, 2, wrong_flag)) return;
    std::string_view code;
    const Outcome outcome = change(call.store(), bytes_of_word(flags.key), [&](const Entry* entry) {
        code = "HD";
        if (entry == nullptr) code = "NF";
        if (entry != nullptr && flags.cas && *flags.cas != entry->version) code = "EX";
        if (code != "HD") return Change{};
        if (!flags.invalidates) return Change{.kind = Change::Kind::erase};
        // It is old from now on, and the next one who asks is to make it anew.
        call.scratch.assign(word_of(entry->value));
        Note note{entry->note};
        note.set_stale(true);
        note.set_won(false);
        return Change{Change::Kind::set, bytes_of_word(call.scratch),
                      flags.new_time.value_or(entry->expires_at), note.bits()};
    });
    if (outcome != Outcome::ok) return call.no_memory();
    if (flags.invalidates && flags.new_time && *flags.new_time) call.service.note_expiring();
    if (code == "HD" && flags.is_quiet) return;
    answer_without_item(call.out, flags, code);
}

void ma(MemcachedCall& call) {
    Flags flags;
    if (!read_flags(call, flags, 2, wrong_flag)) return;
    Counting what{.key = flags.key,
                  .delta = flags.delta,
                  .cas = flags.cas.value_or(0),
                  .new_time = flags.new_time};
    switch (flags.mode) {
        case 0:
        case 'I':
        case '+': break;
        case 'D':
        case '-': what.adds = false; break;
        default: return call.fail("CLIENT_ERROR invalid mode for ma M token");
    }
    if (flags.made_time) {
        what.initial = flags.initial;
        what.initial_expires_at = became(flags, {}, {}, true).expires_at;
    }
    const Counted counted = count(call, what);
    switch (counted.code) {
        case Counted::Code::not_found: return answer_without_item(call.out, flags, "NF");
        case Counted::Code::exists: return answer_without_item(call.out, flags, "EX");
        case Counted::Code::not_numeric: return call.fail(not_numeric);
        case Counted::Code::no_memory: return call.fail("SERVER_ERROR out of memory");
        case Counted::Code::ok:
        case Counted::Code::made: break;
    }
    if (flags.is_quiet) return;
    const std::string number = std::to_string(counted.number);
    begin_answer(call.out, flags, number);
    tell_flags(call.out, flags, of_ma,
               {.value = number,
                .expires_at = counted.former_time,
                .version = counted.version,
                .is_made = counted.code == Counted::Code::made});
    end_answer(call.out, flags, number);
}

void me(MemcachedCall& call) {
    if (call.words() < 2 || call.word(1).size() > longest_key_word) return call.fail(wrong_line);
    std::string_view key = call.word(1);
    DecodedKey decoded;
    const bool is_encoded = call.words() > 2 && call.word(2) == "b";
    if (is_encoded ? !decoded.decode(key) : !is_key(key)) return call.fail(wrong_line);
    if (is_encoded) key = decoded.get();
    const Outcome outcome = call.store().get(bytes_of_word(key), [&](const Entry& entry) {
        call.out.raw("ME ");
        call.out.raw(call.word(1));
        call.out.raw(" exp=");
        tell_time(call.out, entry.expires_at);
        call.out.line(fmt::format(" cas={} size={}", entry.version,
                                  bytes_of_item(key.size(), entry.value.size(),
                                                entry.expires_at.has_value(), entry.note != 0)));
    });
    if (outcome != Outcome::ok) call.say("EN");
}

void mn(MemcachedCall& call) { call.say("MN"); }

}  // namespace millrace::kv::memcached
