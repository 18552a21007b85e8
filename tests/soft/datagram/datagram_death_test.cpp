// UD senders that die or stop in the middle of a send: the receiver goes on, its receives come
// back, and its memory is its own.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "receives/datagram.hpp"
#include "soft/held_memory.hpp"
#include "soft/station.hpp"
#include "support/child_process.hpp"
#include "support/resources.hpp"

namespace millrace::test {
namespace {

/// Sends `length` bytes to the queue pair named, for ever.
MILLRACE_CHILD(datagram_flood) {
    StationOptions options;
    Station station{options};
    ibv_qp* const qp = station.datagram();
    ibv_ah* const ah = station.handle();
    const auto peer = static_cast<std::uint32_t>(std::stoul(arguments.at(0)));
    const auto length = std::stoul(arguments.at(1));
    say("flooding");
    for (;;) {
        static_cast<void>(station.send_to(qp, ah, peer, 1, 0, length));
        while (station.poll_once()) {
        }
    }
}

ChildProcess flood(const ibv_qp* qp, std::size_t length) {
    ChildProcess child =
        ChildProcess::start("datagram_flood", {std::to_string(qp->qp_num), std::to_string(length)});
    EXPECT_EQ(child.read_line(), "flooding");
    return child;
}

std::size_t executing(const ibv_qp* qp) {
    std::vector<soft::SeenSender> seen;
    EXPECT_TRUE(static_cast<const soft::QueuePair*>(qp)->datagram->see(seen));
    return seen.size();
}

TEST(DatagramDeath, OfASenderAtARandomInstantCostsNoReceive) {
    constexpr std::uint64_t receives = 4;
    const int seeds = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 500 : 25;
    for (int seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE(seed);
        StationOptions options;
        options.receive_wr = receives;
        options.shared_memory = seed % 2 == 0;
        Station station{options};
        ibv_qp* const qp = station.datagram();
        for (std::uint64_t i = 0; i < receives; ++i) {
            ASSERT_EQ(station.receive(qp, i, i * 8192, 8192), 0);
        }
        ChildProcess dying = flood(qp, 4096);
        ChildProcess living = flood(qp, 64);
        const auto drain = [&] {
            int count = 0;
            while (const auto wc = station.poll_once()) {
                EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
                EXPECT_EQ(station.receive(qp, wc->wr_id, wc->wr_id * 8192, 8192), 0);
                ++count;
            }
            return count;
        };
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::microseconds{(seed * 7919) % 3000};
        while (std::chrono::steady_clock::now() < until) static_cast<void>(drain());
        dying.kill_and_wait();
        int after = 0;
        base::Deadline limit = patience_for_a_coincidence();
        while (after < 100 && !limit.expired()) after += drain();
        ASSERT_GE(after, 100) << "the living one's messages stopped";
        living.kill_and_wait();
        // Whatever the dead ones had claimed comes back: all receives can be used.
        ibv_qp* const local = station.datagram();
        ibv_ah* const ah = station.handle();
        std::set<std::uint64_t> seen;
        limit = patience_for_a_coincidence();
        while (!limit.expired() && seen.size() < receives) {
            ASSERT_EQ(station.send_to(local, ah, qp->qp_num, 99, 0, 8, 0), 0);
            ASSERT_EQ(station.send_to(local, ah, local->qp_num, 99, 0, 8), 0);  // dropped
            const auto patience = std::chrono::milliseconds{5};
            while (const auto wc = station.complete(patience)) {
                if (wc->wr_id == 99) continue;
                if (wc->opcode == IBV_WC_RECV) seen.insert(wc->wr_id);
            }
        }
        EXPECT_EQ(seen.size(), receives) << "a receive is lost";
        EXPECT_EQ(soft::dereg_mr(station.mr), 0) << "the dead hold nothing";
        station.mr = nullptr;
    }
}

/// With receives in private memory, and a child that floods them.
struct FloodedStation {
    Station station{StationOptions{.shared_memory = false}};
    ibv_qp* const qp = station.datagram();
    ChildProcess child = [this] {
        for (std::uint64_t i = 0; i < 16; ++i) {
            EXPECT_EQ(station.receive(qp, i, i * 8192, 8192), 0);
        }
        return flood(qp, 4096);
    }();
};

TEST(DatagramDeath, OfASenderThatStoppedInTheMiddleOfASendEndsTheWait) {
    FloodedStation flooded;
    auto& [station, qp, child] = flooded;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
    ASSERT_TRUE(child.stop());
    child.kill_and_wait();
    EXPECT_EQ(soft::dereg_mr(station.mr), 0);
    station.mr = nullptr;
}

/// While it lives, this process gets no further descriptor.
class NoMoreDescriptors {
  public:
    NoMoreDescriptors() {
        EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
        const rlimit none{0, before_.rlim_max};
        EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    }
    ~NoMoreDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
    NoMoreDescriptors(const NoMoreDescriptors&) = delete;
    NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;

