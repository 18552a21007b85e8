#include "doors/memcached_commands.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include <fmt/format.h>

#include "change.hpp"
#include "doors/text.hpp"

namespace millrace::kv {
namespace {

struct NamedCommand {
    std::string_view name;
    std::size_t least;  ///< words, its own among them
    std::size_t most;
    void (*call)(MemcachedCall&);
};
constexpr std::size_t any = ~std::size_t{0};

// Those that are asked for most first.
constexpr NamedCommand table[] = {{"get", 2, any, memcached::get},
                                  {"set", 5, 6, memcached::set},
                                  {"mg", 2, any, memcached::mg},
                                  {"ms", 2, any, memcached::ms},
                                  {"gets", 2, any, memcached::gets},
                                  {"delete", 2, 4, memcached::del},
                                  {"incr", 3, 4, memcached::incr},
                                  {"cas", 6, 7, memcached::cas},
                                  {"add", 5, 6, memcached::add},
                                  {"md", 2, any, memcached::md},
                                  {"ma", 2, any, memcached::ma},
                                  {"decr", 3, 4, memcached::decr},
                                  {"replace", 5, 6, memcached::replace},
                                  {"append", 5, 6, memcached::append},
                                  {"prepend", 5, 6, memcached::prepend},
                                  {"touch", 3, 4, memcached::touch},
                                  {"gat", 2, any, memcached::gat},
                                  {"gats", 2, any, memcached::gats},
                                  {"mn", 1, any, memcached::mn},
                                  {"me", 1, any, memcached::me},
                                  {"version", 1, any, memcached::version},
                                  {"stats", 1, any, memcached::stats},
                                  {"flush_all", 1, 3, memcached::flush_all},
                                  {"verbosity", 2, 3, memcached::verbosity},
                                  {"quit", 1, any, memcached::quit}};

}  // namespace

void MemcachedService::flush_if_due() noexcept {
    std::int64_t at = flush_at.load(std::memory_order_relaxed);
    if (at == 0 || at > base::Clock::now().time_since_epoch().count()) [[likely]]
        return;
    // Whoever takes it away is the one.
    if (flush_at.compare_exchange_strong(at, 0, std::memory_order_relaxed)) store.clear();
}

void serve_memcached(MemcachedService& service, std::size_t thread, DoorSession& session,
                     MemcachedWriter& out, const MemcachedRequest& request, std::string& scratch) {
    MemcachedCall call{service, session, out, request, scratch};
    const Gate::Inside inside{service.gate, thread};
    if (!session.is_known) [[unlikely]]
        return memcached::log_in(call);
    if (request.words.empty()) return out.error("ERROR");
    const auto* const found = std::ranges::find(table, request.words[0], &NamedCommand::name);
    if (found == std::end(table)) {
        // A browser that was led here: what follows are not its user's commands.
        session.is_leaving = request.words.back().starts_with("HTTP/");
        return out.error("ERROR", !session.is_leaving);
    }
    if (call.words() < found->least || call.words() > found->most) return out.error("ERROR");
    found->call(call);
}

namespace memcached {
namespace {

/// An item of a value that lies elsewhere.
Change item_of(std::string_view value, Time expires_at, Note note) {
    return {Change::Kind::set, bytes_of_word(value), expires_at, note.bits()};
}

using How = Storing::How;

Stored failed(Outcome outcome, Stored::Code otherwise) noexcept {
    switch (outcome) {
        case Outcome::full: return {Stored::Code::no_memory};
        default: return {otherwise};
    }
}

/// set and add, which do not depend on what the item is.
Stored store_at_once(MemcachedCall& call, const Storing& what, std::optional<Version> if_version) {
    const SetResult result =
        call.store().set_until(bytes_of_word(what.key), bytes_of_word(what.value), what.expires_at,
                               if_version, Note::of_flags(what.flags).bits());
    if (result.outcome == Outcome::ok) return {Stored::Code::stored, result.version};
    return failed(result.outcome, Stored::Code::not_stored);
}

/// What append and prepend make of an item.
Change joined(MemcachedCall& call, const Storing& what, const Entry& entry) {
    const std::string_view before = word_of(entry.value);
    const bool is_behind = what.how == How::append;
    call.scratch.assign(is_behind ? before : what.value);
    call.scratch.append(is_behind ? what.value : before);
    return item_of(call.scratch, entry.expires_at, Note::of_flags(Note{entry.note}.flags()));
}

/// What `cas` makes of an item, of which the client may have seen an older one.
Change renewed(const Storing& what, const Entry& entry, bool is_older) {
    if (!is_older) return item_of(what.value, what.expires_at, Note::of_flags(what.flags));
    // The value is a newer one, and not the newest: who has won makes that still.
    Note note = Note::of_flags(what.flags);
    note.set_stale(true);
    note.set_won(Note{entry.note}.is_won());
    return item_of(what.value, entry.expires_at, note);
}

}  // namespace

void forget_item(MemcachedCall& call, std::string_view key) noexcept {
    (void)call.store().erase(bytes_of_word(key));
}

Stored store(MemcachedCall& call, const Storing& what) {
    if (what.expires_at) call.service.note_expiring();
    if (what.how == How::set) return store_at_once(call, what, {});
    if (what.how == How::add) return store_at_once(call, what, 0);
    Stored stored;
    const Outcome outcome = change(
        call.store(), bytes_of_word(what.key),
        [&](const Entry* entry) {
            stored.code = Stored::Code::stored;
            if (entry == nullptr) {
                stored.code =
                    what.how == How::cas ? Stored::Code::not_found : Stored::Code::not_stored;
                return Change{};
            }
            const bool is_same = what.cas == entry->version;
            switch (what.how) {
                case How::append:
                case How::prepend:
                    if (what.cas != 0 && !is_same) {
                        stored.code = Stored::Code::exists;
                    } else if (entry->value.size() + what.value.size() > longest_value) {
                        stored.code = Stored::Code::not_stored;
                    } else {
                        return joined(call, what, *entry);
                    }
                    return Change{};
                case How::cas: {
                    const bool is_older =
                        what.takes_old_cas && what.cas != 0 && what.cas < entry->version;
                    if (is_same || is_older) return renewed(what, *entry, is_older);
                    stored.code = Stored::Code::exists;
                    return Change{};
                }
                default: return item_of(what.value, what.expires_at, Note::of_flags(what.flags));
            }
        },
        &stored.version);
    if (outcome != Outcome::ok) return failed(outcome, Stored::Code::not_stored);
    if (stored.code != Stored::Code::stored) stored.version = 0;
    return stored;
}

Counted count(MemcachedCall& call, const Counting& what) {
    Counted counted;
    char digits[24];
    const auto as_text = [&] {
        const auto end = std::to_chars(digits, digits + sizeof digits, counted.number).ptr;
        return std::string_view{digits, static_cast<std::size_t>(end - digits)};
    };
    const Outcome outcome = change(
        call.store(), bytes_of_word(what.key),
        [&](const Entry* entry) {
            if (entry == nullptr) {
                counted.code = what.initial ? Counted::Code::made : Counted::Code::not_found;
                if (!what.initial) return Change{};
                counted.number = *what.initial;
                return item_of(as_text(), what.initial_expires_at, Note{});
            }
            const auto parsed = parse_unsigned(word_of(entry->value));
            const std::uint64_t number = parsed.value_or(0);
            counted.code = Counted::Code::ok;
            if (!entry->value.empty() && what.cas != 0 && what.cas != entry->version) {
                counted.code = Counted::Code::exists;
            } else if (!parsed) {
                counted.code = Counted::Code::not_numeric;
            }
            if (counted.code != Counted::Code::ok) return Change{};
            counted.number =
                what.adds ? number + what.delta : number - std::min(number, what.delta);
            counted.former_time = entry->expires_at;
            return item_of(as_text(), what.new_time.value_or(entry->expires_at), Note{entry->note});
        },
        &counted.version);
    if (outcome != Outcome::ok) counted.code = Counted::Code::no_memory;
    const bool expires = counted.code == Counted::Code::made
                             ? what.initial_expires_at.has_value()
                             : what.new_time.has_value() && what.new_time->has_value();
    if (expires) call.service.note_expiring();
    return counted;
}

void log_in(MemcachedCall& call) {
    if (call.request.words.empty() || call.request.kind == MemcachedRequest::Data::none) {
        return call.fail("CLIENT_ERROR unauthenticated");
    }
    if (call.request.kind == MemcachedRequest::Data::wrong_end) {
        return call.fail("CLIENT_ERROR bad command line termination");
    }
    if (call.request.kind == MemcachedRequest::Data::too_long) {
        return call.fail("CLIENT_ERROR authentication failure");
    }
    const std::string_view data = call.request.data;
    const std::size_t end_of_user = data.find(' ');
    if (end_of_user == std::string_view::npos) {
        return call.fail("CLIENT_ERROR bad authentication token format");
    }
    if (!call.service.admits(data.substr(0, end_of_user), data.substr(end_of_user + 1))) {
        return call.fail("CLIENT_ERROR authentication failure");
    }
    call.session.is_known = true;
    call.say("STORED");
}

namespace {

/// Lines of "STAT".
class Stats {
  public:
    explicit Stats(MemcachedCall& call) noexcept : call_{&call} {}
    template <class Value>
    void tell(std::string_view name, const Value& value) {
        call_->out.line(fmt::format("STAT {} {}", name, value));
    }

