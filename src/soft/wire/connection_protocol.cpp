#include "wire/connection_protocol.hpp"

#include <algorithm>

#include "layout/block_layout.hpp"
#include "roce/requester.hpp"
#include "roce/responder.hpp"
#include "roce/unreliable.hpp"

namespace millrace::soft {
namespace {

/// What a receiver's socket has room for, as a packet takes up to twice its own bytes there; never
/// so little that a round trip is felt, and no more than the caches of processors have.
constexpr std::uint32_t least_window_bytes = 131'072;
constexpr std::uint32_t most_window_bytes = 524'288;
constexpr std::uint32_t least_window = 32;
constexpr std::uint32_t most_window = 128;

[[nodiscard]] std::uint32_t mtu_of(const ibv_qp_attr& attributes) noexcept {
    return 128U << attributes.path_mtu;
}

class Reliable final : public ConnectionProtocol {
  public:
    Reliable(roce::SendSide& sends, roce::ReceiveSide& receives, std::uint32_t most_requests,
             std::uint32_t receive_buffer)
        : requester_{sends, most_requests, max_reads},
          responder_{receives, max_reads},
          window_bytes_{std::clamp(receive_buffer / 4 * 3, least_window_bytes, most_window_bytes)} {
    }

    void start_receiving(const ibv_qp_attr& attributes) noexcept override {
        responder_.start(responder_attributes(attributes));
    }
    void start_sending(const ibv_qp_attr& attributes) noexcept override {
        requester_.start(requester_attributes(attributes));
    }
    void change(const ibv_qp_attr& attributes) noexcept override {
        responder_.change(responder_attributes(attributes));
        requester_.change(requester_attributes(attributes));
    }
    void hold(bool held) noexcept override { requester_.hold(held); }
    void post(const roce::Request& request) noexcept override { requester_.post(request); }
    void arrived(const roce::Packet& packet, std::int64_t now) noexcept override {
        roce::is_answer(packet.kind) ? requester_.arrived(packet, now)
                                     : responder_.arrived(packet, now);
    }
    void answer(std::int64_t now, roce::Outlet& outlet) noexcept override {
        static_cast<void>(responder_.send(now, outlet, true));
    }
    bool send(std::int64_t now, roce::Outlet& outlet, bool acknowledges) noexcept override {
        // What the peer waits for goes first: that is an answer's data, or one short message.
        const bool is_short = requester_.has_one_packet();
        const bool answered = responder_.send(now, outlet, acknowledges && !is_short);
        const bool sent = requester_.send(now, outlet);
        return (!is_short || responder_.send(now, outlet, acknowledges)) && sent && answered;
    }
    [[nodiscard]] bool owes_acknowledgement() const noexcept override {
        return responder_.owes_acknowledgement();
    }
    [[nodiscard]] std::int64_t next_deadline(bool acknowledges) const noexcept override {
        std::int64_t answers = responder_.next_deadline();
        if (!acknowledges && answers != 0) answers = roce::never;
        return std::min(requester_.next_deadline(), answers);
    }
    [[nodiscard]] bool is_drained() const noexcept override { return requester_.is_drained(); }
    [[nodiscard]] std::uint32_t abort() noexcept override { return requester_.abort(); }
    [[nodiscard]] std::uint64_t repeated() const noexcept override {
        return requester_.counts().repeated;
    }

  private:
    [[nodiscard]] roce::RequesterAttributes requester_attributes(
        const ibv_qp_attr& attributes) const noexcept {
        roce::RequesterAttributes its;
        its.destination = attributes.dest_qp_num;
        its.first_psn = attributes.sq_psn;
        its.mtu = mtu_of(attributes);
        its.timeout = attributes.timeout;
        its.retry_count = attributes.retry_cnt;
        its.rnr_retry = attributes.rnr_retry;
        its.most_reads = attributes.max_rd_atomic;
        its.window = std::clamp(window_bytes_ / its.mtu, least_window, most_window);
        return its;
    }
    [[nodiscard]] static roce::ResponderAttributes responder_attributes(
        const ibv_qp_attr& attributes) noexcept {
        roce::ResponderAttributes its;
        its.destination = attributes.dest_qp_num;
        its.first_psn = attributes.rq_psn;
        its.mtu = mtu_of(attributes);
        its.min_rnr_timer = attributes.min_rnr_timer;
        its.most_reads = attributes.max_dest_rd_atomic;
        return its;
    }

    roce::Requester requester_;
    roce::Responder responder_;
    const std::uint32_t window_bytes_;
};

class Unreliable final : public ConnectionProtocol {
  public:
    Unreliable(roce::SendSide& sends, roce::ReceiveSide& receives, std::uint32_t most_requests)
        : sender_{sends, most_requests}, receiver_{receives} {}

    void start_receiving(const ibv_qp_attr& attributes) noexcept override {
        receiver_.start(its_attributes(attributes, attributes.rq_psn));
    }
    void start_sending(const ibv_qp_attr& attributes) noexcept override {
        sender_.start(its_attributes(attributes, attributes.sq_psn));
    }
    void change(const ibv_qp_attr&) noexcept override {}
    void hold(bool held) noexcept override { sender_.hold(held); }
    void post(const roce::Request& request) noexcept override { sender_.post(request); }
    void arrived(const roce::Packet& packet, std::int64_t) noexcept override {
        receiver_.arrived(packet);
    }
    bool send(std::int64_t, roce::Outlet& outlet, bool) noexcept override {
        return sender_.send(outlet);
    }
    [[nodiscard]] std::int64_t next_deadline(bool) const noexcept override { return roce::never; }
    [[nodiscard]] bool is_drained() const noexcept override { return sender_.is_drained(); }
    [[nodiscard]] std::uint32_t abort() noexcept override { return sender_.abort(); }

  private:
    [[nodiscard]] static roce::UnreliableAttributes its_attributes(const ibv_qp_attr& attributes,
                                                                   std::uint32_t psn) noexcept {
        roce::UnreliableAttributes its;
        its.destination = attributes.dest_qp_num;
        its.first_psn = psn;
        its.mtu = mtu_of(attributes);
        return its;
    }

    roce::UnreliableSender sender_;
    roce::UnreliableReceiver receiver_;
};

}  // namespace

std::unique_ptr<ConnectionProtocol> ConnectionProtocol::make(ibv_qp_type type,
                                                             roce::SendSide& sends,
                                                             roce::ReceiveSide& receives,
                                                             std::uint32_t most_requests,
                                                             std::uint32_t receive_buffer) {
    if (type == IBV_QPT_UC) return std::make_unique<Unreliable>(sends, receives, most_requests);
    return std::make_unique<Reliable>(sends, receives, most_requests, receive_buffer);
}

}  // namespace millrace::soft
