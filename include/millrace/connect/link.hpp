// A link: one connected RC queue pair, what belongs to it, and a socket that tells whether the
// peer lives. Every abstraction of floor 5 begins as a link. What does without RC may ask for
// another transport (transport.hpp): UC, datagrams, or the socket itself.
//
// The handshake (over TCP or a Unix socket, which stays open as liveness signal):
//   both send   Hello { magic, protocol version, header size, capabilities, service name and
//               version, queue pair address, MTU, limits, the program's protocol and its version }
//   both        check, connect their queue pair (INIT → RTR → RTS)
//   both send   Ready or Refused { reason }, and wait for the other's
// Where two soft devices share no memory, the link goes by their wire, RoCEv2 in UDP, which is
// turned on for the first peer of another host (docs/wire.md). With a secret (admission.hpp),
// whoever accepts sends a challenge first, and its Hello only to who has answered it; the Ready
// messages prove to both what the other knows and has heard. Then any number of `exchange` messages
// (memory addresses and keys of the floor above), then silence until Goodbye. Every message is
// length-prefixed and bounded (64 KiB); anything else on the port is refused with an error that
// says what it looked like.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/datagram.hpp"
#include "millrace/verbs/device.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/queue_pair.hpp"

namespace millrace::connect {

/// An open device with a protection domain, shared by the links made through it. Thread-safe.
/// Whoever reaches one memory region of a domain by a link can reach them all, if it knows or
/// guesses their keys and their registration allows it.
class Endpoint {
  public:
    /// `device`: a name for verbs::find_device (empty: the default). `gid_index` -1: chosen (none
    /// on InfiniBand, else the first RoCE v2 IPv4-mapped one, else the first non-zero one).
    /// Throws Error.
    [[nodiscard]] static std::shared_ptr<Endpoint> open(std::string_view device = {},
                                                        int gid_index = -1);
    /// The default device's, which everything in this process shares that names none: opened for
    /// the first, closed behind the last. Another one where the environment chooses otherwise by
    /// now (MILLRACE_DEVICE, the soft device's fabric or mode). Its keys are valid for all who
    /// share it. Throws Error. Any thread. A process that forks while others of its threads may be
    /// the first to use Millrace should have called this before: a child cannot finish what a
    /// thread that it does not have was making.
    [[nodiscard]] static std::shared_ptr<Endpoint> shared();
    /// Another one on the same open device, with a protection domain of its own: keys of the one
    /// mean nothing to queue pairs of the other. Throws Error (resource_exhausted).
    [[nodiscard]] std::shared_ptr<Endpoint> with_own_domain() const;
    [[nodiscard]] verbs::Context& context() noexcept { return *context_; }
    [[nodiscard]] verbs::ProtectionDomain& protection_domain() noexcept { return domain_; }
    [[nodiscard]] std::uint8_t port() const noexcept { return port_; }
    [[nodiscard]] int gid_index() const noexcept { return gid_index_; }
    /// "soft0 (soft device, fast: within this host memory, not a network)".
    [[nodiscard]] std::string describe() const;

