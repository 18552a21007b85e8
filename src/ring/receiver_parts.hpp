// Receiver's setup and its slow paths: frames, credit, the end. Included by the files that make
// Receivers of the designs of one data flow; brings the other parts along.
#pragma once

#include "millrace/ring/receiver.hpp"

#include "intake_pull.hpp"
#include "intake_push1.hpp"
#include "intake_push2.hpp"
#include "millrace/base/detail/shared_lines.hpp"
#include "millrace/base/error.hpp"
#include "receiver_sleep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

namespace millrace::ring {

using base::Status;

template <Design D>
    requires(check_design<D>())
Receiver<D>::Receiver(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link,
                      Design design, const RingOptions& options, const ItemFacts& item,
                      const base::Deadline& deadline, const Setup& setup)
    : terms_{agree(link, Role::consumer, design, options, item, deadline, setup.proposals)},
      endpoint_{std::move(endpoint)},
      ring_memory_{link.allocate(terms_.ring_bytes, D.data == DataFlow::push1
                                                        ? verbs::Access::remote_write
                                                        : verbs::Access::local_write)},
      page_memory_{link.allocate_packed(sizeof(detail::ReceiverPage),
                                        verbs::Access::remote_write | verbs::Access::remote_read)},
      end_{std::move(link)},
      peer_memory_{PeerMemory::behind(end_.link(), options.carrier, why_posted(D))},
      intake_{end_.link(), terms_, ring_memory_} {
    if (intake_.broken()) {
        throw base::Error{
            base::ErrorCode::resource_exhausted, "post the receives of a ring",
            end_.link().peer_name(),
            fmt::format("the queue pair takes fewer than {} receives", terms_.receive_pool),
            "choose a smaller pool"};
    }
    auto& page = *reinterpret_cast<detail::ReceiverPage*>(page_memory_.data());
    page.transfer.store(PositionWord::pack(terms_.initial));
    page.wake.progress.store(PositionWord::pack(terms_.initial));
    front_.ring = ring_memory_.data();
    front_.ring_bytes = terms_.ring_bytes;
    front_.initial = front_.consumed = front_.arrived = front_.returned = terms_.initial;
    front_.step = detail::Intake<D>::step(
        std::max<std::uint64_t>(terms_.window_bytes / options.credit_parts, 1), terms_);
    stand_back_.begin(terms_.initial);
    tag_ = frame_tag(front_.consumed, terms_.secret);
    look_ticks_ = base::ticks_in(std::chrono::microseconds{5});
    if constexpr (has_arrivals(D)) {
        sleeper_ = std::make_unique<ArrivalSleeper>(*this);
    } else {
        sleeper_ = std::make_unique<FlagSleeper>(*this, page.wake, page_memory_.region());
    }
    if (terms_.is_filtered) filter_ = std::make_unique<detail::FilterHearing>();
    join_ = std::make_unique<detail::Join>(end_.link(), design, options, setup.joining);
    const Places mine{.ring = ring_memory_.remote(),
                      .page = page_memory_.remote(),
                      .credit = {},
                      .transfer = page_memory_.remote(offsetof(detail::ReceiverPage, transfer)),
                      .taken = {}};
    if (const auto theirs = join_->meet(mine, terms_, deadline)) {
        join(*theirs);
    } else {
        // The producer may begin before we have heard where its memory is.
        join_->nothing.resize(std::max<std::size_t>(terms_.slot_bytes, 2 * mark_bytes));
        front_.ring = join_->nothing.data();
        (void)try_join();
    }
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::join(const Places& theirs) {
    const detail::Meeting met{.link = end_.link(),
                              .window = end_.window(),
                              .peer = peer_memory_,
                              .theirs = theirs,
                              .memory = page_memory_,
                              .terms = terms_,
                              .design = join_->design};
    (void)peer_memory_.word(theirs.page);  // so that it is known, even if nothing is stored there
    if constexpr (!has_arrivals(D)) sleeper_->connect_to(theirs.page, terms_.far_fences);
    intake_.meet(met);
    if (!intake_.is_moved()) giver_.meet(met);
    front_.ring = ring_memory_.data();
    takes_lines_ = D.data == DataFlow::push1 && peer_memory_.stores() && base::readers_take_lines();
    end_.sleep_by(*sleeper_);
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
        return join_->fail(error);
    } catch (const std::exception&) {
        return join_->fail_for_want_of_memory();
    }
}

template <Design D>
    requires(check_design<D>())
Status Receiver<D>::wait_for_last_word(const base::Deadline& deadline,
                                       const base::WaitPolicy& policy) {
    const auto joined = [this] { return try_join() != Status::empty; };
    return end_.wait(joined, deadline, policy);
}

template <Design D>
    requires(check_design<D>())
bool Receiver<D>::has_joined() {
    const Status status = try_join();
    if (status != Status::ok && status != Status::empty) join_->raise(status);
    return status == Status::ok;
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::await_join(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    Status status = wait_to_join(deadline, policy);
    if (status == Status::ok) status = try_join();
    if (status != Status::ok) join_->raise(status);
}

template <Design D>
    requires(check_design<D>())
Receiver<D>::~Receiver() = default;

template <Design D>
    requires(check_design<D>())
void Receiver<D>::become_copy() noexcept {
    (void)end_.end(Status::peer_lost);
    // Positions are multiples of 8.
    front_.consumed = front_.arrived = front_.consumed + 1;
    tag_ = frame_tag(front_.consumed, terms_.secret);
    intake_.become_copy();
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::return_credit() noexcept {
    giver_.give(front_, intake_.replenish(front_));
}

template <Design D>
    requires(check_design<D>())
Status Receiver<D>::look() noexcept {
    if (end_.ended() != Status::ok) return end_.ended();
    if (const Status joined = try_join(); joined != Status::ok) [[unlikely]] {
        return joined == Status::empty ? joined : end_.end(joined);
    }
    if (!intake_.is_moved() && !return_all()) giver_.settle(front_);
    // Over a broken queue pair nothing comes any more, and no credit goes: the producer may wait
    // for it and post nothing that would tell it.
    const Status peer = end_.peer(intake_.broken());
    if (filter_ != nullptr && hear_of_filter() != Status::ok) return end_.ended();
    if (peer == Status::ok) return Status::empty;

    // What the producer sent before its end may have arrived after the caller's look.
    if (!last_look_) {
        last_look_ = true;
        missing_until_ = base::Deadline::after(std::chrono::seconds{2});
        return Status::empty;
    }
    const auto total = end_.peer_position();
    if (peer == Status::closed && total.has_value()) {
        // It flushed before it said so. Its counters are gone with it; its word is here.
        if (!intake_.end_at(*total, front_)) distrust();
        if (*total == front_.consumed) return end_.end(Status::closed);
        if (!looks_at_marks && returns_what_is_consumed && front_.consumed != front_.arrived) {
            return Status::empty;
        }
        // It flushed before it said so: the rest is on its way to this memory.
        if (!missing_until_.expired()) return Status::empty;
    }
    return end_.end(Status::peer_lost);
}

template <Design D>
    requires(check_design<D>())
Status Receiver<D>::hear_of_filter() noexcept {
    while (const auto words = end_.link().overheard()) filter_->hear(*words);
    if (filter_->is_liar) {
        distrust();
    } else if (filter_->news.has_value() && filter_->news->stops != 0 &&
               static_cast<std::int64_t>(front_.consumed - filter_->news->position) >= 0) {
        (void)end_.fail([this] { return filter_->news->sentence(); });
    }
    return end_.ended();
}

template <Design D>
    requires(check_design<D>())
FilterTold Receiver<D>::filter_told() const {
    FilterTold told;
    if (filter_ == nullptr) return told;
    if (filter_->news.has_value()) {
        told = {filter_->news->looked, 1, filter_->news->sentence()};
    }
    if (const auto totals = end_.peer_totals(); totals.has_value()) {
        std::tie(told.looked, told.threw) = std::tie((*totals)[0], (*totals)[1]);
    }
    return told;
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
    end_.end_rest();
    looked_ = base::ticks();
    const Status status = look();
    // A join changes the parker: then there is news in any case.
    if (status != Status::empty || joined != (join_ == nullptr)) {
        end_.wake();
    } else if (!end_.stays_awake(front_.consumed)) {
        end_.rest(
            [this, joined] {
                return has_front() || look() != Status::empty || joined != (join_ == nullptr);
            },
            joined ? connect::Readiness::until_woken : detail::Join::slice);
    }
    return status;
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::stand_back(const base::Deadline& deadline,
                             const base::WaitPolicy& policy) noexcept {
    // Where requests bring the items, no processor's lines are taken away by a look.
    if (terms_.framed() || !peer_memory_.stores()) return;
    if (policy.spin < detail::StandBack::longest) return;
    const std::uint64_t slot_bytes = terms_.slot_bytes;
    const std::uint64_t items = stand_back_.drained(front_.consumed, slot_bytes, front_.ring_bytes);
    if (items == 0) [[likely]]
        return;
    const std::uint64_t ahead = items * slot_bytes;
    std::uint64_t offset = front_.offset + ahead;
    if (offset >= front_.ring_bytes) offset -= front_.ring_bytes;
    const std::byte* const at = front_.ring + offset + slot_bytes - mark_bytes;
    const std::uint64_t mark = slot_mark(front_.consumed + ahead, front_.initial);
    detail::StandBack::wait(items, deadline, [&] { return load_word(at) == mark; });
}

template <Design D>
    requires(check_design<D>())
bool Receiver<D>::advance() noexcept {
    if (join_ != nullptr || end_.window().is_copy()) [[unlikely]]
        return false;
    const bool asleep = waiting_ && sleeper_->waits_for_bell();
    if (!intake_.advance(front_, giver_, asleep)) distrust();
    return front_.consumed != front_.arrived;
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::ask_ahead() noexcept {
    if (end_.ended() == Status::ok) (void)advance();
}

/// front_frame where it is known how far frames have arrived.
template <Design D>
    requires(check_design<D>())
std::span<const std::byte> Receiver<D>::next_frame(bool& found) noexcept {
    found = false;
    for (;;) {
        if (front_.consumed == front_.arrived && !advance()) return {};
        const std::byte* const frame = slot();
        const std::uint64_t rest = front_.ring_bytes - front_.offset;
        const std::uint64_t word = load_word(frame);
        const bool skips = word == Frames<D>::skip(front_.consumed, terms_.secret);
        const std::uint64_t length = has_marks(D) ? frame_length(word) : word;
        if (!skips &&
            (length > terms_.max_frame() || Frames<D>::bytes(length, terms_.chunk_bytes) > rest)) {
            distrust();
            return {};
        }
        const std::uint64_t bytes = skips ? rest : Frames<D>::bytes(length, terms_.chunk_bytes);
        // In chunks or runs it may have arrived in part.
        if (bytes > front_.arrived - front_.consumed) {
            (void)advance();
            if (bytes > front_.arrived - front_.consumed) return {};
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
void Receiver<D>::distrust() noexcept {
    (void)end_.distrust([] {
        return std::string{
            "the producer claims to have sent what cannot have been sent: its "
            "program or its memory is damaged"};
    });
}

template <Design D>
    requires(check_design<D>())
std::string Receiver<D>::failure() const {
    return join_ != nullptr && !end_.window().is_copy() ? join_->failure() : end_.failure();
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::close() noexcept {
    if (end_.ended() != Status::ok) return;
    end_.say_goodbye(front_.consumed);
    (void)end_.end(Status::closed);
    end_.wake();
}

template <Design D>
    requires(check_design<D>())
ReceiverCounts Receiver<D>::counts() const noexcept {
    const detail::GivenByMover moved = intake_.given();
    return {.bytes = front_.consumed - terms_.initial,
            .credit_writes = giver_.writes() + moved.writes,
            .credit_stores = giver_.stores() + moved.stores,
            .transfer_reads = intake_.transfer_reads(),
            .data_reads = intake_.data_reads(),
            .receives = intake_.receives(),
            .events = giver_.events() + moved.events,
            .work_requests = end_.window().posted() + intake_.posted_elsewhere(),
            .sleeps = sleeper_->sleeps(),
            .wake_ups = sleeper_->woken(),
            .stood_back = stand_back_.times()};
}

/// All that a Receiver of one design is made of.
#define MILLRACE_INSTANTIATE_RECEIVER(D, FLOW) \
    template class detail::IntakeBase<D>;      \
    template class detail::FLOW##Intake<D>;    \
    template class Receiver<D>;

}  // namespace millrace::ring
