#include "datagram/datagram_flight.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace millrace::soft {

DatagramFlights::DatagramFlights(std::function<void()> serve, std::shared_ptr<Cable> cable,
                                 const ibv_qp& qp, Counters& counters, std::uint32_t entries,
                                 std::uint32_t slots)
    : CableEnd{std::move(serve), std::move(cable)},
      qp_{qp},
      counters_{counters},
      mask_{entries - 1},
      ahead_{entries - slots},
      in_air_{std::make_unique_for_overwrite<InAir[]>(entries)},
      bytes_{std::make_unique_for_overwrite<std::byte[]>(std::size_t{entries} * datagram_mtu)} {
    free_.reserve(entries);
    for (std::uint32_t number = entries; number-- > 0;) free_.push_back(number);
    landings_.reserve(std::size_t{2} * entries);  // what is duplicated lands twice
}

void DatagramFlights::add(const DatagramMessage& message, const DatagramAddress& to,
                          std::uint32_t slot, bool signaled, std::uint32_t bytes) noexcept {
    if (failing_) return add_failure(slot, IBV_WC_WR_FLUSH_ERR);
    InAir& one = at(tail_);
    one = InAir{};
    one.to = to;
    one.qkey = message.qkey;
    one.immediate = message.immediate;
    one.flags = message.flags;
    one.bytes = bytes;
    one.slot = slot;
    one.signaled = signaled;
    one.global = message.grh != nullptr;
    if (one.global) one.grh = *message.grh;
    one.buffer = free_.back();
    free_.pop_back();
    std::byte* into = buffer(one.buffer);
    for (std::uint32_t i = 0; i < message.count; ++i) {
        const Piece& piece = message.pieces[i];
        if (piece.at.direct != nullptr) {
            std::memcpy(into, piece.at.direct, piece.length);
        } else {
            std::memset(into, 0, piece.length);  // the null region
        }
        into += piece.length;
        one.carried += static_cast<std::uint32_t>(piece.length);
    }
    const Flight times = cable_->port.send(cable_now(), one.carried, FlightKind::unreliable,
                                           cable_->jitter(random_));
    // One queue pair's datagrams leave, and arrive, in order.
    last_departure_ = std::max(last_departure_, times.departure);
    one.departure = last_departure_;
    cable_->count_operation();
    set_off(tail_++, times.arrival);
    counters_.add(Count::deferred);
}

void DatagramFlights::set_off(std::uint32_t position, std::int64_t arrival) noexcept {
    DatagramFate fate;
    if (faults_) fate = faults_->datagram();
    if (fate.lost) {
        InAir& one = at(position);
        free_.push_back(one.buffer);
        counters_.add(Count::dropped);
        return;
    }
    if (fate.late_ns == 0) {
        last_arrival_ = std::max(last_arrival_, arrival);
        arrival = last_arrival_;
    } else {
        arrival = std::max(last_arrival_, arrival) + fate.late_ns;  // others may overtake it
    }
    expect_landing(position, arrival);
    if (fate.copy_ns != 0) expect_landing(position, arrival + fate.copy_ns);
}

void DatagramFlights::expect_landing(std::uint32_t position, std::int64_t arrival) noexcept {
    ++at(position).landings;
    landings_.push_back({arrival, position});
    std::push_heap(landings_.begin(), landings_.end(), Later{});
}

void DatagramFlights::add_failure(std::uint32_t slot, ibv_wc_status status) noexcept {
    failing_ = true;
    InAir& one = at(tail_++);
    one = InAir{};
    one.departure = last_departure_;
    one.slot = slot;
    one.status = status;
}

bool DatagramFlights::take_landed(std::int64_t now, LandedDatagram& landed) noexcept {
    if (landings_.empty() || landings_.front().arrival > now) return false;
    InAir& one = at(landings_.front().position);
    std::pop_heap(landings_.begin(), landings_.end(), Later{});
    landings_.pop_back();
    landed.to = one.to;
    DatagramMessage& message = landed.message;
    message.pieces[0] = {Reach{buffer(one.buffer), 0, 0}, one.carried, 0};
    message.count = one.carried == 0 ? 0 : 1;
    message.bytes = one.carried;
    message.source = qp_.qp_num;
    message.qkey = one.qkey;
    message.immediate = one.immediate;
    message.flags = one.flags;
    message.grh = one.global ? &one.grh : nullptr;
    if (--one.landings == 0) free_.push_back(one.buffer);
    pass_landed();
    return true;
}

void DatagramFlights::pass_landed() noexcept {
    // What fails or was grounded never was in the air.
    while (head_ != released_ && at(head_).landings == 0) ++head_;
}

bool DatagramFlights::may_release() const noexcept {
    if (released_ == tail_) return false;
    const bool room =
        released_ - head_ < ahead_ || (released_ == head_ && at(released_).landings == 0);
    return room && (qp_.state == IBV_QPS_RTS || qp_.state == IBV_QPS_SQD);
}

bool DatagramFlights::take_left(std::int64_t now, LeftDatagram& left) noexcept {
    while (may_release()) {
        const InAir& one = at(released_);
        if (one.departure > now || one.status != IBV_WC_SUCCESS) return false;
        left = {one.slot, one.bytes};
        const bool signaled = one.signaled;
        ++released_;
        pass_landed();
        if (signaled) return true;
    }
    return false;
}

ibv_wc_status DatagramFlights::expect_next(std::int64_t now) noexcept {
    expect();
    return may_release() && at(released_).departure <= now ? at(released_).status : IBV_WC_SUCCESS;
}

void DatagramFlights::ground() noexcept {
    failing_ = false;
    grounded_ = tail_ - released_;
    std::erase_if(landings_, [this](const Landing& landing) {
        return static_cast<std::int32_t>(landing.position - released_) >= 0;
    });
    std::make_heap(landings_.begin(), landings_.end(), Later{});
    while (tail_ != released_) {
        const InAir& one = at(--tail_);
        if (one.landings != 0) free_.push_back(one.buffer);
    }
    expect();
}

void DatagramFlights::restart() noexcept {
    grounded_ = 0;
    begin_random();
}

void DatagramFlights::expect() noexcept {
    std::int64_t due = cable_never;
    if (!landings_.empty()) due = landings_.front().arrival;
    first_arrival_.store(due, std::memory_order_relaxed);
    if (may_release()) due = std::min(due, at(released_).departure);
    publish_due(due);
}

}  // namespace millrace::soft
