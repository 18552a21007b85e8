// Structures with many ends, crossed with what happens to them: ends die, close, join, stop in the
// middle of joining, and their owner forks. A table of structures and pairs of these events; each
// row is played by seeded schedules, in which an item is sent, taken or something happens at each
// step. Whatever happens to others, an end that lives sees its items whole, in order, without a
// gap, and the owner's call neither waits nor throws.
//
// MILLRACE_TEST_SEED=N MILLRACE_TEST_ROUNDS=1 plays one schedule again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/merge.hpp"
#include "millrace/flow/priority.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/ring/terms.hpp"
#include "structures/crowd.hpp"
#include "support/forked.hpp"
#include "support/schedules.hpp"

namespace millrace::cross {
namespace {

using namespace flow::test;
using flow::Consumer;
using flow::FanIn;
using flow::FanOut;
using flow::Merge;
using flow::PriorityProducer;
using flow::Producer;
using flow::Replicator;

enum class Event : std::uint8_t { death, leaving, joining, stalling, forking };
constexpr const char* event_names[] = {"death", "leaving", "joining", "stalling", "forking"};

void demand(bool holds, const std::string& otherwise) {
    if (!holds) throw std::runtime_error{otherwise};
}
void demand(Status status, Status wanted, const std::string& of_what) {
    demand(status == wanted, of_what + " answers " + std::string{name_of(status)} + ", not " +
                                 std::string{name_of(wanted)});
}

/// Runs a call that waits, of another end, beside the owner's.
template <class Call, class Owner>
auto beside(Owner&& owner, Call&& call) {
    auto running = std::async(std::launch::async, std::forward<Call>(call));
    while (running.wait_for(0s) != std::future_status::ready) owner();
    return running.get();
}

/// A program that has agreed on a ring, and says no more.
connect::Link stalled_newcomer(const connect::Address& address, ring::Role role) {
    auto link = connect::connect(address, ring::link_options("flow queue"), soon());
    (void)ring::agree(link, role, ring::design_2, {}, flow::detail::item_facts<Tagged>(), soon());
    return link;
}

/// In a child made by fork.
void in_child(const std::function<bool()>& use) {
    const std::string complaints = test::in_forked_child([&](test::Complaints& child) {
        child.unless(use(), "a child is let use the structure of its parent");
    });
    demand(complaints.empty(), complaints);
}
/// The error that names the fork.
template <class Call>
bool is_refused_in_child(Call&& call) {
    try {
        call();
    } catch (const base::Error& error) {
        return error.code() == base::ErrorCode::invalid_argument &&
               std::string_view{error.what()}.find("made by fork") != std::string_view::npos;
    }
    return false;
}

/// What is played with. Every call is made by the one thread that plays.
class Played {
  public:
    virtual ~Played() = default;
    virtual void happen(Event event, std::mt19937_64& random) = 0;
    /// An item more, where there is room for it.
    virtual void send(std::mt19937_64& random) = 0;
    /// All items that are there.
    virtual void take() = 0;
    /// Behind the last step: everybody who lives has everything.
    virtual void finish() = 0;
};

/// `count` for no more than so many ends.
template <class Ends>
auto some_of(Ends& ends, std::mt19937_64& random) {
    return ends.begin() + static_cast<std::ptrdiff_t>(random() % ends.size());
}

// --- N-1

class PlayedFanIn final : public Played {
  public:
    PlayedFanIn(std::uint32_t levels, bool accepts_beside) : levels_{levels} {
        flow::FanInOptions options{.queue = small(), .levels = levels};
        if (accepts_beside) options.acceptor.emplace();
        fan_in_.emplace(FanIn<Tagged>::listen(fresh_address(), options));
        fan_in_->on_change([this](const flow::FanInSource&, Status how) {
            ++(how == Status::ok ? joins_ : how == Status::closed ? closes_ : losses_);
        });
        for (int i = 0; i != 2; ++i) join();
    }
    void happen(Event event, std::mt19937_64& random) override {
        if (event == Event::joining) return join();
        if (event == Event::stalling) return stall();
        if (event == Event::forking) return fork_owner();
        if (ends_.empty()) return;
        const auto at = some_of(ends_, random);
        End end = std::move(*at);
        ends_.erase(at);
        if (event == Event::death) {
            ++dead_;
            return;
        }
        demand(beside([&] { take(); }, [&] { return end.producer.close(soon()); }), Status::ok,
               "the close of a producer");
        ++closed_;
        gone_.push_back(std::move(end.sent));
        first_of_gone_.push_back(end.first);
    }
    void send(std::mt19937_64& random) override {
        if (ends_.empty()) return;
        End& end = *some_of(ends_, random);
        const std::size_t level = random() % levels_;
        const Status status =
            end.producer.try_enqueue(level, Tagged::make(end.first + level, end.sent[level]));
        demand(status == Status::ok || status == Status::full, "a producer has lost its consumer");
        if (status == Status::ok) ++end.sent[level];
    }
    void take() override {
        Tagged item;
        Status status;
        while ((status = fan_in_->try_dequeue(item)) == Status::ok) {
            demand(item.is_whole() && item.producer < next_.size(), "an item is torn");
            demand(item.number == next_[item.producer]++, "an item is missing, or out of order");
            demand(fan_in_->last().label == item.producer % levels_, "an item is of another level");
        }
        demand(status, Status::empty, "a fan-in that nobody closed");
    }
    void finish() override {
        std::mt19937_64 random;
        while (!ends_.empty()) happen(Event::leaving, random);
        stalled_.clear();
        const Deadline deadline = soon();
        while (fan_in_->look_around() != 0 && !deadline.expired()) take();
        take();
        demand(fan_in_->producers() == 0, "a producer that is gone is not missed");
        for (std::size_t i = 0; i != gone_.size(); ++i) {
            for (std::size_t level = 0; level != levels_; ++level) {
                demand(next_[first_of_gone_[i] + level] == gone_[i][level],
                       "items of a producer that has closed are lost");
            }
        }
        const flow::FanInStats stats = fan_in_->stats();
        demand(stats.closed == closed_ && closes_ == closed_, "a close is not counted");
        demand(stats.lost == dead_ && losses_ == dead_, "a death is not counted");
        demand(stats.joined == closed_ + dead_ && joins_ == stats.joined, "a join is not counted");
    }

