// Many processes of one fabric, each with many queue pairs to a handful of others: all connect, all
// exchange over every queue pair, all close. Descriptors follow from the number of peers, memory
// from that of queue pairs. (memory_use_test.cpp: queues of the greatest depth.)
//
// 8 processes of 100 queue pairs; with MILLRACE_TEST_LONG 64 of 1,000. The times are printed.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "millrace/soft/survey.hpp"
#include "soft/held_memory.hpp"
#include "soft/remote_endpoint.hpp"
#include "support/resources.hpp"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

// Each process has a quarter of its queue pairs with each of the two next ones, and with each of
// the two before it.
constexpr int neighbours = 4;
constexpr int steps[neighbours] = {1, 2, -1, -2};

// argument: queue pairs. Lines in: the peers' numbers, in the order of our own; "exchange"; then
// the end of input. Lines out: our numbers; "connected"; descriptors, bytes of node memory and of
// private memory.
MILLRACE_CHILD(soft_one_of_a_crowd) {
    const auto count = static_cast<std::size_t>(std::stoul(arguments.at(0)));
    EndpointOptions options;
    options.shared_memory = false;
    options.bytes = 4096 + 2 * count * 64;
    Endpoint end{options};
    ibv_qp* const own = end.qp;
    const std::uint64_t node_before = node_bytes();
    const std::uint64_t private_before = private_bytes();
    ibv_cq* const cq =
        soft::create_cq(end.context, static_cast<int>(count * 16), nullptr, nullptr, 0);
    ibv_cq* const own_cq = std::exchange(end.cq, cq);
    std::vector<ibv_qp*> qps;
    std::string numbers;
    for (std::size_t i = 0; i < count; ++i) {
        ibv_qp_init_attr init{};
        init.send_cq = cq;
        init.recv_cq = cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {4, 4, 1, 1, 0};
        qps.push_back(soft::create_qp(end.pd, &init));
        if (qps.back() == nullptr) return 2;
        numbers += std::to_string(qps.back()->qp_num) + ' ';
    }
    say(numbers);
    std::istringstream peers{hear().value_or("")};
    std::vector<std::uint32_t> peer(count);
    for (std::size_t i = 0; i < count; ++i) {
        end.qp = qps[i];
        if (!(peers >> peer[i]) || end.connect(peer[i]) != 0) return 3;
        if (end.receive(i, 4096 + i * 64, 64) != 0) return 4;
    }
    say("connected");
    if (hear() != "exchange") return 5;
    // Everybody tells every peer its number, and hears the peer's.
    std::size_t sent = 0;
    std::size_t received = 0;
    std::size_t posted = 0;
    const auto until = std::chrono::steady_clock::now() + 3min;
    while (sent + received < 2 * count && std::chrono::steady_clock::now() < until) {
        // Each request has a slot of its own for what it says.
        if (posted < count) {
            end.qp = qps[posted];
            const std::size_t at = 4096 + (count + posted) * 64;
            end.word(at) = end.qp->qp_num;
            if (end.send(1U << 20, at, 8) != 0) return 6;
            ++posted;
        }
        while (const auto wc = end.poll_once()) {
            if (wc->status != IBV_WC_SUCCESS) return 7;
            if (wc->wr_id == 1U << 20) {
                ++sent;
                continue;
            }
            const std::size_t which = wc->wr_id;
            if (wc->qp_num != qps[which]->qp_num) return 8;
            if (end.word(4096 + which * 64) != peer[which]) return 9;
            ++received;
        }
    }
    if (sent != count || received != count) return 10;
    say(std::to_string(open_descriptors()) + ' ' +
        std::to_string((node_bytes() - node_before) / count) + ' ' +
        std::to_string((private_bytes() - private_before) / count));
    static_cast<void>(hear());  // until all have got everything
    for (ibv_qp* qp : qps) {
        if (soft::destroy_qp(qp) != 0) return 11;
    }
    end.qp = own;
    if (soft::destroy_cq(std::exchange(end.cq, own_cq)) != 0) return 12;
    return 0;
}

