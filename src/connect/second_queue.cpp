// A link's second queue pair: made and connected over the link's own exchange.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "link_state.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/wire.hpp"

namespace millrace::connect {
namespace {

/// Number and packet sequence, little-endian. All else is as for the first queue pair.
constexpr std::size_t address_bytes = 8;

std::array<std::byte, address_bytes> encode(const verbs::QueuePairAddress& address) noexcept {
    std::array<std::byte, address_bytes> bytes;
    for (std::size_t i = 0; i < 4; ++i) {
        bytes[i] = static_cast<std::byte>(address.number >> (8 * i));
        bytes[4 + i] = static_cast<std::byte>(address.packet_sequence >> (8 * i));
    }
    return bytes;
}

/// `answer`: what the peer has said of its queue pair.
void connect_second_queue(Link::State& link, std::span<const std::byte> answer) {
    if (answer.size() != address_bytes) {
        throw base::Error{base::ErrorCode::protocol, "open a second queue pair", link.peer_name,
                          fmt::format("the peer described its queue pair in {} bytes, not {}",
                                      answer.size(), address_bytes),
                          "use the same version of the library at both ends"};
    }
    verbs::QueuePairAddress other = link.other.queue_pair;
    other.number = other.packet_sequence = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        other.number |= std::to_integer<std::uint32_t>(answer[i]) << (8 * i);
        other.packet_sequence |= std::to_integer<std::uint32_t>(answer[4 + i]) << (8 * i);
    }
    other.packet_sequence &= 0xffffff;
    link.second->pair.connect(other, link.second->own.packet_sequence, link.path);
    if (link.leaves_out_icrc) verbs::leave_out_icrc(link.second->pair);
}

}  // namespace

using Stage = Link::State::SecondQueue::Stage;

bool Link::has_second_queue() const noexcept {
    return state_->second != nullptr && state_->second->stage == Stage::open;
}
verbs::QueuePair& Link::second_queue_pair() noexcept { return state_->second->pair; }
verbs::CompletionQueue& Link::second_send_queue() noexcept { return state_->second->completions; }

void Link::begin_second_queue(std::uint32_t max_send_requests) {
    State& link = *state_;
    if (link.second != nullptr) {
        throw base::Error{base::ErrorCode::invalid_argument, "open a second queue pair",
                          link.peer_name, "the link has one already", "use that"};
    }
    link.take("open a second queue pair", {.queue_pairs = 1});
    State::SecondQueue second;
    // As many entries as a device may grant slots: see the first queue pair's.
    second.completions = link.endpoint->context().create_completion_queue(
        static_cast<int>(2 * max_send_requests + 1), &link.channel);
    second.pair = protection_domain().create_queue_pair({
        .send_queue = &second.completions,
        .receive_queue = &second.completions,
        .max_send_requests = max_send_requests,
        .max_receive_requests = 1,
        .max_send_slices = 1,
        .max_inline = 16,
    });
    second.pair.initialise(link.path.port,
                           verbs::Access::remote_write | verbs::Access::remote_read);
    second.own = link.own.queue_pair;
    second.own.number = second.pair.number();
    say(encode(second.own));
    link.second = std::make_unique<State::SecondQueue>(std::move(second));
}

bool Link::try_open_second_queue() {
    State::SecondQueue& second = *state_->second;
    if (second.stage == Stage::told) {
        const std::optional<std::vector<std::byte>> answer = heard();
        if (!answer.has_value()) return false;
        connect_second_queue(*state_, *answer);
        // Nothing may be sent before both are connected.
        say({});
        second.stage = Stage::connected;
    }
    if (second.stage == Stage::connected && heard().has_value()) second.stage = Stage::open;
    return second.stage == Stage::open;
}

void Link::open_second_queue(std::uint32_t max_send_requests, const base::Deadline& deadline) {
    begin_second_queue(max_send_requests);
    State::SecondQueue& second = *state_->second;
    connect_second_queue(*state_, hear(deadline));
    (void)exchange({}, deadline);
    second.stage = Stage::open;
}

}  // namespace millrace::connect
