// Completion and asynchronous events as the tests ask for them.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <fcntl.h>
#include <poll.h>

#include "soft/endpoint.hpp"

namespace millrace::test {

/// An endpoint whose completions ring a channel.
inline EndpointOptions with_events() {
    EndpointOptions options;
    options.events = true;
    return options;
}

inline bool is_readable(int descriptor, int milliseconds = 0) {
    pollfd one{descriptor, POLLIN, 0};
    return poll(&one, 1, milliseconds) == 1 && (one.revents & POLLIN) != 0;
}

inline void do_not_block(int descriptor) {
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

/// Takes one event of the endpoint's channel and acknowledges it; false: there is none.
inline bool take_event(const Endpoint& end) {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (soft::get_cq_event(end.channel, &cq, &context) != 0) return false;
    EXPECT_EQ(cq, end.cq);
    EXPECT_EQ(context, &end);
    soft::ack_cq_events(cq, 1);
    return true;
}

}  // namespace millrace::test
