// One thread's part of a door: its connections, in an epoll that the thread looks at as it looks at
// clients by sockets (message::Server::serve_beside). What comes is read into memory of the thread,
// carried out in place and answered from memory of the thread; a connection has memory of its own
// only for a request of which a part is missing, and for answers that its client does not read.
// What requests and answers are, a class says that is made of it (resp_door.hpp,
// memcached_door.hpp). Made by the server.
//
//   shakes hands where there is TLS (tls.hpp): nothing else comes before that is done
//   reads        a piece at a time, then every whole request in it, then one send
//   paused       too much is unread: nothing is taken until the client has read (DoorOptions)
//   leaving      has its last answers, and is closed once they are sent
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "doors/answers.hpp"
#include "doors/door_service.hpp"
#include "doors/door_session.hpp"
#include "doors/output.hpp"
#include "doors/tls.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/connect/plain_listener.hpp"
#include "millrace/kv/doors.hpp"
#include "millrace/kv/server.hpp"

namespace millrace::kv {

/// One thread's, but for add_to() and times(), which are any's.
class Door {
  public:
    /// Throws Error (resource_exhausted).
    Door(DoorService& service, const connect::PlainListener& listener, std::size_t thread);
    Door(const Door&) = delete;
    Door& operator=(const Door&) = delete;
    /// Whose close() was called by the class that is made of it.
    virtual ~Door();

    /// Readable: look() finds something.
    [[nodiscard]] int descriptor() const noexcept { return epoll_; }
    /// Serves who has something, for a short time. True: there was something.
    bool look() noexcept;
    /// Takes nobody any more, and closes all connections, with what they have to be told still.
    void close() noexcept;

    void add_to(DoorStats& stats) const noexcept;
    [[nodiscard]] const base::Histogram& times() const noexcept { return times_; }

  protected:
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
        explicit Connection(DoorSession& its_session) noexcept : session{its_session} {}
        Connection(const Connection&) = delete;
        Connection& operator=(const Connection&) = delete;
        virtual ~Connection() = default;
        /// Bytes of the request that has begun, at least.
        [[nodiscard]] virtual std::size_t wanted() const noexcept = 0;
        /// Of memory, besides input and output, that go with the request that has begun.
        [[nodiscard]] virtual std::size_t held_beside() const noexcept = 0;
        /// Of memory that is counted already.
        [[nodiscard]] virtual std::size_t held_for_later() const noexcept { return 0; }

        [[nodiscard]] bool is_shaking_hands() const noexcept {
            return tls != nullptr && !tls->is_established();
        }

        DoorSession& session;
        std::unique_ptr<TlsSession> tls;  ///< null: what comes is as it is
        Input input;
        Output output;
        std::size_t held = 0;        ///< as it is counted in the service
        std::uint32_t interest = 0;  ///< what the epoll tells of it
        bool is_paused = false;
        bool is_closed = false;
        base::Clock::time_point read_at{};  ///< paused: when it took something last
    };
    /// What became of bytes that came.
    struct Done {
        std::size_t used = 0;
        bool waits = false;    ///< of the next request a part is missing
        bool is_long = false;  ///< an answer was longer than it may be
    };

    [[nodiscard]] virtual std::unique_ptr<Connection> make_connection() = 0;
    /// To one more than there may be.
    [[nodiscard]] virtual std::string_view full_text() const noexcept = 0;
    /// Carries out the requests in `data`: the first, and those after it while `output` has less
    /// than send_at bytes unsent. Each answer may be twice as long as what may be unread.
    [[nodiscard]] virtual Done carry_out_some(Connection& connection, std::string_view data,
                                              Output& output) = 0;
    /// It ends. With the gate.
    virtual void forget(Connection& /*connection*/) noexcept {}
    /// There is something to do each second.
    [[nodiscard]] virtual bool wants_ticks() const noexcept { return false; }
    virtual void on_tick() noexcept {}

    /// Answers of so many bytes are sent before more of them are made.
    static constexpr std::size_t send_at = std::size_t{256} << 10;