  private:
    Endpoint(std::shared_ptr<verbs::Context> context, std::uint8_t port, int gid_index);
    std::shared_ptr<verbs::Context> context_;
    verbs::ProtectionDomain domain_;
    std::uint8_t port_;
    int gid_index_;
};

/// The queue pair by which a listener's end talks to all who chose Transport::ud. Its queues are
/// for who made it to poll; it outlives the links.
struct DatagramService {
    verbs::DatagramQueuePair* queue_pair = nullptr;
    std::uint32_t key = 0;  ///< its Q_Key
};

/// What a program says over a connection, and which version of that, in its own words.
struct Protocol {
    std::string name{};  ///< of at most 64 printable bytes; empty: the program does not say
    std::uint32_t version = 0;
};

struct LinkOptions {
    /// Who talks: both ends must say the same, or the handshake is refused by name.
    std::string service = "link";
    std::uint32_t service_version = 1;
    /// The program's: where both ends name one, name and version must be the same.
    Protocol protocol{};
    std::shared_ptr<Endpoint> endpoint{};  ///< null: Endpoint::shared()
    std::uint32_t max_send_requests = 128;
    std::uint32_t max_receive_requests = 16;
    std::uint32_t max_send_slices = 2;
    std::uint32_t max_inline = 64;
    /// What the peer may do to memory registered in this link's domain.
    verbs::Access remote = verbs::Access::remote_write | verbs::Access::remote_read;
    std::uint8_t rnr_retry = 7;
    /// Where receives of all links that are made with these options complete, and where they are
    /// taken from; null: each link has queues of its own. Who gives them polls and arms them, and
    /// keeps them for longer than the links.
    verbs::CompletionQueue* receive_queue = nullptr;
    verbs::SharedReceiveQueue* shared_receives = nullptr;
    /// The same of a listener's links by `uc`, where they are another's to poll than those by `rc`.
    verbs::CompletionQueue* uc_receive_queue = nullptr;
    /// How connect() goes about it.
    Transport transport = Transport::rc;
    /// What a listener takes. `datagrams` is required with `ud`. Where none is RDMA's, the listener
    /// opens no device.
    Transports accepted = Transport::rc;
    DatagramService datagrams{};
    /// connect: which of the listeners that share the address shall take it, by its number. One
    /// that is not there is as any_listener: the one with the fewest peers.
    static constexpr std::uint32_t any_listener = ~std::uint32_t{0};
    std::uint32_t listener = any_listener;
    /// Who is let in, and how many.
    Admission admission{};
    /// connect: what else may be the matter when nobody listens, for the error ("…").
    std::string if_nobody_listens{};
};

enum class PeerState : std::uint8_t {
    alive,
    closed,  ///< it said goodbye
    lost,    ///< its socket ended without goodbye
};

/// A connected link. Move-only. The verbs objects are as thread-safe as verbs demands; the
/// out-of-band calls (exchange, peer, say_goodbye) belong to one thread at a time.
class Link {
  public:
    Link(Link&&) noexcept;
    Link& operator=(Link&&) noexcept;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    /// Closes. Without a goodbye before it, the peer reports the link as lost.
    ~Link();

    [[nodiscard]] Transport transport() const noexcept;
    /// Not of `tcp`, nor protection_domain().
    [[nodiscard]] Endpoint& endpoint() noexcept;
    /// The same, for who registers memory there and keeps it for longer than the link: with
    /// Admission::own_domains nobody else has it.
    [[nodiscard]] std::shared_ptr<Endpoint> shared_endpoint() const noexcept;
    [[nodiscard]] verbs::ProtectionDomain& protection_domain() noexcept;
    /// Of `rc` and `uc`.
    [[nodiscard]] verbs::QueuePair& queue_pair() noexcept;
    /// Of `ud`: a queue pair of this link, or the listener's LinkOptions::datagrams; how requests
    /// reach the peer, as long as the link lives; and the number that its datagrams come from.
    [[nodiscard]] verbs::DatagramQueuePair& datagrams() noexcept;
    [[nodiscard]] verbs::DatagramDestination destination() const noexcept;
    [[nodiscard]] std::uint32_t peer_queue_pair() const noexcept;
    /// Bytes that one packet carries, by `uc` and `ud` all of what one request may send at once
    /// without being the more easily lost.
    [[nodiscard]] std::size_t mtu() const noexcept;
    /// Of `tcp`, once everything is exchanged: from now on the caller reads and writes socket(),
    /// which does not block, and the link does no more than own it; peer() and what speaks to the
    /// peer are not to be called again. Returns what had come already.
    [[nodiscard]] std::vector<std::byte> take_over_socket();
    /// Completions of what we send, and of what we receive. Both raise events on `channel`,
    /// unless the latter are LinkOptions::receive_queue's. Not of `tcp`, nor of `ud` at the
    /// listener's end.
    [[nodiscard]] verbs::CompletionQueue& send_queue() noexcept;
    [[nodiscard]] verbs::CompletionQueue& receive_queue() noexcept;
    [[nodiscard]] bool has_own_receive_queue() const noexcept;
    [[nodiscard]] verbs::CompletionChannel& channel() noexcept;
    /// Memory of this link's protection domain, for the floors above: counted against the budget of
    /// the listener that accepted it, and given back when the link goes. Throws Error: refused, and
    /// the peer is told why; and as ProtectionDomain::allocate.
    [[nodiscard]] verbs::RegisteredBuffer allocate(std::size_t size, verbs::Access access);
    /// The same for what is small, by ProtectionDomain::allocate_packed.
    [[nodiscard]] verbs::RegisteredBuffer allocate_packed(std::size_t size, verbs::Access access);
    /// Counts what a later allocate() will take, so that the peer is refused while it still waits
    /// for this end's word. Throws Error as that.
    void reserve(std::size_t size);
    /// Tells the peer, which waits for this end's word, why there will be none, and ends the link:
    /// its exchange throws the same. Throws Error (refused).
    [[noreturn]] void refuse(const char* attempted, std::string cause, std::string remedy);
    /// True if one WRITE's bytes become visible in address order, at both ends.
    [[nodiscard]] bool writes_in_order() const noexcept;

