// Many at once, many after another, few descriptors, and programs that fork.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "faults/ends.hpp"
#include "faults/residue.hpp"
#include "millrace/base/error.hpp"
#include "support/child_process.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

/// Both ends of one queue, each in a thread.
void pass(const std::string& kind, const Setup& setup, std::uint64_t count) {
    std::thread consumer{[&] {
        const auto in = make_in(kind, setup, true, Deadline::after(60s));
        for (std::uint64_t i = 0; i < count; ++i) {
            bool right = false;
            ASSERT_EQ(in->take(i, right, Deadline::after(60s)), Status::ok) << kind << ' ' << i;
            ASSERT_TRUE(right) << kind << ' ' << i;
        }
        bool right = false;
        EXPECT_EQ(in->take(count, right, Deadline::after(60s)), Status::closed) << kind;
    }};
    {
        const auto out = make_out(kind, setup, false, Deadline::after(60s));
        for (std::uint64_t i = 0; i < count; ++i) {
            const Status status = out->put(i, Deadline::after(60s));
            EXPECT_EQ(status, Status::ok) << kind << ' ' << i;
            if (status != Status::ok) break;
        }
        EXPECT_EQ(out->close(Deadline::after(60s)), Status::ok) << kind;
    }
    consumer.join();
}

TEST(Many, QueuesInOneProcessDoNotDisturbEachOther) {
    std::vector<std::thread> pairs;
    for (int i = 0; i < 8; ++i) {
        pairs.emplace_back([i] {
            const char* const kind = kinds[static_cast<std::size_t>(i) % std::size(kinds)];
            const base::WaitPolicy wait = policy_of(i % 2 == 0 ? "default" : "blocking");
            pass(kind, {unique_address(), 1 + static_cast<std::uint64_t>(i) * 7, wait}, 5'000);
        });
    }
    for (std::thread& pair : pairs) pair.join();
}

TEST(Many, ProcessesOfOneFabricDoNotDisturbEachOther) {
    std::vector<ChildProcess> children;
    for (int i = 0; i < 32; ++i) {
        const std::string kind = kinds[static_cast<std::size_t>(i) % std::size(kinds)];
        const std::string address = unique_address();
        children.push_back(ChildProcess::start("faults_one_of_many", {kind, "in", address}));
        children.push_back(ChildProcess::start("faults_one_of_many", {kind, "out", address}));
    }
    for (ChildProcess& child : children) EXPECT_EQ(child.read_line(120s), "connected");
    // Only now all of them are there at once.
    for (ChildProcess& child : children) EXPECT_TRUE(child.write_line("go"));
    for (ChildProcess& child : children) {
        EXPECT_EQ(child.read_line(120s), "500");
        EXPECT_TRUE(child.wait().success());
    }
}
MILLRACE_CHILD(faults_one_of_many) {
    const Setup setup{arguments[2], 64, base::WaitPolicy::blocking()};
    std::uint64_t number = 0;
    if (arguments[1] == "in") {
        const auto in = make_in(arguments[0], setup, true, Deadline::after(100s));
        say("connected");
        (void)hear();
        bool right = false;
        while (in->take(number, right, Deadline::after(100s)) == Status::ok && right) ++number;
    } else {
        const auto out = make_out(arguments[0], setup, false, Deadline::after(100s));
        say("connected");
        (void)hear();
        while (number < 500 && out->put(number, Deadline::after(100s)) == Status::ok) ++number;
        if (out->close(Deadline::after(100s)) != Status::ok) return 1;
    }
    say(std::to_string(number));
    return 0;
}

TEST(Many, OpenedAndClosedAgainAndAgainLeaveNothingBehind) {
    const int rounds = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 2000 : 250;
    // The first ones fill caches.
    for (int i = 0; i < 50; ++i)
        pass(kinds[static_cast<std::size_t>(i) % std::size(kinds)], {unique_address()}, 20);
    const std::size_t descriptors = open_descriptors();
    const std::size_t maps = shared_mappings();
    const std::size_t resident = status_field("VmRSS:");
    for (int i = 0; i < rounds; ++i)
        pass(kinds[static_cast<std::size_t>(i) % std::size(kinds)], {unique_address()}, 20);
    EXPECT_LE(open_descriptors(), descriptors + 4);
    EXPECT_LE(shared_mappings(), maps + 20);
    // One pair's rings alone are 12 KiB or more.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LE(status_field("VmRSS:"), resident + 2048);
#else
    (void)resident;
#endif
}

// ---- few descriptors

TEST(Shortage, OfDescriptorsIsAnErrorThatSaysSo) {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "the undefined behaviour sanitizer needs descriptors itself: without one it "
                    "takes every object for a wrong one";
#endif
    for (const char* const kind : {"flow2", "message", "stream"}) {
        int succeeded = 0;
        // From too few for anything to enough.
        for (int spare = 0; spare <= 40 && succeeded < 2; ++spare) {
            SCOPED_TRACE(std::string{kind} + ", descriptors to spare: " + std::to_string(spare));
            const std::string address = unique_address();
            ChildProcess child =
                ChildProcess::start("faults_short", {kind, address, std::to_string(spare)});
            ChildProcess peer = ChildProcess::start("faults_short_peer", {kind, address});
            const std::string heard = child.read_line(60s).value_or("nothing");
            EXPECT_TRUE(child.wait(60s).success()) << heard;
            if (heard == "ok") {
                ++succeeded;
            } else {
                EXPECT_NE(heard.find("ulimit -n"), std::string::npos) << heard;
            }
            peer.kill();
            if (HasFailure()) return;
        }
        EXPECT_EQ(succeeded, 2) << kind;
    }
}
MILLRACE_CHILD(faults_short) {
    const rlim_t limit = open_descriptors() - 1 + std::stoul(arguments[2]);
    const rlimit limits{limit, limit};
    if (setrlimit(RLIMIT_NOFILE, &limits) != 0) return 1;
    try {
        const auto in = make_in(arguments[0], {arguments[1]}, false, Deadline::after(40s));
        bool right = false;
        for (std::uint64_t i = 0; i < 10; ++i) {
            const Status status = in->take(i, right, Deadline::after(40s));
            if (status != Status::ok || !right) {
                say("item " + std::to_string(i) + ": " + std::string{name_of(status)});
                return 1;
            }
        }
        say("ok");
    } catch (const base::Error& error) {
        say(error.what());
    }
    return 0;
}
MILLRACE_CHILD(faults_short_peer) {
    try {
        const auto out = make_out(arguments[0], {arguments[1]}, true, Deadline::after(60s));
        for (std::uint64_t i = 0; i < 10; ++i) (void)out->put(i, Deadline::after(60s));
        (void)hear();
    } catch (const base::Error&) {
        return 1;
    }
    return 0;
}

// ---- fork

class Fork : public testing::TestWithParam<const char*> {};

TEST_P(Fork, OfAProgramWithAQueueOpenDoesNotDisturbTheQueue) {
    const std::string address = unique_address();
    ChildProcess producer = ChildProcess::start("faults_forking", {GetParam(), address, "go on"});
    const auto in = make_in(GetParam(), {address}, true, Deadline::after(20s));
    for (std::uint64_t i = 0; i < 3'000; ++i) {
        bool right = false;
        ASSERT_EQ(in->take(i, right, Deadline::after(20s)), Status::ok) << i;
        ASSERT_TRUE(right) << i;
    }
    bool right = false;
    EXPECT_EQ(in->take(3'000, right, Deadline::after(20s)), Status::closed);
    EXPECT_TRUE(producer.wait().success());
}

TEST_P(Fork, DoesNotHideTheDeathOfTheParent) {
    for (const char* const wait : {"blocking", "default", "polling"}) {
        const std::string address = unique_address();
        ChildProcess producer =
            ChildProcess::start("faults_forking", {GetParam(), address, "be killed"});
        const auto in =
            make_in(GetParam(), {address, 64, policy_of(wait)}, true, Deadline::after(20s));
        bool right = false;
        ASSERT_EQ(in->take(0, right, Deadline::after(20s)), Status::ok);
        const std::string child = producer.read_line().value_or("0");
        producer.kill();
        EXPECT_TRUE(producer.wait().killed_by(SIGKILL));
        Status status;
        std::uint64_t next = 1;
        while ((status = in->take(next, right, Deadline::after(20s))) == Status::ok) ++next;
        EXPECT_EQ(status, Status::peer_lost) << name_of(status) << ", " << wait;
        ::kill(static_cast<pid_t>(std::stol(child)), SIGKILL);
    }
}
MILLRACE_CHILD(faults_forking) {
    const auto out = make_out(arguments[0], {arguments[1]}, false, Deadline::after(20s));
    if (arguments[2] == "go on") {
        for (std::uint64_t i = 0; i < 3'000; ++i) {
            if (i % 500 == 100) {
                const pid_t child = fork();
                if (child == 0) _exit(0);
                if (i % 1000 == 100) waitpid(child, nullptr, 0);
            }
            if (out->put(i, Deadline::after(20s)) != Status::ok) return 1;
        }
        return out->close(Deadline::after(20s)) == Status::ok ? 0 : 1;
    }
    (void)out->put(0, Deadline::after(20s));
    const pid_t child = fork();
    if (child == 0) {
        // It outlives its parent, and would outlive a failing test: for a while only.
        alarm(60);
        for (;;) pause();
    }
    say(std::to_string(child));
    (void)hear();
    return 0;
}
INSTANTIATE_TEST_SUITE_P(Every, Fork, testing::ValuesIn(kinds),
                         [](const auto& chosen) { return std::string{chosen.param}; });

}  // namespace
}  // namespace millrace::faults
