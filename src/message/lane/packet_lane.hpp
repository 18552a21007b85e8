// A lane over packets that may be lost: UC, or datagrams (connect::Transport::uc, ud), or, of those
// to a server by rc, a buffer that all its clients write into (shared_buffer.hpp). What makes
// messages of them is PacketStream (packet_stream.hpp); here its packets are posted, and what has
// come is handed over to it.
//
//   client      receives of its own, which its own completion queue tells of; its timer runs while
//               it is looked at, or waits, or its descriptor is (due())
//   server, UC  each client has a queue pair and receives of its own; the completions of all come
//               in one queue, and name the queue pair
//   server, UD  one queue pair, one pool of receives and one completion queue for all clients; the
//               token that a packet bears says whose it is, and by its lowest bits where to look
//   server, rc  what its clients send is found in the shared buffer and copied to where it stays
//               until it was read; receives are for clients that ring, as it sleeps. What it sends
//               goes by SEND, as by UC, and is not lost
//
// Packets that are there to be sent at one time are posted with one doorbell: the pieces of a long
// message; and, if a client asks for it (ClientOptions::gathers_requests), requests of a whole
// turn.
//
// A packet lies where it came until it was read, and its receive is posted again then. There are
// some receives more than the peer may fill: for packets without data.
//
// The socket on which the two ends met tells that the peer has died, and carries the goodbye: the
// number of packets that its sender has sent, and of those that it has got. So `closed` comes
// after the last message, be it lost before. A server says goodbye and waits for a moment until
// its clients have what it has sent, as those of them do that are waiting for anything.
//
// Who can do what to whom. A UC packet comes from the peer. A datagram can be sent by any program
// in the fabric that knows (or tries) the queue pair's number and Q_Key: it takes a receive of the
// pool until it is looked at, and nothing else, as 47 random bits of its token say whose it is. A
// program that can read what travels can forge it. So UD is for fabrics that are trusted.
//
// Source: work 002, sections 2.3.2 (what UC and UD promise) and 3 (one queue pair of the server for
// all clients by UD, one for each by UC).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "channel/incoming.hpp"
#include "lane/awaited_answers.hpp"
#include "lane/network_lane.hpp"
#include "lane/packet_chain.hpp"
#include "lane/packet_setup.hpp"
#include "lane/packet_stream.hpp"
#include "lane/shared_sender.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::message {

class PacketHost;

class PacketLane final : public NetworkLane {
  public:
    /// `host`: of its server; null: it is a client's. Throws Error (resource_exhausted, verbs).
    PacketLane(connect::Link link, const PacketMemory& memory, const PacketPosting& posting,
               PacketHost* host);
    ~PacketLane() override;

    [[nodiscard]] const PacketFacts& facts() const noexcept { return facts_; }
    /// Before anything else. Throws Error (protocol, refused).
    void meet(const PacketFacts& theirs);
    /// The same of a client's, and of the server's shared buffer. Throws Error (unsupported), too.
    void meet(const SharedPacketFacts& theirs);

    void pass() noexcept override;
    [[nodiscard]] bool has_more() const noexcept override;
    [[nodiscard]] bool exceeds_budget() const noexcept override {
        return stream_->exceeds_budget();
    }
    [[nodiscard]] Begun begun() const noexcept override { return stream_->begun(); }

    base::Status claim(std::size_t size, std::span<std::byte>& place) override;
    base::Status flush() noexcept override;
    [[nodiscard]] std::size_t waiting_bytes() const noexcept override {
        return stream_->waiting_bytes();
    }
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept override {
        return stream_->flushed_bytes();
    }
    [[nodiscard]] std::uint64_t progress() const noexcept override { return stream_->progress(); }

    [[nodiscard]] base::Status end_of_peer() const noexcept override {
        if (peer_.is_lost) return base::Status::peer_lost;
        return peer_.has_closed ? base::Status::closed : base::Status::ok;
    }
    void answer_goodbye() noexcept override;
    [[nodiscard]] connect::Link& link() noexcept override { return link_; }
    [[nodiscard]] std::string explain() const override;

    /// What its packets did.
    [[nodiscard]] const PacketCounts& counts() const noexcept { return stream_->counts(); }

    // --- for the host

    /// A receive of this end was filled; or failed.
    void arrived(const verbs::Completion& completion) noexcept;
    /// A packet that bears its token. False: nothing of it is kept.
    bool arrived(std::span<const std::byte> packet, std::uint32_t slot, bool may_keep) noexcept;
    /// A word of its row was found in the shared buffer.
    void arrived(const SharedReader& reader, std::uint64_t word) noexcept;
    /// Its place there.
    std::uint32_t shared_place = 0;
    /// The socket has something, or has ended.
    void look_after_peer() noexcept;
    bool is_told = false;

  private:
    using Time = PacketStream::Time;

