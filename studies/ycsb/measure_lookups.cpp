#include "measure_lookups.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "bench/kv/own_server.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/store.hpp"
#include "workload/crowd.hpp"
#include "workload/ycsb/generators.hpp"

namespace millrace::bench {
namespace {

using LookupKey = std::array<std::byte, 8>;

LookupKey key_of_field(std::uint32_t record, std::uint32_t field) noexcept {
    return std::bit_cast<LookupKey>(std::array{record, field});
}

void fill_lookup_store(kv::Store& store, std::size_t value_bytes) {
    std::vector<std::byte> value(value_bytes);
    for (std::uint32_t record = 0; record != lookup_records; ++record) {
        for (std::uint32_t field = 0; field != lookup_fields; ++field) {
            const LookupKey key = key_of_field(record, field);
            std::memcpy(value.data(), key.data(), key.size());
            require(store.set(key, value).outcome == kv::Outcome::ok, "a field");
        }
    }
}

/// What is looked up, in its order, over and over.
class LookupOrder {
  public:
    explicit LookupOrder(std::uint64_t seed) {
        workload::Random random{seed};
        const workload::ScrambledZipfian records{lookup_records};
        for (LookupKey& key : keys_) {
            key = key_of_field(
                static_cast<std::uint32_t>(records.next(random)),
                static_cast<std::uint32_t>(workload::number_below(lookup_fields, random)));
        }
    }
    [[nodiscard]] const LookupKey& next() noexcept { return keys_[at_++ % keys_.size()]; }

  private:
    std::vector<LookupKey> keys_ = std::vector<LookupKey>(std::size_t{1} << 16);
    std::size_t at_ = 0;
};

void check_field(const LookupKey& key, std::span<const std::byte> value, std::size_t bytes) {
    require_intact(value.size() == bytes && std::memcmp(value.data(), key.data(), key.size()) == 0,
                   "a field");
    keep(read_all(value.data(), value.size()));
}

LookupResult lookups_in_table(const LookupCase& chosen) {
    LookupResult result;
    run_alone([&] {
        kv::Store store{{}};
        fill_lookup_store(store, chosen.value_bytes);
        LookupOrder order{1};
        result.us = median_step(Windows{chosen.lookups},
                                [&](std::uint64_t) {
                                    const LookupKey& key = order.next();
                                    const kv::Outcome outcome =
                                        store.get(key, [&](const kv::Entry& entry) {
                                            check_field(key, entry.value, chosen.value_bytes);
                                        });
                                    require(outcome == kv::Outcome::ok, "a lookup");
                                }) /
                    1e3;
        return 0.0;
    });
    return result;
}

OwnServerCase lookup_server(std::size_t clients, std::size_t value_bytes) {
    OwnServerCase made;
    made.clients = clients;
    made.fill = [value_bytes](kv::Store& store) { fill_lookup_store(store, value_bytes); };
    return made;
}

/// A client of a load: as workload/crowd.hpp has callers.
class LookupCaller {
  public:
    LookupCaller(const connect::Address& address, std::size_t value_bytes, std::uint64_t seed)
        : order_{seed},
          value_bytes_{value_bytes},
          client_{kv::Client::connect(address, {.window = 1}, patience())} {}
    /// Answers from here on count there. Null: nowhere.
    void count_in(base::Histogram* times) noexcept { times_ = times; }
    void close() { (void)client_.close(patience()); }

    bool send(std::uint64_t since) {
        key_ = &order_.next();
        std::uint64_t id = 0;
        const base::Status status = client_.submit(kv::Command::get, {.key = *key_}, id);
        if (status == base::Status::full) return false;
        require(status, "a lookup");
        since_ = since;
        return true;
    }
    bool poll() {
        const base::Status status =
            client_.poll([&](const kv::Answer& answer) { take_answer(answer); });
        if (status == base::Status::empty) return false;
        require(status, "an answer");
        return true;
    }
    void await() {
        require(client_.wait([&](const kv::Answer& answer) { take_answer(answer); }, patience()),
                "an answer");
    }
    [[nodiscard]] std::size_t outstanding() const noexcept { return client_.outstanding(); }

