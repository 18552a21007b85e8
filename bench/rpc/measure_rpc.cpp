#include "measure_rpc.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/dispatcher.hpp"
#include "millrace/message/server.hpp"
#include "workload/crowd.hpp"

namespace millrace::bench {
namespace {

using base::Status;
using message::Client;
using message::Dispatcher;
using message::Port;

constexpr std::size_t request_bytes = 64;
constexpr std::size_t window_responses = 64;
constexpr std::size_t most_responders = 64;
/// Polls, and lets the others of its core run at once, as there are more of them than cores.
constexpr base::WaitPolicy shared_core{std::chrono::nanoseconds{0}, std::chrono::nanoseconds::max(),
                                       false};

/// What both sides share.
struct Board {
    enum Phase : std::uint32_t { setting_up, measuring, over };
    std::atomic<std::uint32_t> phase;
    std::uint32_t ports[most_responders];
    double cycles;  ///< of a responder, for each response
    double found;   ///< mailboxes with a message, which may be several requests
    double looked_at;
};

/// The cycles of each, by windows of so many.
class CyclesOfWindows {
  public:
    void add(std::uint64_t cycles, std::size_t count) {
        cycles_ += cycles;
        if ((count_ += count) < window_responses) return;
        windows_.push_back(static_cast<double>(cycles_) / static_cast<double>(count_));
        cycles_ = count_ = 0;
    }
    [[nodiscard]] double median() const { return windows_.empty() ? 0 : quantile(windows_, 0.5); }

  private:
    std::uint64_t cycles_ = 0;
    std::uint64_t count_ = 0;
    std::vector<double> windows_;
};

/// When each window of responses was full; whatever thread fills it says so.
class ResponseWindows {
  public:
    explicit ResponseWindows(std::chrono::nanoseconds duration) : ends_(4096) {
        const std::uint64_t now = base::ticks();
        least_ = now + base::ticks_in(duration);
        most_ = now + base::ticks_in(std::chrono::seconds{3});
        at_all_ = now + base::ticks_in(std::chrono::seconds{40});
    }
    void answered(std::uint64_t now) {
        const std::uint64_t count = count_.fetch_add(1, std::memory_order_relaxed) + 1;
        if (count % window_responses != 0) return;
        const std::uint64_t window = count / window_responses - 1;
        if (window < ends_.size()) ends_[window].store(now, std::memory_order_relaxed);
    }
    [[nodiscard]] bool is_over() const {
        const std::uint64_t now = base::ticks();
        const std::uint64_t full = count_.load(std::memory_order_relaxed) / window_responses;
        return full >= ends_.size() || (now >= least_ && full > enough) ||
               (now >= most_ && full > 1) || now >= at_all_;
    }
    /// Responses a second, the median window's.
    [[nodiscard]] double per_second() const {
        std::vector<double> times;
        for (std::size_t i = 1; i < ends_.size(); ++i) {
            const std::uint64_t end = ends_[i].load(std::memory_order_relaxed);
            const std::uint64_t begin = ends_[i - 1].load(std::memory_order_relaxed);
            if (end > begin && begin != 0) times.push_back(static_cast<double>(end - begin));
        }
        require(!times.empty(), "enough responses in 40 s");
        return static_cast<double>(window_responses) *
               static_cast<double>(base::ticks_in(std::chrono::seconds{1})) /
               quantile(std::move(times), 0.5);
    }

