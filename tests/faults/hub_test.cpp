// One thread that serves a crowd by a hub and descriptors alone, while processes of the crowd are
// killed, stopped and let go on at any instant, strangers talk nonsense to the listeners, and new
// ones join: nobody else notices, and nothing stays behind.
//
// MILLRACE_TEST_ROUNDS: how many blows (default 150, with MILLRACE_TEST_LONG 5,000), and joins
// (default 1,000, with MILLRACE_TEST_LONG 10,000, in whatever mode and on whatever device the
// environment says). MILLRACE_TEST_SEED: of the blows.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "faults/ends.hpp"
#include "faults/residue.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/soft/survey.hpp"
#include "support/child_process.hpp"
#include "support/settings.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using millrace::test::say;

[[nodiscard]] std::uint64_t rounds(std::uint64_t otherwise, std::uint64_t when_long) {
    return test::number_from("MILLRACE_TEST_ROUNDS",
                             std::getenv("MILLRACE_TEST_LONG") != nullptr ? when_long : otherwise);
}

struct Word {
    std::uint64_t client = 0;
    std::uint64_t number = 0;
};

/// Takes what clients of either kind send, in a hub.
class Server {
  public:
    Server()
        : queues_{flow::Listener::listen(unique_address(), {.ring = {.capacity = 16}})},
          channels_{message::Listener::listen(connect::Address::parse(unique_address()),
                                              message::ChannelOptions{.ring_bytes = 4096})} {
        listening_.push_back(hub.add(queues_.descriptor(), [this] {
            while (auto consumer = flow::Consumer<Word>::try_accept(queues_)) {
                serve(std::make_unique<Queue>(std::move(*consumer)));
            }
        }));
        listening_.push_back(hub.add(channels_.descriptor(), [this] {
            while (auto channel = channels_.try_accept()) {
                serve(std::make_unique<Talk>(std::move(*channel)));
            }
        }));
    }
    ~Server() {
        for (const connect::Hub::Id id : listening_) hub.remove(id);
        EXPECT_EQ(hub.size(), 0U) << "somebody is left in the hub";
    }

    [[nodiscard]] std::string address_of(std::uint64_t client) const {
        return (client % 2 == 0 ? queues_.address() : channels_.address()).to_string();
    }
    [[nodiscard]] std::size_t serves() const { return ends_.size(); }

    connect::Hub hub;
    std::map<std::uint64_t, std::uint64_t> taken;  ///< of each client
    std::set<std::uint64_t> closed;                ///< clients that came to their end
    std::uint64_t ended = 0;                       ///< of any kind

  private:
    struct End {
        virtual ~End() = default;
        virtual Status take(Word& word) = 0;
        virtual int descriptor() = 0;
        /// Behind the end of its peer, which may wait for this goodbye where a link takes time.
        virtual void leave() = 0;
        std::optional<std::uint64_t> client;
    };
    struct Queue final : End {
        explicit Queue(flow::Consumer<Word> its) : consumer{std::move(its)} {}
        Status take(Word& word) override { return consumer.try_dequeue(word); }
        int descriptor() override { return consumer.descriptor(); }
        void leave() override { consumer.close(); }
        flow::Consumer<Word> consumer;
    };
    struct Talk final : End {
        explicit Talk(message::Channel its) : channel{std::move(its)} {}
        Status take(Word& word) override {
            answer();
            std::size_t size = 0;
            const auto bytes = std::as_writable_bytes(std::span{&word, 1});
            const Status status = channel.try_receive(bytes, size);
            if (status == Status::ok) {
                EXPECT_EQ(size, sizeof word);
                EXPECT_FALSE(unanswered.has_value()) << "it waits for an answer each time";
                unanswered = word;
                answer();
            }
            return status;
        }
        /// Over a link, room may still be on its way back: then the descriptor tells of it.
        void answer() {
            if (!unanswered.has_value()) return;
            const auto bytes = std::as_bytes(std::span{&*unanswered, 1});
            // Whoever does not hear it is on its way out.
            if (channel.try_send(bytes) != Status::full) unanswered.reset();
        }
        int descriptor() override { return channel.descriptor(); }
        void leave() override { (void)channel.close(Deadline::now()); }
        message::Channel channel;
        std::optional<Word> unanswered;
    };

