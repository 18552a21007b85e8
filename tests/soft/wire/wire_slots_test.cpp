// How processes share UDP port 4791 of an address: who gets which packets, who may join, and what
// the death of a member at any instant leaves.
#include "wire/wire_slots.hpp"

#include <poll.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "soft/wire/wire_member.hpp"
#include "support/forked.hpp"

namespace millrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(WireSlots, GiveEachProcessThePacketsOfItsOwnQueuePairs) {
    OnWire one{own_loopback(1)};
    WireMember other{own_loopback(1)};
    WireMember elsewhere{own_loopback(2)};
    ASSERT_THAT(other.hears_where_it_is(), StartsWith("slot "));
    ASSERT_THAT(elsewhere.hears_where_it_is(), StartsWith("slot "));
    ASSERT_FALSE(one.port->is_private());
    EXPECT_NE(other.slot, *one.port->slot());
    for (int i = 0; i < 100; ++i) {
        const std::string text = std::to_string(i);
        send_text(*one.port, other.address, other.qpn(), text);
        ASSERT_EQ(other.next(), text);
        send_text(*one.port, elsewhere.address, elsewhere.qpn(), text);
        ASSERT_EQ(elsewhere.next(), text);
    }
    other.process.write_line("send " + soft::IpAddress{own_loopback(1)}.words() + " " +
                             std::to_string(one.qpn) + " hello");
    EXPECT_THAT(one.inbox.wait_for(1), ElementsAre("hello"));
    EXPECT_EQ(one.inbox.source(), other.address);
}

// Of ::1, which all tests of this machine share.
TEST(WireSlots, GiveEachProcessItsPacketsOverIpv6) {
    const soft::IpAddress loopback = soft::IpAddress::parse("::1").value();
    OnWire one{loopback};
    WireMember other{loopback};
    ASSERT_THAT(other.hears_where_it_is(), StartsWith("slot "));
    ASSERT_NE(other.slot, *one.port->slot());
    for (int i = 0; i < 100; ++i) {
        send_text(*one.port, other.address, other.qpn(), std::to_string(i));
        ASSERT_EQ(other.next(), std::to_string(i));
    }
    other.process.write_line("send ::1 " + std::to_string(one.qpn) + " hello");
    EXPECT_THAT(one.inbox.wait_for(1), ElementsAre("hello"));
    EXPECT_EQ(one.inbox.source(), other.address);
}

TEST(WireSlots, AreLeasedToSixtyThreeProcessesAndNoMore) {
    std::vector<std::unique_ptr<WireMember>> members;
    std::set<std::uint32_t> slots;
    for (int i = 0; i < 63; ++i) members.push_back(std::make_unique<WireMember>(own_loopback(3)));
    for (auto& member : members) {
        ASSERT_THAT(member->hears_where_it_is(), StartsWith("slot "));
        slots.insert(member->slot);
    }
    EXPECT_EQ(slots.size(), 63U);
    EXPECT_EQ(*slots.begin(), 1U);
    EXPECT_EQ(*slots.rbegin(), 63U);

    WireMember one_more{own_loopback(3)};
    EXPECT_THAT(one_more.hears_where_it_is(),
                HasSubstr("63 processes share it, and there is no place for more; end one"));
    // All get theirs, and the place of one that is killed is free.
    OnWire elsewhere{own_loopback(4)};
    for (auto& member : members) {
        send_text(*elsewhere.port, member->address, member->qpn(), "all");
        EXPECT_EQ(member->next(), "all");
    }
    const std::uint32_t freed = members.front()->slot;
    members.front()->process.kill_and_wait();
    OnWire last{own_loopback(3)};
    EXPECT_EQ(last.port->slot(), freed);
}

TEST(WireSlots, StayWhereTheyAreWhoeverIsKilled) {
    auto founder = std::make_unique<WireMember>(own_loopback(5));
    ASSERT_THAT(founder->hears_where_it_is(), StartsWith("slot "));
    std::vector<std::unique_ptr<WireMember>> members;
    OnWire elsewhere{own_loopback(6)};
    for (int i = 0; i < 5; ++i) {
        members.push_back(std::make_unique<WireMember>(own_loopback(5)));
        ASSERT_THAT(members.back()->hears_where_it_is(), StartsWith("slot "));
        founder->process.kill_and_wait();
        for (auto& member : members) {
            send_text(*elsewhere.port, member->address, member->qpn(), "there");
            EXPECT_EQ(member->next(), "there");
        }
        founder = std::move(members.front());
        members.erase(members.begin());
    }
}

