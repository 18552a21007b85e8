#include "measure_ycsb.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/kv/own_server.hpp"
#include "bench/peers/memcached.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "workload/crowd.hpp"

namespace millrace::bench {
namespace {

constexpr const char* measuring = "measure a workload of YCSB";

/// One client. Its thread alone.
class YcsbClient {
  public:
    YcsbClient(const YcsbCase& chosen, std::unique_ptr<YcsbConnection> connection,
               workload::InsertedRecords& inserted, std::size_t number)
        : chosen_{chosen},
          connection_{std::move(connection)},
          inserted_{inserted},
          random_{number + 1},
          // As many as were loaded may come: a run ends by time, and not by a count of operations.
          chooser_{chosen.workload.distribution, chosen.records,
                   chosen.workload.percent_of(workload::YcsbOperation::insert) != 0 ? chosen.records
                                                                                    : 0},
          format_{chosen.fields, chosen.field_bytes},
          value_(format_.size()),
          ns_per_tick_{1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}))} {}

    /// Inserts every `step`th record from `first` on.
    void load(std::uint64_t first, std::uint64_t step) {
        for (std::uint64_t record = first; record < chosen_.records; record += step) {
            if (write(record) == YcsbOutcome::ok) continue;
            throw base::Error{base::ErrorCode::resource_exhausted, measuring,
                              fmt::format("record {} of {}", record, chosen_.records),
                              "the store has refused it while records were loaded",
                              "give the store more memory, or load fewer --records"};
        }
    }

    /// Carries out the next one.
    void operate() {
        give_up_if_late();
        operation_ = chosen_.workload.next(random_);
        is_right_ = true;
        switch (operation_) {
            case workload::YcsbOperation::read: outcome_ = read(choose()); break;
            case workload::YcsbOperation::update: outcome_ = write(choose()); break;
            case workload::YcsbOperation::insert: outcome_ = insert(); break;
            case workload::YcsbOperation::scan: outcome_ = scan(choose()); break;
            case workload::YcsbOperation::read_modify_write: outcome_ = change(choose()); break;
        }
    }
    /// What the last one took counts, and began or was due then.
    void record(std::uint64_t since) {
        if (outcome_ == YcsbOutcome::missing) {
            ++result_.missing;
        } else if (outcome_ == YcsbOutcome::refused) {
            ++result_.refused;
        } else if (!is_right_) {
            ++result_.wrong;
        } else {
            result_.times[static_cast<std::size_t>(operation_)]->record(static_cast<std::uint64_t>(
                static_cast<double>(base::ticks() - since) * ns_per_tick_));
        }
    }
    [[nodiscard]] const YcsbResult& result() const noexcept { return result_; }

  private:
    [[nodiscard]] std::uint64_t choose() { return chooser_.next(inserted_.last(), random_); }

    YcsbOutcome read(std::uint64_t record) {
        record_ = record;
        workload::write_key(record, key_);
        return connection_->read(key_, take_value_);
    }
    YcsbOutcome write(std::uint64_t record) {
        format_.fill(record, value_, random_);
        workload::write_key(record, key_);
        return connection_->write(key_, value_);
    }
    YcsbOutcome insert() {
        const std::uint64_t record = inserted_.take();
        const YcsbOutcome outcome = write(record);
        inserted_.acknowledge(record);
        return outcome;
    }
    YcsbOutcome scan(std::uint64_t first) {
        record_ = first;
        const std::uint64_t length =
            std::min(1 + workload::number_below(workload::longest_scan, random_),
                     inserted_.last() + 1 - first);
        keys_.resize(length);
        for (std::uint64_t i = 0; i != length; ++i) workload::write_key(first + i, keys_[i]);
        return connection_->read_several(keys_, take_one_value_);
    }
    YcsbOutcome change(std::uint64_t record) {
        const YcsbOutcome outcome = read(record);
        if (outcome != YcsbOutcome::ok || !is_right_) return outcome;
        format_.fill_field(record, workload::number_below(format_.fields(), random_), value_,
                           random_);
        return connection_->write(key_, value_);
    }

    /// Operations that are due are made, however late: but not for ever.
    void give_up_if_late() {
        if (chosen_.offered_per_second == 0) return;
        if (!end_) {
            end_ = base::Deadline::after(4 * (chosen_.warm_up + chosen_.duration) +
                                         std::chrono::seconds{10});
        }
        if (!end_->expired()) return;
        throw base::Error{base::ErrorCode::timed_out, measuring,
                          fmt::format("{:.0f} operations a second", chosen_.offered_per_second),
                          "the store is not a quarter as fast", "choose a lower --rate"};
    }

    const YcsbCase& chosen_;
    std::unique_ptr<YcsbConnection> connection_;
    workload::InsertedRecords& inserted_;
    workload::Random random_;
    workload::RecordChooser chooser_;
    workload::RecordFormat format_;
    std::string key_;
    std::vector<std::string> keys_;
    std::vector<std::byte> value_;
    double ns_per_tick_;
    YcsbResult result_;
    std::optional<base::Deadline> end_;  ///< of an open loop

    // Of the last operation.
    workload::YcsbOperation operation_ = workload::YcsbOperation::read;
    YcsbOutcome outcome_ = YcsbOutcome::ok;
    bool is_right_ = true;
    std::uint64_t record_ = 0;  ///< the first that was read

    const YcsbConnection::TakeValue take_value_ = [this](std::span<const std::byte> value) {
        is_right_ = format_.is_of(record_, value);
        // A copy, as a program has it, and as is changed by what changes it.
        if (is_right_) std::copy(value.begin(), value.end(), value_.begin());
    };
    const YcsbConnection::TakeOneValue take_one_value_ = [this](std::size_t index,
                                                                std::span<const std::byte> value) {
        if (!format_.is_of(record_ + index, value)) is_right_ = false;
    };
};

