// SIGSTOP: a side that stands still makes the other wait until its deadline, and no longer; after
// SIGCONT everything goes on and nothing is lost. Whoever has had enough may close and go while
// the other still stands.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "faults/ends.hpp"
#include "millrace/base/error.hpp"
#include "support/child_process.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

// arguments: kind, produces or consumes, address, wait
int stand(const std::vector<std::string>& a) {
    const Setup setup{a[2], 32, policy_of(a[3])};
    if (a[1] == "produces") {
        const auto out = make_out(a[0], setup, false, Deadline::after(20s));
        say("connected");
        std::uint64_t number = 0;
        Status status;
        while ((status = out->put(number, Deadline::after(60s))) == Status::ok) {
            ++number;
            if (number == 30'000) status = out->close(Deadline::after(60s));
        }
        say(std::string{name_of(status)} + " after " + std::to_string(number));
        return 0;
    }
    const auto in = make_in(a[0], setup, false, Deadline::after(20s));
    say("connected");
    std::uint64_t number = 0;
    Status status;
    bool right = false;
    while ((status = in->take(number, right, Deadline::after(60s))) == Status::ok) {
        if (!right) {
            say("wrong item " + std::to_string(number));
            return 1;
        }
        ++number;
    }
    in->close();  // else it is lost to a producer that is not yet through with its own close
    say(std::string{name_of(status)} + " after " + std::to_string(number));
    return 0;
}
MILLRACE_CHILD(faults_standing) {
    try {
        return stand(arguments);
    } catch (const base::Error& error) {
        say(std::string{"error: "} + error.what());
        return 2;
    }
}

class StandingStill : public testing::TestWithParam<std::tuple<const char*, const char*>> {
  protected:
    [[nodiscard]] const char* kind() const { return std::get<0>(GetParam()); }
    [[nodiscard]] const char* wait() const { return std::get<1>(GetParam()); }
    void connect(const char* what_the_other_does) {
        const std::string address = unique_address();
        other_.emplace(
            ChildProcess::start("faults_standing", {kind(), what_the_other_does, address, wait()}));
        const faults::Setup setup{address, 32, policy_of(wait())};
        if (std::string_view{what_the_other_does} == "produces") {
            in_ = make_in(kind(), setup, true, Deadline::after(20s));
        } else {
            out_ = make_out(kind(), setup, true, Deadline::after(20s));
        }
        ASSERT_EQ(other_->read_line(), "connected");
    }
    [[nodiscard]] ChildProcess& other() { return *other_; }
    std::unique_ptr<In> in_;
    std::unique_ptr<Out> out_;

  private:
    std::optional<ChildProcess> other_;
};

TEST_P(StandingStill, OfTheProducerLastsUntilTheDeadlineAndLosesNothing) {
    connect("produces");
    std::uint64_t next = 0;
    bool right = false;
    for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(other().stop());
        Status status;
        while ((status = in_->take(next, right, Deadline::after(100ms))) == Status::ok) {
            ASSERT_TRUE(right) << next;
            ++next;
        }
        if (status == Status::closed) break;  // it had sent everything
        EXPECT_EQ(status, Status::timed_out) << name_of(status);
        // Again, from the beginning of a wait.
        EXPECT_EQ(in_->take(next, right, Deadline::after(20ms)), Status::timed_out);
        other().resume();
        ASSERT_EQ(in_->take(next, right, Deadline::after(20s)), Status::ok);
        ASSERT_TRUE(right) << next;
        ++next;
    }
    Status status;
    while ((status = in_->take(next, right, Deadline::after(20s))) == Status::ok) {
        ASSERT_TRUE(right) << next;
        ++next;
    }
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(next, 30'000U);
    EXPECT_EQ(other().read_line(), "closed after 30000");
    EXPECT_TRUE(other().wait().success());
}

TEST_P(StandingStill, OfTheConsumerLastsUntilTheDeadlineAndLosesNothing) {
    connect("consumes");
    std::uint64_t next = 0;
    for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(other().stop());
        Status status;
        while ((status = out_->put(next, Deadline::after(100ms))) == Status::ok) ++next;
        EXPECT_EQ(status, Status::timed_out) << name_of(status);
        EXPECT_EQ(out_->put(next, Deadline::after(20ms)), Status::timed_out);
        other().resume();
        for (int i = 0; i < 1000; ++i) {
            ASSERT_EQ(out_->put(next++, Deadline::after(20s)), Status::ok);
        }
    }
    ASSERT_EQ(out_->close(Deadline::after(20s)), Status::ok);
    EXPECT_EQ(other().read_line(), "closed after " + std::to_string(next));
    EXPECT_TRUE(other().wait().success());
}

