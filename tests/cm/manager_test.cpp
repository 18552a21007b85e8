// The commands of librdmacm, written into channels as it writes them, both ends in one process:
// answers, errnos, events and their counts, descriptors, forks.
#include "manager.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "millrace/cm/survey.hpp"
#include "program.hpp"
#include "support/child_process.hpp"

namespace millrace::cm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Commands : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        setenv("MILLRACE_FABRIC", ("cm-test-" + std::to_string(getpid())).c_str(), 1);
    }
    void TearDown() override {
        server.close();
        client.close();
        auto left = taken_ports();
        std::erase_if(left,
                      [](const auto& one) { return one.fabric != getenv("MILLRACE_FABRIC"); });
        EXPECT_THAT(left, IsEmpty());
    }

    std::uint32_t listener(std::uint32_t backlog = 0) {
        const std::uint32_t id = server.create(1);
        EXPECT_EQ(server.bind(id, address("0.0.0.0", port)), 0);
        EXPECT_EQ(server.listen(id, backlog), 0);
        return id;
    }
    struct Connected {
        std::uint32_t active;   ///< uid 2
        std::uint32_t passive;  ///< uid 3
    };
    Connected connected() {
        const std::uint32_t active = client.request(2, port, "hello");
        const auto request = server.event();
        EXPECT_EQ(request.event, connect_request);
        EXPECT_EQ(server.accept(request.id, 3, "welcome"), 0);
        EXPECT_EQ(client.event().event, connect_response);
        EXPECT_EQ(client.confirm(active), 0);
        const auto told = server.event();
        EXPECT_EQ(told.event, established);
        EXPECT_EQ(told.uid, 3U);
        return {active, request.id};
    }

    Program server;
    Program client;
};

TEST_F(Commands, ConnectTwoProgramsAndEndBoth) {
    listener();
    const std::uint32_t active = client.request(2, port, "hello");
    const auto request = server.event();
    ASSERT_EQ(request.event, connect_request);
    EXPECT_EQ(request.uid, 1U);
    EXPECT_EQ(request.param.conn.qp_num, 0x1234U);
    EXPECT_EQ(request.param.conn.responder_resources, 2);  // what the other end wants to have
    EXPECT_EQ(request.param.conn.initiator_depth, 3);
    EXPECT_STREQ(reinterpret_cast<const char*>(request.param.conn.private_data), "hello");
    ASSERT_EQ(server.accept(request.id, 3, "welcome"), 0);
    const auto response = client.event();
    EXPECT_EQ(response.event, connect_response);
    EXPECT_STREQ(reinterpret_cast<const char*>(response.param.conn.private_data), "welcome");
    ASSERT_EQ(client.confirm(active), 0);
    EXPECT_EQ(server.event().event, established);
    ASSERT_EQ(client.disconnect(active), 0);
    EXPECT_EQ(server.event().event, disconnected);
    EXPECT_FALSE(client.is_readable());  // until the other program disconnects, too
    ASSERT_EQ(server.disconnect(request.id), 0);
    EXPECT_EQ(client.event().event, disconnected);
    EXPECT_EQ(client.destroy(active), 4);
    EXPECT_EQ(server.destroy(request.id), 2);
}

TEST_F(Commands, TellQueuePairsOfEachOther) {
    listener();
    const auto ends = connected();
    ib_uverbs_qp_attr there{};
    ib_uverbs_qp_attr here{};
    ASSERT_EQ(client.queue_pair(ends.active, IBV_QPS_INIT, there), 0);
    EXPECT_EQ(there.qp_attr_mask,
              unsigned{IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS});
    EXPECT_EQ(there.qp_access_flags, unsigned{IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                              IBV_ACCESS_REMOTE_ATOMIC});
    ASSERT_EQ(client.queue_pair(ends.active, IBV_QPS_RTS, there), 0);
    ASSERT_EQ(server.queue_pair(ends.passive, IBV_QPS_RTR, here), 0);
    EXPECT_EQ(here.dest_qp_num, 0x1234U);
    EXPECT_EQ(here.rq_psn, there.sq_psn);
    EXPECT_EQ(here.ah_attr.port_num, 1);
    ASSERT_EQ(client.queue_pair(ends.active, IBV_QPS_RTR, there), 0);
    ASSERT_EQ(server.queue_pair(ends.passive, IBV_QPS_RTS, here), 0);
    EXPECT_EQ(there.rq_psn, here.sq_psn);
    EXPECT_EQ(client.queue_pair(ends.active, IBV_QPS_SQD, there), EINVAL);
    EXPECT_EQ(client.queue_pair(ends.active, 77, there), EINVAL);
}

