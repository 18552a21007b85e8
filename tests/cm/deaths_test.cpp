// kill -9 and SIGSTOP of a process at random instants of its connections: the other end hears of
// each, its listener serves the client that comes next, and the port is free again.
//
// MILLRACE_TEST_ROUNDS, MILLRACE_TEST_SEED: support/schedules.hpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "millrace/cm/survey.hpp"
#include "program.hpp"
#include "support/child_process.hpp"
#include "support/schedules.hpp"

namespace millrace::cm {
namespace {

constexpr std::uint32_t connect_error = 6;
constexpr std::uint32_t unreachable = 7;
constexpr std::uint32_t timewait_exit = 15;

/// Ids of one channel, each led on by its own events.
class Crowd {
  public:
    /// Every id goes on to connect, to listen to the answer and to disconnect, for ever.
    void add_client() { resolve(program.create(1)); }
    /// The listener. Accepts every client that comes.
    [[nodiscard]] bool listen() {
        const std::uint32_t id = program.create(1);
        return program.bind(id, address("0.0.0.0", port)) == 0 && program.listen(id) == 0;
    }

    /// Takes an event. False: none comes.
    [[nodiscard]] bool step() {
        rdma_ucm_event_resp event{};
        pollfd at{program.descriptor(), POLLIN, 0};
        if (::poll(&at, 1, static_cast<int>(test::patience.count())) != 1) return false;
        if (program.get_event(event) != 0) return false;
        follow(event);
        return true;
    }
    /// Those that have a peer, or ask for one.
    [[nodiscard]] std::size_t living() const { return ids_.size(); }
    [[nodiscard]] std::uint64_t connections() const { return connections_; }
    [[nodiscard]] bool was_answered() const { return was_answered_; }
    /// Clients begin again when they are told of an end.
    void stop_beginning() { begins_ = false; }

    Program program;

  private:
    void resolve(std::uint32_t id) {
        ids_[id] = true;
        if (program.resolve(id, address("127.0.0.1", port)) != 0) forget(id);
    }
    void follow(const rdma_ucm_event_resp& event) {
        const std::uint32_t id = event.id;
        int error = 0;
        switch (event.event) {
            case address_resolved: error = program.resolve_route(id); break;
            case route_resolved: error = program.connect(id); break;
            case connect_request:
                ids_[id] = false;
                error = program.accept(id, 2);
                break;
            case connect_response:
                was_answered_ = true;
                error = program.confirm(id);
                if (error == 0) error = program.disconnect(id);
                break;
            case established: ++connections_; break;
            case disconnected:
                static_cast<void>(program.disconnect(id));
                forget(id);
                break;
            case timewait_exit: break;
            case connect_error:
            case unreachable:
            case rejected: forget(id); break;
            default: ADD_FAILURE() << "event " << event.event;
        }
        if (error != 0) forget(id);
    }
    void forget(std::uint32_t id) {
        const auto known = ids_.find(id);
        if (known == ids_.end()) return;
        const bool is_client = known->second;
        ids_.erase(known);
        EXPECT_GE(program.destroy(id), 0);
        if (is_client && begins_) add_client();
    }