  private:
    static constexpr std::size_t enough = 20;
    std::vector<std::atomic<std::uint64_t>> ends_;
    std::atomic<std::uint64_t> count_{0};
    std::uint64_t least_ = 0;
    std::uint64_t most_ = 0;    ///< from here on as few as make a result are enough
    std::uint64_t at_all_ = 0;  ///< and from here on none
};

std::size_t items_of(const RpcCase& chosen) { return chosen.memory_bytes / chosen.response_bytes; }
/// Of a receive for answers by SEND: a whole response with its head and frame, if that may be.
std::size_t slot_for(const RpcCase& chosen) {
    return std::clamp(std::bit_ceil(chosen.response_bytes + 64), std::size_t{128},
                      std::size_t{64} << 10);
}
/// For all the responses that may be on their way over a connection, up to 16 of 16 KiB.
std::size_t ring_for(const RpcCase& chosen) {
    const std::size_t on_their_way =
        std::clamp(chosen.per_dispatcher * chosen.window, std::size_t{2}, std::size_t{16});
    const std::size_t room = std::max(slot_for(chosen), std::bit_ceil(chosen.response_bytes + 64));
    return std::max(std::size_t{16} << 10, room * std::bit_ceil(on_their_way));
}
std::size_t dispatchers_of(const RpcCase& chosen) {
    return (chosen.requesters + chosen.per_dispatcher - 1) / chosen.per_dispatcher;
}
std::size_t connections_of(const RpcCase& chosen) {
    return chosen.per_dispatcher == 0 ? chosen.requesters : dispatchers_of(chosen);
}

// --- responders

void respond(Pair& pair, const RpcCase& chosen) {
    const std::size_t items = items_of(chosen);
    const ResponseMemory memory{items * chosen.response_bytes, chosen.pages};
    const std::span<std::byte> region = memory.bytes();
    for (std::size_t i = 0; i < items; ++i) {
        stamp(region.data() + i * chosen.response_bytes, chosen.response_bytes, i);
    }
    double found = 0;
    std::optional<message::ClientId> last;  ///< in this turn
    const auto answer = [&](message::Request& request) {
        if (last != request.client()) ++found;
        last = request.client();
        std::uint64_t item = 0;
        std::memcpy(&item, request.payload().data(), sizeof item);
        (void)request.answer(
            region.subspan(item % items * chosen.response_bytes, chosen.response_bytes));
    };
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
    pair.meet();
    double rounds = 0;
    CyclesOfWindows cycles;
    std::uint32_t before = Board::setting_up;
    for (std::uint32_t round = 1; before != Board::over; ++round) {
        const std::uint32_t phase = board.phase.load(std::memory_order_relaxed);
        if (phase != before) {
            before = phase;
            if (phase == Board::measuring) {
                rounds = found = 0;
                cycles = {};
            }
        }
        for (message::Server& server : servers) {
            last.reset();
            const std::uint64_t begin = base::ticks();
            const std::size_t requests = server.turn(answer);
            if (requests == 0) continue;
            cycles.add(base::ticks() - begin, requests);
            ++rounds;
        }
        if (round % 1024 == 0) pair.check(round);
    }
    board.cycles = cycles.median();
    board.found = found;
    board.looked_at = rounds * static_cast<double>(connections_of(chosen));
    pair.meet();
    for (message::Server& server : servers) (void)server.close(patience());
}

// --- requesters

/// One that asks, and its ways to the responders.
struct Requester {
    std::vector<Client> clients;  ///< none: by `port`
    std::unique_ptr<Port> port;
    std::minstd_rand random;
    std::size_t responder = 0;
    std::uint64_t item = 0;
    std::uint64_t begin = 0;