    void serve(std::unique_ptr<End> end) {
        const int descriptor = end->descriptor();
        ends_[descriptor] = {std::move(end), hub.add(descriptor, [this, descriptor] {
                                 // A few at a time: level-triggered.
                                 for (int i = 0; i < 4; ++i) {
                                     if (!step(descriptor)) return;
                                 }
                             })};
    }
    bool step(int descriptor) {
        End& end = *ends_.at(descriptor).first;
        Word word;
        const Status status = end.take(word);
        if (status == Status::empty) return false;
        if (status == Status::ok) {
            if (!end.client.has_value()) end.client = word.client;
            EXPECT_EQ(word.client, *end.client);
            EXPECT_EQ(word.number, taken[word.client]++);
            return true;
        }
        if (status == Status::closed) end.leave();
        if (status == Status::closed && end.client.has_value()) closed.insert(*end.client);
        hub.remove(ends_.at(descriptor).second);
        ends_.erase(descriptor);
        ++ended;
        return false;
    }

    flow::Listener queues_;
    message::Listener channels_;
    std::vector<connect::Hub::Id> listening_;
    std::map<int, std::pair<std::unique_ptr<End>, connect::Hub::Id>> ends_;
};

/// Says something that no peer says, and stays or leaves.
class Nonsense {
  public:
    void say_some(const std::string& address, std::mt19937_64& random) {
        const std::string name = address.substr(address.find('@') + 1);
        sockaddr_un raw{};
        raw.sun_family = AF_UNIX;
        std::memcpy(raw.sun_path + 1, name.data(), name.size());
        const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ASSERT_GE(descriptor, 0);
        const auto size = static_cast<socklen_t>(sizeof raw.sun_family + 1 + name.size());
        if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&raw), size) == 0) {
            std::string words(random() % 200, '\0');
            for (char& c : words) c = static_cast<char>(random());
            if (random() % 2 == 0) words.insert(0, "MLRC");
            (void)send(descriptor, words.data(), words.size(), MSG_NOSIGNAL);
        }
        open_.push_back(descriptor);
        if (open_.size() > 10 || random() % 2 == 0) leave(random() % open_.size());
    }
    void leave(std::size_t which) {
        close(open_[which]);
        open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(which));
    }
    ~Nonsense() {
        while (!open_.empty()) leave(0);
    }

  private:
    std::vector<int> open_;
};

constexpr std::uint64_t words_of_one = 150;

/// What this process holds of the system and of the device; on hardware, of the system alone.
struct Holdings {
    std::size_t descriptors = open_descriptors();
    std::size_t maps = shared_mappings();
    std::size_t resident = status_field("VmRSS:");
    std::size_t queue_pairs = 0;
    std::size_t regions = 0;
    std::uint64_t registered = 0;  ///< bytes

    Holdings() {
        for (const soft::Participant& one : soft::survey().participants) {
            if (one.pid != getpid()) continue;
            queue_pairs += one.queue_pairs.size();
            regions += one.regions.size();
            for (const soft::SeenRegion& region : one.regions) registered += region.bytes;
        }
    }
};

/// Bystanders are clients beyond all others.
constexpr std::uint64_t first_bystander = 1'000'000'001;

