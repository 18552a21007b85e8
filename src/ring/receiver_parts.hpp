// Receiver's setup and its slow paths: what has arrived, credit, the end. Included by the files
// that make Receivers of the designs of one data flow; brings the other parts along.
#pragma once

#include "millrace/ring/receiver.hpp"

#include "millrace/base/error.hpp"
#include "receiver_chunks.hpp"
#include "receiver_pull.hpp"
#include "receiver_sleep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

namespace millrace::ring {

using base::Status;

template <Design D>
    requires(check_design<D>())
Receiver<D>::Receiver(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link,
                      Design design, const RingOptions& options, const ItemFacts& item,
                      const base::Deadline& deadline, Joining joining)
    : endpoint_{std::move(endpoint)},
      link_{std::move(link)},
      peer_memory_{PeerMemory::behind(link_, options.carrier, why_posted(D))},
      window_{link_} {
    terms_ = agree(link_, Role::consumer, design, options, item, deadline);
    ring_memory_ =
        link_.allocate(terms_.ring_bytes, D.data == DataFlow::push1 ? verbs::Access::remote_write
                                                                    : verbs::Access::local_write);
    page_memory_ =
        link_.allocate(sizeof(Page), verbs::Access::remote_write | verbs::Access::remote_read);
    auto& all = *reinterpret_cast<Page*>(page_memory_.data());
    auto& page = all.wake;
    ring_ = ring_memory_.data();

    initial_ = consumed_ = returned_ = arrived_ = told_ = terms_.initial;
    low_water_ = terms_.ring_bytes / 10;
    all.transfer.store(PositionWord::pack(terms_.initial));
    ring_bytes_ = terms_.ring_bytes;
    tag_ = frame_tag(consumed_, terms_.secret);
    credit_step_ = std::max<std::uint64_t>(terms_.window_bytes / options.credit_parts, 1);
    if constexpr (D.transfer == TransferNotification::immediate) {
        // The receives come back with the space: half of them must not be worth less than a step.
        const std::uint64_t smallest = terms_.framed() ? Frames<D>::overhead : terms_.slot_bytes;
        credit_step_ =
            std::max<std::uint64_t>(std::min(credit_step_, terms_.receive_pool / 2 * smallest), 1);
    }
    if (D.data == DataFlow::push2 && !terms_.framed() && terms_.chunk_bytes != terms_.slot_bytes) {
        in_batches_ = true;
        credit_step_ = std::max(credit_step_, terms_.chunk_bytes);
    }
    page.progress.store(PositionWord::pack(terms_.initial));
    look_ticks_ = base::ticks_in(std::chrono::microseconds{5});

    if constexpr (has_arrivals(D)) {
        pool_ = detail::ReceivePool{link_};
        if constexpr (D.data == DataFlow::push2) {
            chunks_ = detail::ChunkReceiver{pool_,
                                            ring_memory_,
                                            terms_.ring_bytes,
                                            terms_.chunk_bytes,
                                            terms_.window_bytes,
                                            terms_.initial};
        } else {
            for (std::uint32_t i = 0; i < terms_.receive_pool; ++i) (void)pool_.post({});
        }
        if (pool_.broken()) {
            throw base::Error{
                base::ErrorCode::resource_exhausted, "post the receives of a ring",
                link_.peer_name(),
                fmt::format("the queue pair takes fewer than {} receives", terms_.receive_pool),
                "choose a smaller pool"};
        }
        sleeper_ = std::make_unique<ArrivalSleeper>(*this);
    } else {
        sleeper_ = std::make_unique<FlagSleeper>(*this, page, page_memory_.region());
    }
    join_ = std::make_unique<detail::Join>(link_, design, options);
    say_places(link_, {.ring = ring_memory_.remote(),
                       .page = page_memory_.remote(),
                       .credit = {},
                       .transfer = page_memory_.remote(offsetof(Page, transfer)),
                       .taken = {}});
    if (joining == Joining::later && detail::can_join_later(design, terms_)) {
        // The producer may begin before we have heard where its memory is.
        join_->nothing.resize(std::max<std::size_t>(terms_.slot_bytes, 2 * mark_bytes));
        ring_ = join_->nothing.data();
        (void)try_join();
    } else {
        join(wait_for_places(link_, deadline));
    }
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::join(const Places& theirs) {
    [[maybe_unused]] const Design design = join_->design;
    auto& all = *reinterpret_cast<Page*>(page_memory_.data());
    auto& page = all.wake;
    bell_ = Bell{window_, page, theirs.page, terms_.far_fences};
    (void)peer_memory_.word(theirs.page);  // so that it is known, even if nothing is stored there
    if constexpr (!has_arrivals(D)) sleeper_->connect_to(theirs.page, terms_.far_fences);
    if constexpr (D.transfer == TransferNotification::push) {
        transfer_ = detail::TransferView<D.transfer>{all.transfer, terms_.initial};
    } else if constexpr (D.transfer == TransferNotification::pull) {
        const ibv_sge landing = page_memory_.slice(offsetof(Page, transfer_landing), 8);
        PeerWord counter = peer_memory_.word(theirs.transfer);
        // Where it is a load, no mover need do it.
        if (design.mover == Mover::active && counter == nullptr) {
            transfer_ = detail::TransferView<D.transfer>{
                std::make_unique<detail::MovedPull>(link_, theirs.transfer, landing,
                                                    PositionWord::pack(terms_.initial)),
                terms_.initial};
        } else {
            CounterPull pull{window_, theirs.transfer, landing};
            pull.load_from(std::move(counter));
            transfer_ = detail::TransferView<D.transfer>{window_, std::move(pull), terms_.initial};
        }
    } else if constexpr (D.transfer == TransferNotification::immediate) {
        transfer_ = detail::TransferView<D.transfer>{pool_, terms_.initial};
    }
    if constexpr (D.data == DataFlow::pull) {
        puller_ = detail::Puller{window_, ring_memory_, theirs.ring,
                                 page_memory_.slice(offsetof(Page, probe_landing), 8)};
    }
    if constexpr (D.space == SpaceNotification::push2) {
        CounterPull taken{window_, theirs.taken,
                          page_memory_.slice(offsetof(Page, taken_landing), 8)};
        taken.load_from(peer_memory_.word(theirs.taken));
        space_ = detail::SpaceReturn<D.space>{window_, std::move(taken), terms_.initial};
    }
    if constexpr (D.space == SpaceNotification::push) {
        CounterPush credit{window_, theirs.credit, PositionWord::pack(terms_.initial)};
        credit.store_to(peer_memory_.word(theirs.credit));
        space_ = detail::SpaceReturn<D.space>{std::move(credit)};
    }
    ring_ = ring_memory_.data();
    join_.reset();
}

template <Design D>
    requires(check_design<D>())
Status Receiver<D>::look_for_last_word() noexcept {
    std::optional<Places> theirs;
    const Status status = join_->look(theirs);
    if (status != Status::ok) return status;
    try {
        join(*theirs);
        return Status::ok;
    } catch (const base::Error& error) {
        join_->fail(error);
    } catch (const std::exception&) {  // out of memory
        ended_ = Status::peer_lost;
        return ended_;
    }
    return join_->ended();
}

template <Design D>
    requires(check_design<D>())
Receiver<D>::~Receiver() = default;

template <Design D>
    requires(check_design<D>())
void Receiver<D>::return_credit() noexcept {
    std::uint64_t position = free_position();
    if constexpr (D.data == DataFlow::push2) {
        position = chunks_.replenish(consumed_);
    } else if constexpr (D.transfer == TransferNotification::immediate) {
        transfer_.replenish();
    }
    const bool wake = bell_.publish(PositionWord::pack(position));
    ++credit_stores_;
    (void)space_.give(position);  // one in flight: idle() gives what is left
    returned_ = position;
    if (wake) [[unlikely]]
        (void)bell_.ring();
}

template <Design D>
    requires(check_design<D>())
Status Receiver<D>::look() noexcept {
    if (ended_ != Status::ok) return ended_;
    if (const Status joined = try_join(); joined != Status::ok) [[unlikely]] {
        if (joined != Status::empty) ended_ = joined;
        return joined;
    }
    if (free_position() != returned_) {
        return_credit();
    } else {
        if (space_.owes(returned_)) (void)space_.give(returned_);
        if (bell_.owes()) (void)bell_.ring();
    }
    connect::PeerState peer = link_.peer();
    if (peer == connect::PeerState::alive) {
        // Over a broken queue pair nothing comes any more, and no credit goes: the producer may
        // wait for it and post nothing that would tell it.
        bool broken = window_.broken() || pool_.broken();
        if constexpr (D.transfer == TransferNotification::pull) {
            broken = broken || transfer_.broken();
        }
        if (!broken) return Status::empty;
        peer = link_.peer_now();
        if (peer == connect::PeerState::alive) peer = connect::PeerState::lost;
    }

    // What the producer sent before its end may have arrived after the caller's look.
    if (!last_look_) {
        last_look_ = true;
        missing_until_ = base::Deadline::after(std::chrono::seconds{2});
        return Status::empty;
    }
    if (peer == connect::PeerState::closed) {
        std::uint64_t total = 0;
        const std::span<const std::byte> words = link_.last_words();
        if (words.size() == sizeof total) {
            std::memcpy(&total, words.data(), sizeof total);
            if constexpr (!looks_at_marks && D.data != DataFlow::pull) {
                // It flushed before it said so. Its counters are gone with it; its word is here.
                if (total - consumed_ <= ring_bytes_) {
                    if (in_batches_) {
                        told_ = total;
                        (void)advance();
                    } else {
                        arrived(total);
                    }
                }
                if (total != consumed_ && consumed_ != arrived_) return Status::empty;
            }
            if (total == consumed_) {
                ended_ = Status::closed;
                return ended_;
            }
            // It flushed before it said so: the rest is on its way to this memory.
            if (!missing_until_.expired()) return Status::empty;
        }
    }
    ended_ = Status::peer_lost;
    return ended_;
}

template <Design D>
    requires(check_design<D>())
int Receiver<D>::descriptor(std::chrono::nanoseconds spin) {
    if (readiness_ == nullptr) {
        readiness_ = std::make_unique<connect::Readiness>(link_.news(), spin);
    }
    return readiness_->descriptor();
}

template <Design D>
    requires(check_design<D>())
bool Receiver<D>::has_front() noexcept {
    if (!terms_.framed()) return has_slot(terms_.slot_bytes);
    bool found;
    (void)front_frame(found);
    return found;
}

/// What idle() is where a program sleeps by itself.
template <Design D>
    requires(check_design<D>())
Status Receiver<D>::rest() noexcept {
    const bool joined = join_ == nullptr;
    readiness_->end(parker());
    looked_ = base::ticks();
    const Status status = look();
    if (status != Status::empty || joined != (join_ == nullptr)) {
        readiness_->wake();
    } else if (!readiness_->stays_awake(consumed_)) {
        readiness_->rest(
            parker(),
            [this, joined] {
                return has_front() || look() != Status::empty || joined != (join_ == nullptr);
            },
            joined ? connect::Readiness::until_woken : detail::Join::slice);
    }
    return status;
}

template <Design D>
    requires(check_design<D>())
bool Receiver<D>::hushed() noexcept {
    // Within a wait, the sleeper knows when there is no news; asking again would wake it up.
    if (!waiting_) return false;
    if constexpr (D.data == DataFlow::push2) {
        chunks_.take();
        return chunks_.arrived() == consumed_;
    } else if constexpr (has_arrivals(D)) {
        return false;
    } else {
        return sleeper_->waits_for_bell();
    }
}

template <Design D>
    requires(check_design<D>())
bool Receiver<D>::advance() noexcept {
    if (join_ != nullptr) [[unlikely]]
        return false;
    if constexpr (looks_at_marks) {
        return false;
    } else if constexpr (D.data == DataFlow::pull) {
        pull();
    } else if constexpr (D.transfer == TransferNotification::event) {
        chunks_.take();
        if (in_batches_) {
            enter_chunk(chunks_.arrived());
        } else {
            arrived(chunks_.arrived());
        }
    } else {
        if constexpr (D.transfer == TransferNotification::pull) {
            if (hushed()) return consumed_ != arrived_;
        }
        if (transfer_.look(consumed_ + terms_.window_bytes) == News::impossible) disbelieve();
        if (in_batches_) {
            if (static_cast<std::int64_t>(transfer_.position() - told_) > 0) {
                told_ = transfer_.position();
            }
            enter_chunk(told_);
        } else {
            arrived(transfer_.position());
        }
    }
    return consumed_ != arrived_;
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::ask_ahead() noexcept {
    if (in_batches_ && told_ - consumed_ >= low_water_) return;
    if (ended_ == Status::ok) (void)advance();
}

/// front_frame where it is known how far frames have arrived.
template <Design D>
    requires(check_design<D>())
std::span<const std::byte> Receiver<D>::next_frame(bool& found) noexcept {
    found = false;
    for (;;) {
        if (consumed_ == arrived_ && !advance()) return {};
        const std::byte* const frame = ring_ + offset_;
        const std::uint64_t rest = ring_bytes_ - offset_;
        const std::uint64_t word = load_word(frame);
        const bool skips = word == Frames<D>::skip(consumed_, terms_.secret);
        const std::uint64_t length = has_marks(D) ? frame_length(word) : word;
        if (!skips &&
            (length > terms_.max_frame() || Frames<D>::bytes(length, terms_.chunk_bytes) > rest)) {
            disbelieve();
            return {};
        }
        const std::uint64_t bytes = skips ? rest : Frames<D>::bytes(length, terms_.chunk_bytes);
        // In chunks or runs it may have arrived in part.
        if (bytes > arrived_ - consumed_) {
            (void)advance();
            if (bytes > arrived_ - consumed_) return {};
        }
        if (!skips) {
            found = true;
            return {frame + mark_bytes, static_cast<std::size_t>(length)};
        }
        release_frame(rest);
    }
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::disbelieve() noexcept {
    lied_to_ = true;
    ended_ = Status::peer_lost;
}

template <Design D>
    requires(check_design<D>())
std::string Receiver<D>::failure() const {
    if (join_ != nullptr) return join_->failure();
    if (!lied_to_) return window_.failure();
    return "the producer claims to have sent what cannot have been sent: its program or its "
           "memory is damaged";
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::close() noexcept {
    if (ended_ == Status::ok) {
        link_.say_goodbye();
        ended_ = Status::closed;
        if (readiness_ != nullptr) readiness_->wake();
    }
}

template <Design D>
    requires(check_design<D>())
ReceiverCounts Receiver<D>::counts() const noexcept {
    std::uint64_t elsewhere = 0;
    if constexpr (D.transfer == TransferNotification::pull) {
        elsewhere = transfer_.posted_elsewhere();
    }
    return {.bytes = consumed_ - terms_.initial,
            .credit_writes = space_.posted(),
            .credit_stores = credit_stores_,
            .transfer_reads = transfer_.posted() + puller_.probes(),
            .data_reads = puller_.runs(),
            .receives = pool_.posted(),
            .events = bell_.rung(),
            .work_requests = window_.posted() + elsewhere,
            .sleeps = sleeper_->sleeps(),
            .wake_ups = sleeper_->woken()};
}

#define MILLRACE_INSTANTIATE_RECEIVER(D, FLOW) template class Receiver<D>;

}  // namespace millrace::ring
