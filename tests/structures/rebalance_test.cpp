// Consumers that own keys come and go: nothing moves but what must, and both sides are told where.
#include "millrace/flow/rebalance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crowd.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

/// The `number`th item of a key, from 0.
struct OfKey {
    std::uint64_t key = 0;
    std::uint64_t number = 0;
};
using OwnedIn = KeyedFanIn<OfKey>;
using OwnedOut = KeyedFanOut<OfKey>;
constexpr std::uint64_t keys_in_play = 40;

TEST(Owners, KeepTheirKeysWhereOthersComeAndGo) {
    const bool held = rc::check([] {
        auto numbers =
            *rc::gen::unique<std::vector<std::uint64_t>>(rc::gen::arbitrary<std::uint64_t>());
        RC_PRE(numbers.size() >= 2U);
        const std::uint64_t gone = numbers.back();
        const std::vector<std::uint64_t> others(numbers.begin(), numbers.end() - 1);
        for (std::uint64_t key = 0; key != 50; ++key) {
            const std::uint64_t before = owner_of(key, numbers);
            RC_ASSERT(std::ranges::count(numbers, before) == 1);
            const std::uint64_t after = owner_of(key, others);
            RC_ASSERT(before == gone || after == before);
        }
        const std::uint64_t of_seven = owner_of(7, numbers);
        std::ranges::reverse(numbers);
        RC_ASSERT(owner_of(7, numbers) == of_seven);
    });
    EXPECT_TRUE(held);
}

