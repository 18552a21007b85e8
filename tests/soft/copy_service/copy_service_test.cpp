// Memory that peers may not copy: its owner's service thread does it for them. Two processes, from
// which the system withholds process_vm_*; neither calls verbs but where it is told to.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

std::string plus(std::initializer_list<std::uint64_t> numbers) {
    std::string text;
    for (const std::uint64_t number : numbers) text += ' ' + std::to_string(number);
    return text;
}

class CopyService : public testing::Test {
  protected:
    static std::vector<std::string> flags(std::initializer_list<std::string> more = {}) {
        std::vector<std::string> all{"withheld", "private"};
        all.insert(all.end(), more);
        return all;
    }
    static void connect(RemoteEndpoint& one, RemoteEndpoint& other) {
        ASSERT_EQ(one.ask("connect" + plus({other.qpn})), "0");
        ASSERT_EQ(other.ask("connect" + plus({one.qpn})), "0");
    }
    static std::string write_to(const RemoteEndpoint& peer, std::uint64_t from, std::uint64_t bytes,
                                std::uint64_t to = 0) {
        return "write 1" + plus({from, bytes, peer.address + to, peer.rkey});
    }
    static std::string done(std::uint64_t id, std::uint64_t bytes,
                            ibv_wc_status status = IBV_WC_SUCCESS) {
        return std::to_string(id) + ' ' + std::to_string(status) + ' ' + std::to_string(bytes);
    }
    static bool has_thread(pid_t pid, const std::string& name) {
        for (const auto& task :
             std::filesystem::directory_iterator{"/proc/" + std::to_string(pid) + "/task"}) {
            std::ifstream file{task.path() / "comm"};
            std::string found;
            if (std::getline(file, found) && found == name) return true;
        }
        return false;
    }
};

TEST_F(CopyService, WritesIntoThePrivateMemoryOfASleepingPeer) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    for (const std::uint64_t length : {1U, 8U, 63U, 4096U, 131072U, 131073U, 1000000U}) {
        ASSERT_EQ(other.ask("fill 0 1048576 0"), "ok");
        ASSERT_EQ(one.ask("fill 0 1048576 119"), "ok");
        ASSERT_EQ(one.ask(write_to(other, 5, length, 3)), "0");
        ASSERT_EQ(one.ask("complete"), done(1, length)) << length;
        EXPECT_EQ(other.ask("check 0 3 0"), "same");
        EXPECT_EQ(other.ask("check" + plus({3, length, 119})), "same") << length;
        EXPECT_EQ(other.ask("check" + plus({3 + length, 16, 0})), "same") << length;
    }
    EXPECT_TRUE(has_thread(other.child.pid(), "millrace-copy"));
}

TEST_F(CopyService, ReadsFromThePrivateMemoryOfASleepingPeer) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    for (const std::uint64_t length : {1U, 8U, 63U, 4096U, 131073U, 1000000U}) {
        ASSERT_EQ(one.ask("fill 0 1048576 0"), "ok");
        ASSERT_EQ(other.ask("fill 0 1048576 114"), "ok");
        ASSERT_EQ(one.ask("read 2" + plus({3, length, other.address + 5, other.rkey})), "0");
        ASSERT_EQ(one.ask("complete"), done(2, length));
        EXPECT_EQ(one.ask("check 0 3 0"), "same");
        EXPECT_EQ(one.ask("check" + plus({3, length, 114})), "same") << length;
        EXPECT_EQ(one.ask("check" + plus({3 + length, 16, 0})), "same") << length;
    }
}

TEST_F(CopyService, SendsFillReceivesThatWerePosted) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(one.ask("fill 0 1048576 115"), "ok");
    for (const std::uint64_t length : {1U, 8U, 5000U, 300000U}) {
        ASSERT_EQ(other.ask("fill 0 1048576 0"), "ok");
        ASSERT_EQ(other.ask("receive 5" + plus({100, length})), "0");
        ASSERT_EQ(one.ask("send 3" + plus({0, length})), "0");
        ASSERT_EQ(one.ask("complete"), done(3, length));
        ASSERT_EQ(other.ask("complete"), done(5, length));
        EXPECT_EQ(other.ask("check 0 100 0"), "same");
        EXPECT_EQ(other.ask("check" + plus({100, length, 115})), "same") << length;
        EXPECT_EQ(other.ask("check" + plus({100 + length, 16, 0})), "same") << length;
    }
}

