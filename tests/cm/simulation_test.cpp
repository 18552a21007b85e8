// Random schedules of two ends: programs that answer late, refuse, close or disconnect at any
// moment; a network that loses, doubles and overtakes; or a carrier that keeps order and hangs up
// when a process dies. Judged by what connection.hpp promises. By default 20,000 are played of each
// kind, a million with MILLRACE_TEST_LONG; settings: support/schedules.hpp.
#include "connection.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <string>

#include "ends.hpp"
#include "support/schedules.hpp"

namespace millrace::cm {
namespace {

enum class Carrier {
    network,  ///< loses, doubles, overtakes; nobody is told of a death
    socket,   ///< keeps all in order, and hangs up
};

class Schedule {
  public:
    Schedule(std::uint64_t seed, Carrier carrier)
        : random_{seed}, carrier_{carrier}, is_datagram_{one_of(5)} {
        if (carrier_ == Carrier::network && !one_of(4)) {
            loss_ = below(60);
            doubles_ = below(20);
            overtakes_ = !one_of(3);
        }
        refuses_ = one_of(4);
        closes_ = one_of(3);
        is_lazy_ = one_of(6);
        may_die_ = one_of(3);
    }

    /// What went wrong, or nothing.
    std::string play() {
        begin();
        for (int steps = 0; failure_.empty(); ++steps) {
            if (steps > 5000) return "the wait does not end";
            if (!step()) break;
        }
        if (failure_.empty()) judge_the_end();
        return failure_;
    }

    // What the tests count, to see that the schedules went where they should.
    bool was_established = false;
    bool was_given_up = false;

  private:
    struct Side {
        explicit Side(End& its_end) : end{its_end} {}
        End& end;
        std::deque<Mad> coming;       ///< what the peer said, on its way
        std::array<int, 16> heard{};  ///< by kind
        bool is_dead = false;         ///< its process
        bool is_closed = false;
        bool was_cut = false;
        bool has_accepted = false;
        bool has_confirmed = false;
        bool has_established = false;  ///< by the command
        std::size_t heard_in_all = 0;
    };

    std::uint32_t below(std::uint32_t count) {
        return static_cast<std::uint32_t>(random_() % count);
    }
    bool one_of(std::uint32_t count) { return below(count) == 0; }
    Side& other(const Side& side) { return &side == &active_ ? passive_ : active_; }
    void fail(const std::string& what) {
        if (failure_.empty()) failure_ = what;
    }

    void begin() {
        if (is_datagram_) {
            ends_.resolve();
        } else {
            ends_.connect(one_of(4) ? TransportType::uc : TransportType::rc);
        }
        collect(active_);
    }

    /// One thing happens; false, if nothing can any more.
    bool step() {
        const bool is_quiet = active_.coming.empty() && passive_.coming.empty();
        if (may_die_ && one_of(40)) {
            may_die_ = false;
            die(one_of(2) ? active_ : passive_);
            return true;
        }
        if (!is_quiet && !one_of(5)) {
            Side& side = passive_.coming.empty() || (!active_.coming.empty() && one_of(2))
                             ? active_
                             : passive_;
            arrive(side);
            return true;
        }
        Side& first = one_of(2) ? active_ : passive_;
        if (act(first) || act(other(first))) return true;
        if (!is_quiet && !one_of(8)) {  // else it comes after the time is up
            arrive(passive_.coming.empty() ? active_ : passive_);
            return true;
        }
        return pass_time() || !is_quiet;
    }

    void arrive(Side& side) {
        if (side.coming.empty()) return;
        const std::size_t place =
            overtakes_ ? below(static_cast<std::uint32_t>(side.coming.size())) : 0;
        const Mad mad = side.coming[place];
        if (doubles_ > 0 && one_of(4)) {
            --doubles_;
        } else {
            side.coming.erase(side.coming.begin() + static_cast<std::ptrdiff_t>(place));
        }
        if (side.is_dead || below(100) < loss_) return;
        const State before = side.end.connection.state();
        ends_.arrive(side.end, mad);
        collect(side);
        if (before == State::over && side.end.connection.state() != State::over) {
            fail("what is over begins again");
        }
    }

