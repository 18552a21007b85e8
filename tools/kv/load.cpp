#include "kv/load.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "kv/pace.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/kv/client.hpp"

namespace millrace::tools {
namespace {

constexpr std::chrono::seconds patience{30};

[[noreturn]] void fail(const std::string& what, const std::string& why,
                       const std::string& remedy = {}) {
    throw base::Error{base::ErrorCode::protocol, "load a key-value server", what, why, remedy};
}
constexpr const char* see_the_server = "see why the server ended";

/// Key number `number`, and the value that belongs to it.
class Items {
  public:
    explicit Items(const KvLoad& load)
        : key_(load.key_bytes, std::byte{'k'}), value_(load.value_bytes) {}
    [[nodiscard]] std::span<const std::byte> key(std::uint64_t number) {
        std::memcpy(key_.data(), &number, sizeof number);
        return key_;
    }
    [[nodiscard]] std::span<const std::byte> value(std::uint64_t number) {
        for (std::size_t at = 0; at < value_.size(); ++at) value_[at] = byte_at(number, at);
        return value_;
    }
    [[nodiscard]] bool is_value(std::uint64_t number,
                                std::span<const std::byte> found) const noexcept {
        if (found.size() != value_.size()) return false;
        for (std::size_t at = 0; at < found.size(); ++at) {
            if (found[at] != byte_at(number, at)) return false;
        }
        return true;
    }

