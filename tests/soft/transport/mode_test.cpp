// What MILLRACE_SOFT_MODE may say, and that both ends of a connection must say the same.
#include "transport/mode.hpp"

#include "millrace/base/error.hpp"
#include "soft/endpoint.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

using soft::CableSettings;
using soft::Mode;
using soft::ModeKind;
using soft::parse_mode;

TEST(SoftMode, IsFastUnlessSomethingElseIsSaid) {
    EXPECT_EQ(parse_mode("fast"), Mode{});
    const ModeScope nothing{""};
    EXPECT_EQ(soft::mode_of_environment(), Mode{});
}

TEST(SoftMode, ShapedHasDefaultsForEverything) {
    const Mode mode = parse_mode("shaped");
    EXPECT_EQ(mode.kind, ModeKind::shaped);
    EXPECT_EQ(mode.cable.bits_per_second, 10'000'000'000U);
    EXPECT_EQ(mode.cable.latency_ns, 1'000);
    EXPECT_EQ(mode.cable.jitter_ns, 0);
    EXPECT_EQ(mode.cable.mtu, 4096U);
    EXPECT_GE(mode.cable.packets_in_flight, 64U);
    EXPECT_EQ(parse_mode("shaped:"), mode);
}

TEST(SoftMode, ShapedTakesEverySetting) {
    const CableSettings cable =
        parse_mode("shaped:2.5g,latency=24ms,jitter=1.5us,inflight=7,mtu=1024,header=30,seed=9")
            .cable;
    EXPECT_EQ(cable.bits_per_second, 2'500'000'000U);
    EXPECT_EQ(cable.latency_ns, 24'000'000);
    EXPECT_EQ(cable.jitter_ns, 1'500);
    EXPECT_EQ(cable.packets_in_flight, 7U);
    EXPECT_EQ(cable.mtu, 1024U);
    EXPECT_EQ(cable.header, 30U);
    EXPECT_EQ(cable.seed, 9U);
    EXPECT_EQ(parse_mode("shaped:unlimited,latency=0").cable.bits_per_second, 0U);
    EXPECT_EQ(parse_mode("shaped:latency=5ns,100m").cable.bits_per_second, 100'000'000U);
}

TEST(SoftMode, StrictHasDefaultsAndTakesEverySetting) {
    const Mode usual = parse_mode("strict");
    EXPECT_EQ(usual.kind, ModeKind::strict);
    EXPECT_EQ(usual.strict.seed, 1U);
    EXPECT_FALSE(usual.strict.in_order);
    EXPECT_EQ(parse_mode("strict:order=any"), usual);
    const Mode mode = parse_mode("strict:seed=7,delay=50us,order=increasing");
    EXPECT_EQ(mode.strict.seed, 7U);
    EXPECT_EQ(mode.strict.delay_ns, 50'000);
    EXPECT_TRUE(mode.strict.in_order);
    EXPECT_EQ(soft::describe(usual), "strict, seed 1");
    EXPECT_EQ(soft::describe(mode),
              "strict, seed 7, delays up to 50 us, bytes in increasing order");
}

TEST(SoftMode, FaultyTakesWhatShapedHasAndItsFaults) {
    const Mode mode = parse_mode(
        "faulty:40g,latency=2us,seed=3,loss=1%,rnr=2.5%,duplicate=0.5%,reorder=100%,delay=5ms,"
        "exhaust=0.01%,die=77");
    EXPECT_EQ(mode.kind, ModeKind::faulty);
    EXPECT_EQ(mode.cable.bits_per_second, 40'000'000'000U);
    EXPECT_EQ(mode.cable.latency_ns, 2'000);
    EXPECT_EQ(mode.cable.seed, 3U);
    EXPECT_EQ(mode.faults.loss, 10'000U);
    EXPECT_EQ(mode.faults.not_ready, 25'000U);
    EXPECT_EQ(mode.faults.duplicate, 5'000U);
    EXPECT_EQ(mode.faults.reorder, 1'000'000U);
    EXPECT_EQ(mode.faults.delay_ns, 5'000'000);
    EXPECT_EQ(mode.faults.exhaust, 100U);
    EXPECT_EQ(mode.faults.die, 77U);
    const Mode usual = parse_mode("faulty");
    EXPECT_EQ(usual.faults, soft::FaultSettings{});
    EXPECT_EQ(usual.cable, parse_mode("shaped").cable);
}

TEST(SoftMode, LetsALongFatLinkHoldWhatItCan) {
    // 10 Gb/s for 48 ms are 60 MB.
    EXPECT_GE(parse_mode("shaped:10g,latency=24ms").cable.packets_in_flight, 14'649U);
}

TEST(SoftMode, RefusesWhatItDoesNotUnderstandAndSaysWhatIsAllowed) {
    for (const char* wrong : {"slow",
                              "fast:10g",
                              "shaped:10",
                              "shaped:0g",
                              "shaped:10g,latency=5",
                              "shaped:-1g",
                              "shaped:10g,latency=11s",
                              "shaped:10g,mtu=1000",
                              "shaped:10g,inflight=0",
                              "shaped:10g,colour=red",
                              "shaped:10g,,",
                              "shaped:10g,seed=x",
                              "Fast",
                              "",
                              "strict:10g",
                              "strict:order=none",
                              "strict:delay=3",
                              "strict:latency=1us",
                              "shaped:loss=1%",
                              "faulty:loss=1",
                              "faulty:loss=101%",
                              "faulty:loss=-1%",
                              "faulty:die=0",
                              "faulty:delay=5"}) {
        try {
            static_cast<void>(parse_mode(wrong));
            ADD_FAILURE() << '\'' << wrong << "' was taken";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument) << wrong;
            EXPECT_NE(error.remedy().find("shaped:10g,latency=1us"), std::string::npos);
        }
    }
}

TEST(SoftMode, IsDescribedByWhatDiffersFromTheDefault) {
    EXPECT_EQ(soft::describe(parse_mode("fast")), "fast");
    EXPECT_EQ(soft::describe(parse_mode("shaped:40g,latency=2us")),
              "shaped, 40 Gb/s, 2 us one way");
    EXPECT_EQ(soft::describe(parse_mode("shaped:10g,latency=24ms,jitter=1ms,inflight=8,header=30")),
              "shaped, 10 Gb/s, 24 ms one way, jitter 1 ms, 8 packets in flight, headers of 30 "
              "bytes");
}

TEST(SoftMode, FaultyIsDescribedWithItsFaultsAndAgreedUponWithout) {
    const Mode mode = parse_mode("faulty:seed=3,loss=0.5%,duplicate=0%,reorder=0%,die=9");
    EXPECT_EQ(soft::describe(mode),
              "faulty, 10 Gb/s, 1 us one way, seed 3, loss 0.5 %, delays up to 100 us, death at "
              "operation 9");
    EXPECT_EQ(soft::describe_agreement(mode), "faulty, 10 Gb/s, 1 us one way");
}

TEST(SoftMode, ThatIsNotUnderstoodKeepsTheDeviceFromBeingOpened) {
    const ModeScope mode{"brisk"};
    errno = 0;
    EXPECT_EQ(soft::open_device(soft::device_list(nullptr)[0]), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_NE(soft::describe_mode(soft::device_list(nullptr)[0]).find("brisk"), std::string::npos);
}

TEST(SoftMode, OfBothEndsMustBeTheSame) {
    for (const char* other : {"shaped:10g,latency=1us", "shaped:40g,latency=2us",
                              "shaped:10g,latency=2us,inflight=3", "fast", "strict"}) {
        std::optional<ModeScope> mode{"shaped:10g,latency=2us"};
        Endpoint here;
        mode.emplace(other);
        Endpoint there;
        EXPECT_EQ(here.to_init(), 0);
        EXPECT_EQ(there.to_init(), 0);
        EXPECT_EQ(here.to_rtr(there.qp->qp_num), EINVAL) << other;
        EXPECT_EQ(there.to_rtr(here.qp->qp_num), EINVAL) << other;
    }
}

TEST(SoftMode, OfStrictEndsMayDifferInTheSeedAlone) {
    for (const auto& [other, answer] : {std::pair{"strict:seed=9", 0},
                                        {"strict:delay=1us", EINVAL},
                                        {"strict:order=increasing", EINVAL}}) {
        std::optional<ModeScope> mode{"strict:seed=1"};
        Endpoint here;
        mode.emplace(other);
        Endpoint there;
        EXPECT_EQ(here.to_init(), 0);
        EXPECT_EQ(here.to_rtr(there.qp->qp_num), answer) << other;
    }
}

TEST(SoftMode, IsAskedOfAPeerInAnotherProcess) {
    std::optional<ModeScope> mode{"shaped:10g,latency=2us"};
    RemoteEndpoint there;
    mode.reset();
    Endpoint here;
    EXPECT_EQ(here.to_init(), 0);
    EXPECT_EQ(here.to_rtr(there.qpn), EINVAL);
    EXPECT_EQ(there.ask("init"), "0");
    EXPECT_EQ(there.ask("rtr " + std::to_string(here.qp->qp_num)), std::to_string(EINVAL));
}

}  // namespace
}  // namespace millrace::test
