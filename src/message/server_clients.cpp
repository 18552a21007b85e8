// How clients of a server come, come back, and go.
#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/ring/carrier.hpp"
#include "protection.hpp"
#include "server_state.hpp"
#include "setup.hpp"

namespace millrace::message {

using base::Status;

namespace {

/// Places for peers that are on their way in, beside those of clients.
constexpr std::uint32_t joining_places = 64;
/// How long a peer may stay without a hello.
constexpr std::chrono::seconds hello_patience{5};
/// How often it is looked who has been away, or silent, for too long; as often as a short patience
/// asks for.
constexpr std::chrono::milliseconds house_period{500};
constexpr std::chrono::milliseconds least_house_period{20};
constexpr std::uint32_t most_clients = 65'536;
/// Beside clients by ring, who are looked at by a few loads, a look at the hosts of others is a
/// system call.
constexpr std::chrono::microseconds look_at_hosts_every{5};
constexpr std::uint32_t most_shared_receives = 32'768;
constexpr std::uint32_t most_at_once = 64;
constexpr std::chrono::seconds longest_slice{1};
/// From so many clients on a server that was given no polling looks at bytes.
constexpr std::uint32_t dense_from_store = 128;
constexpr std::uint32_t dense_from_post = 512;

const std::greater<std::uint32_t> lowest_first{};

void check(const ServerOptions& options) {
    const auto refuse = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a message server",
                          std::move(what), std::move(why), std::move(remedy)};
    };
    if (options.max_clients == 0 || options.max_clients > most_clients) {
        refuse(fmt::format("a budget of {} clients", options.max_clients),
               fmt::format("it is from 1 to {}", most_clients),
               "use the default of 1024, or more servers");
    }
    if (options.max_window == 0 || options.max_window > largest_window) {
        refuse(fmt::format("a window of {} requests", options.max_window),
               fmt::format("it is from 1 to {}", largest_window), "use the default of 1024");
    }
    if (options.look_ahead > most_at_once || options.gather_turns == 0 ||
        options.gather_turns > most_at_once) {
        refuse(fmt::format("a look ahead at {} clients, answers gathered for {} turns",
                           options.look_ahead, options.gather_turns),
               fmt::format("the one is from 0 to {0}, the other from 1 to {0}", most_at_once),
               "use the defaults of 0 and 1");
    }
    if (options.group_clients != 0 &&
        (options.group_slice.count() <= 0 || options.group_slice > longest_slice)) {
        refuse(fmt::format("groups of {} clients, each for {} ns", options.group_clients,
                           options.group_slice.count()),
               "a group is served for at most a second, and more than nothing",
               "use the default of 2 ms");
    }
    check_slots("make a message server", options.slot_bytes);
    constexpr std::size_t least_shared = std::size_t{4} << 10;
    constexpr std::size_t most_shared = std::size_t{1} << 30;
    if (options.polling == Polling::shared &&
        (options.shared_bytes < least_shared || options.shared_bytes > most_shared ||
         !std::has_single_bit(options.shared_packets) || options.shared_packets > 64)) {
        refuse(fmt::format("a shared buffer of {} bytes, {} packets of each client",
                           options.shared_bytes, options.shared_packets),
               "it has from 4 KiB to 1 GiB, and they are a power of two from 1 to 64",
               "use the defaults of 4 MiB and 8");
    }
    if (options.polling == Polling::shared && options.receives == Receives::shared) {
        refuse("requests by a shared buffer and by shared receives",
               "clients by rc send them by the one or the other", "leave one of the two out");
    }
    if (options.acceptor.has_value() && options.receives == Receives::shared) {
        refuse("an acceptor, and receives that all clients share",
               "these receives are the serving thread's", "leave one of the two out");
    }
    const bool has_pool =
        options.receives == Receives::shared || options.transports.has(connect::Transport::ud);
    if (has_pool &&
        (options.shared_receives < 16 || options.shared_receives > most_shared_receives)) {
        refuse(fmt::format("{} receives for all clients", options.shared_receives),
               fmt::format("they are from 16 to {}", most_shared_receives),
               "use the default of 1024");
    }
    // Larger messages than rings are put together.
    if (options.max_request_bytes > largest_ring) {
        refuse(fmt::format("requests of up to {} bytes", options.max_request_bytes),
               fmt::format("they have at most {}", largest_ring), "send the rest in another one");
    }
}

