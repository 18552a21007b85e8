// How an end is closed, for every protocol: docs/closing.md is the contract. The protocol supplies
// what is delivered.
//
//   close()      deliver(): `full` until the peer has everything
//                then goodbye, with the protocol's position; from here on every close() answers
//                the same
//   timed_out    nothing was given up, and close() may be called again
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/end/send_window.hpp"

namespace millrace::end {

/// One thread at a time. Only close() blocks; nothing throws or allocates.
class Closing {
  public:
    /// Both outlive it.
    Closing(connect::Link& link, const SendWindow& window) noexcept
        : link_{&link}, window_{&window} {}

    /// close() has been called: nothing new is taken.
    [[nodiscard]] bool is_closing() const noexcept { return is_closing_; }
    /// Its answer was final, and every later one is the same.
    [[nodiscard]] bool is_closed() const noexcept { return closed_.has_value(); }
    /// The peer broke the protocol: no goodbye of it is waited for.
    void distrust() noexcept { is_liar_ = true; }

    /// `deliver()` tries once, and answers `ok`: the peer has everything; `full`: not yet;
    /// `timed_out` or `cancelled`, where it waits by itself; or what has ended the connection.
    /// `peer_had_all()`: by the goodbye of a peer that has closed. `position()` goes with this
    /// end's. `wait(is_over)`: waits by what the protocol sleeps by.
    template <class Deliver, class PeerHadAll, class Position, class Wait>
    base::Status close(Deliver&& deliver, PeerHadAll&& peer_had_all, Position&& position,
                       Wait&& wait, const base::Deadline& deadline,
                       const base::WaitPolicy& policy) {
        base::Status status = base::Status::full;
        const auto is_over = [&] {
            status = try_close(deliver, peer_had_all, position);
            return status != base::Status::full || goodbye_due_;
        };
        if (!is_over()) {
            const base::Status waited = wait(is_over);
            if (waited != base::Status::ok) return waited;
        }
        if (status != base::Status::full) return status;
        hear_goodbye(deadline, policy);
        return try_close(deliver, peer_had_all, position);
    }
    /// The same without waiting: `full` until it has come to an end.
    template <class Deliver, class PeerHadAll, class Position>
    base::Status try_close(Deliver&& deliver, PeerHadAll&& peer_had_all, Position&& position) {
        if (is_closed()) return *closed_;
        if (window_->is_copy()) return base::Status::peer_lost;
        is_closing_ = true;
        base::Status status = deliver();
        if (status == base::Status::full || status == base::Status::timed_out ||
            status == base::Status::cancelled) {
            return status;
        }
        if (status != base::Status::ok) {
            if (awaits_goodbye()) return base::Status::full;
            if (link_->peer_so_far() == connect::PeerState::closed) {
                status = peer_had_all() ? base::Status::ok : base::Status::closed;
            }
        }
        say_goodbye(position());
        closed_ = status;
        return status;
    }

    /// Says goodbye, once. `position`: how far the peer must come, or how far this end has come
    /// with what the peer sends: that is the protocol's to say.
    void say_goodbye(std::uint64_t position) noexcept;
    /// What the peer said so. None: it lives, died, or did not say.
    [[nodiscard]] std::optional<std::uint64_t> peer_position() const noexcept;
    /// What else goes with this end's goodbye: what a protocol has counted.
    using Totals = std::array<std::uint64_t, 2>;
    void add_to_goodbye(const Totals& totals) noexcept { totals_ = totals; }
    [[nodiscard]] std::optional<Totals> peer_totals() const noexcept;

  private:
    /// Requests may fail because the peer has closed: its goodbye may be under way, for a moment.
    [[nodiscard]] bool awaits_goodbye() noexcept;
    /// Waits for it.
    void hear_goodbye(const base::Deadline& deadline, const base::WaitPolicy& policy);

    connect::Link* link_;
    const SendWindow* window_;
    std::optional<Totals> totals_;
    bool is_liar_ = false;
    bool is_closing_ = false;
    std::optional<base::Status> closed_;
    std::optional<base::Deadline> goodbye_due_;
};

}  // namespace millrace::end
