// Bar of the soft device: what idle queue pairs on a completion queue cost the active one. SENDs of
// 8 bytes to and fro, polled, with nothing else on the completion queues and with 1,000 queue
// pairs.
#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bench/framework/bars.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/device.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/queue_pair.hpp"

namespace millrace::bench {
namespace {

/// One side: a queue pair that sends and receives, and idle ones on the same completion queue.
class Side {
  public:
    explicit Side(std::size_t idle)
        : context_{verbs::find_device("soft0").open()},
          domain_{context_.allocate_protection_domain()},
          completions_{context_.create_completion_queue(static_cast<int>(128 + 8 * idle))},
          memory_{domain_.allocate(4096, verbs::Access::local_write)} {
        // The active one in the middle of the others.
        for (std::size_t i = 0; i <= idle; ++i) {
            queue_pairs_.push_back(make_queue_pair(i == idle / 2 ? 64 : 4));
            if (i != idle / 2) connect(queue_pairs_.back(), queue_pairs_.back().number());
        }
        active_ = &queue_pairs_[idle / 2];
    }

    void meet(Pair& pair) {
        pair.set_value(0, active_->number());
        pair.meet();
        connect(*active_, static_cast<std::uint32_t>(pair.value(0)));
        for (std::uint64_t i = 0; i < 32; ++i) receive();
        pair.meet();
    }
    void send(std::uint64_t number) {
        ibv_sge piece{reinterpret_cast<std::uint64_t>(&number), sizeof number, 0};
        ibv_send_wr wr{};
        wr.sg_list = &piece;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags =
            unsigned{IBV_SEND_INLINE} | (number % 32 == 0 ? unsigned{IBV_SEND_SIGNALED} : 0U);
        ibv_send_wr* bad = nullptr;
        require(ibv_post_send(active_->raw(), &wr, &bad) == 0, "a posted SEND");
    }
    void take(Pair& pair) {
        bool received = false;
        pair.spin_until([&] {
            ibv_wc wc;
            const int count = ibv_poll_cq(completions_.raw(), 1, &wc);
            require(count >= 0 && (count == 0 || wc.status == IBV_WC_SUCCESS), "a completion");
            received |= count == 1 && wc.opcode == IBV_WC_RECV;
            return received;
        });
        receive();
    }

  private:
    verbs::QueuePair make_queue_pair(std::uint32_t slots) {
        return domain_.create_queue_pair({.send_queue = &completions_,
                                          .receive_queue = &completions_,
                                          .max_send_requests = slots,
                                          .max_receive_requests = slots,
                                          .max_send_slices = 1,
                                          .max_inline = 8});
    }
    static void connect(verbs::QueuePair& queue_pair, std::uint32_t peer) {
        queue_pair.initialise(1, verbs::Access::none);
        queue_pair.connect({.number = peer, .lid = 1}, 0,
                           {.mtu = IBV_MTU_4096, .min_rnr_timer = 12, .max_reads = 1});
    }
    void receive() {
        ibv_sge piece = memory_.slice(0, 8);
        ibv_recv_wr wr{};
        wr.sg_list = &piece;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        require(ibv_post_recv(active_->raw(), &wr, &bad) == 0, "a posted receive");
    }

    verbs::Context context_;
    verbs::ProtectionDomain domain_;
    verbs::CompletionQueue completions_;
    verbs::RegisteredBuffer memory_;
    std::vector<verbs::QueuePair> queue_pairs_;
    verbs::QueuePair* active_ = nullptr;
};

double send_round_trip(std::size_t idle, std::uint64_t round_trips) {
    const Windows windows{round_trips};
    return run_pair(
        {},
        [&](Pair& pair) {
            Side side{idle};
            side.meet(pair);
            const double ns = median_step(windows, [&](std::uint64_t number) {
                side.send(number);
                side.take(pair);
            });
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            Side side{idle};
            side.meet(pair);
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                side.take(pair);
                side.send(number);
            }
            pair.meet();
        });
}

const BarRegistration idle_queue_pairs{
    {.group = "soft",
     .name = "SEND ping-pong of 8 B among 1,000 idle queue pairs to one alone",
     .limit = 1.1,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"among 1,000", [] { return send_round_trip(1000, 40'000); }, "ns"});
         rounds.add({"alone", [] { return send_round_trip(0, 40'000); }, "ns"});
         return rounds.run().ratio("among 1,000", "alone");
     }}};

}  // namespace
}  // namespace millrace::bench
