// Random schedules of both ends of a byte stream, against a queue of bytes (two_ends.hpp).
// By default 120,000 are played, and 5 million with MILLRACE_TEST_LONG; settings:
// support/schedules.hpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "support/schedules.hpp"
#include "two_ends.hpp"

namespace millrace::stream {
namespace {

/// splitmix64: small, and the same everywhere.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_{seed * 0x9e3779b97f4a7c15} {}
    std::uint32_t below(std::uint32_t count) {
        state_ += 0x9e3779b97f4a7c15;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return static_cast<std::uint32_t>(((z ^ (z >> 31)) >> 32) * count >> 32);
    }
    bool chance(std::uint32_t one_of) { return below(one_of) == 0; }

  private:
    std::uint64_t state_;
};

DirectionTerms random_direction(Random& random) {
    DirectionTerms terms;
    const std::uint32_t mode = random.below(6);
    terms.mode = mode == 0 ? Mode::direct : mode == 1 ? Mode::indirect : Mode::dynamic;
    terms.ring_bytes = 1U << random.below(6);
    terms.adverts = 1 + random.below(6);
    if (random.chance(3)) {
        terms.mark_bytes = 1 + random.below(4);
        terms.ring_bytes = std::max<std::uint64_t>(terms.ring_bytes, 4);
    }
    return terms;
}

Terms random_terms(Random& random) {
    Terms terms;
    terms.outgoing = random_direction(random);
    terms.incoming = random_direction(random);
    terms.own_slots = fewest_slots + (random.chance(2) ? 0 : random.below(6));
    terms.peer_slots = fewest_slots + (random.chance(2) ? 0 : random.below(6));
    terms.sends = 1 + random.below(6);
    terms.receives = 1 + random.below(6);
    terms.transfer_bytes = random.chance(3) ? 1 + random.below(6) : 1000;
    terms.coalesced_bytes = random.below(40);
    if (terms.coalesced_bytes % 3 == 0) terms.ring_piece_bytes = 1 + terms.coalesced_bytes / 3;
    terms.awaited_bytes = random.chance(2) ? 0 : 1 + random.below(20);
    if (terms.awaited_bytes % 3 == 1) terms.put_off_bytes = terms.awaited_bytes;
    terms.advertises_again = !random.chance(4);
    terms.short_bytes = random.chance(2) ? 0 : 1 + random.below(20);
    terms.short_sends = 1 + random.below(3);
    return terms;
}

/// How likely each step is in one schedule: fast and slow programs, fast and slow pipes.
struct Habits {
    explicit Habits(Random& random) {
        for (auto& end : weights) {
            for (std::uint32_t& weight : end) weight = 1 + random.below(random.chance(2) ? 4 : 24);
        }
        waits_all = random.below(3);
        cancels = random.chance(2);
        impatience = 1 + random.below(4);
        longest = 1 + random.below(TwoEnds::longest_receive);
        leaves_unadvertised = longest % 8 == 5 ? 2 + longest % 7 : 0;
        for (auto& end : weights) {
            if (!random.chance(3)) end[lend] = 0;
        }
    }
    enum Step { send, receive, act, arrive, complete, lend, steps };
    std::uint32_t weights[2][steps];
    std::uint32_t waits_all;
    bool cancels;
    std::uint32_t leaves_unadvertised;  ///< one of so many; 0: none
    std::uint32_t impatience;
    std::uint32_t longest;
};

void step(TwoEnds& ends, unsigned end, const Habits& habits, Random& random) {
    std::uint32_t sum = 0;
    for (const std::uint32_t weight : habits.weights[end]) sum += weight;
    std::uint32_t choice = random.below(sum);
    int what = 0;
    while (choice >= habits.weights[end][what]) choice -= habits.weights[end][what++];
    switch (what) {
        case Habits::send:
            (void)ends.send(end,
                            ends.keeps_messages(end) ? random.below(habits.longest + 1)
                                                     : 1 + random.below(habits.longest),
                            random.chance(habits.impatience), random.chance(5));
            break;
        case Habits::receive:
            if (habits.cancels && ends.receives(end) > 0 && random.chance(8)) {
                const auto recent = random.below(4);
                if (recent < ends.receives(end)) {
                    (void)ends.cancel(end, ends.receives(end) - 1 - recent);
                }
            } else {
                (void)ends.receive(end, 1 + random.below(habits.longest),
                                   habits.waits_all != 0 && random.chance(habits.waits_all),
                                   ends.mode_towards(end) == Mode::direct ||
                                       habits.leaves_unadvertised == 0 ||
                                       !random.chance(habits.leaves_unadvertised));
            }
            break;
        case Habits::act: (void)ends.act(end, !random.chance(8)); break;
        case Habits::arrive: (void)ends.arrive(end); break;
        case Habits::complete:
            (void)ends.complete(end);
            if (random.chance(8)) (void)ends.stop_awaiting(end);
            break;
        default:
            if (ends.receiver(end).is_lent() && !random.chance(3)) {
                ends.give_back(end, random.below(habits.longest + 1));
            } else {
                (void)ends.lend(end);
            }
            break;
    }
}

/// Receives what is left, and sees both streams end.
void drain(TwoEnds& ends, Random& random) {
    ends.shut_down(0);
    ends.shut_down(1);
    for (int round = 0; round < 100'000 && ends.failure().empty(); ++round) {
        ends.settle();
        bool finished = true;
        for (unsigned end = 0; end < 2; ++end) {
            if (ends.receiver(end).finished() && ends.sender(end).finished()) continue;
            finished = false;
            if (random.chance(4) && ends.lend(end)) continue;
            ends.give_back(end, random.below(TwoEnds::longest_receive));
            (void)ends.receive(end, 1 + random.below(TwoEnds::longest_receive), random.chance(4));
        }
        if (finished) return;
    }
}

/// What happened in all schedules together: what never happened was not tested.
struct Happened {
    std::uint64_t direct = 0;
    std::uint64_t indirect = 0;
    std::uint64_t used = 0;
    std::uint64_t stale = 0;
    std::uint64_t withdrawn = 0;
    std::uint64_t forgone = 0;
    std::uint64_t resumed = 0;
    std::uint64_t copies = 0;
    std::uint64_t messages = 0;
    std::uint64_t cut_off = 0;
    std::uint64_t lent = 0;
    std::uint64_t awaited_in_vain = 0;

