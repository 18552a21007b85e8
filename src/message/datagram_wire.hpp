// A wire over packets that may be lost: UC, or datagrams (connect::Transport::uc, ud), or, of those
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
//               until it was read; receives are for those who ring, as it sleeps. What it sends
//               goes by SEND, as by UC, and is not lost
//
// Packets that are there to be sent at one time are posted with one doorbell: the pieces of a long
// message; and, if the program asks for it (ClientOptions::gathers_requests,
// ServerOptions::gather_turns), messages of a whole turn, which by UD may go to many clients.
//
// A packet lies where it came until it was read, and its receive is posted again then. There are
// some receives more than the peer may fill: for packets without data.
//
// The socket on which the two ends met tells that the peer has died, and carries the goodbye: the
// number of packets that its sender has sent, and of those that it has got. So `closed` comes
// behind the last message, be it lost before. A server says goodbye and waits for a moment until
// its clients have what it has sent, as those of them do who are waiting for anything.
//
// Who can do what to whom. A UC packet comes from the peer. A datagram can be sent by anyone in the
// fabric who knows (or tries) the queue pair's number and Q_Key: it takes a receive of the pool
// until it is looked at, and nothing else, as 47 random bits of its token say whose it is. Who can
// read what travels can forge it. So UD is for fabrics that are trusted.
//
// Source: work 002, sections 2.3.2 (what UC and UD promise) and 3 (one queue pair of the server for
// all clients by UD, one for each by UC).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "incoming.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/readiness.hpp"
#include "millrace/connect/socket_watch.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"
#include "packet_chain.hpp"
#include "packet_stream.hpp"
#include "shared_buffer.hpp"
#include "shared_sender.hpp"
#include "wire.hpp"

namespace millrace::message {

class DatagramHost;

/// What each end tells the other at the beginning.
struct PacketFacts {
    std::uint64_t token = 0;       ///< in packets to this end
    std::uint64_t ring_bytes = 0;  ///< of memory that the other end shall send from
    std::uint32_t version = 1;     ///< shared_version: the client's go through a shared buffer
    std::uint32_t room = 0;        ///< packets that this end holds
    std::uint32_t packet_bytes = 0;
    std::uint32_t zero = 0;

    static constexpr std::uint32_t shared_version = 2;
};
static_assert(sizeof(PacketFacts) == 32);
/// What the server says of a shared buffer.
struct SharedPacketFacts {
    PacketFacts packets;
    SharedFacts shared;
};

/// How one end posts its packets.
struct PacketPosting {
    PostingHabits habits{};
    /// What is committed waits for more until a look finds nothing (a client), or until the server
    /// has seen to all (WireHost::post_gathered()).
    bool gathers = false;
};

/// What one end has memory for.
struct PacketMemory {
    std::size_t ring_bytes = 0;           ///< as of a ring: for what comes, see docs/messaging.md
    std::size_t max_peer_ring_bytes = 0;  ///< the same of the peer, for what goes there
    std::size_t max_message_bytes = 0;    ///< to this end
    /// A client's: requests go through the server's shared buffer.
    bool is_shared = false;
    ring::Carrier carrier = ring::Carrier::automatic;  ///< of these
    /// Whose the memory of long messages is; null: nobody's.
    std::shared_ptr<HeldBytes> held{};
};

class DatagramWire final : public Wire {
  public:
    /// `host`: of its server; null: it is a client's. Throws Error (resource_exhausted, verbs).
    DatagramWire(connect::Link link, const PacketMemory& memory, const PacketPosting& posting,
                 DatagramHost* host);
    ~DatagramWire() override;

    [[nodiscard]] const PacketFacts& facts() const noexcept { return facts_; }
    /// Before anything else. Throws Error (protocol, refused).
    void meet(const PacketFacts& theirs);
    /// The same of a client's, and of the server's shared buffer. Throws Error (unsupported), too.
    void meet(const SharedPacketFacts& theirs);

    base::Status look(std::span<const std::byte>& message) override;
    void pass() noexcept override;
    [[nodiscard]] bool has_more() const noexcept override;
    [[nodiscard]] bool exceeds_budget() const noexcept override {
        return stream_->exceeds_budget();
    }
    [[nodiscard]] Begun begun() const noexcept override {
        if (!stream_->is_assembling()) return {};
        return {stream_->begun(), stream_->assembled_bytes()};
    }

    base::Status claim(std::size_t size, std::span<std::byte>& place) override;
    base::Status commit(std::size_t size) noexcept override;
    base::Status send(const SessionHead& head, std::span<const std::byte> payload) override;
    base::Status flush() noexcept override;
    [[nodiscard]] bool holds_back() const noexcept override { return held_back_ != 0; }
    [[nodiscard]] std::size_t waiting_bytes() const noexcept override {
        return stream_->waiting_bytes();
    }
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept override {
        return stream_->flushed_bytes();
    }
    [[nodiscard]] std::uint64_t progress() const noexcept override { return stream_->progress(); }

