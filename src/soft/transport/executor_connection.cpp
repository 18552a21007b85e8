// Who the executor's two ends are, whether they are still connected to each other, and in which
// state.
#include <algorithm>
#include <cstdint>

#include "system/cable_time.hpp"
#include "transport/executor.hpp"
#include "transport/path.hpp"

namespace millrace::soft {

Executor::Executor() noexcept { disconnect(); }

void Executor::connect(Node* node, PeerNode* peer, const End& sender, const End& receiver,
                       bool asymmetric, Counters* counters) noexcept {
    disconnect();
    connected_ = true;
    reliable_ = sender.type == IBV_QPT_RC;
    sender_.end = sender;
    receiver_.end = receiver;
    receiver_.open(node, peer, asymmetric, *counters);
    sender_.keys.open(sender_.end, node, peer);
    sender_.completions.open(
        sender.block, CompletionRing::Of::sends,
        {sender.bell_send, sender.news_send, sender.mine ? nullptr : peer}, asymmetric, *counters);
    asymmetric_ = asymmetric;
    copies_refused_ = peer != nullptr && peer->copies_refused();
    hazard_ = sender.mine ? &sender.block.hazard->send : &receiver.block.hazard->run;
    receiver_state_ = receiver.mine ? receiver.state_word : &receiver.block.control->state_word;
}

void Executor::disconnect() noexcept {
    receiver_.close();
    sender_.end = End{};
    sender_.keys.close();
    sender_.completions.close();
    sender_.bell_async = PeerBell{};
    receiver_word_ = no_word;
    sender_word_ = no_word;
    limit_messages(max_message_bytes);
    abandoned_ = false;
    hazard_ = nullptr;
    connected_ = false;
}

bool Executor::be_ready_for_first() noexcept {
    if (receiver_.end.mine || !receiver_stands()) return false;
    receiver_.completions.open_bell();
    // Where there is no memory for them, the first look-up tries again.
    receiver_.keys.make_places();
    sender_.keys.make_places();
    return true;
}

void Executor::limit_messages(std::uint32_t longest) noexcept {
    longest_ = longest;
    longest_inline_ = std::min(longest, sender_.end.block.inline_bytes);
}

void Executor::forget_regions() noexcept {
    if (!receiver_.end.mine) receiver_.keys.forget();
    if (!sender_.end.mine) sender_.keys.forget();
}

bool Executor::verify(const Side& peer, const Side& other, std::uint64_t word) noexcept {
    const End& end = peer.end;
    const std::uint64_t mine =
        make_state_word(end.generation, index_of_qpn(end.qpn), 0, IBV_QPS_RESET);
    constexpr std::uint64_t who = ~std::uint64_t{0} << 32;
    if ((word & who) != (mine & who)) return false;  // the block is another queue pair's now
    if (load_once(end.block.control->type) != static_cast<std::uint16_t>(other.end.type))
        return false;
    const std::uint64_t destination =
        end.block.control->destination.load(std::memory_order_acquire);
    // Only a peer that has mapped our block can wait for our hazards: until then, it is not ready.
    return destination == make_destination(other.end.generation, other.end.qpn);
}

bool Executor::receiver_changed(std::uint64_t word) noexcept {
    const std::uint64_t state = word & state_mask;
    if (state < IBV_QPS_RTR || state > IBV_QPS_SQE) return false;
    if (!verify(receiver_, sender_, word)) return false;
    const Reason way = compare_paths(path_of(sender_), path_of(receiver_), reliable_);
    if (way.kind != ReasonKind::none && way.kind != ReasonKind::other_mtu) return false;
    limit_messages(way.kind == ReasonKind::none ? max_message_bytes : longest_message(way));
    receiver_word_ = (word & ~state_mask) | IBV_QPS_RTR;
    receiver_.look_at_receives();
    if (state == IBV_QPS_RTR) {
        receiver_.end.block.fault->wishes.fetch_or(wish_established, std::memory_order_release);
        receiver_.ring_async();
    }
    return true;
}

bool Executor::receiver_stands() const noexcept {
    const std::uint64_t word = receiver_state_->load(std::memory_order_acquire);
    const std::uint64_t state = word & state_mask;
    return state >= IBV_QPS_RTR && state <= IBV_QPS_SQE && verify(receiver_, sender_, word);
}

Reason Executor::way_of(const Side& from, const Side& to) const noexcept {
    if (!connected_ || receiver_.peer() == nullptr) return {};
    const auto is_in = [](const Side& side, const Side& other, ibv_qp_state first) {
        const std::atomic<std::uint64_t>& place =
            side.end.mine ? *side.end.state_word : side.end.block.control->state_word;
        const std::uint64_t word = place.load(std::memory_order_acquire);
        const std::uint64_t state = word & state_mask;
        return state >= first && state <= IBV_QPS_SQE && verify(side, other, word);
    };
    if (!is_in(to, from, IBV_QPS_RTR) || !is_in(from, to, IBV_QPS_RTS)) return {};
    return compare_paths(path_of(from), path_of(to), reliable_);
}

bool Executor::sender_ready() noexcept {
    const std::uint64_t word =
        sender_.end.block.control->state_word.load(std::memory_order_acquire);
    if (word == sender_word_) [[likely]]
        return true;
    const std::uint64_t state = word & state_mask;
    // In SQD it shows only what it had posted before.
    if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return false;
    if (!verify(sender_, receiver_, word)) return false;
    sender_word_ = word;
    look_at_way_again();  // it is connected anew
    return true;
}

bool Executor::could_go_on(Progress progress) noexcept {
    std::uint32_t position = 0;
    switch (progress) {
        case Progress::done: return true;
        case Progress::no_receive:
            if (!receiver_ready()) return false;
            return receiver_.receive_available(position) &&
                   (!receiver_.end.pool || receiver_.end.pool.peek().slot != nullptr);
        case Progress::no_peer: return receiver_ready();
        case Progress::not_due: return cable_now() >= due_;
        case Progress::gone:
        case Progress::owners:
        case Progress::busy:
        case Progress::held:
        case Progress::failed: return false;
    }
    return false;
}

}  // namespace millrace::soft