TEST(HubUnderFire, ServesTheOthersWhileSomeAreKilledStoppedAndReplaced) {
    const std::uint64_t seed = test::number_from("MILLRACE_TEST_SEED", 1);
    SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random{seed};
    constexpr std::size_t crowd_size = 30;
    std::uint64_t blows = rounds(150, 5000);
    std::optional<Server> server;
    server.emplace();
    std::size_t descriptors = 0;

    std::map<std::uint64_t, ChildProcess> clients;
    std::set<std::uint64_t> killed;
    std::set<std::uint64_t> stopped;
    std::uint64_t next_client = 0;
    Nonsense nonsense;
    const auto join = [&] {
        const std::uint64_t client = next_client++;
        clients.emplace(client,
                        ChildProcess::start("faults_hub_client",
                                            {std::to_string(client), server->address_of(client),
                                             std::to_string(words_of_one), "1"}));
    };
    const auto reap = [&] {
        for (auto at = clients.begin(); at != clients.end();) {
            const bool is_done = killed.contains(at->first) || server->closed.contains(at->first);
            if (!is_done) {
                ++at;
                continue;
            }
            at->second.resume();
            const auto exit = at->second.wait();
            if (!killed.contains(at->first)) {
                EXPECT_TRUE(exit.success()) << at->first << exit;
            }
            stopped.erase(at->first);
            at = clients.erase(at);
        }
    };
    // Somebody whom nobody strikes; how long its echoes take is its last word.
    std::optional<ChildProcess> bystander;
    std::uint64_t bystanders = first_bystander;
    const auto stand_by = [&](std::uint64_t echoes) {
        const std::uint64_t client = bystanders;
        bystanders += 2;
        bystander = ChildProcess::start(
            "faults_hub_bystander",
            {std::to_string(client), server->address_of(client), std::to_string(echoes)});
    };
    const auto strike = [&] {
        reap();
        if (blows == 0) {
            for (const std::uint64_t client : stopped) clients.at(client).resume();
            stopped.clear();
            const bool is_over = server->closed.contains(bystanders - 2);
            if (is_over && clients.empty() && server->serves() == 0) server->hub.stop();
            return;
        }
        --blows;
        while (clients.size() < crowd_size) join();
        auto victim = clients.begin();
        std::advance(victim, random() % clients.size());
        switch (random() % 8) {
            case 0:
            case 1:
                victim->second.kill();
                killed.insert(victim->first);
                break;
            case 2:
            case 3:
            case 4:
                victim->second.send_signal(SIGSTOP);
                stopped.insert(victim->first);
                break;
            case 5: nonsense.say_some(server->address_of(random() % 2), random); break;
            default:
                for (const std::uint64_t client : stopped) clients.at(client).resume();
                stopped.clear();
        }
    };
    const auto tell_times = [&](const char* when) {
        const auto times = bystander->read_line();
        ASSERT_TRUE(times.has_value());
        EXPECT_TRUE(bystander->wait().success()) << *times;
        std::printf("a bystander's echoes %s: %s\n", when, times->c_str());
    };
    const auto serve = [&] {
        const connect::Hub::Id timer = server->hub.every(4ms, strike);
        EXPECT_EQ(server->hub.run(Deadline::after(100s)), Status::closed)
            << clients.size() << " clients and " << server->serves() << " ends are left";
        server->hub.remove(timer);
    };
    {
        // The first ones fill caches.
        const std::uint64_t later = std::exchange(blows, 0);
        join();
        join();
        stand_by(300);
        serve();
        tell_times("in peace");
        blows = later;
        descriptors = open_descriptors();
    }
    stand_by(std::min<std::uint64_t>(2 * blows, 5000));
    serve();
    tell_times("under fire");
    for (std::uint64_t client = 0; client != next_client; ++client) {
        if (killed.contains(client)) continue;
        EXPECT_EQ(server->taken[client], words_of_one) << client;
        EXPECT_TRUE(server->closed.contains(client)) << client;
    }
    // Those who talked nonsense, and those who were killed on their way in, may be there still.
    EXPECT_LE(open_descriptors(), descriptors + 64);
    server.reset();
    EXPECT_LE(open_descriptors(), descriptors + 11);
}

