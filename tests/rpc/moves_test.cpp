// Clients that go from one thread of a server to another while they call: in every way of calling,
// in sessions that end with their connection and in those that resume. Whatever they do, each call
// has its answer, and nothing is executed twice.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/connect/hub.hpp"
#include "millrace/rpc/coroutine.hpp"
#include "rpc/serving.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Status;

/// Which of the server's threads has the client.
struct Where {
    static constexpr std::string_view name = "where";
    using Request = Nothing;
    using Response = std::uint64_t;
};
/// The number. Nobody may execute it twice, and nobody says it may.
struct Tell {
    static constexpr std::string_view name = "tell";
    using Request = std::uint64_t;
    using Response = std::uint64_t;
};
/// The same, deferred.
struct TellLater {
    static constexpr std::string_view name = "tell later";
    using Request = std::uint64_t;
    using Response = std::uint64_t;
};
struct From {
    std::uint64_t first = 0;
};
/// The numbers from there on, as long as somebody reads them.
struct Numbers {
    static constexpr std::string_view name = "numbers";
    using Request = From;
    using Part = std::uint64_t;
};

/// A server of two threads, one of which has all the clients that ask: some of them go to the
/// other.
class Crowded {
  public:
    static constexpr std::uint64_t all = 4'000'000;

    explicit Crowded(const message::Polling polling, const ClientOptions& options = {})
        : executed_(all), running_{options_of(polling), [this](Server& server) { add(server); }} {
        std::uint64_t first = 0;
        while (busy.size() != 4) {
            Client client =
                running_.connect<Where, Tell, TellLater, Numbers>(ClientOptions{options});
            const Result<std::uint64_t> where = client.call<Where>({}, patience());
            if (busy.empty() && idle_.empty()) first = *where;
            (*where == first ? busy : idle_).push_back(std::move(client));
        }
    }
    ~Crowded() {
        busy.clear();
        idle_.clear();
        running_.stop();
        EXPECT_EQ(running_.server.stats().stale, 0U);
        EXPECT_EQ(unwanted_streams_, streams_) << "each was read by who has gone since";
        for (std::thread& one : writers_) one.join();
    }
    /// Some have gone to the other thread.
    [[nodiscard]] bool has_moved() { return running_.server.stats().messages.moved >= 2; }
    [[nodiscard]] std::uint64_t next() noexcept { return told_++; }
    void expect_told_once() {
        for (std::uint64_t number = 0; number != told_; ++number) {
            ASSERT_EQ(executed_.at(number), 1) << number;
        }
    }
    void break_connections() {
        EXPECT_GT(rpc::break_connections(running_.server.address().to_string()), 0);
    }
    /// Streams that were opened, and whose writers have heard that nobody reads them.
    void expect_streams_given_up() {
        EXPECT_TRUE(comes_true([&] { return unwanted_streams_ == streams_; }));
    }

    std::vector<Client> busy;

  private:
    static ServerOptions options_of(message::Polling polling) {
        ServerOptions options;
        options.messages.polling = polling;
        options.threads.count = 2;
        options.threads.balance_every = 2ms;
        return options;
    }
    void add(Server& server) {
        server.handle_each<Where>(
            [](std::size_t thread) { return [thread](Nothing) { return std::uint64_t{thread}; }; });
        server.handle<Tell>([this](const std::uint64_t& number) {
            ++executed_.at(number);
            return number;
        });
        server.handle<TellLater>([this](const std::uint64_t& number, Call<TellLater>& call) {
            ++executed_.at(number);
            Reply<std::uint64_t> reply = call.defer();
            EXPECT_EQ(reply.answer(number), Status::ok);
        });
        server.handle<Numbers>([this](const From& from, Sink<std::uint64_t> sink) {
            ++streams_;
            const std::lock_guard guard{mutex_};
            writers_.emplace_back([this, number = from.first, sink = std::move(sink)]() mutable {
                while (sink.write(number, patience()) == Status::ok) ++number;
                if (!sink.is_wanted()) ++unwanted_streams_;
            });
        });
    }

    std::vector<std::atomic<int>> executed_;
    std::atomic<int> streams_{0};
    std::atomic<int> unwanted_streams_{0};
    std::mutex mutex_;  ///< of writers_
    std::vector<std::thread> writers_;
    std::uint64_t told_ = 0;
    Running running_;
    std::vector<Client> idle_;
};

/// How a client asks, and has its answer before it asks again.
struct Asking {
    const char* name;
    void (*ask)(Client& client, std::uint64_t number);
};

