// PacketLane, see the header.
#include "lane/packet_lane.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "each_completion.hpp"
#include "lane/packet_host.hpp"
#include "memory.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"

namespace millrace::message {

using base::Status;
using connect::Transport;

namespace {

/// The least memory to send from.
constexpr std::size_t least_send_bytes = 4096;
/// Packets without a completion, at most; of them a quarter of the memory.
constexpr std::uint32_t most_unsignaled = 16;
/// How long an end whose peer has closed waits for what was lost before.
constexpr std::chrono::seconds patience_after_end{2};
/// How long a server that closes waits for a client that says nothing.
constexpr std::chrono::milliseconds patience_of_close{500};
/// The last words of an end.
struct Goodbye {
    std::uint32_t sent = 0;  ///< the number after its last packet
    std::uint32_t got = 0;   ///< and after the last one that it has got
};

}  // namespace

PacketLane::PacketLane(connect::Link link, const PacketMemory& memory, const PacketPosting& posting,
                       PacketHost* host)
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
        copies_.memory.resize((room + 1) * receives.packet_bytes / sizeof(std::uint64_t));
        for (std::uint32_t slot = 0; slot <= room; ++slot) copies_.free.push_back(slot);
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
        sending_.max_inline = link_.queue_pair().capacity().max_inline_data;
    } else {
        if (is_client()) own_window_.emplace(link_.datagrams().queue_pair(), link_.send_queue());
        sending_.max_inline = link_.datagrams().capacity().max_inline_data;
    }
    if (!posting.habits.inlines) sending_.max_inline = 0;
    if (is_client()) news_ = link_.news();
    facts_ = {.token = is_client() ? base::random_bits() : host_->add(*this),
              .ring_bytes = memory.ring_bytes,
              .version = is_shared() ? PacketFacts::shared_version : 1U,
              .room = room,
              .packet_bytes = static_cast<std::uint32_t>(receives.packet_bytes)};
    copies_.seed = shared_seed(facts_.token);
}

bool PacketLane::is_shared() const noexcept {
    return is_client() ? memory_.is_shared : host_->is_shared();
}

void PacketLane::post_receives() {
    const bool has_bells = !is_client() && is_shared();
    const std::uint32_t count = has_bells ? bell_receives : slots_.count;
    for (std::uint32_t slot = 0; slot < count; ++slot) {
        if (post_receive(slot) == 0) continue;
        throw base::Error{base::ErrorCode::verbs, "post the receives of packets",
                          fmt::format("receive {} of {}", slot, count), "the queue pair refused it",
                          "ask for a smaller ring (ring_bytes)"};
    }
}

int PacketLane::post_receive(std::uint32_t slot) noexcept {
    if (slots_.count == 0) return link_.queue_pair().post(verbs::Receive{.id = slot, .into = {}});
    return header_bytes_ != 0 ? slots_.post(link_.datagrams(), slot)
                              : slots_.post(link_.queue_pair(), slot);
}

PacketLane::~PacketLane() {
    if (is_client()) return;
    if (stream_.has_value()) {
        give_back();
        stream_->drop_held();
        give_back();
    }
    host_->remove(*this, facts_.token);
    if (host_->is_ud())
        host_->bury(sending_.last_ticket, std::move(link_), std::move(send_memory_));
}

void PacketLane::meet(const PacketFacts& theirs) {
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
                     "make its ring smaller (ring_bytes), or let the server allow more "
                     "(Tuning::max_client_ring_bytes)");
    }
    sending_.ring_bytes = std::max<std::size_t>(theirs.ring_bytes, least_send_bytes);
    const std::size_t memory_bytes =
        sending_.ring_bytes + PacketStream::bare_places * packet_head_bytes;
    send_memory_ = link_.allocate(memory_bytes, verbs::Access::none);
    sending_.key = send_memory_.slice(0, 1).lkey;
    const bool has_pool = !is_client() && host_->is_ud();
    const std::size_t longest =
        std::min({link_.mtu(), std::size_t{theirs.packet_bytes}, sending_.ring_bytes / 4}) / 16 *
        16;
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

void PacketLane::meet(const SharedPacketFacts& theirs) {
    meet(theirs.packets);
    sender_.emplace(link_, *own_window_, memory_.carrier, theirs.shared, theirs.packets.token,
                    theirs.packets.packet_bytes);
}

end::SendWindow& PacketLane::window() noexcept {
    return own_window_.has_value() ? *own_window_ : host_->window();
}

PacketStream::Time PacketLane::now() const noexcept {
    return is_client() ? base::Clock::now() : Time{};
}

// --- receiving

void PacketLane::poll() noexcept {
    if (!is_client()) return host_->poll();
    (void)each_completion(link_.receive_queue(),
                          [this](const verbs::Completion& completion) { arrived(completion); });
}

