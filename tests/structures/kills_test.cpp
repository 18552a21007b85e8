// Structures whose ends are killed and begin anew, again and again: of each life of a source, each
// life of a taker has a run without a gap, and nothing twice; and whoever closes in the end was
// heard to its last item. Many of the kills come while a filter is at work.
//
// MILLRACE_TEST_ROUNDS: kills of each structure (default 40, with MILLRACE_TEST_LONG 1,000).
// MILLRACE_TEST_SEED: of them (default 1, with MILLRACE_TEST_LONG random); printed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crowd.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/flow/shared_fan_in.hpp"
#include "millrace/flow/shared_producer.hpp"
#include "slow_filter.hpp"
#include "support/child_process.hpp"
#include "support/settings.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::number_from;
using millrace::test::say;
using millrace::test::TemporaryFolder;

// ---- what a taker has taken

/// In a taker's file, 24 bytes in one piece.
struct Sighting {
    std::uint64_t taker = 0;   ///< a life of it
    std::uint64_t source = 0;  ///< likewise
    std::uint64_t number = 0;
};

class Notebook {
  public:
    explicit Notebook(const std::string& path)
        : file_{open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)} {}
    Notebook(const Notebook&) = delete;
    Notebook& operator=(const Notebook&) = delete;
    ~Notebook() { ::close(file_); }
    /// False: the item is damaged, or cannot be written down.
    [[nodiscard]] bool note(const Tagged& item) const {
        const Sighting seen{life_, item.producer, item.number};
        return item.is_whole() && write(file_, &seen, sizeof seen) == sizeof seen;
    }

  private:
    int file_;
    std::uint64_t life_ = base::random_bits();
};

std::vector<Sighting> sightings_in(const std::string& path) {
    std::vector<Sighting> all;
    std::ifstream file{path, std::ios::binary};
    Sighting one;
    while (file.read(reinterpret_cast<char*>(&one), sizeof one)) all.push_back(one);
    return all;
}
std::uint64_t length_of(const std::string& path) {
    struct stat facts {};
    return stat(path.c_str(), &facts) == 0 ? static_cast<std::uint64_t>(facts.st_size) : 0;
}
bool file_is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// ---- the processes

/// A life of a source: its items are numbered from 0.
class SourceLife {
  public:
    Tagged next() { return Tagged::make(life_, number_); }
    void pass(std::uint64_t count = 1) { number_ += count; }
    /// For the test, when it has closed.
    void tell() const { say(std::to_string(life_) + " " + std::to_string(number_)); }

  private:
    std::uint64_t life_ = base::random_bits();
    std::uint64_t number_ = 0;
};

using SiftedTagged = Filtered<Tagged, SlowThird>;

/// Notes what comes of one source after the other, until one has closed. `join()` gives a consumer,
/// or throws where the source was killed in the middle of it. An exit status.
template <class Join>
int take_again_and_again(const std::string& path, Join&& join) {
    const Notebook notebook{path};
    while (true) {
        std::optional<Consumer<Tagged>> consumer;
        try {
            consumer.emplace(join());
        } catch (const base::Error&) {
            continue;
        }
        Tagged item;
        Status status;
        while ((status = consumer->dequeue(item, soon())) == Status::ok) {
            if (!notebook.note(item)) return 1;
        }
        if (status == Status::closed) return 0;
        if (status != Status::peer_lost) return 2;
    }
}

/// arguments: where it listens; the watch; the file that ends it.
MILLRACE_CHILD(killed_replicator) {
    const FilterWatch watch{arguments.at(1)};
    filter_watch = &watch;
    auto all = Replicator<SiftedTagged>::listen(arguments.at(0), {.queue = small(16)});
    SourceLife source;
    // In the end some more, so that whoever joins last has some.
    for (int more = 0; more != 50;) {
        const Status status = all.enqueue(source.next(), Deadline::after(50ms));
        if (status == Status::ok) source.pass();
        if (status == Status::ok && file_is_there(arguments.at(2)) && all.look_around() == 2)
            ++more;
        // A taker that was just killed, or stays behind for a moment.
        if (status != Status::ok && status != Status::timed_out && status != Status::peer_lost)
            return 1;
    }
    if (all.close(soon()) != Status::ok) return 2;
    source.tell();
    return 0;
}
/// arguments: where the source listens; its notebook; the filter's remainder.
MILLRACE_CHILD(taker_of_replicator) {
    Options options = small(16);
    options.filter = SlowThird{std::stoull(arguments.at(2))};
    return take_again_and_again(arguments.at(1), [&] {
        return Consumer<Tagged>::connect(arguments.at(0), options, soon());
    });
}