void add(YcsbResult& all, const YcsbResult& one) {
    all.missing += one.missing;
    all.refused += one.refused;
    all.wrong += one.wrong;
    for (std::size_t i = 0; i != all.times.size(); ++i) all.times[i]->add(*one.times[i]);
}

/// What a run may take at most.
std::chrono::milliseconds longest_run(const YcsbCase& chosen) {
    const auto run =
        std::chrono::duration_cast<std::chrono::milliseconds>(chosen.warm_up + chosen.duration);
    return std::chrono::seconds{60} + 5 * run + std::chrono::milliseconds{chosen.records};
}

bool scans(const YcsbCase& chosen) {
    return chosen.workload.percent_of(workload::YcsbOperation::scan) != 0;
}

/// The program that speaks so, until this ends.
std::unique_ptr<WordsServer> server_of(YcsbWay::Protocol protocol) {
    if (protocol == YcsbWay::Protocol::redis) return std::make_unique<Redis>();
    return std::make_unique<Memcached>();
}

}  // namespace

YcsbResult::YcsbResult() {
    for (auto& one : times) one = std::make_unique<base::Histogram>();
}

YcsbResult run_ycsb_clients(const YcsbCase& chosen,
                            const std::function<std::unique_ptr<YcsbConnection>()>& connect) {
    workload::InsertedRecords inserted{chosen.records};
    std::vector<std::unique_ptr<YcsbClient>> clients;
    for (unsigned i = 0; i != chosen.clients; ++i) {
        clients.push_back(std::make_unique<YcsbClient>(chosen, connect(), inserted, i));
    }
    YcsbResult all;
    if (chosen.loads) {
        const workload::CrowdFigures loading =
            workload::run_crowd({.members = clients.size()}, [&](workload::CrowdMember& me) {
                (void)me.begin();
                clients[me.number()]->load(me.number(), clients.size());
            });
        all.load_per_second = static_cast<double>(chosen.records) / loading.seconds;
    }
    const workload::CrowdLoad load{
        .warm_up = chosen.warm_up,
        .duration = chosen.duration,
        .offered_per_second = chosen.offered_per_second / static_cast<double>(clients.size())};
    const workload::CrowdFigures running =
        workload::run_crowd({.members = clients.size()}, [&](workload::CrowdMember& me) {
            YcsbClient& client = *clients[me.number()];
            workload::call_in_turn(
                me, load, [&] { client.operate(); },
                [&](std::uint64_t since) { client.record(since); });
        });
    std::uint64_t operations = 0;
    for (const auto& client : clients) add(all, client->result());
    for (const auto& times : all.times) operations += times->count();
    const double seconds = running.seconds - std::chrono::duration<double>(chosen.warm_up).count();
    all.operations_per_second = static_cast<double>(operations) / seconds;
    return all;
}

YcsbResult measure_ycsb(const YcsbCase& chosen, const YcsbWay& way, const std::string& mode) {
    YcsbResult result;
    if (way.protocol == YcsbWay::Protocol::own) {
        const EnvironmentScope of_mode{"MILLRACE_SOFT_MODE", mode};
        const EnvironmentScope device{"MILLRACE_DEVICE", "soft0"};
        with_own_server({.transport = way.transport,
                         .by_unix_socket = way.name == "unix",
                         .clients = chosen.clients,
                         .deadline = longest_run(chosen)},
                        [&](const connect::Address& address) {
                            result = run_ycsb_clients(chosen, [&] {
                                return connect_ycsb(way, address, scans(chosen), patience());
                            });
                        });
        return result;
    }
    const std::unique_ptr<WordsServer> server = server_of(way.protocol);
    run_alone([&] {
        result = run_ycsb_clients(
            chosen, [&] { return ycsb_connection_of(way.protocol, server->client()); });
        return 0.0;
    });
    return result;
}

YcsbResult measure_ycsb_of(const YcsbCase& chosen, const YcsbWay& way, const std::string& server) {
    const auto address = connect::Address::parse(server);
    return run_ycsb_clients(chosen,
                            [&] { return connect_ycsb(way, address, scans(chosen), patience()); });
}

}  // namespace millrace::bench