TEST(Owners, HaveAboutAsManyKeysEach) {
    const std::vector<std::uint64_t> numbers{1, 2, 3, 4, 5};
    std::map<std::uint64_t, int> keys;
    for (std::uint64_t key = 0; key != 50'000; ++key) ++keys[owner_of(key, numbers)];
    for (const auto& [number, count] : keys) {
        EXPECT_GT(count, 9'500) << number;
        EXPECT_LT(count, 10'500) << number;
    }
}

/// A consumer, which checks what comes against what it was told of the owners.
struct Watched {
    explicit Watched(std::uint64_t number)
        : in{std::make_unique<OwnedIn>(
              OwnedIn::listen(fresh_address(), number, {.queue = small(4), .acceptor = {{}}}))} {
        in->on_rebalance([this](const FanInSource& source, std::span<const std::uint64_t> now) {
            owners[source.number].assign(now.begin(), now.end());
            ++rebalanced;
        });
    }
    [[nodiscard]] Owner as_owner() const { return {in->number(), in->address()}; }
    /// Takes what is there. What stopped it; not `ok`.
    Status take() {
        OfKey item;
        Status status;
        while ((status = in->try_dequeue(item)) == Status::ok) {
            const auto& told = owners[in->fan_in().last().number];
            if (told.empty() || owner_of(item.key, told) != in->number()) ++strays;
            taken.push_back(item);
        }
        return status;
    }

    std::unique_ptr<OwnedIn> in;
    std::map<std::uint64_t, std::vector<std::uint64_t>> owners;  ///< by producer
    int rebalanced = 0;
    int strays = 0;  ///< items that, as it was told, are another's
    std::vector<OfKey> taken;
};

/// A producer and its consumers, in one thread.
struct Shuffled {
    explicit Shuffled(std::uint64_t consumers) {
        std::vector<Owner> owners;
        for (std::uint64_t number = 1; number <= consumers; ++number) {
            here.push_back(std::make_unique<Watched>(number));
            owners.push_back(here.back()->as_owner());
        }
        out.emplace(OwnedOut::connect(owners, small(4), soon()));
        out->on_change(
            [this](std::uint64_t number, Status how) { told.emplace_back(number, how); });
    }
    void add(std::uint64_t number) {
        here.push_back(std::make_unique<Watched>(number));
        out->add(here.back()->as_owner(), soon());
    }
    void take() {
        for (auto& one : here) (void)one->take();
    }
    /// The next item of a key, if there is room.
    Status put(std::uint64_t key) {
        const Status status = out->try_enqueue(key, {key, sent[key]});
        if (status == Status::ok) ++sent[key];
        return status;
    }
    void remove(std::uint64_t number) {
        const Deadline deadline = soon();
        while (out->remove(number, Deadline::now()) == Status::timed_out && !deadline.expired()) {
            take();
        }
    }
    void close() {
        const Deadline deadline = soon();
        while (out->close(Deadline::now()) != Status::ok && !deadline.expired()) take();
        // A consumer looks now and then only at a producer that has come lately.
        while (left() != 0 && !deadline.expired()) take();
    }
    /// Items that were sent, and not taken.
    [[nodiscard]] std::uint64_t left() const {
        std::uint64_t count = 0;
        for (const auto& [key, items] : sent) count += items;
        count -= std::min(count, taken_by_dead);
        for (const auto& one : here) count -= std::min<std::uint64_t>(count, one->taken.size());
        return count;
    }
    /// What is missing, doubled, or at one who does not own it.
    std::string complaints() {
        std::map<std::uint64_t, std::multiset<std::uint64_t>> seen;
        std::string text;
        for (const auto& one : here) {
            if (one->strays != 0) text += "strays at " + std::to_string(one->in->number()) + "\n";
            std::map<std::uint64_t, std::uint64_t> next;
            for (const OfKey& item : one->taken) {
                if (item.number < next[item.key]) text += "out of order\n";
                next[item.key] = item.number + 1;
                seen[item.key].insert(item.number);
            }
        }
        for (const auto& [key, count] : sent) {
            std::multiset<std::uint64_t> all;
            for (std::uint64_t i = 0; i != count; ++i) all.insert(i);
            if (seen[key] != all) text += "lost or doubled of key " + std::to_string(key) + "\n";
        }
        return text;
    }

    std::vector<std::unique_ptr<Watched>> here;
    std::optional<OwnedOut> out;
    std::map<std::uint64_t, std::uint64_t> sent;
    std::uint64_t taken_by_dead = 0;
    std::vector<std::pair<std::uint64_t, Status>> told;
};

TEST(Rebalancing, TellsBothSidesWhoOwnsWhatFromWhereOn) {
    Shuffled all{2};
    const auto put_all = [&] {
        for (std::uint64_t key = 0; key != keys_in_play; ++key) {
            while (all.put(key) == Status::full) all.take();
        }
    };
    put_all();
    all.add(3);
    put_all();
    all.remove(1);
    put_all();
    all.close();
    EXPECT_EQ(all.complaints(), "");
    EXPECT_THAT(all.told, ElementsAre(Pair(3U, Status::ok), Pair(1U, Status::closed)));
    EXPECT_THAT(all.here[1]->owners.begin()->second, ElementsAre(2, 3));
    EXPECT_EQ(all.here[0]->rebalanced, 3);
    EXPECT_EQ(all.here[1]->rebalanced, 3);
    EXPECT_EQ(all.here[2]->rebalanced, 2);
    for (const auto& one : all.here) EXPECT_FALSE(one->taken.empty());
    EXPECT_THAT(all.out->explain(), HasSubstr("2 owners of keys, who have changed 2 times: 2 3"));
}

TEST(Rebalancing, OfAnyHistoryNothingIsLostOrGoesToAnother) {
    const bool held = rc::check([] {
        Shuffled all{1};
        std::set<std::uint64_t> numbers{1};
        std::uint64_t next = 1;
        // An item of a key; all take; one joins; one leaves, at once or not.
        for (const int step : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 60))) {
            if (step < 40) {
                const Status status = all.put(static_cast<std::uint64_t>(step));
                RC_ASSERT(status == Status::ok || status == Status::full);
            } else if (step < 50) {
                all.take();
            } else if (step < 54 && numbers.size() < 4) {
                all.add(++next);
                numbers.insert(next);
            } else if (step < 58 && numbers.size() > 1) {
                // It may be told and emptied later only, and has no keys from here on.
                const std::uint64_t gone = step < 56 ? *numbers.begin() : *numbers.rbegin();
                const Status status = all.out->remove(gone, Deadline::now());
                RC_ASSERT(status == Status::ok || status == Status::timed_out);
                if (status == Status::timed_out) all.remove(gone);
                numbers.erase(gone);
            }
            RC_ASSERT(std::ranges::equal(all.out->owners(), numbers));
        }
        all.close();
        RC_ASSERT(all.complaints() == "");
    });
    EXPECT_TRUE(held);
}

TEST(Rebalancing, InALoopIsReadableWhenTheOwnerMayHaveRoom) {
    Shuffled all{2};
    const int descriptor = all.out->descriptor();
    EXPECT_TRUE(millrace::test::is_readable(descriptor))
        << "whether there is room nobody has asked";
    std::uint64_t key = 0;
    while (owner_of(key, all.out->owners()) != 1) ++key;
    ASSERT_TRUE(millrace::test::goes_quiet(descriptor, [&] {
        while (all.put(key) == Status::ok) {
        }
    }));
    const Deadline deadline = soon();
    while (!millrace::test::becomes_readable(descriptor, 10ms) && !deadline.expired()) {
        (void)all.here[0]->take();
    }
    Status status;
    while ((status = all.put(key)) == Status::full && !deadline.expired()) {
        (void)all.here[0]->take();
    }
    EXPECT_EQ(status, Status::ok);
    all.close();
    EXPECT_EQ(all.complaints(), "");
}

TEST(Rebalancing, GivesUpNothingWhereARemovalTimesOut) {
    Shuffled all{2};
    std::uint64_t key = 0;
    while (owner_of(key, all.out->owners()) != 1) ++key;
    while (all.put(key) == Status::ok) {
    }
    EXPECT_EQ(all.out->remove(1, Deadline::after(5ms)), Status::timed_out);
    EXPECT_THAT(all.out->owners(), ElementsAre(2));
    // It belongs to the other one already, which has two notices and a ring of four places.
    Status status;
    while ((status = all.put(key)) == Status::full) (void)all.here[1]->take();
    EXPECT_EQ(status, Status::ok);
    all.remove(1);
    EXPECT_EQ(all.out->remove(1, soon()), Status::closed) << "there is none";
    all.close();
    EXPECT_EQ(all.complaints(), "");
}

TEST(Rebalancing, TheKeysOfADeadOwnerGoToTheOthers) {
    Shuffled all{3};
    for (std::uint64_t key = 0; key != keys_in_play; ++key) {
        while (all.put(key) == Status::full) all.take();
    }
    const Deadline deadline = soon();
    while (all.out->flush(Deadline::now()) != Status::ok && !deadline.expired()) all.take();
    all.take();
    const std::unique_ptr<Watched> dead = std::move(all.here[1]);
    all.here.erase(all.here.begin() + 1);
    dead->in.reset();
    all.taken_by_dead = dead->taken.size();
    while (all.out->owners().size() != 2 && !deadline.expired()) (void)all.out->look_around();
    for (std::uint64_t key = 0; key != keys_in_play; ++key) {
        while (all.put(key) == Status::full) all.take();
    }
    all.close();
    EXPECT_THAT(all.told, ElementsAre(Pair(2U, Status::peer_lost)));
    EXPECT_THAT(all.here[0]->owners.begin()->second, ElementsAre(1, 3));
    for (const auto& one : all.here) EXPECT_EQ(one->strays, 0);
    std::size_t taken = dead->taken.size();
    for (const auto& one : all.here) taken += one->taken.size();
    EXPECT_EQ(taken, 2 * keys_in_play);
}

MILLRACE_CHILD(owner_of_keys) {
    auto in = OwnedIn::listen(arguments[0], 2, {.queue = small(4)});
    OfKey item;
    while (in.dequeue(item, soon()) == Status::ok) {
    }
    return 0;
}

TEST(Rebalancing, AnItemForAnOwnerThatIsKilledGoesToItsHeir) {
    const std::string address = fresh_address();
    ChildProcess child = ChildProcess::start("owner_of_keys", {address});
    Watched heir{1};
    std::optional<OwnedOut> out;
    const Deadline deadline = soon();
    while (!out.has_value() && !deadline.expired()) {
        try {
            out.emplace(OwnedOut::connect({heir.as_owner(), {2, address}}, small(4), soon()));
        } catch (const base::Error&) {  // it does not listen yet
            std::this_thread::sleep_for(1ms);
        }
    }
    std::uint64_t key = 0;
    while (owner_of(key, out->owners()) != 2) ++key;
    ASSERT_EQ(out->enqueue(key, {key, 0}, soon()), Status::ok);
    child.kill();
    (void)child.wait();
    std::uint64_t number = 1;
    while (out->owners().size() == 2 && !deadline.expired()) {
        (void)out->try_enqueue(key, {key, number++});
    }
    Status status;
    while ((status = out->try_enqueue(key, {key, number})) == Status::full) (void)heir.take();
    EXPECT_EQ(status, Status::ok);
    while ((heir.taken.empty() || heir.taken.back().number != number) && !deadline.expired()) {
        (void)out->flush(Deadline::now());
        (void)heir.take();
    }
    ASSERT_FALSE(heir.taken.empty());
    EXPECT_EQ(heir.taken.back().number, number);
    EXPECT_EQ(heir.strays, 0);
    heir.in.reset();
    while (out->look_around() != 0 && !deadline.expired()) {
    }
    EXPECT_EQ(out->try_enqueue(key, {key, 0}), Status::peer_lost) << "nobody is left";
}

TEST(Rebalancing, OfManyProducersEachTellsItsOwn) {
    std::vector<std::unique_ptr<Watched>> here;
    for (std::uint64_t number = 1; number <= 3; ++number) {
        here.push_back(std::make_unique<Watched>(number));
    }
    constexpr std::uint64_t count = 2000;
    std::atomic<int> running{3};
    std::vector<std::jthread> threads;
    for (std::uint64_t p = 0; p != 3; ++p) {
        threads.emplace_back([&, p] {
            auto out =
                OwnedOut::connect({here[0]->as_owner(), here[1]->as_owner()}, small(4), soon());
            for (std::uint64_t i = 0; i != count; ++i) {
                if (i == 500 * (p + 1)) out.add(here[2]->as_owner(), soon());
                if (i == 1800) {
                    EXPECT_EQ(out.remove(1, soon()), Status::ok);
                }
                EXPECT_EQ(out.enqueue(i % 100, {i % 100, i}, soon()), Status::ok);
            }
            EXPECT_EQ(out.close(soon()), Status::ok);
            --running;
        });
    }
    const Deadline deadline = soon();
    while (running != 0 && !deadline.expired()) {
        for (auto& one : here) (void)one->take();
    }
    std::size_t taken = 0;
    for (auto& one : here) {
        (void)one->take();
        EXPECT_EQ(one->strays, 0) << one->in->number();
        taken += one->taken.size();
    }
    EXPECT_EQ(taken, 3 * count);
}

TEST(Rebalancing, RefusesTwoOwnersOfOneNumber) {
    Watched one{7}, other{7};
    const base::Error error = error_of([&] {
        (void)OwnedOut::connect({one.as_owner(), other.as_owner()}, small(4), soon());
    });
    EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("number 7"));
}

