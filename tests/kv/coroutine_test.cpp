// Requests awaited by tasks: many at once over every transport, in place, over by deadline,
// cancellation and death, destroyed while they wait; and what a request allocates.
#include "millrace/kv/coroutine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "millrace/connect/hub.hpp"
#include "millrace/message/server.hpp"
#include "rpc/allocations.hpp"
#include "service.hpp"
#include "serving.hpp"
#include "stores.hpp"
#include "support/served.hpp"

namespace millrace::kv {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using base::Task;

/// Any of the transports.
class AwaitedRequests : public testing::TestWithParam<connect::Transport> {
  protected:
    [[nodiscard]] static ServerOptions server_options() {
        ServerOptions options;
        options.messages.transports = GetParam();
        if (GetParam() == connect::Transport::ud) {
            options.messages.protection = message::Protection::trusted;
        }
        return options;
    }
    [[nodiscard]] static message::ClientOptions client_options(std::uint32_t window) {
        message::ClientOptions options;
        options.transport = GetParam();
        options.window = window;
        return options;
    }
};
INSTANTIATE_TEST_SUITE_P(Transports, AwaitedRequests,
                         testing::Values(connect::Transport::rc, connect::Transport::tcp,
                                         connect::Transport::uc, connect::Transport::ud),
                         [](const auto& each) { return std::string{name_of(each.param)}; });

Task<> set_and_get(AsyncClient& client, int whose, int& running, connect::Hub& hub) {
    std::vector<std::byte> value;
    for (int i = 0; i < 5; ++i) {
        const std::string key = std::to_string(whose) + " " + std::to_string(i);
        EXPECT_EQ((co_await client.exists(bytes(key), soon())).code, Code::key_error);
        const Result set = co_await client.set(bytes(key), bytes("of " + key), soon());
        EXPECT_TRUE(set.ok());
        const Result got = co_await client.get(bytes(key), value, soon());
        EXPECT_TRUE(got.ok());
        EXPECT_EQ(got.version, set.version);
        EXPECT_EQ(text(value), "of " + key);
        EXPECT_EQ((co_await client.erase(bytes(key), soon(), set.version + 1'000'000)).code,
                  Code::conflict);
        EXPECT_TRUE((co_await client.erase(bytes(key), soon(), set.version)).ok());
    }
    EXPECT_TRUE((co_await client.ping(soon())).ok());
    if (--running == 0) hub.stop();
}

TEST_P(AwaitedRequests, OfManyTasksHaveTheirOwnAnswersThoughTheWindowIsSmall) {
    Serving serving{server_options()};
    connect::Hub hub;
    AsyncClient client{hub, serving.client(client_options(4))};
    int running = 12;
    for (int i = 0; i < 12; ++i) base::spawn(hub, set_and_get(client, i, running, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(running, 0);
    EXPECT_EQ(client.client().outstanding(), 0U);
}

TEST_P(AwaitedRequests, GetManyKeysBesideOthers) {
    Serving serving{server_options()};
    connect::Hub hub;
    AsyncClient client{hub, serving.client(client_options(8))};
    std::vector<std::string> names;
    for (int i = 0; i < 100; ++i) names.push_back("key " + std::to_string(i));
    names[0] = names[99] = "";  // none can be so
    std::vector<std::span<const std::byte>> keys;
    for (const std::string& name : names) {
        keys.push_back(bytes(name));
        if (name.size() % 2 == 0 && !name.empty()) {
            ASSERT_TRUE(client.client().set(bytes(name), bytes("of " + name), soon()).ok());
        }
    }
    int running = 3;
    for (int task = 0; task < 2; ++task) {
        base::spawn(
            hub,
            [](AsyncClient& asked, auto all, auto& its, int& left, connect::Hub& in) -> Task<> {
                std::vector<int> told(all.size());
                const Status status = co_await asked.multi_get(
                    all,
                    [&](std::size_t index, const Result& result, std::span<const std::byte> value) {
                        ++told[index];
                        const std::string& name = its[index];
                        const bool is_there = name.size() % 2 == 0 && !name.empty();
                        EXPECT_EQ(result.code, is_there ? Code::ok : Code::key_error);
                        EXPECT_EQ(text(value), is_there ? "of " + name : "");
                    },
                    soon());
                EXPECT_EQ(status, Status::ok);
                EXPECT_EQ(told, std::vector<int>(all.size(), 1));
                if (--left == 0) in.stop();
            }(client, std::span<const std::span<const std::byte>>{keys}, names, running, hub));
    }
    base::spawn(hub, set_and_get(client, 1, running, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(running, 0);
    base::spawn(hub, [](AsyncClient& asked, connect::Hub& in) -> Task<> {
        const auto nobody = [](std::size_t, const Result&, std::span<const std::byte>) { FAIL(); };
        const std::span<const std::span<const std::byte>> none;
        EXPECT_EQ(co_await asked.multi_get(none, nobody, soon()), Status::ok);
        in.stop();
    }(client, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

TEST(AwaitedRequest, ReadsInPlaceAndThrowsWhatItsReaderThrows) {
    Serving serving;
    connect::Hub hub;
    AsyncClient client{hub, serving.client()};
    base::spawn(hub, [](AsyncClient& asked, connect::Hub& in) -> Task<> {
        const std::vector<std::byte> large(100'000, std::byte{7});
        EXPECT_TRUE((co_await asked.set(bytes("k"), large, soon())).ok());
        std::size_t found = 0;
        EXPECT_TRUE((co_await asked.get(
                         bytes("k"),
                         [&](std::span<const std::byte> value) {
                             found = value.size();
                             EXPECT_TRUE(std::equal(value.begin(), value.end(), large.begin(),
                                                    large.end()));
                         },
                         soon()))
                        .ok());
        EXPECT_EQ(found, large.size());
        EXPECT_EQ((co_await asked.get(
                       bytes("none"), [](std::span<const std::byte>) { FAIL(); }, soon()))
                      .code,
                  Code::key_error);
        bool thrown = false;
        try {
            (void)co_await asked.get(
                bytes("k"), [](std::span<const std::byte>) { throw std::runtime_error{"no"}; },
                soon());
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        EXPECT_TRUE(thrown);
        const std::vector<std::span<const std::byte>> keys(100, bytes("k"));
        int handed_out = 0;
        thrown = false;
        try {
            (void)co_await asked.multi_get(
                keys,
                [&](std::size_t, const Result&, std::span<const std::byte>) {
                    if (++handed_out == 3) throw std::runtime_error{"enough"};
                },
                soon());
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        EXPECT_TRUE(thrown);
        EXPECT_EQ(handed_out, 3);
        EXPECT_EQ(asked.client().outstanding(), 0U) << "the others are not wanted any more";
        EXPECT_TRUE((co_await asked.ping(soon())).ok());
        in.stop();
    }(client, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

TEST(AwaitedRequest, ThatCannotBeIsNotSent) {
    Serving serving;
    connect::Hub hub;
    AsyncClient client{hub, serving.client()};
    base::spawn(hub, [](AsyncClient& asked, connect::Hub& in) -> Task<> {
        const std::vector<std::byte> longer(longest_value + 1);
        EXPECT_EQ((co_await asked.exists({}, soon())).code, Code::key_error);
        EXPECT_EQ((co_await asked.set(bytes("k"), longer, soon())).code, Code::store_error);
        const Result late = co_await asked.ping(Deadline::now());
        EXPECT_EQ(late.code, Code::unanswered);
        EXPECT_EQ(late.outcome, message::Outcome::timed_out);
        in.stop();
    }(client, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(client.client().stats().requests, 0U);
}

/// A server that answers all but GETs of "late", which wait until it is told.
class Lazy {
  public:
    explicit Lazy(std::uint32_t window = 64) : window_{window} {}

    [[nodiscard]] Client client() const {
        message::ClientOptions options;
        options.window = window_;
        return Client::connect(server_.address(), options, soon());
    }
    [[nodiscard]] std::uint64_t waiting() const { return server_.stats().pending; }
    /// Ends its thread, and answers nobody.
    void stop() {
        thread_.stop();
        aside_.clear();
        EXPECT_EQ(server_.close(soon()), Status::ok);
    }

  private:
    void handle(message::Request& request) {
        const auto parts = parse_request(request.payload());
        if (parts && text(parts->key) == "late") {
            aside_.push_back(request.defer());
        } else {
            service_(request);
        }
    }

    std::uint32_t window_;
    Store store_{{}};
    Service service_{store_, {}, {}};
    std::vector<message::Reply> aside_;
    message::Server server_ = message::Server::listen(connect::Address::tcp("127.0.0.1", 0),
                                                      {.tuning = {.service = server_service}});
    test::ServingThread<message::Server> thread_{
        server_, [this](message::Server& server) {
            return server.serve([this](message::Request& request) { handle(request); },
                                Deadline::never());
        }};
};

/// Turns until `done()`.
template <class Done>
void turn_until(connect::Hub& hub, Done&& done) {
    for (const Deadline patience = soon(); !done() && !patience.expired();) (void)hub.turn();
    EXPECT_TRUE(done());
}

TEST(AwaitedRequest, IsOverByDeadlineAndCancellation) {
    Lazy lazy{2};
    connect::Hub hub;
    AsyncClient client{hub, lazy.client()};
    base::Cancellation cancellation;
    int over = 0;
    const auto wait = [&](Deadline deadline, message::Outcome expected) -> Task<> {
        std::vector<std::byte> value;
        const Result result = co_await client.get(bytes("late"), value, deadline);
        EXPECT_EQ(result.code, Code::unanswered);
        EXPECT_EQ(result.outcome, expected);
        if (++over == 5) hub.stop();
    };
    // The last ones find the window full, and wait for a place.
    base::spawn(hub, wait(Deadline::after(50ms), message::Outcome::timed_out));
    base::spawn(hub, wait(soon().cancelled_by(cancellation), message::Outcome::cancelled));
    base::spawn(hub, wait(Deadline::after(40ms), message::Outcome::timed_out));
    base::spawn(hub, wait(soon().cancelled_by(cancellation), message::Outcome::cancelled));
    base::spawn(hub, [](AsyncClient& asked, int& count, connect::Hub& in) -> Task<> {
        const std::vector<std::span<const std::byte>> keys(10, bytes("late"));
        const auto nobody = [](std::size_t, const Result&, std::span<const std::byte>) { FAIL(); };
        EXPECT_EQ(co_await asked.multi_get(keys, nobody, Deadline::after(70ms)), Status::timed_out);
        if (++count == 5) in.stop();
    }(client, over, hub));
    hub.after(60ms, [&] { cancellation.request(); });
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(over, 5);
    EXPECT_EQ(client.client().outstanding(), 0U);
}

TEST(AwaitedRequest, MayBeDestroyedWhileItWaits) {
    Lazy lazy{3};
    connect::Hub hub;
    AsyncClient client{hub, lazy.client()};
    std::vector<base::Executor::Id> tasks;
    for (int i = 0; i < 3; ++i) {
        tasks.push_back(base::spawn(hub, [](AsyncClient& asked) -> Task<> {
            std::vector<std::byte> value;
            (void)co_await asked.get(bytes("late"), value, soon());
            ADD_FAILURE() << "nobody answers";
        }(client)));
        tasks.push_back(base::spawn(hub, [](AsyncClient& asked) -> Task<> {
            const std::vector<std::span<const std::byte>> keys(10, bytes("late"));
            (void)co_await asked.multi_get(
                keys, [](std::size_t, const Result&, std::span<const std::byte>) { FAIL(); },
                soon());
            ADD_FAILURE() << "nobody answers";
        }(client)));
    }
    turn_until(hub, [&] { return lazy.waiting() == 3; });
    EXPECT_EQ(client.client().outstanding(), 3U);
    for (const base::Executor::Id task : tasks) EXPECT_TRUE(hub.remove(task));
    EXPECT_EQ(client.client().outstanding(), 0U);
    // The places of the window are free again.
    int running = 1;
    base::spawn(hub, set_and_get(client, 1, running, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

TEST(AwaitedRequest, MayOutliveItsClient) {
    Lazy lazy{1};
    connect::Hub hub;
    auto client = std::make_unique<AsyncClient>(hub, lazy.client());
    for (int i = 0; i < 2; ++i) {
        base::spawn(hub, [](AsyncClient& asked) -> Task<> {
            std::vector<std::byte> value;
            (void)co_await asked.get(bytes("late"), value, soon());
            ADD_FAILURE() << "it stays suspended";
        }(*client));
    }
    turn_until(hub, [&] { return lazy.waiting() == 1; });
    client.reset();
    for (int i = 0; i < 10; ++i) (void)hub.turn();
}

TEST(AwaitedRequest, EndsWhenTheServerOrTheClientCloses) {
    for (const bool by_client : {false, true}) {
        Lazy lazy{2};
        connect::Hub hub;
        AsyncClient client{hub, lazy.client()};
        std::vector<message::Outcome> told;
        for (int i = 0; i < 3; ++i) {
            base::spawn(hub, [](AsyncClient& asked, std::vector<message::Outcome>& said) -> Task<> {
                std::vector<std::byte> value;
                const Result result = co_await asked.get(bytes("late"), value, soon());
                EXPECT_EQ(result.code, Code::unanswered);
                said.push_back(result.outcome);
            }(client, told));
        }
        turn_until(hub, [&] { return lazy.waiting() == 2; });
        if (by_client) {
            EXPECT_EQ(client.close(soon()), Status::ok);
        } else {
            lazy.stop();
        }
        turn_until(hub, [&] { return told.size() == 3; });
        for (const message::Outcome outcome : told) {
            // What was sent was dropped; what was not, or had no answer yet, finds it closed.
            EXPECT_TRUE(
                outcome == message::Outcome::closed || outcome == message::Outcome::dropped ||
                outcome == message::Outcome::draining || outcome == message::Outcome::peer_lost)
                << name_of(outcome);
        }
        if (by_client) {
            EXPECT_EQ(told, std::vector(3, message::Outcome::closed));
        }
    }
}

/// The fewest allocations of two requests in a row: the soft device looks around itself by the
/// clock, and some allocations belong to no request. On a busy machine that comes with most of
/// them.
class Fewest {
  public:
    void note() {
        if (++requests_ % 2 != 0) return;
        const std::uint64_t allocated = rpc::allocations();
        if (requests_ > 2) fewest_ = std::min(fewest_, allocated - before_);
        before_ = allocated;
    }
    [[nodiscard]] std::uint64_t of_two() const { return fewest_; }

  private:
    std::uint64_t requests_ = 0;
    std::uint64_t before_ = 0;
    std::uint64_t fewest_ = ~std::uint64_t{0};
};

Task<bool> get_in_a_task(AsyncClient& client, std::vector<std::byte>& value) {
    const Result result = co_await client.get(bytes("k"), value, soon());
    co_return result.ok();
}

TEST(AwaitedRequest, AllocatesNothingBehindTheFirstOnes) {
    Serving serving;
    connect::Hub hub;
    AsyncClient client{hub, serving.client()};
    constexpr int all = 120;
    Fewest alone;
    Fewest in_tasks;
    Fewest of_many;
    base::spawn(hub,
                [](AsyncClient& asked, connect::Hub& in, Fewest& one, Fewest& tasks,
                   Fewest& many) -> Task<> {
                    std::vector<std::byte> value;
                    value.reserve(1000);
                    const std::vector<std::span<const std::byte>> keys(8, bytes("k"));
                    for (int i = 0; i < all; ++i) {
                        EXPECT_TRUE((co_await asked.set(bytes("k"), bytes("value"), soon())).ok());
                        one.note();
                    }
                    for (int i = 0; i < all; ++i) {
                        const bool found = co_await get_in_a_task(asked, value);
                        EXPECT_TRUE(found);
                        tasks.note();
                    }
                    for (int i = 0; i < all; ++i) {
                        std::size_t count = 0;
                        EXPECT_EQ(
                            co_await asked.multi_get(
                                keys,
                                [&](std::size_t, const Result& result, std::span<const std::byte>) {
                                    count += result.ok() ? 1 : 0;
                                },
                                soon()),
                            Status::ok);
                        EXPECT_EQ(count, keys.size());
                        many.note();
                    }
                    in.stop();
                }(client, hub, alone, in_tasks, of_many));
    ASSERT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(alone.of_two(), 0U);
    EXPECT_EQ(in_tasks.of_two(), 0U);
    EXPECT_EQ(of_many.of_two(), 0U);
}

}  // namespace
}  // namespace millrace::kv