TEST_P(StandingStill, OfTheProducerDoesNotKeepTheConsumerFromGoing) {
    connect("produces");
    bool right = false;
    ASSERT_EQ(in_->take(0, right, Deadline::after(20s)), Status::ok);
    ASSERT_TRUE(other().stop());
    in_->close();
    in_.reset();  // takes back memory that the other may be writing to
    other().resume();
    const std::string heard = other().read_line().value_or("nothing");
    EXPECT_TRUE(heard.starts_with("closed after ") || heard.starts_with("peer_lost after "))
        << heard;
    EXPECT_TRUE(other().wait().success());
}

TEST_P(StandingStill, OfTheConsumerDoesNotKeepTheProducerFromGoing) {
    connect("consumes");
    std::uint64_t next = 0;
    ASSERT_TRUE(other().stop());
    while (out_->put(next, Deadline::after(20ms)) == Status::ok) ++next;
    const Status closed = out_->close(Deadline::after(100ms));
    out_.reset();
    other().resume();
    const std::string heard = other().read_line().value_or("nothing");
    // All of it where the producer could close; else what had arrived.
    if (closed == Status::ok) {
        EXPECT_EQ(heard, "closed after " + std::to_string(next));
    } else {
        EXPECT_TRUE(heard.starts_with("peer_lost after ") || heard.starts_with("closed after "))
            << heard << ", the producer: " << name_of(closed);
    }
    EXPECT_TRUE(other().wait().success());
}

TEST_P(StandingStill, OfThePeerIsNoReasonToWaitAtExit) {
    for (const char* const goes : {"produces", "consumes"}) {
        const std::string address = unique_address();
        const bool produces = std::string_view{goes} == "produces";
        ChildProcess stands = ChildProcess::start(
            "faults_listening", {kind(), produces ? "consumes" : "produces", address, wait()});
        ChildProcess leaves =
            ChildProcess::start("faults_leaving", {kind(), goes, address, wait()});
        ASSERT_EQ(leaves.read_line(), "connected");
        ASSERT_EQ(stands.read_line(), "connected");
        ASSERT_TRUE(stands.stop());
        EXPECT_TRUE(leaves.write_line("go"));
        EXPECT_TRUE(leaves.wait().success());
        stands.resume();
        const std::string heard = stands.read_line().value_or("nothing");
        EXPECT_TRUE(heard.starts_with("peer_lost") || heard.starts_with("closed")) << heard;
        EXPECT_TRUE(stands.wait().success());
    }
}
MILLRACE_CHILD(faults_listening) {
    const Setup setup{arguments[2], 32, policy_of(arguments[3])};
    Status status = Status::ok;
    if (arguments[1] == "produces") {
        const auto out = make_out(arguments[0], setup, true, Deadline::after(20s));
        say("connected");
        for (std::uint64_t i = 0; status == Status::ok; ++i) {
            status = out->put(i, Deadline::after(60s));
        }
    } else {
        const auto in = make_in(arguments[0], setup, true, Deadline::after(20s));
        say("connected");
        bool right = false;
        for (std::uint64_t i = 0; status == Status::ok; ++i) {
            status = in->take(i, right, Deadline::after(60s));
        }
    }
    say(std::string{name_of(status)});
    return 0;
}
MILLRACE_CHILD(faults_leaving) {
    const Setup setup{arguments[2], 32, policy_of(arguments[3])};
    std::unique_ptr<Out> out;
    std::unique_ptr<In> in;
    if (arguments[1] == "produces") {
        out = make_out(arguments[0], setup, false, Deadline::after(20s));
    } else {
        in = make_in(arguments[0], setup, false, Deadline::after(20s));
    }
    say("connected");
    (void)hear();
    bool right = false;
    for (std::uint64_t i = 0; i < 10; ++i) {
        if (out != nullptr) (void)out->put(i, Deadline::after(10ms));
        if (in != nullptr) (void)in->take(i, right, Deadline::after(10ms));
    }
    return 0;  // without a close
}

INSTANTIATE_TEST_SUITE_P(Every, StandingStill,
                         testing::Combine(testing::ValuesIn(kinds),
                                          testing::Values("default", "blocking")),
                         [](const auto& chosen) {
                             return std::string{std::get<0>(chosen.param)} + "_" +
                                    std::get<1>(chosen.param);
                         });

}  // namespace
}  // namespace millrace::faults