/// arguments: where the takers listen; the watch; the file that ends it.
MILLRACE_CHILD(killed_fan_out) {
    const FilterWatch watch{arguments.at(2)};
    filter_watch = &watch;
    while (true) {
        std::optional<FanOut<SiftedTagged>> out;
        try {
            out.emplace(FanOut<SiftedTagged>::connect({arguments.at(0), arguments.at(1)},
                                                      {.queue = small(16)}, soon()));
        } catch (const base::Error&) {
            continue;
        }
        SourceLife source;
        Status status = Status::ok;
        for (std::uint64_t i = 0; status == Status::ok || status == Status::timed_out; ++i) {
            if (i % 64 == 0 && out->look_around() != 2) break;  // a taker that was killed
            if (file_is_there(arguments.at(3))) {
                if (out->look_around() != 2 || out->close(soon()) != Status::ok) break;
                source.tell();
                return 0;
            }
            status = out->enqueue(source.next(), Deadline::after(50ms));
            if (status == Status::ok) source.pass();
        }
    }
}
/// arguments: where it listens; its notebook.
MILLRACE_CHILD(taker_of_fan_out) {
    Options options = small(16);
    options.filter = SlowThird{};
    return take_again_and_again(arguments.at(1), [&] {
        return Consumer<Tagged>::listen(arguments.at(0), options, soon());
    });
}

/// arguments: where the taker listens; the file that ends it.
MILLRACE_CHILD(killed_shared_producer) {
    while (true) {
        std::optional<SharedProducer<Tagged>> end;
        try {
            end.emplace(SharedProducer<Tagged>::connect(arguments.at(0), {}, soon()));
        } catch (const base::Error&) {
            continue;
        }
        SourceLife source;
        std::vector<Tagged> items;
        for (Status status = Status::ok; status == Status::ok || status == Status::full;) {
            if (file_is_there(arguments.at(1))) {
                if (end->close(soon()) != Status::ok) break;
                source.tell();
                return 0;
            }
            items.clear();
            SourceLife ahead = source;
            const std::uint64_t count = 1 + source.next().number % 5;
            for (std::uint64_t i = 0; i != count; ++i, ahead.pass()) items.push_back(ahead.next());
            const BatchResult result = end->try_enqueue_batch(items);
            source.pass(result.count);
            status = result.status;
            std::this_thread::sleep_for(20us);
        }
    }
}
/// arguments: where it listens; its notebook; the file that ends it, when nobody is there any more.
MILLRACE_CHILD(shared_taker) {
    const Notebook notebook{arguments.at(1)};
    auto fan_in = SharedFanIn<Tagged>::listen(arguments.at(0), {.capacity = 16, .patience = 30s});
    while (true) {
        Tagged item;
        const Status status = fan_in.dequeue(item, Deadline::after(10ms));
        if (status == Status::ok) {
            if (!notebook.note(item)) return 1;
        } else if (status != Status::timed_out) {
            return 2;
        } else if (file_is_there(arguments.at(2)) && fan_in.producers() == 0) {
            return 0;
        }
    }
}

// ---- killing

struct KilledPart {
    std::string name;  ///< of the child
    std::vector<std::string> arguments;
    bool filters = false;
};

struct KillCount {
    std::uint64_t kills = 0;
    std::uint64_t while_filtering = 0;
};

