// One end of a connection, as every protocol of floors 4 and 5 has one: the link and its send
// window, how the connection has ended and why, sleeping within a call or in a program's own loop,
// the goodbye, and close. A protocol (a ring's sender or receiver, latest values, a channel, a byte
// stream) supplies what is news and what is delivered.
//
//   what       asked by                        the protocol supplies
//
//   waiting    wait, wait_while                a look: is the wait over?
//
//   sleeping   descriptor, end_rest, rest      that look; a number that grows with what is done
//
//   the peer   peer, peer_now                  one more look at its memory before it believes that
//
//   the end    end, distrust, ended, failure   a sentence, where the peer broke the protocol
//
//   closing    close                           an attempt to deliver; how far the peer must come
//
// Until the protocol names its own parker (sleep_by), which knows what raises an event, the peer's
// words and completions wake it.
// docs/closing.md is the contract that close() keeps for all of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/readiness.hpp"
#include "millrace/end/closing.hpp"
#include "millrace/end/send_window.hpp"

namespace millrace::end {

/// One thread at a time. Only waits and close block; only descriptor() throws.
class End {
  public:
    explicit End(connect::Link link) noexcept : link_{std::move(link)}, window_{link_} {}
    End(const End&) = delete;
    End& operator=(const End&) = delete;

    [[nodiscard]] connect::Link& link() noexcept { return link_; }
    [[nodiscard]] const connect::Link& link() const noexcept { return link_; }
    [[nodiscard]] SendWindow& window() noexcept { return window_; }
    [[nodiscard]] const SendWindow& window() const noexcept { return window_; }

    // ---- the peer, and the end

    /// `ok` while the peer lives and requests go; else `closed` or `peer_lost`. `is_broken`: what
    /// the protocol alone sees has failed. A request that fails may have failed because the peer
    /// has closed, so what that said last decides.
    [[nodiscard]] base::Status peer(bool is_broken = false) noexcept {
        const bool goes = !is_broken && !window_.broken();
        if (goes && link_.peer() == connect::PeerState::alive) [[likely]]
            return base::Status::ok;
        return how_it_ended();
    }
    /// As peer(), by a system call.
    [[nodiscard]] base::Status peer_now() noexcept;
    /// As peer(), when it is known that it does not go on.
    [[nodiscard]] base::Status how_it_ended() noexcept;

    /// `ok`; or how it has ended, for good.
    [[nodiscard]] base::Status ended() const noexcept { return ended_; }
    /// It has ended so, unless it had before. Answers ended().
    base::Status end(base::Status how) noexcept {
        if (ended_ == base::Status::ok) ended_ = how;
        return ended_;
    }
    /// Looks after the peer, unless it has ended: answers ended(), which it may set.
    base::Status look(bool is_broken = false) noexcept {
        return ended_ != base::Status::ok ? ended_ : end(peer(is_broken));
    }
    base::Status look_now() noexcept {
        return ended_ != base::Status::ok ? ended_ : end(peer_now());
    }
    /// As look(), when a request has failed or the peer does not go on.
    base::Status lost() noexcept {
        return ended_ != base::Status::ok ? ended_ : end(how_it_ended());
    }
    /// It is lost by `why()`, a sentence for failure(), which is left out if there is no memory for
    /// it.
    template <class Why>
    base::Status fail(const Why& why) noexcept {
        ended_ = base::Status::peer_lost;
        try {
            why_ = why();
        } catch (const std::exception&) {
        }
        return ended_;
    }
    /// The same, as the peer broke the protocol: nothing that it says is believed any more.
    template <class Why>
    base::Status distrust(const Why& why) noexcept {
        closing_.distrust();
        return fail(why);
    }
    /// Why the peer is lost, or that this is a child's copy. Else empty. `second`: another window
    /// of this end's, which may be the broken one.
    [[nodiscard]] std::string failure(const SendWindow* second = nullptr) const;

    // ---- sleeping

    /// From now on it sleeps by `parker`, which outlives this, be it within a call of its own.
    void sleep_by(base::StandingParker& parker) noexcept {
        end_rest();
        parker_ = &parker;
        wake();
    }

