// Many queue pairs on one completion queue: the poller looks only at those that announce
// themselves, and nothing is lost by it, whoever comes, goes, dies or lies.
#include <cstdint>
#include <map>
#include <random>
#include <set>

#include "completion/completion_queue.hpp"
#include "queue_pair/queue_pair.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

EndpointOptions tidy() {
    EndpointOptions options;
    options.shared_memory = false;  // leaves no descriptor open
    return options;
}

/// Nobody else polls it.
const soft::CompletionTurns& turns_of(ibv_cq* cq) {
    auto& turn = static_cast<soft::CompletionQueue*>(cq)->turn;
    return turn(turn.held_by_hand()).turns;
}

/// Queue pairs of `end`, all on its completion queue, each connected to itself.
struct Crowd {
    Crowd(Endpoint& owner, int count) : end{owner} {
        for (int i = 0; i < count; ++i) add();
    }
    ~Crowd() {
        while (!qps.empty()) remove(qps.size() - 1);
    }
    void add() {
        ibv_qp_init_attr init{};
        init.send_cq = end.cq;
        init.recv_cq = end.cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {4, 4, 1, 1, 0};
        ibv_qp* const qp = soft::create_qp(end.pd, &init);
        ASSERT_NE(qp, nullptr);
        qps.push_back(qp);
        on(qps.size() - 1, [&] { ASSERT_EQ(end.connect(qp->qp_num), 0); });
    }
    void remove(std::size_t which) {
        EXPECT_EQ(soft::destroy_qp(qps[which]), 0);
        qps[which] = qps.back();
        qps.pop_back();
    }
    /// With that queue pair as the end's.
    template <class Action>
    void on(std::size_t which, Action&& action) {
        ibv_qp* const own = std::exchange(end.qp, qps[which]);
        action();
        end.qp = own;
    }
    /// A completion of each kind for queue pair `which`: a WRITE, and a SEND with its receive.
    void work(std::size_t which) {
        on(which, [&] {
            ASSERT_EQ(end.receive(3, 128, 8), 0);
            ASSERT_EQ(end.write(1, 0, 8, end.address(64), end.mr->rkey), 0);
            ASSERT_EQ(end.send(2, 0, 8), 0);
        });
    }
    Endpoint& end;
    std::vector<ibv_qp*> qps;
};

TEST(ManyQueuePairs, ArePolledByTheirAnnouncementsAndLoseNothing) {
    Endpoint end{tidy()};
    Crowd crowd{end, 100};
    ASSERT_TRUE(turns_of(end.cq).by_bits());
    std::mt19937 random{7};
    for (int round = 0; round < 400; ++round) {
        std::map<std::uint32_t, int> expected;
        const auto active = 1 + random() % 40;
        for (std::uint32_t i = 0; i < active; ++i) {
            const std::size_t which = random() % crowd.qps.size();
            if (expected[crowd.qps[which]->qp_num] != 0) continue;
            crowd.work(which);
            expected[crowd.qps[which]->qp_num] = 3;
        }
        // Also those that the poller had left out are there at once, not some polls later.
        ibv_wc wc[256];
        const int taken = ibv_poll_cq(end.cq, 256, wc);
        ASSERT_GT(taken, 0);
        for (int i = 0; i < taken; ++i) {
            ASSERT_EQ(wc[i].status, IBV_WC_SUCCESS);
            --expected[wc[i].qp_num];
        }
        for (const auto& [qp, missing] : expected) ASSERT_EQ(missing, 0) << qp;
        for (int i = 0; i < 70; ++i) ASSERT_FALSE(end.poll_once());
    }
}

TEST(ManyQueuePairs, ThatAreIdleAreNotLookedAt) {
    Endpoint end{tidy()};
    Crowd crowd{end, 100};
    const auto& turns = turns_of(end.cq);
    for (std::size_t i = 0; i < crowd.qps.size(); ++i) crowd.work(i);
    ibv_wc wc[512];
    ASSERT_EQ(ibv_poll_cq(end.cq, 512, wc), 300);
    EXPECT_GT(turns.current().size(), 100U);
    const auto limit = std::chrono::steady_clock::now() + patience;
    while (turns.current().size() > soft::CompletionTurns::kept &&
           std::chrono::steady_clock::now() < limit) {
        ASSERT_FALSE(end.poll_once());
    }
    EXPECT_LE(turns.current().size(), soft::CompletionTurns::kept);
}

