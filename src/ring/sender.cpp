// Sender's slow paths and setup, see the header.
#include "millrace/ring/sender.hpp"

#include <bit>
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

  protected:
    bool is_news(std::uint64_t progress) noexcept override {
        if (!PositionWord::whole(progress)) return true;  // torn: it moves just now
        const Claim claim = sender_->space_.learn(progress, sender_->intransit_);
        if (claim == Claim::impossible) (void)sender_->disbelieve();
        return claim != Claim::nothing_new;
    }

  private:
    Sender* sender_;
};

template <Design D>
    requires(check_design<D>())
Sender<D>::Sender(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link,
                  const RingOptions& options, const base::Deadline& deadline)
    : endpoint_{std::move(endpoint)}, link_{std::move(link)}, window_{link_} {
    terms_ = agree(link_, Role::producer, D, options, deadline);
    const std::uint64_t size = terms_.ring_bytes;
    auto& domain = link_.protection_domain();
    ring_memory_ = domain.allocate(size + mark_bytes, verbs::Access::none);
    page_memory_ = domain.allocate(
        sizeof(Page), verbs::Access::remote_write | verbs::Access::remote_read);
    auto& page = *reinterpret_cast<Page*>(page_memory_.data());
    ring_ = ring_memory_.data();

    produced_ = intransit_ = transferred_ = covered_ = terms_.initial;
    quarter_ = std::max<std::uint64_t>(size / 4, 1);
    page.wake.progress.store(terms_.initial);
    page.credit.store(PositionWord::pack(terms_.initial));
    const std::size_t covers = std::bit_ceil(std::size_t{window_.slots()} + 1);
    covers_.resize(covers);
    cover_mask_ = covers - 1;

    sleeper_ = std::make_unique<SpaceSleeper>(*this, page.wake, page_memory_.region());
    const Places theirs = exchange_places(
        link_,
        {.ring = {},
         .page = page_memory_.remote(offsetof(Page, wake)),
         .credit = page_memory_.remote(offsetof(Page, credit))},
        deadline);
    peer_ring_ = theirs.ring;
    mover_ = Push1{window_, ring_memory_, theirs.ring};
    mover_.set_zeros(size);
    bell_ = Bell{window_, page.wake, theirs.page};
    sleeper_->connect_to(theirs.page);
    if constexpr (D.space == SpaceNotification::pull) {
        space_ = SpaceView<D.space>{
            CounterPull{window_, theirs.page + offsetof(WakeUpPage, progress),
                        page_memory_.slice(offsetof(Page, landing), sizeof(std::uint64_t))},
            terms_.initial, size, options.refresh_above};
    } else {
        space_ = SpaceView<D.space>{page.credit, terms_.initial};
    }
}

template <Design D>
    requires(check_design<D>())
Sender<D>::~Sender() = default;

template <Design D>
    requires(check_design<D>())