ChannelOptions channel_options_of(const ServerOptions& options) {
    ChannelOptions chosen;
    chosen.ring_bytes = options.ring_bytes;
    chosen.max_peer_ring_bytes = options.max_client_ring_bytes;
    chosen.wait = options.wait;
    if (options.transports.has_rdma()) {
        chosen.endpoint =
            options.endpoint != nullptr ? options.endpoint : connect::Endpoint::shared();
    }
    chosen.carrier = options.carrier;
    chosen.posting = options.posting;
    chosen.admission = options.admission;
    return chosen;
}

}  // namespace

const Service server_service{"message server", 5};

Server::State::State(std::unique_ptr<SharedReceives> its_receives, LaneHosts its_hosts,
                     connect::Listener its_listener, ServerOptions chosen, Polling polling,
                     std::shared_ptr<Crowd> its_crowd, std::uint32_t its_number)
    : options{std::move(chosen)},
      channel_options{channel_options_of(options)},
      shared{std::move(its_receives)},
      hosts{std::move(its_hosts)},
      hub{connect::Hub::Options{.wait = base::WaitPolicy::blocking()}},
      listener{std::move(its_listener)},
      crowd{std::move(its_crowd)},
      number{its_number},
      has_own_domains{options.admission.own_domains},
      mailboxes{polling, options.max_clients + joining_places,
                channel_options.endpoint != nullptr && !has_own_domains
                    ? &channel_options.endpoint->protection_domain()
                    : nullptr},
      replies{std::make_shared<detail::ReplyQueue>(hub)},
      hosts_every{base::ticks_in(look_at_hosts_every)},
      slice_ticks{base::ticks_in(options.group_slice)},
      look_every{base::ticks_in(std::chrono::milliseconds{1})},
      spin_ticks{base::ticks_in(options.wait.spin)},
      statistics{"message server", figures()} {
    crowd->join(*this);
    if (!options.acceptor.has_value()) hub.add(listener.descriptor(), [this] { accept(); });
    if (shared != nullptr) {
        hub.add(shared->channel().descriptor(), [this] {
            (void)shared->channel().drain();
            look_for_sends();
        });
    }
    for (const auto& host : hosts.all) {
        hub.add(host->descriptor(), [this] { look_at_hosts(); });
    }
    hub.every(std::clamp<std::chrono::nanoseconds>(options.session_patience, least_house_period,
                                                   house_period),
              [this] { keep_house(); });
    if (options.acceptor.has_value()) {
        acceptor.emplace(
            listener.descriptor(), [this] { return try_accept(); }, hub,
            [this](Newcomer newcomer) { take(std::move(newcomer)); }, *options.acceptor);
    }
}

namespace {
/// What a server serves beside its clients, looked at as often as a host.
class BesideHost final : public LaneHost {
  public:
    BesideHost(int descriptor, std::function<bool()> look, bool& is_busy)
        : descriptor_{descriptor}, look_{std::move(look)}, is_busy_{&is_busy} {}
    std::unique_ptr<NetworkLane> meet(connect::Link) override {
        return nullptr;
    }  // no link is of it
    void look(std::vector<std::uint32_t>&) override { *is_busy_ |= look_(); }
    [[nodiscard]] int descriptor() const noexcept override { return descriptor_; }
    void rest() noexcept override {}
    [[nodiscard]] std::string explain() const override {
        return "something else is served beside the clients";
    }

  private:
    int descriptor_;
    std::function<bool()> look_;
    bool* is_busy_;
};
}  // namespace

