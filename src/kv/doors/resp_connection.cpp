// The RESP door's commands for connections.
#include <algorithm>

#include <fmt/format.h>

#include "doors/resp_commands.hpp"
#include "doors/text.hpp"

namespace millrace::kv::resp {
namespace {

constexpr std::string_view wrong_password =
    "WRONGPASS invalid username-password pair or user is disabled.";

/// True: from now on it is known.
bool log_in(RespCall& call, std::string_view user, std::string_view password) {
    const bool is_right = call.service.admits(user, password);
    if (is_right) call.session.is_known = true;
    return is_right;
}

bool is_name(std::string_view name) {
    return std::ranges::all_of(name, [](char letter) { return letter >= '!' && letter <= '~'; });
}
constexpr std::string_view no_name =
    "ERR Client names cannot contain spaces, newlines or special characters.";

std::string line_of(const RespSession& session) {
    const auto since = [now = base::Clock::now()](base::Clock::time_point then) {
        return std::max<std::int64_t>(
            std::chrono::duration_cast<std::chrono::seconds>(now - then).count(), 0);
    };
    const RespTransaction& transaction = session.transaction;
    return fmt::format(
        "id={} addr={} fd={} name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={} "
        "cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}\n",
        session.number, session.peer, session.descriptor, session.name, since(session.came),
        since(session.asked),
        transaction.is_open ? "x"
        : session.is_kept   ? "e"
                            : "N",
        transaction.is_open ? static_cast<std::int64_t>(transaction.queue.size()) : -1,
        session.command == nullptr ? "NULL" : session.command->name, session.protocol,
        session.library, session.library_version);
}

}  // namespace

void ping(RespCall& call) {
    if (call.words.size() > 2) return call.wrong_count();
    call.words.size() == 1 ? call.out.word("PONG") : call.out.string(call.word(1));
}

void echo(RespCall& call) { call.out.string(call.word(1)); }

void quit(RespCall& call) {
    call.session.is_leaving = true;
    call.ok();
}

void reset(RespCall& call) {
    forget_transaction(call.service, call.session);
    call.session.name.clear();
    call.session.is_kept = false;
    call.session.is_known = !call.service.options.password;
    call.session.protocol = 2;
    call.out.use(2);
    call.out.word("RESET");
}

void select(RespCall& call) {
    const auto database = call.integer(1);
    if (!database) return;
    *database == 0 ? call.ok() : call.out.error("ERR DB index is out of range");
}

void auth(RespCall& call) {
    if (call.words.size() > 3) return call.syntax_error();
    if (call.words.size() == 2 && !call.service.options.password) {
        return call.out.error(
            "ERR AUTH <password> called without any password configured for the default user. Are "
            "you sure your configuration is correct?");
    }
    const std::string_view user = call.words.size() == 3 ? call.word(1) : "default";
    if (log_in(call, user, call.words.back())) return call.ok();
    call.out.error(wrong_password);
}

void hello(RespCall& call) {
    int protocol = 0;
    std::size_t i = 1;
    if (call.words.size() > 1) {
        const auto asked = parse_integer(call.word(i++));
        if (!asked) {
            return call.out.error("ERR Protocol version is not an integer or out of range");
        }
        if (*asked < 2 || *asked > 3) {
            return call.out.error("NOPROTO unsupported protocol version");
        }
        protocol = static_cast<int>(*asked);
    }
    std::optional<std::string_view> name;
    std::optional<std::pair<std::string_view, std::string_view>> login;
    for (; i < call.words.size(); ++i) {
        const std::size_t more = call.words.size() - 1 - i;
        if (is_word(call.word(i), "auth") && more >= 2) {
            login.emplace(call.word(i + 1), call.word(i + 2));
            i += 2;
        } else if (is_word(call.word(i), "setname") && more >= 1) {
            name = call.word(++i);
            if (!is_name(*name)) return call.out.error(no_name);
        } else {
            return call.out.error(
                fmt::format("ERR Syntax error in HELLO option '{}'", repeated(call.word(i))));
        }
    }
    if (login && !log_in(call, login->first, login->second)) {
        return call.out.error(wrong_password);
    }
    if (!call.session.is_known) {
        return call.out.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the "
            "HELLO AUTH <user> <pass> option can be used to authenticate the client and select the "
            "RESP protocol version at the same time");
    }
    if (name) call.session.name = *name;
    if (protocol != 0) {
        call.session.protocol = protocol;
        call.out.use(protocol);
    }
    call.out.map(7);
    const auto pair = [&](std::string_view of, std::string_view is) {
        call.out.string(of);
        call.out.string(is);
    };
    pair("server", "redis");
    pair("version", redis_version);
    call.out.string("proto");
    call.out.integer(call.session.protocol);
    call.out.string("id");
    call.out.integer(static_cast<std::int64_t>(call.session.number));
    pair("mode", "standalone");
    pair("role", "master");
    call.out.string("modules");
    call.out.array(0);
}

void client_id(RespCall& call) { call.out.integer(static_cast<std::int64_t>(call.session.number)); }

void client_setname(RespCall& call) {
    if (!is_name(call.word(2))) return call.out.error(no_name);
    call.session.name = call.word(2);
    call.ok();
}

void client_getname(RespCall& call) {
    const std::string& name = call.session.name;
    name.empty() ? call.out.null() : call.out.string(name);
}

void client_setinfo(RespCall& call) {
    const bool is_name_of_it = is_word(call.word(2), "lib-name");
    if (!is_name_of_it && !is_word(call.word(2), "lib-ver")) {
        return call.out.error(fmt::format("ERR Unrecognized option '{}'", call.word(2)));
    }
    if (!is_name(call.word(3))) {
        return call.out.error(fmt::format(
            "ERR {} cannot contain spaces, newlines or special characters.", call.word(2)));
    }
    (is_name_of_it ? call.session.library : call.session.library_version) = call.word(3);
    call.ok();
}

void client_info(RespCall& call) { call.out.text(line_of(call.session)); }

void client_list(RespCall& call) {
    if (call.words.size() != 2) return call.syntax_error();
    std::string lines;
    call.service.each_session([&](const RespSession& session) { lines += line_of(session); });
    call.out.text(lines);
}

void client_no_evict(RespCall& call) {
    const bool is_on = is_word(call.word(2), "on");
    if (!is_on && !is_word(call.word(2), "off")) return call.syntax_error();
    call.session.is_kept = is_on;
    call.ok();
}

void client_tracking(RespCall& call) {
    if (is_word(call.word(2), "off")) return call.ok();
    if (!is_word(call.word(2), "on")) return call.syntax_error();
    call.out.error("ERR Client tracking is not supported: this store tells nobody of changes");
}

}  // namespace millrace::kv::resp