TEST_F(Commands, GiveQueuePairsTheAckTimeoutThatTheProgramWants) {
    listener();
    const std::uint32_t active = client.create(2);
    ASSERT_EQ(client.set_option(active, RDMA_OPTION_ID_ACK_TIMEOUT, 21, 1), 0);
    ASSERT_EQ(client.resolve(active, address("127.0.0.1", port)), 0);
    ASSERT_EQ(client.resolve_route(active), 0);
    ASSERT_EQ(client.connect(active), 0);
    const auto request = server.event();
    ib_uverbs_qp_attr here{};
    ASSERT_EQ(server.queue_pair(request.id, IBV_QPS_RTS, here), 0);
    EXPECT_EQ(here.timeout, 21);  // the request says how long its sender waits
    ASSERT_EQ(server.set_option(request.id, RDMA_OPTION_ID_ACK_TIMEOUT, 9, 1), 0);
    ASSERT_EQ(server.queue_pair(request.id, IBV_QPS_RTS, here), 0);
    EXPECT_EQ(here.timeout, 9);
    ASSERT_EQ(server.accept(request.id, 3), 0);
    while (client.event().event != connect_response) {
    }
    ib_uverbs_qp_attr there{};
    ASSERT_EQ(client.queue_pair(active, IBV_QPS_RTS, there), 0);
    EXPECT_EQ(there.timeout, 21);
    EXPECT_EQ(client.set_option(active, RDMA_OPTION_ID_ACK_TIMEOUT, 32, 1), EINVAL);
    const std::uint32_t datagrams = client.create(4, RDMA_PS_UDP);
    EXPECT_EQ(client.set_option(datagrams, RDMA_OPTION_ID_ACK_TIMEOUT, 21, 1), EINVAL);
}

TEST_F(Commands, RefuseWhatTheKernelRefuses) {
    rdma_ucm_create_id_resp answer{};
    EXPECT_EQ(client.command(23, rdma_ucm_disconnect{}), EINVAL);
    EXPECT_EQ(client.command(RDMA_USER_CM_CMD_GET_OPTION, rdma_ucm_disconnect{}), ENOSYS);
    EXPECT_EQ(client.command(RDMA_USER_CM_CMD_CREATE_ID, rdma_ucm_create_id{}), ENOSPC);
    rdma_ucm_create_id wrong{};
    wrong.ps = 0x4711;
    EXPECT_EQ(client.command(RDMA_USER_CM_CMD_CREATE_ID, wrong, answer), EINVAL);
    const char few[4] = {};
    EXPECT_EQ(Manager::own().write_command(client.descriptor(), few, sizeof few), -1);
    EXPECT_EQ(errno, EINVAL);
    const rdma_ucm_cmd_hdr longer{RDMA_USER_CM_CMD_LISTEN, 8, 0};  // than what was written
    EXPECT_EQ(Manager::own().write_command(client.descriptor(), &longer, sizeof longer), -1);
    EXPECT_EQ(errno, EINVAL);

    const std::uint32_t id = client.create(2);
    EXPECT_EQ(client.destroy(id + 1), -ENOENT);
    EXPECT_EQ(server.destroy(id), -EINVAL);  // it is another channel's
    EXPECT_EQ(client.connect(id), EINVAL);   // nothing is resolved
    EXPECT_EQ(client.resolve_route(id), EINVAL);
    EXPECT_EQ(client.accept(id, 2), EINVAL);
    EXPECT_EQ(client.reject(id), EINVAL);
    EXPECT_EQ(client.disconnect(id), EINVAL);
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(client.queue_pair(id, IBV_QPS_INIT, attributes), EINVAL);  // of no device
    EXPECT_EQ(client.bind(id, {}), EINVAL);                              // of no family
    EXPECT_EQ(client.bind(id, address("192.0.2.254", 0)), EADDRNOTAVAIL);
    EXPECT_EQ(client.bind(id, address("239.1.2.3", 0)), EADDRNOTAVAIL);
    EXPECT_EQ(client.bind(id, address("127.0.0.1", 0)), 0);
    EXPECT_EQ(client.bind(id, address("127.0.0.1", 0)), EINVAL);  // it is bound
    EXPECT_EQ(client.listen(id), 0);
    EXPECT_EQ(client.listen(id), EINVAL);
    EXPECT_EQ(client.set_option(id, 99, 1), ENOSYS);
    rdma_ucm_set_option nowhere{8, id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 1};
    EXPECT_EQ(client.command(RDMA_USER_CM_CMD_SET_OPTION, nowhere), EFAULT);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_REUSEADDR, 1, 1), EINVAL);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);  // it listens
}

