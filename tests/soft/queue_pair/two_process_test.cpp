// Queue pairs in two processes: the peer only ever does what it is told, and sleeps otherwise.
#include "soft/remote_endpoint.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "soft/fabric_name.hpp"
#include "support/setting_scope.hpp"

namespace millrace::test {
namespace {

class TwoProcesses : public testing::TestWithParam<const char*> {
  protected:
    /// The peer's memory can be mapped, or has to be reached by the operating system.
    static std::vector<std::string> flags() { return {GetParam()}; }
    static EndpointOptions options() {
        EndpointOptions chosen;
        chosen.bytes = 1 << 20;
        chosen.shared_memory = std::string_view{GetParam()} != "private";
        return chosen;
    }
};

TEST_P(TwoProcesses, WriteReachesASleepingPeer) {
    RemotePair pair{options(), flags()};
    for (const std::size_t length : {1U, 8U, 63U, 4096U, 100000U}) {
        std::memset(pair.left.memory, 'w', length);
        EXPECT_EQ(pair.right.ask("fill 0 200000 0"), "ok");
        ASSERT_EQ(pair.left.write(1, 0, length, pair.right.address + 3, pair.right.rkey), 0);
        const auto done = pair.left.complete();
        ASSERT_TRUE(done);
        ASSERT_EQ(done->status, IBV_WC_SUCCESS);
        EXPECT_EQ(pair.right.ask("check 0 3 0"), "same");
        EXPECT_EQ(pair.right.ask("check 3 " + std::to_string(length) + " 119"), "same");
        EXPECT_EQ(pair.right.ask("check " + std::to_string(3 + length) + " 10 0"), "same");
    }
}

TEST_P(TwoProcesses, ReadReachesASleepingPeer) {
    RemotePair pair{options(), flags()};
    EXPECT_EQ(pair.right.ask("fill 0 100000 114"), "ok");
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(10, 99990)}, IBV_SEND_SIGNALED,
                             pair.right.address, pair.right.rkey),
              0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    ASSERT_EQ(done->status, IBV_WC_SUCCESS);
    for (std::size_t i = 0; i < 99990; ++i) ASSERT_EQ(pair.left.memory[10 + i], std::byte{'r'});
    EXPECT_EQ(pair.left.memory[9], std::byte{0});
}

TEST_P(TwoProcesses, SendFillsAPostedReceive) {
    RemotePair pair{options(), flags()};
    EXPECT_EQ(pair.right.ask("receive 5 100 5000"), "0");
    std::memset(pair.left.memory, 's', 5000);
    ASSERT_EQ(pair.left.send(1, 0, 5000), 0);
    ASSERT_TRUE(pair.left.complete());
    EXPECT_EQ(pair.right.ask("complete"), "5 0 5000");
    EXPECT_EQ(pair.right.ask("check 100 5000 115"), "same");
}

TEST_P(TwoProcesses, ASendBeforeItsReceiveIsRunByTheReceiver) {
    RemotePair pair{options(), flags()};
    std::memset(pair.left.memory, 'p', 5000);
    ASSERT_EQ(pair.left.send(1, 0, 5000), 0);
    ASSERT_EQ(pair.left.send(2, 0, 3), 0);
    EXPECT_EQ(pair.right.ask("poll"), "none");
    // From here on this process calls no verbs until the peer has its data.
    EXPECT_EQ(pair.right.ask("receive 5 0 5000"), "0");
    EXPECT_EQ(pair.right.ask("poll"), "5 0 5000");
    EXPECT_EQ(pair.right.ask("check 0 5000 112"), "same");
    EXPECT_EQ(pair.right.ask("receive 6 0 5000"), "0");
    EXPECT_EQ(pair.right.ask("poll"), "6 0 3");
    for (const std::uint64_t id : {1U, 2U}) {
        const auto sent = pair.left.poll_once();
        ASSERT_TRUE(sent);
        EXPECT_EQ(sent->wr_id, id);
    }
    EXPECT_EQ(pair.right.ask("receive 7 0 8"), "0");
    ASSERT_EQ(pair.left.send(3, 0, 8), 0) << "and directly again";
    EXPECT_EQ(pair.right.ask("poll"), "7 0 8");
}

TEST_P(TwoProcesses, ThePeersFailureToRunAPendingSendIsOurError) {
    RemotePair pair{options(), flags()};
    ASSERT_EQ(pair.left.send(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(2, 0, 64), 0);
    EXPECT_EQ(pair.right.ask("receive 5 0 63"), "0");
    const auto failed = pair.left.complete();
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->wr_id, 1U);
    EXPECT_EQ(failed->status, IBV_WC_REM_INV_REQ_ERR);
    const auto flushed = pair.left.complete();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->wr_id, 2U);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(pair.right.ask("complete"), "5 " + std::to_string(IBV_WC_LOC_LEN_ERR) + " 0");
}

TEST_P(TwoProcesses, AKeyThatThePeerTookBackIsNoLongerValid) {
    RemotePair pair{options(), flags()};
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address, pair.right.rkey), 0);
    ASSERT_EQ(pair.left.complete()->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.ask("dereg"), "0");
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address, pair.right.rkey), 0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(pair.right.ask("poll"), "none") << "nothing was posted there";
}