  private:
    void take_answer(const kv::Answer& answer) {
        require(answer.result.ok(), "a lookup");
        check_field(*key_, answer.value, value_bytes_);
        if (times_ != nullptr) {
            times_->record(static_cast<std::uint64_t>(static_cast<double>(base::ticks() - since_) *
                                                      ns_per_tick_));
        }
    }

    LookupOrder order_;
    std::size_t value_bytes_;
    kv::Client client_;
    const LookupKey* key_ = nullptr;  ///< of what is on its way
    std::uint64_t since_ = 0;
    base::Histogram* times_ = nullptr;
    double ns_per_tick_ = 1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}));
};

}  // namespace

LookupResult measure_lookups(const LookupCase& chosen) {
    if (chosen.way == LookupWay::table) return lookups_in_table(chosen);
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", "soft0"};
    const EnvironmentScope carrier{"MILLRACE_CARRIER",
                                   chosen.way == LookupWay::posted ? "post" : "automatic"};
    const bool is_socket = chosen.way == LookupWay::tcp || chosen.way == LookupWay::unix_socket;
    OwnServerCase server = lookup_server(1, chosen.value_bytes);
    if (is_socket) server.transport = connect::Transport::tcp;
    server.by_unix_socket = chosen.way == LookupWay::unix_socket;
    server.client_core = chosen.client_core;
    server.server_core = chosen.server_core;
    LookupResult result;
    std::uint64_t own_switches = 0;
    const Windows windows{chosen.lookups};
    const std::uint64_t of_server = with_own_server(server, [&](const connect::Address& address) {
        message::ClientOptions options;
        options.transport = server.transport;
        options.window = 1;
        auto client = kv::Client::connect(address, options, patience());
        LookupOrder order{1};
        const std::uint64_t before = context_switches();
        result.us = median_step(windows,
                                [&](std::uint64_t) {
                                    const LookupKey& key = order.next();
                                    const kv::Result got = client.get(
                                        key,
                                        [&](std::span<const std::byte> value) {
                                            check_field(key, value, chosen.value_bytes);
                                        },
                                        patience());
                                    require(got.ok(), "a lookup");
                                }) /
                    1e3;
        own_switches = context_switches() - before;
        (void)client.close(patience());
    });
    result.switches =
        static_cast<double>(own_switches + of_server) / static_cast<double>(windows.total());
    return result;
}

LookupLoadResult measure_lookup_load(const LookupLoadCase& chosen) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", "soft0"};
    constexpr std::size_t value_bytes = 100;
    LookupLoadResult result;
    with_own_server(
        lookup_server(chosen.clients_at_most, value_bytes), [&](const connect::Address& address) {
            std::vector<std::unique_ptr<LookupCaller>> all;
            std::vector<LookupCaller*> callers;
            for (std::size_t i = 0; i != chosen.clients_at_most; ++i) {
                all.push_back(std::make_unique<LookupCaller>(address, value_bytes, i + 1));
                callers.push_back(all.back().get());
            }
            const std::span<LookupCaller* const> everyone{callers};
            const auto per_second = [&](std::chrono::nanoseconds duration) {
                const auto start = base::Clock::now();
                const std::uint64_t made = workload::drive(everyone, 1, [&](std::uint64_t) {
                    return base::Clock::now() >= start + duration;
                });
                return static_cast<double>(made) / nanoseconds_since(start) * 1e9;
            };
            (void)per_second(chosen.duration / 4);  // what comes first warms up
            result.capacity = per_second(chosen.duration / 2);
            const auto times = std::make_shared<base::Histogram>();
            const std::span<LookupCaller* const> some = everyone.first(chosen.clients);
            for (LookupCaller* const one : some) one->count_in(times.get());
            const auto start = base::Clock::now();
            const std::uint64_t made = workload::drive_when_due(
                some, 1, workload::Pace{result.capacity * chosen.share, 1, start},
                start + chosen.duration);
            result.per_second = static_cast<double>(made) / nanoseconds_since(start) * 1e9;
            result.times = times;
            for (const auto& one : all) one->close();
        });
    return result;
}

}  // namespace millrace::bench
