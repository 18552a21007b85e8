#include "millrace/kv/cluster.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/log.hpp"

namespace millrace::kv {
namespace {

constexpr const char* connects_cluster = "connect to a cluster of key-value servers";

/// Nothing that a call gets by that client will be an answer.
bool has_ended(message::Outcome outcome) noexcept {
    switch (outcome) {
        case message::Outcome::closed:
        case message::Outcome::peer_lost:
        case message::Outcome::session_lost: return true;
        default: return false;
    }
}

std::vector<std::string> names_of(const std::vector<ClusterServer>& servers) {
    std::vector<std::string> names;
    for (const ClusterServer& one : servers) names.push_back(one.name);
    return names;
}

}  // namespace

struct Cluster::State {
    struct Member {
        ClusterServer server;
        std::optional<Client> client{};  ///< none: it is away
        base::Clock::time_point retry_at{};
        ClusterHealth health{};
    };

    State(std::vector<ClusterServer> servers, ClusterOptions chosen)
        : options{std::move(chosen)}, ring{names_of(servers)} {
        for (ClusterServer& one : servers) members.push_back({std::move(one)});
    }

    void connect(Member& member, const base::Deadline& deadline);
    void lose(Member& member, std::string why);

    ClusterOptions options;
    Ketama ring;
    std::vector<Member> members;
};

void Cluster::State::connect(Member& member, const base::Deadline& deadline) {
    const auto patience = base::Clock::now() + options.connect_patience;
    member.client.emplace(
        Client::connect(member.server.address, options.client, deadline.no_later_than(patience)));
    member.health.is_up = true;
    member.health.failure.clear();
    ++member.health.connected;
}

void Cluster::State::lose(Member& member, std::string why) {
    base::log(base::LogLevel::warn, "kv", "the server {} is away: {}",
              member.server.address.to_string(), why);
    member.client.reset();
    member.retry_at = base::Clock::now() + options.retry_period;
    member.health.is_up = false;
    member.health.failure = std::move(why);
}

Cluster::Cluster(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Cluster::Cluster(Cluster&&) noexcept = default;
Cluster& Cluster::operator=(Cluster&&) noexcept = default;
Cluster::~Cluster() = default;

Cluster Cluster::connect(std::vector<ClusterServer> servers, ClusterOptions options,
                         const base::Deadline& deadline) {
    if (options.retry_period.count() < 0 || options.connect_patience.count() <= 0) {
        throw base::Error{base::ErrorCode::invalid_argument, connects_cluster,
                          "with a negative time", "time does not go back",
                          "wait for a server for a while at least"};
    }
    for (ClusterServer& one : servers) {
        if (one.name.empty()) one.name = one.address.to_string();
    }
    auto state = std::make_unique<State>(std::move(servers), std::move(options));
    std::optional<base::Error> last;
    for (State::Member& member : state->members) {
        try {
            state->connect(member, deadline);
        } catch (const base::Error& error) {
            // What is wrong with the call itself is wrong of every server.
            if (error.code() == base::ErrorCode::invalid_argument) throw;
            state->lose(member, error.what());
            last = error;
        }
    }
    const auto is_up = [](const State::Member& member) { return member.client.has_value(); };
    if (std::ranges::none_of(state->members, is_up)) throw base::Error{*last};
    return Cluster{std::move(state)};
}

Cluster Cluster::connect(std::initializer_list<std::string_view> addresses, ClusterOptions options,
                         const base::Deadline& deadline) {
    std::vector<ClusterServer> servers;
    for (const std::string_view address : addresses) {
        servers.push_back({.address = connect::Address::parse(address)});
    }
    return connect(std::move(servers), std::move(options), deadline);
}

std::size_t Cluster::servers() const noexcept { return state_->members.size(); }
std::size_t Cluster::server_of(std::span<const std::byte> key) const noexcept {
    return state_->ring.server_of(key);
}
const ClusterServer& Cluster::server(std::size_t which) const {
    return state_->members.at(which).server;
}
ClusterHealth Cluster::health(std::size_t which) const { return state_->members.at(which).health; }

Client* Cluster::reach(std::size_t which, const base::Deadline& deadline) {
    State::Member& member = state_->members.at(which);
    ++member.health.calls;
    if (member.client) [[likely]]
        return &*member.client;
    if (base::Clock::now() >= member.retry_at) {
        try {
            state_->connect(member, deadline);
            base::log(base::LogLevel::info, "kv", "the server {} is back",
                      member.server.address.to_string());
            return &*member.client;
        } catch (const base::Error& error) {
            state_->lose(member, error.what());
        }
    }
    ++member.health.turned_away;
    return nullptr;
}

void Cluster::note(std::size_t which, message::Outcome outcome) {
    State::Member& member = state_->members.at(which);
    if (!member.client || !has_ended(outcome)) return;
    std::string why = member.client->failure();
    if (why.empty()) why = message::name_of(outcome);
    ++member.health.lost;
    state_->lose(member, std::move(why));
}

Result Cluster::get(std::span<const std::byte> key, std::vector<std::byte>& value,
                    const base::Deadline& deadline) {
    return get(
        key, [&](std::span<const std::byte> found) { value.assign(found.begin(), found.end()); },
        deadline);
}

Result Cluster::set(std::span<const std::byte> key, std::span<const std::byte> value,
                    const base::Deadline& deadline, const SetOptions& options) {
    return ask(server_of(key), deadline,
               [&](Client& client) { return client.set(key, value, deadline, options); });
}

Result Cluster::erase(std::span<const std::byte> key, const base::Deadline& deadline,
                      std::optional<Version> if_version) {
    return ask(server_of(key), deadline,
               [&](Client& client) { return client.erase(key, deadline, if_version); });
}

Result Cluster::exists(std::span<const std::byte> key, const base::Deadline& deadline) {
    return ask(server_of(key), deadline,
               [&](Client& client) { return client.exists(key, deadline); });
}

// --- many keys

/// One multi_get: what each server was asked for, and has not answered. Whatever ends it, it leaves
/// nothing: what has no answer is taken back.
class Cluster::Gathering {
  public:
    Gathering(Cluster& cluster, std::span<const std::span<const std::byte>> keys, TakeAny take,
              void* callable, const base::Deadline& deadline)
        : cluster_{cluster},
          keys_{keys},
          take_{take},
          callable_{callable},
          deadline_{deadline},
          shares_(cluster.servers()) {
        for (std::size_t i = 0; i < keys.size(); ++i) {
            shares_[cluster.server_of(keys[i])].indices.push_back(i);
        }
    }
    Gathering(const Gathering&) = delete;
    Gathering& operator=(const Gathering&) = delete;
    ~Gathering() {
        for (std::size_t which = 0; which < shares_.size(); ++which) take_back(which);
    }

    base::Status run() {
        // No server is waited for so long that another one's answers would lie there: a server that
        // hangs costs the others' keys no more than a few of these.
        constexpr std::chrono::nanoseconds least = std::chrono::microseconds{100};
        constexpr std::chrono::nanoseconds most = std::chrono::milliseconds{5};
        for (std::chrono::nanoseconds turn = least;;) {
            bool is_done = true;
            bool came = false;
            // Every server has as many as its window takes, before one is waited for.
            for (std::size_t which = 0; which < shares_.size(); ++which) send(which);
            for (std::size_t which = 0; which < shares_.size(); ++which) {
                const base::Status status = receive(which, turn, came);
                if (status != base::Status::ok) return status;
                is_done = is_done && shares_[which].is_done();
            }
            if (is_done) return base::Status::ok;
            if (deadline_.cancelled()) return base::Status::cancelled;
            if (deadline_.expired()) return base::Status::timed_out;
            turn = came ? least : std::min(2 * turn, most);
        }
    }

  private:
    /// Of one server.
    struct Share {
        std::vector<std::size_t> indices;  ///< of its keys
        std::size_t next = 0;              ///< of these, to be sent
        /// Number and index of each request under way; numbers rise.
        std::vector<std::pair<std::uint64_t, std::size_t>> sent;
        [[nodiscard]] bool is_done() const { return sent.empty() && next == indices.size(); }
    };

    void hand_out(std::size_t index, const Result& result, std::span<const std::byte> value = {}) {
        take_(callable_, index, result, value);
    }

    /// As many as the window takes.
    void send(std::size_t which) {
        Share& share = shares_[which];
        if (share.next == share.indices.size()) return;
        Client* const client = cluster_.reach(which, deadline_);
        if (client == nullptr) return give_up(which, message::Outcome::peer_lost);
        while (share.next < share.indices.size()) {
            const std::size_t index = share.indices[share.next];
            std::uint64_t id = 0;
            const base::Status status = client->submit(Command::get, {.key = keys_[index]}, id);
            if (status == base::Status::full) return;
            if (status == base::Status::ok) {
                share.sent.emplace_back(id, index);
            } else if (status == base::Status::too_large) {
                hand_out(index, {.code = Code::key_error});
            } else {
                return lose(which, status);
            }
            ++share.next;
        }
    }

    /// What has come; if that is nothing, what comes within a turn. `ok`: it may go on.
    base::Status receive(std::size_t which, std::chrono::nanoseconds turn, bool& came) {
        Share& share = shares_[which];
        // Also where nothing is under way: answers that nobody wants any more fill the window.
        if (share.is_done()) return base::Status::ok;
        Client& client = *cluster_.reach_up(which);
        const auto take_one = [&](const Answer& answer) {
            came = true;
            const auto number = [](const auto& one) { return one.first; };
            const auto at = std::ranges::lower_bound(share.sent, answer.id, {}, number);
            if (at == share.sent.end() || at->first != answer.id) return;
            const std::size_t index = at->second;
            share.sent.erase(at);
            hand_out(index, answer.result, answer.value);
        };
        base::Status status =
            client.wait(take_one, deadline_.no_later_than(base::Clock::now() + turn));
        while (status == base::Status::ok) status = client.poll(take_one);
        switch (status) {
            case base::Status::ok:
            case base::Status::empty:
            case base::Status::timed_out: return base::Status::ok;
            case base::Status::cancelled: return status;
            default: lose(which, status); return base::Status::ok;
        }
    }

    void lose(std::size_t which, base::Status status) {
        const message::Outcome outcome = message::outcome_of(status);
        cluster_.note(which, outcome);
        give_up(which, outcome);
    }

    /// The server answers none of its keys any more.
    void give_up(std::size_t which, message::Outcome outcome) {
        Share& share = shares_[which];
        const Result none{.code = Code::unanswered, .outcome = outcome};
        for (const auto sent = std::exchange(share.sent, {}); const auto& [id, index] : sent) {
            hand_out(index, none);
        }
        while (share.next < share.indices.size()) hand_out(share.indices[share.next++], none);
    }

    void take_back(std::size_t which) noexcept {
        Client* const client = cluster_.reach_up(which);
        if (client == nullptr) return;
        for (const auto& [id, index] : shares_[which].sent) {
            try {
                (void)client->cancel(id);
            } catch (const std::bad_alloc&) {
                // Nobody gets its answer; only the server is not told.
            }
        }
    }

    Cluster& cluster_;
    const std::span<const std::span<const std::byte>> keys_;
    const TakeAny take_;
    void* const callable_;
    const base::Deadline& deadline_;
    std::vector<Share> shares_;
};

Client* Cluster::reach_up(std::size_t which) noexcept {
    auto& client = state_->members[which].client;
    return client ? &*client : nullptr;
}

base::Status Cluster::get_all(std::span<const std::span<const std::byte>> keys, TakeAny take,
                              void* callable, const base::Deadline& deadline) {
    return Gathering{*this, keys, take, callable, deadline}.run();
}

base::Status Cluster::close(const base::Deadline& deadline) {
    base::Status worst = base::Status::ok;
    for (State::Member& member : state_->members) {
        if (!member.client) continue;
        const base::Status status = member.client->close(deadline);
        if (status != base::Status::ok) worst = status;
    }
    return worst;
}

}  // namespace millrace::kv
