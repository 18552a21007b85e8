// The memcached door's text commands.
#include <algorithm>

#include "change.hpp"
#include "doors/memcached_commands.hpp"
#include "doors/text.hpp"

namespace millrace::kv::memcached {
namespace {

/// Answers all keys from a word on; `expires_at`: and gives the items another time.
void retrieve(MemcachedCall& call, std::size_t from, bool tells_cas,
              std::optional<Time> expires_at = {}) {
    const auto keys = std::span{call.request.words}.subspan(from);
    if (!std::ranges::all_of(keys, is_key)) return call.wrong_line();
    for (const std::string_view key : keys) {
        const auto tell = [&](std::string_view value, std::uint64_t note, Version version) {
            call.out.value(key, Note{note}.flags(), value,
                           tells_cas ? std::optional{version} : std::nullopt);
        };
        if (!expires_at) {
            (void)call.store().get(bytes_of_word(key), [&](const Entry& entry) {
                tell(word_of(entry.value), entry.note, entry.version);
            });
            continue;
        }
        std::optional<std::uint64_t> note;
        Version version = 0;
        const Outcome outcome = change(
            call.store(), bytes_of_word(key),
            [&](const Entry* entry) {
                note.reset();
                if (entry == nullptr) return Change{};
                note = entry->note;
                call.scratch.assign(word_of(entry->value));
                return Change{Change::Kind::set, bytes_of_word(call.scratch), *expires_at, *note};
            },
            &version);
        // The answer ends with it.
        if (outcome != Outcome::ok) return call.no_memory();
        if (note) tell(call.scratch, *note, version);
    }
    if (expires_at && *expires_at) call.service.note_expiring();
    call.say("END");
}

void retrieve_and_touch(MemcachedCall& call, bool tells_cas) {
    const auto time = parse_signed(call.word(1));
    if (!time) return call.fail("CLIENT_ERROR invalid exptime argument");
    retrieve(call, 2, tells_cas, time_of(call.service, *time));
}

void store_by(MemcachedCall& call, Storing::How how) {
    using Data = MemcachedRequest::Data;
    call.take_noreply();
    const std::string_view key = call.word(1);
    switch (call.request.kind) {
        case Data::none: return call.wrong_line();
        case Data::wrong_end: return call.fail(wrong_data);
        case Data::too_long:
            if (how == Storing::How::set) forget_item(call, key);
            return call.fail(too_large);
        case Data::whole: break;
    }
    const Stored stored = store(call, {.how = how,
                                       .key = key,
                                       .value = call.request.data,
                                       .expires_at = time_of(call.service, call.request.expires),
                                       .flags = call.request.flags,
                                       .cas = how == Storing::How::cas ? call.request.cas : 0});
    switch (stored.code) {
        case Stored::Code::stored: return call.say("STORED");
        case Stored::Code::not_stored: return call.say("NOT_STORED");
        case Stored::Code::exists: return call.say("EXISTS");
        case Stored::Code::not_found: return call.say("NOT_FOUND");
        case Stored::Code::no_memory:
            if (how == Storing::How::set) forget_item(call, key);
            return call.no_memory();
    }
}

void count_by(MemcachedCall& call, bool adds) {
    call.take_noreply();
    if (!is_key(call.word(1))) return call.wrong_line();
    const auto delta = parse_unsigned(call.word(2));
    if (!delta) return call.fail("CLIENT_ERROR invalid numeric delta argument");
    const Counted counted = count(call, {.key = call.word(1), .adds = adds, .delta = *delta});
    switch (counted.code) {
        case Counted::Code::not_found: return call.say("NOT_FOUND");
        case Counted::Code::not_numeric: return call.fail(not_numeric);
        case Counted::Code::no_memory: return call.fail("SERVER_ERROR out of memory");
        default: break;
    }
    if (call.is_quiet) return;
    call.out.number(counted.number);
    call.out.line("");
}

}  // namespace

void get(MemcachedCall& call) { retrieve(call, 1, false); }
void gets(MemcachedCall& call) { retrieve(call, 1, true); }
void gat(MemcachedCall& call) { retrieve_and_touch(call, false); }
void gats(MemcachedCall& call) { retrieve_and_touch(call, true); }

void set(MemcachedCall& call) { store_by(call, Storing::How::set); }
void add(MemcachedCall& call) { store_by(call, Storing::How::add); }
void replace(MemcachedCall& call) { store_by(call, Storing::How::replace); }
void append(MemcachedCall& call) { store_by(call, Storing::How::append); }
void prepend(MemcachedCall& call) { store_by(call, Storing::How::prepend); }
void cas(MemcachedCall& call) { store_by(call, Storing::How::cas); }

void incr(MemcachedCall& call) { count_by(call, true); }
void decr(MemcachedCall& call) { count_by(call, false); }

void del(MemcachedCall& call) {
    if (call.words() > 2) {
        // Once a client could say for how long the key is to stay away; 0 was: not at all.
        const bool has_zero = call.word(2) == "0";
        call.take_noreply();
        const bool is_right =
            call.words() == 3 ? has_zero || call.is_quiet : has_zero && call.is_quiet;
        if (!is_right) {
            return call.fail(
                "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
        }
    }
    if (!is_key(call.word(1))) return call.wrong_line();
    const Outcome outcome = call.store().erase(bytes_of_word(call.word(1)));
    call.say(outcome == Outcome::ok ? "DELETED" : "NOT_FOUND");
}

void touch(MemcachedCall& call) {
    call.take_noreply();
    if (!is_key(call.word(1))) return call.wrong_line();
    const auto number = parse_signed(call.word(2));
    if (!number) return call.fail("CLIENT_ERROR invalid exptime argument");
    const Time expires_at = time_of(call.service, *number);
    bool was_there = false;
    const Outcome outcome =
        change(call.store(), bytes_of_word(call.word(1)), [&](const Entry* entry) {
            was_there = entry != nullptr;
            if (!was_there) return Change{};
            call.scratch.assign(word_of(entry->value));
            return Change{Change::Kind::set, bytes_of_word(call.scratch), expires_at, entry->note};
        });
    if (outcome != Outcome::ok) return call.no_memory();
    if (expires_at) call.service.note_expiring();
    call.say(was_there ? "TOUCHED" : "NOT_FOUND");
}

void flush_all(MemcachedCall& call) {
    if (call.words() > 1) call.take_noreply();
    std::int64_t delay = 0;
    if (call.words() != (call.is_quiet ? 2 : 1)) {
        const auto parsed = parse_signed(call.word(1));
        if (!parsed) return call.fail("CLIENT_ERROR invalid exptime argument");
        delay = *parsed;
    }
    call.service.flushes.fetch_add(1, std::memory_order_relaxed);
    const Time at = delay > 0 ? time_of(call.service, delay) : Time{};
    const bool is_later = at.has_value() && *at > base::Clock::now();
    // There is one at a time: the last that was asked for.
    call.service.flush_at.store(is_later ? at->time_since_epoch().count() : 0,
                                std::memory_order_relaxed);
    if (!is_later) call.store().clear();
    call.say("OK");
}

void verbosity(MemcachedCall& call) {
    call.take_noreply();
    parse_flags(call.word(1)) ? call.say("OK") : call.wrong_line();
}

void version(MemcachedCall& call) {
    call.out.raw("VERSION ");
    call.out.line(memcached_version);
}

void quit(MemcachedCall& call) { call.session.is_leaving = true; }

}  // namespace millrace::kv::memcached
