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
    return each_request(
        session, parser, writer, data, output,
        [&](std::string_view rest) { return parser.parse(rest); },
        [&](std::string_view rest) {
            parser.arguments(rest, words_);
            if (words_.empty()) return;
            count_command(
                writer, [&] { serve_resp(service_, thread(), session, writer, words_, scratch_); });
            trim(scratch_);
        });
}

}  // namespace millrace::kv
