// How a socket comes to be: memory, the exchange of its addresses, agreeing on a mode, listening
// and connecting.
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/end/far_fence.hpp"
#include "sizing.hpp"
#include "socket_core.hpp"

namespace millrace::stream {

namespace {

constexpr std::uint64_t smallest_ring = 64;
constexpr std::uint64_t largest_socket_ring = std::uint64_t{1} << 30;

[[nodiscard]] bool valid_ring(std::uint64_t bytes) noexcept {
    return std::has_single_bit(bytes) && bytes >= smallest_ring && bytes <= largest_socket_ring;
}

[[nodiscard]] std::uint64_t ring_bytes_of(const SocketOptions& options) noexcept {
    return options.mode == Mode::direct ? 0 : options.ring_bytes;
}
[[nodiscard]] std::uint32_t message_slots_of(const SocketOptions& options) noexcept {
    return message_slots(ring_bytes_of(options));
}

/// What this end alone decides, with a peer that has chosen the same.
Terms terms_of(const SocketOptions& options) noexcept {
    Terms terms;
    terms.incoming = {options.mode, options.ring_bytes, options.adverts,
                      options.type == Type::seqpacket ? message_mark_bytes : 0};
    terms.outgoing = terms.incoming;
    terms.own_slots = terms.peer_slots = message_slots_of(options);
    // And as many copies that are under way, and completed for the program (report_sends).
    terms.sends = std::uint32_t{2} * options.sends;
    // And that of read_some.
    terms.receives = options.receives + 1;
    terms.ring_piece_bytes = Socket::Core::ring_piece_bytes;
    terms.coalesced_bytes = options.tuning.coalesced_bytes;
    terms.awaited_bytes = options.tuning.least_awaited;
    terms.offered_bytes = options.tuning.least_offered;
    if (options.tuning.protocol == Protocol::published) {
        terms.awaited_bytes = terms.offered_bytes = 0;
        terms.advertises_again = false;
    }
    return terms;
}

void check(const SocketOptions& options) {
    if (options.mode != Mode::direct && options.ring_bytes != 0 &&
        !valid_ring(options.ring_bytes)) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a byte stream",
                          fmt::format("a ring of {} bytes", options.ring_bytes),
                          fmt::format("a ring's size is a power of two from {} to {}",
                                      smallest_ring, largest_socket_ring),
                          "leave it out, so that one is chosen, or use the next power of two"};
    }
    constexpr std::uint32_t most = most_operations / 2;
    if (options.sends == 0 || options.sends > most || options.receives == 0 ||
        options.receives > most) {
        throw base::Error{
            base::ErrorCode::invalid_argument, "make a byte stream",
            fmt::format("{} sends and {} receives at a time", options.sends, options.receives),
            fmt::format("either number is 1 to {}", most), "choose values in that range"};
    }
    if (options.admission.own_domains) {
        throw base::Error{
            base::ErrorCode::invalid_argument, "make a byte stream",
            "protection domains of its clients' own",
            "a stream::Buffer belongs to the endpoint's domain, and could not be lent",
            "leave own_domains out, and ask for a secret"};
    }
    // What is chosen later is in range.
    SocketOptions like = options;
    if (like.ring_bytes == 0) like.ring_bytes = least_chosen_ring;
    if (like.adverts == 0) like.adverts = fewest_chosen_adverts;
    check(terms_of(like));
}

/// The way to the peer, of which the devices took so long.
Way way_to(connect::Link& link, std::chrono::microseconds round_trip) {
    connect::Endpoint& endpoint = link.endpoint();
    return {bits_per_second(endpoint.context().port(endpoint.port())), round_trip};
}

/// Is anything to be chosen by the way?
[[nodiscard]] bool wants_way(const SocketOptions& options) noexcept {
    return (options.ring_bytes == 0 && options.mode != Mode::direct) || options.adverts == 0;
}

/// For this connection: what the program has left open is chosen by the way.
SocketOptions sized(SocketOptions options, const Way& way) {
    if (options.ring_bytes == 0) options.ring_bytes = chosen_ring(way);
    if (options.adverts == 0)
        options.adverts = chosen_adverts(way, options.tuning.least_advertised);
    return options;
}

