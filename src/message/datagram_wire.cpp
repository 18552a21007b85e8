// DatagramWire and DatagramHost, see the header.
#include "datagram_wire.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "each_completion.hpp"
#include "memory.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/random.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/verbs/datagram.hpp"

namespace millrace::message {

using base::Status;
using connect::Transport;

namespace {

constexpr const char* setting_up_packets = "set up messages over packets";

/// Receives beside those that the peer may fill, for packets without data.
constexpr std::uint32_t beside = 8;
/// Receives of a server's end through a shared buffer, for a client that rings.
constexpr std::uint32_t bells = 2;
/// The least memory to send from.
constexpr std::size_t least_send_bytes = 4096;
/// Packets without a completion, at most; of them a quarter of the memory.
constexpr std::uint32_t most_unsignaled = 16;
constexpr std::chrono::milliseconds socket_period{1};
/// How long an end whose peer has closed waits for what was lost before.
constexpr std::chrono::seconds patience_behind_end{2};
/// How long a server that closes waits for its clients to have everything.
constexpr std::chrono::milliseconds patience_of_close{500};
constexpr unsigned place_bits = 17;
constexpr std::uint64_t place_mask = (std::uint64_t{1} << place_bits) - 1;

/// The last words of an end.
struct Goodbye {
    std::uint32_t sent = 0;  ///< the number behind its last packet
    std::uint32_t got = 0;   ///< and behind the last one that it has got
};

[[nodiscard]] std::size_t mtu_of(connect::Endpoint& endpoint) {
    return std::size_t{128} << endpoint.context().port(endpoint.port()).active_mtu;
}

/// What one end receives into: four times the bytes of its ring, as a packet takes a whole receive
/// however short it is. By UC, receives are short, so that there are many of them. A datagram
/// comes from anyone, so a receive has to be long enough for the longest one.
struct PacketReceives {
    std::size_t packet_bytes;
    std::uint32_t room;
    std::size_t slot_bytes;

    PacketReceives(Transport transport, std::size_t ring_bytes, std::size_t mtu) noexcept
        : packet_bytes{transport == Transport::ud
                           ? mtu
                           : std::clamp(ring_bytes / 16, std::min(least_packet, mtu), mtu)},
          room{static_cast<std::uint32_t>(
              transport == Transport::ud
                  ? std::clamp<std::size_t>(8 * ring_bytes / mtu, 16, most_packets)
                  : most_packets)},
          slot_bytes{rounded(packet_bytes + header_of(transport))} {}

    [[nodiscard]] std::uint32_t slots() const noexcept { return room + beside; }

    static constexpr std::size_t least_packet = 256;
    [[nodiscard]] static std::size_t header_of(Transport transport) noexcept {
        return transport == Transport::ud ? verbs::datagram_header_bytes : 0;
    }

