// The send queue's slots, accounted by completions alone: which requests must be signaled, how
// many slots are free, and what went wrong. Used by every protocol of floors 4 and 5 that posts.
//
// Why completions and nothing else: a slot is held until a completion of it, or of a later
// request, has been polled. A peer's acknowledgement (a credit, an answer) can arrive before that
// completion; an end that frees slots by it overflows the send queue.
//
// A request's ticket is its number in posting order, and travels as its wr_id. The completion of
// ticket t says that every ticket up to t is done: a send queue completes in order.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "millrace/base/detail/forks.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/queue_pair.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::end {

/// Whether a request leaves a completion.
enum class Signal : std::uint8_t {
    when_due,  ///< as often as the window needs to free slots
    now,       ///< this one: its end is waited for, or it is the last before a flush
};

/// Which part of the send queue a request may use.
enum class Slot : std::uint8_t {
    ordinary,  ///< all but the reserve
    reserved,  ///< the reserve too: events that wake a sleeping peer must not wait for slots
};

/// How one learns that there are completions.
enum class Completions : std::uint8_t {
    polled,  ///< by a look at the queue: no system call
    events,  ///< every request leaves a completion, and the channel's descriptor is read before the
             ///< queue is polled: a system call for each post and look, as in work 000,
             ///< section 6.4.1
};

/// One thread at a time. Nothing blocks, throws or allocates after construction.
class SendWindow {
  public:
    /// Slots that only `Slot::reserved` may take, in queues of at least so many.
    static constexpr std::uint32_t reserve = 2;
    static constexpr std::uint32_t fewest_with_reserve = 8;

    /// The window over all send slots of `link`'s queue pair; nobody else may post sends to it or
    /// poll its send queue. The link's state must outlive the window (the Link may move).
    explicit SendWindow(connect::Link& link) noexcept
        : SendWindow{link.queue_pair(), link.send_queue()} {}
    SendWindow(verbs::QueuePair& queue_pair, verbs::CompletionQueue& completions) noexcept;
    SendWindow(const SendWindow&) = delete;
    SendWindow& operator=(const SendWindow&) = delete;

    /// From now on by events. Before the first post; throws Error (unsupported) if the queue cannot
    /// be armed. `channel` is that of the window's completion queue, used by the same thread, and
    /// must outlive the window. Looking takes the events of other queues that come through it, too.
    void use_events(verbs::CompletionChannel& channel);

    /// Posts `request`; its id and its signaled flag are the window's to set. Returns `ok`, `full`
    /// (no slot is free, even after a look at the completion queue; nothing was posted), or
    /// `peer_lost` (the queue pair is broken: see failure()).
    template <class Request>
    base::Status post(Request request, Signal signal = Signal::when_due,
                      Slot slot = Slot::ordinary) noexcept {
        const base::Status status = admit(slot);
        if (status != base::Status::ok) [[unlikely]]
            return status;
        const std::uint64_t ticket = stamp(request, signal);
        const int error = queue_pair_->post(request);
        if (error != 0) [[unlikely]]
            return refuse(error);
        posted_ = ticket;
        return base::Status::ok;
    }

    /// Keeps an ordinary slot for a request that will be posted in a list, before or after which
    /// others may be posted: nothing else takes it. Answers as post(), which it is half of.
    base::Status hold() noexcept {
        const base::Status status = admit(Slot::ordinary);
        if (status != base::Status::ok) [[unlikely]]
            return status;
        ++held_;
        count_room();
        return base::Status::ok;
    }
    /// Posts a list of requests with one doorbell and empties it; a slot was held for each. Their
    /// ids are the window's to set, and so is the signaled flag of those that have none.
    template <std::size_t Capacity>
    base::Status post(verbs::Batch<Capacity>& list, Signal signal = Signal::when_due) noexcept {
        const std::size_t count = list.size();
        if (is_copy_) [[unlikely]]
            return drop(list);
        take_tickets({list.first(), count}, signal);
        const int error = queue_pair_->post(list);
        list.clear();
        if (error != 0) [[unlikely]]
            return refuse(error);
        posted_ += count;
        return base::Status::ok;
    }

    /// As post(), but `request` is only added to `chain`, after whatever is in it, and leaves with
    /// post_chain(): all of a chain with one doorbell. Its ticket is given, and its slot taken, at
    /// once. Nothing may be posted otherwise until then. `full`: the chain is, or there is no slot;
    /// in both cases what is chained may be posted. What the request refers to is borrowed until
    /// then.
    template <class Request, std::size_t Capacity>
    base::Status chain(verbs::Batch<Capacity>& chain, Request request,
                       Signal signal = Signal::when_due, Slot slot = Slot::ordinary) noexcept {
        if (broken_) return base::Status::peer_lost;
        if (chain.size() == Capacity) return base::Status::full;
        const base::Status status = admit(slot);
        if (status != base::Status::ok) return status;
        const std::uint64_t ticket = stamp(request, signal);
        (void)chain.add(request);
        posted_ = ticket;
        return base::Status::ok;
    }
    /// Posts what was chained, in its order, and leaves the chain empty. `ok`, also of an empty
    /// one; `peer_lost`.
    template <std::size_t Capacity>
    base::Status post_chain(verbs::Batch<Capacity>& chain) noexcept {
        if (chain.empty()) return base::Status::ok;
        if (is_copy_) [[unlikely]]
            return drop(chain);
        const int error = queue_pair_->post(chain);
        chain.clear();
        return error == 0 ? base::Status::ok : refuse(error);
    }

