#include "requesters.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "bench/framework/meeting.hpp"
#include "bench/framework/payload.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/dispatcher.hpp"
#include "sides.hpp"
#include "workload/crowd.hpp"

namespace millrace::bench {
namespace {

using base::Status;
using message::Client;
using message::Dispatcher;
using message::Port;

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

/// Each dispatcher in a thread of its own while this lives. They belong to the calling thread
/// before and after.
class DispatcherThreads {
  public:
    explicit DispatcherThreads(std::span<Dispatcher> dispatchers) : dispatchers_{dispatchers} {
        for (Dispatcher& each : dispatchers_) {
            threads_.emplace_back([this, &each] {
                try {
                    each.adopt();
                    (void)each.run(base::Deadline::after(std::chrono::seconds{50}));
                } catch (...) {
                    const std::lock_guard guard{lock_};
                    failure_ = std::current_exception();
                    has_failed_ = true;
                }
            });
        }
    }
    DispatcherThreads(const DispatcherThreads&) = delete;
    DispatcherThreads& operator=(const DispatcherThreads&) = delete;
    ~DispatcherThreads() {
        for (Dispatcher& each : dispatchers_) each.stop();
        for (std::jthread& each : threads_) each.join();
        for (Dispatcher& each : dispatchers_) each.adopt();
    }

    [[nodiscard]] bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
    /// Throws what one of them has thrown.
    void check() {
        if (!has_failed()) return;
        const std::lock_guard guard{lock_};
        std::rethrow_exception(failure_);
    }

  private:
    std::span<Dispatcher> dispatchers_;
    std::mutex lock_;
    std::exception_ptr failure_;
    std::atomic<bool> has_failed_{false};
    std::vector<std::jthread> threads_;
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
        if (chosen.threads || chosen.dispatcher_threads) options.wait = shared_core;
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
    [[nodiscard]] double all_cycles() const { return all_cycles_.median(); }
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
        std::optional<DispatcherThreads> serving;
        if (chosen_.dispatcher_threads) serving.emplace(dispatchers_);
        std::size_t next = asking % order.size();  // whose turn comes when one has its answer
        for (std::size_t i = 0; i < asking; ++i) all_[order[i]].ask(chosen_);
        const auto lap = [&] {
            if (!serving) {
                for (Dispatcher& each : dispatchers_) (void)each.turn();
            }
            bool has_found = false;
            for (std::size_t i = 0; i < asking; ++i) {
                const std::uint64_t looks = base::ticks();
                const Requester& one = all_[order[i]];
                if (!all_[order[i]].has_answer(chosen_)) continue;
                has_found = true;
                const std::uint64_t now = base::ticks();
                record(times, one.begin, now);
                if (windows) windows->answered(now);
                if (asking != order.size()) {
                    std::swap(order[i], order[next]);
                    if (++next == order.size()) next = asking;
                }
                all_[order[i]].ask(chosen_);
                const std::uint64_t asked = base::ticks();
                cycles_.add(asked - looks, 1);
                all_cycles_.add_until(asked, 1);
            }
            if (!serving) return;
            serving->check();
            if (!has_found) std::this_thread::yield();  // the dispatchers may share this core
        };
        const std::uint64_t warm = base::ticks() + base::ticks_in(chosen_.duration / 10);
        while (base::ticks() < warm) lap();
        times = {};
        cycles_ = {};
        all_cycles_ = {};
        begins();
        windows.emplace(chosen_.duration);
        while (!windows->is_over()) lap();
    }

    void run_threads(base::Histogram& times, std::optional<ResponseWindows>& windows,
                     const std::function<void()>& begins) {
        std::atomic<bool> ends{false};
        begins();
        windows.emplace(chosen_.duration);
        DispatcherThreads serving{dispatchers_};
        const workload::CrowdFigures figures =
            workload::run_crowd({.members = all_.size()}, [&](workload::CrowdMember& me) {
                (void)me.begin();
                while (!ends.load(std::memory_order_relaxed) && !serving.has_failed()) {
                    all_[me.number()].call_many(chosen_, [&](std::uint64_t begin) {
                        me.record(begin);
                        windows->answered(base::ticks());
                    });
                    if (windows->is_over()) ends = true;
                }
            });
        serving.check();
        times.add(*figures.ns);
    }

    CyclesOfWindows cycles_;
    CyclesOfWindows all_cycles_;
    RpcCase chosen_;
    double ns_per_tick_ = 1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}));
    std::vector<Dispatcher> dispatchers_;
    std::vector<Requester> all_;
};

}  // namespace

void ask_and_count(Pair& pair, const RpcCase& chosen, const std::vector<int>& cores,
                   RpcResult& result) {
    if (chosen.threads || chosen.dispatcher_threads) base::bind_this_thread(cores);
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
    result.requester_all_cycles_per_byte = requesters.all_cycles() / bytes;
    result.responder_cycles_per_message = board.cycles;
    result.responder_cycles_per_byte = board.cycles / bytes;
    result.responder_all_cycles_per_message = board.all_cycles;
    result.responder_cycles_per_vain_look = board.vain_cycles;
    result.responder_all_cycles_per_byte = board.all_cycles / bytes;
    result.empty_percent = 100 * (1 - board.found / std::max(1.0, board.looked_at));
    requesters.close();
}

}  // namespace millrace::bench
