#include "datagram/datagram_send.hpp"

#include <cstdint>

#include "datagram/address_handle.hpp"
#include "fabric/node.hpp"
#include "millrace/base/log.hpp"
#include "process/domains.hpp"
#include "process/process.hpp"

namespace millrace::soft {

DatagramSender::DatagramSender(const Of& of, std::unique_ptr<DatagramFlights> flights,
                               std::unique_ptr<DatagramWire> wire) noexcept
    : of_{of}, flights_{std::move(flights)}, wire_{std::move(wire)} {
    completions_.open(of.block, CompletionRing::Of::sends, {of.end.bell_send, of.end.news_send},
                      of.asymmetric, of.counters);
    keys_.open(of.end, &of.process.node(), nullptr);
}

void DatagramSender::send_to(std::uint32_t qpn, const DatagramMessage& message) noexcept {
    const auto look_up = [&](const DatagramTarget* instead_of) {
        last_ = nullptr;
        last_qpn_ = qpn;
        try {
            std::shared_ptr<DatagramTarget>& known = targets_[qpn];
            if (known == nullptr || instead_of != nullptr) {
                known = of_.process.datagram_targets().find(of_.process.node(), qpn, instead_of);
            }
            last_ = known.get();
        } catch (const std::exception& error) {
            base::log(base::LogLevel::warn, "soft", "cannot reach queue pair {:#x}: {}", qpn,
                      error.what());
        }
        if (last_ == nullptr) targets_.erase(qpn);
    };
    if (last_ == nullptr || last_qpn_ != qpn) look_up(nullptr);
    using Result = DatagramTarget::Result;
    Result result = last_ != nullptr ? last_->deliver(message) : Result::dropped;
    if (result == Result::stale) {
        look_up(last_);
        if (last_ != nullptr) result = last_->deliver(message);
    }
    if (result != Result::delivered) of_.counters.add(Count::dropped);
}

void DatagramSender::forget_gone() noexcept {
    std::erase_if(targets_, [this](const auto& known) {
        if (!known.second->gone()) return false;
        if (known.second.get() == last_) last_ = nullptr;
        return true;
    });
}

void DatagramSender::send_to_group(const ibv_gid& group, const DatagramMessage& message) noexcept {
    try {
        Node& node = of_.process.node();
        for (const std::uint32_t member : groups_.members(node, group_name(group))) {
            send_to(member, message);
        }
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "soft", "a multicast message was not sent: {}",
                  error.what());
    }
}

void DatagramSender::deliver(const DatagramAddress& to, const DatagramMessage& message) noexcept {
    switch (to.kind) {
        case DatagramAddress::Kind::nobody: return;
        case DatagramAddress::Kind::queue_pair: return send_to(to.qpn, message);
        case DatagramAddress::Kind::group: return send_to_group(to.group, message);
    }
}

void DatagramSender::send(const DatagramAddress& to, const DatagramMessage& message,
                          std::uint32_t flags, std::uint32_t slot) noexcept {
    const bool signaled = (flags & IBV_SEND_SIGNALED) != 0;
    if (flights_ != nullptr) {
        flights_->add(message, to, slot, signaled, bytes_);
        return;
    }
    deliver(to, message);
    if (signaled) complete(slot, bytes_);
}