    void add(const SenderCounts& sender, const ReceiverCounts& receiver) {
        direct += sender.direct_bytes;
        indirect += sender.indirect_bytes;
        used += sender.adverts_used;
        stale += sender.adverts_stale;
        withdrawn += sender.adverts_withdrawn;
        forgone += sender.adverts_forgone;
        resumed += sender.phase_changes > 1 ? 1 : 0;
        copies += receiver.copies;
    }
};

/// Of a tenth of `most` steps to eleven of them, until the programs only receive what is left.
std::string play(std::uint64_t seed, Happened& happened, std::uint32_t most) {
    Random random{seed};
    TwoEnds ends{random_terms(random)};
    const Habits habits{random};
    const std::uint32_t steps = most / 10 + random.below(most);
    const std::uint32_t quiet = random.chance(2) ? steps : random.below(steps);
    const std::uint32_t last_of_0 = random.chance(4) ? random.below(steps) : steps;
    for (std::uint32_t i = 0; i < steps && ends.failure().empty(); ++i) {
        step(ends, random.below(2), habits, random);
        if (i == last_of_0) ends.shut_down(0);
        if (i == quiet) ends.settle();
    }
    if (ends.failure().empty() && random.chance(16)) {
        ends.break_off();
        return ends.failure();
    }
    if (ends.failure().empty()) ends.settle();
    if (ends.failure().empty()) drain(ends, random);
    if (ends.failure().empty()) {
        for (unsigned end = 0; end < 2; ++end) {
            if (ends.received(end) != ends.sent(1 - end)) return "bytes are missing at the end";
            if (!ends.receiver(end).finished() || !ends.sender(end).finished()) {
                return "a stream does not end";
            }
            if (ends.receiver(end).outstanding() != 0) return "a receive does not end";
            if (ends.keeps_messages(1 - end) && ends.messages(end) != ends.sends(1 - end)) {
                return "messages are missing at the end";
            }
            happened.add(ends.sender(end).counts(), ends.receiver(end).counts());
            happened.messages += ends.messages(end);
            happened.cut_off += ends.cut_off(end);
        }
        happened.lent += ends.lent();
        happened.awaited_in_vain += ends.awaited_in_vain();
    }
    return ends.failure();
}

TEST(StreamSchedule, BytesComeInOrderAndOnceAndNobodyStandsStill) {
    Happened happened;
    const std::uint64_t rounds = test::play_schedules(
        120'000, 5'000'000, [&](std::uint64_t seed) { return play(seed, happened, 200); });
    if (rounds < 10'000) return;
    for (const std::uint64_t often :
         {happened.direct, happened.indirect, happened.used, happened.stale, happened.resumed,
          happened.copies, happened.messages, happened.cut_off, happened.lent}) {
        EXPECT_GT(often, rounds / 4);
    }
    EXPECT_GT(happened.withdrawn, rounds / 10);
    EXPECT_GT(happened.forgone, rounds / 100);
    EXPECT_GT(happened.awaited_in_vain, rounds / 20);
}

// Most mistakes show themselves within a few steps, of which there are more orders than of many.
TEST(StreamSchedule, HundredsOfThousandsOfShortOnesEndWell) {
    Happened happened;
    const std::uint64_t rounds = test::play_schedules(300'000, 10'000'000, [&](std::uint64_t seed) {
        // Others than those of the long ones.
        return play(~seed, happened, 20);
    });
    if (rounds < 10'000) return;
    EXPECT_GT(happened.direct, rounds / 10);
    EXPECT_GT(happened.indirect, rounds / 10);
    EXPECT_GT(happened.stale, rounds / 1'000);
    EXPECT_GT(happened.withdrawn, rounds / 1'000);
}

}  // namespace
}  // namespace millrace::stream