// ---- filters

struct OddNumbers {
    bool operator()(const OfKey& item) const noexcept { return item.number % 2 != 0; }
};
struct NoneAtAll {
    bool operator()(const OfKey& /*item*/) const noexcept { return false; }
};
struct JustKey {
    std::uint64_t key = 0;
};
/// Makes something smaller of every third.
struct ThirdsKeys {
    std::optional<JustKey> operator()(const OfKey& item) const noexcept {
        if (item.number % 3 != 0) return std::nullopt;
        return JustKey{item.key};
    }
};
struct ThrowsForAll {
    bool operator()(const OfKey& /*item*/) const { throw std::runtime_error{"not this one"}; }
};
using SiftedOut = KeyedFanOut<Filtered<OfKey, OddNumbers, NoneAtAll, ThirdsKeys, ThrowsForAll>>;

template <class T = OfKey>
KeyedFanIn<T> sifting(std::uint64_t number, Filter filter) {
    Options queue = small(4);
    queue.filter = filter;
    return KeyedFanIn<T>::listen(fresh_address(), number, {.queue = queue, .acceptor = {{}}});
}
template <class In>
Owner as_owner(const In& in) {
    return {in.number(), in.address()};
}

TEST(FilterOfAKeyedFanOut, IsTheSameAsFilteringAtEachOwner) {
    auto all = sifting(1, {});
    auto odd = sifting(2, OddNumbers{});
    auto keys = sifting<JustKey>(3, ThirdsKeys{});
    auto out = SiftedOut::connect({as_owner(all), as_owner(odd), as_owner(keys)}, small(4), soon());
    const std::vector<std::uint64_t> owners{1, 2, 3};
    std::array<std::vector<std::uint64_t>, 4> expected;
    std::array<std::vector<std::uint64_t>, 4> taken;
    std::array<int, 4> told{};
    const auto count_notices = [&](auto& in) {
        in.on_rebalance([&](const FanInSource&, std::span<const std::uint64_t> now) {
            ++told[in.number()];
            EXPECT_THAT(now, testing::SizeIs(3));
        });
    };
    count_notices(all);
    count_notices(odd);
    count_notices(keys);
    const auto take = [&] {
        OfKey item;
        while (all.try_dequeue(item) == Status::ok) taken[1].push_back(item.number);
        while (odd.try_dequeue(item) == Status::ok) taken[2].push_back(item.number);
        JustKey key;
        while (keys.try_dequeue(key) == Status::ok) taken[3].push_back(key.key);
    };
    const Deadline deadline = soon();
    for (std::uint64_t number = 0; number != 600; ++number) {
        const OfKey item{number % keys_in_play, number};
        Status status;
        while ((status = out.try_enqueue(item.key, item)) == Status::full) {
            take();
            ASSERT_FALSE(deadline.expired()) << number;
        }
        ASSERT_EQ(status, Status::ok);
        const std::uint64_t owner = owner_of(item.key, owners);
        if (owner == 1 || (owner == 2 && number % 2 != 0)) expected[owner].push_back(number);
        if (owner == 3 && number % 3 == 0) expected[owner].push_back(item.key);
    }
    while (out.flush(Deadline::now()) != Status::ok || taken != expected) {
        take();
        ASSERT_FALSE(deadline.expired());
    }
    EXPECT_FALSE(expected[2].empty() || expected[3].empty());
    EXPECT_THAT(told, ElementsAre(0, 1, 1, 1));
}