void Server::State::serve_beside(int descriptor, std::function<bool()> look) {
    auto host = std::make_unique<BesideHost>(descriptor, std::move(look), beside_is_busy);
    have_room(hosts.all, hosts.all.size() + 1);
    hub.add(descriptor, [this] { look_at_hosts(); });
    hosts.all.push_back(std::move(host));
    ++by_network;
}

Server::State::~State() {
    acceptor.reset();
    crowd->part(number);
    hub.adopt();  // whichever thread served: nobody else uses it any more
    replies->end();
    for (const auto& peer : peers) {
        if (peer->phase == Phase::moved) {
            mailboxes.withdraw(peer->id.place);
            peer->held.reset();
        }
        if (!peer->line.has_value()) continue;
        unwatch(*peer);
        mailboxes.withdraw(peer->id.place);
        peer->line.reset();
    }
}

Server Server::listen(const connect::Address& address, ServerOptions options) {
    const auto anywhere = [](std::size_t) { return std::vector<int>{}; };
    return std::move(listen_together(address, options, 1, anywhere).front());
}

namespace {

/// What a server has before it listens.
struct Made {
    Made(const ServerOptions& options, const ChannelOptions& channel,
         const std::shared_ptr<HeldBytes>& held)
        : link{link_options(channel, {options.service, server_service.version})},
          hosts{options, link, held} {
        link.protocol = options.protocol;
        link.accepted = options.transports;
        if (options.receives == Receives::shared) {
            shared =
                std::make_unique<SharedReceives>(*channel.endpoint, options.shared_receives,
                                                 std::min(options.slot_bytes, options.ring_bytes));
            link.receive_queue = &shared->completions();
            link.shared_receives = &shared->queue();
        } else if (options.requests_by_send) {
            link.max_receive_requests = std::max(
                link.max_receive_requests, receives_for(options.ring_bytes, options.slot_bytes));
        }
    }
    connect::LinkOptions link;
    LaneHosts hosts;
    std::unique_ptr<SharedReceives> shared;
};

/// Calls it in a thread on one of `cores`; here, if there are none.
template <class Call>
void run_on(const std::vector<int>& cores, Call&& call) {
    if (cores.empty()) return call();
    std::exception_ptr thrown;
    std::thread{[&] {
        try {
            base::bind_this_thread(cores);
            call();
        } catch (...) {
            thrown = std::current_exception();
        }
    }}.join();
    if (thrown != nullptr) std::rethrow_exception(thrown);
}

struct Chosen {
    Polling polling;
    std::string why;
};
/// Of a server that shares its clients with `servers - 1` others.
[[nodiscard]] Chosen choose_polling(const ServerOptions& options, const ChannelOptions& channel,
                                    std::size_t servers) {
    if (options.polling == Polling::shared) {
        return {Polling::dense,
                "it was asked to: it scans offsets into a shared buffer, and sets the byte of each "
                "client of whom it finds one"};
    }
    if (options.polling != Polling::automatic) return {options.polling, "it was asked to"};
    if (options.receives == Receives::shared) {
        return {Polling::dense, "completions of the shared receive queue set a byte"};
    }
    if (!options.transports.has(connect::Transport::rc)) {
        return {Polling::dense,
                "no client writes into its memory: it sets the byte of each one that it is told "
                "of"};
    }
    const bool stores = ring::PeerMemory::may_store(channel.endpoint->context(), channel.carrier);
    const std::uint32_t from = stores ? dense_from_store : dense_from_post;
    const std::size_t clients = (options.max_clients + servers - 1) / servers;
    return {clients < from ? Polling::flag : Polling::dense,
            fmt::format("it may have {} clients, and bytes are measured to be cheaper from {} on",
                        clients, from)};
}

}  // namespace

