// The door for memcached's clients, as one thread's part of it: their requests, and what answers
// them. Made by the server.
#pragma once

#include <string>
#include <string_view>

#include "doors/door.hpp"
#include "doors/door_session.hpp"
#include "doors/memcached_commands.hpp"
#include "doors/memcached_parser.hpp"

namespace millrace::kv {

class MemcachedDoor final : public Door {
  public:
    MemcachedDoor(MemcachedService& service, const connect::PlainListener& listener,
                  std::size_t thread)
        : Door{service, listener, thread}, service_{service} {}
    ~MemcachedDoor() override { close(); }

  private:
    struct Client final : Connection {
        Client() noexcept : Connection{session} {}
        [[nodiscard]] std::size_t wanted() const noexcept override { return parser.wanted(); }
        [[nodiscard]] std::size_t held_beside() const noexcept override { return 0; }
        DoorSession session;
        MemcachedParser parser;
    };

    [[nodiscard]] std::unique_ptr<Connection> make_connection() override;
    [[nodiscard]] std::string_view full_text() const noexcept override;
    [[nodiscard]] Done carry_out_some(Connection& connection, std::string_view data,
                                      Output& output) override;
    [[nodiscard]] bool wants_ticks() const noexcept override;
    void on_tick() noexcept override { service_.flush_if_due(); }

    MemcachedService& service_;
    MemcachedRequest request_;
    std::string scratch_;
};

}  // namespace millrace::kv
