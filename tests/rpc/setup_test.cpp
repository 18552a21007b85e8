// What client and server agree on when they are connected: names, numbers, signatures; structs that
// have grown; codecs.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "millrace/base/error.hpp"
#include "millrace/message/server.hpp"
#include "rpc/serving.hpp"

namespace millrace::rpc {
namespace {

/// The error that `make` throws.
template <class Make>
base::Error error_of(Make&& make) {
    try {
        make();
    } catch (const base::Error& error) {
        return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {base::ErrorCode::system, "", "", "", ""};
}

TEST(SetUp, RefusesAProcedureThatTheServerDoesNotHave) {
    Running running{{}, [](Server& server) { server.handle<Add>(sum_of); }};
    const base::Error error = error_of([&] { (void)running.connect<Add, Echo>(); });
    EXPECT_EQ(error.code(), base::ErrorCode::not_found);
    EXPECT_NE(std::string{error.what()}.find("'echo'"), std::string::npos) << error.what();
}

TEST(SetUp, FindsAProcedureThatWasAddedSince) {
    Running running{{}, [](Server& server) { server.handle<Add>(sum_of); }};
    Client client = running.connect<Add>();
    running.stop();
    running.server.handle<Ping>([](Nothing) { return Nothing{}; });
    std::thread serving{[&] {
        running.server.adopt();
        EXPECT_EQ(running.server.serve(base::Deadline::never()), base::Status::closed);
    }};
    client.use<Ping>(patience());
    EXPECT_TRUE(client.call<Ping>({}, patience()).ok());
    running.server.stop();
    serving.join();
    running.server.adopt();
}

TEST(SetUp, RefusesTwoProceduresOfOneName) {
    Server server = Server::listen(unique_address());
    server.handle<Add>(sum_of);
    const base::Error error = error_of([&] { server.handle<Add>(sum_of); });
    EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    EXPECT_NE(std::string{error.what()}.find("already"), std::string::npos) << error.what();
}

struct Nameless {
    static constexpr std::string_view name = "";
    using Request = Nothing;
    using Response = Nothing;
};
TEST(SetUp, RefusesAProcedureWithoutAName) {
    Server server = Server::listen(unique_address());
    EXPECT_EQ(error_of([&] { server.handle<Nameless>([](Nothing) { return Nothing{}; }); }).code(),
              base::ErrorCode::invalid_argument);
}

struct AddOtherRequest {
    static constexpr std::string_view name = "add";
    using Request = Sum;
    using Response = Sum;
};
struct AddOtherResponse {
    static constexpr std::string_view name = "add";
    using Request = Pair;
    using Response = std::string;
};
struct AddStream {
    static constexpr std::string_view name = "add";
    using Request = Pair;
    using Part = Sum;
};
TEST(SetUp, RefusesAnotherRequestOrResponse) {
    Running running;
    const auto why = [&](const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        return std::string{error.what()};
    };
    const std::string request = why(error_of([&] { (void)running.connect<AddOtherRequest>(); }));
    EXPECT_NE(request.find("millrace::rpc::Pair"), std::string::npos) << request;
    EXPECT_NE(request.find("millrace::rpc::Sum"), std::string::npos) << request;
    const std::string response = why(error_of([&] { (void)running.connect<AddOtherResponse>(); }));
    EXPECT_NE(response.find("bytes"), std::string::npos) << response;
    const std::string stream = why(error_of([&] { (void)running.connect<AddStream>(); }));
    EXPECT_NE(stream.find("stream"), std::string::npos) << stream;
}

TEST(SetUp, RefusesAServerThatKnowsNoProcedures) {
    message::Server server =
        message::Server::listen(unique_address(), {.tuning = {.service = server_service}});
    std::thread serving{[&] {
        server.adopt();
        EXPECT_EQ(server.serve([](message::Request& request) { (void)request.answer({}); },
                               base::Deadline::never()),
                  base::Status::closed);
    }};
    EXPECT_EQ(error_of([&] { (void)Client::connect<>(server.address(), {}, patience()); }).code(),
              base::ErrorCode::protocol);
    server.stop();
    serving.join();
    server.adopt();
}

TEST(SetUp, RefusesServersAndClientsOfAnotherKindAndTellsBothWhatTheOtherIs) {
    message::Server echo = message::Server::listen(unique_address());
    std::thread serving{[&] {
        echo.adopt();
        EXPECT_EQ(echo.serve([](message::Request& request) { (void)request.answer({}); },
                             base::Deadline::never()),
                  base::Status::closed);
    }};
    const base::Error at_echo =
        error_of([&] { (void)Client::connect<>(echo.address(), {}, patience()); });
    EXPECT_EQ(at_echo.code(), base::ErrorCode::refused);
    EXPECT_NE(std::string{at_echo.what()}.find(
                  "it offers the service 'message server', this end 'rpc server'"),
              std::string::npos)
        << at_echo.what();
    echo.stop();
    serving.join();
    echo.adopt();

    Running running;
    const base::Error at_rpc =
        error_of([&] { (void)message::Client::connect(running.server.address(), {}, patience()); });
    EXPECT_EQ(at_rpc.code(), base::ErrorCode::refused);
    EXPECT_NE(std::string{at_rpc.what()}.find(
                  "it offers the service 'rpc server', this end 'message server'"),
              std::string::npos)
        << at_rpc.what();
}

TEST(SetUp, ComparesTheProtocolThatAProgramNames) {
    ServerOptions named;
    named.messages.protocol = {.name = "orders", .version = 2};
    Running running{named};
    Dispatching dispatching;
    for (const bool is_shared : {false, true}) {
        ClientOptions options;
        if (is_shared) {
            options.design = Design{.connection = Connection::dispatcher};
            options.dispatcher = dispatching.dispatcher;
        }
        // Who names none, as a tool that looks at any server, is taken.
        EXPECT_TRUE(running.connect<Add>(ClientOptions{options}).call<Add>({}, patience()).ok());
        options.messages.protocol = {.name = "orders", .version = 2};
        EXPECT_TRUE(running.connect<Add>(ClientOptions{options}).call<Add>({}, patience()).ok());
        options.messages.protocol.version = 3;
        EXPECT_EQ(error_of([&] { (void)running.connect<Add>(ClientOptions{options}); }).code(),
                  base::ErrorCode::version_mismatch);
        options.messages.protocol.name = "bills";
        EXPECT_EQ(error_of([&] { (void)running.connect<Add>(ClientOptions{options}); }).code(),
                  base::ErrorCode::refused);
    }
}

// --- the structural prefix rule

struct Old {
    static constexpr std::string_view rpc_name = "item";
    std::uint32_t id = 1;
    std::uint32_t count = 2;
};
struct New {
    static constexpr std::string_view rpc_name = "item";
    std::uint32_t id = 1;
    std::uint32_t count = 2;
    double weight = 2.5;
    std::array<std::uint8_t, 8> label{9, 8, 7};
};
template <class T>
struct Twice {
    static constexpr std::string_view name = "twice";
    using Request = T;
    using Response = T;
};

TEST(Evolution, DefaultsATailThatTheWriterDidNotKnow) {
    std::optional<New> seen;
    Running running{{}, [&](Server& server) {
                        server.handle<Twice<New>>([&](const New& item) {
                            seen = item;
                            return New{item.id * 2, item.count * 2, 100, {}};
                        });
                    }};
    Client client = running.connect<Twice<Old>>();
    const Result<Old> answer = client.call<Twice<Old>>({.id = 21, .count = 4}, patience());
    ASSERT_TRUE(answer);
    running.stop();
    ASSERT_TRUE(seen.has_value());
    EXPECT_EQ(seen->id, 21U);
    EXPECT_EQ(seen->count, 4U);
    EXPECT_EQ(seen->weight, 2.5);
    EXPECT_EQ(seen->label, New{}.label);
    // The tail of the answer, which the old client does not know, is left out.
    EXPECT_EQ(answer->id, 42U);
    EXPECT_EQ(answer->count, 8U);
}

TEST(Evolution, LeavesOutATailThatTheReaderDoesNotKnow) {
    std::optional<Old> seen;
    Running running{{}, [&](Server& server) {
                        server.handle<Twice<Old>>([&](const Old& item) {
                            seen = item;
                            return Old{item.id * 2, item.count * 2};
                        });
                    }};
    Client client = running.connect<Twice<New>>();
    const Result<New> answer =
        client.call<Twice<New>>({.id = 21, .count = 4, .weight = 7}, patience());
    ASSERT_TRUE(answer);
    running.stop();
    EXPECT_EQ(seen->id, 21U);
    EXPECT_EQ(seen->count, 4U);
    EXPECT_EQ(answer->id, 42U);
    EXPECT_EQ(answer->weight, 2.5) << "the default, not what was sent";
}

struct Padded {
    std::uint8_t first = 0;
    std::uint64_t second = 0;
    std::uint8_t third = 0;
};
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
TEST(Evolution, WritesPaddingAsZeroes) {
    Padded padded;
    std::memset(static_cast<void*>(&padded), 0xff, sizeof padded);
    padded.first = 1;
    padded.second = 2;
    padded.third = 3;
    std::array<std::uint8_t, sizeof(Padded)> bytes{};
    detail::Writer{padded}.write(reinterpret_cast<std::byte*>(bytes.data()));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        EXPECT_EQ(bytes[i], i == 0 ? 1 : i == 8 ? 2 : i == 16 ? 3 : 0) << i;
    }
}
#endif
#endif

// --- a codec: JSON for Modern C++, as CBOR

struct Person {
    std::string name;
    std::vector<std::string> friends;
    bool operator==(const Person&) const = default;
};

}  // namespace

template <>
struct Codec<Person> {
    static constexpr std::string_view name = "person, CBOR";
    static std::vector<std::uint8_t> encode(const Person& person) {
        return nlohmann::json::to_cbor({{"name", person.name}, {"friends", person.friends}});
    }
    /// What is no CBOR, or lacks a member, throws, which is the same as false.
    static bool decode(std::span<const std::byte> bytes, Person& person) {
        const auto* const first = reinterpret_cast<const std::uint8_t*>(bytes.data());
        const nlohmann::json json = nlohmann::json::from_cbor(first, first + bytes.size());
        json.at("name").get_to(person.name);
        json.at("friends").get_to(person.friends);
        return true;
    }
};

namespace {

struct Befriend {
    static constexpr std::string_view name = "befriend";
    using Request = Person;
    using Response = Person;
};

TEST(Codecs, CarryWhatIsNoStruct) {
    Running running{{}, [](Server& server) {
                        server.handle<Befriend>([](Person person) {
                            person.friends.push_back("the server");
                            return person;
                        });
                    }};
    Client client = running.connect<Befriend>();
    const Result<Person> person = client.call<Befriend>({"Ada", {"Charles"}}, patience());
    ASSERT_TRUE(person) << person.error().text;
    EXPECT_EQ(*person, (Person{"Ada", {"Charles", "the server"}}));
}

struct BefriendByBytes {
    static constexpr std::string_view name = "befriend";
    using Request = std::span<const std::byte>;
    using Response = Person;
};
TEST(Codecs, AreComparedByName) {
    Running running{{}, [](Server& server) {
                        server.handle<Befriend>([](const Person& person) { return person; });
                    }};
    EXPECT_EQ(error_of([&] { (void)running.connect<BefriendByBytes>(); }).code(),
              base::ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace millrace::rpc
