// The handshake: what is said, checked and done, in order.
#include "handshake.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "identity.hpp"
#include "millrace/verbs/wire.hpp"
#include "sockets.hpp"

namespace millrace::connect {
namespace {

std::uint32_t random_number() noexcept {
    std::uint32_t value = 0;
    if (getrandom(&value, sizeof value, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof value)) {
        value = static_cast<std::uint32_t>(base::ticks());
    }
    return value;
}

int entries_for(std::uint32_t requests, int limit) noexcept {
    // A device may grant more slots than were asked for, up to the next power of two, and each
    // slot can complete: the completion queue must never overrun.
    const std::uint64_t entries = 2 * std::uint64_t{requests} + 1;
    return static_cast<int>(std::min<std::uint64_t>(entries, static_cast<std::uint64_t>(limit)));
}

}  // namespace

void validate(const LinkOptions& options) {
    std::string cause;
    if (options.service.empty() || options.service.size() > max_name ||
        printable(options.service, 4 * max_name) != options.service) {
        cause = fmt::format("a service name has 1 to {} printable bytes", max_name);
    } else if (options.protocol.name.size() > max_name ||
               printable(options.protocol.name, 4 * max_name) != options.protocol.name) {
        cause = fmt::format("a protocol's name has at most {} printable bytes", max_name);
    } else if (options.max_send_requests == 0) {
        cause = "a link needs at least one send request";
    } else if (options.accepted.empty()) {
        cause = "a listener takes at least one transport";
    }
    if (!cause.empty()) {
        throw base::Error(base::ErrorCode::invalid_argument, "prepare a link",
                          fmt::format("service '{}'", printable(options.service, 80)),
                          std::move(cause), "correct the options");
    }
}

Handshake::Handshake(Role role, Descriptor socket, const LinkOptions& options,
                     std::shared_ptr<Endpoint> endpoint, Address local, std::string peer_name,
                     std::shared_ptr<Ledger> ledger, const std::string& fabric)
    : role_{role}, options_{options}, state_{std::make_unique<Link::State>()} {
    state_->own.fabric = fabric;
    state_->place = Place{std::move(ledger)};
    state_->socket = std::move(socket);
    state_->endpoint = std::move(endpoint);
    state_->local = std::move(local);
    state_->peer_name = std::move(peer_name);
    state_->look_interval = base::ticks_in(std::chrono::milliseconds{50});
    look_for_wire();
    if (role_ == Role::connecting) {
        state_->transport = options_.transport;
        create_queue_pair();
        const std::vector<std::byte> hello = encode(state_->own);
        say(hello);
        if (has_secret()) connecting_hello_.assign(hello.begin() + header_bytes, hello.end());
    }
}

short Handshake::events() const noexcept {
    const bool writes = stage_ == Stage::made || (!unsent_.empty() && peer_hears_);
    return static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN);
}

void Handshake::create_queues() {
    Link::State& link = *state_;
    verbs::Context& context = link.endpoint->context();
    const int most = context.attributes().max_cqe;
    link.channel = context.create_completion_channel();
    link.channel.tell_events_only();  // the socket tells of the peer, LinkParker of the time
    link.send_queue = context.create_completion_queue(entries_for(options_.max_send_requests, most),
                                                      &link.channel);
    link.given_receive_queue = options_.receive_queue;
    if (link.transport == Transport::uc && options_.uc_receive_queue != nullptr) {
        link.given_receive_queue = options_.uc_receive_queue;
    }
    if (link.given_receive_queue == nullptr) {
        link.receive_queue = context.create_completion_queue(
            entries_for(options_.max_receive_requests, most), &link.channel);
    }
}

void Handshake::create_queue_pair() {
    Link::State& link = *state_;
    Hello& own = link.own;
    own.transport = link.transport;
    own.service = options_.service;
    own.service_version = options_.service_version;
    own.protocol = options_.protocol;
    own.process = static_cast<std::uint32_t>(getpid());
    own.host = printable(host_name(), max_name);
    own.has_secret = has_secret();
    own.listener = options_.listener;
    // The accepting side's is the challenge.
    if (own.has_secret && role_ == Role::connecting) own.nonce = random_nonce();
    if (link.transport == Transport::tcp) return;
    if (link.transport == Transport::ud) {
        create_datagrams();
        return describe_device();
    }
    create_queues();
    const bool reliable = link.transport == Transport::rc;
    verbs::QueuePairOptions wanted{
        .type = reliable ? IBV_QPT_RC : IBV_QPT_UC,
        .send_queue = &link.send_queue,
        .receive_queue =
            link.given_receive_queue != nullptr ? link.given_receive_queue : &link.receive_queue,
        .max_send_requests = options_.max_send_requests,
        .max_receive_requests = options_.max_receive_requests,
        .max_send_slices = options_.max_send_slices,
        .max_inline = options_.max_inline,
    };
    // Only RC and UD take receives from a shared queue.
    if (reliable) wanted.shared_receives = options_.shared_receives;
    link.queue_pair = link.endpoint->protection_domain().create_queue_pair(wanted);
    // Who may lose requests answers no READ.
    const verbs::Access remote =
        reliable ? options_.remote : options_.remote & verbs::Access::remote_write;
    link.queue_pair.initialise(link.endpoint->port(), remote);
    own.queue_pair.number = link.queue_pair.number();
    own.max_send_requests = link.queue_pair.capacity().max_send_wr;
    own.max_receive_requests = link.queue_pair.capacity().max_recv_wr;
    own.max_inline = link.queue_pair.capacity().max_inline_data;
    describe_device();
}

