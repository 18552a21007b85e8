// Peers that the operating system keeps apart: not allowed to look into each other, not allowed to
// copy, in different pid namespaces. Requests end with an error that says so, and nothing hangs.
#include <unistd.h>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

class Withheld : public testing::Test {
  protected:
    void SetUp() override {
        if (geteuid() != 0)
            GTEST_SKIP() << "only root can give processes other users and namespaces";
    }
    static std::string connect_command(const RemoteEndpoint& peer) {
        return "connect " + std::to_string(peer.qpn);
    }
    static std::string write_command(const RemoteEndpoint& peer) {
        return "write 1 0 8 " + std::to_string(peer.address) + ' ' + std::to_string(peer.rkey);
    }
    static std::string completion_with(ibv_wc_status status) {
        return "1 " + std::to_string(status) + " 0";
    }
};

TEST_F(Withheld, CopiesAreARemoteOperationError) {
    RemoteEndpoint one{{"unprivileged"}};
    RemoteEndpoint other{{"unprivileged", "private"}};
    ASSERT_EQ(one.ask(connect_command(other)), "0");
    ASSERT_EQ(other.ask(connect_command(one)), "0");
    ASSERT_EQ(one.ask(write_command(other)), "0");
    ASSERT_EQ(one.ask("complete"), "1 0 8") << "the two may copy";
    ASSERT_EQ(other.ask("undumpable"), "0");
    ASSERT_EQ(one.ask(write_command(other)), "0");
    EXPECT_EQ(one.ask("complete"), completion_with(IBV_WC_REM_OP_ERR));
}

TEST_F(Withheld, SharedMemoryNeedsNoCopies) {
    RemoteEndpoint one{{"unprivileged"}};
    RemoteEndpoint other{{"unprivileged"}};
    ASSERT_EQ(one.ask(connect_command(other)), "0");
    ASSERT_EQ(other.ask(connect_command(one)), "0");
    ASSERT_EQ(one.ask(write_command(other)), "0");
    ASSERT_EQ(one.ask("complete"), "1 0 8");
    ASSERT_EQ(other.ask("undumpable"), "0");
    ASSERT_EQ(one.ask(write_command(other)), "0");
    EXPECT_EQ(one.ask("complete"), "1 0 8");
}

TEST_F(Withheld, ANodeThatMayNotBeLookedIntoIsNotReached) {
    RemoteEndpoint one{{"unprivileged"}};
    RemoteEndpoint other{{"unprivileged"}};
    ASSERT_EQ(other.ask("undumpable"), "0");
    ASSERT_EQ(one.ask(connect_command(other)), "0");
    ASSERT_EQ(one.ask(write_command(other)), "0");
    EXPECT_EQ(one.ask("complete"), completion_with(IBV_WC_RETRY_EXC_ERR));
}

TEST_F(Withheld, APeerInAnotherPidNamespaceIsNotReachedFromEitherSide) {
    Endpoint ours;
    RemoteEndpoint inner{{"pid_namespace"}};
    if (inner.qpn == 0) GTEST_SKIP() << "no pid namespaces here";
    ASSERT_EQ(ours.connect(inner.qpn), 0);
    ASSERT_EQ(inner.ask("connect " + std::to_string(ours.qp->qp_num)), "0");
    ASSERT_TRUE(inner.child.write_line("write 1 0 8 " + std::to_string(ours.address()) + ' ' +
                                       std::to_string(ours.mr->rkey)));
    ASSERT_EQ(ours.write(1, 0, 8, inner.address, inner.rkey), 0);
    const auto wc = ours.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_RETRY_EXC_ERR);
    ASSERT_EQ(inner.child.read_line().value_or("gone"), "0");
    EXPECT_EQ(inner.ask("complete"), completion_with(IBV_WC_RETRY_EXC_ERR));
    EXPECT_EQ(ours.memory[0], std::byte{0});
}

// What /proc says of when a process was started is the reader's time.
TEST_F(Withheld, ATimeNamespaceKeepsNobodyApart) {
    RemoteEndpoint ours{{"private"}};
    RemoteEndpoint ahead{{"private", "time_namespace"}};
    if (ahead.qpn == 0) GTEST_SKIP() << "no time namespaces here";
    ASSERT_EQ(ours.ask(connect_command(ahead)), "0");
    ASSERT_EQ(ahead.ask(connect_command(ours)), "0");
    ASSERT_EQ(ours.ask(write_command(ahead)), "0");
    EXPECT_EQ(ours.ask("complete"), "1 0 8");
    ASSERT_EQ(ahead.ask(write_command(ours)), "0");
    EXPECT_EQ(ahead.ask("complete"), "1 0 8");
}

// As in a filter that does not know the call, under valgrind 3.19, and on kernels before 5.3.
TEST(WithheldPidfd, LeavesADeathToTheLifeline) {
    RemoteEndpoint here{{"no_pidfd", "events"}};
    RemoteEndpoint there;
    ASSERT_EQ(here.ask("connect " + std::to_string(there.qpn)), "0");
    ASSERT_EQ(there.ask("connect " + std::to_string(here.qpn)), "0");
    ASSERT_EQ(
        here.ask("write 1 0 8 " + std::to_string(there.address) + ' ' + std::to_string(there.rkey)),
        "0");
    EXPECT_EQ(here.ask("complete"), "1 0 8");
    ASSERT_EQ(here.ask("receive 2 0 64"), "0");
    ASSERT_EQ(here.ask("notify 0"), "0");
    ASSERT_EQ(here.ask("event"), "waiting");
    there.child.kill_and_wait();
    EXPECT_EQ(here.child.read_line(), "event");
    EXPECT_EQ(here.ask("complete"), "2 " + std::to_string(IBV_WC_WR_FLUSH_ERR) + " 0");
}

}  // namespace
}  // namespace millrace::test
