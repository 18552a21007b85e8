#include "measure_groups.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <time.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/kv/store.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/server.hpp"

namespace millrace::bench {
namespace {

/// What is small enough for a thousand clients, and holds any of these items.
constexpr std::size_t ring_bytes = 4096;
constexpr std::size_t most_places = 65'536 + 64;

/// Of this thread: others that want its core do not count.
double processor_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// 16 digits.
using GroupKey = std::array<std::byte, 16>;
GroupKey group_key(std::uint64_t number) {
    GroupKey key;
    for (std::size_t at = key.size(); at-- > 0; number /= 10) {
        key[at] = static_cast<std::byte>('0' + number % 10);
    }
    return key;
}

/// The server, all clients, and whose turn it is.
class Groups {
  public:
    explicit Groups(const GroupCase& chosen)
        : chosen_{chosen},
          server_{message::Server::listen(connect::Address::tcp("127.0.0.1", 0), options(chosen))},
          asked_(chosen.clients),
          by_place_(most_places) {
        std::vector<std::byte> value(chosen.value_bytes, std::byte{'v'});
        for (std::uint64_t number = 0; number < chosen.keys; ++number) {
            const GroupKey key = group_key(number);
            std::copy_n(key.begin(), std::min(key.size(), value.size()), value.begin());
            require(store_.set(key, value).outcome == kv::Outcome::ok, "a SET");
        }
        connect_all();
    }

    /// Each client has asked, and asks again when it has its answer.
    void begin() {
        for (std::size_t i = 0; i < clients_.size(); ++i) ask(i);
    }
    double run() {
        std::uint64_t answers = 0;
        double serving_ns = 0;
        double now = processor_ns();
        const double end = now + static_cast<double>(chosen_.duration.count());
        while (now < end) {
            served_.clear();
            (void)server_.turn(*this);
            const double served = processor_ns();
            serving_ns += served - now;
            // Who has an answer asks again, whether it is of the group or not.
            for (const std::uint32_t place : served_) {
                check(by_place_[place]);
                ask(by_place_[place]);
            }
            answers += served_.size();
            now = processor_ns();
        }
        return serving_ns / static_cast<double>(answers);
    }

  private:
    static message::ServerOptions options(const GroupCase& chosen) {
        message::ServerOptions made;
        made.transports = chosen.transport;
        if (chosen.transport == connect::Transport::ud) {
            made.protection = message::Protection::trusted;
        }
        made.ring_bytes = ring_bytes;
        made.max_clients = static_cast<std::uint32_t>(chosen.clients);
        made.group_clients = chosen.group;
        made.group_slice = chosen.slice;
        return made;
    }
    void connect_all() {
        std::jthread serving{[&] {
            server_.adopt();
            (void)server_.serve(*this, patience());
        }};
        message::ClientOptions options;
        options.transport = chosen_.transport;
        options.ring_bytes = ring_bytes;
        options.window = 1;
        for (std::size_t i = 0; i < chosen_.clients; ++i) {
            clients_.push_back(message::Client::connect(server_.address(), options, patience()));
            // Where it is, its first request tells.
            ask(i);
            check(i);
            by_place_.at(asking_) = i;
        }
        server_.stop();
        serving.join();
        server_.adopt();
    }

    void ask(std::size_t client) {
        asked_[client] = random_() % chosen_.keys;
        const GroupKey key = group_key(asked_[client]);
        std::uint64_t id = 0;
        require(clients_[client].submit(key, id), "a request");
    }
    void check(std::size_t client) {
        require(clients_[client].wait(
                    [&](const message::Answer& answer) {
                        const GroupKey key = group_key(asked_[client]);
                        require_intact(
                            answer.payload.size() == chosen_.value_bytes &&
                                std::equal(key.begin(), key.end(), answer.payload.begin()),
                            "a GET");
                    },
                    patience()),
                "an answer");
    }

  public:
    void operator()(message::Request& request) {
        asking_ = request.client().place;
        served_.push_back(asking_);
        (void)store_.get(request.payload(),
                         [&](const kv::Entry& entry) { (void)request.answer(entry.value); });
    }

  private:
    GroupCase chosen_;
    kv::Store store_{kv::StoreOptions{}};
    message::Server server_;
    std::vector<message::Client> clients_;
    std::vector<std::uint64_t> asked_;
    std::vector<std::size_t> by_place_;  ///< which client has the place
    std::vector<std::uint32_t> served_;  ///< places, in one turn
    std::atomic<std::uint32_t> asking_{0};
    std::minstd_rand random_{11};
};

}  // namespace

double measure_groups(const GroupCase& chosen) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", "fast"};
    const EnvironmentScope device{"MILLRACE_DEVICE", "soft0"};
    const EnvironmentScope carrier{"MILLRACE_CARRIER", chosen.carrier};
    Groups groups{chosen};
    return run_alone([&] {
        groups.begin();
        (void)groups.run();  // what is touched first costs more
        return groups.run();
    });
}

}  // namespace millrace::bench
