#include "responders.hpp"

#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "bench/framework/meeting.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/message/server.hpp"
#include "response_memory.hpp"
#include "sides.hpp"

namespace millrace::bench {
namespace {

/// One thread, and the responders that it serves.
class Responder {
  public:
    Responder(const RpcCase& chosen, const Board& board, std::span<std::byte> region,
              std::span<message::Server> servers)
        : board_{board},
          region_{region},
          bytes_{chosen.response_bytes},
          items_{items_of(chosen)},
          // Of those that share a processor: one that found nothing lets the next one look.
          yields_{chosen.responder_threads},
          servers_{servers} {}

    /// Until the requesters have enough. `each_lap()` is called now and then; it may throw.
    template <class EachLap>
    void run(EachLap&& each_lap) {
        std::uint32_t before = Board::setting_up;
        for (std::uint32_t lap = 1; before != Board::over; ++lap) {
            const std::uint32_t phase = board_.phase.load(std::memory_order_relaxed);
            if (phase != before) {
                before = phase;
                if (phase == Board::measuring) counts_ = {};
            }
            bool has_found = false;
            for (message::Server& server : servers_) has_found = serve(server) || has_found;
            if (!has_found && yields_) std::this_thread::yield();
            if (lap % 1024 == 0) each_lap(lap);
        }
    }

    struct Counts {
        CyclesOfWindows busy;
        CyclesOfWindows all;
        CyclesOfWindows vain;  ///< of turns that found nothing
        double rounds = 0;     ///< that found some
        double found = 0;      ///< mailboxes with a message, which may be several requests
    };
    [[nodiscard]] const Counts& counts() const { return counts_; }

  private:
    bool serve(message::Server& server) {
        std::optional<message::ClientId> last;  // in this turn
        const auto answer = [&](message::Request& request) {
            if (last != request.client()) ++counts_.found;
            last = request.client();
            std::uint64_t item = 0;
            std::memcpy(&item, request.payload().data(), sizeof item);
            (void)request.answer(region_.subspan(item % items_ * bytes_, bytes_));
        };
        const std::uint64_t begin = base::ticks();
        const std::size_t requests = server.turn(answer);
        if (requests == 0) {
            ++vain_turns_;
            return false;
        }
        if (vain_turns_ != 0 && last_end_ != 0) counts_.vain.add(begin - last_end_, vain_turns_);
        const std::uint64_t now = base::ticks();
        last_end_ = now;
        vain_turns_ = 0;
        counts_.busy.add(now - begin, requests);
        counts_.all.add_until(now, requests);
        ++counts_.rounds;
        return true;
    }

    const Board& board_;
    std::span<std::byte> region_;
    std::size_t bytes_;
    std::size_t items_;
    bool yields_;
    std::span<message::Server> servers_;
    Counts counts_;
    std::uint64_t last_end_ = 0;  ///< of a turn that found some, in ticks
    std::size_t vain_turns_ = 0;  ///< since then
};

/// Each in a thread of its own but for the first, which is the calling one.
void run_responders(Pair& pair, Board& board, std::vector<Responder>& responders,
                    std::span<message::Server> servers) {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < responders.size(); ++i) {
        others.emplace_back([&, i] {
            servers[i].adopt();
            responders[i].run([](std::uint32_t) {});
        });
    }
    try {
        responders.front().run([&](std::uint32_t lap) { pair.check(lap); });
    } catch (...) {
        board.phase.store(Board::over, std::memory_order_relaxed);  // for the others
        throw;
    }
    for (std::jthread& each : others) each.join();
    for (message::Server& server : servers) server.adopt();
}

void tell(const RpcCase& chosen, std::span<const Responder> responders, Board& board) {
    std::vector<double> busy;
    std::vector<double> all;
    std::vector<double> vain;
    double rounds = 0;
    board.found = 0;
    for (const Responder& each : responders) {
        const Responder::Counts& counts = each.counts();
        busy.push_back(counts.busy.median());
        all.push_back(counts.all.median());
        vain.push_back(counts.vain.median());
        board.found += counts.found;
        rounds += counts.rounds;
    }
    board.cycles = quantile(std::move(busy), 0.5);
    board.all_cycles = quantile(std::move(all), 0.5);
    board.vain_cycles = quantile(std::move(vain), 0.5);
    board.looked_at = rounds * static_cast<double>(connections_of(chosen));
}

}  // namespace

void respond(Pair& pair, const RpcCase& chosen, const std::vector<int>& cores) {
    if (chosen.responder_threads) base::bind_this_thread(cores);
    const std::size_t items = items_of(chosen);
    const ResponseMemory memory{items * chosen.response_bytes, chosen.pages};
    const std::span<std::byte> region = memory.bytes();
    for (std::size_t i = 0; i < items; ++i) {
        stamp(region.data() + i * chosen.response_bytes, chosen.response_bytes, i);
    }
    message::ServerOptions options;
    options.polling = chosen.polling;
    options.max_clients = static_cast<std::uint32_t>(connections_of(chosen));
    options.tuning.max_client_ring_bytes = ring_for(chosen);
    options.tuning.posting = chosen.posting;
    if (chosen.posts) options.tuning.carrier = ring::Carrier::post;
    if (chosen.requests == message::Transfer::send) {
        options.tuning.receives = message::Receives::shared;
        options.protection = message::Protection::trusted;
    }
    std::vector<message::Server> servers;
    Board& board = *pair.shared_at<Board>(0);
    for (std::size_t i = 0; i < chosen.responders; ++i) {
        servers.push_back(message::Server::listen(connect::Address::tcp("127.0.0.1", 0), options));
        board.ports[i] = servers.back().address().port();
    }
    std::vector<Responder> responders;
    const std::size_t for_each = chosen.responder_threads ? 1 : servers.size();
    for (std::size_t i = 0; i < servers.size(); i += for_each) {
        responders.emplace_back(chosen, board, region, std::span{servers}.subspan(i, for_each));
    }
    pair.meet();
    run_responders(pair, board, responders, servers);
    tell(chosen, responders, board);
    pair.meet();
    for (message::Server& server : servers) (void)server.close(patience());
}

}  // namespace millrace::bench
