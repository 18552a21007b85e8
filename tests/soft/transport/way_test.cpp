// What the two ends of a connection were told of the way between them: where it does not agree, a
// real device would not get a request through, and neither does this one, in any mode. It says why.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "millrace/base/log.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;

EndpointOptions told(void (*alter)(ibv_qp_attr&), ibv_qp_type type = IBV_QPT_RC) {
    EndpointOptions options;
    options.type = type;
    options.alter = alter;
    options.timeout = 8;  // 1 ms
    options.retry_cnt = 1;
    return options;
}

void elsewhere(ibv_qp_attr& attributes) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid.raw[0] = 0xfd;  // of no port here
}
void other_sequence(ibv_qp_attr& attributes) { attributes.sq_psn = 5; }
void sequence_beyond_24_bits(ibv_qp_attr& attributes) {
    attributes.sq_psn = 0xff000007;
    attributes.rq_psn = 7;
}
void small_packets(ibv_qp_attr& attributes) { attributes.path_mtu = IBV_MTU_1024; }
void no_change(ibv_qp_attr&) {}

class Way : public testing::TestWithParam<const char*> {
  protected:
    ModeScope mode_{GetParam()};
};

/// The left end writes 8 bytes: the status, and whether they are there.
ibv_wc_status write_status(Pair& pair) {
    pair.left.word(0) = 0x77;
    EXPECT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    const auto done = pair.left.complete();
    EXPECT_TRUE(done);
    if (!done) return IBV_WC_GENERAL_ERR;
    EXPECT_EQ(pair.right.word(0) == 0x77, done->status == IBV_WC_SUCCESS);
    return done->status;
}

TEST_P(Way, LetsNothingThroughWhereThePacketSequencesDiffer) {
    Pair pair{told(other_sequence), told(no_change)};
    EXPECT_EQ(write_status(pair), IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
    EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_RTS) << "nothing came there";
}

TEST_P(Way, ComparesOnlyThe24BitsOfAPacketSequence) {
    Pair pair{told(sequence_beyond_24_bits), told(sequence_beyond_24_bits)};
    EXPECT_EQ(write_status(pair), IBV_WC_SUCCESS);
}

TEST_P(Way, LetsNothingThroughWhereTheSendersAddressLeadsElsewhere) {
    Pair pair{told(elsewhere), told(no_change)};
    EXPECT_EQ(write_status(pair), IBV_WC_RETRY_EXC_ERR);
}

TEST_P(Way, LetsNothingThroughWhereNoAcknowledgementWouldComeBack) {
    Pair pair{told(no_change), told(elsewhere)};
    EXPECT_EQ(write_status(pair), IBV_WC_RETRY_EXC_ERR);
}

TEST_P(Way, LetsASendThroughThatWaitedForAnEndWhichAgrees) {
    EndpointOptions patient = told(no_change);
    patient.timeout = 20;  // 4 s
    Endpoint left{patient};
    Endpoint right{told(no_change)};
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(left.send(1, 0, 8), 0);
    ASSERT_EQ(right.to_init(), 0);
    ASSERT_EQ(right.receive(2, 0, 8), 0);
    ASSERT_EQ(right.to_rtr(left.qp->qp_num), 0);
    const auto done = left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
}

TEST_P(Way, LetsOnlyOnePacketThroughWherePathMtusDiffer) {
    for (const bool to_small : {true, false}) {
        Pair pair{told(to_small ? no_change : small_packets),
                  told(to_small ? small_packets : no_change)};
        ASSERT_EQ(pair.left.write(1, 0, 1024, pair.right.address(), pair.right.mr->rkey), 0);
        auto done = pair.left.complete();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.left.write(2, 0, 1025, pair.right.address(), pair.right.mr->rkey), 0);
        done = pair.left.complete();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->status, IBV_WC_REM_INV_REQ_ERR);
        ibv_async_event event{};
        ASSERT_EQ(soft::get_async_event(pair.right.context, &event), 0);
        EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
        soft::ack_async_event(&event);
        EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_ERR);
    }
}

TEST_P(Way, LetsNoAnswerOfSeveralPacketsThroughWherePathMtusDiffer) {
    Pair pair{told(small_packets), told(no_change)};
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(0, 2048)}, IBV_SEND_SIGNALED,
                             pair.right.address(), pair.right.mr->rkey),
              0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_BAD_RESP_ERR);
    EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_RTS);
}

TEST_P(Way, OfUnreliableConnectionsIsNotMindedButWhereItLeads) {
    {
        Pair pair{told(other_sequence, IBV_QPT_UC), told(elsewhere, IBV_QPT_UC)};
        EXPECT_EQ(write_status(pair), IBV_WC_SUCCESS) << "nothing has to come back";
    }
    Pair pair{told(elsewhere, IBV_QPT_UC), told(no_change, IBV_QPT_UC)};
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS) << "and is lost";
    EXPECT_FALSE(pair.right.complete(std::chrono::milliseconds{20}));
}

INSTANTIATE_TEST_SUITE_P(InMode, Way,
                         testing::Values("fast", "shaped:10g,latency=1us", "strict:seed=3"),
                         [](const auto& mode) {
                             const std::string name{mode.param};
                             return name.substr(0, name.find(':'));
                         });

TEST(WayRefused, WhereItNamesAnotherPortOrASourceThatIsNotThere) {
    Endpoint end{told([](ibv_qp_attr& attributes) { attributes.ah_attr.port_num = 2; })};
    ASSERT_EQ(end.to_init(), 0);
    EXPECT_EQ(end.to_rtr(end.qp->qp_num), EINVAL);
    end.options.alter = [](ibv_qp_attr& attributes) {
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.grh.sgid_index = 250;
    };
    EXPECT_EQ(end.to_rtr(end.qp->qp_num), EINVAL);
    end.options.alter = nullptr;
    EXPECT_EQ(end.to_rtr(end.qp->qp_num), 0);
}

/// Connects two ends as the argument says, and writes more than a packet from the left one.
MILLRACE_CHILD(soft_wrong_way) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    void (*alter)(ibv_qp_attr&) = no_change;
    if (arguments.at(0) == "sequence") alter = other_sequence;
    if (arguments.at(0) == "address") alter = elsewhere;
    if (arguments.at(0) == "mtu") alter = small_packets;
    Pair pair{told(alter), told(no_change)};
    if (pair.left.write(1, 0, 2048, pair.right.address(), pair.right.mr->rkey) != 0) return 2;
    if (!pair.left.complete()) return 3;
    base::flush_log();
    return 0;
}

std::string lines_of(const char* mistake) {
    auto process = ChildProcess::start("soft_wrong_way", {mistake}, {"MILLRACE_SOFT_MODE=fast"});
    std::string text = process.read_all();
    EXPECT_TRUE(process.wait().success()) << text;
    return text;
}

TEST(WayLines, SayInModeFastTooWhatTheTwoEndsWereTold) {
    EXPECT_THAT(lines_of("sequence"),
                HasSubstr("sq_psn 5 at the sender, rq_psn 0 at the receiver"));
    EXPECT_THAT(lines_of("mtu"), HasSubstr("path_mtu 1024 at the sender, 4096 at the receiver"));
    const std::string address = lines_of("address");
    EXPECT_THAT(address, HasSubstr("the sender's address vector leads to no port here"));
    EXPECT_THAT(address, HasSubstr("the receiver's address vector leads to no port here"))
        << "of what the other end sends";
    EXPECT_EQ(lines_of("nothing"), "");
}

}  // namespace
}  // namespace millrace::test
