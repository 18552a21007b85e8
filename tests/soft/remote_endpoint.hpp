// An endpoint in another process, driven by lines: a test says what that process shall do, and it
// does nothing else (between two commands it sleeps in a read, outside of all verbs).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "soft/endpoint.hpp"
#include "support/child_process.hpp"

namespace millrace::test {

class RemoteEndpoint {
  public:
    /// `flags`: "events", "private" (memory that cannot be mapped), "withheld" (it may not copy
    /// from and to other processes).
    explicit RemoteEndpoint(std::vector<std::string> flags = {})
        : RemoteEndpoint{ChildProcess::start("soft_endpoint", std::move(flags))} {}
    /// `started` calls serve_endpoint.
    explicit RemoteEndpoint(ChildProcess started) : child{std::move(started)} {
        std::istringstream line{child.read_line().value_or("")};
        line >> qpn >> address >> rkey;
        EXPECT_NE(qpn, 0U) << "the peer did not start";
    }

    /// Sends a command and returns the answer's line.
    std::string ask(const std::string& command) {
        if (!child.write_line(command)) return "gone";
        return child.read_line().value_or("gone");
    }

    ChildProcess child;
    std::uint32_t qpn = 0;
    std::uint64_t address = 0;
    std::uint32_t rkey = 0;
};

/// A command's verb and its numbers; those that are missing are 0.
struct EndpointCommand {
    std::string verb;
    std::uint64_t a = 0;
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    std::uint64_t d = 0;
    std::uint64_t e = 0;
};

/// What the process behind a RemoteEndpoint does: says where `end` is, then answers commands until
/// no more come. `own` answers those that this process alone knows.
void serve_endpoint(
    Endpoint& end,
    const std::function<std::optional<std::string>(const EndpointCommand&)>& own = nullptr);

/// An endpoint here and one there, connected.
struct RemotePair {
    explicit RemotePair(const EndpointOptions& options = {}, std::vector<std::string> flags = {})
        : left{options}, right{std::move(flags)} {
        EXPECT_EQ(left.connect(right.qpn), 0);
        EXPECT_EQ(right.ask("connect " + std::to_string(left.qp->qp_num)), "0");
    }
    Endpoint left;
    RemoteEndpoint right;
};

}  // namespace millrace::test