INSTANTIATE_TEST_SUITE_P(SoftDevice, TwoProcesses, testing::Values("shared", "private"),
                         [](const auto& chosen) { return std::string{chosen.param}; });

TEST(TwoProcessStates, TheDeviceIsOpenedInTheFabricThatIsNamedNow) {
    const Endpoint of_before;  // keeps this process in the fabric that it was in
    const SettingScope fabric{"MILLRACE_FABRIC", fabric_of_test()};
    RemotePair pair;
    EXPECT_EQ(pair.right.ask("receive 5 100 5000"), "0");
    std::memset(pair.left.memory, 's', 5000);
    ASSERT_EQ(pair.left.send(1, 0, 5000), 0);
    ASSERT_TRUE(pair.left.complete());
    EXPECT_EQ(pair.right.ask("complete"), "5 0 5000");
    EXPECT_EQ(pair.right.ask("check 100 5000 115"), "same");
}

TEST(TwoProcessStates, TransitionToReadyRunsWhatThePeerHasWaiting) {
    Endpoint left;
    RemoteEndpoint right;
    ASSERT_EQ(left.connect(right.qpn), 0);
    ASSERT_EQ(left.write(1, 0, 8, right.address, right.rkey), 0);
    EXPECT_FALSE(left.poll_once());
    EXPECT_EQ(right.ask("init"), "0");
    EXPECT_EQ(right.ask("rtr " + std::to_string(left.qp->qp_num)), "0");
    const auto done = left.poll_once();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
}

// Both sides post sends and receives as fast as they can, through queues of one: every hand-over
// between direct execution, our pending work and the peer running it happens thousands of times.
MILLRACE_CHILD(soft_echo) {
    EndpointOptions options;
    options.send_wr = options.receive_wr = arguments.at(0) == "tiny" ? 1 : 64;
    Endpoint end{options};
    say(std::to_string(end.qp->qp_num));
    const auto peer = static_cast<std::uint32_t>(std::stoul(hear().value()));
    const auto messages = static_cast<std::uint64_t>(std::stoul(arguments.at(1)));
    if (end.connect(peer) != 0) return 2;
    say("connected");
    static_cast<void>(hear());
    std::uint64_t sent = 0;
    std::uint64_t posted = 0;
    std::uint64_t received = 0;
    std::uint64_t completed = 0;
    const std::uint64_t window = options.send_wr;
    unsigned seed = static_cast<unsigned>(end.qp->qp_num);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    while (received < messages || completed < messages) {
        seed = seed * 1103515245 + 12345;
        if (posted < messages && posted - received < window && (seed >> 16) % 3 != 0) {
            if (end.receive(posted, 4096 + posted % window * 64, 64) == 0) ++posted;
        }
        if (sent < messages && sent - completed < window && (seed >> 18) % 3 != 0) {
            const std::uint64_t value = sent * 0x9e3779b97f4a7c15;
            std::memcpy(end.memory + sent % window * 64, &value, 8);
            if (end.send(sent, sent % window * 64, 8) != 0) return 3;
            ++sent;
        }
        ibv_wc wc;
        while (ibv_poll_cq(end.cq, 1, &wc) == 1) {
            if (wc.status != IBV_WC_SUCCESS) {
                std::fprintf(stderr, "completion: status %d\n", wc.status);
                return 4;
            }
            if (wc.opcode == IBV_WC_RECV) {
                std::uint64_t value = 0;
                std::memcpy(&value, end.memory + 4096 + received % window * 64, 8);
                if (wc.wr_id != received || value != received * 0x9e3779b97f4a7c15) return 5;
                ++received;
            } else {
                if (wc.wr_id != completed) return 6;
                ++completed;
            }
        }
        if (std::chrono::steady_clock::now() > until) return 7;
    }
    say("done");
    static_cast<void>(hear());  // the peer may still need us
    return 0;
}

TEST(TwoProcessStress, HandOverBetweenPosterAndReceiverLosesNothing) {
    // With the processors taken, a message of a queue of one waits for the scheduler to come round.
    const bool lengthy = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    for (const std::string size : {"tiny", "window"}) {
        std::vector<std::string> arguments{size, lengthy ? "20000" : "3000"};
        ChildProcess a = ChildProcess::start("soft_echo", arguments);
        ChildProcess b = ChildProcess::start("soft_echo", arguments);
        const auto qpn_a = a.read_line();
        const auto qpn_b = b.read_line();
        ASSERT_TRUE(qpn_a && qpn_b);
        a.write_line(*qpn_b);
        b.write_line(*qpn_a);
        ASSERT_EQ(a.read_line(), "connected");
        ASSERT_EQ(b.read_line(), "connected");
        a.write_line("go");
        b.write_line("go");
        const auto limit = std::chrono::seconds{70};
        EXPECT_EQ(a.read_line(limit), "done");
        EXPECT_EQ(b.read_line(limit), "done");
        a.write_line("end");
        b.write_line("end");
        EXPECT_TRUE(a.wait().success()) << a.wait();
        EXPECT_TRUE(b.wait().success()) << b.wait();
    }
}

}  // namespace
}  // namespace millrace::test