TEST(HubUnderFire, KeepsNothingOfThoseWhoCameAndWent) {
    Server server;
    const std::uint64_t joins = rounds(1000, 10000);
    const auto pass = [&](std::uint64_t count) {
        std::vector<ChildProcess> clients;
        // Of either kind, each joining again and again.
        for (std::uint64_t client = 0; client < 2; ++client) {
            clients.push_back(ChildProcess::start(
                "faults_hub_client", {std::to_string(client), server.address_of(client), "1",
                                      std::to_string(count / 2)}));
        }
        const std::uint64_t until = server.ended + count / 2 * 2;
        const Deadline deadline = Deadline::after(100s + count * 50ms);
        while (server.ended < until && !deadline.expired()) {
            server.taken.clear();  // each time it counts anew
            if (server.hub.turn(1) == 0) (void)server.hub.rest(deadline);
        }
        EXPECT_EQ(server.ended, until);
        for (ChildProcess& client : clients) EXPECT_TRUE(client.wait().success());
    };
    pass(50);
    const Holdings before;
    pass(joins);
    const Holdings after;
    EXPECT_LE(after.descriptors, before.descriptors + 4);
    EXPECT_LE(after.maps, before.maps + 4);
    EXPECT_EQ(after.queue_pairs, before.queue_pairs);
    EXPECT_EQ(after.regions, before.regions);
    EXPECT_EQ(after.registered, before.registered);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LE(after.resident, before.resident + 2048);
#endif
}

/// client, address, echoes: one each 2 ms. Says what they took from when each was due.
MILLRACE_CHILD(faults_hub_bystander) {
    const std::uint64_t client = std::stoull(arguments[0]);
    base::Histogram times;
    try {
        auto channel =
            message::connect(connect::Address::parse(arguments[1]),
                             message::ChannelOptions{.ring_bytes = 4096}, Deadline::after(60s));
        auto due = base::Clock::now();
        for (std::uint64_t i = 0; i != std::stoull(arguments[2]); ++i) {
            due += 2ms;
            std::this_thread::sleep_until(due);
            const Word word{client, i};
            if (channel.send(std::as_bytes(std::span{&word, 1}), Deadline::after(60s)) !=
                Status::ok) {
                return 4;
            }
            std::vector<std::byte> answer;
            if (channel.receive(answer, Deadline::after(60s)) != Status::ok) return 5;
            times.record(static_cast<std::uint64_t>((base::Clock::now() - due) / 1us));
        }
        if (channel.close(Deadline::after(60s)) != Status::ok) return 7;
    } catch (const base::Error& error) {
        say(error.what());
        return 1;
    }
    say("median " + std::to_string(times.quantile(0.5)) + " us, 99 % within " +
        std::to_string(times.quantile(0.99)) + " us, longest " + std::to_string(times.most()) +
        " us");
    return 0;
}

/// client, address, words, how often
MILLRACE_CHILD(faults_hub_client) {
    const std::uint64_t client = std::stoull(arguments[0]);
    const std::uint64_t count = std::stoull(arguments[2]);
    const auto pause = [&] {
        if (count > 1) usleep(static_cast<useconds_t>(500 + client * 37 % 1500));
    };
    try {
        for (std::uint64_t times = std::stoull(arguments[3]); times != 0; --times) {
            if (client % 2 == 0) {
                auto producer = flow::Producer<Word>::connect(
                    arguments[1], {.ring = {.capacity = 16}}, Deadline::after(60s));
                for (std::uint64_t i = 0; i < count; ++i, pause()) {
                    if (producer.enqueue({client, i}, Deadline::after(60s)) != Status::ok) return 2;
                }
                if (producer.close(Deadline::after(60s)) != Status::ok) return 3;
            } else {
                auto channel = message::connect(connect::Address::parse(arguments[1]),
                                                message::ChannelOptions{.ring_bytes = 4096},
                                                Deadline::after(60s));
                for (std::uint64_t i = 0; i < count; ++i, pause()) {
                    const Word word{client, i};
                    if (channel.send(std::as_bytes(std::span{&word, 1}), Deadline::after(60s)) !=
                        Status::ok) {
                        return 4;
                    }
                    std::vector<std::byte> answer;
                    if (channel.receive(answer, Deadline::after(60s)) != Status::ok) return 5;
                    if (answer.size() != sizeof word) return 6;
                }
                if (channel.close(Deadline::after(60s)) != Status::ok) return 7;
            }
        }
    } catch (const base::Error& error) {
        say(error.what());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace millrace::faults