/// What is chosen where nothing was said. Throws Error: it does not go together.
SocketOptions completed(SocketOptions options) {
    check(options);
    if (options.tuning.protocol == Protocol::published) options.tuning.least_advertised = 0;
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    if (options.registrations != nullptr &&
        &options.registrations->endpoint() != options.endpoint.get()) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a byte stream",
                          "a cache of registrations",
                          "its registrations are of another endpoint, and no key of this one's",
                          "make the cache for the sockets' endpoint"};
    }
    return options;
}

/// What two modes come to; none, if they exclude each other.
std::optional<Mode> agreed(Mode mine, Mode theirs) noexcept {
    if (mine == theirs || theirs == Mode::dynamic) return mine;
    if (mine == Mode::dynamic) return theirs;
    return std::nullopt;
}

connect::LinkOptions link_options(const SocketOptions& options) {
    return {.service = "byte stream",
            .service_version = 4,
            .endpoint = options.endpoint,
            .max_send_requests = 256,
            .max_receive_requests = end::Sleeper::receives,
            .max_send_slices = most_pieces,
            .max_inline = 128,
            .admission = options.admission};
}

constexpr const char* attempt = "set up a byte stream";

/// How long a Connector that does not wait looks for a WRITE's end at a time.
constexpr std::chrono::microseconds longest_look{50};

[[nodiscard]] bool possible(const Facts& facts) noexcept {
    return facts.mode <= static_cast<std::uint32_t>(Mode::indirect) &&
           facts.type <= static_cast<std::uint32_t>(Type::seqpacket) &&
           (facts.mode == static_cast<std::uint32_t>(Mode::direct) ||
            valid_ring(facts.ring_bytes)) &&
           std::has_single_bit(facts.slots) && facts.slots >= fewest_slots &&
           facts.slots <= most_slots && facts.adverts >= 1 && facts.adverts <= most_adverts &&
           facts.memory_address % alignof(Slot) == 0;
}

Socket set_up(connect::Link link, const SocketOptions& options, const base::Deadline& deadline) {
    // Who connects knows the way, if anybody does.
    const auto told = link.hear(deadline);
    const auto theirs = connect::facts_in<Facts>(told, attempt, link.peer_name());
    const Way way = way_to(link, std::chrono::microseconds{theirs.round_trip_us});
    auto core = std::make_unique<Socket::Core>(std::move(link), options, way);
    core->end.link().say(connect::bytes_of(core->facts()));
    core->meet(theirs);
    return Socket{std::move(core)};
}

/// What the peer writes: ring, slots, ControlPage. Where that is little, other ends have a part of
/// its last page.
[[nodiscard]] verbs::RegisteredBuffer allocate(connect::Link& link, const SocketOptions& options) {
    constexpr std::size_t little = std::size_t{32} << 10;
    constexpr auto access = verbs::Access::remote_write | verbs::Access::remote_read;
    const std::size_t size =
        ring_bytes_of(options) + message_slots_of(options) * sizeof(Slot) + sizeof(ControlPage);
    return size < little ? link.allocate_packed(size, access) : link.allocate(size, access);
}

/// As Core::show sets them.
constexpr base::Figure figures_of_streams[] = {{"direct bytes sent"},
                                               {"direct transfers"},
                                               {"indirect bytes sent"},
                                               {"indirect transfers"},
                                               {"percent sent directly", base::FigureKind::gauge},
                                               {"direct bytes received"},
                                               {"direct transfers received"},
                                               {"indirect bytes received"},
                                               {"indirect transfers received"},
                                               {"copies"},
                                               {"lent bytes"},
                                               {"adverts sent"},
                                               {"adverts used"},
                                               {"adverts stale"},
                                               {"adverts withdrawn"},
                                               {"adverts forgone"},
                                               {"phase changes"},
                                               {"messages sent"},
                                               {"messages received"},
                                               {"credits"},
                                               {"requests"},
                                               {"stalls for adverts"},
                                               {"stalls for room"},
                                               {"stalls for credit"},
                                               {"stalls for requests"},
                                               {"staged"},
                                               {"registrations"},
                                               {"registrations kept"},
                                               {"bytes taken"},
                                               {"sleeps"},
                                               {"events sent"},
                                               {"events received"}};
static_assert(std::size(figures_of_streams) == Socket::Core::own_figures);

}  // namespace

