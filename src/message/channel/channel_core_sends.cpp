// What an end of a channel does otherwise where messages go by SEND; incoming.hpp has the protocol.

#include "channel/channel_core.hpp"
#include "channel/shared_receives.hpp"
#include "each_completion.hpp"

namespace millrace::message {

base::Status Channel::Core::post_send(const Transmission& frame, std::uint64_t& counter) noexcept {
    const ibv_sge slice{send_ring_address + frame.offset, static_cast<std::uint32_t>(frame.bytes),
                        send_ring_key};
    const bool is_inline = frame.bytes <= max_inline;
    writer.pass_slot(peer_slot);
    room = 0;
    // What takes the last slot is waited for, and where credit is loaded from the peer's memory no
    // READ would leave a completion.
    const bool is_last = writer.free_bytes(reusable) < peer_slot;
    ++counter;
    return window().post(
        verbs::Send{.from = {&slice, 1},
                    .flags = is_inline ? verbs::SendFlags::inlined : verbs::SendFlags::none},
        is_last ? end::Signal::now : signal);
}

void Channel::Core::poll_receives() noexcept {
    if (window().is_copy()) return;  // they are the parent's to take
    if (ways.shared != nullptr) return ways.shared->poll();
    if (!incoming.has_value()) return;
    if (!each_completion(link().receive_queue(),
                         [this](const verbs::Completion& completion) { take(completion); })) {
        sleeper->failed();
    }
}

void Channel::Core::take(const verbs::Completion& completion) noexcept {
    if (!completion.ok()) return sleeper->failed();
    const auto slot = static_cast<std::uint32_t>(completion.id());
    if (incoming.has_value() && !incoming->completed(slot)) return sleeper->failed();
    const bool is_event = completion.raw.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    if (!is_event && incoming.has_value() &&
        incoming->take({.slot = slot, .bytes = completion.bytes()})) {
        if (incoming->is_single()) place_next();
        return;
    }
    const bool posted = incoming.has_value() ? incoming->post(slot) : ways.shared->post(slot);
    if (!posted) sleeper->failed();
    if (is_event) {
        sleeper->rang(completion.immediate());
        if (incoming.has_value() && incoming->empty()) reader.expect(incoming->hint());
    } else {
        fail_receiving(incoming.has_value() ? "the peer sent more than it had credits for"
                                            : "the peer sent where it was to write");
    }
}

void Channel::Core::place_next() noexcept {
    if (incoming->empty()) return reader.expect(incoming->hint());
    const Incoming::Arrival& arrival = incoming->front();
    if (!reader.place(incoming->place(arrival), arrival.bytes)) {
        fail_receiving("the peer sent what is no frame");
    }
}

void Channel::Core::pass_slot() noexcept {
    const std::uint32_t slot = incoming->front().slot;
    incoming->pop();
    if (!incoming->post(slot)) sleeper->failed();
    reader.pass_slot(incoming->slot_bytes());
    place_next();
    const std::uint64_t position = reader.position();
    ControlPage& own = *own_page;
    own.consumed.store(ring::PositionWord::pack(position));
    own.wake_up.progress.store(sent_half | Progress::units(position));
}

void Channel::Core::fail_receiving(std::string_view why) noexcept {
    fail(why);
    ended_receiving = base::Status::peer_lost;
    note_plain();
}

bool Incoming::post(std::uint32_t slot) noexcept {
    if (shared_ != nullptr) return shared_->post(slot);
    return slots_.post(*queue_pair_, slot) == 0 && posted_.push(slot);
}

}  // namespace millrace::message
