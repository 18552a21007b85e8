// Random schedules of two ends of a reliable connection: programs that post requests of all kinds,
// in both directions, and receives too late; a network that loses, doubles, delays, overtakes and
// is full; clocks that run differently; an outlet that has no room. Judged against a memory to
// which everything was done at once and in order. By default 4,000 are played of each kind, many
// more with MILLRACE_TEST_LONG; settings: support/schedules.hpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "ends.hpp"
#include "support/schedules.hpp"

namespace millrace::roce {
namespace {

enum class Luck {
    honest,    ///< every request is allowed
    refusals,  ///< one of them is not
};

constexpr std::uint64_t read_area = 0;         ///< of the peer's memory: nobody changes it
constexpr std::uint64_t write_area = 4096;     ///< changed by WRITEs, read by READs
constexpr std::uint64_t counter_area = 12288;  ///< changed by atomics
constexpr std::uint64_t long_area = 16384;     ///< as the first one, for long READs
constexpr std::uint32_t long_bytes = 48 * 1024;
constexpr std::uint64_t area_bytes = 4096;
constexpr std::uint64_t counters = 4;

class Schedule {
  public:
    Schedule(std::uint64_t seed, Luck luck)
        : random_{seed}, settings_{settings()}, ends_{settings_}, luck_{luck} {
        if (!one_of(4)) {
            loss_ = below(one_of(4) ? 12 : 4);
            doubles_ = below(8);
            delay_ = 1 + below(60'000);
            most_on_way_ = one_of(3) ? 4 + below(40) : 1000;
            overtakes_ = one_of(2);
        }
        for (Side* side : {&active_, &passive_}) {
            side->end->receives.memory = pattern(settings_.memory, 7 + below(100));
            side->rate = 0.8 + below(40) / 100.0;
            side->to_post = 1 + below(one_of(8) ? 60 : 16);
            side->is_lazy = one_of(3);
        }
        // What the peer's memory must be at last.
        active_.model = passive_.end->receives.memory;
        passive_.model = active_.end->receives.memory;
        if (luck_ == Luck::refusals) active_.fails_at = below(active_.to_post);
    }

    std::string play() {
        for (int steps = 0; failure_.empty(); ++steps) {
            if (steps > 400'000) return "it does not end";
            if (!step()) break;
        }
        for (Side* side : {&active_, &passive_}) {
            if (failure_.empty()) judge(*side);
        }
        return failure_;
    }

    bool gave_up = false;
    bool was_refused = false;
    std::uint64_t repeated = 0;
    std::uint64_t paused = 0;

  private:
    struct Expected {
        Operation operation;
        Bytes bytes;       ///< of a READ or an atomic: what it brings
        std::uint32_t immediate;
        bool solicited;
    };
    struct Side {
        End* end;
        Bytes model{};  ///< the peer's memory, when all that is posted is done
        std::vector<Expected> posted{};
        std::uint32_t to_post = 0;
        std::uint32_t receives_owed = 0;  ///< that the peer has not posted yet
        std::int64_t next_post = 0;
        std::int64_t next_send = never;
        std::int64_t hold_until = 0;
        double rate = 1;
        bool is_lazy = false;
        bool read_what_changes = false;  ///< so the next WRITE has a fence
        std::uint32_t fails_at = UINT32_MAX;
        std::optional<Status> fails_with{};
        std::uint32_t judged = 0;  ///< completions
    };
    struct OnWay {
        Side* to;
        Bytes bytes;
    };

    std::uint32_t below(std::uint32_t count) {
        return static_cast<std::uint32_t>(random_() % count);
    }
    bool one_of(std::uint32_t count) { return below(count) == 0; }
    Side& other(const Side& side) { return &side == &active_ ? passive_ : active_; }
    void fail(const std::string& what) {
        if (failure_.empty()) failure_ = what;
    }
    std::int64_t clock(const Side& side) const {
        return static_cast<std::int64_t>(static_cast<double>(time_) * side.rate);
    }
    /// When the side's clock shows it.
    std::int64_t time_of(const Side& side, std::int64_t deadline) const {
        if (deadline == never) return never;
        const double shown_at = static_cast<double>(deadline) / side.rate;
        return std::max(time_, static_cast<std::int64_t>(shown_at) + 1);
    }

    Settings settings() {
        Settings made;
        made.memory = long_area + long_bytes;
        made.mtu = one_of(2) ? 256 : 512;
        made.first_psn = one_of(2) ? psn_mask - below(60) : below(psn_mask + 1);
        made.window = one_of(2) ? 128 : 1 + below(20);
        made.most_reads = 1 + below(4);
        made.timeout = static_cast<std::uint8_t>(6 + below(5));  // 262 µs to 4 ms
        made.rnr_retry = 7;
        made.min_rnr_timer = static_cast<std::uint8_t>(1 + below(12));
        return made;
    }

    bool step() {
        for (Side* side : {&active_, &passive_}) {
            look_at(*side);
            if (!failure_.empty()) return false;
        }
        // What happens next.
        std::int64_t next = on_way_.empty() ? never : on_way_.begin()->first;
        Side* acting = nullptr;
        for (Side* side : {&active_, &passive_}) {
            const std::int64_t due = std::min({side->next_send, posting_time(*side),
                                               time_of(*side, side->end->next_deadline())});
            if (due < next) {
                next = due;
                acting = side;
            }
        }
        if (next == never) return false;
        time_ = std::max(time_, next);
        if (acting == nullptr) {
            OnWay arriving = std::move(on_way_.begin()->second);
            on_way_.erase(on_way_.begin());
            arriving.to->end->arrive(arriving.bytes, clock(*arriving.to));
            plan(*arriving.to);
        } else if (posting_time(*acting) <= time_) {
            post(*acting);
            plan(*acting);
        } else {
            send(*acting);
        }
        return true;
    }
    /// It looks at what has come and sends what it has, at once or a little later.
    void plan(Side& side) {
        const std::int64_t due = one_of(3) ? time_ + below(30'000) : time_;
        side.next_send = std::min(side.next_send, due);
    }
    std::int64_t posting_time(const Side& side) const {
        const bool has_more = side.posted.size() < side.to_post || side.receives_owed > 0 ||
                              side.hold_until != 0;
        if (!has_more || side.end->sends.failed) return never;
        return std::max(time_, side.next_post);
    }

    void send(Side& side) {
        side.next_send = never;
        side.end->wire.room = one_of(4) ? static_cast<int>(below(6)) : -1;
        const bool all_left = side.end->send(clock(side), !one_of(3));
        if (!all_left) side.next_send = time_ + 1 + below(2000);
        Side& peer = other(side);
        while (!side.end->wire.said.empty()) {
            const Bytes bytes = std::move(side.end->wire.said.front());
            side.end->wire.said.pop_front();
            const std::uint32_t copies = below(100) < doubles_ ? 2 : 1;
            for (std::uint32_t copy = 0; copy < copies; ++copy) {
                if (below(100) < loss_ || on_way_.size() >= most_on_way_) continue;
                // One by one, or each when it likes.
                arrival_[&side == &active_ ? 0 : 1] =
                    std::max(arrival_[&side == &active_ ? 0 : 1], time_ + delay_) + 50;
                std::int64_t due = arrival_[&side == &active_ ? 0 : 1];
                if (overtakes_ && one_of(10)) due += below(20'000);
                on_way_.emplace(due, OnWay{&peer, bytes});
            }
        }
    }

    void post(Side& side) {
        side.next_post = time_ + below(side.is_lazy ? 400'000 : 5'000);
        if (side.hold_until != 0) {  // SQD ends
            if (time_ < side.hold_until) {
                side.next_post = side.hold_until;
                return;
            }
            side.hold_until = 0;
            side.end->requester.hold(false);
            return;
        }
        // The peer's receives come sooner or later.
        if (side.receives_owed > 0 && !one_of(3)) {
            --side.receives_owed;
            other(side).end->receives.posted.push_back(2048);
            return;
        }
        if (side.posted.size() == side.to_post) return;
        const auto waiting = side.posted.size() - side.end->sends.completed;
        if (waiting >= most_requests) return;
        if (one_of(40)) {
            side.hold_until = time_ + below(300'000) + 1;
            side.end->requester.hold(true);
        }
        post_one(side);
    }

    void post_one(Side& side) {
        End& end = *side.end;
        const auto number = static_cast<std::uint32_t>(side.posted.size());
        const bool fails = number == side.fails_at;
        std::uint32_t length = one_of(8) ? below(2) : below(one_of(3) ? 2048 : 300);
        const std::uint64_t offset = write_area + below(area_bytes - 2048);
        Expected expected{};
        expected.immediate = below(1000);
        expected.solicited = one_of(3);
        switch (below(8)) {
            case 0:
            case 1:
                expected.operation = one_of(2)   ? Operation::send
                                     : one_of(2) ? Operation::send_immediate
                                                 : Operation::send_invalidate;
                expected.bytes = pattern(length, number + 100);
                ++side.receives_owed;
                break;
            case 2:
            case 3:
                expected.operation = Operation::write;
                expected.bytes = pattern(length, number + 200);
                break;
            case 4:
                expected.operation = Operation::write_immediate;
                expected.bytes = pattern(length, number + 300);
                ++side.receives_owed;
                break;
            case 5: expected.operation = Operation::read; break;
            case 6:
                expected.operation = one_of(2) ? Operation::fetch_add : Operation::compare_swap;
                break;
            default: expected.operation = Operation::local; break;
        }
        const bool is_write = expected.operation == Operation::write ||
                              expected.operation == Operation::write_immediate;
        std::uint64_t place = offset;
        Request* request = nullptr;
        if (expected.operation == Operation::read) {
            const bool changes = one_of(2);
            const bool is_long = !changes && one_of(3);  // in pieces
            if (is_long) length = below(long_bytes);
            place = changes   ? offset
                    : is_long ? long_area + below(long_bytes - length)
                              : read_area + below(area_bytes - 2048);
            side.read_what_changes |= changes;
            expected.bytes.assign(side.model.begin() + static_cast<std::ptrdiff_t>(place),
                                  side.model.begin() + static_cast<std::ptrdiff_t>(place + length));
            request = &end.prepare(expected.operation, Bytes(length), place);
        } else if (expected.operation == Operation::fetch_add ||
                   expected.operation == Operation::compare_swap) {
            place = counter_area + 8 * below(counters);
            std::uint64_t value = 0;
            std::memcpy(&value, side.model.data() + place, sizeof value);
            expected.bytes.resize(8);
            std::memcpy(expected.bytes.data(), &value, sizeof value);
            request = &end.prepare(expected.operation, Bytes(8), place);
            request->compare_or_add = one_of(2) ? value : below(1000);
            request->swap = random_();
            if (expected.operation == Operation::fetch_add) {
                value += request->compare_or_add;
            } else if (value == request->compare_or_add) {
                value = request->swap;
            }
            if (!fails) std::memcpy(side.model.data() + place, &value, sizeof value);
        } else {
            request = &end.prepare(expected.operation, expected.bytes, place);
            if (is_write && !fails) {
                std::copy(expected.bytes.begin(), expected.bytes.end(),
                          side.model.begin() + static_cast<std::ptrdiff_t>(place));
            }
        }
        request->immediate = expected.immediate;
        request->solicited = expected.solicited;
        request->fence = one_of(6);
        if (is_write && side.read_what_changes) {
            request->fence = true;
            side.read_what_changes = false;
        }
        if (fails) spoil(side, *request);
        if (number > side.fails_at) {  // nothing of it will be done
            expected.bytes.clear();
        }
        end.requester.post(*request);
        side.posted.push_back(std::move(expected));
        if (number == side.to_post - 1 && !one_of(4)) side.is_lazy = false;
    }
    /// This request must fail, and all after it.
    void spoil(Side& side, Request& request) {
        side.to_post = std::min<std::uint32_t>(side.to_post, request.slot + 1);
        Sends::Sent& sent = side.end->sends.all.back();
        if (request.operation == Operation::local) {
            sent.local = Status::local_operation;
            side.fails_with = Status::local_operation;
        } else if (request.operation == Operation::send ||
                   request.operation == Operation::send_immediate ||
                   request.operation == Operation::send_invalidate) {
            if (one_of(2) && request.length > 0) {
                sent.gathers = Status::local_protection;
                side.fails_with = Status::local_protection;
            } else {
                sent.bytes = pattern(2049 + below(600));
                request.length = static_cast<std::uint32_t>(sent.bytes.size());
                side.fails_with = Status::remote_invalid_request;
            }
        } else if (request.operation == Operation::fetch_add && one_of(2)) {
            request.remote_address += 4;
            side.fails_with = Status::remote_invalid_request;
        } else if (request.length != 0) {
            request.remote_key ^= 1;
            side.fails_with = Status::remote_access;
        }  // else it has no bytes, whose place nobody checks
    }

    /// What can be judged at any time.
    void look_at(Side& side) {
        const Sends& sends = side.end->sends;
        const Receives& at_peer = other(side).end->receives;
        for (; side.judged < sends.completed; ++side.judged) {
            const Expected& expected = side.posted[side.judged];
            switch (expected.operation) {
                case Operation::read:
                case Operation::fetch_add:
                case Operation::compare_swap:
                    if (sends.all[side.judged].bytes != expected.bytes) {
                        fail("it brought something else");
                    }
                    if (sends.all[side.judged].placed != expected.bytes.size()) {
                        fail("it brought a part");
                    }
                    break;
                case Operation::local: break;
                default: ++messages_done_[&side == &active_ ? 0 : 1];
            }
        }
        if (messages_done_[&side == &active_ ? 0 : 1] > at_peer.finished) {
            fail("complete before it was done");
        }
    }

    void judge(Side& side) {
        const Sends& sends = side.end->sends;
        Side& peer = other(side);
        const Receives& at_peer = peer.end->receives;
        const RequesterCounts& counts = side.end->requester.counts();
        repeated += counts.repeated;
        paused += counts.not_ready;
        if (sends.failed == Status::retries_exceeded && side.fails_with != sends.failed) {
            gave_up = true;
            return;
        }
        if (peer.end->sends.failed || peer.end->receives.has_failed) {
            // The peer's queue pair has an error; what this one sends may or may not be answered.
            if (side.fails_with && sends.failed) judge_failure(side);
            return;
        }
        if (side.fails_with) return judge_failure(side);
        if (sends.failed) {
            return fail("it failed: " + std::to_string(static_cast<int>(*sends.failed)));
        }
        if (sends.completed != side.to_post) return fail("it waits for ever");
        if (!side.end->requester.is_idle()) return fail("it is not idle");
        if (at_peer.memory != side.model) return fail("the peer's memory is something else");
        judge_received(side, at_peer);
    }
    void judge_failure(const Side& side) {
        const Sends& sends = side.end->sends;
        if (sends.failed != side.fails_with) return fail("it should have failed otherwise");
        if (sends.completed != side.fails_at) return fail("something else failed");
        was_refused = true;
    }
    void judge_received(const Side& side, const Receives& at_peer) {
        auto got = at_peer.received.begin();
        for (const Expected& expected : side.posted) {
            const bool is_send = expected.operation == Operation::send ||
                                 expected.operation == Operation::send_immediate ||
                                 expected.operation == Operation::send_invalidate;
            if (!is_send && expected.operation != Operation::write_immediate) continue;
            if (got == at_peer.received.end()) return fail("a message was not received");
            const Arrival& arrival = got->arrival;
            if (is_send && got->bytes != expected.bytes) return fail("it received something else");
            if (arrival.solicited != expected.solicited) return fail("solicited?");
            if (arrival.invalidates != (expected.operation == Operation::send_invalidate)) {
                return fail("invalidated?");
            }
            if (arrival.has_immediate && arrival.immediate != expected.immediate) {
                return fail("another immediate");
            }
            if (arrival.invalidates && arrival.invalidate_key != expected.immediate) {
                return fail("another key");
            }
            ++got;
        }
        if (got != at_peer.received.end()) fail("a message was received twice");
    }

    std::mt19937_64 random_;
    Settings settings_;
    Ends ends_;
    Luck luck_;
    Side active_{&ends_.active};
    Side passive_{&ends_.passive};
    std::int64_t time_ = 1;
    std::multimap<std::int64_t, OnWay> on_way_;
    std::array<std::int64_t, 2> arrival_{};
    std::array<std::uint32_t, 2> messages_done_{};
    std::uint32_t loss_ = 0;     ///< percent
    std::uint32_t doubles_ = 0;  ///< percent
    std::int64_t delay_ = 1000;
    std::size_t most_on_way_ = 1000;
    bool overtakes_ = false;
    std::string failure_;
};

void play(Luck luck) {
    std::uint64_t gave_up = 0;
    std::uint64_t refused = 0;
    std::uint64_t repeated = 0;
    std::uint64_t paused = 0;
    const std::uint64_t played =
        test::play_schedules(4'000, 400'000, [&](std::uint64_t seed) -> std::string {
            Schedule schedule{seed, luck};
            std::string failure = schedule.play();
            if (testing::Test::HasFailure() && failure.empty()) failure = "see above";
            gave_up += schedule.gave_up;
            refused += schedule.was_refused;
            repeated += schedule.repeated;
            paused += schedule.paused;
            return failure;
        });
    if (played < 1000) return;
    EXPECT_LT(gave_up, played / 20);
    EXPECT_GT(repeated, played);
    EXPECT_GT(paused, played / 4);
    if (luck == Luck::refusals) {
        EXPECT_GT(refused, played / 2);
    }
}

TEST(RoceSchedules, EndAsIfEverythingWasDoneAtOnceAndInOrder) { play(Luck::honest); }

TEST(RoceSchedules, FailAtTheRequestThatIsNotAllowedAndAtNoOther) { play(Luck::refusals); }

}  // namespace
}  // namespace millrace::roce
