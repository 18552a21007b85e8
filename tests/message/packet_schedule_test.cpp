// Random schedules of both ends of a packet stream, against queues of messages (packet_ends.hpp).
// By default 20,000 are played, and a million with MILLRACE_TEST_LONG; settings:
// support/schedules.hpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "packet_ends.hpp"
#include "support/schedules.hpp"

namespace millrace::message {
namespace {

constexpr unsigned client = PacketEnds::client;
constexpr unsigned server = PacketEnds::server;

/// How likely each step is in one schedule: fast and slow programs, devices and networks.
struct Habits {
    explicit Habits(PacketRandom& random) {
        for (std::uint32_t& weight : weights) weight = 1 + random.below(random.one_of(2) ? 4 : 24);
        longest = random.one_of(3) ? 60 : random.one_of(2) ? 400 : 3000;
    }
    enum Step { ask, answer, read, post, leave, complete, arrive, time, late, steps };
    std::uint32_t weights[steps];
    std::uint32_t longest;
};

PacketEnds::Setting random_setting(PacketRandom& random) {
    PacketEnds::Setting setting;
    setting.packet_bytes = 48 + 16 * random.below(20);
    for (unsigned end = 0; end < 2; ++end) {
        setting.tokens[end] = random.word();
        // Near the end of the numbers, more often than not.
        setting.firsts[end] =
            random.one_of(3) ? static_cast<std::uint32_t>(random.word()) : 0U - random.below(40);
        const std::uint32_t kind = random.below(4);
        setting.rooms[end] = kind == 0   ? 1 + random.below(2)
                             : kind == 1 ? most_packets
                                         : 1 + random.below(most_packets);
        setting.memories[end] =
            setting.packet_bytes + (random.one_of(3) ? 0 : 16 * random.below(400));
    }
    if (!random.one_of(6)) {
        setting.faults = {.loss = random.one_of(3) ? 0 : random.below(40),
                          .duplicate = random.one_of(3) ? 0 : random.below(30),
                          .reorder = random.one_of(3) ? 0 : random.below(100)};
    }
    if (random.one_of(3)) setting.shortage = random.below(100);
    setting.seed = random.word();
    return setting;
}

using Late = std::vector<std::pair<unsigned, std::vector<std::byte>>>;

void step(PacketEnds& ends, const Habits& habits, PacketRandom& random, Late& late) {
    std::uint32_t sum = 0;
    for (const std::uint32_t weight : habits.weights) sum += weight;
    std::uint32_t choice = random.below(sum);
    int what = 0;
    while (choice >= habits.weights[what]) choice -= habits.weights[what++];
    const unsigned end = random.below(2);
    const std::size_t size = random.below(1 + random.below(habits.longest));
    switch (what) {
        case Habits::ask: (void)ends.send(client, size, random.one_of(2)); break;
        case Habits::answer: (void)ends.answer(size, random.one_of(2)); break;
        case Habits::read: (void)ends.read_step(end); break;
        case Habits::post: (void)ends.post(end, 1 + random.below(8), random.one_of(2)); break;
        case Habits::leave: (void)ends.leave(end); break;
        case Habits::complete: ends.complete(end); break;
        case Habits::arrive: (void)ends.arrive(); break;
        case Habits::time: ends.pass_time(std::chrono::microseconds{random.below(4000)}); break;
        default:
            if (late.empty()) break;
            ends.transmit(late.back().first, std::move(late.back().second));
            late.pop_back();
            break;
    }
}

/// Everything is answered and read; then nothing is to be done any more.
void drain(PacketEnds& ends, PacketRandom& random) {
    for (int round = 0; round < 100'000 && ends.failure().empty(); ++round) {
        ends.settle();
        ends.read_all(client);
        ends.read_all(server);
        while (ends.failure().empty() && ends.answer(random.below(300))) {
        }
        ends.settle();
        ends.read_all(client);
        ends.read_all(server);
        if (ends.read(client) == ends.sent(client) && ends.unanswered() == 0 &&
            ends.on_the_way() == 0 && ends.stream(client).due() == PacketEnds::Time::max()) {
            return;
        }
        if (ends.on_the_way() != 0) continue;
        if (!ends.pass_time_until_due()) {
            std::span<const std::byte> packet;
            ends.judge(ends.stream(client).next(packet, ends.now()) ||
                           ends.stream(server).next(packet, ends.now()) || ends.unanswered() != 0 ||
                           ends.stream(client).has_more() || ends.stream(server).has_more(),
                       "stall: something is to be done, and nobody will");
        }
    }
    ends.judge(false, "no end within 100,000 timers");
}

/// What happened in all schedules together: what never happened was not tested.
struct Happened {
    std::uint64_t messages = 0;
    std::uint64_t repeated = 0;
    std::uint64_t probes = 0;
    std::uint64_t bare = 0;
    std::uint64_t duplicates = 0;
    std::uint64_t foreign = 0;
    std::uint64_t dropped = 0;

    void add(PacketEnds& ends) {
        for (unsigned end = 0; end < 2; ++end) {
            messages += ends.read(end);
            const PacketCounts& counts = ends.stream(end).counts();
            repeated += counts.repeated;
            probes += counts.probes;
            bare += counts.bare;
            duplicates += counts.duplicates;
            foreign += counts.foreign;
            dropped += counts.dropped;
        }
    }
};

std::string play(std::uint64_t seed, Happened& happened) {
    PacketRandom random{seed};
    Late late;
    const Habits habits{random};
    PacketEnds::Setting setting = random_setting(random);
    if (random.one_of(3)) {
        // A former connection of the same two, whose packets come late.
        PacketEnds former{setting};
        for (int i = 0; i < 100 && former.failure().empty(); ++i) {
            step(former, habits, random, late);
        }
        for (const unsigned end : {client, server}) {
            (void)former.post(end);
            while (former.leave(end)) {
            }
        }
        late = former.take_late();
        for (std::uint64_t& token : setting.tokens) token = random.word();
        if (!former.failure().empty()) return former.failure();
    }
    PacketEnds ends{setting};
    const std::uint32_t steps = 20 + random.below(600);
    for (std::uint32_t i = 0; i < steps && ends.failure().empty(); ++i) {
        step(ends, habits, random, late);
    }
    if (random.one_of(3)) ends.fall_short();
    if (ends.failure().empty()) drain(ends, random);
    if (!ends.failure().empty()) return ends.failure();
    if (ends.read(server) != ends.sent(client)) return "messages are missing at the end";
    happened.add(ends);
    // The client's last word may be lost; all else is known to both.
    if (!ends.stream(client).is_acknowledged()) return "a request is not known to have arrived";
    return {};
}

TEST(PacketSchedule, EveryMessageComesOnceWholeInOrderAndEverythingEnds) {
    Happened happened;
    const std::uint64_t rounds = test::play_schedules(
        10'000, 1'000'000, [&](std::uint64_t seed) { return play(seed, happened); });
    if (rounds < 5'000) return;
    EXPECT_GT(happened.messages, rounds * 10);
    for (const std::uint64_t often : {happened.repeated, happened.probes, happened.bare,
                                      happened.duplicates, happened.dropped}) {
        EXPECT_GT(often, rounds);
    }
    EXPECT_GT(happened.foreign, rounds / 4);
}

}  // namespace
}  // namespace millrace::message