TEST_F(Commands, JoinAGroupAndLeaveIt) {
    const std::uint32_t id = client.create(2, RDMA_PS_UDP);
    ASSERT_EQ(client.resolve(id, address("239.1.2.3", 0)), 0);
    EXPECT_EQ(client.event().event, address_resolved);
    rdma_ucm_create_id_resp joined{};
    ASSERT_EQ(client.join(id, 7, address("239.1.2.3", 0), joined), 0);
    const auto event = client.event();
    EXPECT_EQ(event.event, multicast_join);
    EXPECT_EQ(event.status, 0U);
    EXPECT_EQ(event.uid, 7U) << "librdmacm's pointer to the membership";
    EXPECT_EQ(event.id, joined.id);
    const auto& group = event.param.ud;
    EXPECT_EQ(group.qp_num, 0xffffffU);
    EXPECT_EQ(group.qkey, 0x01234567U);
    EXPECT_EQ(group.ah_attr.is_global, 1);
    EXPECT_EQ(group.ah_attr.port_num, 1);
    EXPECT_THAT(group.ah_attr.grh.dgid,
                ElementsAre(0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3));
    EXPECT_EQ(server.leave(joined.id), -EINVAL);  // it is another channel's
    EXPECT_EQ(client.leave(joined.id), 1) << "as many events as librdmacm waits to be acknowledged";
    EXPECT_EQ(client.leave(joined.id), -ENOENT);
    EXPECT_EQ(client.destroy(id), 2) << "the group's event is the id's, too";
}

TEST_F(Commands, ForgetAGroupsEventWithTheGroupOrTheId) {
    const std::uint32_t id = client.create(2, RDMA_PS_UDP);
    ASSERT_EQ(client.bind(id, address("127.0.0.1", 0)), 0);
    rdma_ucm_create_id_resp first{};
    rdma_ucm_create_id_resp second{};
    ASSERT_EQ(client.join(id, 7, address("239.1.2.3", 0), first), 0);
    ASSERT_EQ(client.join(id, 8, address("239.1.2.4", 0), second), 0);
    EXPECT_EQ(client.leave(first.id), 0);
    EXPECT_EQ(client.event().uid, 8U);
    EXPECT_FALSE(client.is_readable());
    ASSERT_EQ(client.join(id, 9, address("239.1.2.5", 0), first), 0);
    EXPECT_TRUE(client.is_readable());
    EXPECT_EQ(client.destroy(id), 1);
    EXPECT_FALSE(client.is_readable());
    EXPECT_EQ(client.leave(first.id), -ENOENT);
    EXPECT_EQ(client.leave(second.id), -ENOENT);
}

TEST_F(Commands, RefuseToJoinAsTheKernelDoes) {
    rdma_ucm_create_id_resp answer{};
    const auto group = address("239.1.2.3", 0);
    const std::uint32_t connected_type = client.create(1);
    ASSERT_EQ(client.bind(connected_type, address("127.0.0.1", 0)), 0);
    EXPECT_EQ(client.join(connected_type, 7, group, answer), EINVAL);
    const std::uint32_t id = client.create(2, RDMA_PS_UDP);
    EXPECT_EQ(client.join(id, 7, group, answer), EINVAL);  // it has no device
    ASSERT_EQ(client.bind(id, address("127.0.0.1", 0)), 0);
    EXPECT_EQ(client.join(id, 7, address("0.0.0.0", 0), answer), EINVAL);
    EXPECT_EQ(client.join(id, 7, sockaddr_in6{}, answer), EINVAL);
    EXPECT_EQ(client.join(id + 9, 7, group, answer), ENOENT);
    EXPECT_EQ(client.command(RDMA_USER_CM_CMD_JOIN_IP_MCAST, rdma_ucm_join_ip_mcast{}), ENOSPC);
    rdma_ucm_join_mcast flagged{};
    flagged.id = id;
    flagged.addr_size = sizeof(sockaddr_in);
    std::memcpy(&flagged.addr, &group, sizeof(sockaddr_in));
    flagged.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
    EXPECT_EQ(client.command(RDMA_USER_CM_CMD_JOIN_MCAST, flagged, answer), EINVAL);
    flagged.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    EXPECT_EQ(client.command(RDMA_USER_CM_CMD_JOIN_MCAST, flagged, answer), 0);
    EXPECT_EQ(client.event().id, answer.id);
}