    class Parker final : public base::StandingParker {
      public:
        explicit Parker(PacketLane& lane) noexcept : lane_{&lane}, link_{lane.link_} {}
        /// What it has sent is complete, or will be: a queue that holds that is not armed to sleep.
        void prepare() override {
            if (lane_->own_window_.has_value()) (void)lane_->own_window_->reap();
            link_.prepare();
        }
        void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
            if (const Time due = lane_->due(); due != Time::max()) {
                limit = std::min(limit, std::max<std::chrono::nanoseconds>(
                                            due - base::Clock::now(), std::chrono::nanoseconds{0}));
            }
            link_.park(limit, cancellation);
        }
        Rest settle() override { return link_.settle(); }
        [[nodiscard]] std::chrono::nanoseconds longest_sleep() const noexcept override {
            return link_.longest_sleep();
        }
        void woken(Rest from) override { link_.woken(from); }
        void retract() override { link_.retract(); }

      private:
        PacketLane* lane_;
        connect::LinkParker link_;
    };

    /// What is sent, and what of it has left.
    struct Sending {
        std::size_t ring_bytes = 0;    ///< of memory that packets with data are sent from
        std::uint32_t key = 0;         ///< of all of it
        std::uint32_t max_inline = 0;  ///< bytes; 0: nothing travels inline
        std::uint64_t last_ticket = 0;
        std::size_t unsignaled_bytes = 0;
        std::uint32_t unsignaled = 0;
        std::uint32_t held_back = 0;  ///< messages that were committed since the last pump()
    };
    /// A server's, through a shared buffer: where packets are copied to, and which places are free.
    struct Copies {
        std::vector<std::uint64_t> memory;
        std::vector<std::uint32_t> free;
        std::uint32_t seed = 0;
    };
    /// What the peer's socket has said.
    struct PeerEnd {
        bool is_lost = false;
        bool has_closed = false;
        bool had_all = false;
        Time closed_at{};
    };

    base::Status take(std::span<const std::byte>& message) override;
    base::Status lay(std::size_t size) noexcept override;
    base::Status keep(const SessionHead& head, std::span<const std::byte> payload) override;
    base::Status finish() override;
    [[nodiscard]] bool holds_back() const noexcept override { return sending_.held_back != 0; }
    [[nodiscard]] base::StandingParker& parker() noexcept override { return parker_; }
    [[nodiscard]] std::span<const int> news() override { return news_; }
    [[nodiscard]] base::Clock::time_point due() const noexcept override {
        return sender_.has_value() ? std::min(stream_->due(), sender_->due()) : stream_->due();
    }

    [[nodiscard]] bool is_client() const noexcept { return host_ == nullptr; }
    [[nodiscard]] bool is_shared() const noexcept;
    void post_receives();
    /// 0, or an errno.
    int post_receive(std::uint32_t slot) noexcept;
    [[nodiscard]] end::SendWindow& window() noexcept;
    [[nodiscard]] Time now() const noexcept;
    /// Takes what has come for it: a client's own, or its host's of all.
    void poll() noexcept;
    void give_back() noexcept;
    void await_answer_to(const SessionHead& head) noexcept {
        awaited_.sent(head);
        if (awaited_.any()) stream_->expect(true, now());
    }
    /// Posts what is due. `full`: the queue pair takes no more of it now.
    base::Status pump(bool with_bare) noexcept;
    /// What stream_ says is to be posted next, into `chain`. `full`: of another completion, or
    /// another post, it may be more.
    base::Status fill(PacketChain& chain, Time time, bool with_bare) noexcept;
    base::Status add(PacketChain& chain, std::span<const std::byte> packet,
                     end::Signal signal) noexcept;
    /// What there is to do when nothing has come.
    base::Status idle() noexcept;
    /// `ok`, or why nothing can be sent any more.
    [[nodiscard]] base::Status may_send() const noexcept {
        return ended_ == base::Status::ok && said_goodbye_at_.has_value() ? base::Status::closed
                                                                          : ended_;
    }
    /// Says goodbye, once everything that was sent has its number.
    void say_goodbye() noexcept;

    PacketHost* host_;
    std::shared_ptr<connect::Endpoint> endpoint_;  ///< whose domain the memory is of
    verbs::RegisteredBuffer receive_memory_;
    verbs::RegisteredBuffer send_memory_;
    std::optional<SharedSender> sender_;  ///< a client's, through a shared buffer
    connect::Link link_;  ///< goes before the memory that it sends from and receives into
    std::optional<end::SendWindow> own_window_;
    Slots slots_{};  ///< of its own; none of a server's end of UD
    std::size_t header_bytes_;
    PacketMemory memory_;
    PacketPosting posting_;
    PacketFacts facts_;
    std::optional<PacketStream> stream_;
    Sending sending_;
    Copies copies_;
    AwaitedAnswers awaited_;
    std::span<std::byte> claimed_;
    std::span<const std::byte> looked_at_;
    std::array<int, 2> news_{-1, -1};
    PeerEnd peer_;
    std::optional<Time> said_goodbye_at_;
    Parker parker_;
};

}  // namespace millrace::message