    /// Sends `mine` and returns what the peer sends in its matching call. At most 60,000 bytes.
    /// Throws Error (timed_out, peer_lost, protocol; refused: it has no place left for this end).
    [[nodiscard]] std::vector<std::byte> exchange(std::span<const std::byte> mine,
                                                  const base::Deadline& deadline);

    /// The halves of an exchange, for who does not wait: sends `mine`; and what the peer has sent,
    /// once that is here. Neither blocks. Throw Error as exchange, but never timed_out.
    void say(std::span<const std::byte> mine);
    [[nodiscard]] std::optional<std::vector<std::byte>> heard();
    /// The second half, waiting for it. Throws Error as exchange.
    [[nodiscard]] std::vector<std::byte> hear(const base::Deadline& deadline);
    /// What the peer has said, as far as the last look (peer, peer_now, heard) found it: for words
    /// that may come at any time, or never. No system call. At most 4 may wait here.
    [[nodiscard]] std::optional<std::vector<std::byte>> overheard() noexcept;

    /// Makes a second queue pair between the same two ends, for requests that shall not wait behind
    /// those of the first; nothing orders the one against the other. It takes no receives. Both
    /// ends call it at the same point, as `exchange`, and at most once. Throws Error as that, or if
    /// the device cannot.
    void open_second_queue(std::uint32_t max_send_requests, const base::Deadline& deadline);
    /// The same for who does not wait: makes it and tells the peer; and goes on as far as the
    /// peer's words allow, true once both ends have it. Neither blocks. Until then this end has
    /// nothing else to say. Throw Error as open_second_queue, but never timed_out.
    void begin_second_queue(std::uint32_t max_send_requests);
    [[nodiscard]] bool try_open_second_queue();
    /// Both ends have it.
    [[nodiscard]] bool has_second_queue() const noexcept;
    /// Only once both ends have it. Its completions raise events on `channel`, too.
    [[nodiscard]] verbs::QueuePair& second_queue_pair() noexcept;
    [[nodiscard]] verbs::CompletionQueue& second_send_queue() noexcept;

    /// Ends the conversation in good order; `last_words` (at most 256 bytes) reach the peer.
    /// Never blocks, never throws; later calls do nothing.
    void say_goodbye(std::span<const std::byte> last_words = {}) noexcept;
    /// The peer's last words, once peer() is `closed`.
    [[nodiscard]] std::span<const std::byte> last_words() const noexcept;

    /// Looks at the socket when the last look is over 50 ms ago (a clock read otherwise), and takes
    /// in what has come over the soft device's wire. For the empty path of polling loops: a busy
    /// side need not call it. Never blocks.
    [[nodiscard]] PeerState peer() noexcept;
    /// Looks now (one system call).
    [[nodiscard]] PeerState peer_now() noexcept;
    /// What the last look said. No system call.
    [[nodiscard]] PeerState peer_so_far() const noexcept;
    /// Why the peer is lost, for messages; empty while peer_so_far() is not `lost`.
    [[nodiscard]] std::string why_lost() const;
    /// How many send requests the peer's queue pair takes. 0 for transport tcp.
    [[nodiscard]] std::uint32_t peer_send_requests() const noexcept;
    /// Readable when the peer said something or died: for poll and epoll.
    [[nodiscard]] int socket() const noexcept;
    /// What wakes who sleeps on the link: the channel's descriptor and the socket. Only where there
    /// is a channel.
    [[nodiscard]] std::array<int, 2> news() const noexcept;

    [[nodiscard]] const Address& local() const noexcept;
    /// Who the peer is, for messages: "127.0.0.1:41234 (pid 4711 on host)".
    [[nodiscard]] const std::string& peer_name() const noexcept;
    /// What was chosen and why: device, mode, path, GID, MTU, capabilities of both.
    [[nodiscard]] std::string explain() const;
    /// What carries it, in a line, for who reports of it: "soft0 (soft device, ...)", and whether
    /// it goes over the wire. Empty for transport tcp.
    [[nodiscard]] std::string carrier() const;

    struct State;  ///< private to connect/
    explicit Link(std::unique_ptr<State> state) noexcept;

