// Bell and Sleeper, see the header for the protocol. All of it is off the polled path.
#include "millrace/end/wake_up.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::end {

base::Status Bell::ring() noexcept {
    const std::uint64_t asked = own_->peer_sleeping.load();
    if (asked == answered_) {
        owes_ = false;
        return base::Status::ok;
    }
    const base::Status status = window_->post(
        verbs::WriteWithImmediate{
            .from = {}, .to = event_target_, .immediate = static_cast<std::uint32_t>(asked)},
        Signal::when_due, Slot::reserved);
    owes_ = status == base::Status::full;
    if (status == base::Status::ok) {
        answered_ = asked;
        ++rung_;
    }
    return status;
}

Sleeper::Sleeper(connect::Link& link, SendWindow& window, WakeUpPage& own,
                 const verbs::MemoryRegion& region, Events events)
    : connect::LinkParker{link}, link_{&link}, window_{&window}, events_{events} {
    const auto offset =
        static_cast<std::size_t>(reinterpret_cast<std::byte*>(&own.landing.value) - region.data());
    landing_ = region.slice(offset, sizeof own.landing.value);
    if (events == Events::told) return;
    for (unsigned i = 0; i < receives; ++i) {
        if (!post_receive()) {
            throw base::Error{base::ErrorCode::verbs, "post the receives for wake-up events",
                              fmt::format("queue pair {}", link.queue_pair().number()),
                              "the queue pair refused a receive",
                              "ask for more receive requests in the link's options"};
        }
    }
}

void Sleeper::connect_to(verbs::RemoteAddress peer_page, bool far_fences) noexcept {
    far_fences_ = far_fences;
    progress_ = CounterPull{*window_, peer_page + offsetof(WakeUpPage, progress), landing_};
    flag_ = peer_page + offsetof(WakeUpPage, peer_sleeping);
}

bool Sleeper::post_receive() noexcept { return link_->queue_pair().post(verbs::Receive{}) == 0; }

void Sleeper::rang(std::uint32_t immediate) noexcept {
    ++woken_;
    if (immediate == static_cast<std::uint32_t>(generation_)) standing_ = false;
}

bool Sleeper::take_events() noexcept {
    if (events_ == Events::told) return take_told();
    const std::uint64_t before = woken_;
    std::array<verbs::Completion, receives> batch;
    while (!broken_) {
        const int count = link_->receive_queue().poll(batch);
        if (count == 0) break;
        if (count < 0) {
            broken_ = true;
            break;
        }
        for (const verbs::Completion& completion :
             std::span{batch}.first(static_cast<std::size_t>(count))) {
            if (!completion.ok() || !post_receive()) {
                broken_ = true;
                break;
            }
            rang(completion.immediate());
        }
    }
    return woken_ != before;
}

void Sleeper::announce() noexcept {
    if (!is_wide_enough()) standing_ = false;
    if (!standing_) {
        // A READ posted before this announcement must not be taken for the one behind it.
        if (progress_.pending() && !progress_.poll()) return;
        const std::uint64_t next = generation_ + 1;
        const bool is_for_room = awaits_room();
        const std::uint64_t flag = next | (is_for_room ? 0 : waits_for_no_room);
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&flag), sizeof flag, 0};
        if (window_->post(
                verbs::Write{.from = {&slice, 1}, .to = flag_, .flags = verbs::SendFlags::inlined},
                far_fences_ ? Signal::now : Signal::when_due) != base::Status::ok) {
            return;
        }
        generation_ = next;
        is_for_room_ = is_for_room;
        standing_ = true;
        confirmed_ = false;
        fenced_ = !far_fences_;
        flag_ticket_ = window_->posted();
    }
    if (!confirmed_ && fence()) (void)progress_.start();
}

bool Sleeper::fence() noexcept {
    if (fenced_) return true;
    if (window_->reap() != base::Status::ok || !window_->done(flag_ticket_)) return false;
    far_fence();
    fenced_ = true;
    return true;
}

void Sleeper::prepare() {
    (void)take_events();
    announce();
    // Devices that complete at once are not asked to wake us for our own READ.
    (void)window_->reap();
    LinkParker::prepare();
}

Sleeper::Rest Sleeper::settle() {
    const bool rung = take_events();
    const std::uint64_t completed = window_->completed();
    if (broken_ || window_->reap() != base::Status::ok) {
        (void)link_->peer_now();
        return Rest::nap;
    }
    // A completion taken here raises no event any more, and may be what is waited for.
    if (window_->completed() != completed && confirmed_) return Rest::look;
    if (!fenced_ && window_->done(flag_ticket_)) return Rest::look;  // prepare() goes on with it
    // Not standing and not rung: the announcement found no slot.
    if (!standing_) return rung ? Rest::look : Rest::nap;
    // The look behind prepare() found that room is lacking.
    if (!is_wide_enough()) return Rest::look;
    if (!confirmed_ && progress_.poll()) {
        // It is published but not here yet. It arrives soon, and maybe without an event.
        if (is_news(progress_.value())) return Rest::nap;
        confirmed_ = true;
    }
    // The READ found no slot.
    if (!confirmed_ && fenced_ && !progress_.pending()) return Rest::nap;
    if (events_were_taken()) return Rest::look;
    // Not confirmed: sleeps until the WRITE of the flag or the READ completes, and parks again.
    ++sleeps_;
    return Rest::sleep;
}

// An event that finds no slot is owed until the peer's next call, which may never come. Likewise
// this end's own: what it owes the peer is offered again when something of it completes.
std::chrono::nanoseconds Sleeper::patience() const noexcept {
    const bool is_told = standing_ && confirmed_ && !broken_ && (far_fences_ || is_rung_for_all());
    const bool find_slots = link_->peer_send_requests() >= SendWindow::fewest_with_reserve &&
                            window_->free() >= SendWindow::reserve;
    return is_told && find_slots ? patience_for_events() : slice;
}

void Sleeper::woken(Rest from) {
    if (from == Rest::sleep) (void)take_events();  // who looks next may ask whether the bell is due
    LinkParker::woken(from);
}

}  // namespace millrace::end
