// Shared receive queues: receives that several queue pairs, of several processes, take from.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "layout/block_layout.hpp"
#include "objects/shared_receive_queue.hpp"
#include "receives/receive_pool.hpp"
#include "soft/remote_endpoint.hpp"
#include "soft/shared_receive_sender.hpp"
#include "soft/station.hpp"
#include "support/child_process.hpp"

namespace millrace::test {
namespace {

StationOptions with_shared_receives(std::uint32_t count) {
    StationOptions options;
    options.shared_receives = count;
    return options;
}

/// A station with a shared receive queue, connected by RC queue pairs to another without.
struct Fan {
    explicit Fan(std::uint32_t receives, int width = 2, const StationOptions& peers = {})
        : hub{with_shared_receives(receives)}, far{peers} {
        for (int i = 0; i < width; ++i) {
            near_end.push_back(hub.make(IBV_QPT_RC));
            far_end.push_back(far.make(IBV_QPT_RC));
            EXPECT_EQ(hub.connect(near_end.back(), far_end.back()->qp_num), 0);
            EXPECT_EQ(far.connect(far_end.back(), near_end.back()->qp_num), 0);
        }
    }
    Station hub;
    Station far;
    std::vector<ibv_qp*> near_end;
    std::vector<ibv_qp*> far_end;
};

TEST(SharedReceiveQueue, TellsWhatItIsAndRefusesWhatItCannotBe) {
    Station station;
    ibv_srq_init_attr init{};
    init.attr.max_wr = 100;
    init.attr.max_sge = 3;
    init.srq_context = &station;
    ibv_srq* const srq = soft::create_srq(station.pd, &init);
    ASSERT_NE(srq, nullptr);
    EXPECT_EQ(init.attr.max_wr, 128U);
    EXPECT_EQ(srq->srq_context, &station);
    EXPECT_EQ(soft::dealloc_pd(station.pd), EBUSY);
    ibv_srq_attr attributes{};
    ASSERT_EQ(soft::query_srq(srq, &attributes), 0);
    EXPECT_EQ(attributes.max_wr, 128U);
    EXPECT_EQ(attributes.max_sge, 3U);
    EXPECT_EQ(attributes.srq_limit, 0U);
    ibv_qp_init_attr qp_init{};
    qp_init.send_cq = qp_init.recv_cq = station.cq;
    qp_init.srq = srq;
    qp_init.qp_type = IBV_QPT_RC;
    qp_init.cap = {1, 1, 1, 1, 0};
    ibv_qp* const qp = soft::create_qp(station.pd, &qp_init);
    ASSERT_NE(qp, nullptr);
    EXPECT_EQ(qp->srq, srq);
    EXPECT_EQ(qp_init.cap.max_recv_wr, 0U);
    EXPECT_EQ(soft::destroy_srq(srq), EBUSY);
    EXPECT_NE(station.receive(qp, 1, 0, 8), 0) << "it has no receives of its own";
    EXPECT_EQ(soft::destroy_qp(qp), 0);
    EXPECT_EQ(soft::destroy_srq(srq), 0);
    init.attr.max_wr = 0;
    EXPECT_EQ(soft::create_srq(station.pd, &init), nullptr);
    EXPECT_EQ(errno, EINVAL);
    init.attr.max_wr = 1U << 20;
    EXPECT_EQ(soft::create_srq(station.pd, &init), nullptr);
    // XRC: verbs.h answers EOPNOTSUPP where this entry is not there.
    ASSERT_NE(verbs_get_ctx(station.context), nullptr);
    EXPECT_EQ(verbs_get_ctx(station.context)->create_srq_ex, nullptr);
}

/// A shared receive queue of another protection domain than its queue pair's.
struct TwoDomains {
    explicit TwoDomains(ibv_qp_type type) {
        receiving = soft::alloc_pd(station.context);
        mr = soft::reg_mr(receiving, station.memory, station.options.bytes,
                          reinterpret_cast<std::uint64_t>(station.memory), IBV_ACCESS_LOCAL_WRITE);
        ibv_srq_init_attr shared{};
        shared.attr = {16, 2, 0};
        srq = soft::create_srq(receiving, &shared);
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = station.cq;
        init.srq = srq;
        init.qp_type = type;
        init.cap = {16, 0, 2, 0, 0};
        qp = soft::create_qp(station.pd, &init);
        if (qp == nullptr) throw std::runtime_error("cannot create a queue pair");
    }
    ~TwoDomains() {
        EXPECT_EQ(soft::destroy_qp(qp), 0);
        EXPECT_EQ(soft::destroy_srq(srq), 0);
        EXPECT_EQ(soft::dereg_mr(mr), 0);
        EXPECT_EQ(soft::dealloc_pd(receiving), 0);
    }
    TwoDomains(const TwoDomains&) = delete;
    TwoDomains& operator=(const TwoDomains&) = delete;