TEST_F(Commands, RefusePrivateDataForWhichThereIsNoRoom) {
    listener();
    const std::uint32_t id = client.create(2);
    ASSERT_EQ(client.resolve(id, address("127.0.0.1", port)), 0);
    ASSERT_EQ(client.resolve_route(id), 0);
    EXPECT_EQ(client.connect(id, std::string(57, 'x')), EINVAL);
    EXPECT_EQ(client.connect(id, std::string(56, 'x')), 0);  // it may be tried again
    const auto request = server.event();
    EXPECT_EQ(request.event, connect_request);
    EXPECT_EQ(server.reject(request.id, std::string(149, 'x')), EINVAL);
    EXPECT_EQ(server.reject(request.id, std::string(148, 'x')), 0);
    while (client.event().event != rejected) {
    }
    client.request(4, port);
    EXPECT_EQ(server.accept(server.event().id, 3, std::string(197, 'x')), EINVAL);
    const auto refused = client.event();  // it does not wait for an answer that will not come
    EXPECT_EQ(refused.event, rejected);
    EXPECT_EQ(refused.status, 28U);
}

TEST_F(Commands, MakeTheDescriptorReadableWhileAnEventIsQueued) {
    rdma_ucm_event_resp event{};
    ASSERT_EQ(::fcntl(client.descriptor(), F_SETFL, O_NONBLOCK), 0);
    EXPECT_FALSE(client.is_readable());
    EXPECT_EQ(client.get_event(event), EAGAIN);
    const std::uint32_t id = client.create(2);
    ASSERT_EQ(client.resolve(id, address("127.0.0.1", port)), 0);
    ASSERT_EQ(client.resolve_route(id), 0);
    EXPECT_TRUE(client.is_readable());
    EXPECT_EQ(client.get_event(event), 0);
    EXPECT_TRUE(client.is_readable());
    EXPECT_EQ(client.get_event(event), 0);
    EXPECT_FALSE(client.is_readable());
    EXPECT_EQ(client.get_event(event), EAGAIN);
}

TEST_F(Commands, RingForEachEventForWhoWatchesByEdges) {
    const soft::Descriptor watch{::epoll_create1(EPOLL_CLOEXEC)};
    epoll_event edge{};
    edge.events = EPOLLIN | EPOLLET;
    ASSERT_EQ(::epoll_ctl(watch.get(), EPOLL_CTL_ADD, client.descriptor(), &edge), 0);
    const std::uint32_t id = client.create(2);
    ASSERT_EQ(client.resolve(id, address("127.0.0.1", port)), 0);
    EXPECT_EQ(::epoll_wait(watch.get(), &edge, 1, 0), 1);
    EXPECT_EQ(::epoll_wait(watch.get(), &edge, 1, 0), 0);
    ASSERT_EQ(client.resolve_route(id), 0);
    EXPECT_EQ(::epoll_wait(watch.get(), &edge, 1, 0), 1);
}

TEST_F(Commands, ForgetWhatWasNotTakenOfAnIdThatEnds) {
    const std::uint32_t id = client.create(2);
    ASSERT_EQ(client.resolve(id, address("127.0.0.1", port)), 0);
    EXPECT_EQ(client.event().event, address_resolved);
    ASSERT_EQ(client.resolve_route(id), 0);
    EXPECT_EQ(client.destroy(id), 1);  // librdmacm waits until so many are acknowledged
    EXPECT_FALSE(client.is_readable());
}