TEST_F(CopyService, ASendBeforeItsReceiveIsRunByItsOwner) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(one.ask("fill 0 5000 112"), "ok");
    ASSERT_EQ(one.ask("send 3 0 5000"), "0");
    EXPECT_EQ(one.ask("poll"), "none");
    ASSERT_EQ(other.ask("receive 5 0 5000"), "0");
    ASSERT_EQ(one.ask("complete"), done(3, 5000));
    ASSERT_EQ(other.ask("complete"), done(5, 5000));
    EXPECT_EQ(other.ask("check 0 5000 112"), "same");
}

TEST_F(CopyService, WakesAnOwnerThatSleepsOnItsChannelForWhatOnlyItCanSend) {
    RemoteEndpoint one{flags({"events"})};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(one.ask("fill 0 5000 101"), "ok");
    ASSERT_EQ(one.ask("notify 0"), "0");
    ASSERT_EQ(one.ask("send 3 0 5000"), "0");
    ASSERT_EQ(one.ask("event"), "waiting");
    ASSERT_EQ(other.ask("receive 5 0 5000"), "0");
    ASSERT_EQ(one.child.read_line().value_or("gone"), "event");
    ASSERT_EQ(one.ask("complete"), done(3, 5000));
    ASSERT_EQ(other.ask("complete"), done(5, 5000));
    EXPECT_EQ(other.ask("check 0 5000 101"), "same");
}

TEST_F(CopyService, AtomicsReturnAndChangeTheWord) {
    RemoteEndpoint owner{flags({"atomic"})};
    RemoteEndpoint one{flags({"atomic"})};
    connect(one, owner);
    ASSERT_EQ(one.ask("add 200" + plus({owner.address + 64, owner.rkey})), "200");
    ASSERT_EQ(one.ask("read 2" + plus({128, 8, owner.address + 64, owner.rkey})), "0");
    ASSERT_EQ(one.ask("complete"), done(2, 8));
    EXPECT_EQ(one.ask("check 128 1 200"), "same");
    EXPECT_EQ(one.ask("check 129 7 0"), "same");
}

TEST_F(CopyService, UnreliableConnectionsAreServedToo) {
    RemoteEndpoint one{flags({"uc"})};
    RemoteEndpoint other{flags({"uc"})};
    connect(one, other);
    ASSERT_EQ(one.ask("fill 0 1048576 117"), "ok");
    ASSERT_EQ(other.ask("receive 5 0 70000"), "0");
    // Where the service has to wait for a processor the message is dropped, and the receive stays.
    std::string received = "none";
    for (int tries = 0; tries < 40 && received == "none"; ++tries) {
        ASSERT_EQ(one.ask("send 3 0 70000"), "0");
        ASSERT_EQ(one.ask("complete"), done(3, 70000));
        for (int looks = 0; looks < 25 && received == "none"; ++looks) {
            received = other.ask("poll");
            if (received == "none") std::this_thread::sleep_for(10ms);
        }
    }
    ASSERT_EQ(received, done(5, 70000));
    EXPECT_EQ(other.ask("check 0 70000 117"), "same");
    std::string written = "different";
    for (int tries = 0; tries < 40 && written != "same"; ++tries) {
        ASSERT_EQ(one.ask(write_to(other, 0, 70000, 100000)), "0");
        ASSERT_EQ(one.ask("complete"), done(1, 70000));
        written = other.ask("check 100000 70000 117");
    }
    EXPECT_EQ(written, "same");
}

TEST_F(CopyService, BothWaysAtOnceNeitherWaitsForTheOther) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(one.ask("flood 300000" + plus({other.address, other.rkey})), "flooding");
    for (int i = 0; i < 30; ++i) {
        ASSERT_EQ(other.ask(write_to(one, 0, 300000)), "0");
        ASSERT_EQ(other.ask("complete"), done(1, 300000));
    }
}

TEST_F(CopyService, MemoryIsDeregisteredUnderItsPeersRequests) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(one.ask("flood 300000" + plus({other.address, other.rkey})), "flooding");
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(other.ask("dereg"), "0");
}

TEST_F(CopyService, AKeyThatIsNoneIsRefusedAsByADevice) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(other.ask("dereg"), "0");
    ASSERT_EQ(one.ask(write_to(other, 0, 8)), "0");
    EXPECT_EQ(one.ask("complete"), done(1, 0, IBV_WC_REM_ACCESS_ERR));
}