  private:
    rlimit before_{};
};

// A sender that was held for gone because it could not be reached lost its receive to another one,
// and wrote over that one's message when it went on.
TEST(DatagramDeath, IsNotBelievedOfASenderThatCannotBeReached) {
    FloodedStation flooded;
    auto& [station, qp, child] = flooded;
    const soft::Datagram& datagram = *static_cast<const soft::QueuePair*>(qp)->datagram;
    std::vector<soft::SeenSender> seen;
    const base::Deadline patience = patience_for_a_coincidence();
    for (int round = 0; seen.empty() && !patience.expired(); ++round) {
        while (const auto wc = station.poll_once()) {
            ASSERT_EQ(station.receive(qp, wc->wr_id, wc->wr_id * 8192, 8192), 0);
        }
        // With one processor for both, it sends only while this thread sleeps.
        std::this_thread::sleep_for(std::chrono::microseconds{round % 8 * 10});
        ASSERT_TRUE(child.stop());
        ASSERT_TRUE(datagram.see(seen));
        if (!seen.empty()) break;
        child.resume();
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    ASSERT_EQ(seen.size(), 1U) << "it was never stopped in the middle of a send";
    {
        const NoMoreDescriptors none;
        EXPECT_FALSE(datagram.sender_out(seen[0].node, seen[0].word));
    }
    EXPECT_FALSE(datagram.sender_out(seen[0].node, seen[0].word));
    child.kill_and_wait();
    EXPECT_TRUE(datagram.sender_out(seen[0].node, seen[0].word));
}

TEST(DatagramFence, KeepsMemoryThatAStoppedSenderMayStillWriteTo) {
    int held = 0;
    const base::Deadline patience = patience_for_a_coincidence();
    for (int round = 0; held < 2 && !patience.expired(); ++round) {
        SCOPED_TRACE(round);
        StationOptions options;
        options.shared_memory = false;
        Station station{options};
        ibv_qp* const qp = station.datagram();
        ChildProcess child = flood(qp, 4096);
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds{2};
        while (std::chrono::steady_clock::now() < until) {
            static_cast<void>(station.receive(qp, 1, 8192, 8192));
            static_cast<void>(station.poll_once());
        }
        ASSERT_TRUE(child.stop());
        const bool copying = executing(qp) != 0;
        const int error = soft::dereg_mr(station.mr);
        EXPECT_EQ(error, copying ? EBUSY : 0);
        if (error == EBUSY) {
            ++held;
            EXPECT_EQ(soft::dereg_mr(station.mr), EBUSY) << "asked again, still stopped";
            EXPECT_EQ(state_of(qp), IBV_QPS_RTS) << "the queue pair is not to blame";
            // Other memory is not concerned, and others' messages arrive in it.
            void* const other = map_shareable(8192);
            ibv_mr* const fresh =
                soft::reg_mr(station.pd, other, 8192, reinterpret_cast<std::uint64_t>(other),
                             IBV_ACCESS_LOCAL_WRITE);
            ASSERT_NE(fresh, nullptr);
            EXPECT_EQ(soft::dereg_mr(fresh), 0);
            EXPECT_EQ(to_state(qp, IBV_QPS_RESET), EBUSY);
            child.resume();
            int later = EBUSY;
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{10};
            while (later == EBUSY && std::chrono::steady_clock::now() < limit) {
                later = soft::dereg_mr(station.mr);
            }
            EXPECT_EQ(later, 0) << "it has gone on, and let go";
        }
        station.mr = nullptr;
    }
    EXPECT_GT(held, 0) << "no round stopped the sender in the middle of a send";
}

TEST(DatagramFence, AStoppedSenderDoesNotHoldUpTheOthers) {
    int held = 0;
    const base::Deadline patience = patience_for_a_coincidence();
    for (int round = 0; held < 2 && !patience.expired(); ++round) {
        SCOPED_TRACE(round);
        StationOptions options;
        options.shared_memory = false;
        options.receive_wr = 4;
        Station station{options};
        ibv_qp* const qp = station.datagram();
        ibv_qp* const local = station.datagram();
        ibv_ah* const ah = station.handle();
        ChildProcess child = flood(qp, 4096);
        std::set<std::uint64_t> posted;
        std::uint64_t id = 0;
        const auto post = [&] {
            const std::size_t at = (1 + id % 16) * 8192;
            if (station.receive(qp, id, at, 8192) == 0) posted.insert(id++);
        };
        for (int i = 0; i < 4; ++i) post();
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds{2};
        while (std::chrono::steady_clock::now() < until) {
            if (const auto wc = station.poll_once()) {
                posted.erase(wc->wr_id);
                post();
            }
        }
        ASSERT_TRUE(child.stop());
        while (const auto wc = station.poll_once()) {
            posted.erase(wc->wr_id);
            post();
        }
        if (executing(qp) == 0) continue;
        // One receive may be in its hands; the others serve everybody, many laps of the ring long.
        for (int i = 0; i < 40; ++i) {
            ASSERT_EQ(station.send_to(local, ah, qp->qp_num, 1000000, 0, 8), 0);
            for (int completions = 0; completions < 2; ++completions) {
                const auto wc = station.complete();
                ASSERT_TRUE(wc) << i;
                if (wc->opcode != IBV_WC_RECV) continue;
                EXPECT_EQ(posted.erase(wc->wr_id), 1U);
                post();
            }
        }
        ++held;
        child.resume();
        // What it had claimed arrives late, or it had claimed nothing.
        std::this_thread::sleep_for(std::chrono::milliseconds{2});
        child.kill_and_wait();
        const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds{100};
        while (std::chrono::steady_clock::now() < limit) {
            if (const auto wc = station.poll_once()) {
                EXPECT_EQ(posted.erase(wc->wr_id), 1U);
                post();
            }
        }
        EXPECT_EQ(posted.size(), 4U) << "all receives are posted";
    }
    EXPECT_GT(held, 0) << "no round stopped the sender in the middle of a send";
}

/// Tells of a queue pair with a receive, and after each line of another one instead of it. To the
/// first it is told, it sends.
MILLRACE_CHILD(datagram_correspondent) {
    Station station;
    const auto peer = static_cast<std::uint32_t>(std::stoul(arguments.at(0)));
    ibv_ah* const ah = station.handle();
    do {
        ibv_qp* const qp = station.datagram();
        if (station.receive(qp, 1, 8192, 4096) != 0) return 2;
        if (station.send_to(qp, ah, peer, 2, 0, 64) != 0) return 3;
        say(std::to_string(qp->qp_num));
        if (!hear()) break;
        station.destroy(qp);
    } while (true);
    return 0;
}

/// Of nodes' blocks: neighbours are one line of the list of mappings.
std::size_t mapped_bytes() {
    std::ifstream maps{"/proc/self/maps"};
    std::size_t bytes = 0;
    for (std::string line; std::getline(maps, line);) {
        unsigned long from = 0;
        unsigned long to = 0;
        if (line.find("/memfd:millrace-blocks") != std::string::npos &&
            std::sscanf(line.c_str(), "%lx-%lx", &from, &to) == 2) {
            bytes += to - from;
        }
    }
    return bytes;
}

/// Of what this process has of others: a station's queue pair that exchanges datagrams with them.
struct Correspondence {
    explicit Correspondence(const StationOptions& options = {}) : station{options} {
        for (int i = 0; i < 4; ++i) post();  // a child may be faster than we are
    }
    ChildProcess begin() {
        return ChildProcess::start("datagram_correspondent", {std::to_string(qp->qp_num)});
    }
    /// A datagram each way with the child's next queue pair.
    void exchange(ChildProcess& child) {
        const auto number = static_cast<std::uint32_t>(std::stoul(child.read_line().value_or("0")));
        ASSERT_NE(number, 0U);
        EXPECT_EQ(station.send_to(qp, ah, number, 3, 0, 64), 0);
        for (int completions = 0; completions < 2; ++completions) {
            const auto wc = station.complete();
            ASSERT_TRUE(wc);
            if (wc->opcode == IBV_WC_RECV) post();
        }
    }
    void post() { EXPECT_EQ(station.receive(qp, 1, 8192, 4096), 0); }
    /// Polls until there are no more than `most`, which `count` counts.
    void settle(std::size_t (*count)(), std::size_t most) {
        const base::Deadline patience = patience_for_a_coincidence();
        while (count() > most && !patience.expired()) static_cast<void>(station.poll_once());
        EXPECT_LE(count(), most);
    }
    Station station;
    ibv_qp* qp = station.datagram();
    ibv_ah* ah = station.handle();
};

TEST(DatagramDeath, OfAPeerLeavesNoDescriptorAndNoMapping) {
    Correspondence ours;
    const std::size_t descriptors = open_descriptors();
    const std::size_t mappings = shared_mappings();
    for (int round = 0; round < 5; ++round) {
        SCOPED_TRACE(round);
        ChildProcess first = ours.begin();
        ChildProcess second = ours.begin();
        ours.exchange(first);
        ours.exchange(second);
        first.kill_and_wait();
        second.close_input();
        EXPECT_TRUE(second.wait().success());
    }
    ours.settle(open_descriptors, descriptors);
    ours.settle(shared_mappings, mappings);
}

TEST(DatagramDeath, OfAPeerLeavesNoDescriptorWithWhoOnlyWaitsForEvents) {
    StationOptions options;
    options.events = true;
    Correspondence ours{options};
    ibv_comp_channel& channel = *ours.station.channel;
    ASSERT_EQ(fcntl(channel.fd, F_SETFL, O_NONBLOCK), 0);
    // The channel gets a timer of its own where a receive was claimed and had not arrived yet; of a
    // peer there are several descriptors.
    const std::size_t descriptors = open_descriptors() + 1;
    {
        ChildProcess child = ours.begin();
        ours.exchange(child);
        child.kill_and_wait();
    }
    const base::Deadline patience = patience_for_a_coincidence();
    while (open_descriptors() > descriptors && !patience.expired()) {
        pollfd readable{channel.fd, POLLIN, 0};
        static_cast<void>(::poll(&readable, 1, 10));
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        static_cast<void>(soft::get_cq_event(&channel, &cq, &context));
    }
    EXPECT_LE(open_descriptors(), descriptors);
}

TEST(DatagramDeparture, OfAQueuePairWhoseProcessLivesLeavesNoMapping) {
    Correspondence ours;
    ChildProcess child = ours.begin();
    ours.exchange(child);
    const std::size_t bytes = mapped_bytes();
    std::size_t most = bytes;
    for (int round = 0; round < 20; ++round) {
        child.write_line("another");
        ours.exchange(child);
        most = std::max(most, mapped_bytes());
    }
    EXPECT_GT(most, bytes);
    ours.settle(mapped_bytes, bytes);
    child.close_input();
    EXPECT_TRUE(child.wait().success());
}

TEST(DatagramFence, DestroyingTheQueuePairOfAStoppedSenderDoesNotHandOutItsMemory) {
    const base::Deadline patience = patience_for_a_coincidence();
    // The process's memory outlives the rounds' stations, and what is lost to it is lost.
    const Station lasting{StationOptions{}};
    std::optional<std::uint64_t> after_the_first;
    for (int round = 0; !patience.expired(); ++round) {
        SCOPED_TRACE(round);
        StationOptions options;
        options.shared_memory = false;
        Station station{options};
        ibv_qp* const qp = station.datagram();
        ChildProcess child = flood(qp, 4096);
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds{2};
        while (std::chrono::steady_clock::now() < until) {
            static_cast<void>(station.receive(qp, 1, 8192, 8192));
            static_cast<void>(station.poll_once());
        }
        ASSERT_TRUE(child.stop());
        const bool copying = executing(qp) != 0;
        station.destroy(qp);
        if (!copying) continue;
        EXPECT_EQ(soft::dereg_mr(station.mr), EBUSY);
        child.kill_and_wait();
        int later = EBUSY;
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{10};
        while (later == EBUSY && std::chrono::steady_clock::now() < limit) {
            static_cast<void>(station.poll_once());
            later = soft::dereg_mr(station.mr);
        }
        EXPECT_EQ(later, 0);
        station.mr = nullptr;
        // With the next one that is made comes back what it received into, too.
        const auto process = soft::current_process();
        while (!process->listed().hold()->kept.empty() && !patience.expired()) {
            station.destroy(station.datagram());
        }
        if (after_the_first.has_value()) {
            EXPECT_LE(node_bytes(), *after_the_first);
            return;
        }
        after_the_first = node_bytes();
    }
    FAIL() << "no round stopped the sender in the middle of a send";
}

}  // namespace
}  // namespace millrace::test
