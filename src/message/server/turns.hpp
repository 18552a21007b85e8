// Whose turn it is: the server goes round its places, from the one after the client that was served
// last, and finds those that have written by a scan (mailboxes.hpp). Each look is a new one, so
// between two turns of a client come all others whose message was there.
//
// While a server waits, it looks several times at the places whose clients ended its last waits
// (hot_places.hpp) before it looks at all once more. Only if everybody was looked at since somebody
// was served last, and what had written had a turn, may a lap begin out of its order at a hot
// place: so between two services of a client, however it was found, comes a look at everybody else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "server/hot_places.hpp"
#include "server/mailboxes.hpp"
#include "server/places.hpp"

namespace millrace::message {

/// One thread: the server's.
class Turns {
  public:
    Turns(Polling polling, std::size_t places, verbs::ProtectionDomain* common, ScanKernel kernel,
          Places& all)
        : mailboxes_{polling, places, common, kernel}, places_{&all} {}

    [[nodiscard]] Mailboxes& mailboxes() noexcept { return mailboxes_; }
    [[nodiscard]] const Mailboxes& mailboxes() const noexcept { return mailboxes_; }
    [[nodiscard]] bool is_dense() const noexcept { return mailboxes_.polling() == Polling::dense; }

    // --- what is known of a client's next message

    /// The scan shall find it, although nothing has come through a ring.
    void tell(const Peer& peer) noexcept {
        if (!peer.is_paused) mailboxes_.tell(peer.id.place);
    }
    /// After a look at a ring: where the next message of this client is awaited.
    [[gnu::always_inline]] void looked(Peer& peer) noexcept {
        mailboxes_.looked(peer.id.place, peer.ring().awaited());
    }
    /// The scan shall find it once more, whatever its client does.
    void look_again(Peer& peer) noexcept {
        looked(peer);
        mailboxes_.remind(peer.id.place);
    }

    // --- a turn

    /// Once through all places, while visit(place, budget) has taken fewer than `budget` requests
    /// in all. How many it took.
    template <class Visit>
    [[gnu::always_inline]] std::size_t lap(std::size_t budget, Visit&& visit) {
        all_had_their_turn_ = false;
        std::size_t requests = 0;
        const std::size_t in_use = places_->in_use();
        const std::size_t begin = std::min(cursor_, in_use);
        bool is_second = false;
        std::size_t end = in_use;
        const auto next_from = [&](std::size_t place) {
            end = is_second ? std::min(begin, places_->in_use()) : places_->in_use();
            return place < end ? mailboxes_.next(place, end) : end;
        };
        const bool is_here = std::exchange(is_found_, false) && begin == cursor_ && begin < in_use;
        for (std::size_t place = is_here ? begin : next_from(begin); requests != budget;) {
            if (place == end) {
                if (is_second) break;
                is_second = true;
                place = next_from(0);
                continue;
            }
            requests += visit(place, budget - requests);
            cursor_ = ++place;
            if (requests != budget) place = next_from(place);
        }
        if (requests > HotPlaces::most) hot_.forget();
        return requests;
    }
    /// A turn is over that took so many of at most `budget`.
    void end(std::size_t requests, std::size_t budget) noexcept {
        all_had_their_turn_ = requests == 0 && budget != 0;
    }

    // --- a wait

    /// True: a lap would find one, and begins there. By some looks at hot places alone, if the next
    /// client is likely to be one of them and nobody waits.
    [[nodiscard]] bool find_hot() noexcept;
    /// True: a lap would find one, and begins there. `rings_alone`: what comes, comes through
    /// rings.
    [[nodiscard]] bool find(bool rings_alone) noexcept;
    /// Has the processor fetch the lines that a request is likely to lie in. By bytes those of the
    /// client that was served last, if there are few that are awake, so that they are here when the
    /// byte that follows them is.
    void ask_for_frames(std::size_t awake) noexcept;

  private:
    [[nodiscard]] std::size_t find(std::size_t from, std::size_t to) noexcept;
    [[nodiscard]] bool begins_at(std::size_t place) noexcept {
        is_found_ = true;
        cursor_ = place;
        return true;
    }

    Mailboxes mailboxes_;
    HotPlaces hot_;
    Places* places_;
    std::size_t cursor_ = 0;  ///< after the place that was served last
    bool all_had_their_turn_ = false;
    bool is_found_ = false;  ///< a lap begins with a visit at `cursor_`, whatever the scan says
};

}  // namespace millrace::message
