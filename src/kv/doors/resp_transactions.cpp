// The RESP door's transactions: commands that are carried out together, with nobody else's between
// them, if what was watched has not changed. A version tells that: it is another one after each
// change, and 0 of a key that is not there.
#include <utility>

#include "doors/resp_commands.hpp"
#include "doors/text.hpp"

namespace millrace::kv::resp {
namespace {

Version version_of(Store& store, std::string_view key) {
    Version version = 0;
    (void)store.get(bytes_of_word(key), [&](const Entry& entry) { version = entry.version; });
    return version;
}

/// The connection has none any more; what it had.
RespTransaction end(RespService& service, RespSession& session) {
    service.crowd.held.fetch_sub(session.transaction.bytes, std::memory_order_relaxed);
    return std::exchange(session.transaction, {});
}

void hold(RespCall& call, std::size_t bytes) {
    call.session.transaction.bytes += bytes;
    call.service.crowd.held.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace

void forget_transaction(RespService& service, RespSession& session) { (void)end(service, session); }

void multi(RespCall& call) {
    RespTransaction& transaction = call.session.transaction;
    if (transaction.is_open) return call.out.error("ERR MULTI calls can not be nested");
    transaction.is_open = true;
    transaction.is_broken = false;
    call.ok();
}

void queue(RespCall& call) {
    RespTransaction::Queued queued{&call.command, {}};
    std::size_t bytes = sizeof queued;
    for (const std::string_view word : call.words) {
        queued.arguments.emplace_back(word);
        bytes += sizeof(std::string) + word.size();
    }
    call.session.transaction.queue.push_back(std::move(queued));
    hold(call, bytes);
    call.out.word("QUEUED");
}

void exec(RespCall& call) {
    if (!call.session.transaction.is_open) return call.out.error("ERR EXEC without MULTI");
    const RespTransaction transaction = end(call.service, call.session);
    if (transaction.is_broken) {
        return call.out.error("EXECABORT Transaction discarded because of previous errors.");
    }
    for (const auto& [key, version] : transaction.watched) {
        if (version_of(call.store(), key) != version) return call.out.null_array();
    }
    call.out.array(transaction.queue.size());
    std::vector<std::string_view> words;
    for (const auto& queued : transaction.queue) {
        words.assign(queued.arguments.begin(), queued.arguments.end());
        RespCall one{call.service,    call.thread, call.session, call.out,
                     *queued.command, words,       call.scratch};
        carry_out(one);
    }
}

void discard(RespCall& call) {
    if (!call.session.transaction.is_open) return call.out.error("ERR DISCARD without MULTI");
    (void)end(call.service, call.session);
    call.ok();
}

void watch(RespCall& call) {
    RespTransaction& transaction = call.session.transaction;
    if (transaction.is_open) return call.out.error("ERR WATCH inside MULTI is not allowed");
    auto& watched = transaction.watched;
    constexpr std::size_t links = 4 * sizeof(void*);
    for (const std::string_view key : call.words.subspan(1)) {
        const auto at = watched.lower_bound(key);
        if (at != watched.end() && at->first == key) continue;
        watched.emplace_hint(at, key, version_of(call.store(), key));
        hold(call, sizeof *at + links + key.size());
    }
    call.ok();
}

void unwatch(RespCall& call) {
    // Within EXEC what was watched is forgotten already.
    if (!call.session.transaction.is_open) (void)end(call.service, call.session);
    call.ok();
}

}  // namespace millrace::kv::resp