  private:
    std::unique_ptr<State> state_;
};

/// Accepts links. Move-only; one thread at a time. A Unix path is unlinked when it goes, or the
/// last of those that share it (and taken over if nobody listens on it any more).
class Listener {
  public:
    /// Throws Error (invalid_argument, permission, system: the address is in use …).
    [[nodiscard]] static Listener listen(const Address& address, LinkOptions options = {});
    /// Listeners of several threads that share one address, 1 to 256, numbered from 0 on. Each
    /// accepts with `options` of its own, of which service, secret and transports must be the same,
    /// and the budget, that of the first, is one for all. Whichever looks first takes a newcomer,
    /// hears its hello, and hands it to the one that it asks for (LinkOptions::listener), or that
    /// has the fewest peers: until then nothing is made for it, so that everything of a link
    /// belongs to one thread from the beginning. Throws Error as listen.
    [[nodiscard]] static std::vector<Listener> listen_together(const Address& address,
                                                               std::vector<LinkOptions> options);
    Listener(Listener&&) noexcept;
    Listener& operator=(Listener&&) noexcept;
    ~Listener();

    /// Where it listens, with the port that was chosen.
    [[nodiscard]] const Address& address() const noexcept;
    /// The next peer whose handshake succeeds. Peers that fail theirs (garbage, another version,
    /// silence for 5 s, a close in the middle) are logged, told if possible, and do not end the
    /// wait. A peer that is in the middle of its handshake when the wait ends stays: the next call
    /// goes on with it, so slices may be as short as one likes. Throws Error (timed_out,
    /// cancelled).
    [[nodiscard]] Link accept(const base::Deadline& deadline);
    /// As accept, but the next peer that has also begun its first exchange, so that one's own
    /// exchange need not wait. Peers that keep silent for 5 s behind the handshake are passed over.
    [[nodiscard]] Link accept_speaking(const base::Deadline& deadline);
    /// As accept and accept_speaking, but never blocks: none, if there is no such peer yet.
    /// Handshakes go on within the calls, any number side by side; a peer that is silent, slow or
    /// hostile costs itself only. When a quarter of the descriptors that the process may have (at
    /// most 1,024) are taken by peers on their way in, those that have said nothing for 0.1 s
    /// leave for newcomers. Whoever comes when the process has no descriptor left at all is told
    /// so, and logged. Throws Error (resource_exhausted).
    [[nodiscard]] std::optional<Link> try_accept();
    [[nodiscard]] std::optional<Link> try_accept_speaking();
    /// For a program's own loop: readable means that try_accept has something to do, be it that a
    /// handshake can go on. Level-triggered. Lives as long as the listener.
    [[nodiscard]] int descriptor() const noexcept;
    /// As accept, but a failed handshake is thrown instead of passed over.
    [[nodiscard]] Link accept_one(const base::Deadline& deadline);
    /// What its clients have of LinkOptions::admission's budget.
    [[nodiscard]] Given given() const noexcept;

    struct State;

  private:
    explicit Listener(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

/// Connects. While nothing listens there yet it tries again until the deadline. Throws Error
/// (refused, timed_out, cancelled, version_mismatch, protocol, peer_lost).
[[nodiscard]] Link connect(const Address& address, LinkOptions options,
                           const base::Deadline& deadline);

/// Sleeps on a link: until a completion event, a word from the peer, or the limit. The floors
/// above derive from it where they have more to announce (a sleep flag at the peer).
class LinkParker : public base::StandingParker {
  public:
    explicit LinkParker(Link& link) noexcept : link_{&link} {}
    /// Arms the completion queues.
    void prepare() override;
    void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) final;
    Rest settle() override { return events_were_taken() ? Rest::look : Rest::sleep; }
    /// Until the device has to act for the link.
    [[nodiscard]] std::chrono::nanoseconds longest_sleep() const noexcept override {
        return link_->channel().next_alarm();
    }
    /// Looks after the peer.
    void woken(Rest from) override;
    /// Takes the events that came.
    void retract() override;

  protected:
    /// Patience of those whose condition changes by completions of this link's queues, by words
    /// and the end of the peer, and by nothing else: without limit, as long as the peer lives.
    [[nodiscard]] std::chrono::nanoseconds patience_for_events() const noexcept;
    /// True: since prepare() somebody has read events from the link's channel (a send window by
    /// events reads those of all its queues). What they told of raises none again, so settle()
    /// asks for another look.
    [[nodiscard]] bool events_were_taken() const noexcept {
        return link_->channel().drained() != drained_;
    }

  private:
    void sleep_for(std::chrono::nanoseconds limit, const base::Cancellation* cancellation);
    Link* link_;
    std::uint64_t drained_ = 0;    ///< when it was prepared
    bool is_peer_silent_ = false;  ///< it slept itself, and the peer's socket did not end that
};

}  // namespace millrace::connect
