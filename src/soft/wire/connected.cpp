#include "wire/connected.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "millrace/base/error.hpp"
#include "roce/packet.hpp"
#include "system/cable_time.hpp"

namespace millrace::soft {
namespace {

/// How soon to look again where the system took nothing more.
constexpr std::int64_t pause_when_full = 50'000;
/// Where a program neither answers nor polls, no acknowledgement waits for it during so many
/// batches.
constexpr unsigned batches_without_trust = 256;

}  // namespace

Connected::Connected(const Of& of, std::unique_ptr<WireOwner> owner)
    : port_{of.port},
      route_{of.port.route(of.peer)},
      qpn_{of.sends.end.qpn},
      type_{of.sends.end.type},
      owner_{std::move(owner)},
      departures_{of.sends, *owner_},
      arrivals_{of.receives},
      protocol_{ConnectionProtocol::make(type_, departures_, arrivals_,
                                         of.sends.block.send_mask + 1, of.port.receive_buffer())} {
    port_.engine().add(*this);
    if (!port_.add(qpn_, *this, of.peer)) {
        port_.engine().remove(*this);
        throw base::Error{base::ErrorCode::invalid_argument, "connect a queue pair over the wire",
                          describe(of.peer), "its number is in use at the port", "reset it first"};
    }
}

Connected::~Connected() {
    port_.remove(qpn_);
    port_.engine().remove(*this);
    // The last answers, before this process or its end of a socket goes.
    const std::lock_guard held{*owner_};
    answer();
    if (port_.usable()) route_->see_off();
}

void Connected::learn(const ibv_qp_attr& attributes, ibv_qp_state state) noexcept {
    attributes_ = attributes;
    switch (state) {
        case IBV_QPS_RTR: protocol_->start_receiving(attributes_); break;
        case IBV_QPS_SQD:
        case IBV_QPS_RTS:
            if (!std::exchange(sends_, true)) {
                protocol_->start_sending(attributes_);
            } else {
                protocol_->change(attributes_);
            }
            protocol_->hold(state == IBV_QPS_SQD);
            send(cable_now());
            port_.flush();
            break;
        default: break;
    }
}

ibv_wc_status Connected::post(const ibv_send_wr& wr, std::uint32_t flags,
                              std::uint32_t slot) noexcept {
    protocol_->post(departures_.take(wr, flags, slot));
    return IBV_WC_SUCCESS;
}

void Connected::send(std::int64_t now, bool acknowledges) noexcept {
    bool all = false;
    {
        WireOutlet outlet{*route_, check()};
        all = protocol_->send(now, outlet, acknowledges);
    }
    const std::int64_t deadline = protocol_->next_deadline(acknowledges);
    port_.engine().expect(*this, all ? deadline : std::min(deadline, now + pause_when_full));
    if (const std::uint64_t repeated = protocol_->repeated(); repeated != repeated_) {
        port_.count(WireCount::retransmissions, repeated - repeated_);
        route_->note_repeated(repeated - repeated_);
        repeated_ = repeated;
    }
}

ibv_wc_status Connected::move() noexcept {
    if (!receives()) return IBV_WC_SUCCESS;
    send(cable_now());
    port_.flush();
    const ibv_wc_status failure = departures_.take_failure();
    failed_ |= failure != IBV_WC_SUCCESS;
    return failure;
}

void Connected::abort() noexcept {
    answer();
    aborted_ = protocol_->abort() + (failed_ ? 1 : 0);
    port_.engine().expect(*this, wire_never);
}

/// The program has seen what came, and its peer is not to take that for lost.
void Connected::answer() noexcept {
    if (!port_.usable()) return;
    {
        WireOutlet outlet{*route_, check()};
        protocol_->answer(cable_now(), outlet);
    }
    port_.flush();
}

void Connected::restart() noexcept {
    aborted_ = 0;
    failed_ = false;
    if (sends_) protocol_->start_sending(attributes_);
}

bool Connected::receives() const noexcept {
    const ibv_qp_state state = owner_->state();
    return state >= IBV_QPS_RTR && state <= IBV_QPS_SQE;
}

void Connected::take(const WirePacket& packet) noexcept {
    roce::Packet parsed;
    if (roce::parse(packet.bytes, parsed) != roce::Defect::none) {
        return port_.count(WireCount::malformed);
    }
    if (parsed.service != (type_ == IBV_QPT_UC ? roce::Service::uc : roce::Service::rc)) {
        if (parsed.service != roce::Service::congestion) port_.count(WireCount::strays);
        return;
    }
    if (owner_->state() == IBV_QPS_RTR) owner_->established();
    const bool is_atomic =
        parsed.kind == roce::Kind::compare_swap || parsed.kind == roce::Kind::fetch_add;
    // Not done and not answered: the peer asks again, as if it had been lost.
    if (is_atomic && !arrivals_.lock_word(parsed.remote_key, parsed.address)) return;
    protocol_->arrived(parsed, packet.now);
    if (is_atomic) arrivals_.unlock_word();
}

void Connected::arrived(const WirePacket& packet) noexcept {
    const std::lock_guard held{*owner_};
    if (!receives()) return;
    take(packet);
    tell_owner();
}

bool Connected::settled(std::int64_t now, Answers answers) noexcept {
    const std::lock_guard held{*owner_};
    if (!receives()) return false;
    if (answers == Answers::late && protocol_->owes_acknowledgement()) {
        acknowledges_at_once_ = batches_without_trust;
    }
    const bool waits = answers == Answers::with_next && acknowledges_at_once_ == 0;
    if (answers == Answers::with_next && !waits) --acknowledges_at_once_;
    send(now, !waits);
    tell_owner();
    return waits && protocol_->owes_acknowledgement();
}

void Connected::due(std::int64_t now) noexcept {
    static_cast<void>(settled(now, Answers::at_once));
}

void Connected::tell_owner() noexcept {
    if (const ibv_wc_status failure = departures_.take_failure(); failure != IBV_WC_SUCCESS) {
        failed_ = true;
        if (failure == IBV_WC_RETRY_EXC_ERR) port_.count(WireCount::retries_exhausted);
        owner_->sends_failed(failure);
    }
    owner_->moved();
}

}  // namespace millrace::soft
