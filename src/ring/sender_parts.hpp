// Sender's setup and its slow paths: room, space, completions, the end. Included by the files that
// make Senders of the designs of one data flow; brings the other parts along.
#pragma once

#include "millrace/ring/sender.hpp"
#include "sender_batching.hpp"
#include "sender_mover.hpp"
#include "sender_push.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace millrace::ring {

using base::Status;

/// Sleeps for space: news is that the consumer has gone on.
template <Design D>
    requires(check_design<D>())
class Sender<D>::SpaceSleeper final : public Sleeper {
  public:
    SpaceSleeper(Sender& sender, WakeUpPage& own, const verbs::MemoryRegion& region)
        : Sleeper{sender.link_, sender.window_, own, region}, sender_{&sender} {}

    void prepare() override {
        Sleeper::prepare();
        sender_->waiting_ = true;
    }

  protected:
    bool is_news(std::uint64_t progress) noexcept override {
        if (!PositionWord::whole(progress)) return true;  // torn: it moves just now
        const Claim claim = sender_->space_.learn(progress, sender_->reachable());
        if (claim == Claim::impossible) (void)sender_->disbelieve();
        return claim != Claim::nothing_new;
    }

  private:
    Sender* sender_;
};

template <Design D>
    requires(check_design<D>())
