#include "kv_load.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "crowd.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/kv/client.hpp"

namespace millrace::workload {
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
            if (next < load_.keys && send(next, false, base::ticks())) {
                next += step;
                if (first == 0 && load_.filled && next % (64 * step) == 0) {
                    load_.filled(static_cast<double>(next) / static_cast<double>(load_.keys));
                }
                continue;
            }
            await(nullptr);
        }
    }

    /// From here on it counts, into `result`; operations are kept as of `origin`, in ticks.
    void begin(KvLoadResult& result, std::uint64_t origin) {
        result_ = &result;
        origin_ = origin;
        if (!load_.keeps_each) return;
        result.each.resize(1);
        result.each.front().reserve(load_.operations / load_.clients + 1);
    }

    // As workload/crowd.hpp has callers.
    bool send(std::uint64_t since) {
        const bool get = random_() % 100 < load_.get_percent;
        return send(random_() % load_.keys, get, since);
    }
    bool poll() {
        return was_answer(
            client_.poll([&](const kv::Answer& answer) { take_answer(answer, result_); }));
    }
    bool take(const base::Deadline& deadline) { return take_before(result_, deadline); }
    void await() { await(result_); }
    [[nodiscard]] std::string carrier() { return client_.link().carrier(); }
    [[nodiscard]] std::size_t outstanding() const { return client_.outstanding(); }

    void close() { (void)client_.close(base::Deadline::after(patience)); }

  private:
    static message::ClientOptions options_of(const KvLoad& load) {
        message::ClientOptions options = load.client;
        options.window = std::max(load.outstanding, 1U);
        return options;
    }

    /// False: there is no room.
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

    void await(KvLoadResult* result) {
        if (!take_before(result, base::Deadline::after(patience))) {
            fail("an answer", "there is none in time");
        }
    }
    /// False: there was none.
    bool take_before(KvLoadResult* result, const base::Deadline& deadline) {
        return was_answer(
            client_.wait([&](const kv::Answer& answer) { take_answer(answer, result); }, deadline));
    }
    void take_answer(const kv::Answer& answer, KvLoadResult* result) {
        const OnItsWay& sent = on_their_way_[answer.id % on_their_way_.size()];
        // The server answers a client's requests in their order.
        if (sent.id != answer.id) fail("an answer", "it is to a request of long ago");
        if (result != nullptr) count(sent, answer, *result);
        check(sent, answer);
    }
    [[nodiscard]] bool was_answer(base::Status status) {
        if (status == base::Status::timed_out || status == base::Status::empty) return false;
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
        if (load_.keeps_each) [[unlikely]]
            keep(sent, ns, result);
    }
    void keep(const OnItsWay& sent, std::uint64_t ns, KvLoadResult& result) const {
        // One that was due before all had begun began then.
        const std::uint64_t begin = sent.ticks - std::min(sent.ticks, origin_);
        result.each.front().push_back(
            {static_cast<std::uint64_t>(static_cast<double>(begin) * ns_per_tick_),
             static_cast<std::uint32_t>(
                 std::min<std::uint64_t>(ns, std::numeric_limits<std::uint32_t>::max())),
             sent.is_get});
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
    KvLoadResult* result_ = nullptr;      ///< of a run
    std::uint64_t origin_ = 0;            ///< ... which began then, in ticks
};

void check(const KvLoad& load) {
    const auto refuse = [](const std::string& what, const char* remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "load a key-value server", what,
                          "it is out of range", remedy};
    };
    if (load.clients == 0) refuse("no client", "choose 1 or more");
    if (load.threads > load.clients) {
        refuse(fmt::format("{} threads of {} clients", load.threads, load.clients),
               "choose at most as many threads as clients");
    }
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

/// Those of one thread of so many.
void run_workers(const KvLoad& load, std::span<Worker* const> workers, unsigned number,
                 unsigned threads, base::Clock::time_point start) {
    const base::Clock::time_point end = start + load.duration;
    if (load.offered_per_second != 0) {
        const Pace pace{load.offered_per_second / threads, number + 1, start};
        if (load.threads != 0) {
            (void)drive_when_due(workers, load.outstanding, pace, end);
        } else {
            (void)call_when_due(*workers[0], load.outstanding, pace, end);
        }
        return;
    }
    const std::uint64_t share = load.operations / threads + (number < load.operations % threads);
    const auto ends = base::Deadline::at(end);
    const std::uint64_t fast_enough = base::ticks_in(std::chrono::milliseconds{1});  // for 16
    unsigned until_look = 1;
    std::uint64_t looked = 0;
    const auto is_over = [&](std::uint64_t sent) {
        if (load.operations != 0) return sent == share;
        // The clock is not asked for each request, where these are fast.
        if (--until_look != 0) return false;
        const std::uint64_t now = base::ticks();
        until_look = now - looked < fast_enough ? 16 : 1;
        looked = now;
        return ends.expired();
    };
    if (load.threads != 0) {
        (void)drive(workers, load.outstanding, is_over);
    } else {
        (void)keep_calling(*workers[0], load.outstanding, is_over);
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
    const std::string carrier = workers.front()->carrier();
    std::vector<KvLoadResult> results(load.clients);
    const unsigned threads = load.threads == 0 ? load.clients : load.threads;
    const std::uint64_t origin = base::ticks();
    const CrowdFigures figures = run_crowd({.members = threads}, [&](CrowdMember& me) {
        const auto number = static_cast<unsigned>(me.number());
        std::vector<Worker*> mine;
        for (unsigned i = number; i < load.clients; i += threads) {
            if (load.fill) workers[i]->fill(i, load.clients);
            workers[i]->begin(results[i], origin);
            mine.push_back(workers[i].get());
        }
        const base::Clock::time_point start = me.begin();
        run_workers(load, mine, number, threads, start);
    });
    KvLoadResult all;
    all.carrier = carrier;
    all.seconds = figures.seconds;
    for (KvLoadResult& one : results) {
        all.gets += one.gets;
        all.hits += one.hits;
        all.sets += one.sets;
        all.get_ns->add(*one.get_ns);
        all.set_ns->add(*one.set_ns);
        all.per_client.push_back(one.operations());
        for (auto& kept : one.each) all.each.push_back(std::move(kept));
    }
    for (auto& worker : workers) worker->close();
    return all;
}

}  // namespace millrace::workload
