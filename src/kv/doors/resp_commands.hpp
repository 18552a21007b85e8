// The commands of the RESP door: one table, from which come dispatch, what is said of a wrong
// number of words, and COMMAND. Each group of commands has a file of its own (resp_strings.cpp, …),
// whose functions stand here for the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "doors/resp_service.hpp"
#include "doors/resp_session.hpp"
#include "doors/resp_writer.hpp"

namespace millrace::kv {

/// One command of a client, while it is carried out.
struct RespCall {
    RespService& service;
    std::size_t thread;  ///< of the server
    RespSession& session;
    RespWriter& out;
    const RespCommand& command;
    std::span<const std::string_view> words;  ///< the command's own is the first
    std::string& scratch;                     ///< its thread's: any content

    [[nodiscard]] Store& store() const noexcept { return service.store; }
    [[nodiscard]] std::string_view word(std::size_t index) const noexcept { return words[index]; }
    [[nodiscard]] std::span<const std::byte> key(std::size_t index = 1) const noexcept;

    // What many of them answer.
    void ok() { out.word("OK"); }
    void syntax_error() { out.error("ERR syntax error"); }
    void wrong_count();
    void no_such_key() { out.error("ERR no such key"); }
    void not_integer() { out.error("ERR value is not an integer or out of range"); }
    void wrong_time();  ///< "invalid expire time in …"
    /// Of what the store did not take. True: it did.
    [[nodiscard]] bool took(Outcome outcome);
    /// The number that a word is; none, and that is answered.
    [[nodiscard]] std::optional<std::int64_t> integer(std::size_t index);
};

/// What COMMAND says of a command, and dispatch goes by.
enum RespFlag : std::uint32_t {
    resp_write = 1U << 0,
    resp_readonly = 1U << 1,
    resp_denyoom = 1U << 2,
    resp_admin = 1U << 3,
    resp_noscript = 1U << 4,
    resp_loading = 1U << 5,
    resp_stale = 1U << 6,
    resp_fast = 1U << 7,
    resp_no_auth = 1U << 8,  ///< for clients that have not said the password, too
    resp_allow_busy = 1U << 9,
    // Not said by COMMAND.
    resp_at_once = 1U << 16,  ///< within MULTI it is not queued
    resp_alone = 1U << 17,    ///< no other client's command happens meanwhile
    resp_dangerous = 1U << 18,
    resp_nested = 1U << 19,  ///< its second word says which one
};

/// Whose commands these are, for clients that go by it.
inline constexpr std::string_view redis_version = "7.0.15";

struct RespCommand {
    std::string_view name;  ///< in small letters; "client|id" of a nested one
    int arity;              ///< words; negative: at least so many
    std::uint32_t flags;
    int first_key;  ///< 0: it has none
    int last_key;   ///< negative: counted from the last word
    int key_step;
    std::string_view group;
    std::string_view since;
    std::string_view summary;
    void (*call)(RespCall&);

    [[nodiscard]] bool fits(std::size_t words) const noexcept {
        return arity >= 0 ? words == static_cast<std::size_t>(arity)
                          : words >= static_cast<std::size_t>(-arity);
    }
    /// Whether it takes several keys, in one step for all clients.
    [[nodiscard]] bool is_alone(std::size_t words) const noexcept {
        return (flags & resp_alone) != 0 ||
               (first_key != 0 &&
                (last_key > first_key ||
                 (last_key < 0 && words > static_cast<std::size_t>(first_key + key_step))));
    }
};

[[nodiscard]] std::span<const RespCommand> resp_commands() noexcept;
/// Null: there is none of that name, whatever its letters' case.
[[nodiscard]] const RespCommand* find_resp_command(std::string_view name) noexcept;
/// Of a command's own name, or of both words of a nested one.
[[nodiscard]] const RespCommand* find_resp_command(
    std::span<const std::string_view> words) noexcept;

/// Carries out what a client asked for, whatever it is, and answers once. `words` are not none.
void serve_resp(RespService& service, std::size_t thread, RespSession& session, RespWriter& out,
                std::span<const std::string_view> words, std::string& scratch);
/// One command that is known and has as many words as it should; for EXEC.
void carry_out(RespCall& call);

namespace resp {
// Strings.
void get(RespCall& call);
void set(RespCall& call);
void setnx(RespCall& call);
void setex(RespCall& call);
void psetex(RespCall& call);
void getset(RespCall& call);
void getdel(RespCall& call);
void getex(RespCall& call);
void mget(RespCall& call);
void mset(RespCall& call);
void msetnx(RespCall& call);
void append(RespCall& call);
void strlen(RespCall& call);
void setrange(RespCall& call);
void getrange(RespCall& call);
void incr(RespCall& call);
void decr(RespCall& call);
void incrby(RespCall& call);
void decrby(RespCall& call);
void incrbyfloat(RespCall& call);
// Keys.
void del(RespCall& call);
void exists(RespCall& call);
void touch(RespCall& call);
void type(RespCall& call);
void keys(RespCall& call);
void scan(RespCall& call);
void randomkey(RespCall& call);
void rename(RespCall& call);
void renamenx(RespCall& call);
void copy(RespCall& call);
void dbsize(RespCall& call);
void flush(RespCall& call);
void object_encoding(RespCall& call);
void memory_usage(RespCall& call);
// Their time.
void expire(RespCall& call);
void pexpire(RespCall& call);
void expireat(RespCall& call);
void pexpireat(RespCall& call);
void ttl(RespCall& call);
void pttl(RespCall& call);
void expiretime(RespCall& call);
void pexpiretime(RespCall& call);
void persist(RespCall& call);
// Connections.
void ping(RespCall& call);
void echo(RespCall& call);
void quit(RespCall& call);
void reset(RespCall& call);
void select(RespCall& call);
void auth(RespCall& call);
void hello(RespCall& call);
void client_id(RespCall& call);
void client_setname(RespCall& call);
void client_getname(RespCall& call);
void client_setinfo(RespCall& call);
void client_info(RespCall& call);
void client_list(RespCall& call);
void client_no_evict(RespCall& call);
void client_tracking(RespCall& call);
// The server.
void command(RespCall& call);
void command_count(RespCall& call);
void command_info(RespCall& call);
void command_docs(RespCall& call);
void command_list(RespCall& call);
void command_getkeys(RespCall& call);
void config_get(RespCall& call);
void info(RespCall& call);
void save(RespCall& call);
void bgsave(RespCall& call);
void lastsave(RespCall& call);
void time(RespCall& call);
void debug(RespCall& call);
// Clusters.
void agree(RespCall& call);  ///< to what changes nothing here
void cluster_countkeysinslot(RespCall& call);
void cluster_failure_reports(RespCall& call);
void cluster_getkeysinslot(RespCall& call);
void cluster_info(RespCall& call);
void cluster_keyslot(RespCall& call);
void cluster_links(RespCall& call);
void cluster_myid(RespCall& call);
void cluster_nodes(RespCall& call);
void cluster_replicas(RespCall& call);
void cluster_shards(RespCall& call);
void cluster_slots(RespCall& call);
// Transactions.
void multi(RespCall& call);
void exec(RespCall& call);
void discard(RespCall& call);
void watch(RespCall& call);
void unwatch(RespCall& call);
/// Of a connection that ends, or is made as new.
void forget_transaction(RespService& service, RespSession& session);
/// Into the transaction that is open.
void queue(RespCall& call);
}  // namespace resp

}  // namespace millrace::kv