    int receive(std::uint64_t id, std::size_t offset, std::uint32_t key) const {
        ibv_sge piece = station.sge(offset, 64);
        piece.lkey = key;
        ibv_recv_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        return ibv_post_srq_recv(srq, &wr, &bad);
    }

    Station station;
    ibv_pd* receiving = nullptr;
    ibv_mr* mr = nullptr;
    ibv_srq* srq = nullptr;
    ibv_qp* qp = nullptr;
};

TEST(SharedReceiveQueueOfAnotherDomain, HasItsReceivesInThatDomain) {
    for (const bool far : {true, false}) {
        TwoDomains two{IBV_QPT_RC};
        std::optional<RemoteEndpoint> peer;
        Endpoint near_peer;
        if (far) peer.emplace();
        const std::uint32_t number = far ? peer->qpn : near_peer.qp->qp_num;
        ASSERT_EQ(two.station.connect(two.qp, number), 0);
        if (far) {
            ASSERT_EQ(peer->ask("connect " + std::to_string(two.qp->qp_num)), "0");
        } else {
            ASSERT_EQ(near_peer.connect(two.qp->qp_num), 0);
        }
        const auto send = [&] {
            return far ? peer->ask("send 1 0 8") : std::to_string(near_peer.send(1, 0, 8));
        };
        for (std::uint64_t i = 0; i < 3; ++i) {
            ASSERT_EQ(two.receive(i, 4096 * i, two.mr->lkey), 0);
            ASSERT_EQ(send(), "0");
            const auto wc = two.station.complete();
            ASSERT_TRUE(wc);
            EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
            EXPECT_EQ(wc->wr_id, i);
        }
        // What its receives may name is no key of the queue pair's: not for a WRITE.
        const auto address = reinterpret_cast<std::uint64_t>(two.station.memory);
        if (far) {
            ASSERT_EQ(peer->ask("write 2 0 8 " + std::to_string(address) + ' ' +
                                std::to_string(two.mr->rkey)),
                      "0");
        } else {
            ASSERT_EQ(near_peer.write(2, 0, 8, address, two.mr->rkey), 0);
        }
        const auto last_status = [&]() -> std::string {
            for (int i = 0; i < 4; ++i) {
                std::string line;
                if (far) {
                    line = peer->ask("complete");
                } else if (const auto wc = near_peer.complete()) {
                    line = std::to_string(wc->wr_id) + ' ' + std::to_string(wc->status);
                }
                if (line.starts_with("2 ")) return line.substr(2, line.find(' ', 2) - 2);
            }
            return "none";
        };
        EXPECT_EQ(last_status(), std::to_string(IBV_WC_REM_ACCESS_ERR));
    }
}

TEST(SharedReceiveQueueOfAnotherDomain, HasNoReceivesInItsQueuePairsDomain) {
    TwoDomains two{IBV_QPT_RC};
    Endpoint peer;
    ASSERT_EQ(two.station.connect(two.qp, peer.qp->qp_num), 0);
    ASSERT_EQ(peer.connect(two.qp->qp_num), 0);
    ASSERT_EQ(two.receive(1, 0, two.station.mr->lkey), 0);
    ASSERT_EQ(peer.send(1, 0, 8), 0);
    auto wc = peer.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_REM_OP_ERR);
    wc = two.station.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_LOC_PROT_ERR);
}

TEST(SharedReceiveQueueOfAnotherDomain, TakesDatagramsThere) {
    TwoDomains two{IBV_QPT_UD};
    ASSERT_EQ(two.station.bring_up(two.qp), 0);
    ibv_qp* const sender = two.station.datagram();
    ASSERT_EQ(two.receive(5, 4096, two.mr->lkey), 0);
    ASSERT_EQ(two.station.send_to(sender, two.station.handle(), two.qp->qp_num, 9, 0, 8, 0), 0);
    const auto wc = two.station.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 5U);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
}