TEST(WireSlots, AreNotKeptByAStoppedMember) {
    WireMember stopped{own_loopback(7)};
    ASSERT_THAT(stopped.hears_where_it_is(), StartsWith("slot "));
    WireMember other{own_loopback(7)};
    ASSERT_THAT(other.hears_where_it_is(), StartsWith("slot "));
    ASSERT_TRUE(stopped.process.stop());
    OnWire joiner{own_loopback(7)};
    EXPECT_FALSE(joiner.port->is_private());
    stopped.process.resume();
}

/// Runs `body` in a child that is killed at its `step`-th system call, or ends before. True: it
/// ended.
template <class Body>
bool ends_before(int step, const Body& body) {
    const pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        raise(SIGSTOP);
        body();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    // Each call stops twice: before it and after it.
    for (int stop = 0; WIFSTOPPED(status); ++stop) {
        if (stop == step) kill(child, SIGKILL);
        ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
        waitpid(child, &status, 0);
    }
    return WIFEXITED(status);
}

/// Kills processes that join the group at `ip`, each `stride` system calls later than the last one,
/// and calls `look(calls)` after each. Returns how many calls it takes to join.
template <class Look>
int kill_joiners(std::uint32_t ip, int stride, const Look& look) {
    const auto join = [ip] { static_cast<void>(soft::WireSlots::join(ip)); };
    int calls = 0;
    for (; !ends_before(calls, join); calls += stride) look(calls);
    return calls;
}

/// A new process at `ip` is one of the group's, and gets what is sent to it.
void expect_whole(std::uint32_t ip, OnWire& elsewhere) {
    OnWire another{ip};
    ASSERT_FALSE(another.port->is_private());
    elsewhere.send_to(another, "there");
    ASSERT_THAT(another.inbox.wait_for(1), ElementsAre("there"));
}

TEST(WireSlots, AreWholeAfterAJoinerWasKilledAtAnySystemCall) {
    OnWire one{own_loopback(8)};
    OnWire elsewhere{own_loopback(9)};
    std::vector<std::string> sent;
    const int calls = kill_joiners(own_loopback(8), 1, [&](int killed_at) {
        sent.push_back(std::to_string(killed_at));
        elsewhere.send_to(one, sent.back());
        ASSERT_EQ(one.inbox.wait_for(sent.size()), sent);
        expect_whole(own_loopback(8), elsewhere);
    });
    EXPECT_GT(calls, 20);
}

TEST(WireSlots, AreFoundedAnewAfterAFounderWasKilledAtAnySystemCall) {
    OnWire elsewhere{own_loopback(11)};
    // It makes hundreds of calls of few kinds, and 31 is prime.
    const int calls =
        kill_joiners(own_loopback(10), 31, [&](int) { expect_whole(own_loopback(10), elsewhere); });
    EXPECT_GT(calls, 500);
}

TEST(WireSlots, OfMembersThatDoNotAnswerAreTaken) {
    WireMember stopped{own_loopback(18)};
    ASSERT_THAT(stopped.hears_where_it_is(), StartsWith("slot "));
    ASSERT_TRUE(stopped.process.stop());
    OnWire one{own_loopback(18)};
    EXPECT_TRUE(one.port->is_private());
    stopped.process.resume();
}