    /// Waits until `ready()`. `ok`, `timed_out`, `cancelled`.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
        end_rest();
        const connect::HeldReadiness held{readiness_};
        return base::wait_until(ready, deadline, policy, *parker_);
    }
    /// Waits while `attempt()` answers `again`, and answers what it says then. Also `timed_out`,
    /// `cancelled`.
    template <class Attempt>
    base::Status wait_while(base::Status again, Attempt&& attempt, const base::Deadline& deadline,
                            const base::WaitPolicy& policy) {
        base::Status status = again;
        const base::Status waited = wait(
            [&] {
                status = attempt();
                return status != again;
            },
            deadline, policy);
        return waited == base::Status::ok ? status : waited;
    }

    /// For a program's own loop (connect/readiness.hpp): from the first call on, calls that find
    /// nothing fall asleep, `spin` after the last that found something. Throws Error
    /// (resource_exhausted).
    [[nodiscard]] int descriptor(std::chrono::nanoseconds spin);
    /// From now on another source of news than the link's makes it readable, which outlives this.
    void watch(int source);
    [[nodiscard]] bool has_descriptor() const noexcept { return readiness_ != nullptr; }
    /// A call begins: takes back what rest() has announced.
    void end_rest() noexcept {
        if (readiness_ != nullptr) [[unlikely]]
            readiness_->end(*parker_);
    }
    /// A call has found nothing. True: `progress` has changed lately, so the descriptor stays
    /// readable for a while. Only where there is one.
    [[nodiscard]] bool stays_awake(std::uint64_t progress) noexcept {
        return readiness_->stays_awake(progress);
    }
    /// Falls asleep, unless it `finds()` something after the announcement; for `limit` at most.
    /// Nothing happens where there is no descriptor.
    template <class Finds>
    void rest(Finds&& finds, std::chrono::nanoseconds limit = connect::Readiness::until_woken) {
        if (readiness_ != nullptr) readiness_->rest(*parker_, finds, limit);
    }
    /// A call has found something, or the end: the descriptor is readable.
    void wake() noexcept {
        if (readiness_ != nullptr) readiness_->wake();
    }

    /// For an owner that waits or sleeps in its place, as a lane of messages does.
    [[nodiscard]] std::unique_ptr<connect::Readiness>& readiness() noexcept { return readiness_; }

    // ---- closing, as end/closing.hpp says

    void say_goodbye(std::uint64_t position) noexcept { closing_.say_goodbye(position); }
    [[nodiscard]] std::optional<std::uint64_t> peer_position() const noexcept {
        return closing_.peer_position();
    }
    void add_to_goodbye(const Closing::Totals& totals) noexcept { closing_.add_to_goodbye(totals); }
    [[nodiscard]] std::optional<Closing::Totals> peer_totals() const noexcept {
        return closing_.peer_totals();
    }
    [[nodiscard]] bool is_closing() const noexcept { return closing_.is_closing(); }
    [[nodiscard]] bool is_closed() const noexcept { return closing_.is_closed(); }
    template <class Deliver, class PeerHadAll, class Position>
    base::Status close(Deliver&& deliver, PeerHadAll&& peer_had_all, Position&& position,
                       const base::Deadline& deadline, const base::WaitPolicy& policy) {
        const auto by_parker = [&](auto& is_over) { return wait(is_over, deadline, policy); };
        const base::Status status =
            closing_.close(deliver, peer_had_all, position, by_parker, deadline, policy);
        if (is_closed()) wake();
        return status;
    }
    template <class Deliver, class PeerHadAll, class Position>
    base::Status try_close(Deliver&& deliver, PeerHadAll&& peer_had_all, Position&& position) {
        return closing_.try_close(deliver, peer_had_all, position);
    }

  private:
    connect::Link link_;
    SendWindow window_;
    Closing closing_{link_, window_};
    base::Status ended_ = base::Status::ok;
    connect::LinkParker link_parker_{link_};
    base::StandingParker* parker_ = &link_parker_;
    std::unique_ptr<connect::Readiness> readiness_;  ///< if a descriptor was asked for
    std::optional<int> source_;                      ///< of news, in place of the link's
    std::string why_;
};

}  // namespace millrace::end
