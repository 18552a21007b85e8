// PacketHost, see the header.
#include "lane/packet_host.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "each_completion.hpp"
#include "memory.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"

namespace millrace::message {

namespace {

constexpr std::chrono::milliseconds socket_period{1};
constexpr unsigned place_bits = 17;
constexpr std::uint64_t place_mask = (std::uint64_t{1} << place_bits) - 1;

}  // namespace

PacketHost::PacketHost(const Setting& setting, connect::LinkOptions& link)
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
                : (setting.max_clients + joining) * (is_shared() ? bell_receives : each.slots());
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
                            std::max(setting.shared_bytes, 2 * each.packet_bytes)))},
            setting.scan);
    } else {
        link.uc_receive_queue = &completions_;
        link.max_receive_requests =
            std::max(link.max_receive_requests, most_packets + spare_receives);
    }
    const int sources[] = {channel_.descriptor(), sockets_.descriptor()};
    readiness_.emplace(sources, std::chrono::nanoseconds{0});
    readiness_->hush();
}

PacketHost::~PacketHost() = default;

PacketHost::Shared::Shared(verbs::ProtectionDomain& domain, const SharedShape& shape,
                           ScanKernel kernel)
    : memory{domain.allocate(shape.bytes(),
                             verbs::Access::remote_write | verbs::Access::remote_read)},
      reader{{memory.data(), shape.bytes()}, shape, kernel} {}

SharedFacts PacketHost::shared_facts(const PacketLane& lane) const noexcept {
    const verbs::RemoteAddress begin = shared_->memory.remote();
    const SharedShape& shape = shared_->reader.shape();
    return {.address = begin.address,
            .rkey = begin.rkey,
            .place = lane.shared_place,
            .places = shape.places,
            .slots = shape.slots,
            .lines = shape.lines};
}

void PacketHost::open_station(connect::LinkOptions& link) {
    constexpr std::uint32_t sends = 512;
    const std::size_t slot_bytes =
        PacketReceives{connect::Transport::ud, setting_.memory.ring_bytes, mtu_of(*endpoint_)}
            .slot_bytes;
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
    link.datagrams = {.queue_pair = &station_.pair, .key = key};
}

std::uint64_t PacketHost::add(PacketLane& lane) {
    // First what may throw: nobody would take back what was done before it. What is told of, gone
    // or vacant has room for as many as there are.
    have_room(told_, lanes_ + 1);
    have_room(buried_, buried_.size() + lanes_ + 1);
    const std::uint64_t word = base::random_bits();
    if (is_shared() && shared_->free.empty()) {
        have_room(shared_->free, shared_->lanes.size() + 1);
        shared_->lanes.push_back(nullptr);
        shared_->free.push_back(static_cast<std::uint32_t>(shared_->lanes.size() - 1));
    }
    if (is_ud() && free_places_.empty()) {
        have_room(free_places_, by_place_.size() + 1);
        have_room(tokens_, by_place_.size() + 1);
        by_place_.push_back(nullptr);
        tokens_.push_back(0);
        free_places_.push_back(static_cast<std::uint32_t>(by_place_.size() - 1));
    }
    sockets_.add(lane.link().socket(), &lane);
    if (!is_ud()) by_pair_.emplace(lane.link().queue_pair().number(), &lane);
    ++lanes_;
    if (!is_ud()) {
        if (!is_shared()) return word;
        lane.shared_place = shared_->free.back();
        shared_->free.pop_back();
        shared_->lanes[lane.shared_place] = &lane;
        shared_->reader.clear(lane.shared_place);
        return word;
    }
    const std::uint32_t place = free_places_.back();
    free_places_.pop_back();
    by_place_[place] = &lane;
    tokens_[place] = (word & ~place_mask) | place;
    return tokens_[place];
}

void PacketHost::remove(PacketLane& lane, std::uint64_t token) noexcept {
    sockets_.remove(lane.link().socket());
    --lanes_;
    std::erase(told_, &lane);
    if (!is_ud()) {
        by_pair_.erase(lane.link().queue_pair().number());
        if (!is_shared()) return;
        shared_->lanes[lane.shared_place] = nullptr;
        shared_->free.push_back(lane.shared_place);
        return;
    }
    const auto place = static_cast<std::uint32_t>(token & place_mask);
    by_place_[place] = nullptr;
    tokens_[place] = 0;
    free_places_.push_back(place);
}