TEST(ManyQueuePairs, ComeAndGo) {
    Endpoint end{tidy()};
    Crowd crowd{end, 20};
    std::mt19937 random{11};
    for (int round = 0; round < 300; ++round) {
        if (random() % 2 == 0 || crowd.qps.size() < 5) {
            crowd.add();
        } else {
            crowd.remove(random() % crowd.qps.size());
        }
        const std::size_t which = random() % crowd.qps.size();
        crowd.work(which);
        ibv_wc wc[8];
        ASSERT_EQ(ibv_poll_cq(end.cq, 8, wc), 3) << round;
        for (const ibv_wc& one : {wc[0], wc[1], wc[2]}) {
            EXPECT_EQ(one.qp_num, crowd.qps[which]->qp_num);
        }
    }
}

TEST(ManyQueuePairs, AreFoundThoughSomebodyClearsTheirBits) {
    Endpoint end{tidy()};
    Crowd crowd{end, 60};
    const auto& turns = turns_of(end.cq);
    std::mt19937 random{3};
    for (int round = 0; round < 50; ++round) {
        const auto limit = std::chrono::steady_clock::now() + patience;
        const std::size_t which = random() % crowd.qps.size();
        crowd.work(which);
        // A peer that scribbles on the page: no bit is left, and it is not rung.
        soft::NewsPage& page =
            *static_cast<soft::QueuePair*>(crowd.qps[which])->send_source.place.page.load();
        for (auto& word : page.word) word.store(0);
        page.rung.store(0);
        int taken = 0;
        while (taken < 3 && std::chrono::steady_clock::now() < limit) {
            if (end.poll_once()) ++taken;
        }
        ASSERT_EQ(taken, 3) << round;
        // And bits that mean nothing only cost a look.
        for (auto& word : page.word) word.store(~std::uint64_t{0});
        page.rung.store(1);
        ASSERT_FALSE(end.poll_once());
        ASSERT_LE(turns.current().size(), turns.all().size());
    }
}

TEST(ManyQueuePairs, FlushWhenTheyGoToError) {
    Endpoint end{tidy()};
    Crowd crowd{end, 40};
    crowd.on(30, [&] {
        ASSERT_EQ(end.receive(77, 0, 8), 0);
        ASSERT_EQ(end.to_state(IBV_QPS_ERR), 0);
    });
    const auto flushed = end.complete();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->wr_id, 77U);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_FALSE(end.poll_once());
    crowd.work(5);
    ibv_wc wc[8];
    EXPECT_EQ(ibv_poll_cq(end.cq, 8, wc), 3);
}

TEST(ManyQueuePairs, RaiseEventsAsFewDo) {
    EndpointOptions options = tidy();
    options.events = true;
    Endpoint end{options};
    Crowd crowd{end, 40};
    for (std::size_t which : {0U, 39U, 17U, 17U}) {
        ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
        ASSERT_FALSE(end.poll_once());
        crowd.work(which);
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        ASSERT_EQ(soft::get_cq_event(end.channel, &cq, &context), 0);
        EXPECT_EQ(cq, end.cq);
        soft::ack_cq_events(cq, 1);
        ibv_wc wc[8];
        EXPECT_EQ(ibv_poll_cq(end.cq, 8, wc), 3);
    }
}

// Two processes: every queue pair here has its peer there, which sends on one after the other.
MILLRACE_CHILD(soft_crowd) {
    Endpoint end{tidy()};
    std::istringstream peers{hear().value_or("")};
    std::vector<ibv_qp*> qps;
    std::string numbers;
    std::uint32_t peer = 0;
    ibv_qp* const own = end.qp;
    while (peers >> peer) {
        ibv_qp_init_attr init{};
        init.send_cq = end.cq;
        init.recv_cq = end.cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {4, 4, 1, 1, 0};
        end.qp = soft::create_qp(end.pd, &init);
        if (end.qp == nullptr || end.connect(peer) != 0) return 2;
        qps.push_back(end.qp);
        numbers += std::to_string(end.qp->qp_num) + ' ';
    }
    say(numbers);
    while (const auto line = hear()) {
        std::istringstream words{*line};
        std::uint32_t seed = 0;
        int count = 0;
        words >> seed >> count;
        std::mt19937 random{seed};
        for (int i = 0; i < count; ++i) {
            end.qp = qps[random() % qps.size()];
            if (end.send(1, 0, 8, i % 2 == 0 ? unsigned{IBV_SEND_SIGNALED} : 0U) != 0) return 3;
            while (end.poll_once()) {
            }
            if (i % 2 == 1) {  // a slot back for what was not signaled
                if (end.send(1, 0, 8) != 0 || !end.complete()) return 4;
            }
        }
        say("sent " + std::to_string(count + count / 2));
    }
    for (ibv_qp* qp : qps) soft::destroy_qp(qp);
    end.qp = own;
    return 0;
}

