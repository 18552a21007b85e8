// The door for Redis' clients, as one thread's part of it: their requests, and what answers them.
// Made by the server.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doors/door.hpp"
#include "doors/resp_parser.hpp"
#include "doors/resp_service.hpp"
#include "doors/resp_session.hpp"
#include "millrace/kv/detail/function_ref.hpp"

namespace millrace::kv {

class RespDoor final : public Door {
  public:
    RespDoor(RespService& service, const connect::PlainListener& listener, std::size_t thread)
        : Door{service, listener, thread}, service_{service} {}
    ~RespDoor() override { close(); }

    /// Any thread that has the gate alone.
    void each_session(FunctionRef<void(const RespSession&)> visit) const;

  private:
    struct Client final : Connection {
        Client() noexcept : Connection{session} {}
        [[nodiscard]] std::size_t wanted() const noexcept override { return parser.wanted(); }
        [[nodiscard]] std::size_t held_beside() const noexcept override { return parser.held(); }
        [[nodiscard]] std::size_t held_for_later() const noexcept override {
            return session.transaction.bytes;
        }
        RespSession session;
        RespParser parser;
    };

    [[nodiscard]] std::unique_ptr<Connection> make_connection() override;
    [[nodiscard]] std::string_view full_text() const noexcept override;
    [[nodiscard]] Done carry_out_some(Connection& connection, std::string_view data,
                                      Output& output) override;
    void forget(Connection& connection) noexcept override;

    RespService& service_;
    std::vector<std::string_view> words_;
    std::string scratch_;
};

}  // namespace millrace::kv