TEST(SharedReceiveQueue, ServesAllItsQueuePairsInTheOrderOfTheReceives) {
    Fan fan{8, 3};
    for (std::uint64_t i = 0; i < 6; ++i) {
        ASSERT_EQ(fan.hub.receive(nullptr, 100 + i, i * 4096, 64), 0);
    }
    for (int i = 0; i < 6; ++i) {
        std::memset(fan.far.memory, i + 1, 64);
        ASSERT_EQ(fan.far.send(fan.far_end[static_cast<std::size_t>(i) % 3], 1, 0, 64, 0), 0);
    }
    std::map<std::uint64_t, std::uint32_t> from;
    for (int i = 0; i < 6; ++i) {
        const auto wc = fan.hub.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc->byte_len, 64U);
        from[wc->wr_id] = wc->qp_num;
    }
    for (std::uint64_t i = 0; i < 6; ++i) {
        EXPECT_EQ(from[100 + i], fan.near_end[i % 3]->qp_num) << i;
        EXPECT_EQ(fan.hub.memory[i * 4096], static_cast<std::byte>(i + 1)) << i;
    }
}

TEST(SharedReceiveQueue, TakesNoMoreReceivesThanItHasRoomFor) {
    Station station{with_shared_receives(4)};
    for (int i = 0; i < 4; ++i) ASSERT_EQ(station.receive(nullptr, 1, 0, 8), 0);
    EXPECT_EQ(station.receive(nullptr, 1, 0, 8), ENOMEM);
    ibv_recv_wr wr{};
    ibv_sge pieces[3] = {};
    wr.sg_list = pieces;
    wr.num_sge = 3;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_srq_recv(station.srq, &wr, &bad), EINVAL);
    EXPECT_EQ(bad, &wr);
}

TEST(SharedReceiveQueue, GivesWaitingSendersWhatIsPostedLater) {
    Fan fan{4, 3};
    for (std::size_t i = 0; i < 3; ++i) {
        ASSERT_EQ(fan.far.send(fan.far_end[i], i, 0, 8, i == 1 ? IBV_SEND_SIGNALED : 0), 0);
    }
    EXPECT_FALSE(fan.hub.poll_once());
    std::set<std::uint32_t> from;
    for (std::uint64_t i = 0; i < 3; ++i) {
        // Nobody at the far side does anything meanwhile.
        ASSERT_EQ(fan.hub.receive(nullptr, i, 0, 8), 0);
        const auto wc = fan.hub.complete();
        ASSERT_TRUE(wc) << i;
        EXPECT_EQ(wc->wr_id, i);
        from.insert(wc->qp_num);
    }
    EXPECT_EQ(from.size(), 3U);
    EXPECT_TRUE(fan.far.complete());
}

