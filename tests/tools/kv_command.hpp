// `millrace kv` as a user runs it: a server and the words that ask it. For tests of the command.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/child_process.hpp"
#include "support/command.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::test {

/// A server of the command at an address that nobody else has.
class Kv : public testing::Test {
  protected:
    void serve(const std::vector<std::string>& options = {}) {
        std::vector<std::string> command{MILLRACE_COMMAND, "kv", "serve", "--listen", address_};
        command.insert(command.end(), options.begin(), options.end());
        server_.emplace(ChildProcess::start_program(command));
        const auto line = server_->read_line();
        ASSERT_TRUE(line.has_value());
        ASSERT_EQ(*line, "listening on " + address_);
    }
    [[nodiscard]] CommandOutcome ask(std::vector<std::string> words) const {
        words.insert(words.begin(), "kv");
        words.insert(words.end(), {"--server", address_});
        return run_command(words);
    }

    TemporaryFolder folder_;
    std::string address_ = "unix:" + folder_.path("kv");
    std::optional<ChildProcess> server_;
};

}  // namespace millrace::test