Socket::Core::Core(connect::Link connected, const SocketOptions& asked, const Way& path)
    : options{sized(asked, path)},
      is_sized{wants_way(asked)},
      way{path},
      memory{allocate(connected, options)},
      end{std::move(connected)},
      in_flight{end.window().slots()},
      completions{std::size_t{options.sends} + options.receives},
      statistics{"byte stream", figures_of_streams} {
    std::byte* const behind_ring = memory.data() + ring_bytes_of(options);
    auto* const first_slot = reinterpret_cast<Slot*>(behind_ring);
    const std::uint32_t slot_count = message_slots_of(options);
    for (std::uint32_t i = 0; i < slot_count; ++i) new (first_slot + i) Slot{};
    slots = IncomingSlots{first_slot, slot_count};
    own_page = new (behind_ring + slot_count * sizeof(Slot)) ControlPage{};
    sleeper.emplace(*this);
    end.sleep_by(*sleeper);
    in_order = end.link().writes_in_order();
    max_inline = end.link().queue_pair().capacity().max_inline_data;
}

Facts Socket::Core::facts() {
    const std::uint64_t ring_bytes = ring_bytes_of(options);
    const std::uint32_t slot_count = message_slots_of(options);
    const verbs::RemoteAddress all = memory.remote();
    return {.memory_address = all.address,
            .ring_bytes = ring_bytes,
            .control_address = all.address + ring_bytes + slot_count * sizeof(Slot),
            .rkey = all.rkey,
            .slots = slot_count,
            .adverts = options.adverts,
            .mode = static_cast<std::uint16_t>(options.mode),
            .type = static_cast<std::uint16_t>(options.type),
            .far_fences = end::can_make_far_fences(end.link()) ? 1U : 0U,
            .round_trip_us = static_cast<std::uint32_t>(way.round_trip.count())};
}

void Socket::Core::meet(const Facts& peer) {
    if (!possible(peer)) {
        throw base::Error{base::ErrorCode::protocol, "set up a byte stream",
                          fmt::format("peer {}", end.link().peer_name()),
                          fmt::format("it offers mode {}, a ring of {} bytes, {} slots and {} "
                                      "advertisements",
                                      peer.mode, peer.ring_bytes, peer.slots, peer.adverts),
                          "use the same build of millrace on both sides"};
    }
    if (static_cast<Type>(peer.type) != options.type) {
        throw base::Error{base::ErrorCode::refused, "set up a byte stream",
                          fmt::format("peer {}", end.link().peer_name()),
                          fmt::format("its type is {}, and this side's {}",
                                      name_of(static_cast<Type>(peer.type)), name_of(options.type)),
                          "choose the same type on both sides"};
    }
    const auto theirs = static_cast<Mode>(peer.mode);
    const std::optional<Mode> common = agreed(options.mode, theirs);
    if (!common.has_value()) {
        throw base::Error{base::ErrorCode::refused, "set up a byte stream",
                          fmt::format("peer {}", end.link().peer_name()),
                          fmt::format("its mode is {}, and this side's {}", name_of(theirs),
                                      name_of(options.mode)),
                          "choose the same mode on both sides, or leave one of them dynamic"};
    }
    mode = *common;
    Terms terms = terms_of(options);
    terms.incoming.mode = mode;
    terms.outgoing = {mode, peer.ring_bytes, peer.adverts, terms.incoming.mark_bytes};
    terms.peer_slots = peer.slots;
    at_peer.ring_address = {peer.memory_address, peer.rkey};
    at_peer.slot_address = at_peer.ring_address + peer.ring_bytes;
    at_peer.ring_bytes = peer.ring_bytes;
    at_peer.slot_mask = peer.slots - 1;
    carrier = ring::PeerMemory::behind(end.link(), options.carrier, {});
    at_peer.memory = carrier.map(at_peer.ring_address, peer.ring_bytes + peer.slots * sizeof(Slot));
    stores = at_peer.memory != nullptr;
    at_peer.ring = at_peer.memory.get();
    // Where the ring is posted to, that takes as many requests as a direct transfer.
    if (stores && options.tuning.protocol == Protocol::extended) {
        terms.short_bytes = short_bytes;
        // On a longer way, all of the ring is under way until an advertisement can come.
        terms.put_off_bytes = ring_piece_bytes;
    }
    connection.emplace(terms);
    if (options.tuning.least_advertised_plain == 0) {
        // Who may store there may be stored to: memory is addressable both ways.
        options.tuning.least_advertised_plain = stores ? none_is_advertised : least_posted_plain;
    }
    if (stores) at_peer.slots = reinterpret_cast<Slot*>(at_peer.ring + peer.ring_bytes);
    // Likewise: what comes then, a processor has stored.
    takes_receives_lines = stores && base::readers_take_lines();
    takes_ring_lines = takes_receives_lines && options.ring_bytes <= base::most_taken_bytes();

    const verbs::RemoteAddress peer_page{peer.control_address, peer.rkey};
    const bool far_fences = peer.far_fences != 0 && end::can_make_far_fences(end.link());
    sleeper->connect_to(peer_page + offsetof(ControlPage, wake_up), far_fences);
    bell = end::Bell{end.window(), page().wake_up, peer_page, far_fences};
}

