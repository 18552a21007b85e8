// Several keys by one request: values of every length, over every transport; servers that know no
// such request, or answer it wrongly; and what a server makes of wrong ones.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/kv/client.hpp"
#include "millrace/message/server.hpp"
#include "service.hpp"
#include "serving.hpp"
#include "stores.hpp"
#include "support/served.hpp"

namespace millrace::kv {
namespace {

using base::Deadline;
using base::Status;

struct Travel {
    connect::Transport transport = connect::Transport::rc;
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
    ring::Carrier carrier = ring::Carrier::automatic;
    const char* name = "rc";
};

class ManyKeysByOneRequest : public testing::TestWithParam<Travel> {
  protected:
    [[nodiscard]] static ServerOptions server_options() {
        ServerOptions options;
        options.messages.transports = GetParam().transport;
        options.messages.tuning.carrier = GetParam().carrier;
        if (GetParam().transport == connect::Transport::ud) {
            options.messages.protection = message::Protection::trusted;
        }
        return options;
    }
    [[nodiscard]] static message::ClientOptions client_options() {
        message::ClientOptions options;
        options.transport = GetParam().transport;
        options.requests = GetParam().requests;
        options.answers = GetParam().answers;
        options.tuning.carrier = GetParam().carrier;
        return options;
    }
};
INSTANTIATE_TEST_SUITE_P(
    Travels, ManyKeysByOneRequest,
    testing::Values(Travel{}, Travel{.carrier = ring::Carrier::post, .name = "posted"},
                    Travel{.requests = message::Transfer::send,
                           .answers = message::Transfer::send,
                           .name = "sends"},
                    Travel{.answers = message::Transfer::send, .name = "answers_by_send"},
                    Travel{.transport = connect::Transport::tcp, .name = "tcp"},
                    Travel{.transport = connect::Transport::uc, .name = "uc"},
                    Travel{.transport = connect::Transport::ud, .name = "ud"}),
    [](const auto& of) { return std::string{of.param.name}; });

std::string numbered_value(std::size_t number, std::size_t length) {
    std::string value(length, static_cast<char>('a' + number % 26));
    if (length >= sizeof number) std::memcpy(value.data(), &number, sizeof number);
    return value;
}
std::uint64_t requests_of(const Server& server, Command command) {
    return server.requests()[static_cast<std::size_t>(command)];
}

TEST_P(ManyKeysByOneRequest, GetValuesOfEveryLength) {
    // Those longer than an answer go by themselves; the last is not there.
    constexpr std::optional<std::size_t> lengths[] = {0, 10, 300, 1000, 4000, 50'000, std::nullopt};
    const auto length_of = [&](std::size_t number) {
        return lengths[number * number % std::size(lengths)];
    };
    Serving serving{server_options()};
    Client client = serving.client(client_options());
    const std::vector<std::string> names = numbered_names(150);
    std::map<std::size_t, Version> versions;
    for (std::size_t i = 0; i < names.size(); ++i) {
        const auto length = length_of(i);
        if (!length) continue;
        const SetResult set =
            serving.server().store().set(bytes(names[i]), bytes(numbered_value(i, *length)));
        ASSERT_EQ(set.outcome, Outcome::ok);
        versions[i] = set.version;
    }
    for (int round = 0; round < 3; ++round) {
        std::vector<int> told(names.size());
        EXPECT_EQ(client.multi_get(
                      keys_of(names),
                      [&](std::size_t i, const Result& result, std::span<const std::byte> value) {
                          ASSERT_LT(i, told.size());
                          ++told[i];
                          const auto length = length_of(i);
                          EXPECT_EQ(result.code, length ? Code::ok : Code::key_error) << i;
                          EXPECT_EQ(result.version, length ? versions.at(i) : 0) << i;
                          EXPECT_EQ(text(value), length ? numbered_value(i, *length) : "") << i;
                      },
                      soon()),
                  Status::ok);
        EXPECT_EQ(told, std::vector<int>(names.size(), 1));
    }
    EXPECT_EQ(client.outstanding(), 0U);
    EXPECT_GT(requests_of(serving.server(), Command::mget), 0U);
}

TEST_P(ManyKeysByOneRequest, AskByFewRequestsWhereValuesAreShort) {
    Serving serving{server_options()};
    Client client = serving.client(client_options());
    const std::vector<std::string> names = numbered_names(256);
    for (std::size_t i = 0; i < names.size(); ++i) {
        ASSERT_TRUE(client.set(bytes(names[i]), bytes(numbered_value(i, 20)), soon()).ok());
    }
    std::size_t found = 0;
    const auto take = [&](std::size_t i, const Result& result, std::span<const std::byte> value) {
        EXPECT_TRUE(result.ok());
        EXPECT_EQ(text(value), numbered_value(i, 20));
        ++found;
    };
    ASSERT_EQ(client.multi_get(keys_of(names), take, soon()), Status::ok);
    EXPECT_EQ(found, names.size());
    EXPECT_EQ(requests_of(serving.server(), Command::get), 0U);
    EXPECT_LE(requests_of(serving.server(), Command::mget), 8U);
}

/// A server whose answers to mgets are the test's.
class StandIn {
  public:
    using Answering = std::function<void(message::Request&, const RequestParts&)>;
    explicit StandIn(Answering answering) : answering_{std::move(answering)} {}

    [[nodiscard]] Client client() const { return Client::connect(server_.address(), {}, soon()); }
    [[nodiscard]] Store& store() { return store_; }
    [[nodiscard]] std::uint64_t mgets() const { return mgets_; }
    [[nodiscard]] std::uint64_t gets() const { return gets_; }

  private:
    void handle(message::Request& request) {
        const auto parts = parse_request(request.payload());
        const auto command = static_cast<Command>(request.procedure());
        if (command == Command::get) ++gets_;
        if (parts && command == Command::mget) {
            ++mgets_;
            answering_(request, *parts);
        } else {
            service_(request);
        }
    }

    Answering answering_;
    std::atomic<std::uint64_t> mgets_{0};
    std::atomic<std::uint64_t> gets_{0};
    Store store_{{}};
    Service service_{store_, {}, {}};
    message::Server server_ = message::Server::listen(connect::Address::tcp("127.0.0.1", 0),
                                                      {.tuning = {.service = server_service}});
    test::ServingThread<message::Server> thread_{
        server_, [this](message::Server& server) {
            return server.serve([this](message::Request& request) { handle(request); },
                                Deadline::never());
        }};
};

void answer_code(message::Request& request, Code code) {
    const std::uint64_t word = pack(AnswerHead{code});
    EXPECT_EQ(request.answer(std::as_bytes(std::span{&word, 1})), Status::ok);
}

/// That all keys, which the store has, are found.
void gets_all(StandIn& server, Client& client) {
    const std::vector<std::string> names = numbered_names(100);
    for (std::size_t i = 0; i < names.size(); ++i) {
        ASSERT_EQ(server.store().set(bytes(names[i]), bytes(numbered_value(i, 100))).outcome,
                  Outcome::ok);
    }
    std::vector<int> told(names.size());
    EXPECT_EQ(client.multi_get(
                  keys_of(names),
                  [&](std::size_t i, const Result& result, std::span<const std::byte> value) {
                      ++told[i];
                      EXPECT_TRUE(result.ok());
                      EXPECT_EQ(text(value), numbered_value(i, 100));
                  },
                  soon()),
              Status::ok);
    EXPECT_EQ(told, std::vector<int>(names.size(), 1));
}

TEST(ManyKeys, AreAskedForOneByOneWhereTheServerKnowsNoOtherRequest) {
    StandIn server{[](message::Request& request, const RequestParts&) {
        answer_code(request, Code::unknown_error);
    }};
    Client client = server.client();
    gets_all(server, client);
    const std::uint64_t tried = server.mgets();
    EXPECT_GT(tried, 0U);
    gets_all(server, client);
    EXPECT_EQ(server.mgets(), tried) << "it is asked once";
    EXPECT_EQ(server.gets(), 200U);
}

TEST(ManyKeys, AreAskedForOneByOneWhereTheServerLeavesThemOutAgainAndAgain) {
    StandIn server{[](message::Request& request, const RequestParts& parts) {
        const auto wanted = parse_mget_request(parts.value);
        ASSERT_TRUE(wanted.has_value());
        std::vector<std::byte> answer(answer_head_bytes + wanted->count * mget_item_head_bytes);
        const std::uint64_t head = pack(AnswerHead{});
        std::memcpy(answer.data(), &head, sizeof head);
        for (std::size_t i = 0; i < wanted->count; ++i) {
            write(MgetItem{.head = {Code::ok, 1}, .bytes = 1, .is_left_out = true},
                  answer.data() + answer_head_bytes + i * mget_item_head_bytes);
        }
        EXPECT_EQ(request.answer(answer), Status::ok);
    }};
    Client client = server.client();
    gets_all(server, client);
    EXPECT_EQ(server.gets(), 100U);
}

TEST(ManyKeys, HaveNoAnswerWhereTheirsCannotBeRead) {
    StandIn server{
        [](message::Request& request, const RequestParts&) { answer_code(request, Code::ok); }};
    Client client = server.client();
    const std::vector<std::string> names = numbered_names(10);
    std::vector<int> told(names.size());
    EXPECT_EQ(client.multi_get(
                  keys_of(names),
                  [&](std::size_t i, const Result& result, std::span<const std::byte> value) {
                      ++told[i];
                      EXPECT_EQ(result.code, Code::unanswered);
                      EXPECT_EQ(result.outcome, message::Outcome::failed);
                      EXPECT_TRUE(value.empty());
                  },
                  soon()),
              Status::ok);
    EXPECT_EQ(told, std::vector<int>(names.size(), 1));
    EXPECT_EQ(client.outstanding(), 0U);
}

TEST(ManyKeys, AreAnsweredInTheirOrderWithinTheBytesThatWereAskedFor) {
    Serving serving;
    Client client = serving.client();
    for (const char* key : {"a", "b", "c"}) {
        ASSERT_TRUE(client.set(bytes(key), bytes("12345"), soon()).ok());
    }
    // The values of how many have room.
    for (std::uint32_t fit = 0; fit <= 3; ++fit) {
        const auto size = static_cast<std::uint32_t>(4 * mget_item_head_bytes + 5 * fit + 4);
        std::vector<std::string> found;
        const Result result = client.call(
            Command::mget, {.value = mget_of(size, {"a", "b", "none", "c"})},
            [&](std::span<const std::byte> items) {
                EXPECT_LE(items.size(), size);
                while (const auto item = next_of_mget(items)) {
                    found.push_back(item->head.code != Code::ok ? std::string{"none"}
                                    : item->is_left_out ? std::to_string(item->bytes) + " left out"
                                                        : text(item->value));
                }
                EXPECT_TRUE(items.empty());
            },
            soon());
        EXPECT_TRUE(result.ok());
        const auto value = [&](std::uint32_t number) {
            return number < fit ? std::string{"12345"} : std::string{"5 left out"};
        };
        EXPECT_EQ(found, (std::vector<std::string>{value(0), value(1), "none", value(2)})) << fit;
    }
    const auto nobody = [](std::span<const std::byte>) { FAIL(); };
    for (const auto& wrong : {mget_of(1000, {}), mget_of(23, {"a", "b"}),
                              mget_of(100'000, std::vector<std::string>(most_keys + 1, "k")),
                              std::vector<std::byte>(3)}) {
        EXPECT_EQ(client.call(Command::mget, {.value = wrong}, nobody, soon()).code,
                  Code::parsing_error);
    }
}

}  // namespace
}  // namespace millrace::kv
