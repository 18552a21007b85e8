// A process that sends to a queue pair with a shared receive queue (the child "shared_sender"):
// messages of eight words, each the message's number. Used by the tests of those queues.
#pragma once

#include <cstdint>
#include <string>

#include "soft/station.hpp"
#include "support/child_process.hpp"

namespace millrace::test {

struct SharedSender {
    /// `memory`: its own, "shared" or "private". It sends `count` messages, and says "sent".
    SharedSender(Station& hub, const std::string& memory, std::uint64_t count)
        : child{ChildProcess::start("shared_sender", {memory})}, qp{hub.make(IBV_QPT_RC)} {
        const auto number = child.read_line();
        EXPECT_TRUE(number);
        EXPECT_EQ(hub.connect(qp, static_cast<std::uint32_t>(std::stoul(number.value_or("0")))), 0);
        child.write_line(std::to_string(qp->qp_num));
        // Who dies before it is connected is no death that anybody is told of.
        EXPECT_EQ(child.read_line(), "connected");
        child.write_line(std::to_string(count));
    }
    ChildProcess child;
    ibv_qp* qp;
};

}  // namespace millrace::test