    /// The program does what is its turn, sooner or later.
    bool act(Side& side) {
        if (side.is_dead || side.is_closed) return false;
        Connection& connection = side.end.connection;
        const State state = connection.state();
        const bool is_its_turn = state == State::request_received ||
                                 state == State::response_received ||
                                 state == State::disconnect_received ||
                                 state == State::resolve_received || state == State::established;
        if (is_its_turn && is_lazy_) return false;
        if (closes_ && state != State::idle && one_of(20)) return close(side);
        switch (state) {
            case State::request_received:
                if (refuses_) {
                    side.end.keep(connection.reject(RejectReason::consumer_defined, {}, ends_.now));
                } else {
                    ends_.accept();
                    side.has_accepted = true;
                }
                break;
            case State::response_received:
                if (refuses_ && one_of(2)) {
                    side.end.keep(connection.reject(RejectReason::consumer_defined, {}, ends_.now));
                } else {
                    ends_.confirm();
                    side.has_confirmed = true;
                    was_established = true;
                }
                break;
            case State::response_sent:
                if (!active_.has_confirmed || !one_of(4)) return false;
                side.end.keep(connection.establish(ends_.now));
                side.has_established = true;
                break;
            case State::established:
                if (!one_of(6)) return false;
                ends_.disconnect(side.end);
                break;
            case State::disconnect_received: ends_.disconnect(side.end); break;
            case State::resolve_received:
                side.end.keep(connection.answer(
                    refuses_ ? SidrStatus::rejected : SidrStatus::success, 1, 2, {}));
                break;
            default: return false;
        }
        collect(side);
        return true;
    }

    bool close(Side& side) {
        side.is_closed = true;
        ends_.close(side.end);
        collect(side);
        return true;
    }

    void die(Side& side) {
        if (side.is_dead) return;
        side.is_dead = true;
        Side& peer = other(side);
        if (carrier_ == Carrier::network || peer.is_dead) return;
        // What it said before it died still comes.
        while (!peer.coming.empty() && failure_.empty()) arrive(peer);
        if (peer.end.connection.state() == State::idle) return;
        peer.was_cut = true;
        ends_.hang_up(peer.end);
        collect(peer);
    }

    /// The clock goes to the next deadline, or the programs lose their patience.
    bool pass_time() {
        Side* due = nullptr;
        for (Side* side : {&active_, &passive_}) {
            if (side->is_dead || !side->end.connection.deadline()) continue;
            if (due == nullptr ||
                *side->end.connection.deadline() < *due->end.connection.deadline()) {
                due = side;
            }
        }
        if (due != nullptr) {
            ends_.pass_deadline(due->end);
            collect(*due);
            return true;
        }
        for (Side* side : {&active_, &passive_}) {
            if (side->is_dead || side->is_closed) continue;
            const State state = side->end.connection.state();
            if (state == State::established && !is_lazy_) {
                ends_.disconnect(side->end);
                collect(*side);
                return true;
            }
        }
        return false;
    }

    /// What the end said travels; what its program heard is judged.
    void collect(Side& side) {
        while (!side.end.said.empty()) {
            if (side.was_cut) fail("a MAD is said to nobody");
            other(side).coming.push_back(side.end.take());
        }
        for (; side.heard_in_all < side.end.heard.size(); ++side.heard_in_all) {
            hear(side, side.end.heard[side.heard_in_all]);
        }
    }

