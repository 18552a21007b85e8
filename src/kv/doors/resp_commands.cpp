#include "doors/resp_commands.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "doors/text.hpp"

namespace millrace::kv {

namespace {

constexpr std::uint32_t writes = resp_write | resp_denyoom;
constexpr std::uint32_t writes_fast = writes | resp_fast;
constexpr std::uint32_t reads_fast = resp_readonly | resp_fast;
constexpr std::uint32_t always = resp_loading | resp_stale;
constexpr std::uint32_t always_fast = always | resp_fast;
constexpr std::uint32_t for_strangers =
    resp_noscript | always_fast | resp_no_auth | resp_allow_busy | resp_at_once;
constexpr std::uint32_t in_transactions = resp_noscript | always | resp_at_once;

constexpr std::uint32_t of_nodes = resp_admin | resp_stale | resp_dangerous;

constexpr std::string_view str = "string";
constexpr std::string_view gen = "generic";
constexpr std::string_view con = "connection";
constexpr std::string_view srv = "server";
constexpr std::string_view tra = "transactions";
constexpr std::string_view clu = "cluster";

// By name, as binary search goes.
constexpr RespCommand table[] = {
    {"append", 3, writes_fast, 1, 1, 1, str, "2.0.0", "Puts bytes behind a value", resp::append},
    {"asking", 1, resp_fast, 0, 0, 0, con, "3.0.0", "Changes nothing: no slot is on its way",
     resp::agree},
    {"auth", -2, for_strangers & ~resp_at_once, 0, 0, 0, con, "1.0.0", "Says the password",
     resp::auth},
    {"bgsave", -1, resp_admin | resp_noscript | resp_dangerous, 0, 0, 0, srv, "1.0.0",
     "Writes a snapshot while everybody is served", resp::bgsave},
    {"client", -2, resp_nested, 0, 0, 0, con, "2.4.0", "What concerns connections", nullptr},
    {"client|getname", 2, resp_noscript | always, 0, 0, 0, con, "2.6.9",
     "Tells the connection's name", resp::client_getname},
    {"client|id", 2, resp_noscript | always, 0, 0, 0, con, "5.0.0", "Tells the connection's number",
     resp::client_id},
    {"client|info", 2, resp_noscript | always, 0, 0, 0, con, "6.2.0",
     "Tells what is known of the connection", resp::client_info},
    {"client|list", -2, resp_admin | resp_noscript | always | resp_alone | resp_dangerous, 0, 0, 0,
     con, "2.4.0", "Tells what is known of all connections", resp::client_list},
    {"client|no-evict", 3, resp_admin | resp_noscript | always, 0, 0, 0, con, "7.0.0",
     "Is remembered, and changes nothing: connections are not evicted", resp::client_no_evict},
    {"client|setinfo", 4, resp_noscript | always, 0, 0, 0, con, "7.2.0",
     "Says which library the client is", resp::client_setinfo},
    {"client|setname", 3, resp_noscript | always, 0, 0, 0, con, "2.6.9", "Names the connection",
     resp::client_setname},
    {"client|tracking", -3, resp_noscript | always, 0, 0, 0, con, "6.0.0",
     "Is refused: nobody is told of changes", resp::client_tracking},
    {"cluster", -2, resp_nested, 0, 0, 0, clu, "3.0.0", "What concerns clusters", nullptr},
    {"cluster|count-failure-reports", 3, of_nodes, 0, 0, 0, clu, "3.0.0",
     "Tells that nobody takes a node for dead", resp::cluster_failure_reports},
    {"cluster|countkeysinslot", 3, resp_stale, 0, 0, 0, clu, "3.0.0", "Counts the keys of a slot",
     resp::cluster_countkeysinslot},
    {"cluster|getkeysinslot", 4, resp_stale, 0, 0, 0, clu, "3.0.0", "Tells keys of a slot",
     resp::cluster_getkeysinslot},
    {"cluster|info", 2, resp_stale, 0, 0, 0, clu, "3.0.0", "Tells how the cluster is",
     resp::cluster_info},
    {"cluster|keyslot", 3, resp_stale, 0, 0, 0, clu, "3.0.0", "Tells the slot of a key",
     resp::cluster_keyslot},
    {"cluster|links", 2, resp_stale, 0, 0, 0, clu, "7.0.0", "Tells of no other node",
     resp::cluster_links},
    {"cluster|myid", 2, resp_stale, 0, 0, 0, clu, "3.0.0", "Tells the name of this node",
     resp::cluster_myid},
    {"cluster|nodes", 2, resp_stale, 0, 0, 0, clu, "3.0.0", "Tells of this node",
     resp::cluster_nodes},
    {"cluster|replicas", 3, of_nodes, 0, 0, 0, clu, "5.0.0", "Tells that a node has no replica",
     resp::cluster_replicas},
    {"cluster|shards", 2, resp_stale, 0, 0, 0, clu, "7.0.0", "Tells who has which slots",
     resp::cluster_shards},
    {"cluster|slaves", 3, of_nodes, 0, 0, 0, clu, "3.0.0", "Tells that a node has no replica",
     resp::cluster_replicas},
    {"cluster|slots", 2, resp_stale, 0, 0, 0, clu, "3.0.0", "Tells who has which slots",
     resp::cluster_slots},
    {"command", -1, always | resp_nested, 0, 0, 0, srv, "2.8.13", "Tells of all commands",
     resp::command},
    {"command|count", 2, always, 0, 0, 0, srv, "2.8.13", "Tells how many commands there are",
     resp::command_count},
    {"command|docs", -2, always, 0, 0, 0, srv, "7.0.0", "Tells what commands do",
     resp::command_docs},
    {"command|getkeys", -3, always, 0, 0, 0, srv, "2.8.13", "Tells the keys in a command",
     resp::command_getkeys},
    {"command|info", -2, always, 0, 0, 0, srv, "2.8.13", "Tells of some commands",
     resp::command_info},
    {"command|list", 2, always, 0, 0, 0, srv, "7.0.0", "Names all commands", resp::command_list},
    {"config", -2, resp_nested, 0, 0, 0, srv, "2.0.0", "What concerns settings", nullptr},
    {"config|get", -3, resp_admin | resp_noscript | always | resp_dangerous, 0, 0, 0, srv, "2.0.0",
     "Tells settings", resp::config_get},
    {"copy", -3, writes, 1, 2, 1, gen, "6.2.0", "Copies an item to another key", resp::copy},
    {"dbsize", 1, reads_fast, 0, 0, 0, srv, "1.0.0", "Tells how many keys there are", resp::dbsize},
    {"debug", -2, resp_admin | (in_transactions & ~resp_at_once), 0, 0, 0, srv, "1.0.0",
     "Is refused", resp::debug},
    {"decr", 2, writes_fast, 1, 1, 1, str, "1.0.0", "Takes one from a number", resp::decr},
    {"decrby", 3, writes_fast, 1, 1, 1, str, "1.0.0", "Takes from a number", resp::decrby},
    {"del", -2, resp_write, 1, -1, 1, gen, "1.0.0", "Removes keys", resp::del},
    {"discard", 1, in_transactions | resp_fast | resp_allow_busy, 0, 0, 0, tra, "2.0.0",
     "Gives up a transaction", resp::discard},
    {"echo", 2, always_fast, 0, 0, 0, con, "1.0.0", "Says the same", resp::echo},
    {"exec", 1, in_transactions | resp_alone, 0, 0, 0, tra, "1.2.0", "Carries out a transaction",
     resp::exec},
    {"exists", -2, reads_fast, 1, -1, 1, gen, "1.0.0", "Counts keys that are there", resp::exists},
    {"expire", -3, resp_write | resp_fast, 1, 1, 1, gen, "1.0.0",
     "Sets how many seconds a key stays", resp::expire},
    {"expireat", -3, resp_write | resp_fast, 1, 1, 1, gen, "1.2.0",
     "Sets the second at which a key goes", resp::expireat},
    {"expiretime", 2, reads_fast, 1, 1, 1, gen, "7.0.0", "Tells the second at which a key goes",
     resp::expiretime},
    {"flushall", -1, resp_write | resp_dangerous, 0, 0, 0, srv, "1.0.0", "Removes all keys",
     resp::flush},
    {"flushdb", -1, resp_write | resp_dangerous, 0, 0, 0, srv, "1.0.0", "Removes all keys",
     resp::flush},
    {"get", 2, reads_fast, 1, 1, 1, str, "1.0.0", "Tells a value", resp::get},
    {"getdel", 2, resp_write | resp_fast, 1, 1, 1, str, "6.2.0", "Tells a value, and removes it",
     resp::getdel},
    {"getex", -2, resp_write | resp_fast, 1, 1, 1, str, "6.2.0", "Tells a value, and sets its time",
     resp::getex},
    {"getrange", 4, resp_readonly, 1, 1, 1, str, "2.4.0", "Tells a part of a value",
     resp::getrange},
    {"getset", 3, writes_fast, 1, 1, 1, str, "1.0.0", "Sets a value, and tells the former one",
     resp::getset},
    {"hello", -1, for_strangers & ~resp_at_once, 0, 0, 0, con, "6.0.0",
     "Says hello, and which protocol is spoken", resp::hello},
    {"incr", 2, writes_fast, 1, 1, 1, str, "1.0.0", "Adds one to a number", resp::incr},
    {"incrby", 3, writes_fast, 1, 1, 1, str, "1.0.0", "Adds to a number", resp::incrby},
    {"incrbyfloat", 3, writes_fast, 1, 1, 1, str, "2.6.0", "Adds to a number with decimals",
     resp::incrbyfloat},
    {"info", -1, always | resp_dangerous, 0, 0, 0, srv, "1.0.0", "Tells of the server", resp::info},
    {"keys", 2, resp_readonly | resp_dangerous | resp_alone, 0, 0, 0, gen, "1.0.0",
     "Tells all keys of a pattern", resp::keys},
    {"lastsave", 1, resp_admin | always_fast | resp_dangerous, 0, 0, 0, srv, "1.0.0",
     "Tells when a snapshot was written last", resp::lastsave},
    {"memory", -2, resp_nested, 0, 0, 0, srv, "4.0.0", "What concerns memory", nullptr},
    {"memory|usage", -3, resp_readonly, 2, 2, 1, srv, "4.0.0", "Tells what an item takes",
     resp::memory_usage},
    {"mget", -2, reads_fast, 1, -1, 1, str, "1.0.0", "Tells several values", resp::mget},
    {"mset", -3, writes, 1, -1, 2, str, "1.0.1", "Sets several values at once", resp::mset},
    {"msetnx", -3, writes, 1, -1, 2, str, "1.0.1", "Sets several values, if none was there",
     resp::msetnx},
    {"multi", 1, in_transactions | resp_fast | resp_allow_busy, 0, 0, 0, tra, "1.2.0",
     "Begins a transaction", resp::multi},
    {"object", -2, resp_nested, 0, 0, 0, gen, "2.2.3", "What concerns how an item is kept",
     nullptr},
    {"object|encoding", 3, resp_readonly, 2, 2, 1, gen, "2.2.3", "Tells how Redis would keep it",
     resp::object_encoding},
    {"persist", 2, resp_write | resp_fast, 1, 1, 1, gen, "2.2.0", "Lets a key stay for ever",
     resp::persist},
    {"pexpire", -3, resp_write | resp_fast, 1, 1, 1, gen, "2.6.0",
     "Sets how many milliseconds a key stays", resp::pexpire},
    {"pexpireat", -3, resp_write | resp_fast, 1, 1, 1, gen, "2.6.0",
     "Sets the millisecond at which a key goes", resp::pexpireat},
    {"pexpiretime", 2, reads_fast, 1, 1, 1, gen, "7.0.0",
     "Tells the millisecond at which a key goes", resp::pexpiretime},
    {"ping", -1, resp_fast, 0, 0, 0, con, "1.0.0", "Says PONG", resp::ping},
    {"psetex", 4, writes, 1, 1, 1, str, "2.6.0", "Sets a value for some milliseconds",
     resp::psetex},
    {"pttl", 2, reads_fast, 1, 1, 1, gen, "2.6.0", "Tells how many milliseconds a key stays",
     resp::pttl},
    {"quit", -1, for_strangers, 0, 0, 0, con, "1.0.0", "Ends the connection", resp::quit},
    {"randomkey", 1, resp_readonly, 0, 0, 0, gen, "1.0.0", "Tells some key", resp::randomkey},
    {"readonly", 1, always_fast, 0, 0, 0, con, "3.0.0", "Changes nothing: there are no replicas",
     resp::agree},
    {"readwrite", 1, always_fast, 0, 0, 0, con, "3.0.0", "Changes nothing: there are no replicas",
     resp::agree},
    {"rename", 3, resp_write, 1, 2, 1, gen, "1.0.0", "Gives an item another key", resp::rename},
    {"renamenx", 3, resp_write | resp_fast, 1, 2, 1, gen, "1.0.0",
     "Gives an item another key, if that is free", resp::renamenx},
    {"reset", 1, for_strangers, 0, 0, 0, con, "6.2.0", "Makes the connection as new", resp::reset},
    {"save", 1, resp_admin | resp_noscript | resp_alone, 0, 0, 0, srv, "1.0.0",
     "Writes a snapshot, while nobody is served", resp::save},
    {"scan", -2, resp_readonly, 0, 0, 0, gen, "2.8.0", "Tells all keys in pieces", resp::scan},
    {"select", 2, always_fast, 0, 0, 0, con, "1.0.0", "Takes database 0, the only one",
     resp::select},
    {"set", -3, writes, 1, 1, 1, str, "1.0.0", "Sets a value", resp::set},
    {"setex", 4, writes, 1, 1, 1, str, "2.0.0", "Sets a value for some seconds", resp::setex},
    {"setnx", 3, writes_fast, 1, 1, 1, str, "1.0.0", "Sets a value, if there is none", resp::setnx},
    {"setrange", 4, writes, 1, 1, 1, str, "2.2.0", "Writes over a part of a value", resp::setrange},
    {"strlen", 2, reads_fast, 1, 1, 1, str, "2.2.0", "Tells a value's length", resp::strlen},
    {"substr", 4, resp_readonly, 1, 1, 1, str, "1.0.0", "Tells a part of a value", resp::getrange},
    {"time", 1, always_fast, 0, 0, 0, srv, "2.6.0", "Tells the time", resp::time},
    {"touch", -2, reads_fast, 1, -1, 1, gen, "3.2.1", "Counts keys, as used now", resp::touch},
    {"ttl", 2, reads_fast, 1, 1, 1, gen, "1.0.0", "Tells how many seconds a key stays", resp::ttl},
    {"type", 2, reads_fast, 1, 1, 1, gen, "1.0.0", "Tells the type of an item", resp::type},
    {"unlink", -2, resp_write | resp_fast, 1, -1, 1, gen, "4.0.0", "Removes keys", resp::del},
    {"unwatch", 1, (in_transactions & ~resp_at_once) | resp_fast | resp_allow_busy, 0, 0, 0, tra,
     "2.2.0", "Watches nothing any more", resp::unwatch},
    {"watch", -2, in_transactions | resp_fast | resp_allow_busy, 1, -1, 1, tra, "2.2.0",
     "Watches keys: EXEC does nothing if one changes", resp::watch},
};
static_assert(std::ranges::is_sorted(table, {}, &RespCommand::name));

/// What Redis has besides plain strings: these commands say so, and are not unknown.
constexpr std::string_view of_more_than_strings[] = {
    "acl",          "bitcount",   "bitfield",    "bitop",       "bitpos",        "blmove",
    "blmpop",       "blpop",      "brpop",       "brpoplpush",  "bzmpop",        "bzpopmax",
    "bzpopmin",     "eval",       "evalsha",     "fcall",       "function",      "geoadd",
    "geodist",      "geohash",    "geopos",      "georadius",   "geosearch",     "getbit",
    "hdel",         "hexists",    "hget",        "hgetall",     "hincrby",       "hincrbyfloat",
    "hkeys",        "hlen",       "hmget",       "hmset",       "hrandfield",    "hscan",
    "hset",         "hsetnx",     "hstrlen",     "hvals",       "lcs",           "lindex",
    "linsert",      "llen",       "lmove",       "lmpop",       "lpop",          "lpos",
    "lpush",        "lpushx",     "lrange",      "lrem",        "lset",          "ltrim",
    "pfadd",        "pfcount",    "pfmerge",     "psubscribe",  "publish",       "pubsub",
    "punsubscribe", "role",       "rpop",        "rpoplpush",   "rpush",         "rpushx",
    "sadd",         "scard",      "script",      "sdiff",       "sdiffstore",    "setbit",
    "sinter",       "sintercard", "sinterstore", "sismember",   "smembers",      "smismember",
    "smove",        "sort",       "spop",        "srandmember", "srem",          "sscan",
    "subscribe",    "sunion",     "sunionstore", "unsubscribe", "wait",          "xack",
    "xadd",         "xautoclaim", "xclaim",      "xdel",        "xgroup",        "xinfo",
    "xlen",         "xpending",   "xrange",      "xread",       "xreadgroup",    "xrevrange",
    "xtrim",        "zadd",       "zcard",       "zcount",      "zdiff",         "zdiffstore",
    "zincrby",      "zinter",     "zinterstore", "zlexcount",   "zmpop",         "zmscore",
    "zpopmax",      "zpopmin",    "zrandmember", "zrange",      "zrangebyscore", "zrangestore",
    "zrank",        "zrem",       "zrevrange",   "zrevrank",    "zscan",         "zscore",
    "zunion",       "zunionstore"};
static_assert(std::ranges::is_sorted(of_more_than_strings));

/// A word in small letters, as far as a command's name may go.
class SmallName {
  public:
    explicit SmallName(std::string_view name) noexcept {
        for (; size_ < std::min(name.size(), sizeof letters_); ++size_) {
            letters_[size_] = lower(name[size_]);
        }
        if (name.size() > sizeof letters_) size_ = 0;
    }
    [[nodiscard]] std::string_view get() const noexcept { return {letters_, size_}; }

