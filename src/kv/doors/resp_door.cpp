#include "doors/resp_door.hpp"

#include "doors/resp_commands.hpp"
#include "doors/resp_writer.hpp"

namespace millrace::kv {

void RespDoor::each_session(FunctionRef<void(const RespSession&)> visit) const {
    for (const auto& connection : connections()) {
        visit(static_cast<const Client&>(*connection).session);
    }
}

std::unique_ptr<Door::Connection> RespDoor::make_connection() {
    auto client = std::make_unique<Client>();
    client->parser.trust(!service_.options.password);
    return client;
}

std::string_view RespDoor::full_text() const noexcept {
    return "-ERR max number of clients reached\r\n";
}

void RespDoor::forget(Connection& connection) noexcept {
    resp::forget_transaction(service_, static_cast<Client&>(connection).session);
}

Door::Done RespDoor::carry_out_some(Connection& connection, std::string_view data, Output& output) {
    auto& client = static_cast<Client&>(connection);
    RespSession& session = client.session;
    RespParser& parser = client.parser;
    RespWriter writer{output.bytes(), 0, session.protocol};
    Done done;
    while (done.used < data.size() && !session.is_leaving) {
        const std::string_view rest = data.substr(done.used);
        const RespParser::State state = parser.parse(rest);
        if (state == RespParser::State::more) {
            done.waits = true;
            break;
        }
        // Whatever is unsent before it.
        writer.limit(output.bytes().size() + 2 * service_.options.max_unread_bytes);
        if (state == RespParser::State::failed) {
            writer.error("ERR " + parser.error());
            session.is_leaving = true;
            add(&DoorStats::malformed);
            done.used = data.size();
            break;
        }
        parser.arguments(rest, words_);
        if (!words_.empty()) {
            const bool was_known = session.is_known;
            count_command(
                writer, [&] { serve_resp(service_, thread(), session, writer, words_, scratch_); });
            if (session.is_known != was_known) parser.trust(session.is_known);
            trim(scratch_);
        }
        done.used += parser.size();
        parser.next();
        if (writer.is_full()) [[unlikely]] {
            done.is_long = true;
            break;
        }
        if (output.unsent() >= send_at) break;
    }
    return done;
}

}  // namespace millrace::kv