TEST(ManyQueuePairs, OfAnotherProcessAnnounceThemselvesAcross) {
    constexpr int queue_pairs = 120;
    Endpoint end{tidy()};
    std::vector<ibv_qp*> qps;
    std::string numbers;
    for (int i = 0; i < queue_pairs; ++i) {
        ibv_qp_init_attr init{};
        init.send_cq = end.cq;
        init.recv_cq = end.cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {4, 64, 1, 1, 0};
        qps.push_back(soft::create_qp(end.pd, &init));
        ASSERT_NE(qps.back(), nullptr);
        numbers += std::to_string(qps.back()->qp_num) + ' ';
    }
    ibv_qp* const own = end.qp;
    ChildProcess child = ChildProcess::start("soft_crowd");
    for (ibv_qp* qp : qps) {
        end.qp = qp;
        ASSERT_EQ(end.to_init(), 0);
    }
    child.write_line(numbers);
    std::istringstream peers{child.read_line().value_or("")};
    for (ibv_qp* qp : qps) {
        std::uint32_t peer = 0;
        peers >> peer;
        end.qp = qp;
        ASSERT_EQ(end.to_rtr(peer), 0);
        ASSERT_EQ(end.to_rts(), 0);
        for (int i = 0; i < 64; ++i) ASSERT_EQ(end.receive(1, 0, 8), 0);
    }
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        constexpr int sends = 400;
        child.write_line(std::to_string(seed) + ' ' + std::to_string(sends));
        int taken = 0;
        const auto limit = std::chrono::steady_clock::now() + patience;
        while (taken < sends + sends / 2 && std::chrono::steady_clock::now() < limit) {
            ibv_wc wc[16];
            const int count = ibv_poll_cq(end.cq, 16, wc);
            ASSERT_GE(count, 0);
            for (int i = 0; i < count; ++i) {
                ASSERT_EQ(wc[i].status, IBV_WC_SUCCESS);
                const auto from = std::find_if(qps.begin(), qps.end(), [&](const ibv_qp* qp) {
                    return qp->qp_num == wc[i].qp_num;
                });
                ASSERT_NE(from, qps.end());
                end.qp = *from;
                ASSERT_EQ(end.receive(1, 0, 8), 0);
            }
            taken += count;
        }
        ASSERT_EQ(taken, sends + sends / 2) << seed;
        ASSERT_EQ(child.read_line(), "sent " + std::to_string(sends + sends / 2));
    }
    // A killed peer may have set a bit without ringing, or the other way round.
    child.kill_and_wait();
    for (ibv_qp* qp : qps) {
        EXPECT_EQ(soft::destroy_qp(qp), 0);
    }
    end.qp = own;
}

/// Says how many queue pairs it could have, whether there was one more, and whether all could go.
MILLRACE_CHILD(soft_as_many_as_said) {
    Endpoint end{tidy()};  // one of them
    ibv_device_attr limits{};
    if (soft::query_device(end.context, &limits) != 0) return 2;
    // A shared receive queue, and what each UD queue pair needs besides, take nothing away.
    ibv_srq_init_attr receives{};
    receives.attr = {4, 1, 0};
    ibv_srq* const srq = soft::create_srq(end.pd, &receives);
    if (srq == nullptr) return 3;
    std::vector<ibv_qp*> qps;
    const auto another = [&]() -> ibv_qp* {
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = end.cq;
        init.qp_type = IBV_QPT_UD;
        init.cap = {1, 1, 1, 1, 0};
        return soft::create_qp(end.pd, &init);
    };
    for (int i = 1; i < limits.max_qp; ++i) {
        ibv_qp* const qp = another();
        if (qp == nullptr) break;
        qps.push_back(qp);
    }
    say(std::to_string(qps.size() + 1) + " of " + std::to_string(limits.max_qp));
    say(another() == nullptr ? "not more" : "more");
    int error = 0;
    for (ibv_qp* const qp : qps) error |= soft::destroy_qp(qp);
    say(std::to_string(error | soft::destroy_srq(srq)));
    return 0;
}

// In a process of its own: what other tests of this one had to leave to a stopped peer is lost.
TEST(ManyQueuePairs, AreAsManyAsTheDeviceSays) {
    ibv_device_attr limits{};
    Endpoint end;
    ASSERT_EQ(soft::query_device(end.context, &limits), 0);
    const std::string all = std::to_string(limits.max_qp);
    ChildProcess child = ChildProcess::start("soft_as_many_as_said", {});
    EXPECT_EQ(child.read_line(std::chrono::seconds{100}), all + " of " + all);
    EXPECT_EQ(child.read_line(), "not more");
    EXPECT_EQ(child.read_line(std::chrono::seconds{100}), "0") << "errors of destroying them";
    EXPECT_TRUE(child.wait().success());
}

}  // namespace
}  // namespace millrace::test