TEST(SharedReceiveQueue, WithoutReceivesEndsASenderWhoseRetriesAreOver) {
    StationOptions impatient;
    impatient.rnr_retry = 1;
    Fan fan{4, 1, impatient};
    ASSERT_EQ(fan.far.send(fan.far_end[0], 1, 0, 8), 0);
    const auto wc = fan.far.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST(SharedReceiveQueue, KeepsServingThroughManyLapsInAnyOrderOfCompletion) {
    Fan fan{4, 4};
    std::uint64_t posted = 0;
    for (; posted < 4; ++posted) ASSERT_EQ(fan.hub.receive(nullptr, posted, 0, 64), 0);
    std::set<std::uint64_t> seen;
    for (std::uint64_t round = 0; round < 1500; ++round) {
        // Two to a queue pair, then two to another: completions are taken by queue pair.
        for (const std::size_t to : {round % 4, (round + 1) % 4, round % 4, (round + 3) % 4}) {
            ASSERT_EQ(fan.far.send(fan.far_end[to], 1, 0, 8, to == 0 ? IBV_SEND_SIGNALED : 0), 0);
        }
        for (int i = 0; i < 4; ++i) {
            const auto wc = fan.hub.complete();
            ASSERT_TRUE(wc) << round;
            EXPECT_TRUE(seen.insert(wc->wr_id).second);
            ASSERT_EQ(fan.hub.receive(nullptr, posted++, 0, 64), 0) << round;
        }
        while (fan.far.poll_once()) {
        }
        // Slots of unsignaled sends come back with a signaled one.
        for (std::size_t to = 1; to < 4; ++to) {
            ASSERT_EQ(fan.far.send(fan.far_end[to], 2, 0, 8), 0);
            ASSERT_TRUE(fan.hub.complete());
            ASSERT_EQ(fan.hub.receive(nullptr, posted++, 0, 64), 0);
            ASSERT_TRUE(fan.far.complete());
        }
    }
}

TEST(SharedReceiveQueue, TellsOnceWhenThereAreFewerReceivesThanTheLimit) {
    Fan fan{8};
    ASSERT_EQ(fcntl(fan.hub.context->async_fd, F_SETFL, O_NONBLOCK), 0);
    ibv_async_event event{};
    const auto next = [&] { return soft::get_async_event(fan.hub.context, &event); };
    while (next() == 0) soft::ack_async_event(&event);  // of the connections
    for (int i = 0; i < 4; ++i) ASSERT_EQ(fan.hub.receive(nullptr, 1, 0, 64), 0);
    ibv_srq_attr attributes{};
    attributes.srq_limit = 3;
    ASSERT_EQ(soft::modify_srq(fan.hub.srq, &attributes, IBV_SRQ_LIMIT), 0);
    EXPECT_EQ(next(), -1);
    ASSERT_EQ(soft::query_srq(fan.hub.srq, &attributes), 0);
    EXPECT_EQ(attributes.srq_limit, 3U);
    ASSERT_EQ(fan.far.send(fan.far_end[0], 1, 0, 8), 0);
    EXPECT_EQ(next(), -1) << "three are left";
    ASSERT_EQ(fan.far.send(fan.far_end[1], 1, 0, 8), 0);
    // Nobody polls the completion queue.
    ASSERT_EQ(next(), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    EXPECT_EQ(event.element.srq, fan.hub.srq);
    soft::ack_async_event(&event);
    ASSERT_EQ(soft::query_srq(fan.hub.srq, &attributes), 0);
    EXPECT_EQ(attributes.srq_limit, 0U) << "disarmed";
    ASSERT_EQ(fan.far.send(fan.far_end[1], 1, 0, 8), 0);
    EXPECT_EQ(next(), -1);
    attributes.srq_limit = 2;
    ASSERT_EQ(soft::modify_srq(fan.hub.srq, &attributes, IBV_SRQ_LIMIT), 0);
    ASSERT_EQ(next(), 0) << "armed below the limit: at once";
    soft::ack_async_event(&event);
    attributes.srq_limit = 100;
    EXPECT_EQ(soft::modify_srq(fan.hub.srq, &attributes, IBV_SRQ_LIMIT), EINVAL);
}

TEST(SharedReceiveQueue, SurvivesTheErrorOfOneOfItsQueuePairs) {
    Fan fan{8};
    ASSERT_EQ(fcntl(fan.hub.context->async_fd, F_SETFL, O_NONBLOCK), 0);
    for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(fan.hub.receive(nullptr, i, 0, 16), 0);
    ASSERT_EQ(fan.far.send(fan.far_end[0], 1, 0, 32), 0) << "longer than the receive";
    auto wc = fan.far.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_REM_INV_REQ_ERR);
    wc = fan.hub.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 0U);
    EXPECT_EQ(wc->status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(wc->qp_num, fan.near_end[0]->qp_num);
    EXPECT_TRUE(fan.hub.quiet()) << "the others' receives are not flushed";
    bool last_reached = false;
    ibv_async_event event{};
    while (soft::get_async_event(fan.hub.context, &event) == 0) {
        last_reached |= event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED &&
                        event.element.qp == fan.near_end[0];
        soft::ack_async_event(&event);
    }
    EXPECT_TRUE(last_reached);
    for (std::uint64_t i = 1; i < 3; ++i) {
        ASSERT_EQ(fan.far.send(fan.far_end[1], 1, 0, 8), 0);
        wc = fan.hub.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
    }
    ASSERT_EQ(fan.hub.receive(nullptr, 9, 0, 16), 0);
}

TEST(SharedReceiveQueue, GetsBackWhatAResetQueuePairHadNotDelivered) {
    Fan fan{2};
    ASSERT_EQ(fan.hub.receive(nullptr, 1, 0, 16), 0);
    ASSERT_EQ(fan.hub.receive(nullptr, 2, 0, 16), 0);
    ASSERT_EQ(fan.far.send(fan.far_end[0], 1, 0, 8), 0);
    ASSERT_EQ(fan.far.send(fan.far_end[0], 1, 0, 8), 0);
    ASSERT_EQ(to_state(fan.near_end[0], IBV_QPS_RESET), 0);
    EXPECT_FALSE(fan.hub.poll_once());
    EXPECT_EQ(fan.hub.receive(nullptr, 3, 0, 16), ENOMEM) << "they are still posted";
    for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(fan.far.send(fan.far_end[1], 1, 0, 8), 0);
        ASSERT_TRUE(fan.hub.complete());
    }
}

