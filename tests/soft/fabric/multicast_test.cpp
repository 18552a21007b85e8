// Multicast groups: who gets a message that is sent to one.
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>

#include "soft/station.hpp"
#include "support/child_process.hpp"

namespace millrace::test {
namespace {

/// Of the test `owner` only: others run beside it on the same fabric.
ibv_gid group(std::uint8_t number, pid_t owner = getpid()) {
    ibv_gid gid{};
    std::memcpy(&gid.raw[8], &owner, sizeof owner);
    gid.raw[0] = 0xff;
    gid.raw[1] = 0x12;
    gid.raw[15] = number;
    return gid;
}

ibv_ah* handle_of(Station& station, const ibv_gid& gid) {
    ibv_ah_attr attributes{};
    attributes.port_num = 1;
    attributes.dlid = 0xc001;
    attributes.is_global = 1;
    attributes.grh.dgid = gid;
    return station.handle(attributes);
}

constexpr std::uint32_t all_members = 0xffffff;

TEST(Multicast, ReachesEveryMemberAndNobodyElse) {
    Station station;
    std::vector<ibv_qp*> qps;
    for (int i = 0; i < 3; ++i) qps.push_back(station.datagram());
    const ibv_gid one = group(1);
    const ibv_gid two = group(2);
    ASSERT_EQ(soft::attach_mcast(qps[0], &one, 0xc001), 0);
    ASSERT_EQ(soft::attach_mcast(qps[1], &one, 0xc001), 0);
    ASSERT_EQ(soft::attach_mcast(qps[1], &one, 0xc001), 0) << "again: still one copy";
    ASSERT_EQ(soft::attach_mcast(qps[2], &two, 0xc002), 0);
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(station.receive(qps[i], i, 4096 * (i + 1), 256), 0);
        ASSERT_EQ(station.receive(qps[i], i, 4096 * (i + 1), 256), 0);
    }
    std::memset(station.memory, 9, 100);
    ASSERT_EQ(station.send_to(qps[0], handle_of(station, one), all_members, 7, 0, 100, 0), 0);
    std::map<std::uint64_t, int> copies;
    for (int i = 0; i < 2; ++i) {
        const auto wc = station.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc->byte_len, 140U);
        EXPECT_EQ(wc->src_qp, qps[0]->qp_num);
        EXPECT_NE(wc->wc_flags & IBV_WC_GRH, 0U);
        const auto* grh = reinterpret_cast<ibv_grh*>(station.memory + 4096 * (wc->wr_id + 1));
        EXPECT_EQ(std::memcmp(grh->dgid.raw, one.raw, 16), 0);
        EXPECT_EQ(station.memory[4096 * (wc->wr_id + 1) + 139], std::byte{9});
        ++copies[wc->wr_id];
    }
    EXPECT_EQ(copies, (std::map<std::uint64_t, int>{{0, 1}, {1, 1}}));
    EXPECT_TRUE(station.quiet());
    ASSERT_EQ(soft::detach_mcast(qps[0], &one, 0xc001), 0);
    ASSERT_EQ(station.send_to(qps[2], handle_of(station, one), all_members, 7, 0, 100, 0), 0);
    const auto wc = station.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 1U);
    EXPECT_TRUE(station.quiet());
    ASSERT_EQ(soft::detach_mcast(qps[1], &one, 0xc001), 0);
    ASSERT_EQ(soft::detach_mcast(qps[2], &two, 0xc002), 0);
}

TEST(Multicast, RefusesWhatIsNoGroupAndNoMember) {
    Station station;
    ibv_qp* const qp = station.datagram();
    ibv_gid own;
    ASSERT_EQ(soft::query_gid(station.context, 1, 0, &own), 0);
    EXPECT_EQ(soft::attach_mcast(qp, &own, 1), EINVAL);
    const ibv_gid one = group(1);
    EXPECT_EQ(soft::attach_mcast(station.make(IBV_QPT_RC), &one, 0xc001), EINVAL);
    EXPECT_EQ(soft::detach_mcast(qp, &one, 0xc001), EINVAL);
    ASSERT_EQ(soft::attach_mcast(qp, &one, 0xc001), 0);
    EXPECT_EQ(soft::destroy_qp(qp), EBUSY) << "still a member";
    EXPECT_EQ(soft::detach_mcast(qp, &one, 0xc001), 0);
}

