// Two connected links in this process, and a sleeper with its bell over them: for tests of the
// protocols of ring/ that drive both ends in turn.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring {

inline std::shared_ptr<connect::Endpoint> endpoint() {
    static const auto shared = connect::Endpoint::open();
    return shared;
}

/// How long a test waits for what must come. With a mistake planted (tests/mutants) it does not, so
/// that the end comes sooner.
[[nodiscard]] inline std::chrono::seconds patience() {
    const char* const fault = std::getenv("MILLRACE_TEST_FAULT");
    return std::chrono::seconds{fault == nullptr || *fault == '\0' ? 40 : 2};
}

/// Nothing that is not done when a call returns ever will be by itself.
[[nodiscard]] inline bool completes_at_once() {
    return endpoint()->describe().find(", fast") != std::string::npos;
}

/// Two connected links in this process.
struct Links {
    explicit Links(std::uint32_t slots = 16) {
        using namespace std::chrono_literals;
        static std::atomic<int> number{0};
        connect::LinkOptions options;
        options.service = "ring test";
        options.endpoint = endpoint();
        options.max_send_requests = slots;
        auto listener = connect::Listener::listen(
            connect::Address::parse("unix:@millrace-ring-test-" + std::to_string(getpid()) + "-" +
                                    std::to_string(++number)),
            options);
        std::thread other{[&] {
            near.emplace(connect::connect(listener.address(), options, base::Deadline::after(20s)));
        }};
        far.emplace(listener.accept(base::Deadline::after(20s)));
        other.join();
        near_memory = near->protection_domain().allocate(
            4096, verbs::Access::remote_write | verbs::Access::remote_read);
        far_memory = far->protection_domain().allocate(
            4096, verbs::Access::remote_write | verbs::Access::remote_read);
    }
    verbs::RegisteredBuffer near_memory;
    verbs::RegisteredBuffer far_memory;
    std::optional<connect::Link> near;
    std::optional<connect::Link> far;
};

/// Waits until everything posted with a completion is complete.
[[nodiscard]] inline base::Status settle(SendWindow& window) {
    base::NapParker parker;
    base::Status status = base::Status::ok;
    const base::Status waited = base::wait_until(
        [&] {
            status = window.reap();
            return status != base::Status::ok || window.done(window.posted());
        },
        base::Deadline::after(patience()), {}, parker);
    return waited == base::Status::ok ? status : waited;
}

/// Waits for a number that the other end publishes.
class NumberSleeper final : public Sleeper {
  public:
    using Sleeper::Sleeper;
    std::uint64_t seen = 0;
    std::uint64_t news_found = 0;
    bool needs_room = true;

  protected:
    [[nodiscard]] bool awaits_room() const noexcept override { return needs_room; }
    bool is_news(std::uint64_t progress) noexcept override {
        if (progress == seen) return false;
        ++news_found;
        return true;
    }
};

/// `far_fences`: the sleeper makes them, and the bell none.
struct Pair {
    bool far_fences = false;
    Links links{64};
    SendWindow near_window{*links.near};
    SendWindow far_window{*links.far};
    WakeUpPage& near_page = *reinterpret_cast<WakeUpPage*>(links.near_memory.data());
    WakeUpPage& far_page = *reinterpret_cast<WakeUpPage*>(links.far_memory.data());
    NumberSleeper sleeper{*links.near, near_window, near_page, links.near_memory.region()};
    Bell bell{far_window, far_page, links.near_memory.remote(), far_fences};
    explicit Pair(bool fences = false) : far_fences{fences && end::register_for_far_fences()} {
        sleeper.connect_to(links.far_memory.remote(), far_fences);
    }
};

/// One turn of a wait in which nothing becomes ready.
inline void turn(Pair& pair) {
    pair.sleeper.prepare();
    pair.sleeper.park(std::chrono::milliseconds{1}, nullptr);
    pair.sleeper.retract();
}

/// Turns until the announcement stands, and its READ has found no news.
inline void fall_asleep(Pair& pair) {
    const base::Deadline deadline = base::Deadline::after(patience());
    while (!pair.sleeper.waits_for_bell() && !deadline.expired()) turn(pair);
    ASSERT_TRUE(pair.sleeper.waits_for_bell());
}

}  // namespace millrace::ring
