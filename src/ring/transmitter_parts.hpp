// What sends of a ring's producer: setup, and what the data flows have in common. Included by the
// files that make Senders.
#pragma once

#include "millrace/ring/detail/transmitter.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

namespace millrace::ring::detail {

using base::Status;

/// Sleeps for space: news is that the consumer has gone on.
template <Design D>
class TransmitterBase<D>::SpaceSleeper final : public Sleeper {
  public:
    SpaceSleeper(TransmitterBase& sender, WakeUpPage& own, const verbs::MemoryRegion& region)
        : Sleeper{sender.end_.link(), sender.end_.window(), own, region}, sender_{&sender} {}

    void prepare() override {
        if (sender_->notice_window_) (void)sender_->notice_window_->reap();
        Sleeper::prepare();
        sender_->waiting_ = true;
    }

  protected:
    bool is_news(std::uint64_t progress) noexcept override {
        if (!PositionWord::whole(progress)) return true;  // torn: it moves just now
        const News news = sender_->space_.learn(progress, sender_->self().reachable());
        if (news == News::impossible) (void)sender_->distrust();
        return news != News::none;
    }
    bool is_rung_for_all() const noexcept override { return false; }

  private:
    TransmitterBase* sender_;
};

template <Design D>
TransmitterBase<D>::TransmitterBase(connect::Link link, const Terms& terms,
                                    const verbs::RegisteredBuffer& memory, Design design,
                                    const RingOptions& options)
    : terms_{&terms}, end_{std::move(link)} {
    if (options.completions == Completions::events) end_.window().use_events(end_.link().channel());
    laid_ = intransit_ = transferred_ = covered_ = terms.initial;
    quarter_ = std::max<std::uint64_t>(terms.ring_bytes / 4, 1);
    // The end of each transfer is waited for.
    if (design.batching == Batching::dynamic || terms.own_transfer_queue) quarter_ = 1;
    const std::size_t covers = std::bit_ceil(std::size_t{end_.window().slots()} + 1);
    covers_.resize(covers);
    cover_mask_ = covers - 1;

    auto& page = *reinterpret_cast<SenderPage*>(memory.data());
    page.wake.progress.store(terms.initial);
    page.credit.store(PositionWord::pack(terms.initial));
    page.transfer.store(PositionWord::pack(terms.initial));
    if constexpr (completions_wake) {
        space_ = SpaceView<D.space>{end_.link(), memory.region(), offsetof(SenderPage, credits),
                                    page.taken, terms.initial};
        sleeper_ = std::make_unique<CompletionSleeper>(end_.link(), end_.window());
    } else {
        sleeper_ = std::make_unique<SpaceSleeper>(*this, page.wake, memory.region());
    }
}

template <Design D>
void TransmitterBase<D>::meet(const Places& theirs, PeerMemory& peer,
                              const verbs::RegisteredBuffer& memory, const RingOptions& options) {
    auto& page = *reinterpret_cast<SenderPage*>(memory.data());
    const ibv_sge landing = memory.slice(offsetof(SenderPage, landing), sizeof(std::uint64_t));
    const verbs::RemoteAddress progress = theirs.page + offsetof(WakeUpPage, progress);
    peer_page_ = theirs.page;
    bell_ = Bell{end_.window(), page.wake, theirs.page, terms_->far_fences};
    if constexpr (!completions_wake) sleeper_->connect_to(theirs.page, terms_->far_fences);

    if constexpr (D.transfer == TransferNotification::push) {
        if (terms_->own_transfer_queue) {
            notice_window_.emplace(end_.link().second_queue_pair(),
                                   end_.link().second_send_queue());
            if constexpr (completions_wake) sleeper_->reap_also(*notice_window_);
        }
        CounterPush push{terms_->own_transfer_queue ? *notice_window_ : end_.window(),
                         theirs.transfer, PositionWord::pack(terms_->initial)};
        push.store_to(peer.word(theirs.transfer));
        notice_ = TransferNotice<D.transfer>{std::move(push)};
    } else if constexpr (D.transfer == TransferNotification::pull) {
        notice_ = TransferNotice<D.transfer>{page.transfer};
    } else if constexpr (D.transfer == TransferNotification::immediate) {
        notice_ = TransferNotice<D.transfer>{terms_->receive_pool};
    }
    if constexpr (D.space == SpaceNotification::pull) {
        CounterPull pull{end_.window(), progress, landing};
        pull.load_from(peer.word(progress));
        space_ = SpaceView<D.space>{std::move(pull), terms_->initial, terms_->ring_bytes,
                                    options.refresh_above};
    } else if constexpr (D.space == SpaceNotification::push) {
        space_ = SpaceView<D.space>{page.credit, terms_->initial};
    }
    if constexpr (asks_to_flush) progress_ = CounterPull{end_.window(), progress, landing};
}

template <Design D>
Status TransmitterBase<D>::distrust() noexcept {
    // Nothing it says can be used any more, and to ask again would wait for ever.
    return end_.distrust([&] {
        return fmt::format(
            "the consumer claims to have consumed more than the {} bytes of ring that "
            "were sent to it: its program or its memory is damaged",
            intransit_ - terms_->initial);
    });
}

template <Design D>
Status TransmitterBase<D>::look_for_space() noexcept {
    // It cannot have consumed what is not on its way.
    News news = space_.look(self().reachable());
    if constexpr (asks_to_flush) {
        if (news != News::impossible && progress_.poll()) {
            news = space_.learn(progress_.value(), self().reachable());
        }
    }
    return news == News::impossible ? distrust() : Status::ok;
}

template <Design D>
Status TransmitterBase<D>::ask_consumer() noexcept {
    if constexpr (asks_to_flush) {
        if (progress_.start() == Status::peer_lost || end_.window().reap() != Status::ok)
            return lost();
        const Status looked = look_for_space();
        reap_transferred();
        return looked;
    } else {
        return refresh();
    }
}

template <Design D>
void TransmitterBase<D>::reap_transferred() noexcept {
    if constexpr (D.data == DataFlow::pull) {
        transferred_ = space_.consumed();  // the consumer moves the data, and says how far it is
        return;
    }
    while (cover_head_ != cover_tail_ &&
           end_.window().done(covers_[cover_head_ & cover_mask_].ticket)) {
        transferred_ = covers_[cover_head_++ & cover_mask_].position;
    }
}

template <Design D>
Status TransmitterBase<D>::service() noexcept {
    if (!reap()) return lost();
    if (look_for_space() != Status::ok) [[unlikely]]
        return ended();
    if (bell_.owes()) [[unlikely]]
        (void)bell_.ring();
    if (const Status status = tell(); status != Status::ok) return status;
    return end_.look();
}

template <Design D>
Status TransmitterBase<D>::refresh() noexcept {
    const std::uint64_t posted = space_.posted();
    const Status status = relies_on_bell() ? Status::ok : space_.refresh();
    if (D.data != DataFlow::pull && space_.posted() != posted) cover();
    if (status == Status::peer_lost || end_.window().reap() != Status::ok) return lost();
    reap_transferred();
    const Status looked = look_for_space();  // a device that completes at once has answered already
    if constexpr (D.data == DataFlow::pull) reap_transferred();
    return looked;
}

template <Design D>
Status TransmitterBase<D>::refresh_if_due(std::uint64_t position, bool* asked) noexcept {
    if (!space_.wants_refresh(position - consumed())) return Status::ok;
    if (asked != nullptr) *asked = true;
    ++lazy_refreshes_;
    return refresh();
}

template <Design D>
Status TransmitterBase<D>::refresh_for_certain() noexcept {
    const Status status = refresh();
    if (status == Status::ok) ++forced_refreshes_;
    return status;
}

template <Design D>
bool TransmitterBase<D>::relies_on_bell() noexcept {
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
Status TransmitterBase<D>::tell_counter() noexcept {
    if (ended() != Status::ok) return ended();
    if constexpr (D.transfer == TransferNotification::push) {
        const std::uint64_t before = notice_.posted();
        Status status;
        if (terms_->own_transfer_queue && D.data != DataFlow::pull) {
            // Another queue pair's WRITE may overtake data that are not known to have arrived.
            if (!reap()) return lost();
            status = notice_.tell(transferred_);
        } else {
            status = notice_.tell(intransit_);
            // Its completion says that all before it is done as well.
            if (D.data != DataFlow::pull && notice_.posted() != before) cover();
        }
        if (status == Status::peer_lost) return lost();
    } else if constexpr (D.data == DataFlow::pull) {
        (void)notice_.tell(intransit_);
    } else {
        if (!reap()) return lost();
        (void)notice_.tell(transferred_);
    }
    return Status::ok;
}

template <Design D>
std::uint64_t TransmitterBase<D>::unit_at(std::uint64_t offset,
                                          std::uint64_t position) const noexcept {
    if (!terms_->framed()) return terms_->slot_bytes;
    const std::uint64_t word = load_word(ring_ + offset);
    if (word == Frames<D>::skip(position, terms_->secret)) return terms_->ring_bytes - offset;
    return Frames<D>::bytes(frame_length(word), terms_->chunk_bytes);
}

template <Design D>
Status TransmitterBase<D>::settle_in_flight() noexcept {
    if (covered_ != intransit_) {
        const Status status =
            end_.window().post(verbs::Write{.from = {}, .to = peer_page_}, Signal::now);
        if (status == Status::peer_lost) return lost();
        if (status == Status::ok) {
            ++settling_writes_;
            cover();
        }
    }
    if (!reap()) return lost();
    return tell();
}

template <Design D>
SenderCounts TransmitterBase<D>::counts() const noexcept {
    std::uint64_t receives = 0;
    if constexpr (completions_wake) receives = space_.receives_posted();
    return {
        .intransit = intransit_ - terms_->initial,
        .transferred =
            (D.data == DataFlow::pull ? space_.consumed() : transferred_) - terms_->initial,
        .credited = space_.consumed() - terms_->initial,
        .data_writes = static_cast<const Self*>(this)->data_posted(),
        .transfer_writes = notice_.posted(),
        .space_reads = space_.posted() + progress_.posted(),
        .settling_writes = settling_writes_,
        .events = bell_.rung(),
        .work_requests = end_.window().posted() + (notice_window_ ? notice_window_->posted() : 0),
        .receives = receives,
        .lazy_refreshes = lazy_refreshes_,
        .forced_refreshes = forced_refreshes_,
        .sleeps = sleeper_->sleeps(),
        .wake_ups = sleeper_->woken()};
}

}  // namespace millrace::ring::detail