void PacketHost::give_back(std::uint32_t slot) noexcept {
    if (station_.slots.post(station_.pair, slot) == 0) ++station_.posted;
}

void PacketHost::bury(std::uint64_t ticket, connect::Link link, verbs::RegisteredBuffer memory) {
    if (!window_->done(ticket)) (void)window_->reap();
    if (window_->done(ticket)) return;
    buried_.push_back({ticket, std::move(memory), std::move(link)});
}

void PacketHost::tell(PacketLane& lane) noexcept {
    if (std::exchange(lane.is_told, true)) return;
    told_.push_back(&lane);
}

void PacketHost::take(const verbs::Completion& completion) noexcept {
    if (is_ud()) return take_datagram(completion);
    const auto found = by_pair_.find(completion.raw.qp_num);
    if (found == by_pair_.end()) return;  // of a client that has left
    found->second->arrived(completion);
    tell(*found->second);
}

void PacketHost::take_datagram(const verbs::Completion& completion) noexcept {
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
    PacketLane* const lane =
        place < by_place_.size() && tokens_[place] == token ? by_place_[place] : nullptr;
    if (lane == nullptr || lane->link().peer_queue_pair() != datagram.from) {
        ++foreign_;
        give_back(slot);
        return;
    }
    // Where few are left no client keeps one of them: each waits for its own next packet, which
    // must find one, and it has a place for that packet then.
    const bool may_keep = station_.posted >= station_.slots.count / 4;
    if (!lane->arrived(datagram.message, slot, may_keep)) give_back(slot);
    tell(*lane);
}

void PacketHost::poll() noexcept {
    (void)each_completion(completions_,
                          [this](const verbs::Completion& completion) { take(completion); });
    if (!is_shared()) return;
    // After the bells: what the clients that rang have written before is found.
    shared_->reader.look(static_cast<std::uint32_t>(shared_->lanes.size()),
                         [this](std::uint32_t place, std::uint64_t word) {
                             PacketLane* const lane = shared_->lanes[place];
                             if (lane == nullptr) return;  // of a client that has left
                             lane->arrived(shared_->reader, word);
                             tell(*lane);
                         });
    if (!told_.empty()) shared_->reader.wake();
}

void PacketHost::look(std::vector<std::uint32_t>& places) {
    poll();
    const std::uint64_t ticks = base::ticks();
    if (sockets_are_due_ || ticks - sockets_looked_at_ >= sockets_every_) {
        sockets_are_due_ = false;
        sockets_looked_at_ = ticks;
        for (bool more = true; more;) {
            const auto all = sockets_.look();
            for (const connect::SocketWatch::Told& one : all) {
                auto& lane = *static_cast<PacketLane*>(one.whose);
                lane.look_after_peer();
                tell(lane);
            }
            more = all.size() == connect::SocketWatch::most;
        }
        if (!buried_.empty()) {
            (void)window_->reap();
            std::erase_if(buried_, [&](const Buried& one) { return window_->done(one.ticket); });
        }
    }
    for (PacketLane* const lane : told_) {
        lane->is_told = false;
        if (lane->place() != Lane::no_place) places.push_back(lane->place());
    }
    told_.clear();
}

void PacketHost::rest() noexcept {
    (void)channel_.drain();
    (void)completions_.arm();
    sockets_are_due_ = true;
    if (is_shared()) shared_->reader.rest();
}

std::string PacketHost::explain() const {
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

std::unique_ptr<NetworkLane> PacketHost::meet(connect::Link link) {
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
    const PacketFacts theirs = packet_facts_in(told, link.peer_name());
    auto lane =
        std::make_unique<PacketLane>(std::move(link), setting_.memory, setting_.posting, this);
    lane->meet(theirs);
    if (is_shared()) {
        const SharedPacketFacts mine{.packets = lane->facts(), .shared = shared_facts(*lane)};
        lane->link().say(connect::bytes_of(mine));
    } else {
        lane->link().say(connect::bytes_of(lane->facts()));
    }
    return lane;
}

}  // namespace millrace::message