TEST_F(Commands, MoveAnIdWithItsEventsToAnotherChannel) {
    const std::uint32_t id = client.create(2);
    const std::uint32_t other = client.create(9);
    ASSERT_EQ(client.resolve(id, address("127.0.0.1", port)), 0);
    EXPECT_EQ(client.event().event, address_resolved);
    ASSERT_EQ(client.resolve(other, address("127.0.0.1", port)), 0);
    ASSERT_EQ(client.resolve_route(id), 0);
    rdma_ucm_migrate_id body{};
    body.id = id;
    body.fd = static_cast<std::uint32_t>(client.descriptor());
    rdma_ucm_migrate_resp answer{};
    ASSERT_EQ(server.command(RDMA_USER_CM_CMD_MIGRATE_ID, body, answer), 0);
    EXPECT_EQ(answer.events_reported, 1U);
    const auto moved = server.event();
    EXPECT_EQ(moved.event, route_resolved);
    EXPECT_EQ(moved.uid, 2U);
    EXPECT_FALSE(server.is_readable());
    EXPECT_EQ(client.event().uid, 9U);
    EXPECT_FALSE(client.is_readable());
    EXPECT_EQ(client.destroy(id), -EINVAL);
    EXPECT_EQ(server.destroy(id), 2);
    body.fd = 0;
    EXPECT_EQ(server.command(RDMA_USER_CM_CMD_MIGRATE_ID, body, answer), ENOENT);
}

TEST_F(Commands, RejectWhoAsksForAPortThatNobodyHas) {
    client.request(2, port);
    const auto event = client.event();
    EXPECT_EQ(event.event, rejected);
    EXPECT_EQ(event.status, 8U);  // invalid service id
}

TEST_F(Commands, FindAListenerThatIsAMomentLate) {
    client.request(2, port);
    listener();
    EXPECT_EQ(server.event().event, connect_request);
}

TEST_F(Commands, LeaveAnIdThatIsEndedWhileNobodyListens) {
    const std::uint32_t id = client.request(2, port);
    EXPECT_EQ(client.destroy(id), 2);
    listener();
    client.request(3, port);
    EXPECT_EQ(server.event().event, connect_request);
    EXPECT_FALSE(server.is_readable());
}

TEST_F(Commands, RejectWithWhatTheProgramSays) {
    listener();
    client.request(2, port);
    const auto request = server.event();
    ASSERT_EQ(server.reject(request.id, "no"), 0);
    const auto event = client.event();
    EXPECT_EQ(event.event, rejected);
    EXPECT_EQ(event.status, 28U);  // consumer defined
    EXPECT_STREQ(reinterpret_cast<const char*>(event.param.conn.private_data), "no");
}

TEST_F(Commands, RejectRequestsOfAListenerThatEnds) {
    const std::uint32_t id = listener();
    client.request(2, port);
    pollfd at{server.descriptor(), POLLIN, 0};
    ASSERT_EQ(::poll(&at, 1, static_cast<int>(test::patience.count())), 1);
    EXPECT_EQ(server.destroy(id), 0);
    EXPECT_FALSE(server.is_readable());
    EXPECT_EQ(client.event().event, rejected);
}

TEST_F(Commands, KeepRequestsBeyondTheBacklogUntilThereIsRoom) {
    listener(1);
    constexpr int many = 300;
    for (int i = 0; i < many; ++i) client.request(2, port);
    for (int i = 0; i < many; ++i) {
        const auto request = server.event();
        ASSERT_EQ(request.event, connect_request) << i;
        ASSERT_EQ(server.reject(request.id), 0);
        ASSERT_EQ(client.event().status, 28U) << i;
    }
    EXPECT_FALSE(server.is_readable());
}

TEST_F(Commands, AreNotThoseOfAnotherFileOfAChannelsNumber) {
    Program other;
    const int number = other.descriptor();
    const int file = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(::dup3(file, number, O_CLOEXEC), number);  // as if the program had closed it
    ::close(file);
    EXPECT_FALSE(Manager::own().has_channel(number));
    EXPECT_TRUE(Manager::own().has_channel(client.descriptor()));
}

TEST_F(Commands, TellAnIdOfTheEndOfItsPeers) {
    listener();
    const auto ends = connected();
    EXPECT_EQ(client.destroy(ends.active), 3);
    const auto event = server.event();
    EXPECT_EQ(event.event, disconnected);
    EXPECT_EQ(event.uid, 3U);
}