TEST(CrowdOfProcesses, ConnectsAHandfulOfPeersByManyQueuePairsAndExchangesOverEach) {
    const bool whole = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    const int processes = whole ? 64 : 8;
    const int queue_pairs = whole ? 1000 : 100;
    const int each = queue_pairs / neighbours;
    const std::string fabric = "crowd-" + std::to_string(getpid());
    const auto start = std::chrono::steady_clock::now();
    const auto milliseconds = [&start] {
        return static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                          std::chrono::steady_clock::now() - start)
                                          .count());
    };
    std::vector<ChildProcess> members;
    for (int i = 0; i < processes; ++i) {
        members.push_back(ChildProcess::start("soft_one_of_a_crowd", {std::to_string(queue_pairs)},
                                              {"MILLRACE_FABRIC=" + fabric}));
    }
    std::vector<std::vector<std::string>> numbers(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
        std::istringstream line{members[i].read_line(3min).value_or("")};
        for (std::string number; line >> number;) numbers[i].push_back(number);
        ASSERT_EQ(numbers[i].size(), static_cast<std::size_t>(queue_pairs)) << "member " << i;
    }
    for (int i = 0; i < processes; ++i) {
        std::string peers;
        for (int n = 0; n < neighbours; ++n) {
            // What is our n-th neighbour has us as its (n + 2)-th: the way back.
            const auto other = static_cast<std::size_t>((i + steps[n] + processes) % processes);
            for (int q = 0; q < each; ++q) {
                peers += numbers[other][static_cast<std::size_t>((n + 2) % neighbours * each + q)];
                peers += ' ';
            }
        }
        ASSERT_TRUE(members[static_cast<std::size_t>(i)].write_line(peers));
    }
    for (ChildProcess& member : members) ASSERT_EQ(member.read_line(3min), "connected");
    const long long connected = milliseconds();
    for (ChildProcess& member : members) ASSERT_TRUE(member.write_line("exchange"));
    std::uint64_t most_descriptors = 0;
    std::uint64_t most_shared = 0;
    std::uint64_t most_private = 0;
    for (ChildProcess& member : members) {
        const std::string said = member.read_line(4min).value_or("");
        std::istringstream line{said};
        std::uint64_t descriptors = 0;
        std::uint64_t shared = 0;
        std::uint64_t own = 0;
        ASSERT_TRUE(line >> descriptors >> shared >> own) << describe(member.wait());
        most_descriptors = std::max(most_descriptors, descriptors);
        most_shared = std::max(most_shared, shared);
        most_private = std::max(most_private, own);
    }
    const long long exchanged = milliseconds();
    const soft::Survey seen = soft::survey(fabric);
    EXPECT_EQ(seen.participants.size(), members.size());
    for (ChildProcess& member : members) member.close_input();
    for (ChildProcess& member : members) {
        const Exit exit = member.wait(2min);
        EXPECT_TRUE(exit.success()) << describe(exit);
    }
    std::printf(
        "%d processes x %d queue pairs: connected after %lld ms, exchanged after %lld ms, "
        "closed after %lld ms; at most %llu descriptors, and for each queue pair %llu bytes "
        "of node memory and %llu of private memory\n",
        processes, queue_pairs, connected, exchanged, milliseconds(),
        static_cast<unsigned long long>(most_descriptors),
        static_cast<unsigned long long>(most_shared),
        static_cast<unsigned long long>(most_private));
    // Some of the process's own, and a few for each of the four peers: none for a queue pair.
    EXPECT_LE(most_descriptors, 48U);
    EXPECT_LE(most_shared, 32U << 10);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they double it and more
    EXPECT_LE(most_private, 48U << 10);
#endif
    EXPECT_TRUE(soft::survey(fabric).participants.empty());
}

}  // namespace
}  // namespace millrace::test