TEST(Multicast, PromisesNoMoreAttachmentsThanItHas) {
    Station station;
    ibv_device_attr device{};
    ASSERT_EQ(soft::query_device(station.context, &device), 0);
    EXPECT_LE(device.max_mcast_qp_attach, device.max_total_mcast_qp_attach);
    ibv_qp* const qp = station.datagram();
    ibv_gid group{};
    group.raw[0] = 0xff;
    for (int i = 0; i < device.max_total_mcast_qp_attach; ++i) {
        group.raw[14] = static_cast<std::uint8_t>(i >> 8);
        group.raw[15] = static_cast<std::uint8_t>(i);
        ASSERT_EQ(soft::attach_mcast(qp, &group, 0), 0) << i;
    }
    group.raw[13] = 1;
    EXPECT_EQ(soft::attach_mcast(qp, &group, 0), ENOMEM);
    group.raw[13] = 0;
    for (int i = 0; i < device.max_total_mcast_qp_attach; ++i) {
        group.raw[14] = static_cast<std::uint8_t>(i >> 8);
        group.raw[15] = static_cast<std::uint8_t>(i);
        ASSERT_EQ(soft::detach_mcast(qp, &group, 0), 0) << i;
    }
}

/// Joins, leaves and receives as told.
MILLRACE_CHILD(multicast_member) {
    Station station;
    ibv_qp* const qp = station.datagram();
    const ibv_gid one = group(1, getppid());
    say("ready");
    while (const auto line = hear()) {
        if (*line == "join") {
            for (int i = 0; i < 4; ++i) {
                if (station.receive(qp, 1, 4096, 256) != 0) return 2;
            }
            say(std::to_string(soft::attach_mcast(qp, &one, 0xc001)));
        } else if (*line == "leave") {
            say(std::to_string(soft::detach_mcast(qp, &one, 0xc001)));
        } else {
            const auto wc = station.complete();
            say(wc ? std::to_string(wc->status) + ' ' + std::to_string(wc->src_qp) : "none");
        }
    }
    return 0;
}

std::string ask(ChildProcess& child, const std::string& what) {
    return child.write_line(what) ? child.read_line().value_or("gone") : "gone";
}

TEST(Multicast, CrossesProcessesThatJoinAndLeaveAndDie) {
    Station station;
    ibv_qp* const qp = station.datagram();
    const ibv_gid one = group(1);
    ibv_ah* const ah = handle_of(station, one);
    const std::string good = "0 " + std::to_string(qp->qp_num);
    const auto send = [&] { return station.send_to(qp, ah, all_members, 1, 0, 16, 0); };
    ASSERT_EQ(send(), 0) << "there is nobody yet";
    ChildProcess first = ChildProcess::start("multicast_member");
    ASSERT_EQ(first.read_line(), "ready");
    ASSERT_EQ(ask(first, "join"), "0");
    ASSERT_EQ(send(), 0);
    EXPECT_EQ(ask(first, "receive"), good);
    ChildProcess second = ChildProcess::start("multicast_member");
    ASSERT_EQ(second.read_line(), "ready");
    ASSERT_EQ(ask(second, "join"), "0");
    ASSERT_EQ(send(), 0);
    EXPECT_EQ(ask(first, "receive"), good);
    EXPECT_EQ(ask(second, "receive"), good);
    first.kill_and_wait();
    ASSERT_EQ(send(), 0);
    EXPECT_EQ(ask(second, "receive"), good);
    ChildProcess third = ChildProcess::start("multicast_member");  // has the number of the dead one
    ASSERT_EQ(third.read_line(), "ready");
    ASSERT_EQ(ask(third, "join"), "0");
    ASSERT_EQ(send(), 0);
    EXPECT_EQ(ask(second, "receive"), good);
    EXPECT_EQ(ask(third, "receive"), good);
    ASSERT_EQ(ask(second, "leave"), "0");
    ASSERT_EQ(send(), 0);
    EXPECT_EQ(ask(third, "receive"), good);
    ASSERT_EQ(ask(third, "leave"), "0");
}

}  // namespace
}  // namespace millrace::test