TEST(FilterOfAKeyedFanOut, LetsNoticesThroughWhateverItLeavesOut) {
    auto none = sifting(1, NoneAtAll{});
    auto other = sifting(2, {});
    auto out = SiftedOut::connect({as_owner(none), as_owner(other)}, small(4), soon());
    std::vector<std::uint64_t> owners;
    none.on_rebalance([&](const FanInSource&, std::span<const std::uint64_t> now) {
        owners.assign(now.begin(), now.end());
    });
    const Deadline deadline = soon();
    OfKey item;
    const auto await_owners = [&](std::size_t count) {
        while (owners.size() != count && !deadline.expired()) {
            EXPECT_EQ(none.try_dequeue(item), Status::empty);
            (void)other.try_dequeue(item);
            (void)out.flush(Deadline::now());
        }
    };
    await_owners(2);
    EXPECT_THAT(owners, ElementsAre(1, 2));
    while (out.remove(2, Deadline::now()) == Status::timed_out && !deadline.expired()) {
        (void)other.try_dequeue(item);
    }
    for (std::uint64_t number = 0; number != 20; ++number) {
        EXPECT_EQ(out.try_enqueue(number, {number, number}), Status::ok) << "it needs no room";
    }
    await_owners(1);
    EXPECT_THAT(owners, ElementsAre(1));
}

TEST(FilterOfAKeyedFanOut, ThatThrowsLeavesTheKeysOfItsOwnerToTheOthers) {
    auto throwing = sifting(1, ThrowsForAll{});
    auto other = sifting(2, {});
    auto out = SiftedOut::connect({as_owner(throwing), as_owner(other)}, small(64), soon());
    std::vector<std::uint64_t> left;
    out.on_change([&](std::uint64_t number, Status how) {
        EXPECT_EQ(how, Status::peer_lost);
        left.push_back(number);
    });
    for (std::uint64_t number = 0; number != keys_in_play; ++number) {
        ASSERT_EQ(out.enqueue(number, {number, number}, soon()), Status::ok);
        OfKey item;
        ASSERT_EQ(take(other, out, item), Status::ok);
        EXPECT_EQ(item.number, number) << "the one for which it threw as well";
    }
    EXPECT_THAT(left, ElementsAre(1));
}

}  // namespace
}  // namespace millrace::flow