/// Kills parts at random moments, and starts them anew. Most of the time it waits first until the
/// takers go on, which they must.
class Killing {
  public:
    Killing(std::vector<KilledPart> parts, std::vector<std::string> notebooks)
        : parts_{std::move(parts)}, notebooks_{std::move(notebooks)} {
        for (const KilledPart& part : parts_) running_.push_back(start(part));
    }
    KillCount kill_many(const FilterWatch* watch) {
        const bool is_long = std::getenv("MILLRACE_TEST_LONG") != nullptr;
        const std::uint64_t rounds = number_from("MILLRACE_TEST_ROUNDS", is_long ? 1000 : 40);
        const std::uint64_t seed =
            number_from("MILLRACE_TEST_SEED", is_long ? std::random_device{}() : 1);
        std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
        std::mt19937_64 random{seed};
        KillCount count;
        for (; count.kills != rounds; ++count.kills) {
            if (random() % 4 != 0) {
                wait_for_progress();
                if (testing::Test::HasFatalFailure()) return count;
            }
            std::this_thread::sleep_for(std::chrono::microseconds{random() % 3000});
            const std::size_t victim = random() % parts_.size();
            // Half of the time not before it filters, which it does as long as somebody takes.
            if (parts_[victim].filters && random() % 2 == 0) {
                const Deadline deadline = Deadline::after(1s);
                while (!watch->is_at_work() && !deadline.expired()) std::this_thread::yield();
            }
            EXPECT_TRUE(running_[victim].kill_and_wait().killed_by(SIGKILL))
                << parts_[victim].name << " has ended by itself before kill " << count.kills;
            if (parts_[victim].filters && watch->was_at_work()) ++count.while_filtering;
            running_[victim] = start(parts_[victim]);
        }
        wait_for_progress();
        return count;
    }
    [[nodiscard]] ChildProcess& part(std::size_t which) { return running_[which]; }

  private:
    [[nodiscard]] static ChildProcess start(const KilledPart& part) {
        return ChildProcess::start(part.name, part.arguments);
    }
    [[nodiscard]] std::uint64_t noted() const {
        std::uint64_t bytes = 0;
        for (const std::string& path : notebooks_) bytes += length_of(path);
        return bytes;
    }
    void wait_for_progress() {
        const std::uint64_t before = noted();
        const Deadline deadline = soon();
        while (noted() == before) {
            ASSERT_FALSE(deadline.expired()) << "nothing more is taken";
            std::this_thread::sleep_for(200us);
        }
    }
    std::vector<KilledPart> parts_;
    std::vector<std::string> notebooks_;
    std::vector<ChildProcess> running_;
};

void make_file(const std::string& path) { std::ofstream{path}; }

/// What a source said when it had closed: its life, and how many items it had.
std::pair<std::uint64_t, std::uint64_t> told_by(ChildProcess& source) {
    std::istringstream words{source.read_line(60s).value_or("")};
    std::pair<std::uint64_t, std::uint64_t> told{};
    words >> told.first >> told.second;
    EXPECT_TRUE(source.wait(60s).success());
    return told;
}

using LivesOfTakers = std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::uint64_t>>;
/// By the life of the taker and that of the source.
LivesOfTakers lives_of(const std::vector<Sighting>& all) {
    LivesOfTakers lives;
    for (const Sighting& one : all) lives[{one.taker, one.source}].push_back(one.number);
    return lives;
}
/// No life of a taker has what another one had.
void expect_nothing_twice(const LivesOfTakers& lives) {
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
    for (const auto& [life, numbers] : lives) {
        for (const std::uint64_t number : numbers) {
            ASSERT_TRUE(seen.emplace(life.second, number).second)
                << "item " << number << " of source " << life.second << " was taken twice";
        }
    }
}
void expect_steps_of(const LivesOfTakers& lives, std::uint64_t step) {
    for (const auto& [life, numbers] : lives) {
        for (std::size_t i = 1; i < numbers.size(); ++i) {
            ASSERT_EQ(numbers[i], numbers[i - 1] + step)
                << "taker " << life.first << ", source " << life.second;
        }
    }
}
void print_kills(const KillCount& count) {
    std::printf("%llu kills, %llu of them while a filter was at work\n",
                static_cast<unsigned long long>(count.kills),
                static_cast<unsigned long long>(count.while_filtering));
}

TEST(KilledStructures, AReplicatorWithFiltersGivesEachTakerARunWithoutAGap) {
    const TemporaryFolder folder;
    const std::string address = fresh_address();
    const std::string end = folder.path("end");
    const std::vector<std::string> notebooks{folder.path("0"), folder.path("1")};
    const FilterWatch watch{folder.path("watch")};
    Killing killing{{{"killed_replicator", {address, folder.path("watch"), end}, true},
                     {"taker_of_replicator", {address, notebooks[0], "0"}},
                     {"taker_of_replicator", {address, notebooks[1], "1"}}},
                    notebooks};
    const KillCount count = killing.kill_many(&watch);
    ASSERT_FALSE(HasFatalFailure());
    print_kills(count);
    make_file(end);
    const auto [last, items] = told_by(killing.part(0));
    ASSERT_NE(items, 0U);
    for (std::uint64_t taker = 0; taker != 2; ++taker) {
        EXPECT_TRUE(killing.part(1 + taker).wait(60s).success());
        const LivesOfTakers lives = lives_of(sightings_in(notebooks[taker]));
        ASSERT_NO_FATAL_FAILURE(expect_nothing_twice(lives));
        ASSERT_NO_FATAL_FAILURE(expect_steps_of(lives, 3));
        std::uint64_t reached = 0;
        for (const auto& [life, numbers] : lives) {
            EXPECT_EQ(numbers.front() % 3, taker);
            if (life.second == last) reached = std::max(reached, numbers.back() + 3);
        }
        EXPECT_GE(reached, items) << "what closed was heard to its end";
        EXPECT_LT(reached, items + 3);
    }
    EXPECT_GT(count.while_filtering, 0U);
}