    [[nodiscard]] base::StandingParker& parker() noexcept override { return parker_; }
    [[nodiscard]] std::span<const int> news() override { return news_; }
    [[nodiscard]] base::Clock::time_point due() const noexcept override {
        return sender_.has_value() ? std::min(stream_->due(), sender_->due()) : stream_->due();
    }

    [[nodiscard]] base::Status end_of_peer() const noexcept override {
        if (peer_is_lost_) return base::Status::peer_lost;
        return peer_has_closed_ ? base::Status::closed : base::Status::ok;
    }
    void answer_goodbye() noexcept override;
    void begin_close() noexcept override;
    base::Status close(const base::Deadline& deadline) override;

    [[nodiscard]] connect::Link& link() noexcept override { return link_; }
    [[nodiscard]] std::string failure() const override { return why_failed_; }
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
    class Parker final : public base::StandingParker {
      public:
        explicit Parker(DatagramWire& wire) noexcept : wire_{&wire}, link_{wire.link_} {}
        /// What it has sent is complete, or will be: a queue that holds that is not armed to sleep.
        void prepare() override {
            if (wire_->own_window_.has_value()) (void)wire_->own_window_->reap();
            link_.prepare();
        }
        void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override;
        Rest settle() override { return link_.settle(); }
        [[nodiscard]] std::chrono::nanoseconds longest_sleep() const noexcept override {
            return link_.longest_sleep();
        }
        void woken(Rest from) override { link_.woken(from); }
        void retract() override { link_.retract(); }

      private:
        DatagramWire* wire_;
        connect::LinkParker link_;
    };

    /// The requests of a client that have no answer yet.
    class Awaited {
      public:
        void sent(const SessionHead& head) noexcept;
        void received(std::span<const std::byte> message) noexcept;
        [[nodiscard]] bool any() const noexcept { return count_ != 0; }

      private:
        bool hello_ = false;
        std::uint32_t count_ = 0;
        std::vector<bool> requests_ = std::vector<bool>(largest_window);
    };

    [[nodiscard]] bool is_client() const noexcept { return host_ == nullptr; }
    [[nodiscard]] bool is_shared() const noexcept;
    void post_receives();
    /// A receive was used for nothing that stays.
    /// 0, or an errno.
    int post_receive(std::uint32_t slot) noexcept;
    [[nodiscard]] end::SendWindow& window() noexcept;
    [[nodiscard]] PacketStream::Time now() const noexcept;
    /// A client's own.
    void poll() noexcept;
    void give_back() noexcept;
    /// Posts what is due. `full`: the queue pair takes no more of it now.
    base::Status pump(bool with_bare) noexcept;
    /// What stream_ says is to be posted next, into `chain`. `full`: of another completion, or
    /// another post, it may be more.
    base::Status fill(PacketChain& chain, PacketStream::Time time, bool with_bare) noexcept;
    base::Status add(PacketChain& chain, std::span<const std::byte> packet,
                     end::Signal signal) noexcept;
    base::Status post(PacketChain& chain) noexcept;
    /// What there is to do when nothing has come.
    base::Status idle() noexcept;
    void end(base::Status how, std::string_view why) noexcept;

    DatagramHost* host_;
    std::shared_ptr<connect::Endpoint> endpoint_;  ///< whose domain the memory is of
    verbs::RegisteredBuffer receive_memory_;
    verbs::RegisteredBuffer send_memory_;
    std::optional<SharedSender> sender_;  ///< a client's, through a shared buffer
    connect::Link link_;  ///< goes before the memory that it sends from and receives into
    std::optional<end::SendWindow> own_window_;
    Slots slots_{};  ///< of its own; none of a server's end of UD
    std::size_t header_bytes_;
    std::size_t ring_bytes_ = 0;  ///< of memory that packets with data are sent from
    std::uint32_t send_key_ = 0;
    std::uint32_t max_inline_ = 0;  ///< bytes; 0: nothing travels inline
    PacketMemory memory_;
    PacketPosting posting_;
    PacketFacts facts_;
    std::optional<PacketStream> stream_;
    /// A server's, through a shared buffer: where packets are copied to, and which places are free.
    std::vector<std::uint64_t> copies_;
    std::vector<std::uint32_t> free_copies_;
    std::uint32_t shared_seed_ = 0;
    Awaited awaited_;
    std::span<std::byte> claimed_;
    std::span<const std::byte> looked_at_;
    std::uint64_t last_ticket_ = 0;
    std::size_t unsignaled_bytes_ = 0;
    std::uint32_t unsignaled_ = 0;
    std::uint32_t held_back_ = 0;  ///< messages that were committed since the last pump()
    std::array<int, 2> news_{-1, -1};