  private:
    [[nodiscard]] static std::size_t rounded(std::size_t bytes) noexcept {
        constexpr std::size_t line = 64;
        return (bytes + line - 1) / line * line;
    }
};

}  // namespace

// --- DatagramWire

DatagramWire::DatagramWire(connect::Link link, const PacketMemory& memory,
                           const PacketPosting& posting, DatagramHost* host)
    : host_{host},
      endpoint_{link.shared_endpoint()},
      link_{std::move(link)},
      header_bytes_{PacketReceives::header_of(link_.transport())},
      memory_{memory},
      posting_{posting},
      parker_{*this} {
    const bool is_ud = link_.transport() == Transport::ud;
    const PacketReceives receives{link_.transport(), memory.ring_bytes, link_.mtu()};
    std::uint32_t room = receives.room;
    if (!is_client() && is_shared()) {
        room = host_->shared_slots();
        // One more than can be kept: a packet is copied before it is known whether it is needed.
        copies_.resize((room + 1) * receives.packet_bytes / sizeof(std::uint64_t));
        for (std::uint32_t slot = 0; slot <= room; ++slot) free_copies_.push_back(slot);
    } else if (is_client() || !is_ud) {
        receive_memory_ =
            link_.allocate(receives.slots() * receives.slot_bytes, verbs::Access::local_write);
        slots_ = {.begin = receive_memory_.data(),
                  .slot_bytes = receives.slot_bytes,
                  .count = receives.slots(),
                  .key = receive_memory_.slice(0, 1).lkey};
    } else {
        room = most_packets;  // those of a pool are shared, and rarely needed all
    }
    post_receives();
    if (!is_ud) {
        own_window_.emplace(link_);
        max_inline_ = link_.queue_pair().capacity().max_inline_data;
    } else {
        if (is_client()) own_window_.emplace(link_.datagrams().queue_pair(), link_.send_queue());
        max_inline_ = link_.datagrams().capacity().max_inline_data;
    }
    if (!posting.habits.inlines) max_inline_ = 0;
    if (is_client()) news_ = link_.news();
    facts_ = {.token = is_client() ? base::random_bits() : host_->add(*this),
              .ring_bytes = memory.ring_bytes,
              .version = is_shared() ? PacketFacts::shared_version : 1U,
              .room = room,
              .packet_bytes = static_cast<std::uint32_t>(receives.packet_bytes)};
    shared_seed_ = shared_seed(facts_.token);
}

bool DatagramWire::is_shared() const noexcept {
    return is_client() ? memory_.is_shared : host_->is_shared();
}

void DatagramWire::post_receives() {
    const auto require = [](int error, std::uint32_t slot, std::uint32_t count) {
        if (error == 0) return;
        throw base::Error{base::ErrorCode::verbs, "post the receives of packets",
                          fmt::format("receive {} of {}", slot, count), "the queue pair refused it",
                          "ask for a smaller ring (ring_bytes)"};
    };
    for (std::uint32_t slot = 0; slot < slots_.count; ++slot) {
        require(post_receive(slot), slot, slots_.count);
    }
    if (is_client() || !is_shared()) return;
    for (std::uint32_t bell = 0; bell < bells; ++bell) require(post_receive(bell), bell, bells);
}

int DatagramWire::post_receive(std::uint32_t slot) noexcept {
    if (slots_.count == 0) return link_.queue_pair().post(verbs::Receive{.id = slot, .into = {}});
    return header_bytes_ != 0 ? slots_.post(link_.datagrams(), slot)
                              : slots_.post(link_.queue_pair(), slot);
}

DatagramWire::~DatagramWire() {
    if (is_client()) return;
    host_->post_gathered();  // of what goes with this wire
    if (stream_.has_value()) {
        give_back();
        stream_->drop_held();
        give_back();
    }
    host_->remove(*this, facts_.token);
    if (host_->is_ud()) host_->bury(last_ticket_, std::move(link_), std::move(send_memory_));
}

void DatagramWire::meet(const PacketFacts& theirs) {
    if (theirs.version != facts_.version || theirs.zero != 0 || theirs.room == 0 ||
        theirs.room > most_packets || theirs.packet_bytes < PacketReceives::least_packet) {
        throw base::Error{base::ErrorCode::protocol, setting_up_packets,
                          fmt::format("peer {}", link_.peer_name()),
                          fmt::format("it has room for {} packets of {} bytes, by version {}",
                                      theirs.room, theirs.packet_bytes, theirs.version),
                          "use the same build of millrace on both sides"};
    }
    if (theirs.ring_bytes > memory_.max_peer_ring_bytes) {
        link_.refuse(setting_up_packets,
                     fmt::format("it asks for {} bytes to send from, and {} are allowed here",
                                 theirs.ring_bytes, memory_.max_peer_ring_bytes),
                     "make its ring smaller (ring_bytes), or allow more (max_client_ring_bytes, "
                     "max_server_ring_bytes)");
    }
    ring_bytes_ = std::max<std::size_t>(theirs.ring_bytes, least_send_bytes);
    const std::size_t memory_bytes = ring_bytes_ + PacketStream::bare_places * packet_head_bytes;
    send_memory_ = link_.allocate(memory_bytes, verbs::Access::none);
    send_key_ = send_memory_.slice(0, 1).lkey;
    const bool has_pool = !is_client() && host_->is_ud();
    const std::size_t longest =
        std::min({link_.mtu(), std::size_t{theirs.packet_bytes}, ring_bytes_ / 4}) / 16 * 16;
    stream_.emplace(PacketTerms{.own_token = facts_.token,
                                .peer_token = theirs.token,
                                .own_first = static_cast<std::uint32_t>(facts_.token >> 32),
                                .peer_first = static_cast<std::uint32_t>(theirs.token >> 32),
                                .packet_bytes = longest,
                                .own_room = facts_.room,
                                .peer_room = theirs.room,
                                .has_timer = is_client(),
                                .max_message_bytes = memory_.max_message_bytes,
                                .spare_bytes = has_pool ? facts_.packet_bytes : 0,
                                .held = memory_.held},
                    std::span{send_memory_.data(), memory_bytes});
}

void DatagramWire::meet(const SharedPacketFacts& theirs) {
    meet(theirs.packets);
    if (!theirs.shared.is_valid(theirs.packets.packet_bytes)) {
        throw base::Error{
            base::ErrorCode::protocol, setting_up_packets,
            fmt::format("peer {}", link_.peer_name()),
            fmt::format("its shared buffer has {} lines, {} packets of a client, place {} of {}",
                        theirs.shared.lines, theirs.shared.slots, theirs.shared.place,
                        theirs.shared.places),
            "use the same build of millrace on both sides"};
    }
    sender_.emplace(link_, *own_window_, memory_.carrier, theirs.shared, theirs.packets.token);
}

end::SendWindow& DatagramWire::window() noexcept {
    return own_window_.has_value() ? *own_window_ : host_->window();
}

PacketStream::Time DatagramWire::now() const noexcept {
    return is_client() ? base::Clock::now() : PacketStream::Time{};
}

void DatagramWire::end(Status how, std::string_view why) noexcept {
    if (ended_ != Status::ok) return;
    ended_ = how;
    set_text(why_failed_, why);
}

// --- receiving

void DatagramWire::poll() noexcept {
    each_completion(link_.receive_queue(),
                    [this](const verbs::Completion& completion) { arrived(completion); });
}

void DatagramWire::arrived(const verbs::Completion& completion) noexcept {
    if (!completion.ok()) {
        end(Status::peer_lost, try_text([&] { return completion.explain(); }));
        return;
    }
    const auto slot = static_cast<std::uint32_t>(completion.id());
    if (slots_.count == 0) {  // it rang
        (void)post_receive(slot);
        return;
    }
    if (slot >= slots_.count) return;
    const std::span<const std::byte> memory{slots_.at(slot), slots_.slot_bytes};
    const std::size_t bytes = std::min<std::size_t>(completion.bytes(), memory.size());
    const auto packet =
        memory.subspan(std::min(header_bytes_, bytes), bytes - std::min(header_bytes_, bytes));
    if (!arrived(packet, slot, true)) (void)post_receive(slot);
}

void DatagramWire::arrived(const SharedReader& reader, std::uint64_t word) noexcept {
    if (!stream_.has_value()) return;
    if (free_copies_.empty()) give_back();
    if (free_copies_.empty()) return;
    const std::uint32_t slot = free_copies_.back();
    const std::span<std::byte> into =
        std::as_writable_bytes(std::span{copies_})
            .subspan(slot * std::size_t{facts_.packet_bytes}, facts_.packet_bytes);
    std::span<const std::byte> packet;
    if (!reader.read(word, shared_seed_, into, packet)) return stream_->note_damaged();
    if (arrived(packet, slot, true)) free_copies_.pop_back();
}

bool DatagramWire::arrived(std::span<const std::byte> packet, std::uint32_t slot,
                           bool may_keep) noexcept {
    if (!stream_.has_value()) return false;
    return stream_->receive(packet, slot, now(), may_keep) == PacketStream::Arrival::kept;
}

void DatagramWire::give_back() noexcept {
    std::uint32_t slot;
    while (stream_->take_free(slot)) {
        if (slots_.count != 0) {
            (void)post_receive(slot);
        } else if (is_shared()) {
            free_copies_.push_back(slot);
        } else {
            host_->give_back(slot);
        }
    }
}

Status DatagramWire::look(std::span<const std::byte>& message) {
    if (ended_ != Status::ok) return ended_;
    Status status = stream_->look(message);
    if (status == Status::empty && is_client()) {
        poll();
        status = stream_->look(message);
    }
    give_back();
    switch (status) {
        case Status::ok:
        case Status::too_large: looked_at_ = message; return status;
        case Status::empty: return idle();
        case Status::closed: end(status, {}); return ended_;
        default:
            end(Status::peer_lost, fmt::format("the peer lies: {}", stream_->failure()));
            return ended_;
    }
}

void DatagramWire::pass() noexcept {
    if (is_client()) {
        awaited_.received(looked_at_);
        if (!awaited_.any()) stream_->expect(false, {});
    }
    stream_->pass();
    give_back();
}

bool DatagramWire::has_more() const noexcept {
    return stream_->has_more() || (ended_ == Status::ok && (peer_is_lost_ || peer_has_closed_));
}

Status DatagramWire::idle() noexcept {
    if (is_client()) {
        if (sender_.has_value() && stream_->is_acknowledged()) sender_->forget();
        if (due() != PacketStream::Time::max()) {
            const PacketStream::Time time = now();
            stream_->wake(time);
            if (sender_.has_value()) sender_->idle(time);
        }
        if (!peer_is_lost_ && !peer_has_closed_ && link_.peer() != connect::PeerState::alive) {
            look_after_peer();
        }
    }
    (void)pump(true);
    if (ended_ != Status::ok) return ended_;
    if (peer_is_lost_) {
        end(Status::peer_lost, "its socket ended without a goodbye");
    } else if (peer_has_closed_ && !stream_->has_more()) {
        // A client is sent what it misses while its server waits for that; a server has all that a
        // client in good order has sent.
        if (!is_client() || base::Clock::now() - peer_closed_at_ > patience_behind_end) {
            end(Status::peer_lost, "it closed before everything had arrived");
        }
    }
    return ended_ == Status::ok ? Status::empty : ended_;
}

void DatagramWire::look_after_peer() noexcept {
    if (peer_is_lost_ || peer_has_closed_ || !stream_.has_value()) return;
    switch (link_.peer_now()) {
        case connect::PeerState::alive: return;
        case connect::PeerState::lost: peer_is_lost_ = true; return;
        case connect::PeerState::closed: break;
    }
    // What it sent before is here already, or lost.
    if (is_client()) {
        poll();
    } else {
        host_->poll();
    }
    const std::span<const std::byte> words = link_.last_words();
    Goodbye goodbye;
    if (words.size() != sizeof goodbye) {
        peer_is_lost_ = true;
        return;
    }
    std::memcpy(&goodbye, words.data(), sizeof goodbye);
    peer_has_closed_ = true;
    peer_closed_at_ = base::Clock::now();
    peer_had_all_ = goodbye.got == stream_->end();
    if (!stream_->end_at(goodbye.sent, peer_closed_at_)) {
        end(Status::peer_lost, "the peer lies: its end is behind what it may have sent");
    }
}

// --- sending

Status DatagramWire::claim(std::size_t size, std::span<std::byte>& place) {
    if (ended_ != Status::ok) return ended_;
    stream_->completed(window().completed());
    Status status = stream_->claim(size, place);
    if (status == Status::full && (held_back_ != 0 || stream_->lacks_completions())) {
        if (held_back_ != 0 && pump(false) == Status::peer_lost) return ended_;
        (void)window().reap();
        stream_->completed(window().completed());
        status = stream_->claim(size, place);
    }
    claimed_ = place;
    return status;
}

Status DatagramWire::commit(std::size_t size) noexcept {
    if (ended_ != Status::ok) return ended_;
    stream_->commit(size);
    if (is_client() && size >= sizeof(SessionHead)) {
        SessionHead head;
        std::memcpy(&head, claimed_.data(), sizeof head);
        awaited_.sent(head);
        if (awaited_.any()) stream_->expect(true, now());
    }
    if (!posting_.gathers || ++held_back_ >= PacketChain::most) (void)pump(false);
    return ended_;
}

Status DatagramWire::send(const SessionHead& head, std::span<const std::byte> payload) {
    if (ended_ != Status::ok) return ended_;
    stream_->completed(window().completed());
    const Status status = stream_->send(std::as_bytes(std::span{head}), payload);
    if (status != Status::ok) {
        end(Status::peer_lost, stream_->failure());
        return ended_;
    }
    if (is_client()) {
        awaited_.sent(head);
        if (awaited_.any()) stream_->expect(true, now());
    }
    (void)pump(false);
    return ended_;
}

Status DatagramWire::flush() noexcept {
    if (ended_ != Status::ok) return ended_;
    const Status status = pump(true);
    if (ended_ != Status::ok) return ended_;
    return status == Status::ok && stream_->is_clear() ? Status::ok : Status::full;
}

Status DatagramWire::pump(bool with_bare) noexcept {
    held_back_ = 0;
    PacketChain own;
    PacketChain* const shared = host_ != nullptr ? host_->chain() : nullptr;
    PacketChain& chain = shared != nullptr ? *shared : own;
    const PacketStream::Time time = now();
    while (true) {
        Status status = fill(chain, time, with_bare);
        const bool is_full = status == Status::full;
        if (status != Status::peer_lost && (shared == nullptr || is_full)) {
            const std::uint64_t before = window().completed();
            const bool has_posted = !chain.batch.empty();
            status = post(chain);
            if (is_full && status == Status::ok) {
                if (stream_->lacks_completions()) (void)window().reap();
                // What was in the way may be gone; but nobody waits for it here.
                if (has_posted || window().completed() != before) continue;
                return stream_->lacks_completions() ? Status::ok : Status::full;
            }
        }
        if (status != Status::ok) {
            end(Status::peer_lost, try_text([&] { return window().failure(); }));
        }
        if (sender_.has_value()) sender_->sent(time);
        return status;
    }
}

Status DatagramWire::fill(PacketChain& chain, PacketStream::Time time, bool with_bare) noexcept {
    end::SendWindow& window = this->window();
    std::span<const std::byte> packet;
    while (true) {
        stream_->completed(window.completed());
        if (!stream_->next(packet, time, with_bare)) {
            return stream_->lacks_completions() ? Status::full : Status::ok;
        }
        // Memory is free when its packets are known to have left, so some of them have to say so,
        // and the last word of a queue pair that others use, too, always.
        const bool signaled = !own_window_.has_value() || stream_->wants_completion() ||
                              !posting_.habits.signals_selectively ||
                              unsignaled_ + 1 >= most_unsignaled ||
                              unsignaled_bytes_ + packet.size() >= ring_bytes_ / 8;
        const Status status =
            add(chain, packet, signaled ? end::Signal::now : end::Signal::when_due);
        if (status != Status::ok) return status;
        unsignaled_ = signaled ? 0 : unsignaled_ + 1;
        unsignaled_bytes_ = signaled ? 0 : unsignaled_bytes_ + packet.size();
        last_ticket_ = window.posted();
        // What was stored has left.
        const bool is_stored = sender_.has_value() && sender_->stores();
        stream_->posted(is_stored ? window.completed() : last_ticket_, time);
    }
}

Status DatagramWire::add(PacketChain& chain, std::span<const std::byte> packet,
                         end::Signal signal) noexcept {
    const std::size_t place = chain.batch.size();
    const std::size_t requests = sender_.has_value() ? SharedSender::requests : 1;
    if (place + requests > (posting_.habits.chains ? PacketChain::most : requests)) {
        return Status::full;
    }
    if (sender_.has_value()) {
        return sender_->send(
            chain, packet, send_key_,
            packet.size() <= max_inline_ ? verbs::SendFlags::inlined : verbs::SendFlags::none,
            signal);
    }
    ibv_sge& slice = chain.slices[place];
    slice = {reinterpret_cast<std::uint64_t>(packet.data()),
             static_cast<std::uint32_t>(packet.size()), send_key_};
    const auto flags =
        packet.size() <= max_inline_ ? verbs::SendFlags::inlined : verbs::SendFlags::none;
    if (header_bytes_ == 0) {
        return window().chain(chain.batch, verbs::Send{.from = {&slice, 1}, .flags = flags},
                              signal);
    }
    return window().chain(
        chain.batch, verbs::SendTo{.from = {&slice, 1}, .to = link_.destination(), .flags = flags},
        signal);
}

Status DatagramWire::post(PacketChain& chain) noexcept { return window().post_chain(chain.batch); }

// --- what a client awaits

void DatagramWire::Awaited::sent(const SessionHead& head) noexcept {
    SessionHeader header;
    if (!parse(head, header)) return;
    if (header.kind == SessionKind::hello && !std::exchange(hello_, true)) ++count_;
    if (header.kind != SessionKind::request) return;
    std::vector<bool>::reference place = requests_[header.id % largest_window];
    if (!place) ++count_;
    place = true;
}

void DatagramWire::Awaited::received(std::span<const std::byte> message) noexcept {
    SessionHead head;
    SessionHeader header;
    if (message.size() < sizeof head) return;
    std::memcpy(&head, message.data(), sizeof head);
    if (!parse(head, header)) return;
    if (header.kind != SessionKind::answer) {
        if (std::exchange(hello_, false)) --count_;
        return;
    }
    std::vector<bool>::reference place = requests_[header.id % largest_window];
    if (place) --count_;
    place = false;
}

// --- waiting

void DatagramWire::Parker::park(std::chrono::nanoseconds limit,
                                const base::Cancellation* cancellation) {
    const PacketStream::Time due = wire_->due();
    if (due != PacketStream::Time::max()) {
        limit = std::min(limit, std::max<std::chrono::nanoseconds>(due - base::Clock::now(),
                                                                   std::chrono::nanoseconds{0}));
    }
    link_.park(limit, cancellation);
}

// --- the end

void DatagramWire::answer_goodbye() noexcept {
    if (ended_ == Status::closed) begin_close();
}

void DatagramWire::begin_close() noexcept {
    if (said_goodbye_ || !stream_.has_value()) return;
    (void)pump(true);
    if (!is_client()) host_->post_gathered();
    // What waits has no number yet: close() says it then.
    if (!stream_->is_clear()) return;
    said_goodbye_ = true;
    said_goodbye_at_ = base::Clock::now();
    const Goodbye goodbye{.sent = stream_->end(), .got = stream_->got()};
    link_.say_goodbye(std::as_bytes(std::span{&goodbye, 1}));
}

Status DatagramWire::close(const base::Deadline& deadline) {
    const auto had_all = [&] { return stream_->is_acknowledged() || peer_had_all_; };
    base::NapParker nap;
    bool is_patient = true;
    Status status = base::wait_until(
        [&] {
            if (is_client()) {
                poll();
                stream_->wake(now());
            } else {
                host_->poll();
            }
            (void)pump(true);
            if (!is_client()) host_->post_gathered();
            if (is_client() ? link_.peer() != connect::PeerState::alive : said_goodbye_) {
                look_after_peer();
            }
            if (!is_client()) {
                begin_close();
                is_patient =
                    !said_goodbye_ || base::Clock::now() - said_goodbye_at_ < patience_of_close;
            }
            return had_all() || !is_patient || peer_is_lost_ || peer_has_closed_ ||
                   (ended_ != Status::ok && ended_ != Status::closed);
        },
        deadline, base::WaitPolicy::blocking(), nap);
    if (status == Status::ok && !had_all()) {
        status = peer_has_closed_ ? Status::closed
                 : !is_patient    ? Status::timed_out
                                  : Status::peer_lost;
    }
    begin_close();
    end(Status::closed, {});
    return status;
}

std::string DatagramWire::explain() const {
    const PacketCounts& counts = stream_->counts();
    std::string text = fmt::format(
        "{}\nmessages over packets of up to {} bytes, {} of which this end holds, sent from {} "
        "bytes: {} with data sent, {} of them again, {} without; {} received, {} of them twice; {} "
        "times the timer ran out",
        link_.explain(), stream_->longest_single(), facts_.room, ring_bytes_, counts.sent,
        counts.repeated, counts.bare, counts.received, counts.duplicates, counts.probes);
    if (sender_.has_value()) {
        text += fmt::format(
            "\nthey go through the server's shared buffer, into which all of its clients write, by "
            "{}; it was rung {} times, and asked {} times whether it sleeps; answers come by SEND",
            sender_->stores() ? "store" : "two WRITEs for each", sender_->rings(),
            sender_->reads());
    } else if (is_shared()) {
        text +=
            fmt::format("\nthey come through the shared buffer: {} were damaged", counts.damaged);
    }
    return text;
}

// --- DatagramHost

DatagramHost::DatagramHost(const Setting& setting, connect::LinkOptions& link)
    : setting_{setting},
      endpoint_{link.endpoint},
      channel_{endpoint_->context().create_completion_channel()},
      sockets_every_{base::ticks_in(socket_period)} {
    channel_.leave_peers_to_program();  // sockets tell
    verbs::Context& context = endpoint_->context();
    const PacketReceives each{setting.transport, setting.memory.ring_bytes, mtu_of(*endpoint_)};
    constexpr std::uint64_t joining = 64;
    const std::uint64_t entries =
        is_ud() ? 2 * std::uint64_t{setting.receives} + 1
                : (setting.max_clients + joining) * (is_shared() ? bells : each.slots());
    completions_ = context.create_completion_queue(
        static_cast<int>(std::min<std::uint64_t>(
            entries, static_cast<std::uint64_t>(context.attributes().max_cqe))),
        &channel_);
    if (is_ud()) {
        open_station(link);
    } else if (is_shared()) {
        link.receive_queue = &completions_;
        shared_ = std::make_unique<Shared>(
            endpoint_->protection_domain(),
            SharedShape{.places = static_cast<std::uint32_t>(setting.max_clients + joining),
                        .slots = setting.shared_slots,
                        .lines = static_cast<std::uint32_t>(in_shared_lines(
                            std::max(setting.shared_bytes, 2 * each.packet_bytes)))});
    } else {
        link.uc_receive_queue = &completions_;
        link.max_receive_requests = std::max(link.max_receive_requests, most_packets + beside);
    }
    const int sources[] = {channel_.descriptor(), sockets_.descriptor()};
    readiness_.emplace(sources, std::chrono::nanoseconds{0});
    readiness_->hush();
}

DatagramHost::~DatagramHost() = default;

DatagramHost::Shared::Shared(verbs::ProtectionDomain& domain, const SharedShape& shape)
    : memory{domain.allocate(shape.bytes(),
                             verbs::Access::remote_write | verbs::Access::remote_read)},
      reader{{memory.data(), shape.bytes()}, shape} {}

SharedFacts DatagramHost::shared_facts(const DatagramWire& wire) const noexcept {
    const verbs::RemoteAddress begin = shared_->memory.remote();
    const SharedShape& shape = shared_->reader.shape();
    return {.address = begin.address,
            .rkey = begin.rkey,
            .place = wire.shared_place,
            .places = shape.places,
            .slots = shape.slots,
            .lines = shape.lines};
}

void DatagramHost::open_station(connect::LinkOptions& link) {
    constexpr std::uint32_t sends = 512;
    const std::size_t slot_bytes =
        PacketReceives{Transport::ud, setting_.memory.ring_bytes, mtu_of(*endpoint_)}.slot_bytes;
    memory_ = endpoint_->protection_domain().allocate(setting_.receives * slot_bytes,
                                                      verbs::Access::local_write);
    station_.slots = {.begin = memory_.data(),
                      .slot_bytes = slot_bytes,
                      .count = setting_.receives,
                      .key = memory_.slice(0, 1).lkey};
    station_.sent = endpoint_->context().create_completion_queue(2 * sends + 1);
    station_.pair = endpoint_->protection_domain().create_datagram_queue_pair({
        .send_queue = &station_.sent,
        .receive_queue = &completions_,
        .max_send_requests = sends,
        .max_receive_requests = setting_.receives,
        .max_send_slices = 1,
        .max_inline = link.max_inline,
    });
    // Keys with the highest bit are privileged: a request may not name one.
    const auto key = static_cast<std::uint32_t>(base::random_bits() & 0x7fffffff);
    station_.pair.start(endpoint_->port(), key);
    for (std::uint32_t slot = 0; slot < station_.slots.count; ++slot) {
        give_back(slot);
        if (station_.posted == slot + 1) continue;
        throw base::Error{base::ErrorCode::verbs, "post the receives of a message server",
                          fmt::format("receive {} of {}", slot, station_.slots.count),
                          "the queue pair for datagrams refused it",
                          "ask for fewer (shared_receives)"};
    }
    window_.emplace(station_.pair.queue_pair(), station_.sent);
    if (setting_.posting.gathers && setting_.posting.habits.chains) chain_.emplace();
    link.datagrams = {.queue_pair = &station_.pair, .key = key};
}

std::uint64_t DatagramHost::add(DatagramWire& wire) {
    // First what may throw: nobody would take back what was done before it. What is told of, gone
    // or vacant has room for as many as there are.
    have_room(told_, wires_ + 1);
    have_room(buried_, buried_.size() + wires_ + 1);
    const std::uint64_t word = base::random_bits();
    if (is_shared() && shared_->free.empty()) {
        have_room(shared_->free, shared_->wires.size() + 1);
        shared_->wires.push_back(nullptr);
        shared_->free.push_back(static_cast<std::uint32_t>(shared_->wires.size() - 1));
    }
    if (is_ud() && free_places_.empty()) {
        have_room(free_places_, by_place_.size() + 1);
        have_room(tokens_, by_place_.size() + 1);
        by_place_.push_back(nullptr);
        tokens_.push_back(0);
        free_places_.push_back(static_cast<std::uint32_t>(by_place_.size() - 1));
    }
    sockets_.add(wire.link().socket(), &wire);
    if (!is_ud()) by_pair_.emplace(wire.link().queue_pair().number(), &wire);
    ++wires_;
    if (!is_ud()) {
        if (!is_shared()) return word;
        wire.shared_place = shared_->free.back();
        shared_->free.pop_back();
        shared_->wires[wire.shared_place] = &wire;
        shared_->reader.clear(wire.shared_place);
        return word;
    }
    const std::uint32_t place = free_places_.back();
    free_places_.pop_back();
    by_place_[place] = &wire;
    tokens_[place] = (word & ~place_mask) | place;
    return tokens_[place];
}

void DatagramHost::remove(DatagramWire& wire, std::uint64_t token) noexcept {
    sockets_.remove(wire.link().socket());
    --wires_;
    std::erase(told_, &wire);
    if (!is_ud()) {
        by_pair_.erase(wire.link().queue_pair().number());
        if (!is_shared()) return;
        shared_->wires[wire.shared_place] = nullptr;
        shared_->free.push_back(wire.shared_place);
        return;
    }
    const auto place = static_cast<std::uint32_t>(token & place_mask);
    by_place_[place] = nullptr;
    tokens_[place] = 0;
    free_places_.push_back(place);
}

void DatagramHost::give_back(std::uint32_t slot) noexcept {
    if (station_.slots.post(station_.pair, slot) == 0) ++station_.posted;
}

void DatagramHost::bury(std::uint64_t ticket, connect::Link link, verbs::RegisteredBuffer memory) {
    if (!window_->done(ticket)) (void)window_->reap();
    if (window_->done(ticket)) return;
    buried_.push_back({ticket, std::move(memory), std::move(link)});
}

void DatagramHost::tell(DatagramWire& wire) noexcept {
    if (std::exchange(wire.is_told, true)) return;
    told_.push_back(&wire);
}

void DatagramHost::take(const verbs::Completion& completion) noexcept {
    if (is_ud()) return take_datagram(completion);
    const auto found = by_pair_.find(completion.raw.qp_num);
    if (found == by_pair_.end()) return;  // of one who has left
    found->second->arrived(completion);
    tell(*found->second);
}

void DatagramHost::take_datagram(const verbs::Completion& completion) noexcept {
    const auto slot = static_cast<std::uint32_t>(completion.id());
    if (slot >= station_.slots.count) return;
    --station_.posted;
    if (!completion.ok()) {
        give_back(slot);
        return;
    }
    const verbs::Datagram datagram =
        verbs::datagram_in(completion, {station_.slots.at(slot), station_.slots.slot_bytes});
    std::uint64_t token = 0;
    if (datagram.message.size() >= sizeof token) {
        std::memcpy(&token, datagram.message.data(), sizeof token);
    }
    const std::size_t place = token & place_mask;
    DatagramWire* const wire =
        place < by_place_.size() && tokens_[place] == token ? by_place_[place] : nullptr;
    if (wire == nullptr || wire->link().peer_queue_pair() != datagram.from) {
        ++foreign_;
        give_back(slot);
        return;
    }
    // Where few are left no client keeps one of them: each waits for its own next packet, which
    // must find one, and it has a place for that packet then.
    const bool may_keep = station_.posted >= station_.slots.count / 4;
    if (!wire->arrived(datagram.message, slot, may_keep)) give_back(slot);
    tell(*wire);
}

void DatagramHost::poll() noexcept {
    each_completion(completions_,
                    [this](const verbs::Completion& completion) { take(completion); });
    if (!is_shared()) return;
    // Behind the bells: what those who rang have written before is found.
    shared_->reader.look(static_cast<std::uint32_t>(shared_->wires.size()),
                         [this](std::uint32_t place, std::uint64_t word) {
                             DatagramWire* const wire = shared_->wires[place];
                             if (wire == nullptr) return;  // of one who has left
                             wire->arrived(shared_->reader, word);
                             tell(*wire);
                         });
    if (!told_.empty()) shared_->reader.wake();
}

void DatagramHost::look(std::vector<std::uint32_t>& places) {
    poll();
    const std::uint64_t ticks = base::ticks();
    if (sockets_are_due_ || ticks - sockets_looked_at_ >= sockets_every_) {
        sockets_are_due_ = false;
        sockets_looked_at_ = ticks;
        for (bool more = true; more;) {
            const auto all = sockets_.look();
            for (const connect::SocketWatch::Told& one : all) {
                auto& wire = *static_cast<DatagramWire*>(one.whose);
                wire.look_after_peer();
                tell(wire);
            }
            more = all.size() == connect::SocketWatch::most;
        }
        if (!buried_.empty()) {
            (void)window_->reap();
            std::erase_if(buried_, [&](const Buried& one) { return window_->done(one.ticket); });
        }
    }
    for (DatagramWire* const wire : told_) {
        wire->is_told = false;
        if (wire->server_place != Wire::no_place) places.push_back(wire->server_place);
    }
    told_.clear();
}

void DatagramHost::post_gathered() noexcept {
    // Whoever posts next hears of a queue pair that has broken.
    if (chain_.has_value()) (void)window_->post_chain(chain_->batch);
}

void DatagramHost::rest() noexcept {
    (void)channel_.drain();
    (void)completions_.arm();
    sockets_are_due_ = true;
    if (is_shared()) shared_->reader.rest();
}

std::string DatagramHost::explain() const {
    if (is_shared()) {
        const SharedShape& shape = shared_->reader.shape();
        return fmt::format(
            "clients through a shared buffer of {} bytes, for trusted clients: each can damage the "
            "packets of all others, which a checksum tells; offsets of up to {} packets of each "
            "are scanned, and answers go by SEND",
            std::size_t{shape.lines} * shared_line_bytes, shape.slots);
    }
    if (!is_ud()) {
        return fmt::format(
            "clients over UC: a queue pair and {} receives for each, whose completions come in one "
            "queue",
            PacketReceives{setting_.transport, setting_.memory.ring_bytes, mtu_of(*endpoint_)}
                .slots());
    }
    return fmt::format(
        "clients over UD: one queue pair and {} receives of {} bytes for all, for trusted fabrics: "
        "anyone in the fabric can fill these receives; a random token says whose a packet is ({} "
        "were nobody's)",
        station_.slots.count, station_.slots.slot_bytes, foreign_);
}

// --- both ends

namespace {
[[nodiscard]] PacketFacts facts_of(std::span<const std::byte> told, const std::string& peer) {
    return connect::facts_in<PacketFacts>(told, setting_up_packets, peer);
}
}  // namespace

std::unique_ptr<Wire> DatagramHost::meet(connect::Link link) {
    const std::vector<std::byte> told = link.hear(base::Deadline::now());
    if (is_shared() && told.size() != sizeof(PacketFacts)) {
        link.refuse(setting_up_packets, "requests are taken through a shared buffer here",
                    "ask for that (ClientOptions::requests = Transfer::shared), or let the server "
                    "poll otherwise (ServerOptions::polling)");
    }
    if (is_shared() && by_pair_.size() == shared_->reader.shape().places) {
        link.refuse(setting_up_packets, "every row of the shared buffer has its client",
                    "try again later, or allow more clients (max_clients)");
    }
    const PacketFacts theirs = facts_of(told, link.peer_name());
    auto wire =
        std::make_unique<DatagramWire>(std::move(link), setting_.memory, setting_.posting, this);
    wire->meet(theirs);
    if (is_shared()) {
        const SharedPacketFacts mine{.packets = wire->facts(), .shared = shared_facts(*wire)};
        wire->link().say(connect::bytes_of(mine));
    } else {
        wire->link().say(connect::bytes_of(wire->facts()));
    }
    return wire;
}

std::unique_ptr<Wire> connect_datagram_wire(const connect::Address& server,
                                            connect::LinkOptions link, const PacketMemory& memory,
                                            const PacketPosting& posting,
                                            const base::Deadline& deadline) {
    link.max_receive_requests = most_packets + beside;
    auto wire = std::make_unique<DatagramWire>(connect::connect(server, link, deadline), memory,
                                               posting, nullptr);
    const auto theirs = wire->link().exchange(connect::bytes_of(wire->facts()), deadline);
    if (memory.is_shared) {
        wire->meet(connect::facts_in<SharedPacketFacts>(theirs, setting_up_packets,
                                                        wire->link().peer_name()));
    } else {
        wire->meet(facts_of(theirs, wire->link().peer_name()));
    }
    return wire;
}

}  // namespace millrace::message