  private:
    struct End {
        PriorityProducer<Tagged> producer;
        std::uint64_t first;  ///< the number of its items' producer on level 0
        std::vector<std::uint64_t> sent;
    };
    void join() {
        const std::uint64_t joined = fan_in_->stats().joined;
        auto producer = beside([&] { take(); },
                               [&] {
                                   return PriorityProducer<Tagged>::connect(
                                       fan_in_->address(), levels_, small(), soon());
                               });
        const Deadline deadline = soon();
        while (fan_in_->stats().joined == joined && !deadline.expired()) take();
        demand(fan_in_->stats().joined == joined + 1, "a producer has joined, and is not counted");
        ends_.push_back({std::move(producer), next_.size(), std::vector<std::uint64_t>(levels_)});
        next_.resize(next_.size() + levels_);
    }
    /// It counts as one that has come, and then died.
    void stall() {
        const std::uint64_t joined = fan_in_->stats().joined;
        stalled_.push_back(
            beside([&] { take(); },
                   [&] { return stalled_newcomer(fan_in_->address(), ring::Role::producer); }));
        const Deadline deadline = soon();
        while (fan_in_->stats().joined == joined && !deadline.expired()) take();
        ++dead_;
    }
    void fork_owner() {
        in_child([&] {
            Tagged item;
            return is_refused_in_child([&] { (void)fan_in_->try_dequeue(item); }) &&
                   is_refused_in_child([&] { (void)fan_in_->look_around(); }) &&
                   is_refused_in_child([&] { fan_in_->close(); });
        });
    }

