// Two connected RC queue pairs in this process, on the default device (MILLRACE_DEVICE), for the
// tests of verbs/.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "millrace/base/wait.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/device.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/queue_pair.hpp"

namespace millrace::verbs::test {

inline constexpr Access everything =
    Access::local_write | Access::remote_write | Access::remote_read;

/// The next completion of `queue`; fails the test after a generous while.
inline Completion next(CompletionQueue& queue) {
    Completion completion;
    base::NapParker naps;
    int got = 0;
    const auto status = base::wait_until(
        [&] {
            return (got = queue.poll({&completion, 1})) != 0;
        },
        base::Deadline::after(std::chrono::seconds{20}), {}, naps);
    EXPECT_EQ(status, base::Status::ok) << "no completion came";
    EXPECT_EQ(got, 1);
    if (got != 1) completion.raw.status = IBV_WC_GENERAL_ERR;
    return completion;
}

struct Loopback {
    struct End {
        CompletionQueue sends;
        CompletionQueue receives;
        QueuePair queue_pair;
        RegisteredBuffer memory;
    };

    Context context = find_device().open();
    std::uint8_t port = context.usable_port();
    int gid_index = context.choose_gid_index(port);
    ProtectionDomain domain = context.allocate_protection_domain();
    CompletionChannel channel = context.create_completion_channel();
    End a;
    End b;

    explicit Loopback(bool connected = true, Access remote = everything,
                      Access memory = everything) {
        make(a, remote, memory);
        make(b, remote, memory);
        if (connected) {
            a.queue_pair.connect(address(b), 77, path());
            b.queue_pair.connect(address(a), 77, path());
        }
    }

    void make(End& end, Access remote, Access memory) {
        end.sends = context.create_completion_queue(64, &channel);
        end.receives = context.create_completion_queue(64, &channel);
        end.queue_pair = domain.create_queue_pair({.send_queue = &end.sends,
                                                   .receive_queue = &end.receives,
                                                   .max_send_requests = 16,
                                                   .max_receive_requests = 16});
        end.queue_pair.initialise(port, remote);
        end.memory = domain.allocate(8192, memory);
    }

    [[nodiscard]] QueuePairAddress address(const End& end) const {
        QueuePairAddress result{.number = end.queue_pair.number(),
                                .packet_sequence = 77,
                                .lid = context.port(port).lid};
        if (gid_index >= 0) {
            result.has_gid = true;
            result.gid = context.gid(port, gid_index);
        }
        return result;
    }
    [[nodiscard]] PathOptions path() const {
        return {.port = port,
                .gid_index = gid_index,
                .mtu = context.port(port).active_mtu,
                .timeout = 10,
                .retry_count = 3};
    }
};

}  // namespace millrace::verbs::test
