// A process whose first thread has ended (pthread_exit in `main`) while others go on: it lives, is
// reached as any other, and dies as any other. The kernel then shows nothing under its number.
#include <pthread.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "remote_endpoint.hpp"

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
        say(std::to_string(end->qp->qp_num) + ' ' + std::to_string(end->address()) + ' ' +
            std::to_string(end->mr->rkey));
        while (const auto line = hear()) {
            std::istringstream words{*line};
            std::string verb;
            std::uint64_t a = 0;
            std::uint64_t b = 0;
            words >> verb >> a >> b;
            if (verb == "connect") {
                say(std::to_string(end->connect(static_cast<std::uint32_t>(a))));
            } else if (verb == "write") {
                say(std::to_string(end->write(1, 0, 64, a, static_cast<std::uint32_t>(b))));
                const auto done = end->complete();
                say(done && done->status == IBV_WC_SUCCESS ? "written" : "failed");
            }
        }
        _exit(0);
    }}.detach();
    pthread_exit(nullptr);
}

class WithoutFirstThread : public testing::TestWithParam<const char*> {};

TEST_P(WithoutFirstThread, AProcessIsReachedAndReachesOthers) {
    ChildProcess child = ChildProcess::start("soft_without_first_thread", {GetParam()});
    std::istringstream facts{child.read_line().value_or("")};
    std::uint32_t qpn = 0;
    std::uint64_t address = 0;
    std::uint32_t rkey = 0;
    facts >> qpn >> address >> rkey;
    ASSERT_NE(qpn, 0U);
    EndpointOptions options;
    options.shared_memory = std::string{GetParam()} == "shared";
    Endpoint end{options};
    ASSERT_EQ(end.connect(qpn), 0);
    child.write_line("connect " + std::to_string(end.qp->qp_num));
    ASSERT_EQ(child.read_line(), "0");
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
        ASSERT_EQ(end.post(opcode, 1, {end.sge(0, 64)}, IBV_SEND_SIGNALED, address, rkey), 0);
        const auto done = end.complete();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    }
    child.write_line("write " + std::to_string(end.address()) + ' ' + std::to_string(end.mr->rkey));
    EXPECT_EQ(child.read_line(), "0");
    EXPECT_EQ(child.read_line(), "written");
    // What takes a peer for dead looks now and then.
    EXPECT_FALSE(end.complete(std::chrono::milliseconds{200}));
    EXPECT_EQ(state_of(end.qp), IBV_QPS_RTS);

    ASSERT_EQ(end.receive(2, 0, 64), 0);
    child.kill_and_wait();
    const auto flushed = end.complete();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR) << "now it is dead";
}

INSTANTIATE_TEST_SUITE_P(Memory, WithoutFirstThread, testing::Values("shared", "private"),
                         [](const auto& kind) { return std::string{kind.param}; });

}  // namespace
}  // namespace millrace::test