    const std::uint32_t levels_;
    std::optional<FanIn<Tagged>> fan_in_;
    std::vector<End> ends_;
    std::vector<connect::Link> stalled_;
    std::vector<std::uint64_t> next_;  ///< by producer and level
    std::vector<std::vector<std::uint64_t>> gone_;
    std::vector<std::uint64_t> first_of_gone_;
    std::uint64_t closed_ = 0, dead_ = 0;
    std::uint64_t joins_ = 0, closes_ = 0, losses_ = 0;  ///< as the watcher was told
};

// --- N-1, in order

/// Each item has a number that none before it had, whoever sent it.
class PlayedMerge final : public Played {
  public:
    explicit PlayedMerge(bool accepts_beside) {
        flow::MergeOptions options{.queue = small()};
        if (accepts_beside) options.acceptor.emplace();
        merge_.emplace(Ordered::listen(fresh_address(), options));
        for (int i = 0; i != 2; ++i) join();
    }
    void happen(Event event, std::mt19937_64& random) override {
        if (event == Event::joining) return join();
        if (event == Event::forking) return fork_owner();
        if (event == Event::stalling) {
            stalled_.push_back(
                beside([&] { take(); },
                       [&] { return stalled_newcomer(merge_->address(), ring::Role::producer); }));
            return;
        }
        if (ends_.empty()) return;
        const auto at = some_of(ends_, random);
        End end = std::move(*at);
        ends_.erase(at);
        if (event == Event::death) return;
        demand(beside([&] { take(); }, [&] { return end.producer.close(soon()); }), Status::ok,
               "the close of a producer");
        closed_.push_back(end.number);
    }
    void send(std::mt19937_64& random) override {
        if (ends_.empty()) return;
        End& end = *some_of(ends_, random);
        const Status status = end.producer.try_enqueue(Tagged::make(end.number, sent_));
        demand(status == Status::ok || status == Status::full, "a producer has lost its consumer");
        if (status == Status::ok) to_come_[end.number].push_back(sent_++);
    }
    void take() override {
        Tagged item;
        Status status;
        while ((status = merge_->try_dequeue(item)) == Status::ok) {
            demand(item.is_whole() && item.producer < to_come_.size(), "an item is torn");
            demand(item.number >= next_, "an item comes after one that it should precede");
            next_ = item.number + 1;
            std::deque<std::uint64_t>& to_come = to_come_[item.producer];
            demand(!to_come.empty() && item.number == to_come.front(), "an item is missing");
            to_come.pop_front();
        }
        demand(status, Status::empty, "a merge that nobody closed");
    }
    void finish() override {
        std::mt19937_64 random;
        while (!ends_.empty()) happen(Event::leaving, random);
        stalled_.clear();
        const Deadline deadline = soon();
        while (merge_->look_around() != 0 && !deadline.expired()) take();
        take();
        demand(merge_->producers() == 0, "a producer that is gone is not missed");
        for (const std::size_t number : closed_) {
            demand(to_come_[number].empty(), "items of a producer that has closed are lost");
        }
        demand(merge_->stats().late == 0, "an item in order is late");
    }

  private:
    using Ordered = Merge<Tagged, &Tagged::number>;
    struct End {
        Producer<Tagged> producer;
        std::size_t number;
    };
    void join() {
        const std::uint64_t joined = merge_->stats().sources.joined;
        auto producer =
            beside([&] { take(); },
                   [&] { return Producer<Tagged>::connect(merge_->address(), small(), soon()); });
        const Deadline deadline = soon();
        while (merge_->stats().sources.joined == joined && !deadline.expired()) take();
        ends_.push_back({std::move(producer), to_come_.size()});
        to_come_.emplace_back();
    }
    void fork_owner() {
        in_child([&] {
            Tagged item;
            return is_refused_in_child([&] { (void)merge_->try_dequeue(item); }) &&
                   is_refused_in_child([&] { (void)merge_->look_around(); }) &&
                   is_refused_in_child([&] { merge_->close(); });
        });
    }

