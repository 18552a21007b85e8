// Logs and readers in processes of their own, which are killed and begin anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "millrace/flow/filter.hpp"
#include "readers.hpp"
#include "structures/slow_filter.hpp"
#include "support/child_process.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

// ---- a quorum

MILLRACE_CHILD(log_acknowledger) {
    auto reader = LogReader<Numbered>::connect(arguments[0], {.name = arguments[1]}, soon());
    Numbered item;
    while (reader.read(item, soon()) == Status::ok) {
        // The log may close as soon as it has it, before this end knows that it has.
        if (reader.acknowledge() == Status::ok) (void)reader.flush(soon());
        say(std::to_string(reader.position()));
    }
    return reader.try_read(item) == Status::closed ? 0 : 1;
}

TEST(LogBetweenProcesses, CountsTowardsAQuorumOnlyWhoLivesAndHasIt) {
    auto log = Log<Numbered>::listen(fresh_address(), small_log());
    std::vector<ChildProcess> children;
    for (const char* name : {"a", "b", "c"}) {
        children.push_back(
            ChildProcess::start("log_acknowledger", {log.address().to_string(), name}));
    }
    ASSERT_TRUE(served_until(log, [&] { return log.stats().readers == 3; }));
    append_up_to(log, 10);
    EXPECT_EQ(log.wait_acknowledged(10, 3, soon()), Status::ok);
    EXPECT_EQ(log.wait_acknowledged(11, 1, Deadline::after(1ms)), Status::timed_out);
    // One that is stopped has what was sent in its ring, and has acknowledged nothing of it.
    ASSERT_TRUE(children[0].stop());
    append_up_to(log, 20);
    EXPECT_EQ(log.wait_acknowledged(20, 2, soon()), Status::ok);
    EXPECT_EQ(log.wait_acknowledged(20, 3, Deadline::after(20ms)), Status::timed_out);
    // One that has died counts no more, whatever it had acknowledged.
    children[1].kill_and_wait();
    EXPECT_EQ(log.wait_acknowledged(20, 2, Deadline::after(20ms)), Status::timed_out);
    EXPECT_EQ(log.wait_acknowledged(20, 1, soon()), Status::ok);
    children[0].resume();
    EXPECT_EQ(log.wait_acknowledged(20, 2, soon()), Status::ok);
    // It comes again, and goes on where it was.
    children[1] = ChildProcess::start("log_acknowledger", {log.address().to_string(), "b"});
    append_up_to(log, 21);
    EXPECT_EQ(log.wait_acknowledged(21, 3, soon()), Status::ok);
    ASSERT_TRUE(served_until(log, [&] { return log.stats().lost == 1; }));
    EXPECT_EQ(log.close(soon()), Status::ok);
    for (ChildProcess& child : children) EXPECT_TRUE(child.wait().success());
}

// ---- kill -9 of either end, again and again

/// Appends numbered items until there are `arguments[2]`, then waits until all have them.
template <class T>
int own_log(const std::vector<std::string>& arguments) {
    LogOptions options = small_log(4096);
    options.directory = arguments[1];
    options.retention = {.bytes = 64 << 10, .until_acknowledged = {"sink"}};
    auto log = Log<T>::listen(arguments[0], options);
    const std::uint64_t count = std::stoull(arguments[2]);
    Numbered last;
    if (log.end() != 0 &&
        (log.read(log.end() - 1, last) != Status::ok || last != Numbered::at(log.end() - 1))) {
        return 1;
    }
    while (log.end() != count) {
        if (log.append(Numbered::at(log.end()), soon()) != Status::ok) return 2;
    }
    if (log.wait_acknowledged(count, {"sink"}, soon()) != Status::ok) return 3;
    return log.close(soon()) == Status::ok ? 0 : 4;
}
MILLRACE_CHILD(log_owner) { return own_log<Numbered>(arguments); }
MILLRACE_CHILD(filtering_log_owner) {
    const FilterWatch watch{arguments[3]};
    filter_watch = &watch;
    return own_log<Filtered<Numbered, SlowThird>>(arguments);
}

