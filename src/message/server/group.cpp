// ServerGroup: the threads of several servers, and their common end.
#include "millrace/message/server_group.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "millrace/base/placement.hpp"
#include "millrace/base/wait.hpp"
#include "server/state.hpp"

namespace millrace::message {

using base::Status;

struct ServerGroup::State {
    State(std::vector<Server> listening, ServerOptions chosen, ServerThreads asked)
        : servers{std::move(listening)}, options{std::move(chosen)}, threads{std::move(asked)} {}

    /// After one of the two flags is set, so that a server that is woken finds it.
    void wake_all() noexcept {
        for (Server& server : servers) server.stop();
    }

    std::vector<Server> servers;
    ServerOptions options;
    ServerThreads threads;
    std::atomic<bool> is_stopped{false};  ///< until run() has returned because of it
    std::atomic<bool> has_ended{false};   ///< one of the threads of run()
};

ServerGroup::ServerGroup(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
ServerGroup::ServerGroup(ServerGroup&&) noexcept = default;
ServerGroup& ServerGroup::operator=(ServerGroup&&) noexcept = default;
ServerGroup::~ServerGroup() = default;

namespace {

constexpr std::uint32_t most_threads = 256;

void check(const ServerThreads& threads) {
    const auto refuse = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a group of servers",
                          std::move(what), std::move(why), std::move(remedy)};
    };
    if (threads.count == 0 || threads.count > most_threads) {
        refuse(fmt::format("{} threads", threads.count),
               fmt::format("there are from 1 to {}", most_threads),
               "use as many as there are processors to spare");
    }
    const std::vector<int> available = base::available_cores();
    for (const int core : threads.cores) {
        if (std::ranges::find(available, core) != available.end()) continue;
        refuse(fmt::format("core {}", core), "this process may not run there",
               fmt::format("choose among {}", fmt::join(available, ", ")));
    }
}

/// Where thread `number` is to run; none: anywhere.
[[nodiscard]] std::vector<int> cores_for(const ServerThreads& threads, std::size_t number) {
    if (!threads.cores.empty()) return {threads.cores[number % threads.cores.size()]};
    return {};
}

}  // namespace

ServerGroup ServerGroup::listen(const connect::Address& address, const ServerOptions& options,
                                const ServerThreads& threads) {
    check(threads);
    // What a server allocates lies where it is touched first.
    const auto where = [&](std::size_t number) { return cores_for(threads, number); };
    ServerGroup group{std::make_unique<State>(
        Server::listen_together(address, options, threads.count, where), options, threads)};
    group.adopt();
    return group;
}

const connect::Address& ServerGroup::address() const noexcept {
    return state_->servers.front().address();
}
std::size_t ServerGroup::size() const noexcept { return state_->servers.size(); }
Server& ServerGroup::server(std::size_t number) noexcept { return state_->servers[number]; }

const std::shared_ptr<HeldBytes>& ServerGroup::held() const noexcept {
    return state_->servers.front().state_->crowd->held();
}

Status ServerGroup::run(const Body& body) {
    State& group = *state_;
    group.servers.front().check_thread("serve the clients of a message server");
    std::mutex mutex;  // of these two
    std::optional<Status> first;
    std::exception_ptr thrown;
    const auto end = [&](Status status, const std::exception_ptr& error) {
        {
            const std::lock_guard guard{mutex};
            if (!first.has_value()) first = status;
            if (thrown == nullptr) thrown = error;
        }
        group.has_ended.store(true, std::memory_order_seq_cst);
        group.wake_all();
    };
    const auto serve = [&](std::size_t number) noexcept {
        Status status = Status::closed;
        std::exception_ptr error;
        try {
            const std::vector<int> cores = cores_for(group.threads, number);
            if (!cores.empty()) base::bind_this_thread(cores);
            status = body(group.servers[number], number);
        } catch (...) {
            error = std::current_exception();
        }
        // A group of one has nobody else to end.
        if (group.servers.size() == 1) {
            first = status;
            thrown = error;
        } else {
            end(status, error);
        }
    };
    std::vector<std::thread> others;
    try {
        others.reserve(group.servers.size() - 1);
        for (std::size_t number = 1; number < group.servers.size(); ++number) {
            others.emplace_back([&, number] {
                group.servers[number].adopt();
                serve(number);
            });
        }
        serve(0);
    } catch (const std::system_error& error) {
        const base::Error refused{base::ErrorCode::resource_exhausted, "serve",
                                  fmt::format("{} threads", group.servers.size()),
                                  fmt::format("the system gives no more: {}", error.what()),
                                  "use fewer, or raise the limit of processes (ulimit -u)"};
        end(Status::closed, std::make_exception_ptr(refused));
    }
    for (std::thread& other : others) other.join();
    for (std::size_t number = 1; number < group.servers.size(); ++number) {
        group.servers[number].adopt();
    }
    group.has_ended.store(false, std::memory_order_relaxed);
    const bool was_stopped = group.is_stopped.exchange(false, std::memory_order_acq_rel);
    if (thrown != nullptr) std::rethrow_exception(thrown);
    return was_stopped ? Status::closed : *first;
}

bool ServerGroup::is_ending() const noexcept {
    return state_->is_stopped.load(std::memory_order_acquire) ||
           state_->has_ended.load(std::memory_order_acquire);
}

void ServerGroup::stop() noexcept {
    state_->is_stopped.store(true, std::memory_order_seq_cst);
    state_->wake_all();
}

Status ServerGroup::drain(const base::Deadline& deadline) {
    State& group = *state_;
    for (const Server& server : group.servers) server.check_thread("drain a group of servers");
    for (Server& server : group.servers) server.begin_to_drain();
    base::NapParker nap;
    return base::wait_until(
        [&] {
            bool is_done = true;
            for (Server& server : group.servers) is_done &= server.turn_to_drain();
            return is_done;
        },
        deadline, group.options.wait, nap);
}

Status ServerGroup::close(const base::Deadline& deadline) {
    Status status = drain(deadline);
    if (status != Status::ok) return status;
    for (Server& server : state_->servers) {
        const Status one = server.close(deadline);
        if (status == Status::ok) status = one;
    }
    return status;
}

void ServerGroup::adopt() noexcept {
    for (Server& server : state_->servers) server.adopt();
}

ServerStats ServerGroup::stats() const noexcept {
    ServerStats all;
    for (const Server& server : state_->servers) all += server.stats();
    return all;
}

std::string ServerGroup::explain() const {
    const State& group = *state_;
    const std::size_t count = group.servers.size();
    if (count == 1) return group.servers.front().explain();
    std::string text = fmt::format(
        "{} message servers, a thread each, with {} of {} clients: each new one is given to the "
        "one with the fewest, and its session stays there\n",
        count, stats().clients, group.options.max_clients);
    if (!group.threads.cores.empty()) {
        text += fmt::format("their threads are pinned to cores {}\n",
                            fmt::join(group.threads.cores, ", "));
    }
    return text + "the first of them: " + group.servers.front().explain();
}

}  // namespace millrace::message