Sender<D>::Sender(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link, Design design,
                  const RingOptions& options, const base::Deadline& deadline)
    : batching_{design.batching},
      endpoint_{std::move(endpoint)},
      link_{std::move(link)},
      window_{link_} {
    terms_ = agree(link_, Role::producer, design, options, deadline);
    if (options.completions == Completions::events) window_.use_events(link_.channel());
    const std::uint64_t size = terms_.ring_bytes;
    auto& domain = link_.protection_domain();
    const auto allocate_ring = [&] {
        ring_memory_ =
            domain.allocate(size + mark_bytes, D.data == DataFlow::pull ? verbs::Access::remote_read
                                                                        : verbs::Access::none);
        ring_ = ring_memory_.data();
    };
    if (!options.in_place) allocate_ring();
    page_memory_ =
        domain.allocate(sizeof(Page), verbs::Access::remote_write | verbs::Access::remote_read);
    auto& page = *reinterpret_cast<Page*>(page_memory_.data());

    slices_ = std::clamp<std::size_t>(link_.queue_pair().capacity().max_send_sge, 1, max_slices);
    produced_ = intransit_ = transferred_ = covered_ = room_end_ = terms_.initial;
    quarter_ = std::max<std::uint64_t>(size / 4, 1);
    if (batching_ == Batching::fixed) gather_ = terms_.batch_bytes;
    if (batching_ == Batching::dynamic) quarter_ = 1;  // the end of each transfer is waited for
    holds_marks_ =
        D.data == DataFlow::pull && batching_ != Batching::none && design.mover == Mover::passive;
    page.wake.progress.store(terms_.initial);
    page.credit.store(PositionWord::pack(terms_.initial));
    page.transfer.store(PositionWord::pack(terms_.initial));
    const std::size_t covers = std::bit_ceil(std::size_t{window_.slots()} + 1);
    covers_.resize(covers);
    cover_mask_ = covers - 1;

    if constexpr (completions_wake) {
        space_ = SpaceView<D.space>{link_, page_memory_.region(), offsetof(Page, credits),
                                    page.taken, terms_.initial};
        sleeper_ = std::make_unique<CompletionSleeper>(link_);
    } else {
        sleeper_ = std::make_unique<SpaceSleeper>(*this, page.wake, page_memory_.region());
    }
    const Places theirs =
        exchange_places(link_,
                        {.ring = options.in_place ? verbs::RemoteAddress{} : ring_memory_.remote(),
                         .page = page_memory_.remote(offsetof(Page, wake)),
                         .credit = page_memory_.remote(offsetof(Page, credit)),
                         .transfer = page_memory_.remote(offsetof(Page, transfer)),
                         .taken = page_memory_.remote(offsetof(Page, taken))},
                        deadline);
    peer_page_ = theirs.page;
    if constexpr (D.data == DataFlow::push2) {
        mover_ = Push2{window_, ring_memory_, terms_.chunk_bytes};
    } else {
        if (options.in_place) go_in_place(theirs.ring);
        if (!terms_.in_place && options.in_place) allocate_ring();
        mover_ = Push1{window_, terms_.in_place ? peer_ring_region_ : ring_memory_.region(),
                       theirs.ring};
        mover_.set_zeros(size);
    }
    if constexpr (D.transfer == TransferNotification::push) {
        if (terms_.own_transfer_queue) {
            notice_window_.emplace(link_.second_queue_pair(), link_.second_send_queue());
            quarter_ = 1;  // the end of each transfer is waited for
        }
        notice_ = TransferNotice<D.transfer>{
            CounterPush{terms_.own_transfer_queue ? *notice_window_ : window_, theirs.transfer,
                        PositionWord::pack(terms_.initial)}};
    } else if constexpr (D.transfer == TransferNotification::pull) {
        notice_ = TransferNotice<D.transfer>{page.transfer};
    } else if constexpr (D.transfer == TransferNotification::immediate) {
        notice_ = TransferNotice<D.transfer>{terms_.receive_pool};
    }
    bell_ = Bell{window_, page.wake, theirs.page, terms_.far_fences};
    if constexpr (!completions_wake) sleeper_->connect_to(theirs.page, terms_.far_fences);
    if constexpr (D.space == SpaceNotification::pull) {
        space_ = SpaceView<D.space>{
            CounterPull{window_, theirs.page + offsetof(WakeUpPage, progress),
                        page_memory_.slice(offsetof(Page, landing), sizeof(std::uint64_t))},
            terms_.initial, size, options.refresh_above};
    } else if constexpr (D.space == SpaceNotification::push) {
        space_ = SpaceView<D.space>{page.credit, terms_.initial};
    }
    if constexpr (asks_to_flush) {
        progress_ = CounterPull{window_, theirs.page + offsetof(WakeUpPage, progress),
                                page_memory_.slice(offsetof(Page, landing), sizeof(std::uint64_t))};
    }
    if (design.mover == Mover::active) start_mover();
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::go_in_place(verbs::RemoteAddress ring) {
    // Where marks are held back by a WRITE of their own, they must not lie there before.
    if (!terms_.in_order) return;
    peer_ring_ = link_.queue_pair().map_remote(ring, terms_.ring_bytes);
    if (peer_ring_ == nullptr) return;
    peer_ring_region_ = link_.protection_domain().register_memory(
        {peer_ring_.get(), terms_.ring_bytes}, verbs::Access::none);
    ring_ = peer_ring_.get();
    terms_.in_place = true;
    holds_marks_ = batching_ != Batching::none;
}

template <Design D>
    requires(check_design<D>())
Sender<D>::~Sender() {
    moved_.reset();
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::fall_behind() noexcept {
    if (way_ == Way::behind || way_ == Way::moved) return;
    behind_offset_ = offset_ - (produced_ - intransit_);
    way_ = Way::behind;
    set_room(0);
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::end() noexcept {
    if (ended_ == Status::ok) {
        // The queue pair of a peer that closed breaks too: what it said last decides.
        ended_ =
            link_.peer_now() == connect::PeerState::closed ? Status::closed : Status::peer_lost;
        fall_behind();
        stop_fast_path();
    }
    return ended_;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::look_at_peer() noexcept {
    if (ended_ != Status::ok) return ended_;
    if (link_.peer() == connect::PeerState::alive) return Status::ok;
    return end();
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::look_for_space() noexcept {
    // It cannot have consumed what is not on its way.
    Claim claim = space_.look(reachable());
    if constexpr (asks_to_flush) {
        if (claim != Claim::impossible && progress_.poll()) {
            claim = space_.learn(progress_.value(), reachable());
        }
    }
    return claim == Claim::impossible ? disbelieve() : Status::ok;
}

/// Of pull data: how far is it, whether or not it has returned that credit.
template <Design D>
    requires(check_design<D>())
Status Sender<D>::ask_consumer() noexcept {
    if constexpr (asks_to_flush) {
        if (progress_.start() == Status::peer_lost || window_.reap() != Status::ok) return end();
        const Status looked = look_for_space();
        reap_transferred();
        return looked;
    } else {
        return refresh();
    }
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::disbelieve() noexcept {
    // Nothing it says can be used any more, and to ask again would wait for ever.
    lied_to_ = true;
    ended_ = Status::peer_lost;
    fall_behind();
    stop_fast_path();
    return ended_;
}

template <Design D>
    requires(check_design<D>())
std::string Sender<D>::failure() const {
    if (!lied_to_) {
        return notice_window_ && !window_.broken() ? notice_window_->failure() : window_.failure();
    }
    return fmt::format(
        "the consumer claims to have consumed more than the {} bytes of ring that "
        "were sent to it: its program or its memory is damaged",
        intransit_ - terms_.initial);
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::reap_transferred() noexcept {
    if constexpr (D.data == DataFlow::pull) {
        transferred_ = space_.consumed();  // the consumer moves the data, and says how far it is
        return;
    }
    while (cover_head_ != cover_tail_ && window_.done(covers_[cover_head_ & cover_mask_].ticket)) {
        transferred_ = covers_[cover_head_++ & cover_mask_].position;
    }
}

template <Design D>
    requires(check_design<D>())
std::uint64_t Sender<D>::transferred() noexcept {
    if (way_ == Way::moved) return moved_->transferred();
    (void)window_.reap();  // the next call that sends tells what has failed
    reap_transferred();
    return transferred_;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::service() noexcept {
    if (window_.reap() != Status::ok) return end();
    reap_transferred();
    if (look_for_space() != Status::ok) [[unlikely]]
        return ended_;
    if (bell_.owes()) [[unlikely]]
        (void)bell_.ring();
    if (const Status status = tell(); status != Status::ok) return status;
    return look_at_peer();
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::refresh() noexcept {
    const std::uint64_t posted = space_.posted();
    const Status status = hushed() ? Status::ok : space_.refresh();
    if (D.data != DataFlow::pull && space_.posted() != posted) cover();
    if (status == Status::peer_lost || window_.reap() != Status::ok) return end();
    reap_transferred();
    const Status looked = look_for_space();  // a device that completes at once has answered already
    if constexpr (D.data == DataFlow::pull) reap_transferred();
    return looked;
}

template <Design D>
    requires(check_design<D>())
bool Sender<D>::hushed() noexcept {
    // Within a wait the consumer rings when it goes on; the completion of a READ would end the
    // sleep. Asking now and then all the same is what a slice of a sleep is for.
    if constexpr (D.space != SpaceNotification::pull) {
        return false;
    } else {
        if (!waiting_ || !sleeper_->waits_for_bell()) return false;
        const std::uint64_t now = base::ticks();
        if (now - asked_ < asking_pause_) return true;
        asked_ = now;
        return false;
    }
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::tell_counter() noexcept {
    if (ended_ != Status::ok) return ended_;
    if constexpr (D.transfer == TransferNotification::push) {
        const std::uint64_t before = notice_.posted();
        Status status;
        if (terms_.own_transfer_queue && D.data != DataFlow::pull) {
            // Another queue pair's WRITE may overtake data that are not known to have arrived.
            if (window_.reap() != Status::ok) return end();
            reap_transferred();
            status = notice_.tell(transferred_);
        } else {
            status = notice_.tell(intransit_);
            // Its completion says that all before it is done as well.
            if (D.data != DataFlow::pull && notice_.posted() != before) cover();
        }
        if (status == Status::peer_lost) return end();
    } else if constexpr (D.data == DataFlow::pull) {
        (void)notice_.tell(intransit_);
    } else {
        if (window_.reap() != Status::ok) return end();
        reap_transferred();
        (void)notice_.tell(transferred_);
    }
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::settle() noexcept {
    if constexpr (D.data == DataFlow::pull) {
        if (window_.reap() != Status::ok) return end();
        reap_transferred();
        return tell();
    }
    if (covered_ != intransit_) {
        const Status status = window_.post(verbs::Write{.from = {}, .to = peer_page_}, Signal::now);
        if (status == Status::peer_lost) return end();
        if (status == Status::ok) {
            ++settling_writes_;
            cover();
        }
    }
    if (window_.reap() != Status::ok) return end();
    reap_transferred();
    return tell();
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::make_room(std::uint64_t bytes) noexcept {
    if (way_ == Way::moved) return make_moved_room(bytes);
    if (ended_ != Status::ok) return ended_;
    const std::uint64_t size = terms_.ring_bytes;
    if (bytes >
        (terms_.framed() ? Frames<D>::bytes(terms_.max_frame(), terms_.chunk_bytes) : size)) {
        return Status::too_large;
    }
    // What a batch has laid out so far goes before the ring wraps.
    if (way_ != Way::behind && produced_ != intransit_ && size - offset_ < bytes) {
        if (const Status status = push(); status != Status::ok) return status;
    }
    if (const Status status = service(); status != Status::ok) return status;

    if (space_.wants_refresh(in_use())) {
        if (const Status status = refresh(); status != Status::ok) return status;
        ++lazy_refreshes_;
    }
    if (offset_ == size) offset_ = 0;
    const std::uint64_t skip = size - offset_ < bytes ? size - offset_ : 0;
    if (bytes + skip > own_room()) {
        // Both rings are full as far as is known: look for certain before saying so.
        if (const Status status = refresh(); status != Status::ok) return status;
        ++forced_refreshes_;
        if (const Status status = push(); status != Status::ok) return status;
        if (const Status status = settle(); status != Status::ok) return status;
        if (bytes + skip > own_room()) {
            ++full_returns_;
            set_room(0);
            return Status::full;
        }
    }
    if (skip != 0) {
        fall_behind();
        store_word(ring_ + offset_, Frames<D>::skip(produced_, terms_.secret));
        produced_ += skip;
        offset_ = 0;
        if (const Status status = push_behind(); status != Status::ok) return status;
    }
    if (D.data != DataFlow::push2 && terms_.in_order &&
        (way_ != Way::behind || produced_ == intransit_) && peer_room() >= bytes) {
        // Where a mark may be held back, push() lays it.
        way_ = batching_ == Batching::dynamic || holds_marks_ ? Way::weighed : Way::straight;
        set_room(std::max(bytes, std::min({own_room(), peer_room(), size - offset_,
                                           space_.look_after(in_use())})));
    } else {
        fall_behind();
        // What only gathers need not look for news each time.
        set_room(std::max(bytes, std::min({own_room(), size - offset_, terms_.batch_bytes})));
    }
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::flush(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    if (way_ == Way::moved) return flush_moved(deadline, policy);
    Status outcome = Status::ok;
    // Whose sleeper READs learns from it how far the consumer of pulled data is. Others ask, less
    // and less often; not soon where the consumer says it by itself, and not if only what is
    // stranded shall go.
    const bool asks =
        D.data == DataFlow::pull && (completions_wake || !policy.sleep) && !deadline.expired();
    std::uint64_t pause = asking_pause_ / (asks_to_flush ? 16 : 1024);
    std::uint64_t asked = asks ? base::ticks() : 0;
    const auto is_to_be_asked = [&] {
        if (!asks || transferred_ == produced_) return false;
        const std::uint64_t now = base::ticks();
        if (now - asked < pause) return false;
        asked = now;
        pause = std::min(2 * pause, asking_pause_ / 16);
        return true;
    };
    const Status waited = wait(
        [&] {
            outcome = ended_;
            if (outcome == Status::ok) {
                fall_behind();
                outcome = service();
            }
            if (outcome == Status::ok) outcome = push_behind();
            if (outcome == Status::ok) outcome = settle();
            if (outcome == Status::ok && is_to_be_asked()) outcome = ask_consumer();
            return outcome != Status::ok ||
                   (transferred_ == produced_ && !notice_.owes(intransit_));
        },
        deadline, policy);
    return waited != Status::ok ? waited : outcome;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::close(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    if (way_ != Way::moved && ended_ != Status::ok) return ended_;
    const Status status = flush(deadline, policy);
    if (status != Status::ok) return status;
    if (moved_ != nullptr) moved_->leave();
    const std::uint64_t total = produced_;
    link_.say_goodbye(std::as_bytes(std::span{&total, 1}));
    ended_ = Status::closed;
    set_room(0);
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
SenderCounts Sender<D>::counts() const noexcept {
    std::uint64_t receives = 0;
    if constexpr (completions_wake) receives = space_.receives_posted();
    return {.bytes = produced_ - terms_.initial,
            .intransit = intransit_ - terms_.initial,
            .transferred =
                (D.data == DataFlow::pull ? space_.consumed() : transferred_) - terms_.initial,
            .credited = space_.consumed() - terms_.initial,
            .data_writes = mover_.posted(),
            .transfer_writes = notice_.posted(),
            .space_reads = space_.posted() + progress_.posted(),
            .settling_writes = settling_writes_,
            .events = bell_.rung(),
            .work_requests = window_.posted() + (notice_window_ ? notice_window_->posted() : 0),
            .receives = receives,
            .full_returns = full_returns_,
            .lazy_refreshes = lazy_refreshes_,
            .forced_refreshes = forced_refreshes_,
            .sleeps = sleeper_->sleeps() + (moved_ != nullptr ? moved_->sleeps() : 0),
            .wake_ups = sleeper_->woken()};
}

}  // namespace millrace::ring
