// The RESP door's commands for the server: what it knows, what it is set to, what it has counted.
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "doors/resp_commands.hpp"
#include "doors/text.hpp"
#include "millrace/base/error.hpp"

namespace millrace::kv::resp {
namespace {

constexpr std::pair<std::uint32_t, std::string_view> flag_names[] = {
    {resp_write, "write"},          {resp_readonly, "readonly"}, {resp_denyoom, "denyoom"},
    {resp_admin, "admin"},          {resp_noscript, "noscript"}, {resp_loading, "loading"},
    {resp_stale, "stale"},          {resp_fast, "fast"},         {resp_no_auth, "no_auth"},
    {resp_allow_busy, "allow_busy"}};

bool is_inner(const RespCommand& command) {
    return command.name.find('|') != std::string_view::npos;
}
bool is_inner_of(const RespCommand& command, const RespCommand& outer) {
    return command.name.starts_with(outer.name) && command.name.size() > outer.name.size() &&
           command.name[outer.name.size()] == '|';
}
std::size_t count_outer() {
    return static_cast<std::size_t>(std::ranges::count_if(
        resp_commands(), [](const RespCommand& command) { return !is_inner(command); }));
}

std::vector<std::string> categories_of(const RespCommand& command) {
    std::vector<std::string> all;
    if ((command.flags & resp_write) != 0) all.emplace_back("@write");
    if ((command.flags & resp_readonly) != 0) all.emplace_back("@read");
    if ((command.flags & resp_admin) != 0) all.emplace_back("@admin");
    if ((command.flags & resp_dangerous) != 0) all.emplace_back("@dangerous");
    all.emplace_back((command.flags & resp_fast) != 0 ? "@fast" : "@slow");
    if (command.group == "generic")
        all.emplace_back("@keyspace");
    else if (command.group == "transactions")
        all.emplace_back("@transaction");
    else if (command.group != "server" && command.group != "cluster")
        all.push_back(fmt::format("@{}", command.group));
    return all;
}

/// Where its keys are, as Redis 7 says it.
void tell_keys(RespCall& call, const RespCommand& command) {
    if (command.first_key == 0) return call.out.set(0);
    call.out.set(1);
    call.out.map(3);
    call.out.string("flags");
    call.out.set(1);
    call.out.word((command.flags & resp_write) != 0 ? "RW" : "RO");
    call.out.string("begin_search");
    call.out.map(2);
    call.out.string("type");
    call.out.string("index");
    call.out.string("spec");
    call.out.map(1);
    call.out.string("index");
    call.out.integer(command.first_key);
    call.out.string("find_keys");
    call.out.map(2);
    call.out.string("type");
    call.out.string("range");
    call.out.string("spec");
    call.out.map(3);
    call.out.string("lastkey");
    call.out.integer(command.last_key < 0 ? command.last_key
                                          : command.last_key - command.first_key);
    call.out.string("keystep");
    call.out.integer(command.key_step);
    call.out.string("limit");
    call.out.integer(0);
}

/// As COMMAND INFO does.
void tell(RespCall& call, const RespCommand& command) {
    call.out.array(10);
    call.out.string(command.name);
    call.out.integer(command.arity);
    const auto has = [&](const auto& flag) { return (command.flags & flag.first) != 0; };
    call.out.set(static_cast<std::size_t>(std::ranges::count_if(flag_names, has)));
    for (const auto& flag : flag_names) {
        if (has(flag)) call.out.word(flag.second);
    }
    call.out.integer(command.first_key);
    call.out.integer(command.last_key);
    call.out.integer(command.key_step);
    const std::vector<std::string> categories = categories_of(command);
    call.out.set(categories.size());
    for (const std::string& category : categories) call.out.word(category);
    call.out.set(0);  // tips
    tell_keys(call, command);
    const auto is_in_it = [&](const RespCommand& other) { return is_inner_of(other, command); };
    call.out.array(static_cast<std::size_t>(std::ranges::count_if(resp_commands(), is_in_it)));
    for (const RespCommand& other : resp_commands()) {
        if (is_in_it(other)) tell(call, other);
    }
}

void tell_docs(RespCall& call, const RespCommand& command) {
    call.out.string(command.name);
    const auto is_in_it = [&](const RespCommand& other) { return is_inner_of(other, command); };
    const auto inner = static_cast<std::size_t>(std::ranges::count_if(resp_commands(), is_in_it));
    call.out.map(inner == 0 ? 3 : 4);
    const auto pair = [&](std::string_view of, std::string_view is) {
        call.out.string(of);
        call.out.string(is);
    };
    pair("summary", command.summary);
    pair("since", command.since);
    pair("group", command.group);
    if (inner == 0) return;
    call.out.string("subcommands");
    call.out.map(inner);
    for (const RespCommand& other : resp_commands()) {
        if (is_in_it(other)) tell_docs(call, other);
    }
}

/// What clients ask CONFIG GET for, and what it is here.
std::vector<std::pair<std::string_view, std::string>> settings_of(const RespService& service) {
    const StoreOptions& store = service.store.options();
    return {{"appendonly", "no"},
            {"databases", "1"},
            {"maxclients", std::to_string(service.options.max_connections)},
            {"maxmemory", std::to_string(store.memory_bytes)},
            {"maxmemory-policy", store.when_full == WhenFull::evict ? "allkeys-lru" : "noeviction"},
            {"proto-max-bulk-len", std::to_string(longest_value)},
            {"save", ""},
            {"timeout", std::to_string(std::chrono::duration_cast<std::chrono::seconds>(
                                           service.options.idle_timeout)
                                           .count())}};
}

struct Section {
    std::string_view name;
    std::string (*text)(const RespService& service);
};

constexpr Section sections[] = {
    {"server",
     [](const RespService& service) {
         const auto up =
             std::chrono::duration_cast<std::chrono::seconds>(base::Clock::now() - service.began)
                 .count();
         return fmt::format(
             "# Server\r\nredis_version:{}\r\nredis_mode:standalone\r\nserver_name:millrace\r\n"
             "arch_bits:64\r\nprocess_id:{}\r\nuptime_in_seconds:{}\r\nuptime_in_days:{}\r\n",
             redis_version, ::getpid(), up, up / 86400);
     }},
    {"clients",
     [](const RespService& service) {
         return fmt::format("# Clients\r\nconnected_clients:{}\r\nmaxclients:{}\r\n",
                            service.stats().connections, service.options.max_connections);
     }},
    {"memory",
     [](const RespService& service) {
         const StoreOptions& options = service.store.options();
         return fmt::format("# Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\nmaxmemory_policy:{}\r\n",
                            service.store.stats().memory_bytes, options.memory_bytes,
                            options.when_full == WhenFull::evict ? "allkeys-lru" : "noeviction");
     }},
    {"persistence",
     [](const RespService& service) {
         const SaveStats now = service.saves->stats();
         const std::int64_t took =
             now.written == 0 ? -1 : static_cast<std::int64_t>(now.took_ns / 1'000'000'000);
         return fmt::format(
             "# Persistence\r\nloading:0\r\nrdb_bgsave_in_progress:{}\r\nrdb_last_save_time:{}\r\n"
             "rdb_last_bgsave_status:{}\r\nrdb_last_bgsave_time_sec:{}\r\nrdb_saves:{}\r\n"
             "aof_enabled:0\r\n",
             now.is_writing ? 1 : 0, now.last_at, now.has_failed ? "err" : "ok", took, now.written);
     }},
    {"stats",
     [](const RespService& service) {
         const DoorStats door = service.stats();
         const StoreStats store = service.store.stats();
         return fmt::format(
             "# Stats\r\ntotal_connections_received:{}\r\ntotal_commands_processed:{}\r\n"
             "total_net_input_bytes:{}\r\ntotal_net_output_bytes:{}\r\nrejected_connections:{}\r\n"
             "expired_keys:{}\r\nevicted_keys:{}\r\nkeyspace_hits:{}\r\nkeyspace_misses:{}\r\n"
             "total_error_replies:{}\r\n",
             door.accepted, door.commands, door.bytes_in, door.bytes_out, door.refused,
             store.expired, store.evicted, store.hits, store.gets - store.hits, door.errors);
     }},
    {"replication",
     [](const RespService&) {
         return std::string{"# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"};
     }},
    // Without this, clients of clusters do not come; redis_mode is for all others.
    {"cluster",
     [](const RespService&) { return std::string{"# Cluster\r\ncluster_enabled:1\r\n"}; }},
    {"keyspace", [](const RespService& service) {
         const std::uint64_t items = service.store.stats().items;
         return std::string{"# Keyspace\r\n"} +
                (items == 0 ? "" : fmt::format("db0:keys={},expires=0,avg_ttl=0\r\n", items));
     }}};

}  // namespace

void command(RespCall& call) {
    call.out.array(count_outer());
    for (const RespCommand& one : resp_commands()) {
        if (!is_inner(one)) tell(call, one);
    }
}

void command_count(RespCall& call) { call.out.integer(static_cast<std::int64_t>(count_outer())); }

void command_info(RespCall& call) {
    if (call.words.size() == 2) return command(call);
    call.out.array(call.words.size() - 2);
    for (const std::string_view name : call.words.subspan(2)) {
        const RespCommand* const found = find_resp_command(name);
        found == nullptr ? call.out.null_array() : tell(call, *found);
    }
}

void command_docs(RespCall& call) {
    std::vector<const RespCommand*> chosen;
    for (const std::string_view name : call.words.subspan(2)) {
        if (const RespCommand* const found = find_resp_command(name)) chosen.push_back(found);
    }
    if (call.words.size() == 2) {
        for (const RespCommand& one : resp_commands()) {
            if (!is_inner(one)) chosen.push_back(&one);
        }
    }
    call.out.map(chosen.size());
    for (const RespCommand* one : chosen) tell_docs(call, *one);
}

void command_list(RespCall& call) {
    call.out.array(count_outer());
    for (const RespCommand& one : resp_commands()) {
        if (!is_inner(one)) call.out.string(one.name);
    }
}

void command_getkeys(RespCall& call) {
    const auto words = call.words.subspan(2);
    const RespCommand* const found = find_resp_command(words);
    if (found == nullptr || (found->flags & resp_nested) != 0) {
        return call.out.error("ERR Invalid command specified");
    }
    if (!found->fits(words.size())) {
        return call.out.error("ERR Invalid number of arguments specified for command");
    }
    if (found->first_key == 0) {
        return call.out.error("ERR The command has no key arguments");
    }
    std::vector<std::string_view> keys;
    const auto count = static_cast<int>(words.size());
    const int last = found->last_key < 0 ? count + found->last_key : found->last_key;
    for (int at = found->first_key; at <= last; at += found->key_step) {
        keys.push_back(words[static_cast<std::size_t>(at)]);
    }
    call.out.array(keys.size());
    for (const std::string_view key : keys) call.out.string(key);
}

void config_get(RespCall& call) {
    auto settings = settings_of(call.service);
    std::erase_if(settings, [&](const auto& setting) {
        return std::ranges::none_of(call.words.subspan(2), [&](std::string_view pattern) {
            return matches_glob(lowered(pattern), setting.first);
        });
    });
    call.out.map(settings.size());
    for (const auto& [name, value] : settings) {
        call.out.string(name);
        call.out.string(value);
    }
}

void info(RespCall& call) {
    std::string text;
    for (const Section& section : sections) {
        const auto asks_for_it = [&](std::string_view word) {
            return is_word(word, section.name) || is_word(word, "all") ||
                   is_word(word, "default") || is_word(word, "everything");
        };
        if (call.words.size() > 1 && std::ranges::none_of(call.words.subspan(1), asks_for_it)) {
            continue;
        }
        if (!text.empty()) text += "\r\n";
        text += section.text(call.service);
    }
    call.out.text(text);
}

namespace {

/// False: there is none, and that is answered.
bool has_snapshot_file(RespCall& call) {
    if (call.service.saves->has_file()) return true;
    call.out.error("ERR there is no file for it: start the server with --snapshot FILE");
    return false;
}

constexpr std::string_view is_saving = "ERR Background save already in progress";

}  // namespace

void save(RespCall& call) {
    if (!has_snapshot_file(call)) return;
    if (call.service.saves->is_writing()) return call.out.error(is_saving);
    try {
        (void)call.service.saves->save();
    } catch (const base::Error& error) {
        return call.out.error(fmt::format("ERR {}", error.what()));
    }
    call.ok();
}

void bgsave(RespCall& call) {
    const bool is_right =
        call.words.size() == 1 || (call.words.size() == 2 && is_word(call.word(1), "schedule"));
    if (!is_right) return call.syntax_error();
    if (!has_snapshot_file(call)) return;
    try {
        if (!call.service.saves->begin()) return call.out.error(is_saving);
    } catch (const base::Error& error) {
        return call.out.error(fmt::format("ERR {}", error.what()));
    }
    call.out.word("Background saving started");
}

void lastsave(RespCall& call) { call.out.integer(call.service.saves->stats().last_at); }

void time(RespCall& call) {
    timeval now{};
    ::gettimeofday(&now, nullptr);
    call.out.array(2);
    call.out.string_of(now.tv_sec);
    call.out.string_of(now.tv_usec);
}

void debug(RespCall& call) {
    call.out.error(
        "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", "
        "you "
        "can run it from a local connection, otherwise you need to set this option in the "
        "configuration file, and then restart the server.");
}

}  // namespace millrace::kv::resp