void Handshake::create_datagrams() {
    Link::State& link = *state_;
    Hello& own = link.own;
    if (role_ == Role::accepting) {
        link.given_datagrams = options_.datagrams.queue_pair;
        own.datagram_key = options_.datagrams.key;
    } else {
        create_queues();
        // Keys with the highest bit are privileged: a request may not name one.
        own.datagram_key = random_number() & 0x7fffffff;
        link.own_datagrams = link.endpoint->protection_domain().create_datagram_queue_pair({
            .send_queue = &link.send_queue,
            .receive_queue = link.given_receive_queue != nullptr ? link.given_receive_queue
                                                                 : &link.receive_queue,
            .max_send_requests = options_.max_send_requests,
            .max_receive_requests = options_.max_receive_requests,
            .max_send_slices = options_.max_send_slices,
            .max_inline = options_.max_inline,
        });
        link.own_datagrams.start(link.endpoint->port(), own.datagram_key);
    }
    const verbs::DatagramQueuePair& pair =
        link.given_datagrams != nullptr ? *link.given_datagrams : link.own_datagrams;
    own.queue_pair.number = pair.number();
    own.max_send_requests = pair.capacity().max_send_wr;
    own.max_receive_requests = pair.capacity().max_recv_wr;
    own.max_inline = pair.capacity().max_inline_data;
}

