// Bar of verbs/: 8 bytes WRITTEN to and fro, both sides looking at their memory, to the
// cache-line ping-pong.
#include <atomic>
#include <cstdint>
#include <cstring>

#include "bench/framework/bars.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "bench/limits/cache_line.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::bench {
namespace {

/// One side: a word that the peer writes to, and where the peer's is.
class Player {
  public:
    explicit Player(connect::Link link)
        : link_{std::move(link)},
          memory_{link_.protection_domain().allocate(64, verbs::Access::remote_write)} {
        const auto mine = memory_.remote();
        const auto answer = link_.exchange(std::as_bytes(std::span{&mine, 1}), patience());
        require(answer.size() == sizeof(peer_), "the peer's address");
        std::memcpy(&peer_, answer.data(), sizeof(peer_));
    }
    void write(std::uint64_t number) {
        const bool signaled = number % signal_interval == 0;
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&number), sizeof(number), 0};
        const int error = link_.queue_pair().post(
            verbs::Write{.from = {&slice, 1},
                         .to = peer_,
                         .flags = signaled ? verbs::SendFlags::inlined | verbs::SendFlags::signaled
                                           : verbs::SendFlags::inlined});
        require(error == 0, "a posted WRITE");
        if (!signaled) return;
        // The one of half a queue ago is long done; this frees the slots up to it.
        verbs::Completion completion;
        const int polled = link_.send_queue().poll({&completion, 1});
        require(polled == 0 || (polled == 1 && completion.ok()), "a WRITE's completion");
    }
    void wait_for(Pair& pair, std::uint64_t number) {
        std::atomic_ref word{*reinterpret_cast<std::uint64_t*>(memory_.data())};
        pair.spin_until([&] { return word.load(std::memory_order_acquire) == number; });
    }

  private:
    static constexpr std::uint64_t signal_interval = 32;
    connect::Link link_;
    verbs::RegisteredBuffer memory_;
    verbs::RemoteAddress peer_{};
};

double write_round_trip(std::uint64_t round_trips) {
    const Windows windows{round_trips};
    const connect::LinkOptions options{.service = "bench WRITE ping-pong"};
    return run_pair(
        {},
        [&](Pair& pair) {
            Player player{accept_second(pair, [&](const auto& address) {
                return connect::Listener::listen(address, options);
            })};
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                player.write(number);
                player.wait_for(pair, number);
            });
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            Player player{connect::connect(address_of_first(pair), options, patience())};
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                player.wait_for(pair, number);
                player.write(number);
            }
            pair.meet();
        });
}

const BarRegistration to_cache_line{
    {.group = "foundation",
     .name = "WRITE ping-pong of 8 B to a cache line's",
     .limit = 1.6,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"write", [] { return write_round_trip(40'000); }, "ns"});
         rounds.add({"line", [] { return cache_line_round_trip(40'000); }, "ns"});
         return rounds.run().ratio("write", "line");
     }}};

}  // namespace
}  // namespace millrace::bench