TEST_F(CopyService, MemoryThatIsNotThereAnyMoreIsAnErrorAndNoSignal) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(one.ask(write_to(other, 0, 8)), "0");
    ASSERT_EQ(one.ask("complete"), done(1, 8));
    ASSERT_EQ(other.ask("unmap"), "0");
    ASSERT_EQ(one.ask(write_to(other, 0, 8)), "0");
    EXPECT_EQ(one.ask("complete"), done(1, 0, IBV_WC_REM_ACCESS_ERR));
    EXPECT_EQ(other.ask("poll"), "none") << "it lives";
}

TEST_F(CopyService, ADeadOwnerIsADeadPeer) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(one.ask("write_until_error" + plus({300000, other.address, other.rkey})), "writing");
    std::this_thread::sleep_for(30ms);
    other.child.kill_and_wait();
    EXPECT_EQ(one.child.read_line().value_or("gone"), std::to_string(IBV_WC_RETRY_EXC_ERR));
}

TEST_F(CopyService, ADeadAskerLeavesTheOwnerAtWork) {
    RemoteEndpoint owner{flags()};
    for (int i = 0; i < 3; ++i) {
        RemoteEndpoint asker{flags()};
        if (i == 0) {
            connect(asker, owner);
            ASSERT_EQ(asker.ask("flood 300000" + plus({owner.address, owner.rkey})), "flooding");
            std::this_thread::sleep_for(20ms);
            asker.child.kill_and_wait();
            ASSERT_EQ(owner.ask("reset"), "0");
            continue;
        }
        connect(asker, owner);
        ASSERT_EQ(asker.ask(write_to(owner, 0, 300000)), "0");
        ASSERT_EQ(asker.ask("complete"), done(1, 300000));
        ASSERT_EQ(owner.ask("reset"), "0");
    }
}

TEST_F(CopyService, AStoppedOwnerIsASilentPeer) {
    RemoteEndpoint one{flags()};
    RemoteEndpoint other{flags()};
    connect(one, other);
    ASSERT_EQ(one.ask(write_to(other, 0, 8)), "0");
    ASSERT_EQ(one.ask("complete"), done(1, 8));
    ASSERT_TRUE(other.child.stop());
    ASSERT_EQ(one.ask(write_to(other, 0, 8)), "0");
    EXPECT_EQ(one.ask("complete"), done(1, 0, IBV_WC_RETRY_EXC_ERR));
    other.child.resume();
}

TEST_F(CopyService, SharedMemoryNeedsNoThread) {
    RemoteEndpoint one{{"withheld"}};
    RemoteEndpoint other{{"withheld"}};
    connect(one, other);
    ASSERT_EQ(one.ask(write_to(other, 0, 8)), "0");
    ASSERT_EQ(one.ask("complete"), done(1, 8));
    EXPECT_FALSE(has_thread(one.child.pid(), "millrace-copy"));
    EXPECT_FALSE(has_thread(other.child.pid(), "millrace-copy"));
}

TEST_F(CopyService, NobodyHasAThreadWhereCopiesAreAllowed) {
    RemoteEndpoint one{{"private"}};
    RemoteEndpoint other{{"private"}};
    connect(one, other);
    ASSERT_EQ(one.ask(write_to(other, 0, 8)), "0");
    ASSERT_EQ(one.ask("complete"), done(1, 8));
    EXPECT_FALSE(has_thread(one.child.pid(), "millrace-copy"));
    EXPECT_FALSE(has_thread(other.child.pid(), "millrace-copy"));
}

TEST_F(CopyService, OnlyWhoIsRefusedAsks) {
    RemoteEndpoint refused{flags()};
    RemoteEndpoint other{{"private"}};
    connect(refused, other);
    ASSERT_EQ(refused.ask("fill 0 1000 7"), "ok");
    ASSERT_EQ(refused.ask(write_to(other, 0, 1000)), "0");
    ASSERT_EQ(refused.ask("complete"), done(1, 1000));
    EXPECT_EQ(other.ask("check 0 1000 7"), "same");
    ASSERT_EQ(other.ask(write_to(refused, 0, 1000, 2000)), "0");
    ASSERT_EQ(other.ask("complete"), done(1, 1000));
    EXPECT_EQ(refused.ask("check 2000 1000 7"), "same");
    EXPECT_TRUE(has_thread(other.child.pid(), "millrace-copy"));
}

}  // namespace
}  // namespace millrace::test