std::vector<Server> Server::listen_together(
    const connect::Address& address, const ServerOptions& chosen, std::size_t count,
    const std::function<std::vector<int>(std::size_t)>& where) {
    ServerOptions options = chosen;
    check(options);
    check_transports(options);
    check_protection(options);
    if (options.protection == Protection::domains) options.admission.own_domains = true;
    const ChannelOptions channel = channel_options_of(options);
    message::check(channel);
    options.endpoint = channel.endpoint;
    // One request finds room at all events.
    constexpr std::size_t rest_of_gulp = std::size_t{128} << 10;
    const auto held = std::make_shared<HeldBytes>(
        std::max(options.max_held_bytes, options.max_request_bytes + rest_of_gulp));
    std::vector<Made> made;
    std::vector<connect::LinkOptions> links;
    for (std::size_t number = 0; number < count; ++number) {
        run_on(where(number), [&] { made.emplace_back(options, channel, held); });
        links.push_back(made.back().link);
    }
    std::vector<connect::Listener> listeners =
        connect::Listener::listen_together(address, std::move(links));
    const Chosen polling = choose_polling(options, channel, count);
    const auto crowd = std::make_shared<Crowd>(options.max_clients, held);
    std::vector<Server> servers;
    for (std::size_t number = 0; number < count; ++number) {
        std::unique_ptr<State> state;
        const std::vector<int> cores = where(number);
        ServerOptions own = options;
        // Not on the one core of the thread that it is to leave alone.
        if (own.acceptor.has_value() && own.acceptor->cores.empty() && cores.size() == 1) {
            own.acceptor->cores = base::available_cores();
        }
        run_on(cores, [&] {
            state = std::make_unique<State>(
                std::move(made[number].shared), std::move(made[number].hosts),
                std::move(listeners[number]), std::move(own), polling.polling, crowd,
                static_cast<std::uint32_t>(number));
        });
        state->why_polling = polling.why;
        servers.push_back(Server{std::move(state)});
    }
    return servers;
}

void Server::State::accept() {
    while (auto newcomer = try_accept()) take(std::move(*newcomer));
}

std::optional<Server::State::Newcomer> Server::State::try_accept() {
    try {
        return connect::try_accept_set_up(listener, [this](connect::Link link) -> Newcomer {
            if (has_no_rings(options, link.transport())) return Newcomer{std::move(link)};
            // The peer's word is here already, so nothing is waited for.
            auto ring = std::make_unique<RingLane>(
                set_up_accepted(std::move(link), channel_options, base::Deadline::now(),
                                {.receives_by_send = options.requests_by_send,
                                 .sends_by_send = options.answers_by_send,
                                 .slot_bytes = options.slot_bytes,
                                 .shared = shared.get()}),
                options.max_request_bytes + session_head_bytes, crowd->held());
            (void)ring->watch(options.wait.spin);
            return AnyLane{std::move(ring)};
        });
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "message", "{}", error.what());
        return std::nullopt;
    }
}

void Server::State::take(Newcomer newcomer) {
    try {
        if (auto* const link = std::get_if<connect::Link>(&newcomer)) {
            add(AnyLane{hosts.meet(std::move(*link))});
        } else {
            add(std::move(std::get<AnyLane>(newcomer)));
        }
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "message", "{}", error.what());
    }
}

void Server::State::make_place() {
    const std::size_t size = peers.size() + 1;
    for (auto* const list : {&free_places, &active, &clogged, &fetching, &gathering, &by_send}) {
        have_room(*list, size);
    }
    // Of a host of sockets, some of them several times.
    constexpr std::size_t most_told_at_once = 2048;
    if (!hosts.all.empty()) have_room(told, 2 * size + most_told_at_once);
    peers.push_back(std::make_unique<Peer>(static_cast<std::uint32_t>(size - 1), number));
}

Server::State::Peer* Server::State::vacant_place() {
    std::uint32_t place;
    if (!free_places.empty()) {
        std::pop_heap(free_places.begin(), free_places.end(), lowest_first);
        place = free_places.back();
        free_places.pop_back();
    } else if (peers.size() < std::size_t{options.max_clients} + joining_places) {
        place = static_cast<std::uint32_t>(peers.size());
        make_place();
    } else {
        return nullptr;
    }
    in_use = std::max<std::size_t>(in_use, place + 1);
    return peers[place].get();
}