  private:
    char letters_[32];
    std::size_t size_ = 0;
};

bool is_nested(std::string_view name) noexcept { return name.find('|') != name.npos; }

/// Places in the table by a hash of names: one look for those that are asked for most. Of the
/// nested ones, or of the others: no client may name a nested one by one word.
class Index {
  public:
    explicit Index(bool of_nested) noexcept {
        for (const RespCommand& command : table) {
            if (is_nested(command.name) != of_nested) continue;
            std::size_t place = place_of(command.name);
            while (places_[place] != nullptr) place = (place + 1) % places;
            places_[place] = &command;
        }
    }
    [[nodiscard]] const RespCommand* find(std::string_view name) const noexcept {
        for (std::size_t place = place_of(name);; place = (place + 1) % places) {
            if (places_[place] == nullptr || places_[place]->name == name) return places_[place];
        }
    }

  private:
    static constexpr std::size_t places = 512;
    static_assert(places > 4 * std::size(table));
    [[nodiscard]] static std::size_t place_of(std::string_view name) noexcept {
        std::uint32_t hash = 2166136261;  // FNV-1a
        for (const char letter : name) {
            hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619;
        }
        return (hash ^ hash >> 15) % places;
    }
    std::array<const RespCommand*, places> places_{};
};

const RespCommand* find_outer(std::string_view name) noexcept {
    static const Index index{false};
    return index.find(name);
}
const RespCommand* find_nested(std::string_view name) noexcept {
    static const Index index{true};
    return index.find(name);
}

constexpr std::size_t longest_repeated = 128;
std::string unknown(std::span<const std::string_view> words) {
    const std::string_view name = words[0];
    if (std::ranges::binary_search(of_more_than_strings, SmallName{name}.get())) {
        return fmt::format(
            "ERR '{}' is not known here: this store keeps strings only, and COMMAND "
            "LIST names what it knows",
            name);
    }
    std::string rest;
    for (std::size_t i = 1; i < words.size() && rest.size() < longest_repeated; ++i) {
        fmt::format_to(std::back_inserter(rest), "'{}' ",
                       repeated(words[i], longest_repeated - rest.size()));
    }
    return fmt::format("ERR unknown command '{}', with args beginning with: {}",
                       repeated(name, longest_repeated), rest);
}

/// Why it cannot be carried out as it is; empty: it can.
std::string objection(const RespCommand* command, const RespSession& session,
                      std::span<const std::string_view> words) {
    if (command == nullptr) {
        if (find_resp_command(words.first(1)) == nullptr) return unknown(words);
        std::string name = lowered(words[0]);
        std::ranges::transform(name, name.begin(),
                               [](char c) { return static_cast<char>(c - 'a' + 'A'); });
        return fmt::format("ERR unknown subcommand '{}'. Try {} HELP.",
                           repeated(words[1], longest_repeated), name);
    }
    if (!command->fits(words.size())) {
        return fmt::format("ERR wrong number of arguments for '{}' command", command->name);
    }
    if (!session.is_known && (command->flags & resp_no_auth) == 0) {
        return "NOAUTH Authentication required.";
    }
    return {};
}

}  // namespace

std::span<const RespCommand> resp_commands() noexcept { return table; }

const RespCommand* find_resp_command(std::string_view name) noexcept {
    const SmallName small{name};
    return is_nested(name) ? find_nested(small.get()) : find_outer(small.get());
}

const RespCommand* find_resp_command(std::span<const std::string_view> words) noexcept {
    const RespCommand* const found = find_outer(SmallName{words[0]}.get());
    if (found == nullptr || (found->flags & resp_nested) == 0 || words.size() == 1) return found;
    const SmallName inner{words[1]};
    char both[64];
    char* end = std::copy(found->name.begin(), found->name.end(), both);
    *end++ = '|';
    end = std::copy(inner.get().begin(), inner.get().end(), end);
    return find_nested({both, static_cast<std::size_t>(end - both)});
}

void serve_resp(RespService& service, std::size_t thread, RespSession& session, RespWriter& out,
                std::span<const std::string_view> words, std::string& scratch) {
    const RespCommand* const command = find_resp_command(words);
    // A browser that was led here: what follows are not its user's commands.
    if (command == nullptr && (is_word(words[0], "post") || is_word(words[0], "host:"))) {
        session.is_leaving = true;
        return;
    }
    const std::string why = objection(command, session, words);
    if (!why.empty()) [[unlikely]] {
        const Gate::Inside inside{service.gate, thread};  // CLIENT LIST of others looks at it
        session.transaction.is_broken = true;
        if (command == nullptr || command->call != resp::exec) return out.error(why);
        resp::forget_transaction(service, session);
        constexpr std::string_view code = "ERR ";
        return out.error("EXECABORT Transaction discarded because of: " +
                         why.substr(why.starts_with(code) ? code.size() : 0));
    }
    RespCall call{service, thread, session, out, *command, words, scratch};
    const Gate::Inside inside{service.gate, thread};
    session.command = command;
    session.asked = base::Clock::now();
    if (session.transaction.is_open && (command->flags & resp_at_once) == 0) {
        return resp::queue(call);
    }
    if (!command->is_alone(words.size())) [[likely]]
        return carry_out(call);
    const Gate::Alone alone{service.gate, thread};
    carry_out(call);
}

void carry_out(RespCall& call) { call.command.call(call); }

// --- RespCall

std::span<const std::byte> RespCall::key(std::size_t index) const noexcept {
    return bytes_of_word(words[index]);
}

void RespCall::wrong_count() {
    out.error(fmt::format("ERR wrong number of arguments for '{}' command", command.name));
}

void RespCall::wrong_time() {
    out.error(fmt::format("ERR invalid expire time in '{}' command", command.name));
}

bool RespCall::took(Outcome outcome) {
    switch (outcome) {
        case Outcome::ok:
        case Outcome::not_found: return true;
        case Outcome::full:
            out.error("OOM command not allowed when used memory > 'maxmemory'.");
            return false;
        case Outcome::bad_key:
            out.error(fmt::format("ERR a key of this store has 1 to {} bytes", longest_key));
            return false;
        case Outcome::bad_value:
            out.error("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
            return false;
        case Outcome::conflict: break;
    }
    out.error("ERR somebody else has changed the key meanwhile");
    return false;
}

std::optional<std::int64_t> RespCall::integer(std::size_t index) {
    const auto number = parse_integer(words[index]);
    if (!number) not_integer();
    return number;
}

}  // namespace millrace::kv