TEST(SharedReceiveQueue, ServesDatagramsAndConnectionsAlike) {
    Fan fan{8, 1};
    ibv_qp* const first = fan.hub.datagram();
    ibv_qp* const second = fan.hub.datagram();
    ibv_qp* const sender = fan.far.datagram();
    ibv_ah* const ah = fan.far.handle();
    std::uint64_t id = 0;
    for (; id < 8; ++id) ASSERT_EQ(fan.hub.receive(nullptr, id, 0, 64), 0);
    for (int round = 0; round < 200; ++round) {
        ASSERT_EQ(fan.far.send_to(sender, ah, first->qp_num, 1, 0, 8, 0), 0);
        ASSERT_EQ(fan.far.send(fan.far_end[0], 1, 0, 8), 0);
        ASSERT_EQ(fan.far.send_to(sender, ah, second->qp_num, 1, 0, 8), 0);
        std::map<std::uint32_t, int> to;
        for (int i = 0; i < 3; ++i) {
            const auto wc = fan.hub.complete();
            ASSERT_TRUE(wc) << round;
            EXPECT_EQ(wc->byte_len, wc->qp_num == fan.near_end[0]->qp_num ? 8U : 48U);
            ++to[wc->qp_num];
            ASSERT_EQ(fan.hub.receive(nullptr, id++, 0, 64), 0);
        }
        EXPECT_EQ(to.size(), 3U);
        ASSERT_TRUE(fan.far.complete());
        ASSERT_TRUE(fan.far.complete());
    }
    fan.hub.destroy(first);
    ASSERT_EQ(fan.far.send_to(sender, ah, second->qp_num, 1, 0, 8, 0), 0);
    EXPECT_TRUE(fan.hub.complete());
}

// --- several processes --------------------------------------------------------------------------

/// Connects a queue pair to each one named, and sends to them in turn, for ever: its own number and
/// a count, eight times over.
MILLRACE_CHILD(shared_sender) {
    StationOptions options;
    options.shared_memory = arguments.at(0) == "shared";
    Station station{options};
    ibv_qp* const qp = station.make(IBV_QPT_RC);
    say(std::to_string(qp->qp_num));
    const auto peer = static_cast<std::uint32_t>(std::stoul(hear().value()));
    if (station.connect(qp, peer) != 0) return 2;
    say("connected");
    const auto count = std::stoul(hear().value());
    for (std::uint64_t number = 0; number < count; ++number) {
        std::uint64_t words[8];
        std::fill(std::begin(words), std::end(words), number);
        std::memcpy(station.memory, words, sizeof words);
        if (station.send(qp, 1, 0, sizeof words) != 0) return 3;
        const auto wc = station.complete(std::chrono::seconds{20});
        if (!wc || wc->status != IBV_WC_SUCCESS) return 4;
    }
    say("sent");
    static_cast<void>(hear());
    return 0;
}

TEST(SharedReceiveQueueProcesses, EachMessageOfEachSenderArrivesOnceAndWhole) {
    for (const char* const memory : {"shared", "private"}) {
        SCOPED_TRACE(memory);
        StationOptions options = with_shared_receives(4);
        options.shared_memory = memory == std::string{"shared"};
        Station hub{options};
        std::vector<SharedSender> senders;
        senders.reserve(2);
        std::map<std::uint32_t, std::uint64_t> next;
        for (int i = 0; i < 2; ++i) {
            senders.emplace_back(hub, memory, 1000);
            next[senders.back().qp->qp_num] = 0;
        }
        for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(hub.receive(nullptr, i, i * 64, 64), 0);
        for (int i = 0; i < 2000; ++i) {
            const auto wc = hub.complete();
            ASSERT_TRUE(wc) << i;
            ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
            std::uint64_t words[8];
            std::memcpy(words, hub.memory + wc->wr_id * 64, sizeof words);
            EXPECT_TRUE(std::all_of(std::begin(words), std::end(words),
                                    [&](std::uint64_t word) { return word == words[0]; }));
            EXPECT_EQ(words[0], next[wc->qp_num]++);
            ASSERT_EQ(hub.receive(nullptr, wc->wr_id, wc->wr_id * 64, 64), 0);
        }
        for (auto& sender : senders) {
            EXPECT_EQ(sender.child.read_line(), "sent");
            sender.child.close_input();
            EXPECT_TRUE(sender.child.wait().success());
        }
    }
}

