// `millrace rpc` as a user runs it: a look at a server of typed calls.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "millrace/kv/server.hpp"
#include "millrace/rpc/client.hpp"
#include "millrace/rpc/server.hpp"
#include "support/child_process.hpp"
#include "support/command.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace millrace;
using test::ChildProcess;
using test::CommandOutcome;
using test::run_command;

struct Number {
    std::uint64_t value = 0;
};
struct Twice {
    static constexpr std::string_view name = "twice";
    using Request = Number;
    using Response = Number;
    static constexpr bool is_idempotent = true;
};
struct Refuse {
    static constexpr std::string_view name = "refuse";
    using Request = std::string_view;
    using Response = std::string;
};

MILLRACE_CHILD(listed_server) {
    rpc::Server server = rpc::Server::listen(connect::Address::parse(arguments[0]));
    server.handle<Twice>([](const Number& number) { return Number{2 * number.value}; });
    server.handle<Refuse>([](std::string_view) { return rpc::Error{.text = "no"}; });
    test::say("serving");
    (void)server.serve(base::Deadline::never());
    return 0;
}

class RpcList : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(server_.read_line(), "serving");
        const auto deadline = base::Deadline::after(std::chrono::seconds{40});
        auto client =
            rpc::Client::connect<Twice, Refuse>(connect::Address::parse(address_), {}, deadline);
        for (std::uint64_t i = 0; i < 7; ++i) {
            EXPECT_TRUE(client.call<Twice>({i}, deadline).ok());
        }
        EXPECT_EQ(client.call<Refuse>("", deadline).code(), rpc::Code::failed);
    }

    test::TemporaryFolder folder_;
    std::string address_ = "unix:" + folder_.path("rpc");
    ChildProcess server_ = ChildProcess::start("listed_server", {address_});
};

TEST_F(RpcList, ShowsProceduresAndCounts) {
    const CommandOutcome outcome = run_command({"rpc", "list", address_});
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_NE(outcome.text.find("p99.9"), std::string::npos) << outcome.text;
    EXPECT_NE(outcome.text.find("Number (8 B) -> "), std::string::npos) << outcome.text;
    EXPECT_NE(outcome.text.find("refuse: bytes -> bytes"), std::string::npos) << outcome.text;
}

TEST_F(RpcList, WritesJson) {
    const CommandOutcome outcome = run_command({"rpc", "list", address_, "--json"});
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    const auto document = nlohmann::json::parse(outcome.text);
    ASSERT_EQ(document.size(), 2U);
    EXPECT_EQ(document[0]["name"], "twice");
    EXPECT_EQ(document[0]["calls"], 7);
    EXPECT_EQ(document[0]["answered"], 7);
    EXPECT_EQ(document[0]["idempotent"], true);
    EXPECT_LE(document[0]["latency_ns"]["p50"], document[0]["latency_ns"]["max"]);
    EXPECT_GT(document[0]["latency_ns"]["max"], 0);
    EXPECT_EQ(document[1]["failed"], 1);
}

MILLRACE_CHILD(unlisted_store) {
    kv::Server server =
        kv::Server::listen(connect::Address::parse(arguments[0]), kv::ServerOptions{});
    test::say("serving");
    (void)server.serve(base::Deadline::never());
    return 0;
}

TEST(RpcUsage, SaysThatAStoreIsNoServerOfProcedures) {
    const std::string address = "unix:@millrace-rpc-store-" + std::to_string(getpid());
    ChildProcess store = ChildProcess::start("unlisted_store", {address});
    ASSERT_EQ(store.read_line(), "serving");
    const CommandOutcome outcome = run_command({"rpc", "list", address});
    EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.text;
    EXPECT_NE(outcome.text.find("'key-value store'"), std::string::npos) << outcome.text;
    store.kill_and_wait();
}

TEST(RpcUsage, SaysWhatIsWrong) {
    EXPECT_TRUE(run_command({"rpc"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"rpc", "list"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"rpc", "list", "nowhere"}).exit.exited_with(2));
    const CommandOutcome nobody =
        run_command({"rpc", "list", "unix:@millrace-rpc-nobody", "--timeout", "0.2"});
    EXPECT_TRUE(nobody.exit.exited_with(1));
    EXPECT_NE(nobody.text.find("millrace-rpc-nobody"), std::string::npos) << nobody.text;
}

}  // namespace