Server::State::Peer* Server::State::add(AnyLane line) {
    Peer* const vacant = vacant_place();
    if (vacant == nullptr) {
        base::log(base::LogLevel::warn, "message", "dismissed {}: too many are joining",
                  line->link().peer_name());
        return nullptr;
    }
    Peer& peer = *vacant;
    peer.phase = Phase::joining;
    peer.since = base::Clock::now();
    peer.max_answer = 0;
    peer.begun = {};
    peer.owed_part = HeldPart{crowd->held()};
    peer.kept_part = HeldPart{crowd->held()};
    peer.line = std::move(line);
    try {
        if (peer.line.ring() != nullptr) joining.push_back(peer.id.place);
        watch(peer);
    } catch (...) {
        peer.line.reset();
        vacate(peer);
        throw;
    }
    return vacant;
}

void Server::State::look_for_hellos() noexcept {
    std::erase_if(joining, [&](std::uint32_t place) {
        const Peer& peer = *peers[place];
        if (peer.phase != Phase::joining || peer.line.ring() == nullptr) return true;
        mailboxes.looked(place, peer.line.ring()->awaited());
        return false;
    });
}

void Server::State::watch(Peer& peer) {
    RingLane* const ring = peer.line.ring();
    if (ring == nullptr) {
        ++by_network;
        peer.line->set_place(peer.id.place);
        return tell(peer);
    }
    peer.member = hub.add(ring->watch(options.wait.spin), [this, &peer] { became_readable(peer); });
    ++by_ring;
    ring->set_place(peer.id.place);
    if (ring->comes_by_send() && shared == nullptr && mailboxes.polling() == Polling::dense &&
        !peer.is_by_send) {
        peer.is_by_send = true;
        by_send.push_back(peer.id.place);
    }
    mailboxes.looked(peer.id.place, ring->awaited());
    mailboxes.remind(peer.id.place);
    activate(peer);
}

AnyLane Server::State::take_line(Peer& peer) {
    // What is gathered at its place is posted there, and nobody would look for it elsewhere.
    if (peer.is_gathering) peer.line.ring()->post_gathered();
    unwatch(peer);
    return std::move(peer.line);
}

void Server::State::unwatch(Peer& peer) noexcept {
    mailboxes.leave_out(peer.id.place);
    RingLane* const ring = peer.line.ring();
    if (ring == nullptr) {
        --by_network;
        return peer.line->set_place(Lane::no_place);
    }
    --by_ring;
    hub.remove(peer.member);
    ring->unwatch();
}

namespace {
[[nodiscard]] std::uint64_t longest_answer(const Server::State::Peer& peer, const Hello& hello) {
    if (peer.line.ring() != nullptr) return hello.max_answer;
    return std::min<std::uint64_t>(hello.max_answer,
                                   NetworkLane::largest_message - session_head_bytes);
}
}  // namespace

