// Sender's setup and its slow paths: room, batches, flush, the end. Included by the files that make
// Senders of the designs of one data flow; brings the other parts along.
#pragma once

#include "millrace/ring/sender.hpp"
#include "sender_mover.hpp"
#include "transmitter_parts.hpp"
#include "transmitter_pull.hpp"
#include "transmitter_push1.hpp"
#include "transmitter_push2.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace millrace::ring {

using base::Status;

template <Design D>
    requires(check_design<D>())
Sender<D>::Sender(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link, Design design,
                  const RingOptions& options, const ItemFacts& item, const base::Deadline& deadline,
                  const Setup& setup)
    : batching_{design.batching},
      endpoint_{std::move(endpoint)},
      terms_{agree(link, Role::producer, design, options, item, deadline, setup.proposals)},
      page_memory_{link.allocate_packed(sizeof(detail::SenderPage),
                                        verbs::Access::remote_write | verbs::Access::remote_read)},
      out_{std::move(link), terms_, page_memory_, design, options},
      peer_memory_{PeerMemory::behind(out_.end().link(), options.carrier, why_posted(D))} {
    connect::Link& its_link = out_.end().link();
    if (D.data == DataFlow::pull) {
        ring_memory_ =
            its_link.allocate(terms_.ring_bytes + mark_bytes, verbs::Access::remote_read);
        ring_ = ring_memory_.data();
    }
    if (D.data != DataFlow::pull && !(peer_memory_.stores() && design.mover == Mover::passive)) {
        its_link.reserve(terms_.ring_bytes + mark_bytes);  // see join()
    }
    slices_ = std::clamp<std::size_t>(its_link.queue_pair().capacity().max_send_sge, 1, max_slices);
    produced_ = room_end_ = terms_.initial;
    set_offset(0);
    if (batching_ == Batching::fixed) gather_ = terms_.batch_bytes;

    using detail::SenderPage;
    join_ = std::make_unique<detail::Join>(its_link, design, options, setup.joining);
    const Places mine{
        .ring = D.data == DataFlow::pull ? ring_memory_.remote() : verbs::RemoteAddress{},
        .page = page_memory_.remote(offsetof(SenderPage, wake)),
        .credit = page_memory_.remote(offsetof(SenderPage, credit)),
        .transfer = page_memory_.remote(offsetof(SenderPage, transfer)),
        .taken = page_memory_.remote(offsetof(SenderPage, taken))};
    if (const auto theirs = join_->meet(mine, terms_, deadline)) {
        join(*theirs);
    } else {
        (void)try_join();
    }
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::join(const Places& theirs) {
    const bool is_passive = join_->design.mover == Mover::passive;
    const RingOptions& options = join_->options;
    const std::uint64_t size = terms_.ring_bytes;
    std::shared_ptr<std::byte> peer_ring = peer_memory_.map(theirs.ring, size);
    if (peer_ring != nullptr && is_passive) {
        terms_.in_place = true;
        peer_ring_ = std::move(peer_ring);
        ring_ = peer_ring_.get();
    } else if (D.data != DataFlow::pull) {
        ring_memory_ = out_.end().link().allocate(size + mark_bytes, verbs::Access::none);
        ring_ = ring_memory_.data();
    }
    set_offset(0);  // nothing was laid yet
    out_.meet(theirs, peer_memory_, page_memory_, options,
              terms_.in_place ? nullptr : &ring_memory_, std::move(peer_ring));
    holds_marks_ = may_hold_marks && (D.data == DataFlow::pull || terms_.in_place) &&
                   batching_ != Batching::none && is_passive;
    if (!is_passive) {
        out_.moved();
        way_ = Way::moved;
        moved_ = std::make_unique<Moved>(*this);
        out_.end().sleep_by(*moved_);
        if (out_.end().has_descriptor()) out_.end().watch(moved_->descriptor());
    } else {
        out_.end().sleep_by(out_.parker());
    }
    join_.reset();
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::look_for_last_word() noexcept {
    std::optional<Places> theirs;
    const Status status = join_->look(theirs);
    if (status != Status::ok) return status;
    try {
        join(*theirs);
        return Status::ok;
    } catch (const base::Error& error) {
        return join_->fail(error);
    } catch (const std::exception&) {
        return join_->fail_for_want_of_memory();
    }
}

template <Design D>
    requires(check_design<D>())
bool Sender<D>::has_joined() {
    const Status status = try_join();
    if (status != Status::ok && status != Status::empty) join_->raise(status);
    return status == Status::ok;
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::await_join(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    const Status status = wait_to_join(deadline, policy);
    if (status != Status::ok) join_->raise(status);
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::wait_for_last_word(const base::Deadline& deadline,
                                     const base::WaitPolicy& policy) {
    return out_.end().wait_while(
        Status::empty, [&] { return try_join(); }, deadline, policy);
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::look_around() noexcept {
    if (const Status joined = try_join(); joined != Status::ok) [[unlikely]] {
        return joined == Status::empty ? Status::full : joined;
    }
    std::unique_lock<std::mutex> lock;
    if (!try_pause(lock)) {
        const Status known = moved_->outcome();
        return known == Status::ok ? Status::full : known;
    }
    const Status status = unless_ended(out_.look_at_peer_now());
    if (status != Status::ok && moved_ != nullptr) moved_->end(status);
    return status;
}

template <Design D>
    requires(check_design<D>())
Sender<D>::~Sender() {
    moved_.reset();
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::become_copy() noexcept {
    (void)out_.end().end(Status::peer_lost);
    if (moved_ != nullptr) moved_->become_copy();
    way_ = Way::behind;
    set_room(0);
}

template <Design D>
    requires(check_design<D>())
std::string Sender<D>::failure() const {
    return join_ != nullptr && !out_.end().window().is_copy() ? join_->failure() : out_.failure();
}

template <Design D>
    requires(check_design<D>())
bool Sender<D>::is_too_large(std::uint64_t bytes) const noexcept {
    return bytes > (terms_.framed() ? Frames<D>::bytes(terms_.max_frame(), terms_.chunk_bytes)
                                    : terms_.ring_bytes);
}

template <Design D>
    requires(check_design<D>())
std::uint64_t Sender<D>::skip_before(std::uint64_t bytes) noexcept {
    if (offset() == terms_.ring_bytes) set_offset(0);
    const std::uint64_t to_the_end = terms_.ring_bytes - offset();
    return to_the_end < bytes ? to_the_end : 0;
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::lay_skip(std::uint64_t skip) noexcept {
    base::telling_peers();
    store_word(at(), Frames<D>::skip(produced_, terms_.secret));
    produced_ += skip;
    set_offset(0);
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::make_room(std::uint64_t bytes) noexcept {
    end_rest();
    const Status status = find_room(bytes);
    if (status == Status::full) ++full_returns_;
    if (status != Status::full) {
        out_.end().wake();
    } else if (out_.end().has_descriptor() && !out_.end().stays_awake(produced_)) [[unlikely]] {
        rest([&] { return find_room(bytes) != Status::full; });
    }
    return status;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::find_room(std::uint64_t bytes) noexcept {
    if (out_.end().is_closing()) return Status::closed;
    if (const Status joined = try_join(); joined != Status::ok) [[unlikely]] {
        return joined == Status::empty ? Status::full : joined;
    }
    if (way_ == Way::moved) return make_moved_room(bytes);
    tell_laid();
    if (out_.ended() != Status::ok) return out_.ended();
    if (is_too_large(bytes)) return Status::too_large;
    // What a batch has laid out so far goes before the ring wraps.
    if (way_ != Way::behind && produced_ != out_.intransit() &&
        terms_.ring_bytes - offset() < bytes) {
        if (const Status status = push(); status != Status::ok) return status;
    }
    if (const Status status = unless_ended(out_.service()); status != Status::ok) return status;
    if (const Status status = unless_ended(out_.refresh_if_due(produced_)); status != Status::ok) {
        return status;
    }
    const std::uint64_t skip = skip_before(bytes);
    if (bytes + skip > out_.own_room()) {
        // Both rings are full as far as is known: look for certain before saying so.
        Status status = unless_ended(out_.refresh_for_certain());
        if (status == Status::ok) status = push();
        if (status == Status::ok) status = unless_ended(out_.settle());
        if (status != Status::ok) return status;
        if (bytes + skip > out_.own_room()) {
            set_room(0);
            return Status::full;
        }
    }
    if (skip != 0) {
        fall_behind();
        lay_skip(skip);
        if (const Status status = push_waiting(); status != Status::ok) return status;
    }
    choose_way(bytes);
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
int Sender<D>::descriptor(std::chrono::nanoseconds spin) {
    if (moved_ != nullptr && !out_.end().has_descriptor()) {
        out_.end().watch(moved_->descriptor());
    }
    return out_.end().descriptor(spin);
}

template <Design D>
    requires(check_design<D>())
template <class Ready>
void Sender<D>::rest(Ready&& ready) noexcept {
    const bool joined = join_ == nullptr;
    // A consumer that publishes its progress without a fence may be missed: so now and then it is
    // asked again, as between the slices of a wait. It is not missed where its fences are made
    // here.
    const std::chrono::nanoseconds limit = joined && terms_.far_fences && moved_ == nullptr
                                               ? connect::Readiness::until_woken
                                               : base::Parker::slice;
    // A join changes the parker: then there is news in any case.
    out_.end().rest([&] { return ready() || joined != (join_ == nullptr); }, limit);
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::choose_way(std::uint64_t bytes) noexcept {
    const std::uint64_t to_the_end = terms_.ring_bytes - offset();
    const bool waits = way_ == Way::behind && produced_ != out_.intransit();
    if (D.data != DataFlow::push2 && (terms_.in_order || terms_.in_place) && !waits &&
        out_.peer_room() >= bytes) {
        const bool weighs = batching_ == Batching::dynamic || holds_marks_ ||
                            (terms_.in_place && batching_ != Batching::none);
        way_ = weighs ? Way::weighed : terms_.in_place ? Way::stored : Way::straight;
        set_room(std::max(
            bytes, std::min({out_.own_room(), out_.peer_room(), to_the_end, out_.look_after()})));
    } else {
        fall_behind();
        // What only gathers need not look for news each time.
        set_room(std::max(bytes, std::min({out_.own_room(), to_the_end, terms_.batch_bytes})));
    }
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_failed(Status status) noexcept {
    fall_behind();
    if (status != Status::full) return status;
    // No slot: the items wait for the next call. No receive as far as is known: to look for space
    // may tell of more.
    return D.transfer == TransferNotification::immediate ? push_waiting() : Status::ok;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::push(bool only_whole) noexcept {
    if (batching_ == Batching::dynamic) gather_ = 0;
    show_held_mark();
    if (way_ == Way::behind || terms_.in_place) return push_waiting(only_whole);
    const std::uint64_t bytes = produced_ - out_.intransit();
    return bytes == 0 ? unless_ended(out_.tell()) : push_straight(bytes);
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_waiting(bool only_whole) noexcept {
    show_held_mark();
    out_.laid(produced_);
    const Status status = out_.push(only_whole);
    if constexpr (D.data == DataFlow::push2) {
        // What was left free of a chunk.
        if (const std::uint64_t rest = out_.laid() - produced_; rest != 0) {
            append(rest);
            set_room(0);
        }
    }
    return unless_ended(status);
}

// ---- batches
//
// The work sends the next batch with the first enqueue after the transfer before is done. Where
// transfers are done at once that is one transfer for each item; so a batch also waits while the
// consumer has not yet taken what it was sent, until it is of the agreed size. To ask costs
// something, so it is asked when 1, 2, 4 ... items have gathered, not for each.

template <Design D>
    requires(check_design<D>())
Status Sender<D>::send_weighed() noexcept {
    if (way_ == Way::moved) return moved_->send(produced_);
    const std::uint64_t bytes = produced_ - out_.intransit();
    if (bytes < gather_) return out_.ended();
    if (batching_ == Batching::dynamic && !is_due(bytes)) return out_.ended();
    return push(batching_ == Batching::fixed);
}

/// True: `bytes` should go now. False: gather_ says when to ask again.
template <Design D>
    requires(check_design<D>())
bool Sender<D>::is_due(std::uint64_t bytes) noexcept {
    out_.laid(produced_);
    if (!out_.reap()) return true;  // push() will tell
    const bool flying = D.data != DataFlow::pull && out_.transferred() != out_.intransit();
    bool busy = out_.consumed() != out_.intransit();
    if (!flying && busy && bytes < terms_.batch_bytes) {
        if (out_.refresh() != Status::ok) return true;
        busy = out_.consumed() != out_.intransit();
    }
    if (!flying && (!busy || bytes >= terms_.batch_bytes)) return true;
    gather_ = bytes < terms_.batch_bytes ? std::min(2 * bytes, terms_.batch_bytes)
                                         : bytes + terms_.batch_bytes;
    return false;
}

// ---- items that lie elsewhere

template <Design D>
    requires(check_design<D>())
bool Sender<D>::may_gather(Status& status) noexcept {
    if constexpr (D.data != DataFlow::push1) {
        return false;
    } else {
        if (terms_.in_place || (way_ != Way::straight && way_ != Way::weighed)) return false;
        // What waits for its batch goes first.
        if (produced_ != out_.intransit()) {
            status = push();
            if (status != Status::ok || produced_ != out_.intransit()) return false;
        }
        return out_.has_receive();
    }
}

/// The slots behind produced_, which lie at `slices`. `full`: no slot of the queue was free, and
/// nothing happened.
template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_gathered(verbs::Slices slices, std::uint64_t bytes) noexcept {
    if constexpr (D.data != DataFlow::push1) {
        return Status::full;
    } else {
        const Status status = out_.push_gathered(slices, offset(), bytes, produced_ + bytes);
        if (status == Status::full) return status;
        if (out_.intransit() == produced_ + bytes) append(bytes);
        return unless_ended(status);
    }
}

template <Design D>
    requires(check_design<D>())
std::uint64_t Sender<D>::transferred() noexcept {
    if (way_ == Way::moved) return moved_->transferred();
    tell_laid();
    (void)out_.reap();  // the next call that sends tells what has failed
    return out_.transferred();
}

// ---- the end

template <Design D>
    requires(check_design<D>())
Status Sender<D>::flush(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    if (const Status joined = wait_to_join(deadline, policy); joined != Status::ok) {
        if (joined == Status::timed_out) rest([&] { return try_join() != Status::empty; });
        return joined;
    }
    if (way_ == Way::moved) return flush_moved(deadline, policy);
    Status outcome = Status::ok;
    // Whose sleeper READs learns from it how far the consumer of pulled data is. Others ask, less
    // and less often; not soon where the consumer says it by itself, and not if only what is
    // stranded shall go.
    const bool asks = D.data == DataFlow::pull &&
                      (Transmitter::completions_wake || !policy.sleep) && !deadline.expired();
    const std::uint64_t longest = out_.asking_pause() / 16;
    std::uint64_t pause = Transmitter::asks_to_flush ? longest : longest / 64;
    std::uint64_t asked = asks ? base::ticks() : 0;
    const auto is_to_be_asked = [&] {
        if (!asks || out_.transferred() == produced_) return false;
        const std::uint64_t now = base::ticks();
        if (now - asked < pause) return false;
        asked = now;
        pause = std::min(2 * pause, longest);
        return true;
    };
    const auto attempt = [&] {
        outcome = out_.ended();
        if (outcome == Status::ok) {
            fall_behind();
            out_.laid(produced_);
            outcome = out_.service();
        }
        // Nothing fails where nothing is posted.
        if (outcome == Status::ok && terms_.in_place) outcome = out_.look_at_peer_now();
        if (outcome == Status::ok) outcome = push_waiting();
        if (outcome == Status::ok) outcome = out_.settle();
        if (outcome == Status::ok && is_to_be_asked()) outcome = out_.ask_consumer();
        return outcome != Status::ok || out_.is_done();
    };
    // The questions are due by the clock, which wakes nobody by itself.
    if constexpr (Transmitter::completions_wake) out_.sleep_to_ask(asks);
    const Status waited = wait(attempt, deadline, policy);
    if constexpr (Transmitter::completions_wake) out_.sleep_to_ask(false);
    if (waited == Status::timed_out) rest(attempt);
    return waited != Status::ok ? waited : outcome;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::close(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    End& end = out_.end();
    set_room(0);
    const auto deliver = [&] {
        const Status status = flush(deadline, policy);
        const bool is_over = status != Status::timed_out && status != Status::cancelled;
        if (is_over && moved_ != nullptr) moved_->leave();
        return status;
    };
    const auto consumer_had_all = [&] {
        return end.peer_position().value_or(terms_.initial) == produced_;
    };
    const Status status = end.close(
        deliver, consumer_had_all, [&] { return produced_; }, deadline, policy);
    if (!end.is_closed()) return status;
    (void)end.end(Status::closed);
    if (way_ != Way::moved) way_ = Way::behind;
    return status;
}

template <Design D>
    requires(check_design<D>())
SenderCounts Sender<D>::counts() const noexcept {
    SenderCounts counts = out_.counts();
    counts.bytes = produced_ - terms_.initial;
    if (way_ == Way::stored) counts.intransit = counts.transferred = counts.bytes;
    counts.full_returns = full_returns_;
    if (moved_ != nullptr) counts.sleeps += moved_->sleeps();
    return counts;
}

/// All that a Sender of one design is made of.
#define MILLRACE_INSTANTIATE_SENDER(D, FLOW)     \
    template class detail::TransmitterBase<D>;   \
    template class detail::FLOW##Transmitter<D>; \
    template class Sender<D>;

}  // namespace millrace::ring