template <class P>
void call(Client& client, std::uint64_t number) {
    const Result<std::uint64_t> told = client.call<P>(number, patience());
    ASSERT_TRUE(told.ok()) << told.error().text << name_of(told.code());
    EXPECT_EQ(*told, number);
}
template <class Look>
void submit(Client& client, std::uint64_t number, const CallOptions& options, Look&& look) {
    bool is_over = false;
    const auto take = [&](const Result<std::uint64_t>& told) {
        EXPECT_TRUE(told.ok()) << name_of(told.code());
        if (told.ok()) {
            EXPECT_EQ(*told, number);
        }
        is_over = true;
    };
    ASSERT_EQ(client.submit<Tell>(number, take, patience(), options), Status::ok);
    ASSERT_TRUE(comes_true([&] { return is_over || (look(client), is_over); }));
}
void look_by_poll(Client& client) {
    Status status = Status::empty;
    for (int i = 0; i < 1000 && status == Status::empty; ++i) {
        std::this_thread::yield();
        status = client.poll();
    }
    // Who only polls connects anew by itself.
    if (status == Status::peer_lost || status == Status::closed) {
        EXPECT_EQ(client.reconnect(patience()), Status::ok);
    }
}
void look_by_wait(Client& client) { (void)client.wait(patience()); }

constexpr Asking ways_to_ask[] = {
    {"call", call<Tell>},
    {"call_that_is_answered_later", call<TellLater>},
    {"poll",
     [](Client& client, std::uint64_t number) { submit(client, number, {}, look_by_poll); }},
    {"wait",
     [](Client& client, std::uint64_t number) { submit(client, number, {}, look_by_wait); }},
    {"poll_again",
     [](Client& client, std::uint64_t number) {
         submit(client, number, {.again = true}, look_by_poll);
     }},
};

class MovedClients
    : public testing::TestWithParam<std::tuple<Asking, const char*, message::Polling>> {};
INSTANTIATE_TEST_SUITE_P(
    Each, MovedClients,
    testing::Combine(testing::ValuesIn(ways_to_ask), testing::Values("ends", "resumes"),
                     testing::Values(message::Polling::flag, message::Polling::dense)),
    [](const auto& each) {
        return std::string{std::get<0>(each.param).name} + "_" + std::get<1>(each.param) + "_" +
               std::string{name_of(std::get<2>(each.param))};
    });

TEST_P(MovedClients, HaveEachAnswerOnce) {
    const auto& [way, session, polling] = GetParam();
    ClientOptions options;
    options.messages.resumes = session == std::string_view{"resumes"};
    Crowded crowded{polling, options};
    const auto ask_each = [&, ask = way.ask] {
        for (Client& client : crowded.busy) {
            ask(client, crowded.next());
            if (testing::Test::HasFatalFailure()) return;
        }
    };
    ASSERT_TRUE(comes_true([&] {
        for (int i = 0; i < 50 && !testing::Test::HasFailure(); ++i) ask_each();
        return crowded.has_moved() || testing::Test::HasFailure();
    }));
    for (int i = 0; i < 20 && !testing::Test::HasFailure(); ++i) ask_each();
    if (options.messages.resumes) {
        crowded.break_connections();
        for (int i = 0; i < 20 && !testing::Test::HasFailure(); ++i) ask_each();
    }
    crowded.expect_told_once();
}

TEST(ClientsThatWereMoved, HaveTheAnswersThatTasksAwait) {
    Crowded crowded{message::Polling::flag};
    connect::Hub hub;
    std::vector<AsyncClient> clients;
    for (Client& client : crowded.busy) clients.emplace_back(hub, std::move(client));
    std::size_t running = clients.size();
    const auto deadline = patience();
    const auto ask = [&](AsyncClient& client) -> base::Task<> {
        for (int left = 20; left != 0; left -= crowded.has_moved() ? 1 : 0) {
            const std::uint64_t number = crowded.next();
            const Result<std::uint64_t> told = co_await client.call<Tell>(number, patience());
            EXPECT_TRUE(told.ok()) << name_of(told.code());
            if (!told.ok() || deadline.expired()) break;
            EXPECT_EQ(*told, number);
        }
        if (--running == 0) hub.stop();
    };
    for (AsyncClient& client : clients) base::spawn(hub, ask(client));
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_TRUE(crowded.has_moved());
    crowded.expect_told_once();
}

TEST(ClientsThatWereMoved, ReadTheirStreamsToTheEndAndCloseThem) {
    Crowded crowded{message::Polling::flag};
    {
        std::vector<StreamReader<Numbers>> readers;
        for (Client& client : crowded.busy) {
            readers.push_back(client.open<Numbers>({readers.size() * 1'000'000}, patience(), 4));
        }
        std::uint64_t read = 0;
        const auto read_each = [&] {
            for (std::size_t i = 0; i < readers.size(); ++i) {
                std::uint64_t number = 0;
                ASSERT_EQ(readers[i].next(number, patience()), Status::ok)
                    << readers[i].error().text;
                ASSERT_EQ(number, i * 1'000'000 + read);
            }
            ++read;
        };
        ASSERT_TRUE(comes_true([&] {
            for (int i = 0; i < 50 && !testing::Test::HasFailure(); ++i) read_each();
            return crowded.has_moved() || testing::Test::HasFailure();
        }));
        for (int i = 0; i < 100 && !testing::Test::HasFailure(); ++i) read_each();
    }
    crowded.expect_streams_given_up();
}

}  // namespace
}  // namespace millrace::rpc
