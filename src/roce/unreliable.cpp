#include "unreliable.hpp"

#include <algorithm>
#include <bit>

namespace millrace::roce {

UnreliableSender::UnreliableSender(SendSide& side, std::uint32_t most_requests)
    : side_{side},
      mask_{std::bit_ceil(std::max(most_requests, 1U)) - 1},
      requests_{new Request[mask_ + 1]{}} {}

void UnreliableSender::start(const UnreliableAttributes& attributes) noexcept {
    attributes_ = attributes;
    psn_ = attributes.first_psn & psn_mask;
    done_ = posted_ = 0;
    offset_ = 0;
    is_begun_ = false;
    is_running_ = true;
    is_held_ = false;
}

void UnreliableSender::post(const Request& request) noexcept {
    requests_[posted_++ & mask_] = request;
}

std::uint32_t UnreliableSender::abort() noexcept {
    const std::uint32_t left = posted_ - done_;
    done_ = posted_;
    offset_ = 0;
    is_begun_ = false;
    is_running_ = false;
    return left;
}

bool UnreliableSender::send(Outlet& outlet) noexcept {
    while (is_running_ && done_ != posted_ && (is_begun_ || !is_held_)) {
        const Request& request = requests_[done_ & mask_];
        Status status = Status::success;
        bool is_last = true;
        if (request.operation == Operation::local) {
            status = side_.run_local(request.slot);
        } else {
            const std::uint32_t size = std::min(request.length - offset_, attributes_.mtu);
            is_last = offset_ + size == request.length;
            Packet packet;
            packet.service = Service::uc;
            packet.kind = kind_of(request.operation, !is_begun_, is_last);
            packet.solicited = is_last && request.solicited;
            packet.asks_acknowledge = false;
            packet.partition_key = attributes_.partition_key;
            packet.destination = attributes_.destination;
            packet.psn = psn_;
            packet.address = request.remote_address;
            packet.remote_key = request.remote_key;
            packet.length = request.length;
            packet.immediate = request.immediate;
            const std::size_t headers = header_bytes(Service::uc, packet.kind);
            std::uint8_t* room = outlet.begin(packet_bytes(headers, size));
            if (room == nullptr) return false;
            packet.payload = {room + headers, size};
            std::uint8_t* payload = compose(packet, room);
            if (size != 0) status = side_.gather(request.slot, offset_, {payload, size});
            if (status == Status::success) {
                outlet.commit();
                psn_ = psn_after(psn_, 1);
                offset_ += size;
                is_begun_ = true;
            }
        }
        if (status == Status::success && !is_last) continue;
        ++done_;
        offset_ = 0;
        is_begun_ = false;
        if (status == Status::success) {
            side_.complete(request.slot);
        } else {
            is_running_ = false;
            side_.fail(request.slot, status);
        }
    }
    return true;
}

void UnreliableReceiver::start(const UnreliableAttributes& attributes) noexcept {
    assembly_.start(attributes.mtu);
    expected_ = attributes.first_psn & psn_mask;
    is_running_ = true;
    skips_ = false;
    dropped_ = 0;
}

void UnreliableReceiver::arrived(const Packet& packet) noexcept {
    if (!is_running_) return;
    const bool begins = part_of(packet.kind).is_first;
    if (packet.psn != expected_ || begins) assembly_.abandon();
    if (packet.psn != expected_) skips_ = true;
    expected_ = psn_after(packet.psn, 1);
    if (begins) skips_ = false;
    if (!skips_ && assembly_.take(packet) == Outcome::done) return;
    ++dropped_;
    if (skips_) return;
    skips_ = true;
    side_.abandon();
}

std::uint8_t* begin_datagram(const Datagram& datagram, Outlet& outlet) noexcept {
    Packet packet;
    packet.service = Service::ud;
    packet.kind = datagram.has_immediate ? Kind::send_only_immediate : Kind::send_only;
    packet.solicited = datagram.solicited;
    packet.asks_acknowledge = false;
    packet.partition_key = datagram.partition_key;
    packet.destination = datagram.destination;
    packet.psn = datagram.psn & psn_mask;
    packet.q_key = datagram.q_key;
    packet.source = datagram.source;
    packet.immediate = datagram.immediate;
    const std::size_t headers = header_bytes(Service::ud, packet.kind);
    std::uint8_t* room = outlet.begin(packet_bytes(headers, datagram.length));
    if (room == nullptr) return nullptr;
    packet.payload = {room + headers, datagram.length};
    return compose(packet, room);
}

}  // namespace millrace::roce
