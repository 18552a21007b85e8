#include "doors/memcached_door.hpp"

namespace millrace::kv {

std::unique_ptr<Door::Connection> MemcachedDoor::make_connection() {
    auto client = std::make_unique<Client>();
    client->parser.trust(!service_.options.password);
    return client;
}

std::string_view MemcachedDoor::full_text() const noexcept {
    return "ERROR Too many open connections\r\n";
}

bool MemcachedDoor::wants_ticks() const noexcept {
    return service_.flush_at.load(std::memory_order_relaxed) != 0;
}

Door::Done MemcachedDoor::carry_out_some(Connection& connection, std::string_view data,
                                         Output& output) {
    auto& client = static_cast<Client&>(connection);
    DoorSession& session = client.session;
    MemcachedWriter writer{output.bytes(), 0};
    service_.flush_if_due();
    return each_request(
        session, client.parser, writer, data, output,
        [&](std::string_view rest) { return client.parser.parse(rest, request_); },
        [&](std::string_view) {
            session.asked = base::Clock::now();
            count_command(writer, [&] {
                serve_memcached(service_, thread(), session, writer, request_, scratch_);
            });
            trim(scratch_);
        });
}

}  // namespace millrace::kv