    [[nodiscard]] std::size_t thread() const noexcept { return thread_; }
    [[nodiscard]] const auto& connections() const noexcept { return connections_; }
    void add(std::uint64_t DoorStats::*count, std::uint64_t more = 1) noexcept;
    /// One command, which `call()` carries out: counted, and some are timed.
    template <class Call>
    void count_command(const Answers& answers, Call&& call) {
        const std::uint64_t errors = answers.errors();
        if (--until_timed_ != 0) [[likely]] {
            call();
        } else {
            until_timed_ = timed_one_of;
            const auto begin = base::Clock::now();
            call();
            times_.record(static_cast<std::uint64_t>((base::Clock::now() - begin).count()));
        }
        add(&DoorStats::commands);
        if (answers.errors() != errors) [[unlikely]]
            add(&DoorStats::errors, answers.errors() - errors);
    }
    /// carry_out_some() by a parser and a writer: `parse(rest)` looks for the next request, and
    /// `carry_out(rest)` answers the one that was found.
    template <class Parser, class Writer, class Parse, class CarryOut>
    [[nodiscard]] Done each_request(DoorSession& session, Parser& parser, Writer& writer,
                                    std::string_view data, Output& output, Parse parse,
                                    CarryOut carry_out) {
        using State = typename Parser::State;
        Done done;
        while (done.used < data.size() && !session.is_leaving) {
            const std::string_view rest = data.substr(done.used);
            const State state = parse(rest);
            if (state == State::more) {
                done.waits = true;
                break;
            }
            // Whatever is unsent before it.
            writer.limit(output.bytes().size() + 2 * service_.options.max_unread_bytes);
            if (state == State::failed) {
                writer.malformed(parser.error());
                session.is_leaving = true;
                add(&DoorStats::malformed);
                done.used = data.size();
                break;
            }
            if (state == State::ready) {
                const bool was_known = session.is_known;
                carry_out(rest);
                if (session.is_known != was_known) parser.trust(session.is_known);
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
    /// Memory of the thread that commands use, between two of them: not more than usual is kept.
    static void trim(std::string& scratch) noexcept;

  private:
    void watch_newcomers(bool watches) noexcept;
    void accept_some();
    void serve(Connection& connection, std::uint32_t events);
    /// True: it is done.
    [[nodiscard]] bool shake_hands(Connection& connection);
    [[nodiscard]] bool has_more(const Connection& connection, std::uint32_t events) const noexcept;
    [[nodiscard]] bool send(Connection& connection, Output& output) noexcept;
    void receive(Connection& connection, TlsSession::From from);
    /// Carries out the requests in `data`, and sends the answers. How many bytes these were.
    [[nodiscard]] std::size_t carry_out_all(Connection& connection, std::string_view data);
    [[nodiscard]] bool is_too_much(const Connection& connection, std::size_t unsent) const noexcept;
    /// Where the client has read enough.
    void go_on(Connection& connection);
    void pause(Connection& connection) noexcept;
    void settle(Connection& connection);
    void watch(Connection& connection, std::uint32_t interest) noexcept;
    void close(Connection& connection, std::uint64_t DoorStats::*why = nullptr) noexcept;
    void tick() noexcept;
    void set_timer() noexcept;
    void bury() noexcept;

    DoorService& service_;
    const connect::PlainListener& listener_;
    const std::size_t thread_;
    int epoll_ = -1;
    int timer_ = -1;
    bool watches_newcomers_ = false;
    bool is_timed_ = false;
    std::size_t paused_ = 0;
    std::size_t shaking_hands_ = 0;
    std::vector<std::unique_ptr<Connection>> connections_;
    std::vector<std::unique_ptr<Connection>> buried_;  ///< closed in this look
    std::unique_ptr<char[]> received_;
    Output output_;  ///< answers of the connection that is served
    DoorStats counts_;
    base::Histogram times_;
    std::uint32_t until_timed_ = 1;
};

}  // namespace millrace::kv