    template <class Use>
    auto use(Use&& how) {
        if (port != nullptr) return how(*port);
        return how(clients[responder]);
    }
    std::array<std::byte, request_bytes> choose(const RpcCase& chosen) {
        if (chosen.responders > 1) responder = random() % chosen.responders;
        item = random() % items_of(chosen);
        if (port != nullptr) port->to(static_cast<std::uint32_t>(responder));
        std::array<std::byte, request_bytes> request{};
        stamp(request.data(), request.size(), item);
        begin = base::ticks();
        return request;
    }
    void ask(const RpcCase& chosen) {
        const auto request = choose(chosen);
        std::uint64_t id = 0;
        // On a link the send queue may be full of what is not complete yet.
        require(use([&](auto& way) { return way.submit(request, id, patience()); }), "a request");
    }
    void check(const message::Answer& answer, const RpcCase& chosen) const {
        require(answer.outcome == message::Outcome::ok, "a request");
        require_intact(answer.payload.size() == chosen.response_bytes &&
                           stamped(answer.payload.data(), answer.payload.size(), item),
                       "a response");
        keep(read_all(answer.payload.data(), answer.payload.size()));
    }
    bool has_answer(const RpcCase& chosen) {
        const Status status = use([&](auto& way) {
            return way.poll([&](const message::Answer& answer) { check(answer, chosen); });
        });
        if (status == Status::empty) return false;
        require(status, "a response");
        return true;
    }
    /// Asks for as many as the window allows, and takes the answers. `answered(begin)` for each.
    template <class Answered>
    void call_many(const RpcCase& chosen, Answered&& answered) {
        struct Asked {
            std::uint64_t id, item, begin;
        };
        std::array<Asked, 64> asked{};
        for (std::size_t i = 0; i < chosen.window; ++i) {
            const auto request = choose(chosen);
            require(use([&](auto& way) { return way.submit(request, asked[i].id, patience()); }),
                    "a request");
            asked[i].item = item;
            asked[i].begin = begin;
        }
        for (std::size_t i = 0; i < chosen.window; ++i) {
            const auto take = [&](const message::Answer& answer) {
                for (const Asked& each : asked) {
                    if (each.id != answer.id) continue;
                    item = each.item;
                    check(answer, chosen);
                    answered(each.begin);
                    return;
                }
                require(false, "an answer that was asked for");
            };
            require(use([&](auto& way) { return way.wait(take, patience()); }), "a response");
        }
    }
};

class Requesters {
  public:
    Requesters(Pair& pair, const RpcCase& chosen) : chosen_{chosen} {
        pair.meet();
        const Board& board = *pair.shared_at<Board>(0);
        message::ClientOptions options;
        options.ring_bytes = ring_for(chosen);
        options.requests = chosen.requests;
        options.answers = chosen.answers;
        options.tuning.slot_bytes = slot_for(chosen);
        options.tuning.posting = chosen.posting;
        if (chosen.posts) options.tuning.carrier = ring::Carrier::post;
        if (chosen.threads) options.wait = shared_core;
        std::vector<connect::Address> addresses;
        for (std::size_t i = 0; i < chosen.responders; ++i) {
            addresses.push_back(
                connect::Address::tcp("127.0.0.1", static_cast<std::uint16_t>(board.ports[i])));
        }
        all_.resize(chosen.requesters);
        if (chosen.per_dispatcher != 0) {
            for (std::size_t i = 0; i < dispatchers_of(chosen); ++i) {
                dispatchers_.push_back(
                    Dispatcher::connect(addresses, {options, options.wait}, patience()));
            }
        }
        for (std::size_t i = 0; i < all_.size(); ++i) {
            Requester& each = all_[i];
            each.random.seed(static_cast<unsigned>(i + 1));
            if (chosen.per_dispatcher != 0) {
                each.port = std::make_unique<Port>(dispatchers_[i / chosen.per_dispatcher].port(
                    {.window = static_cast<std::uint32_t>(chosen.window),
                     // Sleeps where its own turns bring nothing, as its dispatcher polls.
                     .wait = base::WaitPolicy::blocking()}));
                continue;
            }
            for (const connect::Address& address : addresses) {
                each.clients.push_back(Client::connect(address, options, patience()));
            }
        }
    }
    /// Counts in `windows`, once it has warmed up and told `begins`; latencies in `times`.
    void run(base::Histogram& times, std::optional<ResponseWindows>& windows,
             const std::function<void()>& begins) {
        if (chosen_.threads) {
            run_threads(times, windows, begins);
        } else {
            run_alone(times, windows, begins);
        }
    }
    /// For each response; 0 of threads.
    [[nodiscard]] double cycles() const { return cycles_.median(); }
    void close() {
        for (Requester& each : all_) {
            for (Client& client : each.clients) (void)client.close(patience());
        }
        for (Dispatcher& each : dispatchers_) (void)each.close(patience());
    }

  private:
    void record(base::Histogram& times, std::uint64_t begin, std::uint64_t now) const {
        times.record(static_cast<std::uint64_t>(static_cast<double>(now - begin) * ns_per_tick_));
    }