void PacketLane::arrived(const verbs::Completion& completion) noexcept {
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

void PacketLane::arrived(const SharedReader& reader, std::uint64_t word) noexcept {
    if (!stream_.has_value()) return;
    if (copies_.free.empty()) give_back();
    if (copies_.free.empty()) return;
    const std::uint32_t slot = copies_.free.back();
    const std::span<std::byte> into =
        std::as_writable_bytes(std::span{copies_.memory})
            .subspan(slot * std::size_t{facts_.packet_bytes}, facts_.packet_bytes);
    std::span<const std::byte> packet;
    if (!reader.read(word, copies_.seed, into, packet)) return stream_->note_damaged();
    if (arrived(packet, slot, true)) copies_.free.pop_back();
}

bool PacketLane::arrived(std::span<const std::byte> packet, std::uint32_t slot,
                         bool may_keep) noexcept {
    if (!stream_.has_value()) return false;
    return stream_->receive(packet, slot, now(), may_keep) == PacketStream::Arrival::kept;
}

void PacketLane::give_back() noexcept {
    std::uint32_t slot;
    while (stream_->take_free(slot)) {
        if (slots_.count != 0) {
            (void)post_receive(slot);
        } else if (is_shared()) {
            copies_.free.push_back(slot);
        } else {
            host_->give_back(slot);
        }
    }
}

Status PacketLane::take(std::span<const std::byte>& message) {
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

void PacketLane::pass() noexcept {
    if (is_client()) {
        awaited_.received(looked_at_);
        if (!awaited_.any()) stream_->expect(false, {});
    }
    stream_->pass();
    give_back();
}

bool PacketLane::has_more() const noexcept {
    return stream_->has_more() || (ended_ == Status::ok && (peer_.is_lost || peer_.has_closed));
}

Status PacketLane::idle() noexcept {
    if (is_client()) {
        if (sender_.has_value() && stream_->is_acknowledged()) sender_->forget();
        if (due() != Time::max()) {
            const Time time = now();
            stream_->wake(time);
            if (sender_.has_value()) sender_->idle(time);
        }
        if (!peer_.is_lost && !peer_.has_closed && link_.peer() != connect::PeerState::alive) {
            look_after_peer();
        }
    }
    (void)pump(true);
    if (ended_ != Status::ok) return ended_;
    if (peer_.is_lost) {
        end(Status::peer_lost, "its socket ended without a goodbye");
    } else if (peer_.has_closed && !stream_->has_more()) {
        // A client is sent what it misses while its server waits for that; a server has all that a
        // client in good order has sent.
        if (!is_client() || base::Clock::now() - peer_.closed_at > patience_after_end) {
            end(Status::peer_lost, "it closed before everything had arrived");
        }
    }
    return ended_ == Status::ok ? Status::empty : ended_;
}

void PacketLane::look_after_peer() noexcept {
    if (peer_.is_lost || peer_.has_closed || !stream_.has_value()) return;
    switch (link_.peer_now()) {
        case connect::PeerState::alive: return;
        case connect::PeerState::lost: peer_.is_lost = true; return;
        case connect::PeerState::closed: break;
    }
    // What it sent before is here already, or lost.
    poll();
    const std::span<const std::byte> words = link_.last_words();
    Goodbye goodbye;
    if (words.size() != sizeof goodbye) {
        peer_.is_lost = true;
        return;
    }
    std::memcpy(&goodbye, words.data(), sizeof goodbye);
    peer_.has_closed = true;
    peer_.closed_at = base::Clock::now();
    peer_.had_all = goodbye.got == stream_->end();
    if (!stream_->end_at(goodbye.sent, peer_.closed_at)) {
        end(Status::peer_lost, "the peer lies: its end comes after what it may have sent");
    }
}

// --- sending

Status PacketLane::claim(std::size_t size, std::span<std::byte>& place) {
    if (const Status status = may_send(); status != Status::ok) return status;
    stream_->completed(window().completed());
    Status status = stream_->claim(size, place);
    if (status == Status::full && (sending_.held_back != 0 || stream_->lacks_completions())) {
        if (sending_.held_back != 0 && pump(false) == Status::peer_lost) return ended_;
        (void)window().reap();
        stream_->completed(window().completed());
        status = stream_->claim(size, place);
    }
    claimed_ = place;
    return status;
}

Status PacketLane::lay(std::size_t size) noexcept {
    if (ended_ != Status::ok) return ended_;
    stream_->commit(size);
    if (is_client() && size >= sizeof(SessionHead)) {
        SessionHead head;
        std::memcpy(&head, claimed_.data(), sizeof head);
        await_answer_to(head);
    }
    if (!posting_.gathers || ++sending_.held_back >= PacketChain::most) (void)pump(false);
    return ended_;
}

Status PacketLane::keep(const SessionHead& head, std::span<const std::byte> payload) {
    if (const Status status = may_send(); status != Status::ok) return status;
    stream_->completed(window().completed());
    const Status status = stream_->send(std::as_bytes(std::span{head}), payload);
    if (status != Status::ok) {
        end(Status::peer_lost, stream_->failure());
        return ended_;
    }
    if (is_client()) await_answer_to(head);
    (void)pump(false);
    return ended_;
}

Status PacketLane::flush() noexcept {
    if (ended_ != Status::ok) return ended_;
    const Status status = pump(true);
    if (ended_ != Status::ok) return ended_;
    return status == Status::ok && stream_->is_clear() ? Status::ok : Status::full;
}

Status PacketLane::pump(bool with_bare) noexcept {
    sending_.held_back = 0;
    PacketChain chain;
    const Time time = now();
    while (true) {
        Status status = fill(chain, time, with_bare);
        const bool is_full = status == Status::full;
        if (status != Status::peer_lost) {
            const std::uint64_t before = window().completed();
            const bool has_posted = !chain.batch.empty();
            status = window().post_chain(chain.batch);
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

Status PacketLane::fill(PacketChain& chain, Time time, bool with_bare) noexcept {
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
                              sending_.unsignaled + 1 >= most_unsignaled ||
                              sending_.unsignaled_bytes + packet.size() >= sending_.ring_bytes / 8;
        const Status status =
            add(chain, packet, signaled ? end::Signal::now : end::Signal::when_due);
        if (status != Status::ok) return status;
        sending_.unsignaled = signaled ? 0 : sending_.unsignaled + 1;
        sending_.unsignaled_bytes = signaled ? 0 : sending_.unsignaled_bytes + packet.size();
        sending_.last_ticket = window.posted();
        // What was stored has left.
        const bool is_stored = sender_.has_value() && sender_->stores();
        stream_->posted(is_stored ? window.completed() : sending_.last_ticket, time);
    }
}

Status PacketLane::add(PacketChain& chain, std::span<const std::byte> packet,
                       end::Signal signal) noexcept {
    const auto flags =
        packet.size() <= sending_.max_inline ? verbs::SendFlags::inlined : verbs::SendFlags::none;
    const std::size_t place = chain.batch.size();
    const std::size_t requests = sender_.has_value() ? SharedSender::requests : 1;
    if (place + requests > PacketChain::most) return Status::full;
    if (sender_.has_value()) return sender_->send(chain, packet, sending_.key, flags, signal);
    ibv_sge& slice = chain.slices[place];
    slice = {reinterpret_cast<std::uint64_t>(packet.data()),
             static_cast<std::uint32_t>(packet.size()), sending_.key};
    if (header_bytes_ == 0) {
        return window().chain(chain.batch, verbs::Send{.from = {&slice, 1}, .flags = flags},
                              signal);
    }
    return window().chain(
        chain.batch, verbs::SendTo{.from = {&slice, 1}, .to = link_.destination(), .flags = flags},
        signal);
}

// --- the end

void PacketLane::answer_goodbye() noexcept {
    if (ended_ == Status::closed) say_goodbye();
}

void PacketLane::say_goodbye() noexcept {
    if (said_goodbye_at_.has_value() || !stream_.has_value()) return;
    (void)pump(true);
    // What waits has no number yet.
    if (!stream_->is_clear()) return;
    said_goodbye_at_ = base::Clock::now();
    const Goodbye goodbye{.sent = stream_->end(), .got = stream_->got()};
    link_.say_goodbye(std::as_bytes(std::span{&goodbye, 1}));
}

Status PacketLane::finish() {
    poll();
    stream_->wake(now());
    if (sender_.has_value()) sender_->idle(now());
    (void)pump(true);
    // A client acknowledges what it has when it asks for something, or hears that nothing comes.
    if (!is_client()) say_goodbye();
    if (is_client() ? link_.peer() != connect::PeerState::alive : said_goodbye_at_.has_value()) {
        look_after_peer();
    }
    Status status = Status::full;
    if (stream_->is_acknowledged() || peer_.had_all) {
        status = Status::ok;
    } else if (peer_.has_closed) {
        status = Status::closed;
    } else if (peer_.is_lost || (ended_ != Status::ok && ended_ != Status::closed)) {
        status = Status::peer_lost;
    } else if (!is_client() && said_goodbye_at_.has_value() &&
               base::Clock::now() - *said_goodbye_at_ > patience_of_close) {
        status = Status::closed;  // nobody looks there, so nobody asks for what is missing
    }
    if (status != Status::full) say_goodbye();
    return status;
}

std::string PacketLane::explain() const {
    const PacketCounts& counts = stream_->counts();
    std::string text = fmt::format(
        "{}\nmessages over packets of up to {} bytes, {} of which this end holds, sent from {} "
        "bytes: {} with data sent, {} of them again, {} without; {} received, {} of them twice; {} "
        "times the timer ran out",
        link_.explain(), stream_->longest_single(), facts_.room, sending_.ring_bytes, counts.sent,
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

}  // namespace millrace::message