  private:
    [[nodiscard]] static std::byte byte_at(std::uint64_t number, std::size_t at) noexcept {
        return static_cast<std::byte>(number >> (at % 5 * 8) ^ at);
    }
    std::vector<std::byte> key_;
    std::vector<std::byte> value_;
};

/// What is on its way under one id.
struct OnItsWay {
    std::uint64_t id = 0;
    std::uint64_t key = 0;
    std::uint64_t ticks = 0;
    bool is_get = false;
};

/// One client's thread.
class Worker {
  public:
    Worker(const KvLoad& load, unsigned number)
        : load_{load},
          items_{load},
          random_{number + 1},
          ns_per_tick_{1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}))},
          client_{
              kv::Client::connect(load.server, options_of(load), base::Deadline::after(patience))} {
        on_their_way_.resize(load.outstanding);
    }

    /// Sets every `step`th key from `first` on.
    void fill(std::uint64_t first, std::uint64_t step) {
        std::uint64_t next = first;
        while (next < load_.keys || client_.outstanding() != 0) {
            if (next < load_.keys && send(next, false)) {
                next += step;
                if (first == 0 && load_.filled && next % (64 * step) == 0) {
                    load_.filled(static_cast<double>(next) / static_cast<double>(load_.keys));
                }
                continue;
            }
            take(nullptr);
        }
    }

    /// Until `ends`, or so many operations.
    void run(const base::Deadline& ends, std::uint64_t operations, KvLoadResult& result) {
        std::uint64_t sent = 0;
        const bool counted = operations != 0;
        unsigned until_look = 1;
        bool over = false;
        while (!over || client_.outstanding() != 0) {
            if (!over) {
                // The clock is read for each request anyway, but not asked for each.
                if (counted) {
                    over = sent == operations;
                } else if (--until_look == 0) {
                    until_look = 16;
                    over = ends.expired();
                }
                if (!over && client_.outstanding() < load_.outstanding) {
                    const bool get = random_() % 100 < load_.get_percent;
                    if (send(random_() % load_.keys, get)) {
                        ++sent;
                        continue;
                    }
                }
                if (over) continue;
            }
            take(&result);
        }
        result.per_client.push_back(sent);
    }
    /// Each request when it is due, or as soon behind that as there is a place for it.
    void run_offered(Pace pace, base::Clock::time_point end, KvLoadResult& result) {
        end_sleeps_at_once();
        std::uint64_t sent = 0;
        while (pace.due() < end || client_.outstanding() != 0) {
            const bool has_place = pace.due() < end && client_.outstanding() < load_.outstanding;
            if (has_place && pace.is_due()) {
                const bool get = random_() % 100 < load_.get_percent;
                if (send(random_() % load_.keys, get, pace.due_ticks())) {
                    ++sent;
                    pace.next();
                    continue;
                }
            } else if (has_place && client_.outstanding() == 0) {
                pace.sleep();
                continue;
            } else if (has_place) {
                take(&result, pace.due());
                continue;
            }
            take(&result);
        }
        result.per_client.push_back(sent);
    }
    void close() { (void)client_.close(base::Deadline::after(patience)); }

  private:
    static message::ClientOptions options_of(const KvLoad& load) {
        message::ClientOptions options = load.client;
        options.window = std::max(load.outstanding, 1U);
        return options;
    }

    /// False: there is no room.
    bool send(std::uint64_t key, bool get) { return send(key, get, base::ticks()); }
    bool send(std::uint64_t key, bool get, std::uint64_t since) {
        kv::RequestParts parts{.key = items_.key(key)};
        if (!get) parts.value = items_.value(key);
        std::uint64_t id = 0;
        const kv::Command command = get ? kv::Command::get : kv::Command::set;
        // With nothing on its way there is no answer to wait for, but perhaps room.
        const base::Status status =
            client_.outstanding() == 0
                ? client_.submit(command, parts, id, base::Deadline::after(patience))
                : client_.submit(command, parts, id);
        if (status == base::Status::full) return false;
        if (status != base::Status::ok) fail("a request", std::string{base::name_of(status)});
        on_their_way_[id % on_their_way_.size()] = {id, key, since, get};
        return true;
    }

    void take(KvLoadResult* result) {
        if (!take_before(result, base::Deadline::after(patience))) {
            fail("an answer", "there is none in time");
        }
    }
    /// At most until then.
    void take(KvLoadResult* result, base::Clock::time_point then) {
        (void)take_before(result, base::Deadline::at(then));
    }
    /// False: there was none.
    bool take_before(KvLoadResult* result, const base::Deadline& deadline) {
        const base::Status status = client_.wait(
            [&](const kv::Answer& answer) {
                const OnItsWay& sent = on_their_way_[answer.id % on_their_way_.size()];
                // The server answers a client's requests in their order.
                if (sent.id != answer.id) fail("an answer", "it is to a request of long ago");
                if (result != nullptr) count(sent, answer, *result);
                check(sent, answer);
            },
            deadline);
        if (status == base::Status::timed_out) return false;
        if (status != base::Status::ok) {
            const std::string why = client_.failure();
            fail("an answer",
                 status == base::Status::closed
                     ? "the server has closed the connection"
                     : fmt::format("{}{}{}", base::name_of(status), why.empty() ? "" : ", ", why),
                 see_the_server);
        }
        return true;
    }
    void count(const OnItsWay& sent, const kv::Answer& answer, KvLoadResult& result) const {
        const auto ns = static_cast<std::uint64_t>(static_cast<double>(base::ticks() - sent.ticks) *
                                                   ns_per_tick_);
        if (sent.is_get) {
            ++result.gets;
            result.get_ns->record(ns);
            if (answer.result.ok()) ++result.hits;
        } else {
            ++result.sets;
            result.set_ns->record(ns);
        }
    }
    void check(const OnItsWay& sent, const kv::Answer& answer) const {
        const bool missed = sent.is_get && answer.result.code == kv::Code::key_error;
        const char* const what = sent.is_get ? "a GET" : "a SET";
        if (answer.result.code == kv::Code::unanswered) {
            fail(what,
                 fmt::format("there is no answer: {}", message::name_of(answer.result.outcome)),
                 see_the_server);
        }
        if (!answer.result.ok() && !missed) {
            fail(what, fmt::format("the answer is {}", kv::name_of(answer.result.code)),
                 answer.result.code == kv::Code::store_error
                     ? "give the server more --memory or --when-full evict, or load fewer --keys"
                     : "");
        }
        if (sent.is_get && answer.result.ok() && !items_.is_value(sent.key, answer.value)) {
            fail(what, "the value is not the one that was set");
        }
    }

    const KvLoad& load_;
    Items items_;
    std::minstd_rand random_;
    double ns_per_tick_;
    kv::Client client_;
    std::vector<OnItsWay> on_their_way_;  ///< by id: as many as may be without an answer
};

