// An endpoint in another process, driven by lines: a test says what that process shall do, and it
// does nothing else (between two commands it sleeps in a read, outside of all verbs).
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "endpoint.hpp"
#include "support/child_process.hpp"

namespace millrace::test {

class RemoteEndpoint {
  public:
    /// `flags`: "events", "private" (memory that cannot be mapped), "withheld" (it may not copy
    /// from and to other processes).
    explicit RemoteEndpoint(std::vector<std::string> flags = {})
        : child{ChildProcess::start("soft_endpoint", std::move(flags))} {
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
