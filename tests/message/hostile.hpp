// A peer of a message server that keeps to the protocol of its connection, and above it does what
// it likes. Used by tests of what such peers can do.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>

#include "channel/setup.hpp"
#include "lane/any_lane.hpp"
#include "lane/lanes.hpp"
#include "message/lane_inside.hpp"
#include "message/serving.hpp"

namespace millrace::message {

/// A peer that speaks the protocol of its connection, and above it whatever it likes.
struct Hostile {
    explicit Hostile(const Server& server) : line{meet(server)} {}
    static AnyLane meet(const Server& server) {
        ChannelOptions options;
        options.endpoint = connect::Endpoint::shared();
        connect::LinkOptions link = link_options(options, server_service);
        link.transport = chosen_way().transport;
        if (!chosen_way().has_rings()) {
            return AnyLane{
                connect_network_lane(server.address(), link, options_of_client(), patience())};
        }
        link.max_receive_requests = receives_for(options.ring_bytes, Ways::default_slot_bytes);
        return AnyLane{std::make_unique<RingLane>(
            set_up(connect::connect(server.address(), link, patience()), options, patience(),
                   {.sends = chosen_way().requests, .receives = chosen_way().answers}),
            std::size_t{1} << 20)};
    }
    void send(std::span<const std::byte> message) {
        std::span<std::byte> place;
        if (line->claim(message.size(), place) != base::Status::ok) return;
        std::copy(message.begin(), message.end(), place.begin());
        (void)line->commit(message.size());
    }
    void send(const SessionHeader& header, std::span<const std::byte> payload = {}) {
        (void)line->try_send(pack(header), payload);
    }
    /// `large`: it may announce, and be announced, what is longer than others.
    Welcome join(bool large = false) {
        send({.kind = SessionKind::hello},
             pack(Hello{.window = 8,
                        .max_answer = large ? std::uint64_t{1} << 20 : 100,
                        .reads_large = large,
                        .batches = takes_batches}));
        std::span<const std::byte> message;
        base::Status status = base::Status::empty;
        const base::Deadline deadline = patience();
        for (bool is_over = false; status != base::Status::ok && !is_over;) {
            is_over = has_gone(status) || deadline.expired();
            status = line->look(message);
        }
        if (status != base::Status::ok) {
            ADD_FAILURE() << "no welcome came: " << name_of(status);
            return {};
        }
        const std::optional<Welcome> welcome = parse_welcome(message.subspan(16));
        line->pass();
        EXPECT_TRUE(welcome.has_value());
        return welcome.value_or(Welcome{});
    }
    [[nodiscard]] bool is_dismissed() {
        const base::Deadline deadline = patience();
        base::Status status = base::Status::empty;
        while (!deadline.expired()) {
            if (has_gone(status)) return true;
            if (line.ring() != nullptr) {
                std::this_thread::sleep_for(std::chrono::microseconds{200});
                continue;
            }
            std::span<const std::byte> message;
            status = line->look(message);
            if (status == base::Status::ok) line->pass();
        }
        return false;
    }
    /// Has its server left it? `last`: what its last look answered.
    [[nodiscard]] bool has_gone(base::Status last) {
        if (line.ring() != nullptr) return line->link().peer_now() != connect::PeerState::alive;
        return last == base::Status::closed || last == base::Status::peer_lost;
    }
    [[nodiscard]] Channel::Core& core() const { return RingLaneInside::core_of(*line.ring()); }
    AnyLane line;
    bool takes_batches = false;  ///< as its hello says
};

/// How a request of this peer ends. Its connection may be over behind it.
template <class Request>
ibv_wc_status end_of(Hostile& hostile, Request request) {
    connect::Link& link = hostile.line->link();
    request.id = ~std::uint64_t{0};
    request.flags = request.flags | verbs::SendFlags::signaled;
    EXPECT_EQ(link.queue_pair().post(request), 0);
    verbs::Completion completion;
    const base::Deadline deadline = patience();
    while (!deadline.expired()) {
        if (link.send_queue().poll({&completion, 1}) == 0) continue;
        if (completion.id() == request.id) return completion.status();
        // An earlier one of the connection itself.
        if (completion.status() != IBV_WC_SUCCESS) return completion.status();
    }
    ADD_FAILURE() << "it did not end";
    return IBV_WC_GENERAL_ERR;
}

}  // namespace millrace::message