    /// Takes completions that are there. `ok`, or `peer_lost` once a request has failed.
    base::Status reap() noexcept;

    /// The ticket of the last posted request; 0 before the first.
    [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }
    /// Every ticket up to this one is known to be complete. Grows in post() and reap().
    [[nodiscard]] std::uint64_t completed() const noexcept { return completed_; }
    [[nodiscard]] bool done(std::uint64_t ticket) const noexcept { return completed_ >= ticket; }
    /// True if the last posted request will leave a completion (so waiting for it can end).
    [[nodiscard]] bool last_is_signaled() const noexcept { return signaled_ == posted_; }

    [[nodiscard]] std::uint32_t slots() const noexcept { return slots_; }
    /// Ordinary slots that are free as far as is known.
    [[nodiscard]] std::uint32_t free() const noexcept {
        const std::uint64_t used = posted_ + held_ - completed_;
        return used >= ordinary_ ? 0 : static_cast<std::uint32_t>(ordinary_ - used);
    }
    /// At least every how many requests one is signaled; at most half the queue.
    [[nodiscard]] std::uint32_t signal_interval() const noexcept { return interval_; }

    [[nodiscard]] bool broken() const noexcept { return broken_; }
    /// This is a child made by fork, and the queue pair its parent's: nothing is posted or taken
    /// here, and it counts as broken.
    [[nodiscard]] bool is_copy() const noexcept { return is_copy_; }
    /// Why it is broken: the first failed completion explained, or the error of the post. Empty
    /// while it is not.
    [[nodiscard]] std::string failure() const;

  private:
    friend base::ForkWatch;
    void become_copy() noexcept;
    template <std::size_t Capacity>
    static base::Status drop(verbs::Batch<Capacity>& list) noexcept {
        list.clear();
        return base::Status::peer_lost;
    }
    /// Whether there is a slot for one more.
    [[gnu::always_inline]] base::Status admit(Slot slot) noexcept {
        if (posted_ < (slot == Slot::ordinary ? look_at_ : look_at_ + (slots_ - ordinary_)))
            [[likely]]
            return base::Status::ok;
        return make_room(slot == Slot::ordinary ? ordinary_ : slots_);
    }
    /// Makes it the next one, and gives its ticket.
    template <class Request>
    [[gnu::always_inline]] std::uint64_t stamp(Request& request, Signal signal) noexcept {
        const std::uint64_t ticket = posted_ + 1;
        if (signal == Signal::now || ticket >= signal_at_) {
            request.flags = request.flags | verbs::SendFlags::signaled;
            signaled_ = ticket;
            signal_at_ = ticket + interval_;
        }
        request.id = ticket;
        return ticket;
    }
    [[gnu::noinline]] base::Status make_room(std::uint64_t limit) noexcept;
    [[gnu::cold]] base::Status refuse(int error) noexcept;
    /// Every ticket up to this one is complete.
    void complete(std::uint64_t ticket) noexcept {
        completed_ = ticket;
        count_room();
    }
    void count_room() noexcept {
        // By events, each post looks.
        look_at_ = channel_ != nullptr ? 0 : completed_ + ordinary_ - held_;
    }
    void take_tickets(std::span<ibv_send_wr> list, Signal signal) noexcept;
    /// True if the queue may hold completions that were not taken.
    [[nodiscard]] bool was_told() noexcept;

    verbs::QueuePair* queue_pair_;
    verbs::CompletionQueue* completions_;
    std::uint64_t posted_ = 0;
    std::uint64_t completed_ = 0;
    std::uint64_t signaled_ = 0;   ///< the last signaled ticket
    std::uint64_t signal_at_ = 0;  ///< from this ticket on, the next one is
    std::uint64_t look_at_ = 0;    ///< with so many posted, posting looks for completions first
    std::uint32_t held_ = 0;       ///< slots of requests that are not posted yet
    std::uint32_t slots_;
    std::uint32_t ordinary_;
    std::uint32_t interval_;
    verbs::CompletionChannel* channel_ = nullptr;  ///< null: polled
    std::uint64_t told_ = 0;                       ///< its events that were taken note of
    bool broken_ = false;
    bool is_copy_ = false;
    int post_error_ = 0;
    int poll_error_ = 0;
    verbs::Completion failed_{};
    base::ForkWatch fork_watch_{*this};
};

/// Why the peer of a link is lost, where nothing that it claims tells better: its process ended,
/// where the link has noticed that; else the request that failed.
[[nodiscard]] std::string cause_of_loss(const connect::Link& link, const SendWindow& window);

}  // namespace millrace::end