  private:
    MemcachedCall* call_;
};

void tell_all(MemcachedCall& call, Stats& stats) {
    const auto seconds = [](auto time) {
        return std::chrono::duration_cast<std::chrono::seconds>(time).count();
    };
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    const auto processor = [](const timeval& time) {
        return fmt::format("{}.{:06}", time.tv_sec, time.tv_usec);
    };
    const DoorStats door = call.service.stats();
    const StoreStats store = call.store().stats();
    stats.tell("pid", ::getpid());
    stats.tell("uptime", seconds(base::Clock::now() - call.service.began));
    stats.tell("time", call.service.unix_now() / 1000);
    stats.tell("version", memcached_version);
    stats.tell("pointer_size", 8 * sizeof(void*));
    stats.tell("rusage_user", processor(used.ru_utime));
    stats.tell("rusage_system", processor(used.ru_stime));
    stats.tell("max_connections", call.service.options.max_connections);
    stats.tell("curr_connections", door.connections);
    stats.tell("total_connections", door.accepted);
    stats.tell("rejected_connections", door.refused);
    stats.tell("cmd_get", store.gets);
    stats.tell("cmd_set", store.sets);
    stats.tell("cmd_flush", call.service.flushes.load(std::memory_order_relaxed));
    stats.tell("get_hits", store.hits);
    stats.tell("get_misses", store.gets - store.hits);
    stats.tell("auth_errors", door.denied);
    stats.tell("bytes_read", door.bytes_in);
    stats.tell("bytes_written", door.bytes_out);
    stats.tell("limit_maxbytes", call.store().options().memory_bytes);
    stats.tell("threads", call.service.gate.threads());
    stats.tell("bytes", store.item_bytes);
    stats.tell("curr_items", store.items);
    stats.tell("evictions", store.evicted);
    stats.tell("outofmemory", store.refused);
}

void tell_settings(MemcachedCall& call, Stats& stats) {
    const StoreOptions& store = call.store().options();
    stats.tell("maxbytes", store.memory_bytes);
    stats.tell("maxconns", call.service.options.max_connections);
    stats.tell("evictions", store.when_full == WhenFull::evict ? "on" : "off");
    stats.tell("num_threads", call.service.gate.threads());
    stats.tell("cas_enabled", "yes");
    stats.tell("flush_enabled", "yes");
    stats.tell("item_size_max", longest_value);
    stats.tell("binding_protocol", "ascii");
    stats.tell("auth_enabled_ascii", call.service.options.password ? "yes" : "no");
    stats.tell("idle_timeout",
               std::chrono::duration_cast<std::chrono::seconds>(call.service.options.idle_timeout)
                   .count());
}

}  // namespace

void stats(MemcachedCall& call) {
    Stats stats{call};
    const std::string_view of = call.words() > 1 ? call.word(1) : std::string_view{};
    if (of.empty()) {
        tell_all(call, stats);
    } else if (of == "settings") {
        tell_settings(call, stats);
    } else if (of == "slabs") {
        stats.tell("total_malloced", call.store().stats().memory_bytes);
    } else if (of == "sizes") {
        stats.tell("sizes_status", "disabled");
    } else if (of == "reset") {
        return call.fail("CLIENT_ERROR counts are not set back: others look at them, too");
    } else if (of != "items") {
        return call.fail("ERROR");
    }
    call.say("END");
}

}  // namespace memcached
}  // namespace millrace::kv
