#include "millrace/kv/cluster.hpp"

#include <algorithm>
#include <utility>

#include "many_keys.hpp"
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
        detail::ManyKeys many_keys;  ///< of multi_get
    };

    State(std::vector<ClusterServer> servers, ClusterOptions chosen)
        : options{std::move(chosen)}, ring{names_of(servers)} {
        for (ClusterServer& one : servers) {
            members.push_back(
                {.server = std::move(one), .many_keys = detail::ManyKeys{options.client}});
        }
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
    member.many_keys.forget_server();
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

/// One multi_get of all servers. Whatever ends it, it leaves nothing: what has no answer is taken
/// back.
class Cluster::Gathering {
  public:
    Gathering(Cluster& cluster, const base::Deadline& deadline)
        : cluster_{cluster}, deadline_{deadline} {}
    Gathering(const Gathering&) = delete;
    Gathering& operator=(const Gathering&) = delete;
    ~Gathering() {
        for (std::size_t which = 0; which < servers(); ++which) {
            if (Client* const client = cluster_.reach_up(which)) many(which).take_back(*client);
        }
    }

    base::Status run(std::span<const std::span<const std::byte>> keys, TakeOne take) {
        for (std::size_t which = 0; which < servers(); ++which) {
            many(which).begin(keys, take);
        }
        for (std::size_t i = 0; i < keys.size(); ++i) many(cluster_.server_of(keys[i])).add(i);
        // No server is waited for so long that another one's answers would lie there: a server that
        // hangs costs the others' keys no more than a few of these.
        constexpr std::chrono::nanoseconds least = std::chrono::microseconds{100};
        constexpr std::chrono::nanoseconds most = std::chrono::milliseconds{5};
        for (std::chrono::nanoseconds turn = least;;) {
            bool is_done = true;
            bool came = false;
            // Every server has as many as have room, before one is waited for.
            for (std::size_t which = 0; which < servers(); ++which) send(which);
            for (std::size_t which = 0; which < servers(); ++which) {
                const base::Status status = receive(which, turn, came);
                if (status != base::Status::ok) return status;
                is_done = is_done && many(which).is_done();
            }
            if (is_done) return base::Status::ok;
            if (deadline_.cancelled()) return base::Status::cancelled;
            if (deadline_.expired()) return base::Status::timed_out;
            turn = came ? least : std::min(2 * turn, most);
        }
    }

  private:
    [[nodiscard]] std::size_t servers() const noexcept { return cluster_.servers(); }
    [[nodiscard]] detail::ManyKeys& many(std::size_t which) noexcept {
        return cluster_.state_->members[which].many_keys;
    }

    /// As many as have room.
    void send(std::size_t which) {
        if (!many(which).has_more()) return;
        Client* const client = cluster_.reach(which, deadline_);
        if (client == nullptr) return give_up(which, message::Outcome::peer_lost);
        while (many(which).has_more()) {
            const base::Status status = many(which).submit(*client, nullptr);
            if (status == base::Status::full) return;
            if (status != base::Status::ok) return lose(which, status);
        }
    }

    /// What has come; if that is nothing, what comes within a turn. `ok`: it may go on.
    base::Status receive(std::size_t which, std::chrono::nanoseconds turn, bool& came) {
        // Also where nothing is under way: answers that nobody wants any more fill the window.
        if (many(which).is_done()) return base::Status::ok;
        Client& client = *cluster_.reach_up(which);
        const auto take_one = [&](const Answer& answer) {
            came = true;
            many(which).take(answer);
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
        many(which).give_up({.code = Code::unanswered, .outcome = outcome});
    }

    Cluster& cluster_;
    const base::Deadline& deadline_;
};

Client* Cluster::reach_up(std::size_t which) noexcept {
    auto& client = state_->members[which].client;
    return client ? &*client : nullptr;
}

base::Status Cluster::multi_get(std::span<const std::span<const std::byte>> keys, TakeOne take,
                                const base::Deadline& deadline) {
    return Gathering{*this, deadline}.run(keys, take);
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
