// `millrace kv serve --snapshot` as a user runs it.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <string>

#include "millrace/base/deadline.hpp"
#include "tools/kv_command.hpp"

namespace {

using millrace::test::CommandOutcome;
using millrace::test::Kv;
using millrace::test::run_command;

class KvSnapshot : public Kv {
  protected:
    std::string file_ = folder_.path("items");
};

TEST_F(KvSnapshot, GivesTheNextServerItsItems) {
    serve({"--snapshot", file_});
    EXPECT_EQ(server_->read_line(), "0 items from " + file_);
    ASSERT_TRUE(ask({"set", "name", "a value"}).exit.success());
    ASSERT_TRUE(ask({"set", "other", "1", "--expires", "1000"}).exit.success());
    server_->send_signal(SIGTERM);
    const std::string said = server_->read_all();
    EXPECT_NE(said.find("2 items into " + file_ + "\n"), std::string::npos) << said;
    EXPECT_TRUE(server_->wait().success());

    serve({"--snapshot", file_, "--permit", "exit"});
    EXPECT_EQ(server_->read_line(), "2 items from " + file_);
    EXPECT_EQ(ask({"get", "name"}).text, "a value");
    ASSERT_TRUE(ask({"del", "name"}).exit.success());
    // A client may end it as well.
    ASSERT_TRUE(ask({"exit"}).exit.success());
    EXPECT_NE(server_->read_all().find("1 items into " + file_ + "\n"), std::string::npos);
    EXPECT_TRUE(server_->wait().success());
}

TEST_F(KvSnapshot, IsWrittenWhileItServesAndOutlivesAKill) {
    serve({"--snapshot", file_, "--snapshot-every", "0.01"});
    ASSERT_TRUE(ask({"set", "name", "a value"}).exit.success());
    // It changes nothing before that, so the first one has it.
    const auto deadline = millrace::base::Deadline::after(millrace::test::patience);
    while (ask({"stats"}).text.find("\nsnapshots 0\n") != std::string::npos) {
        ASSERT_FALSE(deadline.expired());
    }
    server_->send_signal(SIGKILL);
    (void)server_->wait();
    serve({"--snapshot", file_});
    EXPECT_EQ(ask({"get", "name"}).text, "a value");
}

TEST_F(KvSnapshot, WantsAFileForAPeriod) {
    EXPECT_TRUE(run_command({"kv", "serve", "--snapshot-every", "1"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "serve", "--snapshot", file_, "--snapshot-every", "0"})
                    .exit.exited_with(2));
}

TEST_F(KvSnapshot, IsNotTakenForAnEmptyStoreWhereItIsBroken) {
    std::ofstream{file_} << "MRKVSNAP, and what follows is none";
    const CommandOutcome broken =
        run_command({"kv", "serve", "--listen", address_, "--snapshot", file_});
    EXPECT_TRUE(broken.exit.exited_with(1)) << broken.text;
    EXPECT_NE(broken.text.find(file_), std::string::npos) << broken.text;
}

TEST_F(KvSnapshot, TellsWhereItCannotBeWritten) {
    serve({"--snapshot", folder_.path("none/items")});
    server_->send_signal(SIGTERM);
    (void)server_->read_all();
    EXPECT_TRUE(server_->wait().exited_with(1));
}

}  // namespace