TEST(KilledStructures, AFanOutWithFiltersGivesNoItemTwiceAndAllWhenItCloses) {
    const TemporaryFolder folder;
    const std::vector<std::string> addresses{fresh_address(), fresh_address()};
    const std::string end = folder.path("end");
    const std::vector<std::string> notebooks{folder.path("0"), folder.path("1")};
    const FilterWatch watch{folder.path("watch")};
    Killing killing{
        {{"killed_fan_out", {addresses[0], addresses[1], folder.path("watch"), end}, true},
         {"taker_of_fan_out", {addresses[0], notebooks[0]}},
         {"taker_of_fan_out", {addresses[1], notebooks[1]}}},
        notebooks};
    const KillCount count = killing.kill_many(&watch);
    ASSERT_FALSE(HasFatalFailure());
    print_kills(count);
    make_file(end);
    const auto [last, items] = told_by(killing.part(0));
    std::vector<Sighting> all;
    for (std::size_t taker = 0; taker != 2; ++taker) {
        EXPECT_TRUE(killing.part(1 + taker).wait(60s).success());
        const std::vector<Sighting> its = sightings_in(notebooks[taker]);
        for (const auto& [life, numbers] : lives_of(its)) {
            ASSERT_TRUE(std::ranges::is_sorted(numbers)) << "in order";
        }
        all.insert(all.end(), its.begin(), its.end());
    }
    const LivesOfTakers lives = lives_of(all);
    ASSERT_NO_FATAL_FAILURE(expect_nothing_twice(lives));
    std::uint64_t of_the_last = 0;
    for (const auto& [life, numbers] : lives) {
        for (const std::uint64_t number : numbers) ASSERT_EQ(number % 3, 0U);
        if (life.second == last) of_the_last += numbers.size();
    }
    EXPECT_EQ(of_the_last, (items + 2) / 3) << "nobody died while it lived, and it closed";
    EXPECT_GT(count.while_filtering, 0U);
}

TEST(KilledStructures, ASharedRingGivesAPrefixOfWhatEachProducerSent) {
    const TemporaryFolder folder;
    const std::string address = fresh_address();
    const std::string end = folder.path("end");
    const std::string drained = folder.path("drained");
    const std::string notebook = folder.path("0");
    Killing killing{{{"shared_taker", {address, notebook, drained}},
                     {"killed_shared_producer", {address, end}},
                     {"killed_shared_producer", {address, end}}},
                    {notebook}};
    print_kills(killing.kill_many(nullptr));
    ASSERT_FALSE(HasFatalFailure());
    make_file(end);
    std::map<std::uint64_t, std::uint64_t> closed;
    for (std::size_t producer = 1; producer != 3; ++producer) {
        closed.insert(told_by(killing.part(producer)));
    }
    make_file(drained);
    EXPECT_TRUE(killing.part(0).wait(60s).success());
    const LivesOfTakers lives = lives_of(sightings_in(notebook));
    ASSERT_NO_FATAL_FAILURE(expect_nothing_twice(lives));
    ASSERT_NO_FATAL_FAILURE(expect_steps_of(lives, 1));
    for (const auto& [life, numbers] : lives) {
        EXPECT_EQ(numbers.front(), 0U) << "of source " << life.second;
        if (const auto whole = closed.find(life.second); whole != closed.end()) {
            EXPECT_EQ(numbers.size(), whole->second) << "it closed: all of it was taken";
            closed.erase(whole);
        }
    }
    for (const auto& [life, items] : closed) EXPECT_EQ(items, 0U) << "of source " << life;
}

}  // namespace
}  // namespace millrace::flow