ibv_wc_status DatagramSender::run(const ibv_send_wr& wr, std::uint32_t flags,
                                  std::uint32_t slot) noexcept {
    const auto& ah = *static_cast<const AddressHandle*>(wr.wr.ud.ah);
    if (static_cast<ProtectionDomain*>(ah.pd)->number != of_.end.pd) {
        return IBV_WC_LOC_QP_OP_ERR;
    }
    const HazardScope scope{of_.block.hazard->send, of_.asymmetric};
    DatagramMessage message;
    std::uint64_t total = 0;
    if (!keys_.gather(wr.sg_list, wr.num_sge, (wr.send_flags & IBV_SEND_INLINE) != 0, 0,
                      message.pieces.data(), message.count, total)) {
        return IBV_WC_LOC_PROT_ERR;
    }
    RegionNames names;
    for (std::uint32_t i = 0; i < message.count; ++i) names.add_sender(message.pieces[i].key);
    names.publish(of_.block.hazard->send);
    bytes_ = static_cast<std::uint32_t>(total);
    if (total > datagram_mtu) {
        static std::atomic<bool> said{false};
        if (!said.exchange(true, std::memory_order_relaxed)) {
            base::log_line(base::LogLevel::warn, "soft",
                           "a UD message longer than the MTU of 4096 bytes was not sent: split it "
                           "(said once)");
        }
        message.count = 0;
        send({}, message, flags, slot);
        return IBV_WC_SUCCESS;
    }
    message.bytes = bytes_;
    message.source = of_.end.qpn;
    // A Q_Key with the highest bit set stands for the queue pair's own (IBTA 10.2.4).
    const std::uint32_t qkey = wr.wr.ud.remote_qkey;
    message.qkey = (qkey & 0x80000000U) != 0 ? of_.qkey : qkey;
    message.flags = std::uint32_t{ah.attributes.sl} << completion_service_level_shift;
    if ((flags & IBV_SEND_SOLICITED) != 0) message.flags |= completion_solicited;
    if (wr.opcode == IBV_WR_SEND_WITH_IMM) {
        message.flags |= completion_immediate;
        message.immediate = wr.imm_data;
    }
    ibv_grh grh;
    if (ah.attributes.is_global != 0) {
        // What follows it: BTH, DETH, immediate, payload padded to words, ICRC.
        const std::uint32_t immediate = wr.opcode == IBV_WR_SEND_WITH_IMM ? 4 : 0;
        grh = header_for(ah, 12 + 8 + immediate + ((bytes_ + 3) & ~3U) + 4);
        message.grh = &grh;
        message.flags |= completion_grh;
    }
    DatagramAddress to;
    const std::uint32_t qpn = wr.wr.ud.remote_qpn & 0xffffff;
    if (wire_ != nullptr && wire_->carries(ah.attributes, qpn)) {
        if (!wire_->send(message, qpn)) of_.counters.add(Count::dropped);
        to.kind = DatagramAddress::Kind::nobody;
    } else if (ah.multicast) {
        to.kind = DatagramAddress::Kind::group;
        to.group = ah.attributes.grh.dgid;
    } else if (ah.reaches_host) {
        to.kind = DatagramAddress::Kind::queue_pair;
        to.qpn = qpn;
    }
    send(to, message, flags, slot);
    of_.counters.add(Count::send);
    return IBV_WC_SUCCESS;
}

bool DatagramSender::takes(const ibv_send_wr& wr) const noexcept { return wr.wr.ud.ah != nullptr; }

ibv_wc_status DatagramSender::post(const ibv_send_wr& wr, std::uint32_t flags,
                                   std::uint32_t slot) noexcept {
    const ibv_wc_status status = run(wr, flags, slot);
    if (status == IBV_WC_SUCCESS) [[likely]]
        return status;
    if (flights_ == nullptr) {
        failed_ = 1;
        return status;
    }
    flights_->add_failure(slot, status);  // in its turn
    return IBV_WC_SUCCESS;
}

void DatagramSender::restart() noexcept {
    failed_ = 0;
    if (flights_ != nullptr) flights_->restart();
}

ibv_wc_status DatagramSender::move() noexcept {
    if (wire_ != nullptr) wire_->flush();
    if (flights_ == nullptr) return IBV_WC_SUCCESS;
    const std::int64_t now = cable_now();
    complete_left(now);
    for (LandedDatagram landed; flights_->take_landed(now, landed); complete_left(now)) {
        deliver(landed.to, landed.message);
    }
    return flights_->expect_next(now);
}

void DatagramSender::abort() noexcept {
    if (flights_ == nullptr) return;
    complete_left(cable_now());
    flights_->ground();
}

void DatagramSender::complete_left(std::int64_t now) noexcept {
    for (LeftDatagram left; flights_->take_left(now, left);) complete(left.slot, left.bytes);
}

void DatagramSender::complete(std::uint32_t slot, std::uint32_t bytes) noexcept {
    completions_.write(completions_.position(), bytes, 0, slot);
}

}  // namespace millrace::soft