    std::map<std::uint32_t, bool> ids_;  ///< is it a client?
    std::uint64_t connections_ = 0;
    bool was_answered_ = false;  ///< a client, by a listener
    bool begins_ = true;
};

int go_on(Crowd& crowd) {
    test::say("ready");
    while (crowd.step()) {
    }
    return 1;
}
constexpr int clients = 3;
void add_clients(Crowd& crowd) {
    for (int i = 0; i < clients; ++i) crowd.add_client();
}
MILLRACE_CHILD(cm_crowd_of_clients) {
    Crowd crowd;
    add_clients(crowd);
    return go_on(crowd);
}
MILLRACE_CHILD(cm_listener) {
    Crowd crowd;
    return crowd.listen() ? go_on(crowd) : 2;
}

enum class Fate { killed, stopped };

/// Meets its fate somewhen in the first 20 ms from when it is ready.
class Victim {
  public:
    Victim(const char* name, Fate fate, std::uint64_t seed)
        : process_{test::ChildProcess::start(name)} {
        EXPECT_EQ(process_.read_line(), "ready");
        std::minstd_rand random{static_cast<unsigned>(seed)};
        const std::chrono::microseconds delay{random() % 20'000};
        executioner_ = std::jthread{[this, fate, delay] {
            std::this_thread::sleep_for(delay);
            if (fate == Fate::killed) {
                static_cast<void>(process_.kill_and_wait());
            } else {
                EXPECT_TRUE(process_.stop());
            }
            done_.store(true);
        }};
    }
    [[nodiscard]] bool has_met_its_fate() const { return done_.load(); }
    void kill() {
        executioner_.join();
        static_cast<void>(process_.kill_and_wait());
    }

  private:
    test::ChildProcess process_;
    std::atomic<bool> done_{false};
    std::jthread executioner_;
};

class ProcessOfConnections : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        setenv("MILLRACE_FABRIC", ("cm-deaths-" + std::to_string(getpid())).c_str(), 1);
    }
    static std::size_t taken() {
        auto ports = taken_ports();
        std::erase_if(ports,
                      [](const auto& one) { return one.fabric != getenv("MILLRACE_FABRIC"); });
        return ports.size();
    }
    /// Goes on until the victim has met its fate, and it alone.
    static bool outlives(Crowd& crowd, const Victim& victim) {
        while (!victim.has_met_its_fate()) {
            pollfd at{crowd.program.descriptor(), POLLIN, 0};
            if (::poll(&at, 1, 1) == 1 && !crowd.step()) return false;
        }
        return true;
    }
    /// Is told of the end of all that it has.
    static bool is_left_alone(Crowd& crowd) {
        crowd.stop_beginning();
        while (crowd.living() != 0) {
            if (!crowd.step()) return false;
        }
        return true;
    }
    /// A client of this process and the server's next connection.
    static bool serves(Crowd& server) {
        Crowd next;
        next.add_client();
        next.stop_beginning();
        while (next.living() != 0) {
            std::array<pollfd, 2> at{pollfd{next.program.descriptor(), POLLIN, 0},
                                     pollfd{server.program.descriptor(), POLLIN, 0}};
            if (::poll(at.data(), at.size(), static_cast<int>(test::patience.count())) <= 0)
                return false;
            if (at[0].revents != 0 && !next.step()) return false;
            if (at[1].revents != 0 && !server.step()) return false;
        }
        return next.was_answered();
    }
};

TEST_F(ProcessOfConnections, KilledIsToldToItsListenersWhoServeTheNext) {
    std::uint64_t connections = 0;
    test::play_schedules(20, 1'000, [&](std::uint64_t seed) -> std::string {
        Crowd server;
        if (!server.listen()) return "the port is taken";
        Victim victim{"cm_crowd_of_clients", Fate::killed, seed};
        if (!outlives(server, victim)) return "no event of a client that lives";
        if (!is_left_alone(server)) return fmt::format("{} are not told of", server.living());
        if (!serves(server)) return "the next client is not served";
        connections += server.connections();
        return {};
    });
    EXPECT_GT(connections, 0U);
    EXPECT_EQ(taken(), 0U);
}

TEST_F(ProcessOfConnections, KilledIsToldToItsClientsAndLeavesItsPortToTheNext) {
    test::play_schedules(20, 1'000, [&](std::uint64_t seed) -> std::string {
        Victim victim{"cm_listener", Fate::killed, seed};
        Crowd crowd;
        add_clients(crowd);
        if (!outlives(crowd, victim)) return "no event of a listener that lives";
        if (!is_left_alone(crowd)) return fmt::format("{} are not told of", crowd.living());
        Crowd next;
        if (!next.listen()) return "the port is taken";
        if (!serves(next)) return "the next listener serves nobody";
        return {};
    });
    EXPECT_EQ(taken(), 0U);
}

TEST_F(ProcessOfConnections, StoppedHoldsUpNobodyElse) {
    test::play_schedules(20, 1'000, [&](std::uint64_t seed) -> std::string {
        Crowd server;
        if (!server.listen()) return "the port is taken";
        Victim victim{"cm_crowd_of_clients", Fate::stopped, seed};
        if (!outlives(server, victim)) return "no event of a client that lives";
        if (!serves(server)) return "the next client is not served";
        victim.kill();
        if (!is_left_alone(server)) return fmt::format("{} are not told of", server.living());
        return {};
    });
    EXPECT_EQ(taken(), 0U);
}

}  // namespace
}  // namespace millrace::cm