    std::optional<Ordered> merge_;
    std::vector<End> ends_;
    std::vector<connect::Link> stalled_;
    std::vector<std::deque<std::uint64_t>> to_come_;  ///< by producer
    std::vector<std::size_t> closed_;
    std::uint64_t sent_ = 0;
    std::uint64_t next_ = 0;  ///< no smaller one comes any more
};

// --- 1-N, to all

class PlayedReplicator final : public Played {
  public:
    explicit PlayedReplicator(bool accepts_beside) {
        flow::ReplicatorOptions options{.queue = small()};
        if (accepts_beside) options.acceptor.emplace();
        replicator_.emplace(Replicator<Tagged>::listen(fresh_address(), options));
        for (int i = 0; i != 2; ++i) join();
    }
    void happen(Event event, std::mt19937_64& random) override {
        if (event == Event::joining) return join();
        if (event == Event::stalling) {
            stalled_.push_back(beside(
                [&] { (void)replicator_->look_around(); },
                [&] { return stalled_newcomer(replicator_->address(), ring::Role::consumer); }));
            return;
        }
        if (event == Event::forking) {
            in_child([&] {
                return is_refused_in_child([&] { (void)replicator_->try_enqueue({}); }) &&
                       is_refused_in_child([&] { (void)replicator_->look_around(); });
            });
            return;
        }
        if (ends_.empty()) return;
        const auto at = some_of(ends_, random);
        if (event == Event::leaving) at->consumer.close();
        ends_.erase(at);
        demand(replicator_->look_around() == ends_.size(), "one that is gone is not missed");
    }
    void send(std::mt19937_64& /*random*/) override {
        const Status status = replicator_->try_enqueue(Tagged::make(0, sent_));
        demand(status == Status::ok || status == Status::full, "a replicator that nobody closed");
        if (status == Status::ok) ++sent_;
    }
    void take() override {
        for (End& end : ends_) {
            Tagged item;
            Status status;
            while ((status = end.consumer.try_dequeue(item)) == Status::ok) {
                demand(item == Tagged::make(0, end.next++), "a copy is missing, or out of order");
            }
            demand(status, Status::empty, "a copy's consumer whose producer lives");
        }
    }
    void finish() override {
        const Deadline deadline = soon();
        Status status;
        while ((status = replicator_->flush(Deadline::now())) == Status::timed_out &&
               !deadline.expired()) {
            take();
        }
        demand(status, Status::ok, "the flush of a replicator");
        take();
        for (const End& end : ends_) demand(end.next == sent_, "a copy is lost");
        demand(replicator_->consumers() == ends_.size(), "consumers are miscounted");
    }

  private:
    struct End {
        Consumer<Tagged> consumer;
        std::uint64_t next;
    };
    void join() {
        auto consumer = beside(
            [&] { (void)replicator_->look_around(); },
            [&] { return Consumer<Tagged>::connect(replicator_->address(), small(), soon()); });
        const Deadline deadline = soon();
        while (replicator_->look_around() != ends_.size() + 1 && !deadline.expired()) {
        }
        ends_.push_back({std::move(consumer), sent_});
    }

    std::optional<Replicator<Tagged>> replicator_;
    std::vector<End> ends_;
    std::vector<connect::Link> stalled_;
    std::uint64_t sent_ = 0;
};

// --- 1-N, shared

class PlayedFanOut final : public Played {
  public:
    explicit PlayedFanOut(flow::Routing routing) {
        std::vector<flow::Listener> listeners;
        std::vector<connect::Address> addresses;
        for (int i = 0; i != 4; ++i) {
            listeners.push_back(flow::Listener::listen(fresh_address(), small()));
            addresses.push_back(listeners.back().address());
        }
        auto connecting = std::async(std::launch::async, [&] {
            return FanOut<Tagged>::connect(addresses, {.queue = small(), .routing = routing},
                                           soon());
        });
        for (flow::Listener& one : listeners) {
            ends_.push_back({Consumer<Tagged>::accept(one, soon()), {}});
        }
        out_.emplace(connecting.get());
    }
    void happen(Event event, std::mt19937_64& random) override {
        if (event == Event::forking) {
            in_child([&] { return out_->try_enqueue({}) == Status::peer_lost; });
            return;
        }
        if (there() == 0) return;
        auto at = some_of(ends_, random);
        while (!at->consumer.has_value()) at = some_of(ends_, random);
        if (event == Event::leaving) at->consumer->close();
        at->consumer.reset();
        demand(out_->look_around() == there(), "one that is gone is not missed");
    }
    void send(std::mt19937_64& /*random*/) override {
        const Status status = out_->try_enqueue(Tagged::make(0, sent_));
        if (status == Status::full) return;
        demand((status == Status::ok) == (there() != 0), "it finds somebody where nobody is");
        if (status != Status::ok) return;
        End& end = ends_[out_->last()];
        demand(end.consumer.has_value(), "an item goes to one that is gone");
        end.to_come.push_back(sent_++);
    }
    void take() override {
        for (End& end : ends_) {
            if (!end.consumer.has_value()) continue;
            Tagged item;
            Status status;
            while ((status = end.consumer->try_dequeue(item)) == Status::ok) {
                demand(!end.to_come.empty() && item == Tagged::make(0, end.to_come.front()),
                       "an item is missing, or came to another one");
                end.to_come.pop_front();
            }
            demand(status, Status::empty, "a consumer whose producer lives");
        }
    }
    void finish() override {
        const Deadline deadline = soon();
        Status status;
        while ((status = out_->flush(Deadline::now())) == Status::timed_out &&
               !deadline.expired()) {
            take();
        }
        demand(status, Status::ok, "the flush of a fan-out");
        take();
        for (const End& end : ends_) {
            demand(!end.consumer.has_value() || end.to_come.empty(), "an item is lost");
        }
    }

