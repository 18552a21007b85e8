// A lane over a stream socket, TCP or a Unix one: the socket on which the two ends met goes on as
// the one that carries the messages (connect::Transport::tcp). No device is needed.
//
// What a system call costs is what counts here, so each is made to carry as much as there is:
//
//   receiving  one recv takes what has come, up to 64 KiB; messages are handed out from there, in
//              place, and the next recv comes when none of them is left
//   answers    of a server are laid side by side, and sent when nothing more is to be read from
//              that client, or when they are 64 KiB: one send answers what came by one
//   requests   of a client are sent at once, as it may wait for their effect elsewhere; but if it
//              says so (ClientOptions::gathers_requests), they wait in the same way for each other
//
// A server does not ask each socket whether it has something: an edge-triggered epoll tells it once
// for each time that something comes (SocketHost), and a recv that does not fill its memory has
// taken all. So a request of a client that has one outstanding costs its server an epoll, a recv
// and a send, and an idle client nothing.
//
// Goodbye is a frame (socket_framing.hpp). End of file without it is the peer's death.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lane/network_lane.hpp"
#include "lane/socket_framing.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/socket_watch.hpp"

namespace millrace::message {

class SocketLane final : public NetworkLane {
  public:
    struct Options {
        std::size_t max_message_bytes = 0;  ///< of those that are received, the head included
        /// Of its server, which is told when something comes; null: it is a client's, and asks the
        /// socket whenever it is looked at.
        connect::SocketWatch* watch = nullptr;
        bool gathers = false;  ///< what is sent waits until a look finds nothing more
        /// Whose the memory of long messages is; null: nobody's.
        std::shared_ptr<HeldBytes> held{};
    };
    /// Throws Error (resource_exhausted).
    SocketLane(connect::Link link, const Options& options);
    ~SocketLane() override;

    void pass() noexcept override { inbox_.pass(); }
    [[nodiscard]] bool has_more() const noexcept override;
    [[nodiscard]] bool exceeds_budget() const noexcept override { return inbox_.exceeds_budget(); }
    [[nodiscard]] Begun begun() const noexcept override {
        return {inbox_.passed(), inbox_.begun_bytes()};
    }

    base::Status claim(std::size_t size, std::span<std::byte>& place) override;
    base::Status flush() noexcept override;
    [[nodiscard]] std::size_t waiting_bytes() const noexcept override {
        return is_blocked_ ? outbox_.pending().size() : 0;
    }
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept override { return sent_bytes_; }
    [[nodiscard]] std::uint64_t progress() const noexcept override {
        return received_bytes_ + outbox_.laid() + sent_bytes_;
    }

    void answer_goodbye() noexcept override;
    [[nodiscard]] connect::Link& link() noexcept override { return link_; }
    [[nodiscard]] std::string explain() const override;

    /// The watch has told of it.
    void told(const connect::SocketWatch::Told& what) noexcept;

  private:
    class Parker final : public base::StandingParker {
      public:
        explicit Parker(SocketLane& lane) noexcept : lane_{&lane} {}
        void prepare() override {}
        void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override;
        Rest settle() override { return Rest::sleep; }
        void woken(Rest /*from*/) override {}
        void retract() override {}
        /// The socket tells of everything.
        [[nodiscard]] std::chrono::nanoseconds patience() const noexcept override {
            return std::chrono::nanoseconds::max();
        }

      private:
        SocketLane* lane_;
    };

    base::Status take(std::span<const std::byte>& message) override;
    base::Status lay(std::size_t size) noexcept override;
    base::Status keep(const SessionHead& head, std::span<const std::byte> payload) override;
    base::Status finish() override;
    [[nodiscard]] bool holds_back() const noexcept override {
        return gathers_ && !is_blocked_ && !outbox_.empty();
    }
    [[nodiscard]] base::StandingParker& parker() noexcept override { return parker_; }
    [[nodiscard]] std::span<const int> news() override;

    /// One gulp. False: nothing was there, or it has ended.
    bool receive();
    /// Nothing more reaches the peer: passes over what it has sent, for its last word. True: the
    /// peer has ended.
    bool has_ended();
    /// `ok`, or why nothing can be sent any more.
    [[nodiscard]] base::Status may_send() const noexcept {
        if (ended_ != base::Status::ok) return ended_;
        if (is_broken_) return base::Status::peer_lost;
        return said_goodbye_ ? base::Status::closed : base::Status::ok;
    }
    void say_goodbye() noexcept;
    void set_blocked(bool is_blocked) noexcept;
    /// The peer's kernel has everything, or the peer has said that it read everything.
    [[nodiscard]] bool is_delivered() noexcept;
    [[nodiscard]] bool peer_had_all() const noexcept;

    /// -1 in a child made by fork, to which it does not belong.
    [[nodiscard]] int socket() const noexcept { return link_.socket(); }

    connect::Link link_;
    connect::SocketWatch* watch_;
    bool gathers_;
    SocketInbox inbox_;
    SocketOutbox outbox_;
    bool may_read_ = true;     ///< only of a server: the socket may have something
    bool is_ending_ = false;   ///< only of a server: it has, be it the end
    bool is_blocked_ = false;  ///< the socket has no room
    bool is_broken_ = false;   ///< … and never will
    std::uint64_t sent_bytes_ = 0;
    std::uint64_t received_bytes_ = 0;
    std::optional<std::uint64_t> read_by_peer_;  ///< what its goodbye says
    bool said_goodbye_ = false;
    Parker parker_{*this};
    std::unique_ptr<connect::SocketNews> news_;
    int news_descriptor_ = -1;
};

/// All sockets of a server.
class SocketHost final : public LaneHost {
  public:
    /// Throws Error (resource_exhausted).
    SocketHost(std::size_t max_message_bytes, std::shared_ptr<HeldBytes> held)
        : max_message_bytes_{max_message_bytes}, held_{std::move(held)} {}

    [[nodiscard]] std::unique_ptr<NetworkLane> meet(connect::Link link) override;
    void look(std::vector<std::uint32_t>& places) override;
    [[nodiscard]] int descriptor() const noexcept override { return watch_.descriptor(); }
    void rest() noexcept override {}
    [[nodiscard]] std::string explain() const override;

  private:
    std::size_t max_message_bytes_;
    std::shared_ptr<HeldBytes> held_;
    connect::SocketWatch watch_;
};

/// A client's. Throws Error as connect::connect.
[[nodiscard]] std::unique_ptr<NetworkLane> connect_socket_lane(const connect::Address& server,
                                                               const connect::LinkOptions& link,
                                                               const SocketLane::Options& lane,
                                                               const base::Deadline& deadline);

}  // namespace millrace::message