TEST(SharedReceiveQueueProcesses, AreToldOfTheLimitThoughTheyDoNotPoll) {
    Station hub{with_shared_receives(8)};
    SharedSender sender{hub, "shared", 1};
    for (int i = 0; i < 2; ++i) ASSERT_EQ(hub.receive(nullptr, 1, 0, 64), 0);
    EXPECT_EQ(sender.child.read_line(), "sent");
    ibv_srq_attr attributes{};
    attributes.srq_limit = 1;
    ASSERT_EQ(soft::modify_srq(hub.srq, &attributes, IBV_SRQ_LIMIT), 0);
    SharedSender another{hub, "shared", 1};
    EXPECT_EQ(another.child.read_line(), "sent");
    for (;;) {
        ibv_async_event event{};
        ASSERT_EQ(soft::get_async_event(hub.context, &event), 0);  // sleeps until it is there
        const ibv_event_type type = event.event_type;
        soft::ack_async_event(&event);
        if (type == IBV_EVENT_SRQ_LIMIT_REACHED) break;
    }
}

// One of two senders is killed at a random instant, wherever it was. The other one's messages go on
// arriving, and no receive is lost: all of them can be used at once again.
TEST(SharedReceiveQueueDeath, OfASenderAtARandomInstantCostsNoReceive) {
    constexpr std::uint64_t receives = 4;
    const int seeds = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 500 : 25;
    for (int seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE(seed);
        Station hub{with_shared_receives(receives)};
        SharedSender dying{hub, seed % 2 == 0 ? "shared" : "private", 1000000000};
        SharedSender living{hub, "shared", 1000000000};
        for (std::uint64_t i = 0; i < receives; ++i) {
            ASSERT_EQ(hub.receive(nullptr, i, i * 64, 64), 0);
        }
        std::uint64_t after = 0;
        bool dead = false;
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::microseconds{(seed * 7919) % 3000};
        base::Deadline limit = patience_for_a_coincidence();
        while (after < 20 && !limit.expired()) {
            if (!dead && std::chrono::steady_clock::now() >= until) {
                dying.child.kill_and_wait();
                dead = true;
            }
            const auto wc = hub.poll_once();
            if (!wc) continue;
            ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
            if (state_of(dying.qp) == IBV_QPS_ERR && wc->qp_num == living.qp->qp_num) ++after;
            ASSERT_EQ(hub.receive(nullptr, wc->wr_id, wc->wr_id * 64, 64), 0);
        }
        ASSERT_EQ(state_of(dying.qp), IBV_QPS_ERR) << "the death was not noticed";
        ASSERT_GE(after, 20U) << "the living one's messages stopped";
        living.child.kill_and_wait();
        limit = patience_for_a_coincidence();
        while (state_of(living.qp) != IBV_QPS_ERR && !limit.expired()) {
            const auto wc = hub.poll_once();
            if (!wc) continue;
            ASSERT_EQ(hub.receive(nullptr, wc->wr_id, wc->wr_id * 64, 64), 0);
        }
        while (const auto wc = hub.poll_once()) {
            ASSERT_EQ(hub.receive(nullptr, wc->wr_id, wc->wr_id * 64, 64), 0);
        }
        // All of them are there.
        ibv_qp* const here = hub.make(IBV_QPT_RC);
        Station far;
        ibv_qp* const there = far.make(IBV_QPT_RC);
        ASSERT_EQ(hub.connect(here, there->qp_num), 0);
        ASSERT_EQ(far.connect(there, here->qp_num), 0);
        std::set<std::uint64_t> seen;
        for (std::uint64_t i = 0; i < receives; ++i) {
            ASSERT_EQ(far.send(there, 1, 0, 8), 0);
            const auto wc = hub.complete();
            ASSERT_TRUE(wc) << "a receive is lost: " << seen.size() << " of " << receives;
            EXPECT_TRUE(seen.insert(wc->wr_id).second);
        }
    }
}

}  // namespace
}  // namespace millrace::test