    void run_alone(base::Histogram& times, std::optional<ResponseWindows>& windows,
                   const std::function<void()>& begins) {
        const std::size_t asking =
            std::max<std::size_t>(1, all_.size() - all_.size() * chosen_.idle_percent / 100);
        std::vector<std::size_t> order(all_.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::size_t next = asking % order.size();  // whose turn comes when one has its answer
        for (std::size_t i = 0; i < asking; ++i) all_[order[i]].ask(chosen_);
        const auto lap = [&] {
            for (Dispatcher& each : dispatchers_) (void)each.turn();
            for (std::size_t i = 0; i < asking; ++i) {
                const std::uint64_t looks = base::ticks();
                const Requester& one = all_[order[i]];
                if (!all_[order[i]].has_answer(chosen_)) continue;
                const std::uint64_t now = base::ticks();
                record(times, one.begin, now);
                if (windows) windows->answered(now);
                if (asking != order.size()) {
                    std::swap(order[i], order[next]);
                    if (++next == order.size()) next = asking;
                }
                all_[order[i]].ask(chosen_);
                cycles_.add(base::ticks() - looks, 1);
            }
        };
        const std::uint64_t warm = base::ticks() + base::ticks_in(chosen_.duration / 10);
        while (base::ticks() < warm) lap();
        times = {};
        cycles_ = {};
        begins();
        windows.emplace(chosen_.duration);
        while (!windows->is_over()) lap();
    }

    void run_threads(base::Histogram& times, std::optional<ResponseWindows>& windows,
                     const std::function<void()>& begins) {
        std::atomic<bool> ends{false};
        std::exception_ptr failure;
        std::mutex lock;
        begins();
        windows.emplace(chosen_.duration);
        workload::CrowdFigures figures;
        {
            std::vector<std::jthread> serving;
            for (Dispatcher& each : dispatchers_) {
                serving.emplace_back([&] {
                    try {
                        each.adopt();
                        (void)each.run(base::Deadline::after(std::chrono::seconds{50}));
                    } catch (...) {
                        const std::lock_guard guard{lock};
                        failure = std::current_exception();
                        ends = true;
                    }
                });
            }
            try {
                figures =
                    workload::run_crowd({.members = all_.size()}, [&](workload::CrowdMember& me) {
                        (void)me.begin();
                        while (!ends.load(std::memory_order_relaxed)) {
                            all_[me.number()].call_many(chosen_, [&](std::uint64_t begin) {
                                me.record(begin);
                                windows->answered(base::ticks());
                            });
                            if (windows->is_over()) ends = true;
                        }
                    });
            } catch (...) {
                const std::lock_guard guard{lock};
                failure = std::current_exception();
            }
            for (Dispatcher& each : dispatchers_) each.stop();
        }
        for (Dispatcher& each : dispatchers_) each.adopt();
        if (failure != nullptr) std::rethrow_exception(failure);
        times.add(*figures.ns);
    }

    CyclesOfWindows cycles_;
    RpcCase chosen_;
    double ns_per_tick_ = 1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}));
    std::vector<Dispatcher> dispatchers_;
    std::vector<Requester> all_;
};

}  // namespace

RpcResult measure_rpc(const RpcCase& chosen) {
    require(chosen.response_bytes >= 16 && chosen.requesters >= 1 && chosen.responders >= 1 &&
                chosen.responders <= most_responders && chosen.window >= 1 && chosen.window <= 64 &&
                (chosen.window == 1 || (chosen.threads && chosen.responders == 1)) &&
                chosen.memory_bytes >= chosen.response_bytes && chosen.idle_percent < 100 &&
                (chosen.idle_percent == 0 || !chosen.threads),
            "this case");
    // Here, where it says why.
    if (chosen.pages == Pages::huge) (void)ResponseMemory{std::size_t{4} << 20, chosen.pages};
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", chosen.device};
    RpcResult result;
    run_pair(
        {.shared_bytes = sizeof(Board), .deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            Requesters requesters{pair, chosen};
            Board& board = *pair.shared_at<Board>(0);
            auto times = std::make_unique<base::Histogram>();
            std::optional<ResponseWindows> windows;
            requesters.run(*times, windows,
                           [&] { board.phase.store(Board::measuring, std::memory_order_relaxed); });
            board.phase.store(Board::over, std::memory_order_relaxed);
            pair.meet();
            const auto bytes = static_cast<double>(chosen.response_bytes);
            result.per_second = windows->per_second();
            result.megabytes_per_second = result.per_second * bytes / 1e6;
            result.median_us = static_cast<double>(times->quantile(0.5)) / 1e3;
            result.p99_us = static_cast<double>(times->quantile(0.99)) / 1e3;
            result.requester_cycles_per_byte = requesters.cycles() / bytes;
            result.responder_cycles_per_message = board.cycles;
            result.responder_cycles_per_byte = board.cycles / bytes;
            result.empty_percent = 100 * (1 - board.found / std::max(1.0, board.looked_at));
            requesters.close();
            return 0.0;
        },
        [&](Pair& pair) { respond(pair, chosen); });
    return result;
}

}  // namespace millrace::bench
