// Bars of flow queues: an item to and fro through two queues, to raw WRITEs of the same size to
// and fro. Both are written and read in full, in place.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "bench/framework/bars.hpp"
#include "flow_rates.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::bench {
namespace {

template <std::size_t Size>
class QueuePlayer {
  public:
    QueuePlayer(flow::Producer<BarItem<Size>, ring::design_1> out,
                flow::Consumer<BarItem<Size>, ring::design_1> in)
        : out_{std::move(out)}, in_{std::move(in)} {}
    void send(std::uint64_t number) {
        BarItem<Size>* item = nullptr;
        require(out_.claim(item), "an item's place");
        item->fill(number);
        require(out_.commit(), "an item");
    }
    void wait_for(Pair& pair, std::uint64_t number) {
        const BarItem<Size>* item = nullptr;
        pair.spin_until([&] { return in_.peek(item) == base::Status::ok; });
        require_intact(item->holds(number), "an item to and fro");
        in_.release();
    }

  private:
    flow::Producer<BarItem<Size>, ring::design_1> out_;
    flow::Consumer<BarItem<Size>, ring::design_1> in_;
};

/// As many slots as the queue's ring has, so that both go over as much memory.
template <std::size_t Size>
class RawPlayer {
  public:
    explicit RawPlayer(connect::Link link, std::uint64_t slots)
        : link_{std::move(link)},
          slots_{slots},
          in_{link_.protection_domain().allocate(slots * sizeof(Slot),
                                                 verbs::Access::remote_write)},
          out_{link_.protection_domain().allocate(slots * sizeof(Slot), verbs::Access::none)} {
        const auto mine = in_.remote();
        const auto answer = link_.exchange(std::as_bytes(std::span{&mine, 1}), patience());
        require(answer.size() == sizeof(peer_), "the peer's address");
        std::memcpy(&peer_, answer.data(), sizeof(peer_));
    }
    void send(std::uint64_t number) {
        const std::uint64_t offset = number % slots_ * sizeof(Slot);
        auto* slot = reinterpret_cast<Slot*>(out_.data() + offset);
        slot->fill(number);
        const bool signaled = number % signal_interval == 0;
        const ibv_sge slice = out_.slice(offset, sizeof(Slot));
        auto flags = signaled ? verbs::SendFlags::signaled : verbs::SendFlags::none;
        if (sizeof(Slot) <= 64) flags = flags | verbs::SendFlags::inlined;
        require(link_.queue_pair().post(
                    verbs::Write{.from = {&slice, 1}, .to = peer_ + offset, .flags = flags}) == 0,
                "a posted WRITE");
        if (!signaled) return;
        // The one of half a queue ago is long done; this frees the slots up to it.
        verbs::Completion completion;
        const int polled = link_.send_queue().poll({&completion, 1});
        require(polled == 0 || (polled == 1 && completion.ok()), "a WRITE's completion");
    }
    void wait_for(Pair& pair, std::uint64_t number) {
        auto* slot = reinterpret_cast<Slot*>(in_.data() + number % slots_ * sizeof(Slot));
        const std::atomic_ref last{slot->words.back()};
        pair.spin_until([&] { return last.load(std::memory_order_acquire) == number; });
        require_intact(slot->holds(number), "a WRITE to and fro");
    }

  private:
    using Slot = BarItem<Size>;
    static constexpr std::uint64_t signal_interval = 32;
    connect::Link link_;
    std::uint64_t slots_;
    verbs::RegisteredBuffer in_;
    verbs::RegisteredBuffer out_;
    verbs::RemoteAddress peer_{};
};

template <class MakeFirst, class MakeSecond>
double flow_round_trip(std::uint64_t round_trips, MakeFirst&& first, MakeSecond&& second) {
    const Windows windows{round_trips};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto player = first(pair);
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                player.send(number);
                player.wait_for(pair, number);
            });
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            auto player = second(pair);
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                player.wait_for(pair, number);
                player.send(number);
            }
            pair.meet();
        });
}

template <std::size_t Size>
Summary to_raw_writes(const RoundOptions& options, std::uint64_t slots, std::uint64_t round_trips) {
    flow::Options queue;
    queue.ring.capacity = slots;
    Rounds rounds{options};
    rounds.add({"flow",
                [=] {
                    using Out = flow::Producer<BarItem<Size>, ring::design_1>;
                    using In = flow::Consumer<BarItem<Size>, ring::design_1>;
                    return flow_round_trip(
                        round_trips,
                        [&](Pair& pair) {
                            auto listener = flow::Listener::listen("127.0.0.1:0", queue);
                            pair.set_value(0, listener.address().port());
                            pair.meet();
                            auto out = Out::accept(listener, patience());
                            auto in = In::accept(listener, patience());
                            return QueuePlayer<Size>{std::move(out), std::move(in)};
                        },
                        [&](Pair& pair) {
                            const auto address = address_of_first(pair);
                            auto in = In::connect(address, queue, patience());
                            auto out = Out::connect(address, queue, patience());
                            return QueuePlayer<Size>{std::move(out), std::move(in)};
                        });
                },
                "ns"});
    rounds.add({"raw",
                [=] {
                    const connect::LinkOptions link{.service = "bench raw WRITE"};
                    return flow_round_trip(
                        round_trips,
                        [&](Pair& pair) {
                            return RawPlayer<Size>{
                                accept_second(pair,
                                              [&](const auto& address) {
                                                  return connect::Listener::listen(address, link);
                                              }),
                                slots};
                        },
                        [&](Pair& pair) {
                            return RawPlayer<Size>{
                                connect::connect(address_of_first(pair), link, patience()), slots};
                        });
                },
                "ns"});
    return rounds.run().ratio("flow", "raw");
}

template <std::size_t Size>
Bar bar_of(std::uint64_t slots, std::uint64_t round_trips) {
    return {.group = "flow",
            .name = fmt::format("transfer time of {} B items to raw WRITEs", Size),
            .limit = 2,
            .sense = Sense::at_most,
            .unit = "x",
            .measure = [=](const RoundOptions& options) {
                return to_raw_writes<Size>(options, slots, round_trips);
            }};
}

const BarRegistration transfer_of_8{bar_of<8>(256, 40'000)};
const BarRegistration transfer_of_64{bar_of<64>(256, 40'000)};
const BarRegistration of_4096{bar_of<4096>(64, 20'000)};
const BarRegistration of_65536{bar_of<65536>(16, 2'000)};

}  // namespace
}  // namespace millrace::bench
