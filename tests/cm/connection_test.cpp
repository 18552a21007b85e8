// What each side says and hears, in the orders that matter one by one; simulation_test.cpp has all
// the others.
#include "connection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "ends.hpp"

namespace millrace::cm {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

static_assert(std::is_trivially_copyable_v<Connection> && std::is_trivially_copyable_v<Step>,
              "nothing of them is allocated");

constexpr auto rejected_by_program = static_cast<int>(RejectReason::consumer_defined);
constexpr auto rejected_by_time = static_cast<int>(RejectReason::timeout);

/// The program's bytes come first, and zeros to the end of the room.
void expect_private(const Event& event, const std::vector<std::uint8_t>& data, std::size_t room) {
    ASSERT_EQ(event.private_size, room);
    std::vector<std::uint8_t> all = data;
    all.resize(room);
    EXPECT_THAT(event.private_bytes(), testing::ElementsAreArray(all));
}

TEST(Connection, IsEstablishedByReqRepAndRtu) {
    Ends ends;
    ASSERT_EQ(ends.connect(), 0);
    EXPECT_THAT(attributes(ends.active.said), ElementsAre(Attribute::req));
    ends.settle();
    ASSERT_THAT(ends.passive.kinds(), ElementsAre(EventKind::connect_request));
    const Event& request = ends.passive.heard.front();
    EXPECT_EQ(request.status, 0);
    EXPECT_EQ(request.qpn, 0x111U);
    EXPECT_EQ(request.responder_resources, 4) << "what the peer wants is what this end is to serve";
    EXPECT_EQ(request.initiator_depth, 3);
    EXPECT_EQ(request.retry_count, 6);
    EXPECT_EQ(request.rnr_retry_count, 5);
    expect_private(request, request_data(), 56);

    ASSERT_EQ(ends.accept(), 0);
    EXPECT_THAT(attributes(ends.passive.said), ElementsAre(Attribute::rep));
    ends.settle();
    ASSERT_THAT(ends.active.kinds(), ElementsAre(EventKind::connect_response));
    const Event& response = ends.active.heard.front();
    EXPECT_EQ(response.status, 0);
    EXPECT_EQ(response.qpn, 0x222U);
    EXPECT_EQ(response.responder_resources, 1);
    EXPECT_EQ(response.initiator_depth, 2);
    EXPECT_EQ(response.rnr_retry_count, 7);
    expect_private(response, answer_data(), 196);

    ASSERT_EQ(ends.confirm(), 0);
    EXPECT_THAT(attributes(ends.active.said), ElementsAre(Attribute::rtu));
    ends.settle();
    EXPECT_THAT(ends.passive.kinds(),
                ElementsAre(EventKind::connect_request, EventKind::established));
    EXPECT_EQ(ends.active.connection.state(), State::established);
    EXPECT_EQ(ends.passive.connection.state(), State::established);
    EXPECT_FALSE(ends.active.connection.deadline());
    EXPECT_FALSE(ends.passive.connection.deadline());
}

TEST(Connection, TellsEachQueuePairOfTheOther) {
    Ends ends;
    EXPECT_FALSE(ends.active.connection.has_path());
    ends.connect();
    EXPECT_TRUE(ends.active.connection.has_path());
    EXPECT_FALSE(ends.active.connection.has_peer());
    ends.settle();
    EXPECT_TRUE(ends.passive.connection.has_peer()) << "before the REP, as in the kernel";
    ends.accept();
    ends.settle();
    EXPECT_TRUE(ends.active.connection.has_peer());

    const QueuePairFacts& active = ends.active.connection.facts();
    EXPECT_EQ(active.local_qpn, 0x111U);
    EXPECT_EQ(active.remote_qpn, 0x222U);
    EXPECT_EQ(active.receive_psn, 0xaaaaaaU);
    EXPECT_EQ(active.send_psn, 0xbbbbbbU);
    EXPECT_EQ(active.path_mtu, 5);
    EXPECT_EQ(active.responder_resources, 1) << "what the peer accepted to want";
    EXPECT_EQ(active.initiator_depth, 2);
    EXPECT_EQ(active.retry_count, 6);
    EXPECT_EQ(active.rnr_retry_count, 7) << "the REP's";
    EXPECT_EQ(active.timeout, 17);
    EXPECT_EQ(active.partition_key, 0xffff);
    EXPECT_EQ(active.path.local_gid[15], 1);
    EXPECT_EQ(active.path.remote_gid[15], 2);

    const QueuePairFacts& passive = ends.passive.connection.facts();
    EXPECT_EQ(passive.local_qpn, 0x222U);
    EXPECT_EQ(passive.remote_qpn, 0x111U);
    EXPECT_EQ(passive.receive_psn, 0xbbbbbbU);
    EXPECT_EQ(passive.send_psn, 0xaaaaaaU);
    EXPECT_EQ(passive.path_mtu, 5);
    EXPECT_EQ(passive.responder_resources, 2);
    EXPECT_EQ(passive.initiator_depth, 1);
    EXPECT_EQ(passive.retry_count, 6);
    EXPECT_EQ(passive.rnr_retry_count, 5) << "the REQ's";
    EXPECT_EQ(passive.timeout, 17);
    EXPECT_EQ(passive.path.local_gid[15], 2);
    EXPECT_EQ(passive.path.remote_gid[15], 1);
    EXPECT_EQ(passive.path.local_lid, 0xffff) << "what is routed has no LIDs";
}

TEST(Connection, MayBeUcAndNothingElse) {
    Ends ends;
    ASSERT_EQ(ends.connect(TransportType::uc), 0);
    ends.settle();
    EXPECT_EQ(ends.passive.connection.facts().transport, TransportType::uc);

    Ends others;
    EXPECT_EQ(others.connect(TransportType::rd), EINVAL);
    others.connect();
    Mad req = others.active.take();
    std::get<Req>(req.body).transport = TransportType::extended;
    others.arrive(others.passive, req);
    EXPECT_THAT(others.passive.heard, IsEmpty());
    others.settle();
    ASSERT_THAT(others.active.kinds(), ElementsAre(EventKind::rejected));
    EXPECT_EQ(others.active.heard.front().status,
              static_cast<int>(RejectReason::invalid_transport));
}

TEST(Connection, AnswersARepeatedReqAndGivesNoEvent) {
    Ends ends;
    ends.connect();
    const Mad req = ends.active.said.front();
    ends.settle();
    ends.arrive(ends.passive, req);
    EXPECT_THAT(attributes(ends.passive.said), ElementsAre(Attribute::mra)) << "it is thinking";
    ends.settle();
    ends.accept();
    const Mad rep = ends.passive.take();
    ends.arrive(ends.passive, req);
    ASSERT_THAT(attributes(ends.passive.said), ElementsAre(Attribute::rep)) << "it has answered";
    EXPECT_EQ(ends.passive.said.front(), rep);
    ends.settle();
    ends.confirm();
    ends.settle();
    ends.arrive(ends.passive, req);
    EXPECT_THAT(ends.passive.said, IsEmpty()) << "from long ago";
    EXPECT_THAT(ends.passive.kinds(),
                ElementsAre(EventKind::connect_request, EventKind::established));
}

TEST(Connection, AnswersARepeatedRepAndGivesNoEvent) {
    Ends ends;
    ends.requested();
    ends.accept();
    const Mad rep = ends.passive.said.front();
    ends.settle();
    ends.arrive(ends.active, rep);
    EXPECT_THAT(attributes(ends.active.said), ElementsAre(Attribute::mra));
    ends.settle();
    ends.confirm();
    const Mad rtu = ends.active.take();
    ends.arrive(ends.active, rep);
    ASSERT_THAT(attributes(ends.active.said), ElementsAre(Attribute::rtu));
    EXPECT_EQ(ends.active.said.front(), rtu);
    ends.settle();
    ends.arrive(ends.passive, rtu);
    EXPECT_THAT(ends.active.kinds(), ElementsAre(EventKind::connect_response));
    EXPECT_THAT(ends.passive.kinds(),
                ElementsAre(EventKind::connect_request, EventKind::established));
}

TEST(Connection, RepeatsAReqUntilItGivesUpAndBothAreTold) {
    Ends ends;
    ends.connect();
    const Mad req = ends.active.take();
    ends.arrive(ends.passive, req);
    const Time begin = ends.now;
    for (int retry = 0; retry < 15; ++retry) {
        ASSERT_TRUE(ends.pass_deadline(ends.active));
        ASSERT_EQ(ends.active.take(), req) << "retry " << retry;
        ASSERT_THAT(ends.active.heard, IsEmpty());
    }
    ASSERT_TRUE(ends.pass_deadline(ends.active));
    ASSERT_THAT(ends.active.kinds(), ElementsAre(EventKind::unreachable));
    EXPECT_EQ(ends.active.heard.front().status, -ETIMEDOUT);
    EXPECT_EQ(ends.now - begin, 16 * (4096ms + 2 * 256ms)) << "rdma_cm's patience";
    EXPECT_TRUE(ends.active.connection.is_over());
    EXPECT_FALSE(ends.active.connection.deadline());

    ends.settle();
    ASSERT_THAT(ends.passive.kinds(), ElementsAre(EventKind::connect_request, EventKind::rejected));
    EXPECT_EQ(ends.passive.heard.back().status, rejected_by_time);
    EXPECT_EQ(ends.accept(), EINVAL);
}

TEST(Connection, WaitsLongerForAnAnswerThatAnMraAnnounces) {
    Ends ends;
    ends.connect();
    const Mad req = ends.active.said.front();
    ends.settle();
    ends.arrive(ends.passive, req);
    const Mad mra = ends.passive.said.front();
    ends.settle();
    ASSERT_TRUE(ends.active.connection.deadline());
    EXPECT_EQ(*ends.active.connection.deadline() - ends.now, 65536ms + 512ms);
    const Time due = *ends.active.connection.deadline();
    ends.now += 1s;
    ends.arrive(ends.active, mra);
    EXPECT_EQ(ends.active.connection.deadline(), due) << "once";
}

TEST(Connection, RepeatsARepUntilItGivesUpAndBothAreTold) {
    Ends ends;
    ends.responded();
    ends.confirm();
    ends.active.said.clear();  // the RTU is lost, and so are all others
    for (int retry = 0; retry < 15; ++retry) {
        ASSERT_TRUE(ends.pass_deadline(ends.passive));
        ASSERT_EQ(attribute_of(ends.passive.take()), Attribute::rep);
    }
    ASSERT_TRUE(ends.pass_deadline(ends.passive));
    ASSERT_THAT(ends.passive.kinds(),
                ElementsAre(EventKind::connect_request, EventKind::unreachable));
    EXPECT_EQ(ends.passive.heard.back().status, -ETIMEDOUT);
    ends.settle();
    ASSERT_THAT(ends.active.kinds(), ElementsAre(EventKind::connect_response, EventKind::rejected));
    EXPECT_EQ(ends.active.heard.back().status, rejected_by_time);
}

TEST(Connection, IsRejectedByThePassiveProgram) {
    Ends ends;
    ends.connect();
    const Mad req = ends.active.said.front();
    ends.settle();
    ASSERT_EQ(ends.passive.keep(ends.passive.connection.reject(RejectReason::consumer_defined,
                                                               answer_data(), ends.now)),
              0);
    const Mad rej = ends.passive.take();  // lost
    ends.arrive(ends.passive, req);
    ASSERT_THAT(attributes(ends.passive.said), ElementsAre(Attribute::rej)) << "again, if asked";
    EXPECT_EQ(ends.passive.said.front(), rej);
    ends.settle();
    ASSERT_THAT(ends.active.kinds(), ElementsAre(EventKind::rejected));
    EXPECT_EQ(ends.active.heard.front().status, rejected_by_program);
    expect_private(ends.active.heard.front(), answer_data(), 148);
    EXPECT_TRUE(ends.active.connection.is_over());
    EXPECT_TRUE(ends.passive.connection.is_over());
}

TEST(Connection, IsRejectedByTheActiveProgram) {
    Ends ends;
    ends.responded();
    ASSERT_EQ(ends.active.keep(
                  ends.active.connection.reject(RejectReason::consumer_defined, {}, ends.now)),
              0);
    ends.settle();
    EXPECT_THAT(ends.passive.kinds(), ElementsAre(EventKind::connect_request, EventKind::rejected));
    EXPECT_EQ(ends.passive.heard.back().status, rejected_by_program);
    EXPECT_EQ(ends.confirm(), EINVAL);
}

TEST(Connection, EndsWhenBothProgramsHaveDisconnected) {
    Ends ends;
    ends.established();
    ASSERT_EQ(ends.disconnect(ends.active), 0);
    ends.settle();
    EXPECT_EQ(ends.passive.kinds().back(), EventKind::disconnected);
    EXPECT_EQ(ends.passive.heard.back().status, 0);
    EXPECT_THAT(ends.active.kinds(), ElementsAre(EventKind::connect_response))
        << "the DREP is the passive program's to send";
    ASSERT_EQ(ends.disconnect(ends.passive), 0);
    EXPECT_THAT(attributes(ends.passive.said), ElementsAre(Attribute::drep));
    ends.settle();
    EXPECT_THAT(ends.active.kinds(),
                ElementsAre(EventKind::connect_response, EventKind::disconnected));

    for (End* end : {&ends.active, &ends.passive}) {
        EXPECT_EQ(end->connection.state(), State::timewait);
        EXPECT_FALSE(end->connection.is_over()) << "the queue pair's number is not free yet";
        EXPECT_EQ(*end->connection.deadline() - ends.now, 512ms);
        end->keep(end->connection.expire(ends.now + 511ms));
        EXPECT_EQ(end->connection.state(), State::timewait);
        end->keep(end->connection.expire(ends.now + 512ms));
        EXPECT_EQ(end->kinds().back(), EventKind::timewait_exit);
        EXPECT_TRUE(end->connection.is_over());
        EXPECT_FALSE(end->connection.deadline());
    }
}

TEST(Connection, MayBeDisconnectedByBothAtOnce) {
    Ends ends;
    ends.established();
    ends.disconnect(ends.active);
    ends.disconnect(ends.passive);
    const Mad dreq = ends.active.said.front();
    ends.deliver(ends.active);
    ends.deliver(ends.passive);
    ends.settle();
    EXPECT_THAT(ends.active.kinds(),
                ElementsAre(EventKind::connect_response, EventKind::disconnected));
    EXPECT_THAT(ends.passive.kinds(), ElementsAre(EventKind::connect_request,
                                                  EventKind::established, EventKind::disconnected));
    EXPECT_EQ(ends.active.connection.state(), State::timewait);
    EXPECT_EQ(ends.passive.connection.state(), State::timewait);
    ends.arrive(ends.passive, dreq);
    EXPECT_THAT(attributes(ends.passive.said), ElementsAre(Attribute::drep)) << "again, if asked";
}

TEST(Connection, IsDisconnectedThoughNobodyAnswers) {
    Ends ends;
    ends.established();
    ends.disconnect(ends.active);
    for (int i = 0; i < 16; ++i) {
        ASSERT_EQ(attribute_of(ends.active.take()), Attribute::dreq);
        ASSERT_TRUE(ends.pass_deadline(ends.active));
    }
    ASSERT_EQ(ends.active.kinds().back(), EventKind::disconnected);
    EXPECT_EQ(ends.active.heard.back().status, -ETIMEDOUT);
    EXPECT_EQ(ends.active.connection.state(), State::timewait);
}

TEST(Connection, IsNotDisconnectedForAnotherQueuePair) {
    Ends ends;
    ends.established();
    ends.disconnect(ends.active);
    Mad dreq = ends.active.take();
    std::get<Dreq>(dreq.body).remote_qpn = 0x333;
    ends.arrive(ends.passive, dreq);
    EXPECT_EQ(ends.passive.connection.state(), State::established);
    EXPECT_THAT(ends.passive.said, IsEmpty());
}

TEST(Connection, IsDisconnectedThoughTheRtuWasLost) {
    Ends ends;
    ends.responded();
    ends.confirm();
    ends.active.said.clear();
    ends.disconnect(ends.active);
    ends.settle();
    EXPECT_THAT(ends.passive.kinds(),
                ElementsAre(EventKind::connect_request, EventKind::disconnected));
    ends.disconnect(ends.passive);
    ends.settle();
    EXPECT_EQ(ends.active.kinds().back(), EventKind::disconnected);
}

// Model cm, fault rep_unanswered_at_the_end.
TEST(Connection, AnswersARepThoughItDisconnectsAlready) {
    Ends ends;
    ends.responded();
    ends.confirm();
    ends.disconnect(ends.active);
    ends.active.said.clear();  // RTU and DREQ are lost
    ends.pass_deadline(ends.passive);
    ends.settle();
    EXPECT_THAT(ends.passive.kinds(),
                ElementsAre(EventKind::connect_request, EventKind::established));
    ends.pass_deadline(ends.active);
    ends.settle();
    EXPECT_EQ(ends.passive.kinds().back(), EventKind::disconnected);
}

TEST(Connection, IsEstablishedOnceThoughAMessageCameBeforeTheRtu) {
    Ends ends;
    ends.responded();
    ends.confirm();
    ASSERT_EQ(ends.passive.keep(ends.passive.connection.establish(ends.now)), 0);
    EXPECT_EQ(ends.passive.keep(ends.passive.connection.establish(ends.now)), EISCONN);
    ends.settle();
    EXPECT_THAT(ends.passive.kinds(),
                ElementsAre(EventKind::connect_request, EventKind::established));
    EXPECT_FALSE(ends.passive.connection.deadline());
}

/// Brings both ends somewhere, closes one, and says what the other hears last.
struct Closing {
    const char* name;
    std::function<void(Ends&)> bring;
    bool is_active;  ///< closes
    Attribute last_word;
    EventKind peer_hears;
    int status;
};
class EveryState : public testing::TestWithParam<Closing> {};

TEST_P(EveryState, IsClosedWithAWordToThePeerAndNoEvent) {
    const Closing& row = GetParam();
    Ends ends;
    row.bring(ends);
    End& closer = row.is_active ? ends.active : ends.passive;
    End& peer = ends.other(closer);
    const std::size_t heard = closer.heard.size();
    ASSERT_EQ(ends.close(closer), 0);
    ASSERT_THAT(attributes(closer.said), ElementsAre(row.last_word));
    ends.settle();
    ASSERT_FALSE(peer.heard.empty());
    EXPECT_EQ(peer.heard.back().kind, row.peer_hears);
    EXPECT_EQ(peer.heard.back().status, row.status);
    ends.disconnect(peer);
    for (int i = 0; i < 100 && ends.pass_deadline(closer); ++i) ends.settle();
    EXPECT_TRUE(closer.connection.is_over());
    EXPECT_EQ(closer.heard.size(), heard);
}

TEST_P(EveryState, IsToldToThePeerByTheCarriersHangUp) {
    const Closing& row = GetParam();
    Ends ends;
    row.bring(ends);
    End& peer = row.is_active ? ends.passive : ends.active;
    ASSERT_EQ(ends.hang_up(peer), 0);
    ASSERT_FALSE(peer.heard.empty());
    EXPECT_EQ(peer.heard.back().kind, row.peer_hears);
    EXPECT_EQ(peer.heard.back().status, row.status);
    const std::size_t heard = peer.heard.size();
    ends.hang_up(peer);
    EXPECT_EQ(peer.heard.size(), heard) << "once";
    ends.close(peer);
    EXPECT_THAT(peer.said, IsEmpty()) << "there is nobody to hear it";
    for (int i = 0; i < 100 && ends.pass_deadline(peer); ++i) {
        EXPECT_THAT(peer.said, IsEmpty());
    }
    EXPECT_TRUE(peer.connection.is_over());
}

INSTANTIATE_TEST_SUITE_P(
    Cm, EveryState,
    testing::Values(Closing{"request_sent", [](Ends& ends) { ends.requested(); }, true,
                            Attribute::rej, EventKind::rejected, rejected_by_time},
                    Closing{"request_received", [](Ends& ends) { ends.requested(); }, false,
                            Attribute::rej, EventKind::rejected, rejected_by_program},
                    Closing{"response_sent", [](Ends& ends) { ends.responded(); }, false,
                            Attribute::rej, EventKind::rejected, rejected_by_program},
                    Closing{"response_received", [](Ends& ends) { ends.responded(); }, true,
                            Attribute::rej, EventKind::rejected, rejected_by_program},
                    Closing{"established_active", [](Ends& ends) { ends.established(); }, true,
                            Attribute::dreq, EventKind::disconnected, 0},
                    Closing{"established_passive", [](Ends& ends) { ends.established(); }, false,
                            Attribute::dreq, EventKind::disconnected, 0},
                    Closing{"disconnect_received",
                            [](Ends& ends) {
                                ends.established();
                                ends.disconnect(ends.active);
                                ends.settle();
                            },
                            false, Attribute::drep, EventKind::disconnected, 0},
                    Closing{"resolve_received",
                            [](Ends& ends) {
                                ends.resolve();
                                ends.settle();
                            },
                            false, Attribute::sidr_rep, EventKind::unreachable,
                            static_cast<int>(SidrStatus::rejected)}),
    [](const auto& row) { return std::string{row.param.name}; });

TEST(Connection, SaysItsLastWordAgainUntilThePeerHasIt) {
    Ends ends;
    ends.established();
    ends.close(ends.active);
    ends.active.said.clear();
    ASSERT_TRUE(ends.pass_deadline(ends.active));
    EXPECT_THAT(attributes(ends.active.said), ElementsAre(Attribute::dreq));
    ends.settle();
    EXPECT_EQ(ends.passive.kinds().back(), EventKind::disconnected);
}

TEST(Connection, RefusesCommandsThatMeanNothing) {
    const auto errors = [](Connection& connection, Time now) {
        Connection copy = connection;
        const auto fresh = [&]() -> Connection& { return copy = connection; };
        return std::vector<int>{
            fresh().connect(Ends::destination(), Ends::active_terms(), now).error,
            fresh().resolve(1, {}, 0xffff, {}, now).error,
            fresh().accept(Ends::passive_terms(), now).error,
            fresh().confirm(now).error,
            fresh().answer(SidrStatus::success, 1, 2, {}).error,
            fresh().reject(RejectReason::consumer_defined, {}, now).error,
            fresh().disconnect(now).error,
            fresh().establish(now).error,
        };
    };
    constexpr int bad = EINVAL;
    Ends ends;
    EXPECT_THAT(errors(ends.active.connection, ends.now),
                ElementsAre(0, 0, bad, bad, bad, bad, bad, bad));
    ends.requested();
    EXPECT_THAT(errors(ends.active.connection, ends.now),
                ElementsAre(bad, bad, bad, bad, bad, 0, 0, bad));
    EXPECT_THAT(errors(ends.passive.connection, ends.now),
                ElementsAre(bad, bad, 0, bad, bad, 0, 0, bad));
    ends.accept();
    ends.settle();
    EXPECT_THAT(errors(ends.active.connection, ends.now),
                ElementsAre(bad, bad, bad, 0, bad, 0, 0, bad));
    EXPECT_THAT(errors(ends.passive.connection, ends.now),
                ElementsAre(bad, bad, bad, bad, bad, 0, 0, 0));
    ends.confirm();
    ends.settle();
    EXPECT_THAT(errors(ends.active.connection, ends.now),
                ElementsAre(bad, bad, bad, bad, bad, bad, 0, EISCONN));
}

TEST(Connection, TakesAsMuchPrivateDataAsTheMessageHasRoomFor) {
    const std::vector<std::uint8_t> data(300, 7);
    const auto first = [&](std::size_t size) { return std::span{data}.first(size); };
    Ends ends;
    Terms terms = Ends::active_terms();
    terms.private_data = first(57);
    EXPECT_EQ(ends.active.connection.connect(Ends::destination(), terms, ends.now).error, EINVAL);
    EXPECT_EQ(ends.active.connection.state(), State::idle);
    EXPECT_EQ(ends.active.connection.resolve(1, {}, 0xffff, first(181), ends.now).error, EINVAL);
    terms.private_data = first(56);
    ends.active.keep(ends.active.connection.connect(Ends::destination(), terms, ends.now));
    ends.settle();
    expect_private(ends.passive.heard.back(), std::vector<std::uint8_t>(56, 7), 56);
    terms.private_data = first(197);
    EXPECT_EQ(ends.passive.connection.accept(terms, ends.now).error, EINVAL);
    EXPECT_EQ(
        ends.passive.connection.reject(RejectReason::consumer_defined, first(149), ends.now).error,
        EINVAL);
    terms.private_data = first(196);
    ends.passive.keep(ends.passive.connection.accept(terms, ends.now));
    ends.settle();
    expect_private(ends.active.heard.back(), std::vector<std::uint8_t>(196, 7), 196);
}

TEST(Connection, IgnoresWhatIsForAnother) {
    const auto changed = [](Mad mad, bool is_local) {
        std::visit(
            [&]<class Message>(Message& message) {
                if constexpr (requires { message.remote_comm_id; }) {
                    (is_local ? message.local_comm_id : message.remote_comm_id) ^= 0x100;
                } else if constexpr (requires { message.local_comm_id; }) {
                    message.local_comm_id ^= 0x100;
                } else {
                    message.request_id ^= 0x100;
                }
            },
            mad.body);
        return mad;
    };
    // Each MAD comes to the state that would take it, changed.
    const auto ignores = [&](End& at, const Mad& mad, bool is_local) {
        Connection copy = at.connection;
        const Step step = copy.receive(changed(mad, is_local), Ends{}.now);
        EXPECT_FALSE(step.mad || step.event) << "attribute " << static_cast<int>(attribute_of(mad));
        EXPECT_EQ(copy.state(), at.connection.state());
    };
    Ends ends;
    ends.connect();
    const Mad req = ends.active.said.front();
    ends.settle();
    ignores(ends.passive, req, true);
    ends.arrive(ends.passive, req);
    const Mad mra = ends.passive.take();
    ignores(ends.active, mra, false);
    ends.accept();
    const Mad rep = ends.passive.said.front();
    ignores(ends.active, rep, false);
    ends.settle();
    ignores(ends.active, rep, true);
    ends.confirm();
    const Mad rtu = ends.active.said.front();
    ignores(ends.passive, rtu, true);
    ignores(ends.passive, rtu, false);
    ends.settle();
    ends.disconnect(ends.active);
    const Mad dreq = ends.active.said.front();
    ignores(ends.passive, dreq, true);
    ignores(ends.passive, dreq, false);
    ends.settle();
    ends.disconnect(ends.passive);
    const Mad drep = ends.passive.said.front();
    ignores(ends.active, drep, true);
    ignores(ends.active, drep, false);

    Ends refused;
    refused.responded();
    refused.close(refused.passive);
    const Mad rej = refused.passive.said.front();
    ignores(refused.active, rej, true);
    ignores(refused.active, rej, false);
}

TEST(Connection, BelievesARejOfTimeOnlyFromItsPeersDevice) {
    Ends ends;
    ends.requested();
    ends.close(ends.active);
    const Mad rej = ends.active.take();
    ASSERT_EQ(std::get<Rej>(rej.body).remote_comm_id, 0U) << "it never heard the peer's";
    Mad forged = rej;
    std::get<Rej>(forged.body).information[7] ^= 1;
    ends.arrive(ends.passive, forged);
    EXPECT_EQ(ends.passive.connection.state(), State::request_received);
    ends.arrive(ends.passive, rej);
    EXPECT_EQ(ends.passive.kinds().back(), EventKind::rejected);
}

TEST(Connection, IsStaleWhenItsPeersQueuePairAsksAgain) {
    Ends ends;
    ends.established();
    // The active host has started again, and its queue pair has the same number.
    Ends second;
    second.active.connection = Connection{0xa0000002, Ends::active_guid};
    second.connect();
    const Mad req = second.active.said.front();
    EXPECT_FALSE(ends.passive.connection.is_for(req));
    ASSERT_TRUE(ends.passive.connection.is_stale_by(req));
    second.active.said.clear();
    second.arrive(second.active, *refuse(req, RejectReason::stale_connection));
    ASSERT_THAT(second.active.kinds(), ElementsAre(EventKind::rejected));
    EXPECT_EQ(second.active.heard.front().status, static_cast<int>(RejectReason::stale_connection));
    EXPECT_EQ(second.active.connection.state(), State::timewait);
    second.pass_deadline(second.active);
    EXPECT_TRUE(second.active.connection.is_over());
    EXPECT_THAT(second.active.kinds(), ElementsAre(EventKind::rejected)) << "no TIMEWAIT_EXIT";

    ends.disconnect(ends.passive);
    EXPECT_THAT(attributes(ends.passive.said), ElementsAre(Attribute::dreq));
    second.connect();
    Req other = std::get<Req>(req.body);
    other.local_qpn = 0x112;
    EXPECT_FALSE(ends.passive.connection.is_stale_by({0, other}));
    other = std::get<Req>(req.body);
    other.local_ca_guid += 1;
    EXPECT_FALSE(ends.passive.connection.is_stale_by({0, other}));
}

TEST(Resolution, TellsTheQueuePairThatAnswersDatagrams) {
    Ends ends;
    ASSERT_EQ(ends.resolve(), 0);
    const Mad req = ends.active.said.front();
    ends.settle();
    ASSERT_THAT(ends.passive.kinds(), ElementsAre(EventKind::connect_request));
    expect_private(ends.passive.heard.front(), request_data(), 180);
    ends.arrive(ends.passive, req);
    EXPECT_THAT(ends.passive.said, IsEmpty());
    ASSERT_EQ(ends.passive.keep(ends.passive.connection.answer(SidrStatus::success, 0x222,
                                                               0x01234567, answer_data())),
              0);
    const Mad rep = ends.passive.take();
    ends.arrive(ends.passive, req);
    ASSERT_FALSE(ends.passive.said.empty()) << "again, if asked";
    EXPECT_EQ(ends.passive.said.front(), rep);
    ends.settle();
    ends.arrive(ends.active, rep);
    ASSERT_THAT(ends.active.kinds(), ElementsAre(EventKind::established));
    const Event& event = ends.active.heard.front();
    EXPECT_EQ(event.status, 0);
    EXPECT_EQ(event.qpn, 0x222U);
    EXPECT_EQ(event.q_key, 0x01234567U);
    expect_private(event, answer_data(), 136);
    EXPECT_FALSE(ends.active.connection.deadline());
    EXPECT_THAT(ends.passive.kinds(), ElementsAre(EventKind::connect_request));
}

TEST(Resolution, IsUnreachableWhereItIsRefused) {
    Ends ends;
    ends.resolve();
    ends.settle();
    ends.passive.keep(ends.passive.connection.answer(SidrStatus::rejected, 0x222, 1, {}));
    EXPECT_EQ(std::get<SidrRep>(ends.passive.said.front().body).qpn, 0U);
    ends.settle();
    ASSERT_THAT(ends.active.kinds(), ElementsAre(EventKind::unreachable));
    EXPECT_EQ(ends.active.heard.front().status, 2);
}

TEST(Resolution, IsUnreachableWhereNobodyAnswers) {
    Ends ends;
    ends.resolve();
    const Time begin = ends.now;
    for (int i = 0; i < 16; ++i) {
        ASSERT_EQ(attribute_of(ends.active.take()), Attribute::sidr_req);
        ASSERT_TRUE(ends.pass_deadline(ends.active));
    }
    ASSERT_THAT(ends.active.kinds(), ElementsAre(EventKind::unreachable));
    EXPECT_EQ(ends.active.heard.front().status, -ETIMEDOUT);
    EXPECT_EQ(ends.now - begin, 16 * 4096ms);
    EXPECT_TRUE(ends.active.connection.is_over());
}

TEST(Refusal, IsWhatANobodyAnswers) {
    Ends ends;
    ends.connect();
    const Mad req = ends.active.take();
    ends.arrive(ends.active, refuse(req).value());
    ASSERT_THAT(ends.active.kinds(), ElementsAre(EventKind::rejected));
    EXPECT_EQ(ends.active.heard.front().status, 8) << "nobody listens";

    Ends datagrams;
    datagrams.resolve();
    const Mad sidr_req = datagrams.active.take();
    datagrams.arrive(datagrams.active, refuse(sidr_req).value());
    ASSERT_THAT(datagrams.active.kinds(), ElementsAre(EventKind::unreachable));
    EXPECT_EQ(datagrams.active.heard.front().status, 1) << "unsupported";

    Ends gone;
    gone.established();
    gone.disconnect(gone.active);
    const Mad dreq = gone.active.take();
    gone.arrive(gone.active, refuse(dreq).value());
    EXPECT_EQ(gone.active.kinds().back(), EventKind::disconnected);

    Ends late;
    late.requested();
    late.accept();
    const Mad rep = late.passive.take();
    EXPECT_FALSE(refuse(rep));
    late.arrive(late.passive, refuse(rep, RejectReason::stale_connection).value());
    EXPECT_EQ(late.passive.kinds().back(), EventKind::rejected);
    EXPECT_EQ(late.passive.heard.back().status, 10);
    EXPECT_FALSE(refuse(Mad{1, Rtu{}}));
}

}  // namespace
}  // namespace millrace::cm