    bool peer_is_lost_ = false;
    bool peer_has_closed_ = false;
    PacketStream::Time peer_closed_at_{};
    bool peer_had_all_ = false;
    bool said_goodbye_ = false;
    PacketStream::Time said_goodbye_at_{};
    base::Status ended_ = base::Status::ok;
    std::string why_failed_;
    Parker parker_;
};

/// A server's end of all its clients by UC, or by UD, or through a shared buffer.
class DatagramHost final : public WireHost {
  public:
    struct Setting {
        connect::Transport transport = connect::Transport::ud;  ///< `rc`: by a shared buffer
        PacketMemory memory{};                                  ///< for each client
        PacketPosting posting{};
        std::uint32_t receives = 0;  ///< of the pool (UD)
        std::uint32_t max_clients = 0;
        std::uint32_t shared_slots = 0;  ///< rc: packets of a client in the shared buffer
        std::size_t shared_bytes = 0;    ///< rc: of that
    };
    /// Sets what a listener needs for such links in `link`, whose endpoint is set. Throws Error
    /// (resource_exhausted, verbs).
    DatagramHost(const Setting& setting, connect::LinkOptions& link);
    ~DatagramHost() override;

    [[nodiscard]] std::unique_ptr<Wire> meet(connect::Link link) override;
    void look(std::vector<std::uint32_t>& places) override;
    [[nodiscard]] int descriptor() const noexcept override { return readiness_->descriptor(); }
    void rest() noexcept override;
    void post_gathered() noexcept override;
    [[nodiscard]] std::string explain() const override;

    // --- for its wires

    [[nodiscard]] bool is_ud() const noexcept {
        return setting_.transport == connect::Transport::ud;
    }
    [[nodiscard]] bool is_shared() const noexcept {
        return setting_.transport == connect::Transport::rc;
    }
    /// Of the shared buffer, for this wire.
    [[nodiscard]] SharedFacts shared_facts(const DatagramWire& wire) const noexcept;
    [[nodiscard]] std::uint32_t shared_slots() const noexcept { return setting_.shared_slots; }
    /// A token by which packets to this wire are found.
    [[nodiscard]] std::uint64_t add(DatagramWire& wire);
    void remove(DatagramWire& wire, std::uint64_t token) noexcept;
    [[nodiscard]] end::SendWindow& window() noexcept { return *window_; }
    /// What goes to any client, until post_gathered(); null: each posts its own at once.
    [[nodiscard]] PacketChain* chain() noexcept { return chain_ ? &*chain_ : nullptr; }
    /// A slot of the pool is free again.
    void give_back(std::uint32_t slot) noexcept;
    void poll() noexcept;
    /// Keeps what packets may be sent from still, until they have left.
    void bury(std::uint64_t ticket, connect::Link link, verbs::RegisteredBuffer memory);

  private:
    /// What all clients by UD share.
    struct Station {
        verbs::CompletionQueue sent;
        verbs::DatagramQueuePair pair;
        Slots slots{};
        std::uint32_t posted = 0;
    };
    /// What all clients of a shared buffer share.
    struct Shared {
        Shared(verbs::ProtectionDomain& domain, const SharedShape& shape);
        verbs::RegisteredBuffer memory;
        SharedReader reader;
        std::vector<DatagramWire*> wires;  ///< by place; up to the highest that was ever taken
        std::vector<std::uint32_t> free;
    };
    struct Buried {
        std::uint64_t ticket;
        verbs::RegisteredBuffer memory;
        connect::Link link;
    };

    void open_station(connect::LinkOptions& link);
    void take(const verbs::Completion& completion) noexcept;
    void take_datagram(const verbs::Completion& completion) noexcept;
    void tell(DatagramWire& wire) noexcept;

    Setting setting_;
    std::shared_ptr<connect::Endpoint> endpoint_;
    verbs::CompletionChannel channel_;
    verbs::CompletionQueue completions_;
    verbs::RegisteredBuffer memory_;  ///< of the pool
    std::vector<Buried> buried_;
    Station station_;
    std::unique_ptr<Shared> shared_;
    std::optional<end::SendWindow> window_;
    std::optional<PacketChain> chain_;
    connect::SocketWatch sockets_;
    std::optional<connect::Readiness> readiness_;

    std::vector<DatagramWire*> by_place_;  ///< UD: by the lowest bits of the token
    std::vector<std::uint32_t> free_places_;
    std::vector<std::uint64_t> tokens_;
    std::unordered_map<std::uint32_t, DatagramWire*> by_pair_;  ///< UC
    std::vector<DatagramWire*> told_;
    std::size_t wires_ = 0;  ///< that there are
    std::uint64_t sockets_looked_at_ = 0;
    std::uint64_t sockets_every_;
    bool sockets_are_due_ = true;
    std::uint64_t foreign_ = 0;
};

/// A client's. Throws Error as connect::connect.
[[nodiscard]] std::unique_ptr<Wire> connect_datagram_wire(const connect::Address& server,
                                                          connect::LinkOptions link,
                                                          const PacketMemory& memory,
                                                          const PacketPosting& posting,
                                                          const base::Deadline& deadline);

}  // namespace millrace::message
