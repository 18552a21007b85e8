// Servers whose allocations fail, one after the other, while a peer joins, asks and leaves: that
// costs a connection, or the answer to a request, and nobody else anything. The server is this
// thread's, and so are the allocations that fail; its clients have a thread of their own.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/detail/put_off.hpp"
#include "millrace/message/server.hpp"
#include "millrace/message/server_group.hpp"
#include "millrace/rpc/client.hpp"
#include "millrace/rpc/server.hpp"
#include "rpc/allocations.hpp"

namespace millrace {
namespace {

using base::Deadline;
using base::Status;
using Bytes = std::vector<std::byte>;

Deadline patience() { return Deadline::after(std::chrono::seconds{40}); }

/// Of a server that has nothing to do.
Deadline a_moment() { return Deadline::after(std::chrono::milliseconds{1}); }

struct Way {
    std::string_view name;
    connect::Transport transport = connect::Transport::rc;
    message::Polling polling = message::Polling::flag;
    message::Transfer transfer = message::Transfer::write;
};
constexpr Way every_way[] = {
    {.name = "flag"},
    {.name = "dense", .polling = message::Polling::dense},
    {.name = "send", .transfer = message::Transfer::send},
    {.name = "tcp", .transport = connect::Transport::tcp},
    {.name = "uc", .transport = connect::Transport::uc},
    {.name = "ud", .transport = connect::Transport::ud},
};

class WantOfMemory : public testing::TestWithParam<Way> {
  protected:
    [[nodiscard]] static message::ServerOptions server_options() {
        message::ServerOptions options;
        options.polling = GetParam().polling;
        options.transports = GetParam().transport;
        if (GetParam().transport == connect::Transport::ud) {
            options.protection = message::Protection::trusted;
        }
        return options;
    }
    [[nodiscard]] static message::ClientOptions client_options() {
        message::ClientOptions options;
        options.transport = GetParam().transport;
        options.requests = options.answers = GetParam().transfer;
        // It sleeps until it is woken, so a wake-up that is not made shows.
        options.wait = base::WaitPolicy::blocking();
        return options;
    }
    /// Takes turns of the server until `client()`, in a thread of its own, is done. `others`: one
    /// allocation of these turns fails, the one behind so many. True: it has.
    template <class Turn, class Client>
    static bool serve_while(Turn&& turn, Client&& client,
                            std::optional<std::uint64_t> others = {}) {
        std::atomic<bool> is_over{false};
        std::thread thread{[&] {
            client();
            is_over = true;
        }};
        bool has_failed = false;
        {
            std::optional<rpc::FailingAllocation> failing;
            if (others.has_value()) failing.emplace(*others);
            while (!is_over) turn();
            has_failed = failing.has_value() && failing->has_failed();
        }
        thread.join();
        return has_failed;
    }
    /// Lets each allocation fail that `turn` makes while a client joins (`join()` makes it), talks
    /// (`talk(client)`) and leaves; behind each, `witness()` has to find the server as it was. By
    /// RDMA a client joins and leaves with memory, as a device's is no matter of the server's.
    template <class Turn, class Join, class Talk, class Witness>
    static void starve(Turn&& turn, Join&& join, Talk&& talk, Witness&& witness) {
        std::optional<decltype(join())> client;
        const auto come = [&] { ends_with_news([&] { client.emplace(join()); }); };
        const auto speak = [&] {
            if (client.has_value()) ends_with_news([&] { talk(*client); });
        };
        const auto leave = [&] {
            if (client.has_value()) ends_with_news([&] { (void)client->close(patience()); });
            client.reset();
        };
        const bool by_device = GetParam().transport != connect::Transport::tcp;
        const auto in_want = [&] {
            if (!by_device) come();
            speak();
            if (!by_device) leave();
        };
        std::uint64_t others = 0;
        for (bool has_failed = true; has_failed && !HasFailure();) {
            SCOPED_TRACE(testing::Message() << "behind " << others << " allocations");
            if (by_device) serve_while(turn, come);
            has_failed = serve_while(turn, in_want, others);
            serve_while(turn, leave);
            serve_while(turn, witness);
            ++others;
        }
        EXPECT_GT(others, 3U);
    }
    /// Whatever a client whose server lacks memory may be told, but for silence.
    template <class Call>
    static void ends_with_news(Call&& call) {
        try {
            call();
        } catch (const base::Error& error) {
            EXPECT_NE(error.code(), base::ErrorCode::timed_out) << error.what();
        }
    }
};
INSTANTIATE_TEST_SUITE_P(Ways, WantOfMemory, testing::ValuesIn(every_way),
                         [](const auto& way) { return std::string{way.param.name}; });

/// The same of one answer.
void expect_news(message::Outcome outcome) {
    EXPECT_NE(outcome, message::Outcome::timed_out) << "nobody told the client";
}

TEST_P(WantOfMemory, CostsAServerOfMessagesOneConnection) {
    auto server = message::Server::listen(connect::Address::parse("127.0.0.1:0"), server_options());
    std::vector<message::Reply> later;
    const auto handler = [&](message::Request& request) {
        switch (request.procedure()) {
            case 1: later.push_back(request.defer()); return;
            case 2: (void)message::detail::PuttingOff::put_off(request); [[fallthrough]];
            default: (void)request.answer(request.payload());
        }
    };
    const Bytes answer_later(100);
    const auto turn = [&] {
        if (server.turn(handler) != 0) return;
        while (!later.empty()) {
            try {
                (void)later.back().answer(answer_later);
            } catch (const std::bad_alloc&) {
                // It is due still, and goes as one that was dropped.
            }
            later.pop_back();
        }
        (void)server.rest(a_moment());
    };
    const Bytes small(100);
    const Bytes large(std::size_t{300} << 10);
    const auto options = [] {
        message::ClientOptions chosen = client_options();
        chosen.tuning.large.longer_than = message::LargeMessages::never;
        return chosen;
    };
    const auto join = [&] {
        return message::Client::connect(server.address(), options(), patience());
    };
    const auto talk = [&](message::Client& client) {
        Bytes answer;
        expect_news(client.call(small, answer, patience()));
        expect_news(client.call(small, answer, patience(), 1));
        expect_news(client.call(small, answer, patience(), 2));
        expect_news(client.call(large, answer, patience()));
        client.begin_batch();
        std::uint64_t id = 0;
        for (int i = 0; i < 5; ++i) (void)client.submit(small, id);
        client.end_batch();
        (void)client.submit(small, id, {.procedure = 1});
        (void)client.cancel(id);
        while (client.wait([](const message::Answer&) {}, patience()) == Status::ok) {
        }
    };
    std::optional<message::Client> lasting;
    serve_while(turn, [&] {
        lasting.emplace(message::Client::connect(server.address(), client_options(), patience()));
    });
    const auto witness = [&] {
        Bytes answer;
        EXPECT_EQ(lasting->call(large, answer, patience()), message::Outcome::ok);
        EXPECT_EQ(answer, large);
        auto newcomer = message::Client::connect(server.address(), client_options(), patience());
        EXPECT_EQ(newcomer.call(small, answer, patience(), 1), message::Outcome::ok);
        EXPECT_EQ(newcomer.close(patience()), Status::ok);
    };
    starve(turn, join, talk, witness);
    const Deadline deadline = patience();
    while (server.stats().clients != 1 && !deadline.expired()) turn();
    EXPECT_EQ(server.stats().clients, 1U);
    EXPECT_EQ(server.stats().pending, 0U);
}

TEST_P(WantOfMemory, CostsAServerOfSessionsThatComeBackOneConnection) {
    auto server = message::Server::listen(connect::Address::parse("127.0.0.1:0"), server_options());
    const auto handler = [](message::Request& request) { (void)request.answer(request.payload()); };
    const auto turn = [&] {
        if (server.turn(handler) == 0) (void)server.rest(a_moment());
    };
    const Bytes small(100);
    const auto options = [] {
        message::ClientOptions chosen = client_options();
        chosen.resumes = true;
        return chosen;
    };
    const auto join = [&] {
        return message::Client::connect(server.address(), options(), patience());
    };
    const auto talk = [&](message::Client& client) {
        for (int i = 0; i < 10; ++i) {
            Bytes answer;
            const message::Outcome outcome = client.call(small, answer, patience());
            expect_news(outcome);
            if (outcome != message::Outcome::ok) return;
        }
    };
    const auto witness = [&] {
        Bytes answer;
        auto newcomer = message::Client::connect(server.address(), options(), patience());
        EXPECT_EQ(newcomer.call(small, answer, patience()), message::Outcome::ok);
        EXPECT_EQ(newcomer.close(patience()), Status::ok);
    };
    starve(turn, join, talk, witness);
}

// --- rpc

struct Number {
    std::uint64_t value = 0;
};
struct Twice {
    static constexpr std::string_view name = "twice";
    using Request = Number;
    using Response = Number;
};
struct Later {
    static constexpr std::string_view name = "later";
    using Request = Number;
    using Response = Number;
};
struct Text {
    static constexpr std::string_view name = "text";
    using Request = std::string;
    using Response = std::string;
};
struct Counting {
    static constexpr std::string_view name = "counting";
    using Request = Number;
    using Part = Number;
};

TEST_P(WantOfMemory, CostsAServerOfCallsOneConnection) {
    rpc::ServerOptions chosen;
    chosen.messages = server_options();
    auto server = rpc::Server::listen(connect::Address::parse("127.0.0.1:0"), chosen);
    std::vector<std::pair<rpc::Reply<Number>, Number>> later;
    std::vector<std::pair<rpc::Sink<Number>, std::uint64_t>> sinks;
    server.handle<Twice>([](const Number& number) { return Number{2 * number.value}; });
    server.handle<Text>([](const std::string& text) { return text; });
    server.handle<Later>([&](const Number& number, rpc::Call<Later>& call) {
        later.emplace_back(call.defer(), number);
    });
    server.handle<Counting>([&](const Number& number, rpc::Sink<Number> sink) {
        sinks.emplace_back(std::move(sink), number.value);
    });
    const auto turn = [&] {
        if (server.turn() != 0) return;
        while (!later.empty()) {
            try {
                (void)later.back().first.answer(later.back().second);
            } catch (const std::bad_alloc&) {
            }
            later.pop_back();
        }
        std::erase_if(sinks, [](auto& one) {
            try {
                auto& [sink, left] = one;
                for (; left != 0; --left) {
                    const Status status = sink.write(Number{left});
                    if (status == Status::full) return false;
                    if (status != Status::ok) return true;
                }
                (void)sink.finish();
            } catch (const std::bad_alloc&) {
            }
            return true;
        });
        (void)server.rest(a_moment());
    };
    const auto options = [] {
        rpc::ClientOptions its;
        its.messages.transport = GetParam().transport;  // the rest is for a design to say
        its.retry.attempts = 1;
        return its;
    };
    const auto expect = [](rpc::Code code) { EXPECT_NE(code, rpc::Code::timed_out); };
    const std::string long_text(std::size_t{100} << 10, 'x');
    const auto join = [&] {
        return rpc::Client::connect<Twice, Later, Text, Counting>(server.address(), options(),
                                                                  patience());
    };
    const auto talk = [&](rpc::Client& client) {
        expect(client.call<Twice>({21}, patience()).code());
        expect(client.call<Later>({21}, patience()).code());
        expect(client.call<Text>(long_text, patience()).code());
        auto stream = client.open<Counting>({20}, patience(), 2);
        Number part;
        Status status = Status::ok;
        while ((status = stream.next(part, patience())) == Status::ok) {
        }
        EXPECT_NE(status, Status::timed_out);
    };
    const auto witness = [&] {
        auto client = rpc::Client::connect<Twice, Later, Text, Counting>(server.address(),
                                                                         options(), patience());
        auto twice = client.call<Twice>({21}, patience());
        ASSERT_TRUE(twice.ok());
        EXPECT_EQ(twice.value().value, 42U);
        EXPECT_TRUE(client.call<Later>({1}, patience()).ok());
        auto stream = client.open<Counting>({20}, patience(), 2);
        Number part;
        for (int i = 0; i < 20; ++i) ASSERT_EQ(stream.next(part, patience()), Status::ok);
        EXPECT_EQ(stream.next(part, patience()), Status::closed);
        EXPECT_EQ(client.close(patience()), Status::ok);
    };
    starve(turn, join, talk, witness);
    for (const rpc::ProcedureReport& one : server.procedures()) {
        EXPECT_EQ(one.pending, 0U) << one.signature.name;
    }
}

// --- kv

TEST_P(WantOfMemory, CostsAStoreOneConnection) {
    kv::ServerOptions chosen;
    chosen.messages = server_options();
    auto server = kv::Server::listen(connect::Address::parse("127.0.0.1:0"), chosen);
    // It has no turns: it serves until nothing more is to be done.
    const auto turn = [&] { (void)server.serve(a_moment()); };
    const auto key = [](std::string_view text) { return std::as_bytes(std::span{text}); };
    const Bytes value(std::size_t{50} << 10);
    const auto join = [&] {
        return kv::Client::connect(server.address(), client_options(), patience());
    };
    const auto talk = [&](kv::Client& client) {
        Bytes got;
        expect_news(client.set(key("a"), value, patience()).outcome);
        expect_news(client.get(key("a"), got, patience()).outcome);
        expect_news(client.erase(key("a"), patience()).outcome);
    };
    const auto witness = [&] {
        auto client = kv::Client::connect(server.address(), client_options(), patience());
        Bytes got;
        EXPECT_TRUE(client.set(key("b"), value, patience()).ok());
        EXPECT_TRUE(client.get(key("b"), got, patience()).ok());
        EXPECT_EQ(got, value);
        EXPECT_EQ(client.close(patience()), Status::ok);
    };
    starve(turn, join, talk, witness);
}

}  // namespace
}  // namespace millrace
