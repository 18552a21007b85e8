// A process whose first thread has ended (pthread_exit in `main`) while others go on: it lives, is
// reached as any other, and dies as any other. The kernel then shows nothing under its number.
#include <gmock/gmock.h>
#include <pthread.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

/// "shared" or "private" memory. Its first thread ends before it says so.
MILLRACE_CHILD(soft_without_first_thread) {
    EndpointOptions options;
    options.shared_memory = arguments.at(0) == "shared";
    auto* const end = new Endpoint{options};  // no thread's stack outlives this function
    const pthread_t first = pthread_self();
    std::thread{[end, first] {
        pthread_join(first, nullptr);
        char target[1];
        // The kernel tells the joiner a little before it takes the memory away.
        while (readlink(("/proc/" + std::to_string(getpid()) + "/exe").c_str(), target, 1) >= 0) {
            std::this_thread::yield();
        }
        serve_endpoint(*end);
        _exit(0);
    }}.detach();
    pthread_exit(nullptr);
}

class WithoutFirstThread : public testing::TestWithParam<const char*> {};

TEST_P(WithoutFirstThread, AProcessIsReachedAndReachesOthers) {
    RemoteEndpoint remote{ChildProcess::start("soft_without_first_thread", {GetParam()})};
    EndpointOptions options;
    options.shared_memory = std::string{GetParam()} == "shared";
    Endpoint end{options};
    ASSERT_EQ(end.connect(remote.qpn), 0);
    ASSERT_EQ(remote.ask("connect " + std::to_string(end.qp->qp_num)), "0");
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
        ASSERT_EQ(
            end.post(opcode, 1, {end.sge(0, 64)}, IBV_SEND_SIGNALED, remote.address, remote.rkey),
            0);
        const auto done = end.complete();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(remote.ask("write 1 0 64 " + std::to_string(end.address()) + ' ' +
                         std::to_string(end.mr->rkey)),
              "0");
    EXPECT_THAT(remote.ask("complete"), testing::StartsWith("1 0 ")) << "id and status";
    // What takes a peer for dead looks now and then.
    EXPECT_FALSE(end.complete(std::chrono::milliseconds{200}));
    EXPECT_EQ(state_of(end.qp), IBV_QPS_RTS);

    ASSERT_EQ(end.receive(2, 0, 64), 0);
    remote.child.kill_and_wait();
    const auto flushed = end.complete();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR) << "now it is dead";
}

struct LeftProcess {
    const char* name;
    const char* mode;
    std::vector<std::string> flags;
};

class ThreadsOfTheDevice : public testing::TestWithParam<LeftProcess> {};

// pthread_exit in `main`: the C library ends a process with its last thread, and the device's do
// not count.
TEST_P(ThreadsOfTheDevice, KeepNoProcessWhoseThreadsHaveEnded) {
    const ModeScope mode{GetParam().mode};
    RemotePair pair{{}, GetParam().flags};
    ASSERT_EQ(pair.left.write(1, 0, 64, pair.right.address, pair.right.rkey), 0);
    ASSERT_TRUE(pair.left.complete());
    ASSERT_TRUE(pair.right.child.write_line("leave"));
    EXPECT_EQ(pair.right.child.wait(), (Exit{Exit::How::exited, 0}));
}

INSTANTIATE_TEST_SUITE_P(
    Of, ThreadsOfTheDevice,
    testing::Values(LeftProcess{"none", "fast", {}},
                    LeftProcess{"copies", "fast", {"withheld", "private"}},
                    LeftProcess{"shaped", "shaped:10g,latency=1us", {}},
                    LeftProcess{"strict", "strict:seed=7", {}},
                    LeftProcess{"faulty", "faulty:seed=3", {}},
                    LeftProcess{"both", "shaped:10g,latency=1us", {"withheld", "private"}}),
    [](const auto& process) { return std::string{process.param.name}; });

INSTANTIATE_TEST_SUITE_P(Memory, WithoutFirstThread, testing::Values("shared", "private"),
                         [](const auto& kind) { return std::string{kind.param}; });

}  // namespace
}  // namespace millrace::test