void Server::State::join(Peer& peer, const Hello& hello) {
    if (is_draining) return refuse(peer, "the server is about to stop");
    const auto known =
        hello.session.is_none() ? sessions.end() : sessions.find(hello.session.bits[0]);
    if (known != sessions.end() && peers[known->second]->session == hello.session &&
        peers[known->second]->resumes) {
        // Its former channel may be here still: it has ended, or its client is done with it.
        Peer& former = *peers[known->second];
        if (former.phase == Phase::moved) return send_on(peer, former, hello);
        if (former.line.has_value()) part(former, false);
        if (!grant(former, peer)) return;
        peer.line->pass();
        former.line = take_line(peer);
        vacate(peer);
        try {
            watch(former);
        } catch (...) {
            former.line.reset();
            throw;
        }
        former.phase = Phase::joined;
        --counts.away;
        former.since = base::Clock::now();
        former.max_answer = longest_answer(former, hello);
        former.moves = hello.moves;
        former.batches = hello.batches && former.line.ring() != nullptr;
        // Who asked for this server knows that it is here.
        if (!is_taking_over) settle(former);
        agree(former, hello);
        ++counts.resumed;
        welcome(former, true);
        return;
    }
    if (!grant(peer, peer)) return;
    // First what may throw.
    const std::uint32_t window = std::min(hello.window, options.max_window);
    const std::size_t room = std::bit_ceil(std::size_t{window});
    std::vector<std::uint64_t> deferred(room);
    std::vector<KeptAnswer> kept(hello.resumes ? room : 0);
    const SessionName session = SessionName::random();
    sessions.emplace(session.bits[0], peer.id.place);
    if (!crowd->enter()) {
        sessions.erase(session.bits[0]);
        return refuse(peer, fmt::format("the server has its {} clients already (max_clients)",
                                        options.max_clients));
    }
    peer.phase = Phase::joined;
    peer.since = base::Clock::now();
    peer.session = session;
    peer.resumes = hello.resumes;
    peer.moves = hello.moves;
    peer.batches = hello.batches && peer.line.ring() != nullptr;
    peer.balanced_at = hello.next_id - 1;
    peer.window = window;
    peer.mask = room - 1;
    peer.taken = hello.next_id - 1;
    peer.acknowledged = hello.next_id;
    peer.max_answer = longest_answer(peer, hello);
    peer.is_plain = !peer.resumes && peer.line.ring() != nullptr;
    agree(peer, hello);
    peer.deferred = std::move(deferred);
    peer.kept = std::move(kept);
    ++counts.clients;
    ++counts.joined;
    welcome(peer, false);
}

void Server::State::agree(Peer& peer, const Hello& hello) const noexcept {
    const bool is_limited = options.admission.budget.registered_bytes != connect::Budget::unlimited;
    if (hello.reads_large && options.large.allowed && !is_limited && peer.line.ring() != nullptr) {
        LargeMessages setting = options.large;
        setting.keeps_order = false;  // answers have none
        peer.line.ring()->agree(setting, RingLane::Excess::waits);
    }
}

bool Server::State::grant(Peer& peer, Peer& newcomer) {
    peer.box = {};
    // Completions stand in for the byte of requests by SEND.
    const RingLane* const ring = newcomer.line.ring();
    if (mailboxes.polling() != Polling::dense || ring == nullptr || ring->comes_by_send()) {
        return true;
    }
    try {
        peer.box = mailboxes.grant(peer.id.place, newcomer.line->link().protection_domain());
        return true;
    } catch (const base::Error& error) {
        refuse(newcomer, error.what());
        return false;
    }
}

void Server::State::welcome(Peer& peer, bool resumed) {
    Welcome word{.session = peer.session,
                 .resumed = resumed,
                 .client = peer.id.place,
                 .generation = peer.id.generation,
                 .window = peer.window,
                 .polling = peer.line.ring() == nullptr ? Polling::flag : mailboxes.polling(),
                 .mailbox = peer.box.address,
                 .mailbox_rkey = peer.box.rkey,
                 .server = number,
                 .max_request = options.max_request_bytes,
                 .reads_large = peer.line->has_agreed(),
                 .batches = peer.batches};
    (void)peer.line->send(pack(SessionHeader{.kind = SessionKind::welcome}), pack(word));
    sent(peer);
}

void Server::State::refuse(Peer& peer, std::string why) {
    ++counts.refused;
    base::log(base::LogLevel::info, "message", "refused {}: {}", peer.line->link().peer_name(),
              why);
    peer.phase = Phase::refused;
    (void)peer.line->send(pack(SessionHeader{.kind = SessionKind::refused}),
                          std::as_bytes(std::span{why}));
    sent(peer);
}

