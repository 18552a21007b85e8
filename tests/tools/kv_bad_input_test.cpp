// What `millrace kv` answers to what is wrong: the words, the exit status, and that nothing is
// lost.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/message/server.hpp"
#include "support/child_process.hpp"
#include "support/command.hpp"
#include "tools/kv_command.hpp"

namespace millrace {
namespace {

using test::ChildProcess;
using test::CommandOutcome;
using test::run_command;
using test::run_line;

constexpr const char* every_transport = "rc,uc,ud,tcp";

/// A server with an item, which it must have behind whatever a test did.
class KvBadInput : public test::Kv {
  protected:
    void serve_item(const std::vector<std::string>& options = {}) {
        ASSERT_NO_FATAL_FAILURE(serve(options));
        ASSERT_TRUE(ask({"set", "kept", "a value"}).exit.success());
    }
    void expect_nothing_is_lost() {
        EXPECT_EQ(ask({"get", "kept"}).text, "a value");
        server_->send_signal(SIGTERM);
        EXPECT_TRUE(server_->wait().success());
    }
    void expect_answer(const std::vector<std::string>& words, const std::string& text) const {
        const CommandOutcome outcome = ask(words);
        EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.text;
        EXPECT_EQ(outcome.text, text + "\n");
    }
};

/// Refused before anything is asked, by exit status 2, with `part` in what is said.
void expect_wrong_words(const std::vector<std::string>& words, const std::string& part) {
    const CommandOutcome outcome = run_command(words);
    EXPECT_TRUE(outcome.exit.exited_with(2)) << outcome.text;
    EXPECT_NE(outcome.text.find(part), std::string::npos) << outcome.text;
}

/// Tried, and failed by exit status 1, with `part` in what is said.
void expect_failure(const CommandOutcome& outcome, const std::string& part) {
    EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.text;
    EXPECT_NE(outcome.text.find(part), std::string::npos) << outcome.text;
}

TEST_F(KvBadInput, KeysThatAreNone) {
    serve_item();
    const std::string wrong = ": KEY_ERROR, a key has 1 to 65536 bytes, and this one ";
    for (const std::string word : {"get", "set", "del", "exists"}) {
        std::vector<std::string> words{word, ""};
        if (word == "set") words.emplace_back("v");
        expect_answer(words, "millrace kv " + word + wrong + "0");
        words[1] = std::string(65'537, 'k');
        expect_answer(words, "millrace kv " + word + wrong + "65537");
    }
    const std::string longest(65'536, 'k');
    EXPECT_TRUE(ask({"set", longest, "v"}).exit.success());
    EXPECT_EQ(ask({"get", longest}).text, "v");
    expect_nothing_is_lost();
}

TEST_F(KvBadInput, AValueThatIsTooLong) {
    serve_item();
    const auto set_to = [&](int bytes) {
        return run_line("head -c " + std::to_string(bytes) +
                        " /dev/zero | \"$0\" kv set kept --server " + address_ + " 2>&1");
    };
    const CommandOutcome outcome = set_to(1'048'577);
    EXPECT_TRUE(outcome.exit.exited_with(1));
    EXPECT_EQ(outcome.text, "millrace kv set: STORE_ERROR, a value has at most 1048576 bytes\n");
    EXPECT_EQ(ask({"get", "kept"}).text, "a value");
    EXPECT_TRUE(set_to(1'048'576).exit.success());
    EXPECT_EQ(ask({"get", "kept"}).text.size(), 1'048'576U);
    EXPECT_TRUE(ask({"set", "kept", "a value"}).exit.success());
    expect_nothing_is_lost();
}

TEST_F(KvBadInput, WordsThatItDoesNotKnow) {
    expect_wrong_words({"kv", "fetch", "k"}, "fetch");
    expect_wrong_words({"kv", "get", "k", "--colour"}, "--colour");
    expect_wrong_words({"kv", "serve", "--colour"}, "--colour");
    expect_wrong_words({"kv", "bench", "--colour"}, "--colour");
    for (const std::string word : {"serve", "bench", "get", "ping"}) {
        std::vector<std::string> words{"kv", word, "--transport", "pigeon"};
        if (word == "get") words.emplace_back("k");
        expect_wrong_words(words, "pigeon");
    }
    expect_wrong_words({"kv", "serve", "--transport", "rc,pigeon"}, "pigeon");
    expect_wrong_words({"kv", "serve", "--table", "round"}, "--table");
    expect_wrong_words({"kv", "serve", "--wait", "long"}, "--wait");
    expect_wrong_words({"kv", "serve", "--when-full", "weep"}, "--when-full");
}

TEST_F(KvBadInput, AnAddressThatIsTaken) {
    server_.emplace(
        ChildProcess::start_program({MILLRACE_COMMAND, "kv", "serve", "--listen", "127.0.0.1:0"}));
    const std::string line = server_->read_line().value_or("");
    ASSERT_TRUE(line.starts_with("listening on 127.0.0.1:")) << line;
    address_ = line.substr(line.rfind(' ') + 1);
    ASSERT_TRUE(ask({"set", "kept", "a value"}).exit.success());
    const CommandOutcome second = run_command({"kv", "serve", "--listen", address_});
    expect_failure(second, address_);
    expect_failure(second, "in use");
    expect_nothing_is_lost();
}

TEST_F(KvBadInput, APathThatIsTaken) {
    serve_item();
    expect_failure(run_command({"kv", "serve", "--listen", address_}), "in use");
    expect_nothing_is_lost();
}

TEST_F(KvBadInput, TooLittleMemory) {
    for (const char* memory : {"0", "1k", "8388607", "much"}) {
        expect_wrong_words({"kv", "serve", "--listen", address_, "--memory", memory},
                           "number of bytes, from 8m to 1t");
    }
    serve_item({"--memory", "8m"});
    expect_nothing_is_lost();
}

TEST_F(KvBadInput, AFullStoreRefusesAndKeepsOrForgets) {
    const std::vector<std::string> fill{"bench",  "--keys",        "300", "--value-bytes",
                                        "100000", "--get-percent", "0",   "--operations",
                                        "300",    "--json"};
    serve_item({"--memory", "8m"});
    expect_failure(ask(fill), "the answer is STORE_ERROR; give the server more --memory");
    expect_answer({"set", "more", std::string(60'000, 'v')},
                  "millrace kv set: STORE_ERROR, the memory of the server is used up (its "
                  "--memory, --when-full)");
    expect_nothing_is_lost();
    ASSERT_NO_FATAL_FAILURE(serve({"--memory", "8m", "--when-full", "evict"}));
    const CommandOutcome filled = ask(fill);
    EXPECT_TRUE(filled.exit.success()) << filled.text;
    EXPECT_TRUE(ask({"set", "more", std::string(60'000, 'v')}).exit.success());
    EXPECT_EQ(ask({"get", "more"}).text, std::string(60'000, 'v'));
    EXPECT_EQ(ask({"stats"}).text.find("\nevicted 0\n"), std::string::npos);
}

TEST_F(KvBadInput, WhatIsNotPermittedAndOptionsThatAreNone) {
    serve_item();
    for (const std::string word : {"reset", "exit", "dump"}) {
        expect_answer({word}, "millrace kv " + word +
                                  ": DENIED, the server was not started with --permit " + word);
    }
    const std::string wrong =
        "millrace kv setopt: SETOPT_ERROR, the one option is sweep, a number from 1 to 100000000";
    expect_answer({"setopt", "colour", "5"}, wrong);
    expect_answer({"setopt", "sweep", "none"}, wrong);
    expect_answer({"setopt", "sweep"}, wrong);
    EXPECT_TRUE(ask({"setopt", "sweep", "5"}).exit.success());
    expect_nothing_is_lost();
}

TEST_F(KvBadInput, WhoDoesNotKnowTheSecretByAnyTransport) {
    const std::string secret = folder_.path("secret");
    const std::string other = folder_.path("other");
    for (const std::string& file : {secret, other}) {
        ASSERT_TRUE(
            run_line("umask 077; head -c 32 /dev/urandom | base64 > " + file).exit.success());
    }
    ASSERT_NO_FATAL_FAILURE(serve({"--transport", every_transport, "--trust-clients", "--secret-file", secret}));
    ASSERT_TRUE(ask({"set", "kept", "a value", "--secret-file", secret}).exit.success());
    for (const std::string transport : {"rc", "uc", "ud", "tcp"}) {
        expect_failure(ask({"get", "kept", "--transport", transport}), "this end has none");
        expect_failure(ask({"get", "kept", "--transport", transport, "--secret-file", other}),
                       "does not know its secret");
        EXPECT_EQ(ask({"get", "kept", "--transport", transport, "--secret-file", secret}).text,
                  "a value");
    }
    expect_failure(ask({"ping", "--secret-file", folder_.path("none")}), folder_.path("none"));
}

/// Resident memory of a process, in KiB.
long memory_of(pid_t pid) {
    const CommandOutcome outcome =
        run_line("awk '/VmRSS/ {print $2}' /proc/" + std::to_string(pid) + "/status");
    return outcome.text.empty() ? -1 : std::stol(outcome.text);
}

TEST_F(KvBadInput, StrangersOnItsPort) {
    server_.emplace(ChildProcess::start_program({MILLRACE_COMMAND, "kv", "serve", "--listen",
                                                 "127.0.0.1:0", "--transport", every_transport, "--trust-clients"}));
    const std::string line = server_->read_line().value_or("");
    address_ = line.substr(line.rfind(' ') + 1);
    ASSERT_TRUE(ask({"set", "kept", "a value"}).exit.success());
    const long before = memory_of(server_->pid());
    ASSERT_GT(before, 0);
    // Words of others, a length that is gigantic, much of nothing, and a hello that begins well:
    // each is hung up on, be it after all that it had to say. Whoever is silent is, too, behind
    // seconds, and meanwhile in nobody's way.
    const CommandOutcome talk = run_line(
        "python3 -c 'import socket\n"
        "port = " +
        address_.substr(address_.rfind(':') + 1) +
        "\n"
        "def meet(words, times):\n"
        "  for i in range(times):\n"
        "    s = socket.create_connection((\"127.0.0.1\", port), 30)\n"
        "    try:\n"
        "      s.sendall(words)\n"
        "      while s.recv(65536): pass\n"
        "    except (ConnectionResetError, BrokenPipeError): pass\n"
        "silent = [socket.create_connection((\"127.0.0.1\", port), 30) for i in range(20)]\n"
        "meet(b\"GET / HTTP/1.1\\r\\n\\r\\n\", 20)\n"
        "meet(b\"\\xff\" * 64, 20)\n"
        "meet(b\"\\0\" * 4000000, 5)\n"
        "meet(b\"set kept 0 0 5\\r\\nother\\r\\n\", 20)\n"
        "for s in silent:\n"
        "  while s.recv(65536): pass\n"
        "print(\"all are over\")'");
    EXPECT_TRUE(talk.exit.success()) << talk.text;
    EXPECT_EQ(talk.text, "all are over\n");
    EXPECT_LT(memory_of(server_->pid()), before + 64 * 1024);
    expect_nothing_is_lost();
}

base::Deadline patience() { return base::Deadline::after(std::chrono::seconds{30}); }

TEST_F(KvBadInput, AClientOfAnotherVersion) {
    serve_item({"--transport", every_transport, "--trust-clients"});
    for (const char* transport : {"rc", "uc", "ud", "tcp"}) {
        try {
            (void)connect::connect(connect::Address::parse(address_),
                                   {.service = "key-value store",
                                    .service_version = 1000,
                                    .transport = connect::parse_transport(transport).value()},
                                   patience());
            ADD_FAILURE() << transport;
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::version_mismatch) << error.what();
        }
    }
    expect_nothing_is_lost();
}

TEST_F(KvBadInput, AServerOfAnotherKind) {
    message::Server echo = message::Server::listen(connect::Address::parse(address_));
    std::jthread serving{[&] {
        echo.adopt();
        EXPECT_EQ(
            echo.serve([](message::Request& request) { (void)request.answer(request.payload()); },
                       patience()),
            base::Status::closed);
    }};
    for (const char* word : {"set", "get"}) {
        const CommandOutcome outcome =
            ask(word == std::string{"set"} ? std::vector<std::string>{"set", "k", "v"}
                                           : std::vector<std::string>{"get", "k"});
        expect_failure(outcome,
                       "it offers the service 'message server', this end 'key-value store'");
    }
    echo.stop();
}

TEST_F(KvBadInput, AServerOfAnotherVersion) {
    auto listener =
        connect::Listener::listen(connect::Address::parse(address_),
                                  {.service = "key-value store",
                                   .service_version = 1000,
                                   .accepted = {connect::Transport::rc, connect::Transport::tcp}});
    for (const char* transport : {"rc", "tcp"}) {
        std::jthread refusing{[&] {
            try {
                (void)listener.accept_one(patience());
                ADD_FAILURE() << transport;
            } catch (const base::Error& error) {
                EXPECT_EQ(error.code(), base::ErrorCode::version_mismatch) << error.what();
            }
        }};
        const CommandOutcome outcome = ask({"get", "k", "--transport", transport});
        expect_failure(outcome, "version 1000 of the service 'key-value store'");
        expect_failure(outcome, "run the same release at both ends");
    }
}

}  // namespace
}  // namespace millrace