Listener Listener::listen(const connect::Address& address, SocketOptions options) {
    options = completed(std::move(options));
    connect::Listener listener = connect::Listener::listen(address, link_options(options));
    return Listener{std::move(listener), std::move(options)};
}

Socket Listener::accept(const base::Deadline& deadline) {
    return connect::accept_until_set_up(listener_, deadline,
                                        [&](connect::Link link, const base::Deadline& patience) {
                                            return set_up(std::move(link), options_, patience);
                                        });
}

std::optional<Socket> Listener::try_accept() {
    return connect::try_accept_set_up(listener_, [&](connect::Link link) {
        // The peer's word is here already, so nothing is waited for.
        return set_up(std::move(link), options_, base::Deadline::now());
    });
}

/// A link, until it is known how long its way is.
struct Connector::Measured {
    explicit Measured(connect::Link connected) : link{std::move(connected)} {}
    connect::Link link;
    RoundTrip round_trip;
};

Connector::Connector(const connect::Address& address, SocketOptions options)
    : options_{completed(std::move(options))}, connector_{address, link_options(options_)} {}
Connector::Connector(Connector&&) noexcept = default;
Connector& Connector::operator=(Connector&&) noexcept = default;
Connector::~Connector() = default;

/// This side's word is said with the link.
void Connector::begin() {
    const std::unique_ptr<Measured> measured = std::move(way_);
    const Way way = way_to(measured->link, measured->round_trip.result());
    core_ = std::make_unique<Socket::Core>(std::move(measured->link), options_, way);
    core_->end.link().say(connect::bytes_of(core_->facts()));
}

Socket Connector::finish(std::span<const std::byte> theirs) {
    core_->meet(connect::facts_in<Facts>(theirs, attempt, core_->end.link().peer_name()));
    return Socket{std::move(core_)};
}

/// Goes on with what measures the way. False: that is not over, and descriptor() tells when.
bool Connector::has_measured() {
    connect::Link& link = way_->link;
    connect::LinkParker parker{link};
    parker.retract();
    const auto now = base::Clock::now();
    // Most ways are shorter than what a program does until it looks again.
    while (base::Clock::now() - now < longest_look) {
        if (way_->round_trip.step(link)) return true;
    }
    parker.prepare();
    if (way_->round_trip.step(link)) return true;
    connector_.await_beside(link.channel().descriptor());
    return false;
}

std::optional<Socket> Connector::try_connect() {
    if (core_ == nullptr) {
        if (way_ == nullptr) {
            std::optional<connect::Link> link = connector_.try_connect();
            if (!link.has_value()) return std::nullopt;
            way_ = std::make_unique<Measured>(std::move(*link));
        }
        if (wants_way(options_) && !has_measured()) return std::nullopt;
        connector_.await_beside(-1);
        begin();
    }
    const auto theirs = core_->end.link().heard();
    if (!theirs.has_value()) return std::nullopt;
    return finish(*theirs);
}

Socket Connector::wait(const base::Deadline& deadline) {
    if (core_ == nullptr) {
        if (way_ == nullptr) way_ = std::make_unique<Measured>(connector_.wait(deadline));
        if (wants_way(options_)) measure_round_trip(way_->link, way_->round_trip, deadline);
        begin();
    }
    return finish(core_->end.link().hear(deadline));
}

Socket connect(const connect::Address& address, SocketOptions options,
               const base::Deadline& deadline) {
    return Connector{address, std::move(options)}.wait(deadline);
}

}  // namespace millrace::stream