TEST_F(Commands, EndTheIdsOfAChannelThatIsClosed) {
    listener();
    connected();
    server.close();
    EXPECT_EQ(client.event().event, disconnected);
    Program next;
    const std::uint32_t id = next.create(1);
    EXPECT_EQ(next.bind(id, address("0.0.0.0", port)), 0);
}

TEST_F(Commands, TellOfAHostThatTheDeviceDoesNotReach) {
    const std::uint32_t id = client.create(2);
    ASSERT_EQ(client.resolve(id, address("192.0.2.254", port)), 0);
    const auto event = client.event();
    EXPECT_EQ(event.event, address_error);
    EXPECT_EQ(static_cast<int>(event.status), -EHOSTUNREACH);
}

// --- ports --------------------------------------------------------------------------------------

TEST_F(Commands, GiveAPortOnlyOnce) {
    const std::uint32_t all = server.create(1);
    const std::uint32_t one = client.create(2);
    ASSERT_EQ(server.bind(all, address("0.0.0.0", port)), 0);
    EXPECT_EQ(client.bind(one, address("0.0.0.0", port)), EADDRNOTAVAIL);
    EXPECT_EQ(client.bind(one, address("127.0.0.1", port)), EADDRNOTAVAIL);
    EXPECT_EQ(server.destroy(all), 0);
    EXPECT_EQ(client.bind(one, address("127.0.0.1", port)), 0);
    const std::uint32_t next = server.create(1);
    EXPECT_EQ(server.bind(next, address("127.0.0.1", port)), EADDRINUSE);
    EXPECT_EQ(server.bind(next, address("0.0.0.0", port)), EADDRNOTAVAIL);
    EXPECT_EQ(server.bind(next, address("127.0.0.2", port)), 0);
}