    void hear(Side& side, const Event& event) {
        const auto count = [&](EventKind kind) {
            return side.heard[static_cast<std::size_t>(kind)];
        };
        const std::string name = &side == &active_ ? "active" : "passive";
        if (side.is_closed) fail(name + ": an event after the close");
        if (count(event.kind) != 0) fail(name + ": an event twice");
        const bool is_first = side.heard_in_all == 0;
        switch (event.kind) {
            case EventKind::connect_request:
                if (&side == &active_ || !is_first) fail(name + ": CONNECT_REQUEST");
                break;
            case EventKind::connect_response:
                if (&side == &passive_ || !is_first) fail(name + ": CONNECT_RESPONSE");
                if (!passive_.has_accepted) fail("a response that nobody gave");
                break;
            case EventKind::established:
                if (&side == &active_ && (!is_datagram_ || !is_first)) fail(name + ": ESTABLISHED");
                if (&side == &passive_ && !active_.has_confirmed) {
                    fail("the passive side is established, and the active one is not");
                }
                was_established = true;
                break;
            case EventKind::unreachable:
                was_given_up = true;
                if (&side == &active_ && !is_first) fail(name + ": UNREACHABLE");
                if (&side == &passive_ && count(EventKind::established) != 0) {
                    fail("UNREACHABLE after ESTABLISHED");
                }
                break;
            case EventKind::timewait_exit:
                if (count(EventKind::disconnected) == 0) fail(name + ": TIMEWAIT_EXIT alone");
                break;
            case EventKind::disconnected:
                if (count(EventKind::unreachable) != 0) fail(name + ": DISCONNECTED after it");
                break;
            case EventKind::rejected: break;
        }
        ++side.heard[static_cast<std::size_t>(event.kind)];
    }

    void judge_the_end() {
        const auto has = [](const Side& side, EventKind kind) {
            return side.heard[static_cast<std::size_t>(kind)] != 0;
        };
        if (!active_.is_closed && !active_.is_dead && active_.heard_in_all == 0) {
            fail("whoever asked was told nothing");
        }
        if (passive_.has_accepted && !passive_.is_closed && !passive_.is_dead &&
            !passive_.has_established && !has(passive_, EventKind::established) &&
            !has(passive_, EventKind::rejected) && !has(passive_, EventKind::unreachable) &&
            !has(passive_, EventKind::disconnected)) {
            fail("whoever accepted was told nothing");
        }
        for (const Side* side : {&active_, &passive_}) {
            const State state = side->end.connection.state();
            const bool is_asked = state == State::resolve_answered || state == State::idle;
            if (!is_lazy_ && !side->is_dead && !side->end.connection.is_over() && !is_asked) {
                fail("a program that does all it should waits in state " +
                     std::to_string(static_cast<int>(state)));
            }
        }
        if (carrier_ == Carrier::network) return;
        // A carrier that loses nothing, and tells.
        for (const Side* side : {&active_, &passive_}) {
            const Side& peer = other(*side);
            if (!peer.is_dead || side->is_dead || side->is_closed) continue;
            const State state = side->end.connection.state();
            if (state == State::established || side->end.connection.deadline()) {
                fail("a death was not told");
            }
        }
        if (has(active_, EventKind::unreachable) && !is_datagram_ && !is_lazy_) {
            fail("UNREACHABLE by a socket");
        }
    }

    std::mt19937_64 random_;
    Carrier carrier_;
    bool is_datagram_;
    Ends ends_;
    Side active_{ends_.active};
    Side passive_{ends_.passive};
    std::uint32_t loss_ = 0;     ///< percent
    std::uint32_t doubles_ = 0;  ///< how many
    bool overtakes_ = false;
    bool refuses_ = false;
    bool closes_ = false;
    bool is_lazy_ = false;
    bool may_die_ = false;
    std::string failure_;
};

void play(Carrier carrier) {
    std::uint64_t established = 0;
    std::uint64_t given_up = 0;
    const std::uint64_t played =
        test::play_schedules(20'000, 1'000'000, [&](std::uint64_t seed) -> std::string {
            Schedule schedule{seed, carrier};
            std::string failure = schedule.play();
            established += schedule.was_established;
            given_up += schedule.was_given_up;
            return failure;
        });
    if (played < 1000) return;
    EXPECT_GT(established, played / 4);
    if (carrier == Carrier::network) {
        EXPECT_GT(given_up, played / 100);
    }
}

TEST(Schedules, OverANetworkThatLosesEndWithBothTold) { play(Carrier::network); }

TEST(Schedules, OverASocketThatHangsUpEndWithBothTold) { play(Carrier::socket); }

}  // namespace
}  // namespace millrace::cm
