#include "store.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "command_line/output.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/kv/server.hpp"
#include "workload/kv_load.hpp"

namespace millrace::tools::demo {
namespace {

constexpr std::chrono::milliseconds duration{500};

/// A store in a process of its own, which ends with this one.
class StoreProcess {
  public:
    explicit StoreProcess(connect::Address address) : address_{std::move(address)} {
        std::fflush(nullptr);
        base::flush_log();
        const pid_t parent = ::getpid();
        child_ = ::fork();
        if (child_ < 0) base::throw_errno(errno, "fork", "the demo's store");
        if (child_ != 0) return;
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() == parent) serve();
        base::flush_log();
        ::_exit(0);
    }
    StoreProcess(const StoreProcess&) = delete;
    StoreProcess& operator=(const StoreProcess&) = delete;
    ~StoreProcess() {
        ::kill(child_, SIGKILL);
        ::waitpid(child_, nullptr, 0);
    }

  private:
    void serve() {
        try {
            kv::ServerOptions options;
            options.messages.transports = {connect::Transport::rc, connect::Transport::tcp};
            options.messages.max_clients = store_clients + 1;
            auto server = kv::Server::listen(address_, options);
            (void)server.serve(base::Deadline::never());
        } catch (const base::Error& error) {
            base::log(base::LogLevel::error, "demo", "the store: {}", error.what());
        }
    }
    connect::Address address_;
    pid_t child_ = -1;
};

}  // namespace

std::vector<StoreMeasured> run_store(const std::string& folder) {
    const auto address = connect::Address::unix_socket(folder + "/store");
    const StoreProcess store{address};
    std::vector<StoreMeasured> measured{
        {.transport = connect::Transport::rc, .title = "Millrace, mailboxes"},
        {.transport = connect::Transport::tcp, .title = "the same over Unix sockets"}};
    for (StoreMeasured& one : measured) {
        workload::KvLoad load;
        load.server = address;
        load.clients = store_clients;
        load.duration = duration;
        load.keys = store_keys;
        load.client.transport = one.transport;
        // The first one's items are there for the other, who would set them one by one over
        // sockets.
        load.fill = &one == measured.data();
        const workload::KvLoadResult done = workload::run_load(load);
        one.per_second = done.per_second();
        one.p50_us = static_cast<double>(done.get_ns->quantile(0.5)) / 1e3;
        one.p99_us = static_cast<double>(done.get_ns->quantile(0.99)) / 1e3;
    }
    return measured;
}

std::string store_text(const std::vector<StoreMeasured>& measured) {
    Table figures{fmt::format("{} clients of one key-value store", store_clients)};
    for (const char* const heading : {"operations/s", "get, µs\nmedian", "\np99"}) {
        figures.add_column(heading);
    }
    for (const StoreMeasured& one : measured) {
        figures.add_row({one.title, fmt::format("{:.0f}", one.per_second),
                         fmt::format("{:.2f}", one.p50_us), fmt::format("{:.2f}", one.p99_us)});
    }
    return figures.text() +
           wrapped(fmt::format("One thread serves them all from a process of its own; {} items of "
                               "100 bytes, 95 % of requests get, one at a time for each client, "
                               "every value compared. `millrace kv serve` is that store.\n",
                               store_keys),
                   0);
}

nlohmann::json store_json(const std::vector<StoreMeasured>& measured) {
    nlohmann::json json = nlohmann::json::array();
    for (const StoreMeasured& one : measured) {
        json.push_back({{"transport", name_of(one.transport)},
                        {"clients", store_clients},
                        {"operations_per_second", one.per_second},
                        {"get_p50_us", one.p50_us},
                        {"get_p99_us", one.p99_us}});
    }
    return json;
}

}  // namespace millrace::tools::demo