void Handshake::describe_device() {
    const Link::State& link = *state_;
    verbs::Context& context = link.endpoint->context();
    const int gid_index = link.endpoint->gid_index();
    const ibv_device_attr device = context.attributes();
    const ibv_port_attr port_facts = context.port(link.endpoint->port());
    Hello& own = state_->own;
    own.capabilities = capability_write_with_immediate;
    if (device.atomic_cap != IBV_ATOMIC_NONE) own.capabilities |= capability_atomics;
    if ((device.device_cap_flags & (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0) {
        own.capabilities |= capability_memory_windows;
    }
    own.queue_pair.packet_sequence = random_number() & 0xffffff;
    own.queue_pair.lid = port_facts.lid;
    if (gid_index >= 0) {
        own.queue_pair.has_gid = true;
        own.queue_pair.gid = context.gid(link.endpoint->port(), gid_index);
    }
    if (link.wire) {
        if (verbs::may_leave_out_icrc()) own.capabilities |= capability_no_icrc;
        own.wire_port = link.wire->port;
        own.wire_gid = link.wire->gid;
    }
    own.mtu = port_facts.active_mtu;
    own.ethernet = port_facts.link_layer == IBV_LINK_LAYER_ETHERNET;
    own.soft = context.is_soft();
    own.max_reads = static_cast<std::uint8_t>(
        std::clamp(std::min(device.max_qp_rd_atom, device.max_qp_init_rd_atom), 1, 16));
    own.device = std::string{context.name()};
    if (own.soft && own.fabric.empty()) own.fabric = printable(soft_fabric(), 512);
}

// Neither end goes on without the secret because the other has none.
void Handshake::check_secrets() const {
    if (state_->other.has_secret == has_secret()) return;
    constexpr const char* remedy = "give both ends the same secret, or neither one";
    if (has_secret()) {
        throw Failure{base::ErrorCode::refused,
                      "this end admits only who knows its secret, and the peer has none", remedy,
                      "it admits only who knows its secret, and this end has none"};
    }
    throw Failure{base::ErrorCode::refused,
                  "the peer admits only who knows its secret, and this end has none", remedy,
                  "it has no secret, and this end admits only who knows its own"};
}

// What must agree before a queue pair is worth connecting. On the accepting side it runs before
// one exists, so it looks at the options and the endpoint rather than at our own Hello.
void Handshake::check_peer() {
    const Hello& other = state_->other;
    if (other.service != options_.service) {
        throw Failure{base::ErrorCode::refused,
                      fmt::format("the peer offers the service '{}', this end '{}'", other.service,
                                  options_.service),
                      "check the address, and that both ends run the same kind of program",
                      fmt::format("it offers the service '{}', this end '{}'", options_.service,
                                  other.service)};
    }
    if (other.service_version != options_.service_version) {
        throw Failure{
            base::ErrorCode::version_mismatch,
            fmt::format("the peer has version {} of the service '{}', this end {}",
                        other.service_version, options_.service, options_.service_version),
            "run the same release at both ends",
            fmt::format("it has version {} of the service '{}', this end {}",
                        options_.service_version, options_.service, other.service_version)};
    }
    check_protocol();
    check_transport();
    if (state_->transport != Transport::tcp) choose_route();
}

void Handshake::check_protocol() const {
    const Protocol& ours = options_.protocol;
    const Protocol& theirs = state_->other.protocol;
    if (ours.name.empty() || theirs.name.empty()) return;
    if (theirs.name != ours.name) {
        throw Failure{
            base::ErrorCode::refused,
            fmt::format("the peer speaks the protocol '{}', this end '{}'", theirs.name, ours.name),
            "check the address: another program answers there",
            fmt::format("it speaks the protocol '{}', this end '{}'", ours.name, theirs.name)};
    }
    if (theirs.version != ours.version) {
        throw Failure{base::ErrorCode::version_mismatch,
                      fmt::format("the peer has version {} of the protocol '{}', this end {}",
                                  theirs.version, ours.name, ours.version),
                      "run programs of the same version at both ends",
                      fmt::format("it has version {} of the protocol '{}', this end {}",
                                  ours.version, ours.name, theirs.version)};
    }
}

// The accepting side goes by what the connecting one has chosen, or refuses.
void Handshake::check_transport() const {
    const Transport chosen = state_->transport;
    if (role_ == Role::accepting && !options_.accepted.has(chosen)) {
        const std::string taken = options_.accepted.to_string();
        const auto remedy = "ask for one that is taken there, or let the listening end take it";
        throw Failure{
            base::ErrorCode::refused,
            fmt::format("the peer asks for transport {}, this end takes {}", name_of(chosen),
                        taken),
            remedy,
            fmt::format("this end asks for transport {}, it takes {}", name_of(chosen), taken)};
    }
    if (state_->other.transport != chosen) {
        throw Failure{base::ErrorCode::protocol,
                      fmt::format("the peer answers by transport {}, this end asked for {}",
                                  name_of(state_->other.transport), name_of(chosen)),
                      "the peer is broken"};
    }
}

void Handshake::connect_queue_pair() {
    Link::State& link = *state_;
    if (link.transport == Transport::tcp) return;
    link.path.port = link.endpoint->port();
    link.path.gid_index =
        link.route == Route::wire && link.wire ? link.wire->gid_index : link.endpoint->gid_index();
    link.path.mtu = std::min(link.own.mtu, link.other.mtu);
    link.path.max_reads =
        std::min(link.own.max_reads, std::max<std::uint8_t>(link.other.max_reads, 1));
    link.path.rnr_retry = options_.rnr_retry;
    if (link.path.gid_index >= 0 && !link.other.queue_pair.has_gid) {
        throw Failure{base::ErrorCode::refused,
                      "this end addresses by GID and the peer has none to offer",
                      "choose a GID index at both ends, or at neither",
                      "it addresses by GID and this end has none to offer"};
    }
    if (link.transport == Transport::ud) {
        link.way = link.endpoint->protection_domain().create_address_handle(link.other.queue_pair,
                                                                            link.path);
        return;
    }
    link.queue_pair.connect(link.other.queue_pair, link.own.queue_pair.packet_sequence, link.path);
    if (link.leaves_out_icrc) verbs::leave_out_icrc(link.queue_pair);
    link.own_writes_in_order = link.queue_pair.writes_in_order();
}

void Handshake::say(const std::vector<std::byte>& frame) {
    unsent_.insert(unsent_.end(), frame.begin(), frame.end());
}

void Handshake::say_ready() {
    Ready ready{.writes_in_order = state_->own_writes_in_order};
    if (has_secret()) ready.proof = proof_of(role_, ready.writes_in_order);
    say(encode(ready));
}

Digest Handshake::answer() const {
    return prove(options_.admission.secret, answer_label, {connecting_hello_, *challenge_});
}

Digest Handshake::proof_of(Role prover, bool writes_in_order) const {
    const std::byte order{writes_in_order ? std::uint8_t{1} : std::uint8_t{0}};
    return prove(options_.admission.secret,
                 prover == Role::connecting ? connecting_label : accepting_label,
                 {connecting_hello_, *challenge_, accepting_hello_, {&order, 1}});
}

void Handshake::refuse_proof() const {
    throw Failure{base::ErrorCode::refused, "the peer does not know this end's secret",
                  "give both ends the same secret", "this end does not know its secret"};
}

void Handshake::hear_hello(const Frame& frame) {
    Link::State& link = *state_;
    link.other = decode_hello(frame.body);
    link.peer_name =
        fmt::format("{} (pid {} on {})", link.peer_name, link.other.process, link.other.host);
    check_secrets();
    if (role_ == Role::accepting) {
        if (has_secret()) connecting_hello_ = frame.body;
        if (!halts_) return answer_hello();
        stage_ = Stage::halted;
        return;
    }
    stage_ = Stage::ready;
    if (!has_secret()) {
        check_peer();
        connect_queue_pair();
        return confirm();
    }
    if (!challenge_.has_value()) {
        throw Failure{base::ErrorCode::protocol,
                      "the peer says that it has a secret, and does not ask for this end's",
                      "the peer is broken"};
    }
    // What it says is believed when its proof has come.
    accepting_hello_ = frame.body;
}

void Handshake::answer_hello() {
    if (!has_secret()) return admit();
    challenge_ = random_nonce();
    say(encode(Challenge{*challenge_}));
    stage_ = Stage::proof;
}

void Handshake::go_on_for(const LinkOptions& options, std::shared_ptr<Endpoint> endpoint) {
    options_ = options;
    state_->endpoint = std::move(endpoint);
    look_for_wire();
    halts_ = false;
}

void Handshake::admit() {
    Link::State& link = *state_;
    link.transport = link.other.transport;
    check_peer();
    const bool has_queue_pair = link.transport == Transport::rc || link.transport == Transport::uc;
    link.place.take({.clients = 1, .queue_pairs = has_queue_pair ? 1U : 0U});
    // Datagrams reach no memory but the listener's receives, and sockets none at all.
    if (options_.admission.own_domains && has_queue_pair)
        link.endpoint = link.endpoint->with_own_domain();
    create_queue_pair();
    if (has_queue_pair) {
        stage_ = Stage::made;
    } else {
        introduce();
    }
}

void Handshake::introduce() {
    const std::vector<std::byte> hello = encode(state_->own);
    say(hello);
    if (has_secret()) accepting_hello_.assign(hello.begin() + header_bytes, hello.end());
    connect_queue_pair();
    say_ready();
    stage_ = Stage::ready;
}

void Handshake::hear_ready(const Ready& ready) {
    if (has_secret()) {
        const Role prover = role_ == Role::connecting ? Role::accepting : Role::connecting;
        if (!ready.proof.has_value() ||
            !equal(*ready.proof, proof_of(prover, ready.writes_in_order))) {
            refuse_proof();
        }
        if (role_ == Role::connecting) {
            check_peer();
            connect_queue_pair();
            confirm();
        }
    }
    state_->other_writes_in_order = ready.writes_in_order;
    stage_ = Stage::done;
    // They were equal, and an idle link keeps none.
    std::string{}.swap(state_->own.fabric);
    std::string{}.swap(state_->other.fabric);
}

void Handshake::handle(const Frame& frame) {
    if (frame.type == FrameType::refused) {
        peer_refused_ = true;
        const Refused refused = decode_refused(frame.body);
        throw Failure{refused.code, fmt::format("the peer refused: {}", refused.reason),
                      refused.remedy};
    }
    if (stage_ == Stage::hello && frame.type == FrameType::hello) return hear_hello(frame);
    if (stage_ == Stage::hello && frame.type == FrameType::challenge && role_ == Role::connecting &&
        has_secret() && !challenge_.has_value()) {
        challenge_ = decode_challenge(frame.body).nonce;
        return say(encode(Proof{answer()}));
    }
    if (stage_ == Stage::proof && frame.type == FrameType::proof) {
        if (!equal(decode_proof(frame.body).digest, answer())) refuse_proof();
        return admit();
    }
    if (stage_ == Stage::ready && frame.type == FrameType::ready) {
        return hear_ready(decode_ready(frame.body));
    }
    throw Failure{base::ErrorCode::protocol,
                  fmt::format("the peer sent a message of type {} out of turn",
                              static_cast<unsigned>(frame.type)),
                  "the peer is broken"};
}

void Handshake::flush() noexcept {
    while (!unsent_.empty() && peer_hears_) {
        const ssize_t sent =
            send(socket(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        // It does not hear us any more, but what it said before may tell why.
        if (sent < 0) peer_hears_ = false;
        if (sent > 0) unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
    }
}

bool Handshake::step() {
    Link::State& link = *state_;
    try {
        flush();
        bool ended = false;
        if (probes_) look_at_probe();
        if (stage_ == Stage::made) introduce();
        if (stage_ == Stage::halted && !halts_) answer_hello();
        while (listens()) {
            if (std::optional<Frame> frame = link.inbox.next(max_handshake_body)) {
                handle(*frame);
                continue;
            }
            if (ended) {
                const std::string how = link.inbox.error() != 0
                                            ? base::describe_errno(link.inbox.error())
                                            : std::string{"end of file"};
                throw Failure{base::ErrorCode::peer_lost,
                              fmt::format("the peer closed the connection in the middle of the "
                                          "handshake, after {} bytes ({})",
                                          link.inbox.received(), how),
                              "see what the peer reports; is it a Millrace program?"};
            }
            const auto received = link.inbox.receive(socket());
            if (received == FrameBuffer::Received::nothing) break;
            ended = received == FrameBuffer::Received::ended;
        }
        flush();
        return stage_ == Stage::done && !probes_ && (unsent_.empty() || !peer_hears_);
    } catch (const Failure& failure) {
        if (!peer_refused_) refuse(as_told(failure));
        throw error(failure);
    } catch (const base::Error& failure) {
        refuse({failure.code(), fmt::format("it {}", failure.what())});
        throw;
    }
}

Refused Handshake::as_told(const Failure& failure) {
    constexpr std::string_view peer = "the peer";
    Refused refused{failure.code, failure.told};
    if (refused.reason.empty()) {
        refused.reason = failure.cause.starts_with(peer)
                             ? fmt::format("this end{}", failure.cause.substr(peer.size()))
                             : failure.cause;
    }
    // What to do about a silent or broken peer is of no use to itself.
    if (failure.code == base::ErrorCode::refused ||
        failure.code == base::ErrorCode::version_mismatch) {
        refused.remedy = failure.remedy;
    }
    return refused;
}

void Handshake::refuse(const Refused& refused) noexcept {
    try {
        say(encode(refused));
    } catch (const std::bad_alloc&) {
        return;
    }
    flush();
    shutdown(socket(), SHUT_WR);
    drain(socket());
}

base::Error Handshake::error(const Failure& failure) const {
    return base::Error{failure.code, role_ == Role::connecting ? "connect" : "accept a peer",
                       fmt::format("{}, service '{}'", state_->peer_name, options_.service),
                       failure.cause, failure.remedy};
}

bool Handshake::is_silent() const noexcept {
    if (state_->inbox.received() != 0) return false;
    std::byte word{};
    return recv(state_->socket.get(), &word, sizeof word, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

bool Handshake::speaks() noexcept {
    state_->look();
    return !state_->exchanges.empty();
}

base::Error Handshake::give_up(base::ErrorCode code, const std::string& how_long) {
    Failure failure{code, {}, "is it stopped, busy, or something other than a Millrace program?"};
    if (stage_ == Stage::done && !lives()) {
        failure = {base::ErrorCode::peer_lost,
                   fmt::format("the peer connected and left before it said what it wants ({})",
                               state_->peer == PeerState::closed ? "it said goodbye"
                                                                 : state_->lost_because),
                   "see what the peer reports"};
        return error(failure);
    }
    if (stage_ == Stage::done) {
        failure.cause =
            fmt::format("the peer connected and did not say what it wants {}", how_long);
        return error(failure);
    }
    if (role_ == Role::connecting) {
        failure.remedy =
            "does anybody accept there (a child made by fork cannot), is it stopped or busy, or is "
            "it something other than a Millrace program?";
    }
    if (stage_ == Stage::halted) {
        failure.cause =
            fmt::format("the peer said hello, and its listener did not take it {}", how_long);
    } else if (stage_ == Stage::proof) {
        failure.cause = fmt::format(
            "the peer said hello but did not prove that it knows the secret {}", how_long);
    } else if (stage_ == Stage::made || stage_ == Stage::ready) {
        failure.cause = fmt::format("the peer said hello but was not ready {}", how_long);
    } else if (state_->inbox.received() == 0) {
        failure.cause = fmt::format("the peer took the connection and said nothing {}", how_long);
    } else {
        failure.cause = fmt::format("the peer sent only {} bytes of its hello {}",
                                    state_->inbox.received(), how_long);
    }
    refuse(as_told(failure));
    return error(failure);
}

}  // namespace millrace::connect