/// Writes the number of each item, 8 bytes, to a file whose length is where it goes on: what it has
/// made of an item, and how far it has come, are one thing. Takes each item, or each third.
int sink_log(const std::vector<std::string>& arguments, std::uint64_t step) {
    const std::uint64_t count = (std::stoull(arguments[2]) + step - 1) / step;
    const std::string path = arguments[1];
    std::uint64_t done = std::filesystem::exists(path) ? std::filesystem::file_size(path) / 8 : 0;
    std::filesystem::resize_file((std::ofstream{path, std::ios::app}, path), done * 8);
    std::ofstream file{path, std::ios::binary | std::ios::app};
    LogReaderOptions options{.name = "sink"};
    if (step != 1) options.queue.filter = SlowThird{};
    std::optional<LogReader<Numbered>> reader;
    const Deadline deadline = soon();
    do {
        if (!reader.has_value()) {
            // The log ends when it knows that all is done: one that is not there any more knew.
            const bool may_be_over = done == count;
            options.from = LogStart::position(done == 0 ? 0 : (done - 1) * step + 1);
            try {
                reader.emplace(LogReader<Numbered>::connect(
                    arguments[0], options, may_be_over ? Deadline::after(10s) : soon()));
            } catch (const base::Error& error) {
                if (may_be_over) return 0;
                if (error.code() == base::ErrorCode::refused) return 1;
                continue;
            }
            if (reader->acknowledge() != Status::ok) reader.reset();
            continue;
        }
        Numbered item;
        const Status status = reader->read(item, Deadline::after(5s));
        if (status == Status::ok) {
            if (item != Numbered::at(done * step)) return 2;
            file.write(reinterpret_cast<const char*>(&item.number), 8).flush();
            ++done;
            if (done % 16 == 0 || done == count) (void)reader->acknowledge();
        } else if (status == Status::peer_lost) {
            try {
                reader->resume(soon());
            } catch (const base::Error&) {
                reader.reset();
            }
        } else if (status == Status::full || status == Status::closed) {
            return 3;
        }
    } while ((done != count || !reader.has_value()) && !deadline.expired());
    if (!reader.has_value() || reader->flush(soon()) == Status::timed_out) return 4;
    // It closes once it knows; one that is killed before hears it from the next sink.
    Numbered none;
    return reader->read(none, soon()) == Status::closed ? 0 : 5;
}
MILLRACE_CHILD(log_sink) { return sink_log(arguments, 1); }
MILLRACE_CHILD(filtering_log_sink) { return sink_log(arguments, 3); }

struct Kills {
    int all = 0;
    int while_filtering = 0;
};