std::uint64_t Sender<D>::unit_at(std::uint64_t offset, std::uint64_t position) const noexcept {
    if (!terms_.framed()) return terms_.slot_bytes;
    const std::uint64_t word = load_word(ring_ + offset);
    if (word == skip_word(frame_tag(position, terms_.secret))) return terms_.ring_bytes - offset;
    return frame_bytes(frame_length(word));
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::fall_behind() noexcept {
    if (!straight_) return;
    behind_offset_ = offset_ - (produced_ - intransit_);
    straight_ = false;
    room_ = 0;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::end() noexcept {
    if (ended_ == Status::ok) {
        // The queue pair of a peer that closed breaks too: what it said last decides.
        ended_ = link_.peer_now() == connect::PeerState::closed ? Status::closed
                                                                : Status::peer_lost;
        fall_behind();
        room_ = 0;
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
    return space_.look(intransit_) == Claim::impossible ? disbelieve() : Status::ok;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::disbelieve() noexcept {
    // Nothing it says can be used any more, and to ask again would wait for ever.
    lied_to_ = true;
    ended_ = Status::peer_lost;
    fall_behind();
    room_ = 0;
    return ended_;
}

template <Design D>
    requires(check_design<D>())
std::string Sender<D>::failure() const {
    if (!lied_to_) return window_.failure();
    return fmt::format("the consumer claims to have consumed more than the {} bytes of ring that "
                       "were sent to it: its program or its memory is damaged",
                       intransit_ - terms_.initial);
}

template <Design D>
    requires(check_design<D>())
void Sender<D>::reap_transferred() noexcept {
    while (cover_head_ != cover_tail_ && window_.done(covers_[cover_head_ & cover_mask_].ticket)) {
        transferred_ = covers_[cover_head_++ & cover_mask_].position;
    }
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::service() noexcept {
    if (window_.reap() != Status::ok) return end();
    reap_transferred();
    if (look_for_space() != Status::ok) [[unlikely]] return ended_;
    if (bell_.owes()) [[unlikely]] (void)bell_.ring();
    return look_at_peer();
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::refresh() noexcept {
    const std::uint64_t posted = space_.posted();
    const Status status = space_.refresh();
    if (space_.posted() != posted) cover();
    if (status == Status::peer_lost || window_.reap() != Status::ok) return end();
    reap_transferred();
    return look_for_space();  // a device that completes at once has answered already
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::settle() noexcept {
    if (covered_ != intransit_) {
        const Status status = window_.post(verbs::Write{.from = {}, .to = peer_ring_}, Signal::now);
        if (status == Status::peer_lost) return end();
        if (status == Status::ok) {
            ++settling_writes_;
            cover();
        }
    }
    if (window_.reap() != Status::ok) return end();
    reap_transferred();
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_failed(Status status) noexcept {
    if (status != Status::full) return end();
    fall_behind();  // no slot: the items wait for the next call
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_behind() noexcept {
    if (ended_ != Status::ok) return ended_;
    const std::uint64_t size = terms_.ring_bytes;
    bool refreshed = false;
    while (produced_ != intransit_) {
        if (behind_offset_ == size) behind_offset_ = 0;
        if (look_for_space() != Status::ok) return ended_;
        const std::uint64_t used = intransit_ - space_.consumed();
        const std::uint64_t limit =
            std::min({size - used, produced_ - intransit_, size - behind_offset_});
        // Whole units only: what the consumer is told of must be able to arrive.
        std::uint64_t run = 0;
        std::uint64_t last = 0;
        if (!terms_.framed()) {
            last = terms_.slot_bytes;
            run = limit / last * last;
        } else {
            for (;;) {
                if (run == limit) break;
                const std::uint64_t unit = unit_at(behind_offset_ + run, intransit_ + run);
                if (run + unit > limit) break;
                run += unit;
                last = unit;
            }
        }
        if (run == 0) {
            if (refreshed) break;
            refreshed = true;
            const Status status = refresh();
            if (status != Status::ok) return status;
            ++lazy_refreshes_;
            continue;
        }
        // A skip is its first word; the rest of the ring's end need not travel.
        const std::uint64_t last_offset = behind_offset_ + run - last;
        const bool skips = terms_.framed() &&
                           load_word(ring_ + last_offset) ==
                               skip_word(frame_tag(intransit_ + run - last, terms_.secret));
        const std::uint64_t bytes = skips ? run - last + mark_bytes : run;

        const bool wake = bell_.publish(intransit_ + run);
        const Signal signal =
            intransit_ + run - covered_ >= quarter_ ? Signal::now : Signal::when_due;
        Status status;
        if (terms_.in_order) {
            status = mover_.run(behind_offset_, bytes, signal);
        } else {
            const std::uint64_t first = unit_at(behind_offset_, intransit_);
            const std::uint64_t mark = skips && first == run
                                           ? behind_offset_
                                           : behind_offset_ + first - mark_bytes;
            status = mover_.run_then_mark(behind_offset_, bytes, mark, signal);
        }
        if (status == Status::full) break;
        if (status != Status::ok) return end();
        intransit_ += run;
        behind_offset_ += run;
        if (window_.last_is_signaled()) cover();
        if (wake) (void)bell_.ring();
    }
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::make_room(std::uint64_t bytes) noexcept {
    if (ended_ != Status::ok) return ended_;
    const std::uint64_t size = terms_.ring_bytes;
    if (bytes > (terms_.framed() ? frame_bytes(terms_.max_frame()) : size)) {
        return Status::too_large;
    }
    // What a batch has laid out so far goes before the ring wraps.
    if (straight_ && produced_ != intransit_ && size - offset_ < bytes) {
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
            room_ = 0;
            return Status::full;
        }
    }
    if (skip != 0) {
        fall_behind();
        store_word(ring_ + offset_, skip_word(frame_tag(produced_, terms_.secret)));
        produced_ += skip;
        offset_ = 0;
        if (const Status status = push_behind(); status != Status::ok) return status;
    }
    if (terms_.in_order && (straight_ || produced_ == intransit_) && peer_room() >= bytes) {
        straight_ = true;
        room_ = std::max(bytes, std::min({own_room(), peer_room(), size - offset_,
                                          space_.look_after(in_use())}));
    } else {
        fall_behind();
        room_ = bytes;
    }
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::flush(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    Status outcome = Status::ok;
    const Status waited = wait(
        [&] {
            outcome = ended_;
            if (outcome == Status::ok) {
                fall_behind();
                outcome = service();
            }
            if (outcome == Status::ok) outcome = push_behind();
            if (outcome == Status::ok) outcome = settle();
            return outcome != Status::ok || transferred_ == produced_;
        },
        deadline, policy);
    return waited != Status::ok ? waited : outcome;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::close(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    if (ended_ != Status::ok) return ended_;
    const Status status = flush(deadline, policy);
    if (status != Status::ok) return status;
    const std::uint64_t total = produced_;
    link_.say_goodbye(std::as_bytes(std::span{&total, 1}));
    ended_ = Status::closed;
    room_ = 0;
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
SenderCounts Sender<D>::counts() const noexcept {
    return {.bytes = produced_ - terms_.initial,
            .data_writes = mover_.posted(),
            .space_reads = space_.posted(),
            .settling_writes = settling_writes_,
            .events = bell_.rung(),
            .work_requests = window_.posted(),
            .full_returns = full_returns_,
            .lazy_refreshes = lazy_refreshes_,
            .forced_refreshes = forced_refreshes_,
            .sleeps = sleeper_->sleeps(),
            .wake_ups = sleeper_->woken()};
}

template class Sender<design_1>;
template class Sender<design_2>;

}  // namespace millrace::ring