/// The first failure of any thread.
class FirstFailure {
  public:
    void note() noexcept {
        const std::lock_guard guard{lock_};
        if (failure_ == nullptr) failure_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
    }
    [[nodiscard]] bool any() const noexcept { return failed_.load(std::memory_order_acquire); }
    void rethrow() const {
        if (failure_ != nullptr) std::rethrow_exception(failure_);
    }

  private:
    std::mutex lock_;
    std::exception_ptr failure_;
    std::atomic<bool> failed_{false};
};

void check(const KvLoad& load) {
    const auto refuse = [](const std::string& what, const char* remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "load a key-value server", what,
                          "it is out of range", remedy};
    };
    if (load.clients == 0) refuse("no client", "choose 1 or more");
    if (load.outstanding == 0 || load.outstanding > message::largest_window) {
        refuse(fmt::format("{} outstanding requests", load.outstanding), "choose 1 to 4096");
    }
    if (load.keys == 0) refuse("no key", "choose 1 or more");
    if (load.key_bytes < 8 || load.key_bytes > kv::longest_key) {
        refuse(fmt::format("keys of {} bytes", load.key_bytes), "choose 8 to 65536");
    }
    if (load.value_bytes > kv::longest_value) {
        refuse(fmt::format("values of {} bytes", load.value_bytes), "choose at most 1048576");
    }
    if (load.get_percent > 100) refuse("more than 100 % GETs", "choose 0 to 100");
    if (!(load.offered_per_second >= 0 && load.offered_per_second <= 1e9)) {
        refuse(fmt::format("{} requests a second", load.offered_per_second), "choose at most 10^9");
    }
    if (load.offered_per_second != 0 && load.operations != 0) {
        refuse("a rate and a number of operations", "choose a time for the rate");
    }
}

}  // namespace

void fill_store(const KvLoad& load, kv::Store& store) {
    check(load);
    Items items{load};
    for (std::uint64_t number = 0; number < load.keys; ++number) {
        const kv::SetResult result = store.set(items.key(number), items.value(number));
        if (result.outcome != kv::Outcome::ok) {
            fail("an item", std::string{kv::name_of(result.outcome)}, "give the store more memory");
        }
    }
}

KvLoadResult run_load(const KvLoad& load) {
    check(load);
    std::vector<std::unique_ptr<Worker>> workers;
    for (unsigned i = 0; i < load.clients; ++i) {
        workers.push_back(std::make_unique<Worker>(load, i));
    }
    std::vector<KvLoadResult> results(load.clients);
    FirstFailure failure;
    base::Clock::time_point start{};
    base::Deadline ends = base::Deadline::never();
    std::barrier ready{static_cast<std::ptrdiff_t>(load.clients), [&]() noexcept {
                           start = base::Clock::now();
                           ends = base::Deadline::at(start + load.duration);
                       }};
    {
        std::vector<std::jthread> threads;
        for (unsigned i = 0; i < load.clients; ++i) {
            threads.emplace_back([&, i] {
                try {
                    if (load.fill) workers[i]->fill(i, load.clients);
                } catch (...) {
                    failure.note();
                }
                ready.arrive_and_wait();
                if (failure.any()) return;
                try {
                    const std::uint64_t share = load.operations / load.clients +
                                                (i < load.operations % load.clients ? 1 : 0);
                    if (load.offered_per_second != 0) {
                        workers[i]->run_offered(
                            Pace{load.offered_per_second / load.clients, i + 1, start},
                            start + load.duration, results[i]);
                    } else if (load.operations == 0 || share != 0) {
                        workers[i]->run(ends, share, results[i]);
                    }
                } catch (...) {
                    failure.note();
                }
            });
        }
    }
    failure.rethrow();
    KvLoadResult all;
    all.seconds = static_cast<double>((base::Clock::now() - start).count()) / 1e9;
    for (KvLoadResult& one : results) {
        all.gets += one.gets;
        all.hits += one.hits;
        all.sets += one.sets;
        all.get_ns->add(*one.get_ns);
        all.set_ns->add(*one.set_ns);
        all.per_client.push_back(one.operations());
    }
    for (auto& worker : workers) worker->close();
    return all;
}

}  // namespace millrace::tools