/// A log and a sink, either killed at random moments, `kills` times at most, until the items are
/// through; with a filter, or without.
Kills kill_again_and_again(std::uint64_t seed, int kills, bool filters) {
    const testing::ScopedTrace trace{__FILE__, __LINE__, "seed " + std::to_string(seed)};
    const Folder folder;
    std::filesystem::create_directories(folder.path());
    constexpr std::uint64_t items = 20'000;
    const std::uint64_t step = filters ? 3 : 1;
    const std::uint64_t count = (items + step - 1) / step;
    const std::string address = fresh_address();
    const std::string out = folder.file("out");
    const FilterWatch watch{folder.file("watch")};
    const auto start_log = [&] {
        return ChildProcess::start(
            filters ? "filtering_log_owner" : "log_owner",
            {address, folder.file("log"), std::to_string(items), folder.file("watch")});
    };
    const auto start_sink = [&] {
        return ChildProcess::start(filters ? "filtering_log_sink" : "log_sink",
                                   {address, out, std::to_string(items)});
    };
    Kills made;
    std::mt19937_64 random{seed};
    ChildProcess log = start_log();
    ChildProcess sink = start_sink();
    const auto is_done = [&] {
        return std::filesystem::exists(out) && std::filesystem::file_size(out) / 8 >= count;
    };
    for (; made.all != kills && !is_done(); ++made.all) {
        std::this_thread::sleep_for(std::chrono::microseconds{random() % 12'000});
        const bool kills_log = random() % 2 == 0;
        // Half of the time not before it filters, as it does unless all is done.
        if (kills_log && filters && random() % 2 == 0) {
            const Deadline deadline = Deadline::after(1s);
            while (!watch.is_at_work() && !is_done() && !deadline.expired()) {
                std::this_thread::yield();
            }
        }
        ChildProcess& victim = kills_log ? log : sink;
        victim.kill_and_wait();
        if (kills_log && watch.was_at_work()) ++made.while_filtering;
        victim = kills_log ? start_log() : start_sink();
    }
    // The last ones finish, or find that all was done before they came.
    while (sink.wait(60s).exited_with(5)) sink = start_sink();
    EXPECT_TRUE(sink.wait(60s).success()) << sink.wait(0s);
    EXPECT_TRUE(log.wait(60s).success()) << log.wait(0s);
    std::ifstream file{out, std::ios::binary};
    std::uint64_t number = 0;
    std::uint64_t next = 0;
    while (file.read(reinterpret_cast<char*>(&number), 8)) {
        EXPECT_EQ(number, next * step) << "exactly once, in order";
        if (number != next * step) break;
        ++next;
    }
    EXPECT_EQ(next, count);
    return made;
}

/// So many kills, over as many logs as that takes.
Kills kill_so_often(int kills, bool filters) {
    Kills made;
    for (std::uint64_t seed = 1; made.all < kills && !testing::Test::HasFailure(); ++seed) {
        const Kills more = kill_again_and_again(seed, 25, filters);
        made.all += more.all;
        made.while_filtering += more.while_filtering;
    }
    std::printf("%d kills, %d of them while a filter was at work\n", made.all,
                made.while_filtering);
    return made;
}

TEST(LogBetweenProcesses, GivesEachItemOnceThroughKillsOfEitherEnd) {
    const bool is_long = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    (void)kill_so_often(is_long ? 1000 : 40, false);
}

TEST(LogBetweenProcesses, GivesEachItemThatAFilterKeepsOnceThroughKillsOfEitherEnd) {
    const bool is_long = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    EXPECT_GT(kill_so_often(is_long ? 1000 : 40, true).while_filtering, 0);
}

// ---- the example

TEST(LogBetweenProcesses, MakesAPipelineThatSurvivesKillsOfAnyStage) {
    const bool is_long = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    for (std::uint64_t seed = 1; seed <= (is_long ? 20 : 1); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        const Folder folder;
        const std::string a = fresh_address();
        const std::string b = fresh_address();
        const std::vector<std::vector<std::string>> stages{
            {MILLRACE_SURVIVING_PIPELINE, folder.file("numbers"), a},
            {MILLRACE_SURVIVING_PIPELINE, folder.file("squares"), b, a, "squares"},
            {MILLRACE_SURVIVING_PIPELINE, folder.file("sums"), "-", b, "sums"}};
        std::vector<ChildProcess> running;
        for (const auto& stage : stages) running.push_back(ChildProcess::start_program(stage));
        std::mt19937_64 random{seed};
        for (int kills = 0; kills != 20; ++kills) {
            std::this_thread::sleep_for(std::chrono::microseconds{random() % 15'000});
            const std::size_t victim = random() % stages.size();
            if (running[victim].wait(0ms).success()) continue;  // it is through
            running[victim].kill_and_wait();
            running[victim] = ChildProcess::start_program(stages[victim]);
        }
        // 1² + 2² + … + 5000²
        EXPECT_EQ(running[2].read_line(60s), "41679167500");
        for (ChildProcess& stage : running) EXPECT_TRUE(stage.wait(60s).success());
    }
}

// ---- in a loop

TEST(LogInALoop, IsReadableWhenThereIsSomethingToDo) {
    auto log = Log<Numbered>::listen(fresh_address(), small_log());
    const int of_log = log.descriptor();
    const auto is_readable = [](int descriptor, int milliseconds) {
        pollfd one{.fd = descriptor, .events = POLLIN, .revents = 0};
        return poll(&one, 1, milliseconds) == 1;
    };
    const auto fall_asleep = [&] {
        const Deadline deadline = soon();
        while (is_readable(of_log, 0) && !deadline.expired()) (void)log.look_around();
        EXPECT_FALSE(is_readable(of_log, 0));
    };
    fall_asleep();
    auto joining = std::async(std::launch::async, [&] {
        return LogReader<Numbered>::connect(log.address(), {.name = "billing"}, soon());
    });
    // Its last step may be the reader's.
    while (joining.wait_for(0s) != std::future_status::ready) {
        if (is_readable(of_log, 1)) (void)log.look_around();
    }
    auto reader = joining.get();
    fall_asleep();
    const int of_reader = reader.descriptor();
    Numbered item;
    while (is_readable(of_reader, 0)) EXPECT_EQ(reader.try_read(item), Status::empty);
    append_up_to(log, 500);  // more than its ring holds
    std::uint64_t next = 0;
    while (next != 500) {
        ASSERT_TRUE(is_readable(of_reader, 20'000)) << next;
        while (reader.try_read(item) == Status::ok) EXPECT_EQ(item, Numbered::at(next++));
        if (next == 500) break;
        ASSERT_TRUE(is_readable(of_log, 20'000)) << next;
        (void)log.look_around();
    }
    fall_asleep();
    ASSERT_EQ(reader.acknowledge(), Status::ok);
    while (log.stats().acknowledgements == 0) {
        ASSERT_TRUE(is_readable(of_log, 20'000));
        (void)log.look_around();
    }
}

}  // namespace
}  // namespace millrace::flow
