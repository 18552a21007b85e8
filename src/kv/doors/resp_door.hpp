// One thread's part of the RESP door: its connections, in an epoll that the thread looks at as it
// looks at clients by sockets (message::Server::serve_beside). What comes is read into memory of
// the thread, carried out in place and answered from memory of the thread; a connection has memory
// of its own only for a request of which a part is missing, and for answers that its client does
// not read. Made by the server.
//
//   reads        a piece at a time, then every whole request in it, then one send
//   paused       too much is unread: nothing is taken until the client has read (DoorOptions)
//   leaving      has its last answers, and is closed once they are sent
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "doors/output.hpp"
#include "doors/resp_parser.hpp"
#include "doors/resp_service.hpp"
#include "doors/resp_session.hpp"
#include "function_ref.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/connect/plain_listener.hpp"
#include "millrace/kv/doors.hpp"

namespace millrace::kv {

/// One thread's, but for stats() and times(), which are any's, and each_session().
class RespDoor {
  public:
    /// Throws Error (resource_exhausted).
    RespDoor(RespService& service, const connect::PlainListener& listener, std::size_t thread);
    RespDoor(const RespDoor&) = delete;
    RespDoor& operator=(const RespDoor&) = delete;
    ~RespDoor();

    /// Readable: look() finds something.
    [[nodiscard]] int descriptor() const noexcept { return epoll_; }
    /// Serves who has something, for a short time. True: there was something.
    bool look() noexcept;
    /// Takes nobody any more, and closes all connections, with what they have to be told still.
    void close() noexcept;

    void add_to(DoorStats& stats) const noexcept;
    [[nodiscard]] const base::Histogram& times() const noexcept { return times_; }
    /// Any thread that has the gate alone.
    void each_session(FunctionRef<void(const RespSession&)> visit) const;

  private:
    /// What has come of a request that is not whole yet.
    struct Input {
        std::unique_ptr<char[]> bytes;
        std::size_t size = 0;
        std::size_t capacity = 0;
        [[nodiscard]] std::string_view view() const noexcept { return {bytes.get(), size}; }
        void reserve(std::size_t wanted);
        void append(std::string_view more);
        void drop_front(std::size_t count) noexcept;
    };
    struct Connection {
        RespSession session;
        RespParser parser;
        Input input;
        Output output;
        std::size_t held = 0;        ///< as it is counted in the service
        std::uint32_t interest = 0;  ///< what the epoll tells of it
        bool is_paused = false;
        bool is_closed = false;
        base::Clock::time_point read_at{};  ///< paused: when it took something last
    };

    void watch_newcomers(bool watches) noexcept;
    void accept_some();
    void serve(Connection& connection, std::uint32_t events);
    [[nodiscard]] bool send(Connection& connection, Output& output) noexcept;
    void receive(Connection& connection);
    /// Carries out the requests in `data`, and sends the answers. How many bytes these were.
    [[nodiscard]] std::size_t carry_out_all(Connection& connection, std::string_view data);
    [[nodiscard]] bool is_too_much(const Connection& connection,
                                   std::size_t unsent) const noexcept;
    void carry_out_one(Connection& connection, class RespWriter& writer);
    /// Where the client has read enough.
    void go_on(Connection& connection);
    void pause(Connection& connection) noexcept;
    void settle(Connection& connection);
    void close(Connection& connection, std::uint64_t DoorStats::*why = nullptr) noexcept;
    void tick() noexcept;
    void set_timer() noexcept;
    void bury() noexcept;
    void add(std::uint64_t DoorStats::*count, std::uint64_t more = 1) noexcept;

    RespService& service_;
    const connect::PlainListener& listener_;
    const std::size_t thread_;
    int epoll_ = -1;
    int timer_ = -1;
    bool watches_newcomers_ = false;
    bool is_timed_ = false;
    std::size_t paused_ = 0;
    std::vector<std::unique_ptr<Connection>> connections_;
    std::vector<std::unique_ptr<Connection>> buried_;  ///< closed in this look
    std::unique_ptr<char[]> received_;
    Output output_;  ///< answers of the connection that is served
    std::vector<std::string_view> words_;
    std::string scratch_;
    DoorStats counts_;
    base::Histogram times_;
    std::uint32_t until_timed_ = 1;
};

}  // namespace millrace::kv