void Server::State::part(Peer& peer, bool for_good) noexcept {
    if (peer.line.has_value()) {
        peer.line->answer_goodbye();
        unwatch(peer);
        mailboxes.withdraw(peer.id.place);
        peer.line.reset();
    }
    peer.is_paused = false;
    peer.begun = {};
    peer.owed_part.set_anyhow(0);
    peer.is_plain = false;
    peer.batch_at = 0;
    peer.leaving_for.reset();
    if (!for_good && peer.phase == Phase::joined && peer.resumes) {
        peer.phase = Phase::away;
        ++counts.away;
        peer.since = base::Clock::now();
        return;
    }
    vacate(peer);
}

void Server::State::misbehaved(Peer& peer, std::string_view how) noexcept {
    ++counts.misbehaved;
    base::log(base::LogLevel::warn, "message", "dropped {}: {}", peer.line->link().peer_name(),
              how);
    part(peer, true);
}

void Server::State::lose(Peer& peer, const std::exception& error) noexcept {
    if (!peer.line.has_value()) return;
    base::log(base::LogLevel::warn, "message", "dropped {}: {}", peer.line->link().peer_name(),
              error.what());
    part(peer, false);
}

void Server::State::vacate(Peer& peer) noexcept {
    if (peer.phase == Phase::joined || peer.phase == Phase::away) {
        sessions.erase(peer.session.bits[0]);
        if (peer.phase == Phase::away) --counts.away;
        --counts.clients;
        crowd->leave();
        ++counts.left;
        settle(peer);
    } else if (peer.phase == Phase::moved) {
        sessions.erase(peer.session.bits[0]);
        mailboxes.withdraw(peer.id.place);
        peer.held.reset();
    }
    if (unwanted) {
        for (const std::uint64_t id : peer.deferred) {
            if (id != 0) unwanted(peer.id, id);
        }
        unwanted(peer.id, 0);
    }
    counts.pending -= peer.pending;
    peer.pending = 0;
    peer.phase = Phase::vacant;
    peer.session = {};
    peer.resumes = false;
    give_back(peer.deferred);
    give_back(peer.kept);
    give_back(peer.unread);
    peer.kept_bytes = 0;
    peer.kept_part.set_anyhow(0);
    peer.batch_at = 0;
    // Replies of the former client find nobody.
    ++peer.id.generation;
    free_places.push_back(peer.id.place);
    std::push_heap(free_places.begin(), free_places.end(), lowest_first);
    while (in_use != 0 && peers[in_use - 1]->phase == Phase::vacant) --in_use;
}

void Server::State::look_after_begun(Peer& peer, base::Clock::time_point now) {
    constexpr std::size_t least = std::size_t{64} << 10;
    const Begun begun = peer.line->begun();
    // What is not taken from a client cannot go on.
    if (begun.bytes == 0 || peer.begun.bytes == 0 || peer.is_paused ||
        begun.number != peer.begun.number || begun.bytes >= peer.begun.bytes + least) {
        peer.begun = begun;
        peer.begun_since = now;
    } else if (now - peer.begun_since > options.patience) {
        misbehaved(peer, "a request of which a part has come does not go on");
    }
}

void Server::State::keep_house() {
    const auto now = base::Clock::now();
    for (const auto& peer : peers) {
        const auto age = now - peer->since;
        if (peer->phase == Phase::joining && age > hello_patience) {
            misbehaved(*peer, fmt::format("it has not asked for a session within {} s",
                                          hello_patience.count()));
        } else if (peer->phase == Phase::refused && age > hello_patience) {
            part(*peer, true);
        } else if (peer->phase == Phase::away && age > options.session_patience) {
            vacate(*peer);
        }
        if (!peer->line.has_value()) continue;
        look_after_begun(*peer, now);
        if (peer->line.has_value() && peer->is_fetching) look_after_fetching(*peer, now);
        if (peer->line.has_value()) peer->line->tidy();
    }
    // Where there was no memory to look again sooner.
    if (!leaving.empty() && !is_waiting_for_leaving) look_at_leaving();
    show();
}

}  // namespace millrace::message