TEST_F(Commands, ShareAPortUntilOneListens) {
    const std::uint32_t one = server.create(1);
    const std::uint32_t other = client.create(2);
    ASSERT_EQ(server.set_option(one, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    ASSERT_EQ(client.set_option(other, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    ASSERT_EQ(server.bind(one, address("127.0.0.1", port)), 0);
    ASSERT_EQ(client.bind(other, address("127.0.0.1", port)), 0);
    EXPECT_EQ(server.listen(one), EADDRINUSE);
    EXPECT_EQ(client.destroy(other), 0);
    EXPECT_EQ(server.listen(one), 0);
    client.request(2, port);
    EXPECT_EQ(server.event().event, connect_request);
}

TEST_F(Commands, ShareAPortThatNobodyNamed) {
    const std::uint32_t one = server.create(1);
    const std::uint32_t other = client.create(2);
    ASSERT_EQ(server.set_option(one, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    ASSERT_EQ(server.bind(one, address("127.0.0.1", 0)), 0);
    rdma_ucm_query body{};
    body.id = one;
    rdma_ucm_query_route_resp answer{};
    ASSERT_EQ(server.command(RDMA_USER_CM_CMD_QUERY_ROUTE, body, answer), 0);
    const std::uint16_t at = ntohs(answer.src_addr.sin6_port);
    EXPECT_EQ(answer.dst_addr.sin6_family, AF_INET);
    EXPECT_EQ(client.bind(other, address("127.0.0.1", at)), EADDRINUSE);
    ASSERT_EQ(client.set_option(other, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    EXPECT_EQ(client.bind(other, address("127.0.0.1", at)), 0);
}

TEST_F(Commands, ShareAPortThatIsBound) {
    const std::uint32_t one = server.create(1);
    const std::uint32_t other = client.create(2);
    ASSERT_EQ(server.bind(one, address("127.0.0.1", port)), 0);
    ASSERT_EQ(client.set_option(other, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    EXPECT_EQ(client.bind(other, address("127.0.0.1", port)), EADDRINUSE);
    ASSERT_EQ(server.set_option(one, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    EXPECT_EQ(client.bind(other, address("127.0.0.1", port)), 0);
    EXPECT_EQ(server.listen(one), EADDRINUSE);
}

TEST_F(Commands, GoPastAnotherUsersListener) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user for a moment";
    listener();
    const std::string name = std::string{"millrace-cm/0/"} + getenv("MILLRACE_FABRIC") +
                             "/tcp/7f000001/" + std::to_string(port);
    sockaddr_un exact{};
    exact.sun_family = AF_UNIX;
    std::memcpy(exact.sun_path + 1, name.data(), name.size());
    const soft::Descriptor foreign{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    ASSERT_EQ(::bind(foreign.get(), reinterpret_cast<const sockaddr*>(&exact),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
              0);
    ASSERT_EQ(seteuid(65534), 0);
    const int listens = ::listen(foreign.get(), 8);
    ASSERT_EQ(seteuid(0), 0);
    ASSERT_EQ(listens, 0);
    client.request(2, port);
    EXPECT_EQ(server.event().event, connect_request);
}

TEST_F(Commands, ChooseAPortWhereNoneIsNamed) {
    const std::uint32_t id = client.create(2);
    ASSERT_EQ(client.bind(id, address("127.0.0.1", 0)), 0);
    rdma_ucm_query body{};
    body.id = id;
    rdma_ucm_query_route_resp answer{};
    ASSERT_EQ(client.command(RDMA_USER_CM_CMD_QUERY_ROUTE, body, answer), 0);
    EXPECT_NE(answer.src_addr.sin6_port, 0);
    EXPECT_NE(answer.node_guid, 0U);
    EXPECT_EQ(answer.num_paths, 0U);
}

TEST_F(Commands, AreThoseOfItsFabric) {
    listener();
    const std::string fabric = getenv("MILLRACE_FABRIC");
    setenv("MILLRACE_FABRIC", (fabric + "-other").c_str(), 1);
    client.request(2, port);
    setenv("MILLRACE_FABRIC", fabric.c_str(), 1);
    EXPECT_EQ(client.event().event, rejected);
}

// --- waiting and forks --------------------------------------------------------------------------

TEST_F(Commands, WakeWhoWaitsForAnEvent) {
    listener();
    rdma_ucm_event_resp event{};
    int error = -1;
    std::thread waiter{[&] { error = server.get_event(event); }};
    client.request(2, port);
    waiter.join();
    EXPECT_EQ(error, 0);
    EXPECT_EQ(event.event, connect_request);
}

TEST_F(Commands, LetAWaitBeCancelled) {
    // As rping ends its thread; what it was at is given up, and the channel goes on.
    std::thread waiter{[&] {
        rdma_ucm_event_resp event{};
        static_cast<void>(server.get_event(event));
    }};
    pthread_cancel(waiter.native_handle());
    waiter.join();
    listener();
    client.request(2, port);
    EXPECT_EQ(server.event().event, connect_request);
}

TEST_F(Commands, AreRefusedInAChildAndLeaveTheParentsConnectionsAlone) {
    listener();
    const auto ends = connected();
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = server.disconnect(ends.passive) == EACCES;
        server.close();
        Program own;
        const bool works = own.bind(own.create(1), address("127.0.0.1", 0)) == 0;
        _exit(refused && works ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(client.is_readable());
    EXPECT_EQ(client.disconnect(ends.active), 0);
    EXPECT_EQ(server.event().event, disconnected);
}

// The child of a fork would keep its parent's sockets open, and nobody would hear of its end.
MILLRACE_CHILD(connects_and_leaves_a_child) {
    setenv("MILLRACE_FABRIC", arguments[0].c_str(), 1);
    Program own;
    const std::uint32_t id = own.request(2, port);
    if (own.event().event != connect_response || own.confirm(id) != 0) return 1;
    if (fork() == 0) {
        while (test::hear()) {
        }
        _exit(0);
    }
    test::say("connected");
    while (test::hear()) {
    }
    return 0;
}

TEST_F(Commands, TellOfTheEndOfAProcessWhoseChildLives) {
    listener();
    auto other =
        test::ChildProcess::start("connects_and_leaves_a_child", {getenv("MILLRACE_FABRIC")});
    const auto request = server.event();
    ASSERT_EQ(request.event, connect_request);
    ASSERT_EQ(server.accept(request.id, 3), 0);
    ASSERT_EQ(server.event().event, established);
    ASSERT_EQ(other.read_line(), "connected");
    other.kill();
    EXPECT_EQ(server.event().event, disconnected);
}

}  // namespace
}  // namespace millrace::cm
