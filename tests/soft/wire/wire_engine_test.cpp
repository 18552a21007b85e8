// The engine: timers in their time, and sleep while there is nothing.
#include "wire/wire_engine.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "soft/wire/wire_member.hpp"
#include "system/cable_time.hpp"

namespace millrace::test {
namespace {

using soft::cable_now;
using soft::wire_never;
using soft::WireCount;

/// Notes when it was called.
class Alarm : public soft::WireTimer {
  public:
    void due(std::int64_t now) noexcept override {
        called_at_.store(now);
        calls_.fetch_add(1);
        calls_.notify_all();
    }
    [[nodiscard]] int calls() const { return calls_.load(); }
    [[nodiscard]] std::int64_t called_at() const { return called_at_.load(); }
    /// Until it was called so often.
    void wait_for(int count) const {
        for (int seen = calls_.load(); seen < count; seen = calls_.load()) calls_.wait(seen);
    }

  private:
    std::atomic<std::int64_t> called_at_{0};
    std::atomic<int> calls_{0};
};

struct Engine {
    explicit Engine(std::uint8_t n) : on_wire{own_loopback(n)} {}
    soft::WireEngine* operator->() { return &on_wire.port->engine(); }
    OnWire on_wire;
};

TEST(WireEngine, CallsEachTimerOnceAndNotBeforeItsTime) {
    Engine engine{90};
    std::vector<std::unique_ptr<Alarm>> alarms;
    std::vector<std::int64_t> deadlines;
    std::mt19937 random{7};
    for (int i = 0; i < 300; ++i) {
        alarms.push_back(std::make_unique<Alarm>());
        engine->add(*alarms.back());
    }
    for (auto& alarm : alarms) {
        deadlines.push_back(cable_now() + static_cast<std::int64_t>(random() % 20'000'000));
        engine->expect(*alarm, deadlines.back());
    }
    for (std::size_t i = 0; i < alarms.size(); ++i) {
        alarms[i]->wait_for(1);
        EXPECT_GE(alarms[i]->called_at(), deadlines[i]);
    }
    for (auto& alarm : alarms) {
        EXPECT_EQ(alarm->calls(), 1);
        EXPECT_EQ(alarm->deadline(), wire_never);
        engine->remove(*alarm);
    }
}

TEST(WireEngine, CallsATimerAtTheDeadlineThatWasExpectedLast) {
    Engine engine{91};
    Alarm moved;
    Alarm sooner;
    Alarm taken_back;
    Alarm after;
    for (Alarm* alarm : {&moved, &sooner, &taken_back, &after}) engine->add(*alarm);
    const std::int64_t now = cable_now();
    engine->expect(moved, now + 5'000'000);
    engine->expect(taken_back, now + 5'000'000);
    engine->expect(sooner, now + 3'600'000'000'000);
    engine->expect(moved, now + 30'000'000);  // later
    engine->expect(taken_back, wire_never);
    engine->expect(sooner, now + 10'000'000);  // earlier
    engine->expect(after, now + 40'000'000);
    sooner.wait_for(1);
    moved.wait_for(1);
    after.wait_for(1);
    EXPECT_GE(moved.called_at(), now + 30'000'000);
    EXPECT_GE(sooner.called_at(), now + 10'000'000);
    EXPECT_EQ(taken_back.calls(), 0);
    for (Alarm* alarm : {&moved, &sooner, &taken_back, &after}) engine->remove(*alarm);
}

TEST(WireEngine, CallsNoTimerThatHasBeenRemoved) {
    Engine engine{92};
    for (int round = 0; round < 300; ++round) {
        auto alarm = std::make_unique<Alarm>();
        engine->add(*alarm);
        engine->expect(*alarm, cable_now() + round * 1000);
        if (round % 3 == 0) alarm->wait_for(1);
        engine->remove(*alarm);
        alarm.reset();  // a sanitizer tells, or the process ends
    }
}

TEST(WireEngine, LetsATimerExpectItselfAndRemoveItself) {
    Engine engine{93};
    struct Repeating final : Alarm {
        explicit Repeating(soft::WireEngine& of) : engine{of} {}
        void due(std::int64_t now) noexcept override {
            if (calls() < 9) {
                engine.expect(*this, now + 1000);
            } else {
                engine.remove(*this);
            }
            Alarm::due(now);
        }
        soft::WireEngine& engine;
    };
    Repeating repeating{engine.on_wire.port->engine()};
    engine->add(repeating);
    engine->expect(repeating, cable_now());
    repeating.wait_for(10);
    Alarm after;
    engine->add(after);
    engine->expect(after, cable_now());
    after.wait_for(1);
    EXPECT_EQ(repeating.calls(), 10);
    engine->remove(after);
}

TEST(WireEngine, TakesPacketsInWhileTimersAreDueAllTheTime) {
    Engine engine{96};
    OnWire peer{own_loopback(97)};
    struct Restless final : Alarm {
        explicit Restless(soft::WireEngine& of) : engine{of} {}
        void due(std::int64_t now) noexcept override {
            engine.expect(*this, now - 1);
            Alarm::due(now);
        }
        soft::WireEngine& engine;
    };
    Restless restless{engine.on_wire.port->engine()};
    engine->add(restless);
    engine->expect(restless, cable_now());
    restless.wait_for(10);
    peer.send_to(engine.on_wire, "all the same");
    EXPECT_EQ(engine.on_wire.inbox.wait_for(1).size(), 1U);
    engine->remove(restless);
}

TEST(WireEngine, WakesForNothingWhileAThousandTimersExpectNothing) {
    Engine engine{94};
    std::vector<std::unique_ptr<Alarm>> idle;
    for (int i = 0; i < 1000; ++i) {
        idle.push_back(std::make_unique<Alarm>());
        engine->add(*idle.back());
        engine->expect(*idle.back(), cable_now() + 3'600'000'000'000);
        engine->expect(*idle.back(), wire_never);
    }
    Alarm one;
    engine->add(one);
    for (int i = 1; i <= 5; ++i) {
        engine->expect(one, cable_now() + 20'000'000);
        one.wait_for(i);
    }
    // The last round may not be counted yet, and there were none but these.
    EXPECT_LE(engine.on_wire.port->counted(WireCount::engine_rounds), 5U);
    engine->remove(one);
    for (auto& alarm : idle) engine->remove(*alarm);
}

TEST(WireEngine, HearsOfDeadlinesFromManyThreads) {
    Engine engine{95};
    std::array<Alarm, 4> alarms;
    for (Alarm& alarm : alarms) engine->add(alarm);
    std::vector<std::thread> threads;
    for (Alarm& alarm : alarms) {
        threads.emplace_back([&alarm, &engine] {
            for (int i = 1; i <= 500; ++i) {
                engine->expect(alarm, cable_now() + 50'000'000);  // put off, as it is acknowledged
                engine->expect(alarm, cable_now() + 1000);
                alarm.wait_for(i);
            }
        });
    }
    for (auto& thread : threads) thread.join();
    for (Alarm& alarm : alarms) {
        EXPECT_EQ(alarm.calls(), 500);
        engine->remove(alarm);
    }
}

}  // namespace
}  // namespace millrace::test
