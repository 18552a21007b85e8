// SharedSender, see the header.
#include "lane/shared_sender.hpp"

#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"

namespace millrace::message {

using base::Status;

bool SharedFacts::is_valid(std::size_t packet_bytes) const noexcept {
    constexpr std::uint32_t most_places = 1U << 20;
    return zero == 0 && places <= most_places && place < places && slots <= most_shared_slots &&
           std::has_single_bit(slots) && lines / 2 >= in_shared_lines(packet_bytes);
}

namespace {
[[nodiscard]] const SharedFacts& checked(const SharedFacts& facts, std::size_t packet_bytes,
                                         const connect::Link& link) {
    if (facts.is_valid(packet_bytes)) return facts;
    throw base::Error{
        base::ErrorCode::protocol, "set up messages over packets",
        fmt::format("peer {}", link.peer_name()),
        fmt::format("its shared buffer has {} lines, {} packets of a client, place {} of {}",
                    facts.lines, facts.slots, facts.place, facts.places),
        "use the same build of millrace on both sides"};
}
}  // namespace

SharedSender::SharedSender(connect::Link& link, end::SendWindow& window, ring::Carrier carrier,
                           const SharedFacts& facts, std::uint64_t token, std::size_t packet_bytes)
    : window_{&window},
      places_{checked(facts, packet_bytes, link).shape(), shared_seed(token), base::random_bits()},
      shape_{facts.shape()},
      remote_{facts.address, facts.rkey},
      row_at_{shape_.row_at(facts.place)},
      memory_{ring::PeerMemory::behind(link, carrier, {}).map(remote_, shape_.bytes())} {
    if (stores()) return;
    words_ = link.allocate((shape_.row() + 1) * sizeof(std::uint64_t), verbs::Access::local_write);
    inlines_ = link.queue_pair().capacity().max_inline_data >= sizeof(std::uint64_t);
}

Status SharedSender::send(PacketChain& chain, std::span<const std::byte> packet, std::uint32_t key,
                          verbs::SendFlags flags, end::Signal signal) noexcept {
    // Both or none: of a packet that was not sent as a whole the stream writes the head anew.
    if (!stores() && window_->free() < requests) {
        (void)window_->reap();
        if (window_->free() < requests && !window_->broken()) return Status::full;
    }
    const SharedPlaces::Place place = places_.next(packet);
    const std::size_t at = shape_.buffer_at() + std::size_t{place.line} * shared_line_bytes;
    const std::size_t word_at = row_at_ + place.word * sizeof(std::uint64_t);
    has_sent_ = true;
    if (stores()) {
        // Packets lie at multiples of 16, and the lines are this packet's up to their end.
        copy_in_words(memory_.get() + at, packet.data(), packet.size());
        base::telling_peers();
        std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(memory_.get() + word_at)}
            .store(place.content, std::memory_order_release);
        return Status::ok;
    }
    ibv_sge& slice = chain.slices[chain.batch.size()];
    slice = {reinterpret_cast<std::uint64_t>(packet.data()),
             static_cast<std::uint32_t>(packet.size()), key};
    const Status status = window_->chain(
        chain.batch, verbs::Write{.from = {&slice, 1}, .to = remote_ + at, .flags = flags},
        end::Signal::when_due);
    if (status != Status::ok) return status;
    std::memcpy(words_.data() + place.word * sizeof(std::uint64_t), &place.content,
                sizeof place.content);
    ibv_sge& word = chain.slices[chain.batch.size()];
    word = words_.slice(place.word * sizeof(std::uint64_t), sizeof(std::uint64_t));
    return window_->chain(
        chain.batch,
        verbs::Write{.from = {&word, 1},
                     .to = remote_ + word_at,
                     .flags = inlines_ ? verbs::SendFlags::inlined : verbs::SendFlags::none},
        signal);
}

void SharedSender::sent(Time now) noexcept {
    if (!std::exchange(has_sent_, false)) return;
    if (!stores()) {
        if (!is_unchecked_) unchecked_since_ = now;
        is_unchecked_ = true;
        return;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    take(std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(memory_.get())}.load(
             std::memory_order_relaxed),
         now);
}

void SharedSender::take(std::uint64_t resting, Time now) noexcept {
    if (resting % 2 == 0 || resting == rung_) return;
    if (window_->post(verbs::Send{}, end::Signal::now, end::Slot::reserved) == Status::ok) {
        rung_ = resting;
        ++rings_;
        return;
    }
    is_unchecked_ = true;
    unchecked_since_ = now;
}

void SharedSender::idle(Time now) noexcept {
    if (reading_ != 0) {
        if (!window_->done(reading_)) (void)window_->reap();
        if (!window_->done(reading_)) return;
        reading_ = 0;
        base::heard_from_peers();
        std::uint64_t resting;
        std::memcpy(&resting, words_.data() + shape_.row() * sizeof(std::uint64_t), sizeof resting);
        take(resting, now);
    }
    if (!is_unchecked_ || now - unchecked_since_ < patience) return;
    if (stores()) {
        is_unchecked_ = false;
        has_sent_ = true;
        return sent(now);
    }
    const ibv_sge landing =
        words_.slice(shape_.row() * sizeof(std::uint64_t), sizeof(std::uint64_t));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (window_->post(verbs::Read{.into = {&landing, 1}, .from = remote_}, end::Signal::now) ==
        Status::ok) {
        reading_ = window_->posted();
        is_unchecked_ = false;
        ++reads_;
    }
}

}  // namespace millrace::message