TEST(WireSlots, AreTakenWhereSomebodyHasTheirNameAndDoesNotListen) {
    const std::uint32_t ip = own_loopback(19);
    const std::string name =
        "millrace-wire/" + std::to_string(geteuid()) + "/" + soft::IpAddress{ip}.words();
    const soft::Descriptor squatter{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    ASSERT_EQ(::bind(squatter.get(), reinterpret_cast<const sockaddr*>(&address),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
              0);
    OnWire one{ip};
    EXPECT_TRUE(one.port->is_private());
}

TEST(WireSlots, AreLeasedAsTheyAreWantedOrNotAtAll) {
    const auto first = soft::WireSlots::join(own_loopback(20), 17);
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->slot(), 17U);
    std::thread member{[&] {
        for (bool wants = true; wants;) {
            pollfd door{first->door(), POLLIN, 0};
            wants = ::poll(&door, 1, 1000) > 0;
            first->admit();
        }
    }};
    EXPECT_EQ(soft::WireSlots::join(own_loopback(20), 17), nullptr);
    const auto other = soft::WireSlots::join(own_loopback(20), 18);
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(other->slot(), 18U);
    member.join();
}

TEST(WireSlots, AreNotAForkedChilds) {
    OnWire one{own_loopback(12)};
    OnWire elsewhere{own_loopback(13)};
    const std::uint32_t ip = own_loopback(12);
    EXPECT_EQ(in_forked_child([&](Complaints& complaints) {
                  complaints.unless(!one.port->usable(), "it is usable");
                  complaints.unless(!compose(*one.port->route(elsewhere.port->own()), 7, "x"),
                                    "it composes");
                  complaints.unless(one.port->drain(0), "another thread is at it");
                  OnWire own{ip};  // its own, like any other process
                  complaints.unless(own.port->slot() != one.port->slot(), "it has the parent's");
              }),
              "");
    elsewhere.send_to(one, "still there");
    EXPECT_THAT(one.inbox.wait_for(1), ElementsAre("still there"));
}

TEST(WireSlots, OfAnotherUserAreTakenAndThePortIsPrivate) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
    OnWire one{own_loopback(14)};
    ASSERT_FALSE(one.port->is_private());
    const std::uint32_t ip = own_loopback(14);
    EXPECT_EQ(in_forked_child([&](Complaints& complaints) {
                  complaints.unless(setgid(65534) == 0 && setuid(65534) == 0, "it is root");
                  OnWire other{ip};
                  complaints.unless(other.port->is_private(), "it is a member");
                  complaints.unless(other.port->own().port != 4791, "it has the public port");
              }),
              "");
}

TEST(WirePorts, ArePrivateWhereAnotherProgramHasThePublicOne) {
    const std::uint32_t ip = own_loopback(15);
    const soft::Descriptor taken = soft::wire_socket({ip, 4791}, false);
    ASSERT_TRUE(taken);
    OnWire one{ip};
    OnWire other{ip};
    EXPECT_TRUE(one.port->is_private());
    EXPECT_NE(one.port->own().port, other.port->own().port);
    EXPECT_EQ(soft::udp_address_of(one.port->gid()), one.port->own());
    one.send_to(other, "privately");
    EXPECT_THAT(other.inbox.wait_for(1), ElementsAre("privately"));
    try {
        OnWire named_so{named(ip, 4791)};
        FAIL() << "it was taken";
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("EADDRINUSE"));
        EXPECT_THAT(error.remedy(), HasSubstr("name another one"));
    }
}

TEST(WirePorts, ArePrivateBesideAStrangerWhoSharesThePublicOne) {
    const std::uint32_t ip = own_loopback(16);
    const soft::Descriptor stranger = soft::wire_socket({ip, 4791}, true);
    ASSERT_TRUE(stranger);
    OnWire one{ip};
    EXPECT_TRUE(one.port->is_private());
}

TEST(WirePorts, OfIpv6ArePublicOrNone) {
    try {
        const OnWire one{{soft::WireChoice::Kind::automatic, {*soft::IpAddress::parse("::1"), 77}}};
        FAIL() << "it has port 77";
    } catch (const base::Error& error) {
        EXPECT_THAT(error.remedy(), HasSubstr("over IPv6 the wire has no other"));
    }
}

TEST(WirePorts, AreTheNamedOnes) {
    const std::uint32_t ip = own_loopback(17);
    std::uint16_t port = 0;
    {
        const OnWire any{named(ip, 0)};
        port = static_cast<std::uint16_t>(20'000 + (any.qpn & 0xfff));
    }
    OnWire one{named(ip, port)};
    EXPECT_TRUE(one.port->is_private());
    EXPECT_EQ(one.port->own(), (soft::UdpAddress{ip, port}));
}

}  // namespace
}  // namespace millrace::test