  private:
    struct End {
        std::optional<Consumer<Tagged>> consumer;
        std::deque<std::uint64_t> to_come;
    };
    [[nodiscard]] std::size_t there() const {
        return static_cast<std::size_t>(
            std::ranges::count_if(ends_, [](const End& end) { return end.consumer.has_value(); }));
    }

    std::optional<FanOut<Tagged>> out_;
    std::vector<End> ends_;
    std::uint64_t sent_ = 0;
};

// --- the table

struct Structure {
    const char* name;
    bool takes_newcomers;
    std::unique_ptr<Played> (*make)();
};
constexpr Structure structures[] = {
    {"FanIn", true,
     []() -> std::unique_ptr<Played> { return std::make_unique<PlayedFanIn>(1, false); }},
    {"FanInByAcceptor", true,
     []() -> std::unique_ptr<Played> { return std::make_unique<PlayedFanIn>(1, true); }},
    {"FanInOfLevels", true,
     []() -> std::unique_ptr<Played> { return std::make_unique<PlayedFanIn>(3, false); }},
    {"Merge", true,
     []() -> std::unique_ptr<Played> { return std::make_unique<PlayedMerge>(false); }},
    {"MergeByAcceptor", true,
     []() -> std::unique_ptr<Played> { return std::make_unique<PlayedMerge>(true); }},
    {"Replicator", true,
     []() -> std::unique_ptr<Played> { return std::make_unique<PlayedReplicator>(false); }},
    {"ReplicatorByAcceptor", true,
     []() -> std::unique_ptr<Played> { return std::make_unique<PlayedReplicator>(true); }},
    {"FanOutInTurn", false,
     []() -> std::unique_ptr<Played> {
         return std::make_unique<PlayedFanOut>(flow::Routing::in_turn);
     }},
    {"FanOutByRoom", false,
     []() -> std::unique_ptr<Played> {
         return std::make_unique<PlayedFanOut>(flow::Routing::whoever_has_room);
     }},
};

struct Row {
    Structure structure;
    Event first;
    Event second;
};
std::vector<Row> table() {
    std::vector<Row> rows;
    const auto takes = [](const Structure& structure, Event event) {
        return structure.takes_newcomers || (event != Event::joining && event != Event::stalling);
    };
    for (const Structure& structure : structures) {
        for (std::uint8_t i = 0; i != std::size(event_names); ++i) {
            for (std::uint8_t j = i; j != std::size(event_names); ++j) {
                const auto first = static_cast<Event>(i);
                const auto second = static_cast<Event>(j);
                if (!takes(structure, first) || !takes(structure, second)) continue;
                rows.push_back({structure, first, second});
            }
        }
    }
    return rows;
}

class Structures : public testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Rows, Structures, testing::ValuesIn(table()), [](const auto& row) {
    return std::string{row.param.structure.name} + "_" +
           event_names[static_cast<std::size_t>(row.param.first)] + "_" +
           event_names[static_cast<std::size_t>(row.param.second)];
});

TEST_P(Structures, KeepTheirPromisesToThoseWhoLive) {
    const Row& row = GetParam();
    const auto play = [&](std::uint64_t seed) -> std::string {
        std::mt19937_64 random{seed};
        try {
            const std::unique_ptr<Played> played = row.structure.make();
            int events = 0;
            for (int step = 0; step != 60; ++step) {
                const std::uint64_t what = random() % 10;
                if (what == 0 && events != 6) {
                    ++events;
                    played->happen(random() % 2 == 0 ? row.first : row.second, random);
                } else if (what < 3) {
                    played->take();
                } else {
                    played->send(random);
                }
            }
            played->finish();
        } catch (const std::exception& error) {
            return error.what();
        }
        return {};
    };
    (void)test::play_schedules(2, 200, play);
}

}  // namespace
}  // namespace millrace::cross
